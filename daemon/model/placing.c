/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the tables of placement. spec.c asks for that of a new model, and make.c reads those of
 * definitions. Happy path: the nodes are lined up
 * so that each comes as often as its capacity says, the chunks take their primaries from that line
 * and their other holders from behind it, and the plan of core/plan.h moves the few copies that are
 * not in balance. Without such a table to begin with, the plan would take seconds for many nodes
 * and chunks. It fails if there is no memory, or if a table from outside is wrong. */
#include "model/placing.h"

#include "base/check.h"
#include "base/clock.h"
#include "core/plan.h"
#include "link/peer.h"
#include "wire/place.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_MAX (4u * CORE_NODES_MAX) /* Places in line that are looked at for one copy. */

void placing_capacity(const struct server *s, uint64_t *capacity)
{
	memset(capacity, 0, CORE_NODES_MAX * sizeof(*capacity));
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		capacity[n] = s->peer[n] != NULL ? peer_capacity(s->peer[n]) : server_capacity(s);
}

uint64_t placing_members(const struct server *s)
{
	uint64_t all = UINT64_MAX >> (64 - s->nodes_nr), members = all, now_ns = clock_ns();

	if (peer_older(s, WIRE_MEMBERS) != NULL)
		return all;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		const struct peer *p = s->peer[n];

		if (p != NULL && peer_given_up(p, now_ns))
			members &= ~(1ull << n);
	}
	return members;
}

const struct peer *placing_lacks(const struct server *s)
{
	uint64_t members = placing_members(s);

	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL && !s->peer[n]->up && members >> n & 1)
			return s->peer[n];
	return NULL;
}

enum shard_status placing_refuse(const struct peer *p, const char *model, struct err *e)
{
	const struct server *s = p->server;

	CHECK(!p->up);
	if (p->node == server_coordinator(s))
		return err_set(
			e, SHARD_UNREACHABLE,
			"\"%s\" is defined by node %s (%s), which coordinates and is down: %s",
			model, members_name(s, p->node), s->node[p->node].address.text, p->why);
	return err_set(
		e, SHARD_UNREACHABLE,
		"\"%s\" needs every node, and node %s (%s) is down: %s: it begins without that "
		"node when that has been away for lost_timeout = %.0f s",
		model, members_name(s, p->node), s->node[p->node].address.text, p->why,
		(double)s->conf->lost_timeout_ns / NS_PER_SEC);
}

void placing_capacity_of(const struct server *s, uint64_t members, uint64_t *capacity)
{
	placing_capacity(s, capacity);
	for (uint16_t n = 0; n < CORE_NODES_MAX; n++)
		if (!(members >> n & 1))
			capacity[n] = 0;
}

static uint32_t nodes_of(const uint64_t *capacity)
{
	uint32_t nr = 0;

	for (uint16_t n = 0; n < CORE_NODES_MAX; n++)
		nr += capacity[n] > 0;
	return nr;
}

uint32_t placing_nodes(const struct server *s, uint64_t members)
{
	uint64_t capacity[CORE_NODES_MAX];

	placing_capacity_of(s, members, capacity);
	return nodes_of(capacity);
}

/* Smooth weighted round robin: each node gains its capacity at each place of the line, and the
 * richest node takes the place and pays for all. Nodes of equal capacity come in turn. */
static void line_up(uint16_t *line, uint32_t nr, const uint64_t *capacity)
{
	int64_t credit[CORE_NODES_MAX] = {0}, all = 0;

	for (uint16_t n = 0; n < CORE_NODES_MAX; n++)
		all += (int64_t)capacity[n];
	for (uint32_t i = 0; i < nr; i++) {
		uint16_t best = CORE_NODES_MAX;

		for (uint16_t n = 0; n < CORE_NODES_MAX; n++) {
			credit[n] += (int64_t)capacity[n];
			if (capacity[n] > 0 && (best == CORE_NODES_MAX || credit[n] > credit[best]))
				best = n;
		}
		CHECK(best < CORE_NODES_MAX);
		line[i] = best;
		credit[best] -= all;
	}
}

/* The first node in line, from this place on, that holds nothing yet. If only nodes that come
 * seldom are left, it is the first of them, and the plan puts it right. */
static uint16_t next_of(const uint16_t *line, uint32_t at, uint32_t nr, uint64_t has,
			const uint64_t *capacity)
{
	uint16_t n = 0;

	for (uint32_t i = at; i < nr && i - at < LOOK_MAX; i++)
		if (!(has >> line[i] & 1))
			return line[i];
	while (n < CORE_NODES_MAX && (capacity[n] == 0 || has >> n & 1))
		n++;
	CHECK(n < CORE_NODES_MAX);
	return n;
}

/* The other holders follow the primary in line at distances that change from one round to the next,
 * so that the copies beside those of a node are spread over all others. */
static void fill_turns(const struct plan_table *to, const uint16_t *line, uint32_t chunks_nr,
		       uint32_t copies, const uint64_t *capacity)
{
	uint32_t nodes = nodes_of(capacity);

	for (uint32_t c = 0; c < chunks_nr; c++) {
		uint64_t first = (uint64_t)(c / nodes) * (copies - 1);

		to->primary[c] = line[c];
		to->holders[c] = 1ull << line[c];
		for (uint64_t k = first; k < first + copies - 1; k++)
			to->holders[c] |= 1ull
					  << next_of(line, c + 1 + (uint32_t)(k % (nodes - 1)),
						     chunks_nr + nodes, to->holders[c], capacity);
	}
}

static bool table_make(struct plan_table *t, uint32_t chunks_nr)
{
	*t = (struct plan_table){.holders = malloc(chunks_nr * sizeof(*t->holders)),
				 .primary = malloc(chunks_nr * sizeof(*t->primary))};
	return t->holders != NULL && t->primary != NULL;
}

static void table_free(struct plan_table *t)
{
	free(t->holders);
	free(t->primary);
}

bool placing_fill(uint16_t *primary, uint64_t *holders, uint32_t chunks_nr, uint32_t copies,
		  const uint64_t *capacity)
{
	uint32_t nodes = nodes_of(capacity);
	struct plan *plan = aligned_alloc(16, (plan_bytes() + 15) & ~(size_t)15);
	uint16_t *line = malloc((chunks_nr + nodes) * sizeof(*line));
	struct plan_conf conf = {.chunks_nr = chunks_nr, .copies = copies};
	struct plan_table turns, to;
	struct plan_cost cost;
	bool room;

	CHECK(copies > 0 && copies <= nodes && (holders != NULL || copies == 1));
	room = table_make(&turns, chunks_nr);
	room = table_make(&to, chunks_nr) && room && line != NULL && plan != NULL;
	if (room) {
		line_up(line, chunks_nr + nodes, capacity);
		fill_turns(&turns, line, chunks_nr, copies, capacity);
		memcpy(conf.capacity, capacity, sizeof(conf.capacity));
		plan_make(plan, &conf, &turns, &to, &cost);
		memcpy(primary, to.primary, chunks_nr * sizeof(*primary));
		if (holders != NULL)
			memcpy(holders, to.holders, chunks_nr * sizeof(*holders));
	}
	free(plan);
	free(line);
	table_free(&turns);
	table_free(&to);
	return room;
}

enum shard_status placing_new(Shard__Model *out, uint32_t chunks_nr, uint32_t copies,
			      const uint64_t *capacity, struct err *e)
{
	uint16_t *primary = malloc(chunks_nr * sizeof(*primary));
	uint64_t *holders = copies > 1 ? malloc(chunks_nr * sizeof(*holders)) : NULL;
	bool room;

	out->place_runs = malloc(2 * (size_t)chunks_nr * sizeof(*out->place_runs));
	out->holder_runs =
		copies > 1 ? malloc(2 * (size_t)chunks_nr * sizeof(*out->holder_runs)) : NULL;
	room = primary != NULL && out->place_runs != NULL &&
	       (copies == 1 || (holders != NULL && out->holder_runs != NULL)) &&
	       placing_fill(primary, holders, chunks_nr, copies, capacity);
	if (room) {
		out->n_place_runs =
			2 * (size_t)place_encode(out->place_runs, chunks_nr, primary, chunks_nr);
		CHECK(out->n_place_runs > 0);
	}
	if (room && copies > 1) {
		out->n_holder_runs = 2 * (size_t)place_encode_holders(out->holder_runs, chunks_nr,
								      holders, chunks_nr);
		CHECK(out->n_holder_runs > 0);
	}
	free(primary);
	free(holders);
	return room ? SHARD_OK
		    : err_set(e, SHARD_SYSTEM, "no memory to place %u chunks", chunks_nr);
}

/* A first view has only nodes of the list, and among them all that hold chunks. */
static enum shard_status members_wrong(const Shard__Model *is, const struct placement *p,
				       uint16_t nodes_nr, struct err *e)
{
	uint64_t needed = 0;

	if (is->members == 0)
		return SHARD_OK;
	for (uint32_t c = 0; c < p->chunks_nr; c++)
		needed |= place_base(p, c);
	if ((is->members & UINT64_MAX >> (64 - nodes_nr)) == is->members &&
	    (is->members & needed) == needed)
		return SHARD_OK;
	return err_set(
		e, SHARD_PROTOCOL,
		"\"%s\" begins with the nodes %lx, its chunks are at nodes %lx, and there are "
		"%u nodes",
		is->spec->name, (unsigned long)is->members, (unsigned long)needed, nodes_nr);
}

enum shard_status placing_read(struct placement *out, const Shard__Model *is, uint32_t chunks_nr,
			       uint16_t nodes_nr, uint32_t copies, struct err *e)
{
	uint16_t *primary = calloc(chunks_nr, sizeof(*primary));
	uint64_t *holders = copies > 1 ? calloc(chunks_nr, sizeof(*holders)) : NULL;
	const char *why;

	out->primary = primary;
	out->holders = holders;
	if (primary == NULL || (copies > 1 && holders == NULL))
		return err_set(e, SHARD_SYSTEM, "no memory for %u chunks", chunks_nr);
	why = place_decode(primary, chunks_nr, nodes_nr, is->place_runs,
			   (uint32_t)is->n_place_runs);
	if (why == NULL && copies > 1)
		why = place_decode_holders(holders, primary, chunks_nr, nodes_nr, copies,
					   is->holder_runs, is->n_holder_runs);
	else if (why == NULL && is->n_holder_runs > 0)
		why = "holders: several copies of a chunk, where the settings want one";
	if (why != NULL)
		return err_set(e, SHARD_PROTOCOL, "the placement of \"%s\": %s", is->spec->name,
			       why);
	*out = place_of(primary, holders, chunks_nr);
	return members_wrong(is, out, nodes_nr, e);
}

void placing_free(struct placement *p)
{
	free((void *)(uintptr_t)p->primary);
	free((void *)(uintptr_t)p->holders);
	*p = (struct placement){.primary = NULL};
}
