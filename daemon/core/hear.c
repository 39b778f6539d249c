/* SPDX-License-Identifier: Apache-2.0 */
/* Who hears whom. A member (member.c) tells the coordinator whenever a link to another node goes
 * down or comes up, and in answer to HEAR. recover.c and core.c bring the reports, coord.c asks at
 * the end of each event what follows from them, and copies.c and recover.c make the view in which a
 * member leaves, as they do for one that the coordinator itself misses. Happy path: nobody misses
 * anybody, and nothing is sent. Otherwise a report is repeated as long as a member is missed, and
 * the coordinator asks for it anew as long as it names somebody, so that neither can be lost for
 * long. Before somebody leaves, everybody is asked once more. */
#include "core/hear.h"

#include "core/copies.h"
#include "core/inner.h"

#include <stdio.h>
#include <string.h>

#define HEAR_NAMES_MAX 3
/* A node that was kept out waits longer each time, up to 2^6 times as long. */
#define HEAR_DOUBLED_MAX 6u

static uint64_t bit(uint16_t node)
{
	return 1ull << node;
}

/* All bits that are set, in the order of their slots. */
#define bits_each(node, word)                                                                      \
	for (uint64_t left_##node = (word), node = 0;                                              \
	     left_##node && (node = (uint64_t)__builtin_ctzll(left_##node), true);                 \
	     left_##node &= left_##node - 1)

/* --- questions of the coordinator --- */

void hear_missed(struct ctx *x, uint16_t node)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	co->node[node].caught = co->node[node].catches = false;
	if (!members_vary(c))
		return;
	co->hear++;
	view_each(i, coord_members(c))
		hear_send(x, i);
	if (co->timer.at == UINT64_MAX)
		timer_start(c, &co->timer, x->now);
}

/* Does its report name a node that is linked here? The links of this node itself are known. */
static bool hear_names(const struct core *c, uint16_t node)
{
	return c->coord.state == COORD_OPEN &&
	       c->coord.reports.misses[node] & c->linked & ~bit(c->conf.self);
}

/* Is there a question for this member? It is repeated until the member has answered, and as long as
 * it catches up or misses somebody. This node may also be one that catches up, and have its copies
 * before the view is open. */
static bool hear_due(const struct core *c, uint16_t node)
{
	const struct coord *co = &c->coord;
	const struct coord_node *n = &co->node[node];

	if (!core_linked(c, node))
		return false;
	return hear_names(c, node) ||
	       (members_vary(c) &&
		((node != c->conf.self && n->heard != co->hear) ||
		 (co->state == COORD_OPEN && !n->caught &&
		  (coord_place(c)->learns | coord_place(c)->moves) >> node & 1)));
}

/* Bits of the members whose links to each other matter. Who has no link to this node leaves because
 * of that. */
static uint64_t hear_there(const struct core *c)
{
	uint64_t there = 0;

	view_each(i, coord_members(c)) {
		if (i != c->conf.self && core_linked(c, i) && coord_lists(c, i) && !odd_is(c, i))
			there |= bit(i);
	}
	return there;
}

/* Bits of the nodes that are no members, and say that they have no link to one. */
static uint64_t hear_outside(const struct core *c)
{
	uint64_t others = c->conf.slots & c->linked & ~coord_members(c)->nodes, lacks = 0;

	if (c->coord.state != COORD_OPEN || !others)
		return 0;
	bits_each(i, others)
	{
		if (c->coord.reports.outside[i] & hear_there(c))
			lacks |= 1ull << i;
	}
	return lacks;
}

void hear_repeat_outside(struct ctx *x)
{
	const struct coord *co = &x->c->coord;
	struct core_id id = {.term = co->term, .step = co->hear};

	bits_each(i, hear_outside(x->c)) core_send(x, (uint16_t)i, CORE_HEAR, &id);
}

bool hear_asks(const struct core *c)
{
	if (hear_outside(c))
		return true;
	view_each(i, coord_members(c)) {
		if (hear_due(c, i))
			return true;
	}
	return false;
}

void hear_send(struct ctx *x, uint16_t node)
{
	const struct coord *co = &x->c->coord;
	struct core_id id = {.term = co->term, .step = co->hear};

	if (hear_due(x->c, node))
		core_send(x, node, CORE_HEAR, &id);
}

void hear_on_heard(struct ctx *x, const struct core_msg *m)
{
	if (m->id.term != x->c->coord.term || m->id.step > UINT32_MAX)
		return;
	x->c->coord.node[m->from].heard = (uint32_t)m->id.step;
	hear_report(x, m);
}

/* --- reports --- */

/* It does not know which view there is. What it said last over its link is news. */
void hear_on_outside(struct ctx *x, const struct core_msg *m)
{
	x->c->coord.reports.outside[m->from] = m->misses;
}

/* Is it of the view in hand? An answer to ASK is of the view that a new coordinator began with. */
static bool hear_is_news(const struct core *c, const struct core_msg *m)
{
	const struct coord *co = &c->coord;

	if (!coord_lists(c, m->from))
		return false;
	if (co->state == COORD_RECOVER)
		return m->op == CORE_ANSWER && m->id.term == co->term;
	return (co->state == COORD_VIEW || co->state == COORD_OPEN) && m->op != CORE_ANSWER &&
	       m->id.term == co->view.term && m->id.seq == co->view.seq;
}

void hear_report(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct reports *r = &c->coord.reports;
	uint64_t names = m->misses & ~bit(c->conf.self) & ~bit(m->from);

	if (m->from == c->conf.self || !hear_is_news(c, m))
		return;
	r->misses[m->from] = names;
	for (uint16_t i = 0; i < CORE_NODES_MAX; i++) {
		if (!(names >> i & 1))
			r->since[m->from][i] = 0;
		else if (!r->since[m->from][i])
			r->since[m->from][i] = x->now ? x->now : 1;
	}
}

/* Its links to others may be as new. */
void hear_linked(struct ctx *x, uint16_t node)
{
	struct reports *r = &x->c->coord.reports;

	r->outside[node] = 0;
	for (uint16_t i = 0; i < CORE_NODES_MAX; i++) {
		if (r->since[node][i])
			r->since[node][i] = x->now;
		if (r->since[i][node])
			r->since[i][node] = x->now;
	}
}

/* Each member reports anew when it adopts the view. */
void hear_void(struct core *c)
{
	c->coord.reports.out = 0;
}

/* [node] The members that it misses or that miss it, if that has lasted long enough. Returns
 * whether there are any. */
static bool hear_graph(const struct core *c, uint64_t misses[CORE_NODES_MAX])
{
	const struct reports *r = &c->coord.reports;
	uint64_t there = hear_there(c);
	bool any = false;

	memset(misses, 0, CORE_NODES_MAX * sizeof(misses[0]));
	bits_each(i, there)
	{
		bits_each(k, r->misses[i] & there)
		{
			if (c->coord.seen_ns < r->since[i][k] + c->conf.reconnect_ns)
				continue;
			misses[i] |= 1ull << k;
			misses[k] |= 1ull << i;
			any = true;
		}
	}
	return any;
}

/* Is the fault rather at a than at b? 0: nobody can say. */
static int hear_cmp(const struct core *c, const uint64_t misses[], uint16_t a, uint16_t b)
{
	const struct reports *r = &c->coord.reports;
	int a_nr = __builtin_popcountll(misses[a]), b_nr = __builtin_popcountll(misses[b]);

	if (a_nr != b_nr)
		return a_nr > b_nr ? 1 : -1;
	return (r->blamed[a] > r->blamed[b]) - (r->blamed[a] < r->blamed[b]);
}

static uint32_t hear_primaries(const struct core *c, uint16_t node)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < c->conf.chunks_nr; i++)
		nr += place_primary(coord_place(c), i) == node;
	return nr;
}

/* Should a leave rather than b? */
static bool hear_rather(const struct core *c, const uint64_t misses[], uint16_t a, uint16_t b)
{
	const struct coord *co = &c->coord;
	int cmp = hear_cmp(c, misses, a, b);

	if (cmp)
		return cmp > 0;
	if (hear_primaries(c, a) != hear_primaries(c, b))
		return hear_primaries(c, a) < hear_primaries(c, b);
	if (co->held_nr[a] != co->held_nr[b])
		return co->held_nr[a] < co->held_nr[b];
	return a > b;
}

/* Is the fault not rather at one that it misses, and have the others copies of all its chunks,
 * without those that leave anyway? */
static bool hear_may_leave(const struct core *c, const uint64_t misses[], uint16_t node)
{
	uint64_t stay = copies_here(c) & c->linked & ~members_odd(c) & ~bit(node);

	bits_each(i, misses[node])
	{
		if (hear_cmp(c, misses, (uint16_t)i, node) > 0)
			return false;
	}
	return copies_missing(c, stay) == c->conf.chunks_nr;
}

static uint16_t hear_pick(const struct core *c, const uint64_t misses[])
{
	uint16_t best = CORE_NODES_MAX;

	for (uint16_t i = 0; i < CORE_NODES_MAX; i++) {
		if (misses[i] && hear_may_leave(c, misses, i) &&
		    (best == CORE_NODES_MAX || hear_rather(c, misses, i, best)))
			best = i;
	}
	return best;
}

/* "node b has no link to it", "nodes b, c, d and 2 more have no link to it". */
static const char *hear_text(struct core *c, uint16_t node, uint64_t by)
{
	int nr = __builtin_popcountll(by), named = 0;
	char names[CORE_WHY_BYTES] = "", more[32] = "";
	size_t used = 0;

	bits_each(i, by)
	{
		if (named == HEAR_NAMES_MAX || used >= sizeof(names))
			break;
		used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%.60s",
					 named ? ", " : "", core_node_name(c, (uint16_t)i));
		named++;
	}
	if (nr > named)
		snprintf(more, sizeof(more), " and %d more", nr - named);
	return core_text(c, "node%s %s%s %s no link to node %s", nr > 1 ? "s" : "", names, more,
			 nr > 1 ? "have" : "has", core_node_name(c, node));
}

/* --- who stays out --- */

static uint64_t hear_wait_ns(const struct core *c, uint16_t node)
{
	uint32_t times = c->coord.reports.blamed[node];

	if (!times)
		return 0;
	times = times - 1 < HEAR_DOUBLED_MAX ? times - 1 : HEAR_DOUBLED_MAX;
	return c->conf.reconnect_ns << times;
}

/* A new coordinator hears the first reports with the answers to ASK. While a view is made, nothing
 * is known that is newer. */
static void hear_keep(struct core *c)
{
	struct reports *r = &c->coord.reports;
	uint64_t others = c->conf.slots & c->linked & ~coord_members(c)->nodes;

	if (c->coord.state != COORD_OPEN && c->coord.state != COORD_RECOVER)
		return;
	r->kept = 0;
	if (!others)
		return;
	view_each(i, coord_members(c)) {
		uint64_t named = r->misses[i] & others;

		if (named && !(named & (named - 1)))
			r->kept |= named;
	}
	r->kept |= hear_outside(c);
	bits_each(i, others)
	{
		if (r->kept >> i & 1)
			r->kept_ns[i] = c->coord.seen_ns;
		else if (c->coord.seen_ns < r->kept_ns[i] + hear_wait_ns(c, (uint16_t)i))
			r->kept |= 1ull << i;
	}
}

void hear_changed(struct ctx *x, const struct view_members *to)
{
	struct core *c = x->c;
	struct reports *r = &c->coord.reports;
	uint64_t misses[CORE_NODES_MAX], out = r->out & ~to->nodes;
	struct core_action *a;
	uint16_t node;

	if (out) {
		node = (uint16_t)__builtin_ctzll(out);
		(void)hear_graph(c, misses);
		r->out_nr++;
		r->blamed[node]++;
		r->kept_ns[node] = x->now;
		r->kept |= out;
		/* Who misses fewer is not to blame. */
		bits_each(i, misses[node])
		{
			if (__builtin_popcountll(misses[i]) >= __builtin_popcountll(misses[node]))
				r->blamed[i]++;
		}
		world_lost_node(x, node, r->why);
		a = core_act(x, CORE_ACT_CUT);
		a->node = node;
		a->why = core_text(c, "%s", r->why);
	}
}

/* --- another coordinator --- */

/* Does this node miss several members that fewer others miss? Those that have never had a link to
 * it may not run at all. */
static bool hear_outnumbered(const struct core *c)
{
	uint64_t lost = 0;
	int nr;

	if (!c->conf.elected || c->coord.state != COORD_OPEN || !members_vary(c))
		return false;
	view_each(i, coord_members(c)) {
		if (!core_linked(c, i) && c->link[i].known)
			lost |= bit(i);
	}
	nr = __builtin_popcountll(lost);
	bits_each(i, lost)
	{
		int by = 1;

		view_each(k, coord_members(c))
			by += core_linked(c, k) && c->coord.reports.misses[k] >> i & 1;
		if (by >= nr)
			return false;
	}
	return nr > 1 && members_heard(c);
}

/* If no other node takes the lead in this time, there is none that could. */
static uint64_t hear_yields_until(const struct core *c)
{
	const struct reports *r = &c->coord.reports;

	return r->yields_ns ? r->yields_ns + c->conf.heartbeat_timeout_ns + c->conf.reconnect_ns
			    : 0;
}

static void hear_yield(struct ctx *x)
{
	struct reports *r = &x->c->coord.reports;
	struct core_action *a;

	if (!hear_outnumbered(x->c)) {
		r->yields_ns = 0;
	} else if (!r->yields_ns) {
		r->yields_ns = x->now ? x->now : 1;
		a = core_act(x, CORE_ACT_YIELD);
		a->why = "this node has lost its links to members that reach each other, as far as "
			 "it knows";
	}
	r->yields = x->now < hear_yields_until(x->c);
}

/* --- at the end of every event --- */

void hear_look(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	uint64_t misses[CORE_NODES_MAX], out = 0;
	uint16_t node = CORE_NODES_MAX;

	hear_yield(x);
	hear_keep(c);
	/* A save reads copies where they lie. */
	if (co->state == COORD_OPEN && co->view.sealed && members_vary(c) && !co->held &&
	    !c->step.hold && hear_graph(c, misses))
		node = hear_pick(c, misses);
	if (node < CORE_NODES_MAX)
		out = bit(node);
	if (co->reports.out == out)
		return;
	co->reports.out = out;
	if (!out)
		return;
	core_copy_text(co->reports.why, sizeof(co->reports.why), hear_text(c, node, misses[node]));
	attempt_abort(x, SHARD_WORLD_CHANGED, core_text(c, "%s", co->reports.why));
	hear_missed(x, node);
}

static void hear_earlier(const struct core *c, uint64_t *at, uint64_t due)
{
	if (due > c->coord.seen_ns && due < *at)
		*at = due;
}

uint64_t hear_deadline(const struct core *c)
{
	const struct reports *r = &c->coord.reports;
	uint64_t at = UINT64_MAX, there, others;

	if (c->coord.state != COORD_OPEN)
		return at;
	there = hear_there(c);
	bits_each(i, there)
	{
		bits_each(k, r->misses[i] & there)
			hear_earlier(c, &at, r->since[i][k] + c->conf.reconnect_ns);
	}
	hear_earlier(c, &at, hear_yields_until(c));
	others = r->kept & c->linked;
	bits_each(i, others) hear_earlier(c, &at, r->kept_ns[i] + hear_wait_ns(c, (uint16_t)i));
	return at;
}

const char *hear_pair(const struct core *c, char *text, size_t bytes)
{
	uint64_t there = hear_there(c);

	bits_each(i, there)
	{
		uint64_t others = c->coord.reports.misses[i] & there;

		if (!others)
			continue;
		snprintf(text, bytes, "node %s has no link to node %s",
			 core_node_name(c, (uint16_t)i),
			 core_node_name(c, (uint16_t)__builtin_ctzll(others)));
		return text;
	}
	return NULL;
}
