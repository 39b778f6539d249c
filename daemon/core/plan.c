/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a table of placement by minimum-cost flow. Copies flow from chunks through nodes to a sink.
 * A chunk sends as many as it wants, at most one to each node, and the sink takes from each node
 * its quota, rounded up or down. A copy that was there before is free, a new one costs one. The
 * flow begins with all the old copies, which is optimal but unbalanced: chunks have too few or too
 * many copies, and nodes more or less than their quota. Each turn of balance() takes one unit along
 * a shortest path from where there is too much to where there is too little. As long as every path
 * is a shortest one the flow stays optimal (successive shortest paths: Ahuja, Magnanti and Orlin,
 * Network Flows, section 9.7).
 *
 * There are far more chunks than nodes, so the search sees only nodes and the sink. An edge from
 * one node to another stands for any chunk that can give its copy from the first to the second, and
 * tables count these chunks by cost. Of equally cheap paths the one with the fewest edges is taken.
 * No chunk is then twice on a path, because between its two edges there would be a detour that
 * costs nothing. */
#include "core/plan.h"

#include "base/check.h"
#include "base/rng.h"

#include <string.h>

enum {
	NODES = CORE_NODES_MAX,
	SINK = NODES,
	VERTICES,
	START = VERTICES,
	NOBODY = VERTICES,
	COSTS = 3,
	UNIT = 4 * VERTICES, /* Of cost, in edges: a path has fewer. */
	FAR = INT32_MAX / 2,
};

struct edge {         /* The last one of the path to a vertex. */
	uint8_t from; /* A vertex. START: it begins with a chunk, or here. */
	int8_t cost;
	bool chunk; /* A copy moves or is made. Otherwise it is an edge to the sink or back. */
};

struct plan {
	/* One flow: the two of a plan follow each other. */
	uint32_t chunks_nr, want; /* want: copies of each chunk. */
	uint64_t nodes;           /* Those that have capacity. */
	bool primaries; /* The flow of primaries. Otherwise it is the one of all copies. */
	const struct plan_table *from;
	struct plan_table *to; /* The flow itself. */
	uint64_t low[NODES], high[NODES];
	uint64_t load[NODES]; /* What flows into each node. */
	/* What flows out of it, from low to high. Too much is there if the load is more. */
	uint64_t taken[NODES];
	uint64_t taken_sum, total;
	/* Any chunk that can do a thing may do it. Drawing it by lot lets each node share its
	 * chunks with all the others, so that they all help when the node is lost. The seed is the
	 * same everywhere. */
	struct rng rng;
	/* How many chunks can do it, by its cost less 1, 0 or 1. */
	uint32_t move[NODES][NODES][COSTS]; /* Give a copy from one node to another. */
	uint32_t need[NODES][COSTS];        /* Have too few copies, and make one here. */
	uint32_t shed[NODES][COSTS];        /* Have too many, and give this one up. */
	int32_t distance[VERTICES];
	struct edge edge[VERTICES];
};

size_t plan_bytes(void)
{
	return sizeof(struct plan);
}

static uint64_t bit(uint32_t node)
{
	return 1ull << node;
}

static uint32_t count(uint64_t nodes)
{
	return (uint32_t)__builtin_popcountll(nodes);
}

/* The first node of the set from this one on. NODES: there is none. */
static uint32_t next(uint64_t set, uint32_t node)
{
	set = node < NODES ? set & UINT64_MAX << node : 0;
	return set ? (uint32_t)__builtin_ctzll(set) : (uint32_t)NODES;
}

/* The set does not change in the loop. */
#define each_node(node, set)                                                                       \
	for (uint32_t node = next((set), 0); node < NODES; node = next((set), node + 1))

/* The copies of a chunk in a table. In the flow of primaries only the primary is one. */
static uint64_t copies(const struct plan *p, const struct plan_table *t, uint32_t chunk)
{
	if (!p->primaries)
		return t->holders[chunk];
	return t->primary[chunk] < NODES ? bit(t->primary[chunk]) : 0;
}

static void set_copies(struct plan *p, uint32_t chunk, uint64_t set)
{
	if (!p->primaries)
		p->to->holders[chunk] = set;
	else
		p->to->primary[chunk] = set ? (uint16_t)__builtin_ctzll(set) : PLAN_NOBODY;
}

/* The nodes that may have a copy of the chunk. */
static uint64_t may(const struct plan *p, uint32_t chunk)
{
	return p->primaries ? p->to->holders[chunk] : p->nodes;
}

/* The index into a table of counts. A copy that is given up is worth what it had cost. */
static int cost_of(uint64_t was, uint64_t to, uint64_t from)
{
	return 1 + (to && !(was & to)) - (from && !(was & from));
}

/* Adds what the chunk can do to the tables (by 1), or takes it out (by -1). */
static void tally(struct plan *p, uint32_t chunk, uint32_t by)
{
	uint64_t has = copies(p, p->to, chunk), was = copies(p, p->from, chunk);
	uint64_t could = may(p, chunk) & ~has;

	each_node(a, has) {
		each_node(b, could)
			p->move[a][b][cost_of(was, bit(b), bit(a))] += by;
		if (count(has) > p->want)
			p->shed[a][cost_of(was, 0, bit(a))] += by;
	}
	if (count(has) < p->want)
		each_node(b, could)
			p->need[b][cost_of(was, bit(b), 0)] += by;
}

/* The index of the cheapest that any chunk can do. COSTS: none can. */
static int cheapest(const uint32_t counts[COSTS])
{
	int k = 0;

	while (k < COSTS && counts[k] == 0)
		k++;
	return k;
}

static bool reach(struct plan *p, uint32_t to, int32_t distance, struct edge edge)
{
	if (distance >= p->distance[to])
		return false;
	p->distance[to] = distance;
	p->edge[to] = edge;
	return true;
}

/* Follows every edge once. Returns false if nothing came nearer. */
static bool relax(struct plan *p)
{
	bool nearer = false;

	each_node(a, p->nodes) {
		int32_t d = p->distance[a];

		if (p->distance[SINK] < FAR && p->taken[a] > p->low[a])
			nearer |= reach(p, a, p->distance[SINK] + 1, (struct edge){SINK, 0, false});
		if (d >= FAR)
			continue;
		if (p->taken[a] < p->high[a])
			nearer |= reach(p, SINK, d + 1, (struct edge){(uint8_t)a, 0, false});
		each_node(b, p->nodes & ~bit(a)) {
			int k = cheapest(p->move[a][b]);

			if (k < COSTS)
				nearer |= reach(p, b, d + (k - 1) * UNIT + 1,
						(struct edge){(uint8_t)a, (int8_t)(k - 1), true});
		}
	}
	return nearer;
}

/* Finds how far each vertex is from where there is too much. */
static void search(struct plan *p)
{
	uint32_t turns = 0;

	for (uint32_t v = 0; v < VERTICES; v++)
		p->distance[v] = FAR;
	if (p->taken_sum > p->total)
		reach(p, SINK, 0, (struct edge){START, 0, false});
	each_node(n, p->nodes) {
		int k = cheapest(p->need[n]);

		if (p->load[n] > p->taken[n])
			reach(p, n, 0, (struct edge){START, 0, false});
		if (k < COSTS)
			reach(p, n, (k - 1) * UNIT + 1,
			      (struct edge){START, (int8_t)(k - 1), true});
	}
	while (relax(p)) /* More turns: some circle costs less than nothing. */
		CHECK(++turns <= VERTICES);
}

/* Lets a chunk give its copy on the one node to the other, at this cost. NOBODY: it makes the copy
 * anew, or gives it up. */
static void give(struct plan *p, uint32_t from, uint32_t to, int cost)
{
	uint64_t out = from < NODES ? bit(from) : 0, in = to < NODES ? bit(to) : 0;

	uint32_t first = (uint32_t)rng_below(&p->rng, p->chunks_nr);

	for (uint32_t i = 0; i < p->chunks_nr; i++) {
		uint32_t chunk = (uint32_t)(((uint64_t)first + i) % p->chunks_nr);
		uint64_t has = copies(p, p->to, chunk);

		if ((has & out) != out || has & in || (may(p, chunk) & in) != in ||
		    (!out && count(has) >= p->want) || (!in && count(has) <= p->want) ||
		    cost_of(copies(p, p->from, chunk), in, out) - 1 != cost)
			continue;
		tally(p, chunk, UINT32_MAX);
		set_copies(p, chunk, (has & ~out) | in);
		tally(p, chunk, 1);
		if (out)
			p->load[from]--;
		if (in)
			p->load[to]++;
		return;
	}
	CHECK(!"a chunk that was counted is there");
}

/* Takes one unit along the path to the vertex. */
static void take(struct plan *p, uint32_t to)
{
	for (struct edge e = p->edge[to];; to = e.from, e = p->edge[to]) {
		if (e.chunk) {
			give(p, e.from == START ? (uint32_t)NOBODY : e.from, to, e.cost);
		} else if (e.from == SINK) {
			p->taken[to]--;
			p->taken_sum--;
		} else if (e.from != START) {
			p->taken[e.from]++;
			p->taken_sum++;
		}
		if (e.from == START)
			return;
	}
}

struct end { /* Of a path: a place where there is too little. */
	int32_t distance;
	uint64_t lacks;
	uint32_t at; /* A vertex. NOBODY: there is none. */
	int shed;    /* A chunk gives up its copy there, at this cost plus 1. COSTS: none does. */
};

/* Of equally near ends the one that lacks most is best, so that all nodes fill up together. */
static void best_of(struct end *best, struct end e)
{
	if (e.distance < best->distance ||
	    (e.distance == best->distance && e.distance < FAR && e.lacks > best->lacks))
		*best = e;
}

/* Takes one unit from where there is too much to where there is too little. Returns false if there
 * is too little nowhere. */
static bool balance(struct plan *p)
{
	struct end best = {FAR, 0, NOBODY, COSTS};

	search(p);
	if (p->taken_sum < p->total)
		best_of(&best, (struct end){p->distance[SINK], 0, SINK, COSTS});
	each_node(n, p->nodes) {
		int k = cheapest(p->shed[n]);
		int32_t d = p->distance[n];

		if (p->load[n] < p->taken[n])
			best_of(&best, (struct end){d, p->taken[n] - p->load[n], n, COSTS});
		if (k < COSTS && d < FAR)
			best_of(&best, (struct end){d + (k - 1) * UNIT + 1, 0, n, k});
	}
	if (best.at == NOBODY)
		return false;
	if (best.shed < COSTS)
		give(p, best.at, NOBODY, best.shed - 1);
	take(p, best.at);
	return true;
}

/* Finds the cheapest flow. .nodes, .want, .low, .high and .primaries are set. */
static void flow(struct plan *p)
{
	p->total = (uint64_t)p->want * p->chunks_nr;
	memset(p->move, 0, sizeof(p->move));
	memset(p->need, 0, sizeof(p->need));
	memset(p->shed, 0, sizeof(p->shed));
	memset(p->load, 0, sizeof(p->load));
	for (uint32_t c = 0; c < p->chunks_nr; c++) {
		set_copies(p, c, copies(p, p->from, c) & may(p, c));
		each_node(n, copies(p, p->to, c))
			p->load[n]++;
		tally(p, c, 1);
	}
	p->taken_sum = 0;
	each_node(n, p->nodes) {
		CHECK(p->low[n] <= p->high[n] && p->high[n] <= p->chunks_nr);
		p->taken[n] = p->load[n] < p->low[n]    ? p->low[n]
			      : p->load[n] > p->high[n] ? p->high[n]
							: p->load[n];
		p->taken_sum += p->taken[n];
	}
	while (balance(p))
		;
	for (uint32_t c = 0; c < p->chunks_nr; c++)
		CHECK(count(copies(p, p->to, c)) == p->want && !(copies(p, p->to, c) & ~may(p, c)));
	each_node(n, p->nodes)
		CHECK(p->load[n] >= p->low[n] && p->load[n] <= p->high[n]);
}

/* The shares of the copies by capacity. A node whose share would be more than all chunks has all
 * of them, and the others share the rest. */
static void share(struct plan *p, const uint64_t capacity[NODES])
{
	uint64_t open = p->nodes, left = (uint64_t)p->want * p->chunks_nr;
	bool full = true;

	while (full) {
		unsigned __int128 sum = 0, all = 0;

		full = false;
		each_node(n, open)
			sum += capacity[n];
		each_node(n, open) {
			all = (unsigned __int128)left * capacity[n];
			p->low[n] = (uint64_t)(all / sum);
			p->high[n] = p->low[n] + (all % sum != 0);
		}
		each_node(n, open) {
			if (p->low[n] < p->chunks_nr)
				continue;
			p->low[n] = p->high[n] = p->chunks_nr;
			open &= ~bit(n);
			left -= p->chunks_nr;
			full = open != 0;
		}
	}
}

void plan_make(struct plan *p, const struct plan_conf *conf, const struct plan_table *from,
	       struct plan_table *to, struct plan_cost *cost)
{
	CHECK(conf->chunks_nr > 0 && conf->copies > 0);
	CHECK(from->holders != to->holders && from->primary != to->primary);
	memset(p, 0, sizeof(*p));
	p->chunks_nr = conf->chunks_nr;
	p->from = from;
	p->to = to;
	for (uint32_t n = 0; n < NODES; n++)
		p->nodes |= conf->capacity[n] ? bit(n) : 0;
	CHECK(p->nodes);
	p->want = conf->copies < count(p->nodes) ? conf->copies : count(p->nodes);
	share(p, conf->capacity);
	flow(p);

	/* Each holder is primary of the same part of its chunks. */
	each_node(n, p->nodes) {
		p->low[n] = p->load[n] / p->want;
		p->high[n] = p->low[n] + (p->load[n] % p->want != 0);
	}
	p->want = 1;
	p->primaries = true;
	flow(p);

	*cost = (struct plan_cost){0, 0};
	for (uint32_t c = 0; c < p->chunks_nr; c++) {
		cost->copies += count(to->holders[c] & ~from->holders[c]);
		cost->primaries += to->primary[c] != from->primary[c];
	}
}
