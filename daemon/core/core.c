/* SPDX-License-Identifier: Apache-2.0 */
/* The interface between the shell (or the simulator) and the parts that decide. It lays out the
 * memory of a core. For each event it checks where a message comes from and hands it to the role
 * that it is meant for. It also delivers the messages between the coordinator and the participant
 * on the same node. At the end of every event the coordinator settles. A message is dropped if it
 * came over a connection that is not the current one, from a role that may not send it, or with an
 * unknown number. That is safe because whatever matters is repeated. */
#include "core/core.h"

#include "core/hear.h"
#include "core/inner.h"
#include "core/moves.h"
#include "core/slots.h"
#include "core/warm.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct op_row {
	/* From the coordinator. */
	void (*member)(struct ctx *, const struct core_msg *);
	void (*coord)(
		struct ctx *,
		const struct core_msg *); /* On the coordinator: from any node, itself included. */
	/* On the coordinator: from a node that is no member. */
	void (*outside)(struct ctx *, const struct core_msg *);
	void (*peer)(struct ctx *, const struct core_msg *); /* From any other node. */
};

static const struct op_row ops[CORE_MSG_NR] = {
	[CORE_ASK] = {.member = member_on_ask},
	[CORE_ANSWER] = {.coord = recover_on_answer},
	[CORE_VIEW] = {.member = member_on_view},
	[CORE_VIEW_OK] = {.coord = recover_on_view_ok},
	[CORE_BEGIN] = {.member = step_on_begin},
	[CORE_GRANT] = {.peer = slots_on_grant},
	[CORE_VOTE] = {.coord = attempt_on_vote},
	[CORE_COMMIT] = {.member = step_on_commit},
	[CORE_ABORT] = {.member = step_on_abort},
	[CORE_DONE] = {.coord = attempt_on_done},
	[CORE_DRAINED] = {.peer = slots_on_drained},
	[CORE_JOIN] = {.member = local_on_join, .coord = world_on_join},
	[CORE_GONE] = {.member = local_on_gone, .coord = world_on_gone},
	[CORE_ABANDON] = {.coord = coord_on_abandon},
	[CORE_WAITING] = {.member = member_on_waiting, .coord = attempt_on_waiting},
	[CORE_RANKS] = {.peer = step_on_ranks},
	[CORE_HEAR] = {.member = member_on_hear},
	[CORE_HEARD] = {.coord = hear_on_heard, .outside = hear_on_outside},
	[CORE_ODD] = {.member = member_on_odd},
	[CORE_BACK] = {.member = back_on_order, .coord = back_on_told},
};

/* A link belongs to a slot, but membership changes with views, so that the sender may not be a
 * member. The coordinator may also be a view ahead of the view that its own participant has
 * adopted. */
static void dispatch(struct ctx *x, const struct core_msg *m)
{
	const struct core *c = x->c;
	const struct op_row *row = &ops[m->op];

	if (core_coordinates(c) && row->coord) {
		if (view_is_member(coord_members(c), m->from))
			row->coord(x, m);
		else if (row->outside)
			row->outside(x, m);
	} else if (row->member && member_obeys(c, m)) {
		row->member(x, m);
		/* A higher term was promised. The coordinator here decides nothing any more. */
		if (c->member.promised > c->coord.term)
			coord_end(x);
	} else if (m->from != c->conf.self && view_is_member(core_members(c), m->from) &&
		   row->peer) {
		row->peer(x, m);
	}
}

static void on_msg(struct ctx *x, const struct core_event *e)
{
	const struct core *c = x->c;
	const struct core_msg *m = e->msg;

	CHECK(m && m->from < CORE_NODES_MAX && m->from != c->conf.self && m->to == c->conf.self);
	if (m->op < CORE_ASK || m->op >= CORE_MSG_NR)
		return;
	if (!core_linked(c, m->from) || c->link[m->from].who.incarnation != m->from_incarnation)
		return;
	dispatch(x, m);
}

static void on_link_down(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	const char *why;

	CHECK(e->node < CORE_NODES_MAX && e->node != c->conf.self);
	if (!core_linked(c, e->node))
		return;
	c->linked &= ~(1ull << e->node);
	why = e->on ? core_text(c, "%s", e->why)
		    : core_text(c, "node %s is out of reach: %s", core_node_name(c, e->node),
				e->why ? e->why : "no link");
	step_on_link_down(x, e->node, why);
	if (e->node != core_coordinator(c))
		member_tell(x);
	if (core_coordinates(c))
		coord_on_link_down(x, e->node, why);
}

static void on_link_up(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	struct core_event down = {
		.type = CORE_EV_LINK_DOWN, .node = e->node, .why = "it connected anew"};

	CHECK(e->who.incarnation > 0 && view_named(&e->who));
	on_link_down(x, &down); /* A new connection ends the old one. */
	c->linked |= 1ull << e->node;
	c->link[e->node].known = true;
	c->link[e->node].who = e->who;
	core_copy_text(c->link[e->node].why, sizeof(c->link[e->node].why), e->why);
	step_on_link_up(x, e->node);
	if (e->node == core_coordinator(c)) {
		local_tell_again(x);
		back_linked(x);
	}
	if (e->node != core_coordinator(c) || member_misses(c))
		member_tell(x);
	if (core_coordinates(c))
		hear_linked(x, e->node);
	if (core_coordinates(c) && view_is_member(coord_members(c), e->node))
		coord_on_link_up(x, e->node);
}

static void on_tick(struct ctx *x, const struct core_event *e)
{
	(void)e;
	step_on_tick(x);
	local_on_tick(x);
	member_on_tick(x);
	if (core_coordinates(x->c))
		coord_on_tick(x);
}

/* The coordinator may take its own vote back, because it alone decides and has not decided yet. */
static void on_stop(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	const char *why = core_text(c, "%s", e->why ? e->why : "the daemon stops");

	c->stopping = true;
	if (c->coord.undecided)
		attempt_abort(x, SHARD_WORLD_CHANGED, why);
	else if (c->step.part == CORE_STAGING)
		step_abandon(x, SHARD_WORLD_CHANGED, why);
}

static void (*const events[])(struct ctx *, const struct core_event *) = {
	[CORE_EV_MSG] = on_msg,
	[CORE_EV_TICK] = on_tick,
	[CORE_EV_LINK_UP] = on_link_up,
	[CORE_EV_LINK_DOWN] = on_link_down,
	[CORE_EV_PERSISTED] = recover_on_persisted,
	[CORE_EV_STAGED] = step_on_staged,
	[CORE_EV_READY] = step_on_ready,
	[CORE_EV_IMAGE] = step_on_image,
	[CORE_EV_DRAINED] = step_on_drained,
	[CORE_EV_APPLIED] = member_on_applied,
	[CORE_EV_LEARNED] = step_on_learned,
	[CORE_EV_JOIN] = local_join,
	[CORE_EV_GONE] = step_on_gone,
	[CORE_EV_ABANDON] = step_on_abandon,
	[CORE_EV_DAMAGED] = step_on_damaged,
	[CORE_EV_STOP] = on_stop,
	[CORE_EV_WARM] = warm_on_start,
	[CORE_EV_WRITTEN] = recover_on_written,
	[CORE_EV_HOLD] = coord_on_hold,
	[CORE_EV_TUNE] = recover_on_tune,
	[CORE_EV_KEEP_VIEW] = coord_on_keep_view,
	[CORE_EV_KICK] = coord_on_kick,
	[CORE_EV_CHECKPOINT] = recover_on_checkpoint,
	[CORE_EV_ROLLBACK] = recover_on_rollback,
	[CORE_EV_LEAD] = coord_on_lead,
	[CORE_EV_RESIGN] = coord_on_resign,
	[CORE_EV_PLACE] = moves_on_place,
};

static void deliver_own(struct ctx *x)
{
	while (x->head < x->tail)
		dispatch(x, &x->inbox[x->head++]);
}

void core_handle(struct core *c, const struct core_event *e, uint64_t now_ns, struct core_out *out)
{
	struct ctx x;

	CHECK(e->type > 0 && e->type < NR(events) && events[e->type]);
	CHECK(!c->warm_due || e->type == CORE_EV_WARM);
	x.c = c;
	x.out = out;
	x.now = now_ns;
	x.head = x.tail = 0;
	out->nr = 0;
	c->texts_used = 0;
	events[e->type](&x, e);
	deliver_own(&x);
	coord_settle(&x);
	deliver_own(&x);
	/* The answers of the participant on this node may allow the next step. It is taken at once,
	 * but in another call, whose actions have room of their own. */
	if (coord_due(c))
		c->coord.timer.at = now_ns;
	step_check(c);
}

uint64_t core_deadline(const struct core *c)
{
	uint64_t at = coord_deadline(c);

	if (c->step.timer.at < at)
		at = c->step.timer.at;
	if (c->member.timer.at < at)
		at = c->member.timer.at;
	return c->local.timer.at < at ? c->local.timer.at : at;
}

static size_t place(size_t *at, size_t bytes) /* Gives memory that is 16-byte aligned. */
{
	size_t start = *at;

	*at += (bytes + 15) & ~(size_t)15;
	return start;
}

/* The memory is large enough for any view. Another node may hold a chunk or coordinate in the next
 * view, and nothing is allocated then. */
static size_t core_layout(const struct core_conf *conf, struct core *c)
{
	size_t at = (sizeof(struct core) + 15) & ~(size_t)15;
	uint32_t chunks = conf->chunks_nr;

	c->at_weights = place(&at, CORE_RANKS_MAX * sizeof(double));
	c->at_ranks = place(&at, CORE_RANKS_MAX * sizeof(double));
	c->at_values = place(&at, sizeof(double) * CORE_VALUES_NR * CORE_RANKS_MAX);
	c->at_ranks_values = place(&at, sizeof(double) * CORE_VALUES_NR * CORE_RANKS_MAX);
	c->at_index = place(&at, chunks * sizeof(uint32_t));
	c->at_staged = place(&at, (chunks + 7) / 8);
	c->at_sumsq = place(&at, chunks * sizeof(double));
	c->at_finite = place(&at, chunks);
	c->at_all_sumsq = place(&at, chunks * sizeof(double));
	c->at_all_finite = place(&at, chunks);
	c->at_voted = place(&at, (chunks + 7) / 8);
	return at;
}

size_t core_bytes(const struct core_conf *conf)
{
	struct core sizes; /* core_layout() writes only its offsets. */

	return core_layout(conf, &sizes);
}

struct core *core_init(void *memory, const struct core_conf *conf, const struct core_view *view,
		       const void *warm)
{
	struct core *c = memory;

	CHECK(view_members_ok(&conf->members, conf->slots) && conf->self < CORE_NODES_MAX &&
	      conf->slots >> conf->self & 1);
	CHECK(conf->chunks_nr > 0 && conf->place.chunks_nr == conf->chunks_nr &&
	      conf->who.incarnation > 0 && view_named(&conf->who) &&
	      (conf->term > 0 || conf->elected));
	CHECK(conf->repeat_ns > 0);
	CHECK(conf->min_copies > 0);
	CHECK(conf->min_world > 0 && conf->min_world <= conf->max_world &&
	      conf->max_world <= CORE_RANKS_MAX);
	c->conf = *conf;
	c->member.members = conf->members;
	c->conf.memory_why = NULL;
	c->linked = 1ull << conf->self;
	c->link[conf->self].who = conf->who;
	core_copy_text(c->link[conf->self].why, sizeof(c->link[conf->self].why), conf->memory_why);
	core_layout(conf, c);
	c->conf.place.gone = ~conf->members.nodes;
	/* The tables of a view that was saved may name members of that view only. */
	CHECK(!conf->place.learns && !conf->place.moves &&
	      (warm || place_ok(&c->conf.place, &conf->members)));
	member_place(c, &c->conf.place);
	timer_stop(&c->step.timer);
	timer_stop(&c->local.timer);
	timer_stop(&c->member.timer);
	timer_stop(&c->coord.timer);
	c->member.leader = view_coordinator(&conf->members);
	if (c->member.leader == conf->self && !conf->elected)
		recover_init(c, conf->term, view);
	if (warm && !warm_load(c, warm, view)) {
		memset(memory, 0, core_bytes(conf));
		return NULL;
	}
	return c;
}

/* No view has had this node yet. Says what it waits for. */
static void core_waits_outside(const struct core *c, char *text, size_t bytes)
{
	const uint8_t *own = c->conf.who.uuid;

	snprintf(text, bytes, "node %s, which takes in new nodes after a step",
		 core_node_name(c, core_coordinator(c)));
	for (uint16_t i = 0; i < CORE_NODES_MAX; i++) {
		if (i != c->conf.self && core_linked(c, i) &&
		    !memcmp(c->link[i].who.uuid, own, VIEW_UUID_BYTES))
			snprintf(text, bytes,
				 "an operator: one of the nodes %s and %s has a copy of the "
				 "other's state folder",
				 core_node_name(c, i), core_node_name(c, c->conf.self));
	}
}

void core_state(const struct core *c, struct core_state *s)
{
	const struct member *m = &c->member;
	bool coordinates = core_coordinates(c);

	memset(s, 0, sizeof(*s));
	s->part = c->step.part;
	s->coordinator = coordinates;
	s->recovering = coordinates ? c->coord.state != COORD_OPEN : !m->term || m->recalled;
	s->sealed = m->sealed;
	s->learning = core_fetches(c);
	s->caught = c->step.caught;
	s->held = c->coord.held;
	s->seals = coordinates && (c->coord.view.sealed || c->coord.want_seal);
	s->restoring = m->restoring;
	s->lost = coordinates ? c->coord.view.lost && !c->coord.view.restoring
			      : m->lost && !m->restoring;
	s->unheard = coord_unheard(c);
	s->tune = &m->tune;
	s->disputed = coordinates && c->coord.odd.stuck[0];
	s->paused = m->tune.paused || s->disputed;
	s->term = m->term;
	s->seq = m->seq;
	s->generation = m->generation;
	s->id = c->step.id;
	s->joined = c->coord.trainers_nr;
	s->too_few = coordinates && coord_too_few(c);
	s->stragglers = c->coord.stragglers_nr;
	s->differed = c->coord.odd.differed_nr;
	s->cut = c->coord.reports.out_nr;
	s->world = &c->step.world;
	if (c->step.has_record) {
		s->record = &c->step.record;
		s->committed = c->step.record.id.step;
		s->paused = s->paused || record_pauses(&c->step.record, &m->tune);
	}
	moves_waits(c, s->moves, sizeof(s->moves));
	if (c->backs)
		back_waits(c, s->waits, sizeof(s->waits));
	else if (coordinates)
		coord_waits(c, s->waits, sizeof(s->waits));
	else if (!core_linked(c, core_coordinator(c)))
		snprintf(s->waits, sizeof(s->waits), "node %s, which has no link",
			 core_node_name(c, core_coordinator(c)));
	else if (!view_is_member(core_members(c), c->conf.self))
		core_waits_outside(c, s->waits, sizeof(s->waits));
	else if (step_undecided(&c->step) && !core_id_cmp(&m->waits_id, &c->step.id))
		core_copy_text(s->waits, sizeof(s->waits), m->waits);
	else if (step_undecided(&c->step) && member_misses(c) & core_members(c)->nodes)
		snprintf(s->waits, sizeof(s->waits), "node %s, which has no link",
			 core_node_name(c, (uint16_t)__builtin_ctzll(member_misses(c) &
								     core_members(c)->nodes)));
}

uint64_t core_absent_since(const struct core *c, uint16_t node)
{
	CHECK(node < CORE_NODES_MAX);
	return core_coordinates(c) && view_is_member(coord_members(c), node) &&
			       !core_linked(c, node)
		       ? c->coord.node[node].absent_since
		       : 0;
}

void core_now(const struct core *c, struct core_now *a)
{
	*a = (struct core_now){.term = c->member.term,
			       .seq = c->member.seq,
			       .generation = c->member.generation,
			       .learns = core_fetches(c),
			       .members = &c->member.members,
			       .record = c->step.has_record ? &c->step.record : NULL};
}

/* A commit in the view of this node has the votes of all members. One by a coordinator that came
 * later may lack the vote of a member that it does not hear, and such a coordinator has asked this
 * node first. */
bool core_voted(const struct core *c, const struct core_id *id, uint16_t node)
{
	return core_adopted(c, id) && view_is_member(core_members(c), node);
}

bool core_names(const struct core *c, const void *table)
{
	const struct placement *const kept[] = {&c->conf.place,          &c->member.place,
						&c->member.next.place,   &c->coord.view.place,
						&c->coord.durable.place, &c->coord.to};

	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
		if (place_names(kept[i], table))
			return true;
	}
	return c->coord.to_room == table;
}

const struct placement *core_newest_place(const struct core *c)
{
	return core_coordinates(c) ? &c->coord.view.place : &c->member.place;
}
