/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator and its attempts. Happy path: the model is sealed, every member is linked, a world can be formed -> BEGIN; the last
 * vote -> the record, COMMIT to all, and at once the next BEGIN; DONE from all. It commits when it holds the vote of every
 * member and aborts only while one is missing (DESIGN section 5).
 * Ways to fail: a trainer, a link or the deadline ends an undecided attempt: the own participant drops first, ABORT to all, the
 * next attempt follows as soon as every member is linked and enough trainers are there. Lost messages are repeated; a node that
 * asks about an attempt that is over is told how it ended. */
#include "core/coord.h"

#include "core/inner.h"

#include <string.h>

static bool coord_member(const struct core *c, const struct core_msg *m) /* of the open view, as the incarnation that is in it */
{
	return c->coord.state == COORD_OPEN && m->from_incarnation == c->coord.view.incarnation[m->from];
}

static bool coord_all_linked(const struct core *c)
{
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (!core_linked(c, i))
			return false;
	}
	return true;
}

static bool coord_all_voted(const struct core *c)
{
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (!c->coord.node[i].voted)
			return false;
	}
	return true;
}

bool coord_all_done(const struct core *c)
{
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (!c->coord.node[i].done)
			return false;
	}
	return true;
}

static void coord_check(const struct core *c)
{
	const struct coord *co = &c->coord;

	CHECK(co->state < COORD_NR);
	CHECK((co->state == COORD_OFF) == !core_coordinates(c));
	CHECK(!co->undecided || (co->state == COORD_OPEN && co->has_last && co->view.sealed));
	CHECK(!co->undecided || co->id.step == co->last.id.step + 1);
	CHECK(!co->undecided || !coord_all_voted(c)); /* the last vote decides, at once */
	CHECK(!co->held || (co->hold && co->has_last && c->step.part != CORE_PREPARED));
	CHECK(!co->undecided || !co->view.tune.paused);
	CHECK(!co->view.restoring || !co->view.sealed);
	CHECK(co->state != COORD_OPEN || co->view.term == c->conf.term);
	CHECK(co->trainers_nr <= NR(co->trainer));
}

static void coord_send_begin(struct ctx *x, uint16_t node)
{
	struct coord *co = &x->c->coord;
	struct core_msg *m = core_send(x, node, CORE_BEGIN, &co->id);

	m->world = &co->world;
	m->record = &co->last;
}

static void coord_send_commit(struct ctx *x, uint16_t node)
{
	struct coord *co = &x->c->coord;

	core_send(x, node, CORE_COMMIT, &co->last.id)->record = &co->last;
}

static void coord_begin(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	co->id = (struct core_id){.term = co->view.term,
				  .seq = co->view.seq,
				  .generation = co->view.generation,
				  .step = co->last.id.step + 1,
				  .attempt = ++co->attempt};
	co->undecided = true;
	co->begun_ns = x->now;
	co->skip = co->has_lr = false;
	co->lr_nr = 0;
	co->bad_tensor = -1;
	co->bad_rank = -1;
	timer_start(c, &co->timer, x->now);
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		co->node[i].voted = co->node[i].begun = co->node[i].reported = false;
		coord_send_begin(x, i);
	}
}

static void coord_send_abort(struct ctx *x, uint16_t node, const struct core_id *id)
{
	struct core_msg *m = core_send(x, node, CORE_ABORT, id);

	m->why = core_text(x->c, "%s", x->c->coord.aborted);
	m->status = x->c->coord.aborted_status;
}

void coord_abort(struct ctx *x, enum shard_status status, const char *why)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	struct core_msg own = {.op = CORE_ABORT, .id = co->id, .why = why, .status = status};

	if (!co->undecided)
		return;
	CHECK(!coord_all_voted(c));
	co->undecided = false;
	timer_start(c, &co->timer, x->now);
	core_copy_text(co->aborted, sizeof(co->aborted), why);
	co->aborted_status = status;
	step_on_abort(x, &own); /* first: from here on nobody on this node can take the attempt for committed */
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (i != c->conf.self)
			coord_send_abort(x, i, &co->id);
	}
}

/* The learning rates that the trainers of one node gave: the same as those of the nodes before? */
static const char *coord_take_lr(struct core *c, uint16_t node, const struct core_vote *v, const struct core_world *w)
{
	struct coord *co = &c->coord;
	uint32_t rank = 0;

	if (!v->ranks_nr)
		return NULL;
	while (w->rank[rank].node != node)
		rank++;
	if (co->has_lr)
		return step_lr_differs(c, w, rank, v->lr, v->lr_nr, co->lr_rank, co->lr, co->lr_nr);
	co->has_lr = true;
	co->lr_nr = v->lr_nr;
	co->lr_rank = rank;
	if (v->lr_nr)
		memcpy(co->lr, v->lr, v->lr_nr * sizeof(co->lr[0]));
	return NULL;
}

bool coord_scatter(struct core *c, uint16_t node, const struct core_vote *v, struct core_world *w, const char **differs)
{
	struct coord *co = &c->coord;
	double *sumsq = core_at(c, c->at_all_sumsq);
	uint8_t *finite = core_at(c, c->at_all_finite);
	uint32_t nr = 0;

	if (v->chunks_nr != c->held_nr[node] || v->ranks_nr != core_local_ranks(w, node) ||
	    (v->chunks_nr && (!v->sumsq || !v->finite)) || (v->ranks_nr && !v->weights) ||
	    (v->lr_nr && (!v->lr || v->lr_nr != c->conf.record.groups_nr)))
		return false;
	*differs = coord_take_lr(c, node, v, w);
	for (uint32_t i = 0; v->chunks_nr && i < c->conf.chunks_nr; i++) {
		if (c->conf.owner[i] != node)
			continue;
		sumsq[i] = v->sumsq[nr];
		finite[i] = v->finite[nr++] != 0;
	}
	nr = 0;
	for (uint32_t i = 0; i < w->size; i++) {
		if (w->rank[i].node == node)
			w->rank[i].weight = v->weights[nr++];
	}
	co->skip = co->skip || v->skip;
	if (v->bad_tensor >= 0 && (co->bad_tensor < 0 || v->bad_tensor < co->bad_tensor ||
				   (v->bad_tensor == co->bad_tensor && v->bad_rank < co->bad_rank))) {
		co->bad_tensor = v->bad_tensor;
		co->bad_rank = v->bad_rank;
	}
	return true;
}

void coord_decide(struct core *c, const struct core_id *id, const struct core_world *w)
{
	struct coord *co = &c->coord;
	struct record prev = co->last;
	struct record_votes votes = {.sumsq = core_at(c, c->at_all_sumsq),
				     .finite = core_at(c, c->at_all_finite),
				     .chunks_nr = c->conf.chunks_nr,
				     .lr = co->lr_nr ? co->lr : NULL,
				     .tune = &co->view.tune,
				     .skip = co->skip,
				     .bad_tensor = co->bad_tensor,
				     .bad_rank = co->bad_rank};

	record_decide(&co->last, &prev, &c->conf.record, id, w, &votes);
	co->attempt = 0;
}

static void coord_commit(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	CHECK(co->undecided && coord_all_voted(c) && !co->held);
	co->undecided = false;
	coord_decide(c, &co->id, &co->world);
	timer_start(c, &co->timer, x->now);
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		co->node[i].done = false;
		coord_send_commit(x, i);
	}
}

/* A node speaks of an attempt that is over here: it missed how it ended. */
static void coord_tell_end(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	if (m->id.term != co->view.term || m->id.generation != co->view.generation)
		return;
	if (co->has_last && !core_id_cmp(&m->id, &co->last.id))
		coord_send_commit(x, m->from);
	else if (core_id_cmp(&m->id, &co->id) < 0 || (!co->undecided && !core_id_cmp(&m->id, &co->id)))
		coord_send_abort(x, m->from, &m->id);
}

void coord_on_vote(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	struct coord_node *n = &co->node[m->from];
	const char *differs;

	if (!coord_member(c, m))
		return;
	if (!co->undecided || core_id_cmp(&m->id, &co->id)) {
		coord_tell_end(x, m);
		return;
	}
	n->done = n->begun = true; /* who votes for a step has finished the one before */
	if (n->voted || !coord_scatter(c, m->from, &m->vote, &co->world, &differs))
		return;
	if (differs) { /* a vote that may not count: so one is missing, and the attempt can end without effect */
		coord_abort(x, SHARD_MISMATCH, differs);
		return;
	}
	n->voted = true;
	if (coord_all_voted(c))
		coord_commit(x);
}

void coord_on_done(struct ctx *x, const struct core_msg *m)
{
	struct coord *co = &x->c->coord;

	if (coord_member(x->c, m) && co->has_last && !core_id_cmp(&m->id, &co->last.id))
		co->node[m->from].done = true;
}

void coord_on_abandon(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	if (!coord_member(c, m))
		return;
	if (!co->undecided || core_id_cmp(&m->id, &co->id))
		coord_tell_end(x, m);
	else if (!co->node[m->from].voted)
		coord_abort(x, m->status ? m->status : SHARD_WORLD_CHANGED,
			    m->why ? core_text(c, "%s", m->why) : core_text(c, "node %s dropped it", c->conf.node_names[m->from]));
}

void coord_on_waiting(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	if (!coord_member(c, m))
		return;
	if (!co->undecided || core_id_cmp(&m->id, &co->id)) {
		coord_tell_end(x, m);
		return;
	}
	co->node[m->from].begun = co->node[m->from].reported = co->node[m->from].done = true;
	co->node[m->from].waits = m->waits;
}

void coord_on_link_up(struct ctx *x, uint16_t node)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	co->node[node].absent_since = 0;
	if (co->node[node].answered && co->node[node].incarnation != c->member.peer[node].incarnation)
		co->node[node].answered = co->node[node].is_prepared = false;
	recover_send(x, node);
	if (co->state != COORD_OPEN || c->member.peer[node].incarnation != co->view.incarnation[node])
		return;
	if (!co->node[node].done)
		coord_send_commit(x, node);
	if (co->undecided && !co->node[node].voted)
		coord_send_begin(x, node);
}

void coord_on_link_down(struct ctx *x, uint16_t node, const char *why)
{
	struct core *c = x->c;

	c->coord.node[node].absent_since = x->now ? x->now : 1;
	world_lost_node(x, node, why);
	if (c->coord.undecided && !c->coord.node[node].voted)
		coord_abort(x, SHARD_WORLD_CHANGED, why);
}

static void coord_send_waits(struct ctx *x)
{
	struct core *c = x->c;
	char text[512];

	waits_text(c, text, sizeof(text));
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (i != c->conf.self)
			core_send(x, i, CORE_WAITING, &c->coord.id)->why = core_text(c, "%s", text);
	}
}

bool coord_paused(const struct core *c)
{
	const struct coord *co = &c->coord;

	return co->view.tune.paused || (co->has_last && record_pauses(&co->last, &co->view.tune));
}

static bool coord_short(const struct core *c) /* trainers wait, of more or of an operator: on every node they want to hear of it */
{
	const struct coord *co = &c->coord;

	return co->state == COORD_OPEN && co->view.sealed && !co->undecided && co->trainers_nr > 0 &&
	       (coord_paused(c) || !world_enough(c));
}

static void coord_repeat(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		recover_send(x, i);
		if (co->state != COORD_OPEN)
			continue;
		if (!co->node[i].done)
			coord_send_commit(x, i);
		if (co->undecided && !co->node[i].begun)
			coord_send_begin(x, i);
	}
	if (co->undecided || coord_short(c))
		coord_send_waits(x);
	if (co->state == COORD_OPEN)
		world_repeat(x);
}

void coord_on_tick(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	if (co->undecided && !co->held && x->now >= co->begun_ns + c->conf.step_timeout_ns)
		waits_expel(x);
	if (x->now < co->timer.at)
		return;
	if (co->state == COORD_PERSIST ||
	    (co->state == COORD_OPEN && !co->undecided && coord_all_done(c) && !coord_short(c) && !co->expelled_nr)) {
		timer_stop(&co->timer);
		return;
	}
	coord_repeat(x);
	timer_next(c, &co->timer, x->now);
}

static bool coord_may_begin(const struct core *c)
{
	const struct coord *co = &c->coord;

	return co->state == COORD_OPEN && !co->undecided && co->view.sealed && co->has_last && !co->tune_due && !coord_paused(c) &&
	       coord_all_linked(c) && !c->stopping;
}

void coord_settle(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	if (co->state == COORD_OFF)
		return;
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (!core_linked(c, i) && !co->node[i].absent_since)
			co->node[i].absent_since = x->now ? x->now : 1;
	}
	recover_settle(x);
	world_sweep(x);
	orders_settle(x);
	if (coord_may_begin(c) && world_make(c, &co->world))
		coord_begin(x);
	if ((coord_short(c) || (co->state == COORD_OPEN && co->expelled_nr)) && co->timer.at == UINT64_MAX)
		timer_start(c, &co->timer, x->now);
	coord_check(c);
}

bool coord_due(const struct core *c)
{
	return (coord_may_begin(c) && world_enough(c)) || recover_due(c) || orders_due(c);
}

uint64_t coord_deadline(const struct core *c)
{
	const struct coord *co = &c->coord;
	uint64_t at = co->timer.at, lost = recover_deadline(c);

	if (co->state == COORD_OFF)
		return UINT64_MAX;
	if (co->undecided && !co->held && co->begun_ns + c->conf.step_timeout_ns < at)
		at = co->begun_ns + c->conf.step_timeout_ns;
	return lost < at ? lost : at;
}
