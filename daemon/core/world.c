/* SPDX-License-Identifier: Apache-2.0 */
/* Which trainers contribute, and in which order. This file owns the coordinator's table of joined
 * trainers, and makes worlds from it for coord.c. Nodes tell of their trainers by JOIN and GONE.
 * Both are echoed, and a repeated copy of either changes nothing. A world is made at the start of
 * an attempt. Trainers of the last world keep their order, new ones follow by (hint, node,
 * session), and hints that are exactly a numbering become the ranks. A trainer that is lost ends an
 * undecided attempt, and one that leaves is taken out between attempts. If a trainer is put out,
 * its node is told until it answers with GONE. */
#include "core/world.h"

#include "core/inner.h"

#include <string.h>

void world_check(const struct core *c)
{
	const struct coord *co = &c->coord;

	CHECK(co->trainers_nr <= NR(co->trainer) && co->expelled_nr <= NR(co->expelled));
	CHECK(!co->undecided || (co->world.size > 0 && co->world.size <= c->conf.max_world));
}

static struct core_trainer *world_find(struct core *c, uint16_t node, uint64_t session)
{
	for (uint32_t i = 0; i < c->coord.trainers_nr; i++) {
		struct core_trainer *t = &c->coord.trainer[i];

		if (t->node == node && t->session == session)
			return t;
	}
	return NULL;
}

static void world_remove(struct core *c, struct core_trainer *t)
{
	struct coord *co = &c->coord;

	*t = co->trainer[--co->trainers_nr];
}

static void world_echo(struct ctx *x, enum core_op op, const struct core_trainer *t,
		       const char *why)
{
	struct core *c = x->c;
	struct core_id id = {.term = c->coord.term};
	struct core_msg own = {.op = op, .id = id, .trainer = *t, .why = why}, *m;

	if (t->node == c->conf.self) { /* It is a trainer of this node. */
		if (op == CORE_JOIN)
			local_on_join(x, &own);
		else
			local_on_gone(x, &own);
		return;
	}
	m = core_send(x, t->node, op, &id);
	m->trainer = *t;
	m->why = why;
}

static void world_put_out(struct core *c, const struct core_trainer *t, const char *why)
{
	struct coord *co = &c->coord;

	core_copy_text(co->expelled_why, sizeof(co->expelled_why), why);
	if (t->node != c->conf.self && co->expelled_nr < NR(co->expelled))
		co->expelled[co->expelled_nr++] = *t;
}

static bool world_is_out(const struct core *c, uint16_t node, uint64_t session)
{
	for (uint32_t i = 0; i < c->coord.expelled_nr; i++) {
		if (c->coord.expelled[i].node == node && c->coord.expelled[i].session == session)
			return true;
	}
	return false;
}

static void world_heard(struct core *c, uint16_t node,
			const uint64_t *session) /* NULL: all sessions of the node confirmed it. */
{
	struct coord *co = &c->coord;

	for (uint32_t i = co->expelled_nr; i-- > 0;) {
		if (co->expelled[i].node == node &&
		    (!session || co->expelled[i].session == *session))
			co->expelled[i] = co->expelled[--co->expelled_nr];
	}
}

void world_repeat(struct ctx *x)
{
	struct core *c = x->c;
	const char *why = core_text(c, "%s", c->coord.expelled_why);

	for (uint32_t i = 0; i < c->coord.expelled_nr && i < CORE_NODES_MAX; i++)
		/* Others are told when these have been confirmed. */
		world_echo(x, CORE_GONE, &c->coord.expelled[i], why);
}

/* Has the node as many trainers as it has arenas? Trainers that leave do not count, because their
 * arenas become free. */
static bool world_full(const struct core *c, uint16_t node)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < c->coord.trainers_nr; i++)
		nr += c->coord.trainer[i].node == node && !c->coord.trainer[i].leave;
	return c->conf.local_world && nr >= c->conf.local_world;
}

void world_on_join(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	struct core_trainer t = m->trainer;

	t.node = m->from;
	t.leave = false;
	if (m->id.term != co->term)
		return; /* The node tells again when it has adopted a view of this term. */
	if (world_is_out(c, m->from, t.session)) {
		world_echo(x, CORE_GONE, &t, core_text(c, "%s", co->expelled_why));
		return;
	}
	if (!world_find(c, m->from, t.session)) {
		if (co->trainers_nr == NR(co->trainer) || world_full(c, m->from))
			return; /* The node repeats it until there is room. */
		co->trainer[co->trainers_nr++] = t;
	}
	world_echo(x, CORE_JOIN, &t, NULL);
}

static bool world_in_attempt(const struct core *c, uint16_t node, uint64_t session)
{
	return c->coord.undecided && core_rank_of(&c->coord.world, node, session) >= 0;
}

static void world_lost(struct ctx *x, uint16_t node, uint64_t session, const char *why)
{
	struct core *c = x->c;
	struct core_trainer *t = world_find(c, node, session);
	int32_t rank = core_rank_of(&c->coord.world, node, session);
	bool ends = world_in_attempt(c, node, session);

	if (t)
		world_remove(c, t);
	if (ends)
		attempt_abort(x, SHARD_WORLD_CHANGED,
			      core_text(c, "%s %s",
					core_rank_name(c, &c->coord.world, (uint32_t)rank), why));
}

void world_on_gone(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct core_trainer t = m->trainer, *known;

	t.node = m->from;
	if (m->id.term != c->coord.term)
		return;
	world_heard(c, m->from, &t.session);
	known = world_find(c, m->from, t.session);
	if (t.leave && world_in_attempt(c, m->from, t.session)) {
		/* world_sweep() takes it out when the attempt is over. */
		if (known)
			known->leave = true;
		return;
	}
	world_lost(x, m->from, t.session, m->why ? m->why : "is gone");
	world_echo(x, CORE_GONE, &t, NULL);
}

void world_sweep(struct ctx *x)
{
	struct coord *co = &x->c->coord;

	for (uint32_t i = co->undecided ? 0 : co->trainers_nr; i-- > 0;) {
		struct core_trainer t = co->trainer[i];

		if (!t.leave)
			continue;
		world_remove(x->c, &co->trainer[i]);
		world_echo(x, CORE_GONE, &t, NULL);
	}
}

void world_lost_node(struct ctx *x, uint16_t node, const char *why)
{
	struct core *c = x->c;

	world_heard(c, node, NULL); /* If the node comes back, it tells of its trainers anew. */
	for (uint32_t i = c->coord.trainers_nr; i-- > 0;) {
		if (c->coord.trainer[i].node == node)
			world_lost(x, node, c->coord.trainer[i].session,
				   core_text(c, "is lost: %s", why));
	}
}

static void world_out(struct ctx *x, struct core_trainer *known, const char *why)
{
	struct core_trainer t = *known;

	world_remove(x->c, known);
	world_put_out(x->c, &t, why);
	world_echo(x, CORE_GONE, &t, why);
}

bool world_expel(struct ctx *x, const struct core_world *w, uint32_t rank, const char *why)
{
	struct core_trainer *known = world_find(x->c, w->rank[rank].node, w->rank[rank].session);

	if (known)
		world_out(x, known, why);
	return known != NULL;
}

uint32_t core_joined(const struct core *c, uint16_t node, uint32_t pid)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < c->coord.trainers_nr; i++)
		nr += c->coord.trainer[i].node == node && c->coord.trainer[i].pid == pid;
	return nr;
}

void world_expel_process(struct ctx *x, uint16_t node, uint32_t pid, const char *why)
{
	struct core *c = x->c;

	for (uint32_t i = c->coord.trainers_nr; i-- > 0;) {
		struct core_trainer *t = &c->coord.trainer[i];

		if (t->node == node && t->pid == pid)
			world_out(x, t, why);
	}
}

static bool world_before(const struct core *c, const struct core_trainer *a,
			 const struct core_trainer *b)
{
	int32_t ra = core_rank_of(&c->coord.world, a->node, a->session),
		rb = core_rank_of(&c->coord.world, b->node, b->session);

	if (ra >= 0 || rb >= 0)
		return rb < 0 || (ra >= 0 && ra < rb);
	if (a->hint != b->hint) /* -1 (any) comes last. */
		return (uint32_t)a->hint < (uint32_t)b->hint;
	return a->node != b->node ? a->node < b->node : a->session < b->session;
}

static void world_sort(struct core *c) /* The table is mostly sorted already. */
{
	struct core_trainer *t = c->coord.trainer;

	for (uint32_t i = 1; i < c->coord.trainers_nr; i++) {
		struct core_trainer moved = t[i];
		uint32_t at = i;

		for (; at > 0 && world_before(c, &moved, &t[at - 1]); at--)
			t[at] = t[at - 1];
		t[at] = moved;
	}
}

static bool world_hints(const struct core_trainer *t,
			uint32_t nr) /* Are the hints exactly 0 to nr - 1? */
{
	uint64_t seen[(CORE_RANKS_MAX + 63) / 64] = {0};

	for (uint32_t i = 0; i < nr; i++) {
		uint32_t hint = (uint32_t)t[i].hint;

		if (hint >= nr || seen[hint / 64] >> (hint % 64) & 1)
			return false;
		seen[hint / 64] |= 1ull << (hint % 64);
	}
	return true;
}

bool world_joined(const struct core *c, uint16_t node, uint64_t session)
{
	return world_find((struct core *)(uintptr_t)c, node, session) != NULL;
}

bool world_asked(const struct core *c, uint32_t rank)
{
	for (uint32_t i = 0; i < c->coord.trainers_nr; i++) {
		if ((uint32_t)c->coord.trainer[i].hint == rank)
			return true;
	}
	return false;
}

bool world_hinted(const struct core *c)
{
	uint32_t asked = 0;

	for (uint32_t i = 0; i < c->conf.min_world; i++)
		asked += world_asked(c, i);
	return asked == c->coord.trainers_nr;
}

bool world_enough(const struct core *c)
{
	return c->coord.trainers_nr >= c->conf.min_world;
}

uint64_t world_deadline(const struct core *c)
{
	const struct coord *co = &c->coord;

	if (!co->enough_ns || co->trainers_nr >= c->conf.max_world)
		return UINT64_MAX;
	return co->enough_ns + c->conf.join_timeout_ns;
}

bool world_gathers(const struct core *c)
{
	uint64_t at = world_deadline(c);

	return at != UINT64_MAX && c->coord.seen_ns < at;
}

void world_look(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	bool first = co->state == COORD_OPEN && co->view.sealed && !co->undecided && co->has_last &&
		     co->last.outcome == RECORD_SEAL && !co->attempt;

	if (!first || !world_enough(c) || !c->conf.join_timeout_ns)
		co->enough_ns = 0;
	else if (!co->enough_ns)
		co->enough_ns = x->now ? x->now : 1;
}

bool world_make(struct core *c, struct core_world *w)
{
	struct coord *co = &c->coord;
	uint32_t nr = co->trainers_nr < c->conf.max_world ? co->trainers_nr : c->conf.max_world;
	bool hints;

	if (!world_enough(c))
		return false;
	world_sort(c);
	hints = world_hints(co->trainer, nr);
	memset(w, 0, sizeof(*w));
	w->size = nr;
	for (uint32_t i = 0; i < nr; i++) {
		const struct core_trainer *t = &co->trainer[i];

		CHECK(!t->leave);
		w->rank[hints ? (uint32_t)t->hint : i] =
			(struct core_rank){.session = t->session, .pid = t->pid, .node = t->node};
	}
	return true;
}
