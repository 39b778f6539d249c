/* SPDX-License-Identifier: Apache-2.0 */
/* The attempts of the coordinator. This file owns the attempt in hand, its votes and the last
 * record. coord.c begins attempts, and everything that ends one calls attempt_abort(). Happy path:
 * BEGIN goes to all members, the last vote makes the record, COMMIT goes to all, and DONE comes
 * back from all. It commits as soon as it has the vote of every member, and it aborts only while a
 * vote is missing (DESIGN section 5). When an attempt is aborted, the participant on this node
 * drops it before ABORT leaves, so that nobody here can take it for committed. A vote that is
 * malformed, or of another attempt, does not count. A node whose message is about an attempt that
 * is over is told how that attempt ended. */
#include "core/attempt.h"

#include "core/inner.h"

#include <string.h>

static bool attempt_member(
	const struct core *c,
	const struct core_msg *m) /* Is the sender a member that the open view lists? */
{
	return c->coord.state == COORD_OPEN && coord_lists(c, m->from);
}

bool attempt_all_linked(const struct core *c)
{
	view_each(i, coord_members(c)) {
		if (!core_linked(c, i))
			return false;
	}
	return true;
}

static bool attempt_all_voted(const struct core *c)
{
	view_each(i, coord_members(c)) {
		if (!c->coord.node[i].voted)
			return false;
	}
	return true;
}

bool attempt_all_spoke(const struct core *c)
{
	return !(coord_members(c)->nodes & ~c->coord.odd.spoke);
}

bool attempt_all_done(const struct core *c)
{
	view_each(i, coord_members(c)) {
		if (!c->coord.node[i].done)
			return false;
	}
	return true;
}

void attempt_check(const struct core *c)
{
	const struct coord *co = &c->coord;

	CHECK(!co->undecided || (co->state == COORD_OPEN && co->has_last && co->view.sealed));
	CHECK(!co->undecided || co->id.step == co->last.id.step + 1);
	CHECK(!co->undecided || !attempt_all_voted(c)); /* The last vote decides at once. */
	CHECK(!co->undecided || !co->view.tune.paused);
}

void attempt_send_begin(struct ctx *x, uint16_t node)
{
	struct coord *co = &x->c->coord;
	struct core_msg *m = core_send(x, node, CORE_BEGIN, &co->id);

	m->world = &co->world;
	m->record = &co->last;
}

void attempt_send_commit(struct ctx *x, uint16_t node)
{
	struct coord *co = &x->c->coord;

	core_send(x, node, CORE_COMMIT, &co->last.id)->record = &co->last;
}

void attempt_begin(struct ctx *x)
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
	co->behind_ns = x->now;
	co->ready_nr = 0;
	co->ready_ns = x->now;
	attempt_no_votes(c);
	timer_start(c, &co->timer, x->now);
	view_each(i, coord_members(c)) {
		co->node[i].voted = co->node[i].begun = co->node[i].reported = false;
		attempt_send_begin(x, i);
	}
}

static void attempt_send_abort(struct ctx *x, uint16_t node, const struct core_id *id)
{
	const struct coord *co = &x->c->coord;
	struct core_msg *m = core_send(x, node, CORE_ABORT, id);

	m->status = SHARD_WORLD_CHANGED;
	m->why = "a later attempt took its place";
	if (core_id_cmp(id, &co->aborted_id)) /* Why an older one ended is not known any more. */
		return;
	m->status = co->aborted_status;
	m->why = core_text(x->c, "%s", co->aborted);
}

void attempt_abort(struct ctx *x, enum shard_status status, const char *why)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	struct core_msg own = {.op = CORE_ABORT, .id = co->id, .why = why, .status = status};

	if (!co->undecided)
		return;
	CHECK(!attempt_all_voted(c));
	co->undecided = false;
	timer_start(c, &co->timer, x->now);
	core_copy_text(co->aborted, sizeof(co->aborted), why);
	co->aborted_status = status;
	co->aborted_id = co->id;
	/* This comes first. From here on nobody on this node can take the attempt for committed. */
	step_on_abort(x, &own);
	view_each(i, coord_members(c)) {
		if (i != c->conf.self)
			attempt_send_abort(x, i, &co->id);
	}
}

static const double no_values[CORE_VALUES_NR];

static bool attempt_same_ranks(const struct coord *co, const struct core_vote *v,
			       const struct core_world *w)
{
	if (v->skip != co->skip || v->lr_nr != co->lr_nr || v->has_clip != co->has_clip ||
	    v->clip != co->clip)
		return false;
	for (uint32_t i = 0; i < v->lr_nr; i++) {
		if (v->lr[i] != co->lr[i])
			return false;
	}
	for (uint32_t i = 0; i < w->size; i++) {
		if (v->weights[i] != w->rank[i].weight)
			return false;
	}
	/* NaNs are equal if their bits are. */
	return !memcmp(v->values_nr ? v->values : no_values, co->values, sizeof(co->values));
}

/* Takes what the ranks of the world gave, as one node tells it. Returns a sentence if another node
 * told it differently, else NULL. Each node heard it from the node of the ranks itself, and that
 * node says the same to all, so a difference is a fault of a node. */
static const char *attempt_take_ranks(struct core *c, uint16_t node, const struct core_vote *v,
				      struct core_world *w)
{
	struct coord *co = &c->coord;

	if (co->has_ranks)
		return attempt_same_ranks(co, v, w)
			       ? NULL
			       : core_text(c,
					   "node %s voted with other weights, learning rates, "
					   "clip, values or skip of the world than the nodes "
					   "before it: "
					   "look at "
					   "its memory and network",
					   core_node_name(c, node));
	co->has_ranks = true;
	co->skip = v->skip;
	co->has_clip = v->has_clip;
	co->clip = v->clip;
	co->lr_nr = v->lr_nr;
	if (v->lr_nr)
		memcpy(co->lr, v->lr, v->lr_nr * sizeof(co->lr[0]));
	memcpy(co->values, v->values_nr ? v->values : no_values, sizeof(co->values));
	for (uint32_t i = 0; i < w->size; i++)
		w->rank[i].weight = v->weights[i];
	return NULL;
}

void attempt_no_votes(struct core *c)
{
	struct coord *co = &c->coord;

	co->has_ranks = false;
	co->bad_tensor = -1;
	co->bad_rank = -1;
	odd_begin(&co->odd);
	memset(core_at(c, c->at_voted), 0, (c->conf.chunks_nr + 7) / 8);
}

/* Takes the vote for one chunk. If it is not the first one, it is compared. */
static void attempt_take_chunk(struct core *c, uint32_t chunk, uint16_t node,
			       const struct odd_vote *vote)
{
	double *all = core_at(c, c->at_all_sumsq);
	uint8_t *all_finite = core_at(c, c->at_all_finite);
	uint8_t *voted = core_at(c, c->at_voted), bit = (uint8_t)(1u << chunk % 8);

	if (voted[chunk / 8] & bit) {
		odd_vote(&c->coord.odd, coord_place(c), chunk, node,
			 &(struct odd_vote){all[chunk], all_finite[chunk] != 0}, vote);
		return;
	}
	voted[chunk / 8] |= bit;
	all[chunk] = vote->sumsq;
	all_finite[chunk] = vote->finite;
}

bool attempt_scatter(struct core *c, uint16_t node, const struct core_vote *v, struct core_world *w,
		     const char **differs)
{
	struct coord *co = &c->coord;
	uint32_t nr = 0;

	if (v->chunks_nr != co->votes_nr[node] || v->ranks_nr != w->size ||
	    (v->chunks_nr && (!v->sumsq || !v->finite)) || !v->weights ||
	    (v->lr_nr && (!v->lr || v->lr_nr != c->conf.record.groups_nr)) ||
	    (v->values_nr && (!v->values || v->values_nr != CORE_VALUES_NR)))
		return false;
	*differs = attempt_take_ranks(c, node, v, w);
	for (uint32_t i = co->votes_first[node]; nr < v->chunks_nr && i < c->conf.chunks_nr; i++) {
		if (!place_holds(coord_place(c), i, node))
			continue;
		attempt_take_chunk(c, i, node,
				   &(struct odd_vote){v->sumsq[nr], v->finite[nr] != 0});
		nr++;
	}
	if (v->bad_tensor >= 0 &&
	    (co->bad_tensor < 0 || v->bad_tensor < co->bad_tensor ||
	     (v->bad_tensor == co->bad_tensor && v->bad_rank < co->bad_rank))) {
		co->bad_tensor = v->bad_tensor;
		co->bad_rank = v->bad_rank;
	}
	co->odd.spoke |= 1ull << node;
	return true;
}

void attempt_decide(struct core *c, const struct core_id *id, const struct core_world *w)
{
	struct coord *co = &c->coord;
	struct record prev = co->last;
	struct record_votes votes = {.sumsq = core_at(c, c->at_all_sumsq),
				     .finite = core_at(c, c->at_all_finite),
				     .chunks_nr = c->conf.chunks_nr,
				     .lr = co->lr_nr ? co->lr : NULL,
				     .clip = co->has_clip ? &co->clip : NULL,
				     .values = co->values,
				     .tune = &co->view.tune,
				     .skip = co->skip,
				     .bad_tensor = co->bad_tensor,
				     .bad_rank = co->bad_rank};

	record_decide(&co->last, &prev, &c->conf.record, id, w, &votes);
	co->attempt = 0;
}

static void attempt_commit(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	CHECK(co->undecided && attempt_all_voted(c) && !co->held);
	co->undecided = false;
	attempt_decide(c, &co->id, &co->world);
	timer_start(c, &co->timer, x->now);
	view_each(i, coord_members(c)) {
		co->node[i].done = co->node[i].caught = false;
		attempt_send_commit(x, i);
	}
}

/* The message is about an attempt that is over here, so its sender missed how that attempt
 * ended. */
static void attempt_tell_end(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	if (m->id.term != co->view.term || m->id.generation != co->view.generation)
		return;
	if (co->has_last && !core_id_cmp(&m->id, &co->last.id))
		attempt_send_commit(x, m->from);
	else if (core_id_cmp(&m->id, &co->id) < 0 ||
		 (!co->undecided && !core_id_cmp(&m->id, &co->id)))
		attempt_send_abort(x, m->from, &m->id);
}

bool attempt_is_of(struct ctx *x, const struct core_msg *m)
{
	const struct coord *co = &x->c->coord;

	if (!attempt_member(x->c, m))
		return false;
	if (co->undecided && !core_id_cmp(&m->id, &co->id))
		return true;
	attempt_tell_end(x, m);
	return false;
}

void attempt_on_vote(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	struct coord_node *n = &co->node[m->from];
	const char *differs;

	if (!attempt_is_of(x, m))
		return;
	n->done = n->begun = true; /* A node that votes for a step has finished the step before. */
	if (co->odd.spoke >> m->from & 1 ||
	    !attempt_scatter(c, m->from, &m->vote, &co->world, &differs))
		return;
	if (differs) {
		/* This vote does not count. A vote is therefore missing, and the attempt can end
		 * without effect. The trainers have made no mistake. */
		odd_tried(c, differs, "Look at the nodes, stop a bad one");
		attempt_abort(x, SHARD_WORLD_CHANGED, differs);
		return;
	}
	if (m->differs)
		co->odd.others |= 1ull << m->from;
	/* A vote that differs does not count either, but the others say more about it. */
	n->voted = !(co->odd.others >> m->from & 1);
	/* If some differ, the coordinator judges them at the end of the event (judge.c). */
	if (attempt_all_voted(c))
		attempt_commit(x);
}

void attempt_on_done(struct ctx *x, const struct core_msg *m)
{
	struct coord *co = &x->c->coord;
	struct coord_node *n = &co->node[m->from];

	if (!attempt_member(x->c, m) || !co->has_last || core_id_cmp(&m->id, &co->last.id))
		return;
	n->done = true;
	/* A report of a record of an older view may have been sent in that view. It would not be
	 * about chunks that the node has to fetch since. VIEW_OK is about the view's own record. */
	if (m->id.term == co->view.term && m->id.seq == co->view.seq)
		n->caught = n->catches = m->caught;
}

void attempt_on_waiting(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	if (!attempt_is_of(x, m))
		return;
	co->node[m->from].begun = co->node[m->from].reported = co->node[m->from].done = true;
	co->node[m->from].waits = m->waits;
}
