/* SPDX-License-Identifier: Apache-2.0 */
/* The core of one node for one model: the door between the shell (or the simulator) and the deciding files. It checks where a message
 * comes from, hands it to the role it is meant for, delivers messages of the coordinator to its own participant and back, and lets
 * the coordinator settle at the end of every event. Ways to fail: a message over a connection that is not the current one, from
 * a role that may not send it, or with a number that is not known, is dropped: whatever mattered is repeated. */
#include "core/core.h"

#include "core/inner.h"
#include "core/warm.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct op_row {
	void (*member)(struct ctx *, const struct core_msg *); /* from the coordinator */
	void (*coord)(struct ctx *, const struct core_msg *);  /* to the coordinator, from any node, itself included */
	void (*peer)(struct ctx *, const struct core_msg *);   /* from any other node */
};

static const struct op_row ops[CORE_MSG_NR] = {
	[CORE_ASK] = {.member = member_on_ask},
	[CORE_ANSWER] = {.coord = recover_on_answer},
	[CORE_VIEW] = {.member = member_on_view},
	[CORE_VIEW_OK] = {.coord = recover_on_view_ok},
	[CORE_BEGIN] = {.member = step_on_begin},
	[CORE_GRANT] = {.peer = slots_on_grant},
	[CORE_VOTE] = {.coord = coord_on_vote},
	[CORE_COMMIT] = {.member = step_on_commit},
	[CORE_ABORT] = {.member = step_on_abort},
	[CORE_DONE] = {.coord = coord_on_done},
	[CORE_DRAINED] = {.peer = slots_on_drained},
	[CORE_JOIN] = {.member = local_on_join, .coord = world_on_join},
	[CORE_GONE] = {.member = local_on_gone, .coord = world_on_gone},
	[CORE_ABANDON] = {.coord = coord_on_abandon},
	[CORE_WAITING] = {.member = member_on_waiting, .coord = coord_on_waiting},
};

bool core_coordinates(const struct core *c)
{
	return c->conf.self == c->conf.coordinator;
}

bool core_linked(const struct core *c, uint16_t node)
{
	return node == c->conf.self || c->member.peer[node].linked;
}

bool core_world_ok(const struct core *c, const struct core_world *w)
{
	if (!w || !w->size || w->size > CORE_RANKS_MAX)
		return false;
	for (uint32_t i = 0; i < w->size; i++) {
		if (w->rank[i].node >= c->conf.nodes_nr)
			return false;
	}
	return true;
}

uint32_t core_local_ranks(const struct core_world *w, uint16_t node)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < w->size; i++)
		nr += w->rank[i].node == node;
	return nr;
}

void timer_stop(struct timer *t)
{
	t->at = UINT64_MAX;
	t->count = 0;
}

void timer_start(const struct core *c, struct timer *t, uint64_t now)
{
	t->at = now + c->conf.repeat_ns;
	t->count = 0;
}

void timer_next(const struct core *c, struct timer *t, uint64_t now)
{
	uint64_t gap = c->conf.repeat_ns << (t->count < 16 ? ++t->count : t->count);

	/* slow repeats of all timers fall on the same instants, so that a waiting node wakes once a second */
	t->at = gap < CORE_SECOND_NS ? now + gap : (now / CORE_SECOND_NS + 1) * CORE_SECOND_NS;
}

void core_copy_text(char *to, size_t bytes, const char *from)
{
	size_t nr = from ? strlen(from) : 0;

	CHECK(bytes > 0);
	if (nr >= bytes)
		nr = bytes - 1;
	if (nr)
		memmove(to, from, nr);
	to[nr] = 0;
}

const char *core_text(struct core *c, const char *fmt, ...)
{
	size_t left = CORE_TEXTS_BYTES - c->texts_used;
	char *text = c->texts + c->texts_used;
	va_list ap;
	int nr;

	if (left < 2)
		return "";
	va_start(ap, fmt);
	nr = vsnprintf(text, left, fmt, ap);
	va_end(ap);
	c->texts_used += nr < 0 ? 0 : (size_t)nr < left ? (size_t)nr + 1 : left;
	return text;
}

const char *core_rank_name(struct core *c, const struct core_world *w, uint32_t rank)
{
	const struct core_rank *r = &w->rank[rank];

	CHECK(rank < w->size);
	return core_text(c, "rank %u (pid %u, node %s)", rank, r->pid,
			 r->node < c->conf.nodes_nr ? c->conf.node_names[r->node] : "?");
}

struct core_action *core_act(struct ctx *x, enum core_action_type type)
{
	struct core_action *a = &x->out->act[x->out->nr];

	CHECK(x->out->nr < CORE_ACTIONS_MAX);
	x->out->nr++;
	memset(a, 0, sizeof(*a));
	a->type = type;
	return a;
}

struct core_msg *core_send(struct ctx *x, uint16_t to, enum core_op op, const struct core_id *id)
{
	struct core *c = x->c;
	struct core_msg *m = &x->nobody;

	CHECK(to < c->conf.nodes_nr);
	if (to == c->conf.self) {
		CHECK(x->tail < CORE_INBOX_NR);
		m = &x->inbox[x->tail++];
	} else if (c->member.peer[to].linked) {
		m = &core_act(x, CORE_ACT_SEND)->msg;
	}
	memset(m, 0, sizeof(*m));
	m->op = op;
	m->from = c->conf.self;
	m->to = to;
	m->from_incarnation = c->conf.incarnation;
	m->id = *id;
	return m;
}

static void dispatch(struct ctx *x, const struct core_msg *m)
{
	const struct core *c = x->c;
	const struct op_row *row = &ops[m->op];

	if (core_coordinates(c) && row->coord)
		row->coord(x, m);
	else if (m->from == c->conf.coordinator && row->member)
		row->member(x, m);
	else if (m->from != c->conf.self && row->peer)
		row->peer(x, m);
}

static void on_msg(struct ctx *x, const struct core_event *e)
{
	const struct core *c = x->c;
	const struct core_msg *m = e->msg;

	CHECK(m && m->from < c->conf.nodes_nr && m->from != c->conf.self && m->to == c->conf.self);
	if (m->op < CORE_ASK || m->op >= CORE_MSG_NR)
		return;
	if (!c->member.peer[m->from].linked || c->member.peer[m->from].incarnation != m->from_incarnation)
		return;
	dispatch(x, m);
}

static void on_link_down(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	const char *why;

	CHECK(e->node < c->conf.nodes_nr && e->node != c->conf.self);
	if (!c->member.peer[e->node].linked)
		return;
	c->member.peer[e->node].linked = false;
	why = e->on ? core_text(c, "%s", e->why)
		    : core_text(c, "node %s is out of reach: %s", c->conf.node_names[e->node], e->why ? e->why : "no link");
	step_on_link_down(x, e->node, why);
	if (core_coordinates(c))
		coord_on_link_down(x, e->node, why);
}

static void on_link_up(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	struct core_event down = {.type = CORE_EV_LINK_DOWN, .node = e->node, .why = "it connected anew"};

	CHECK(e->incarnation > 0);
	on_link_down(x, &down); /* a fresh connection is the end of the old one */
	c->member.peer[e->node].linked = true;
	c->member.peer[e->node].incarnation = e->incarnation;
	step_on_link_up(x, e->node);
	if (e->node == c->conf.coordinator)
		local_tell_again(x);
	if (core_coordinates(c))
		coord_on_link_up(x, e->node);
}

static void on_tick(struct ctx *x, const struct core_event *e)
{
	(void)e;
	step_on_tick(x);
	local_on_tick(x);
	if (core_coordinates(x->c))
		coord_on_tick(x);
}

static void (*const events[])(struct ctx *, const struct core_event *) = {
	[CORE_EV_MSG] = on_msg,
	[CORE_EV_TICK] = on_tick,
	[CORE_EV_LINK_UP] = on_link_up,
	[CORE_EV_LINK_DOWN] = on_link_down,
	[CORE_EV_PERSISTED] = recover_on_persisted,
	[CORE_EV_STAGED] = step_on_staged,
	[CORE_EV_READY] = step_on_ready,
	[CORE_EV_DRAINED] = step_on_drained,
	[CORE_EV_APPLIED] = step_on_applied,
	[CORE_EV_JOIN] = local_join,
	[CORE_EV_GONE] = local_gone,
	[CORE_EV_ABANDON] = local_abandon,
	[CORE_EV_STOP] = orders_on_stop,
	[CORE_EV_WARM] = warm_on_start,
	[CORE_EV_WRITTEN] = recover_on_written,
	[CORE_EV_HOLD] = orders_on_hold,
	[CORE_EV_TUNE] = orders_on_tune,
	[CORE_EV_KICK] = orders_on_kick,
	[CORE_EV_CHECKPOINT] = orders_on_checkpoint,
	[CORE_EV_ROLLBACK] = orders_on_rollback,
};

static void deliver_own(struct ctx *x)
{
	while (x->head < x->tail)
		dispatch(x, &x->inbox[x->head++]);
}

void core_event(struct core *c, const struct core_event *e, uint64_t now_ns, struct core_out *out)
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
	if (coord_due(c)) /* what our own participant answered asks for more: at once, but in a call of its own */
		c->coord.timer.at = now_ns;
	step_check(c);
}

uint64_t core_deadline(const struct core *c)
{
	uint64_t at = coord_deadline(c);

	if (c->step.timer.at < at)
		at = c->step.timer.at;
	return c->member.timer.at < at ? c->member.timer.at : at;
}

static size_t place(size_t *at, size_t bytes) /* 16-byte aligned */
{
	size_t start = *at;

	*at += (bytes + 15) & ~(size_t)15;
	return start;
}

static size_t core_layout(const struct core_conf *conf, struct core *c)
{
	size_t at = (sizeof(struct core) + 15) & ~(size_t)15;
	uint32_t held = 0;
	bool coordinates = conf->self == conf->coordinator;

	for (uint32_t i = 0; i < conf->chunks_nr; i++)
		held += conf->owner[i] == conf->self;
	c->at_weights = place(&at, CORE_RANKS_MAX * sizeof(double));
	c->at_index = place(&at, conf->chunks_nr * sizeof(uint32_t));
	c->at_staged = place(&at, (conf->chunks_nr + 7) / 8);
	c->at_sumsq = place(&at, held * sizeof(double));
	c->at_finite = place(&at, held);
	c->at_all_sumsq = place(&at, coordinates ? conf->chunks_nr * sizeof(double) : 0);
	c->at_all_finite = place(&at, coordinates ? conf->chunks_nr : 0);
	return at;
}

size_t core_bytes(const struct core_conf *conf)
{
	struct core sizes; /* only its offsets are written */

	return core_layout(conf, &sizes);
}

struct core *core_init(void *memory, const struct core_conf *conf, const struct core_view *view, const void *warm)
{
	struct core *c = memory;
	uint32_t *index;

	CHECK(conf->nodes_nr > 0 && conf->nodes_nr <= CORE_NODES_MAX && conf->self < conf->nodes_nr);
	CHECK(conf->coordinator < conf->nodes_nr && conf->chunks_nr > 0 && conf->incarnation > 0 && conf->term > 0);
	CHECK(conf->repeat_ns > 0);
	CHECK(conf->min_world > 0 && conf->min_world <= conf->max_world && conf->max_world <= CORE_RANKS_MAX);
	c->conf = *conf;
	core_layout(conf, c);
	index = core_at(c, c->at_index);
	for (uint32_t i = 0; i < conf->chunks_nr; i++) {
		CHECK(conf->owner[i] < conf->nodes_nr);
		index[i] = c->held_nr[conf->owner[i]]++; /* by owner; read for own chunks only */
	}
	timer_stop(&c->step.timer);
	timer_stop(&c->member.timer);
	timer_stop(&c->coord.timer);
	if (core_coordinates(c))
		recover_init(c, view);
	if (warm && !warm_load(c, warm, view)) {
		memset(memory, 0, core_bytes(conf));
		return NULL;
	}
	return c;
}

void core_state(const struct core *c, struct core_state *s)
{
	const struct member *m = &c->member;
	bool coordinates = core_coordinates(c);

	memset(s, 0, sizeof(*s));
	s->part = c->step.part;
	s->coordinator = coordinates;
	s->recovering = coordinates ? c->coord.state != COORD_OPEN : !m->term;
	s->sealed = m->sealed;
	s->held = c->coord.held;
	s->restoring = m->restoring;
	s->unheard = orders_unheard(c);
	s->tune = m->tune;
	s->paused = m->tune.paused;
	s->term = m->term;
	s->seq = m->seq;
	s->generation = m->generation;
	s->id = c->step.id;
	s->joined = c->coord.trainers_nr;
	s->world = &c->step.world;
	if (c->step.has_record) {
		s->record = &c->step.record;
		s->committed = c->step.record.id.step;
		s->paused = s->paused || record_pauses(&c->step.record, &m->tune);
	}
	if (coordinates)
		waits_text(c, s->waits, sizeof(s->waits));
	else if (!core_linked(c, c->conf.coordinator))
		snprintf(s->waits, sizeof(s->waits), "node %s, which has no link", c->conf.node_names[c->conf.coordinator]);
	else if (step_undecided(&c->step) && !core_id_cmp(&m->waits_id, &c->step.id))
		core_copy_text(s->waits, sizeof(s->waits), m->waits);
}
