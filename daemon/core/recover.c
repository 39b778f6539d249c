/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator and its members: recovery and views. After a start it asks every listed node (ASK: a promise to heed no lower term),
 * applies the recovery rule of DESIGN section 5 to what they hold, makes the result durable as a view and only then sends it; when
 * all have adopted it the model is open. Later views: the seal, and a member that started again.
 * Ways to fail: a node that held chunks started again, or stays away for heartbeat_timeout: with one copy of each chunk the model
 * is LOST, its generation grows, and it must be written and sealed again. A node that does not answer is waited for. */
#include "core/coord.h"

#include "core/inner.h"

#include <string.h>

static uint64_t node_incarnation(const struct core *c, uint16_t node) /* as of now; 0: not known */
{
	if (node == c->conf.self)
		return c->conf.incarnation;
	if (c->member.peer[node].linked)
		return c->member.peer[node].incarnation;
	return c->coord.state == COORD_RECOVER && c->coord.node[node].answered ? c->coord.node[node].incarnation : 0;
}

static bool node_given_up(const struct core *c, uint16_t node, uint64_t now)
{
	uint64_t since = c->coord.node[node].absent_since;

	return c->coord.view.sealed && c->held_nr[node] && c->coord.view.incarnation[node] && since && !core_linked(c, node) &&
	       now >= since + c->conf.heartbeat_timeout_ns;
}

static bool node_restarted(const struct core *c, uint16_t node)
{
	uint64_t now = node_incarnation(c, node);

	return now && now != c->coord.view.incarnation[node];
}

static bool node_lost(const struct core *c, uint16_t node, uint64_t now) /* with the only copy of its chunks */
{
	return c->held_nr[node] && c->coord.view.incarnation[node] && (node_restarted(c, node) || node_given_up(c, node, now));
}

static uint32_t first_chunk(const struct core *c, uint16_t node)
{
	uint32_t i = 0;

	while (i < c->conf.chunks_nr && c->conf.owner[i] != node)
		i++;
	return i;
}

static const char *recover_remedy(const struct core *c)
{
	return c->coord.checkpoint ? "it comes back from its newest checkpoint" : "write all weights and seal again";
}

static bool recover_lost(struct ctx *x) /* keeps the sentence */
{
	struct core *c = x->c;

	c->coord.lost[0] = 0;
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (!node_lost(c, i, x->now))
			continue;
		core_copy_text(c->coord.lost, sizeof(c->coord.lost),
			       core_text(c, "node %s %s, which held %u of %u chunks (chunk %u first): %s", c->conf.node_names[i],
					 node_restarted(c, i) ? "started again" : "stayed away", c->held_nr[i], c->conf.chunks_nr,
					 first_chunk(c, i), recover_remedy(c)));
		return true;
	}
	return false;
}

static void recover_persist(struct ctx *x)
{
	struct coord *co = &x->c->coord;

	CHECK(!co->undecided);
	co->has_view = true;
	co->view.term = x->c->conf.term;
	co->view.seq++;
	if (co->tune_due) {
		co->view.tune = co->tune;
		co->tune_due = false;
		co->tune_tell = true;
	}
	co->state = COORD_PERSIST;
	timer_stop(&co->timer);
	for (uint16_t i = 0; i < x->c->conf.nodes_nr; i++)
		co->node[i].view_ok = co->node[i].done = false;
	core_act(x, CORE_ACT_PERSIST)->view = &co->view;
}

static void recover_change(struct ctx *x, bool lost) /* the next view, of the members as they are now */
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	uint32_t generation = co->view.generation;

	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (co->state == COORD_RECOVER && co->node[i].answered && co->node[i].generation > generation)
			generation = co->node[i].generation; /* the view on this disk is an old one: what it knew is void */
	}
	if (lost || !co->has_view || generation > co->view.generation) {
		bool first = !lost && !co->has_view && generation == 0; /* all may be written before the first view is there */

		co->want_seal = co->want_seal && first;
		co->view.generation = generation + 1;
		co->view.sealed = co->has_last = false;
		co->view.restoring = co->checkpoint && !first;
		co->attempt = 0;
		if (!first)
			orders_forget(c);
	}
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		uint64_t now = node_incarnation(c, i);

		if (now || lost) /* who is away when the model is LOST may come back as anybody */
			co->view.incarnation[i] = now;
	}
	co->view.nodes_nr = c->conf.nodes_nr;
	if (co->has_last)
		co->view.record = co->last;
	else
		memset(&co->view.record, 0, sizeof(co->view.record)); /* .last itself may be in a message of this call */
	recover_persist(x);
}

/* Over the members that answered as the ones they were: nobody has more than .last. If all are PREPARED for the step after it, in
 * the durable view, the old coordinator may have committed it. false: it may have, and the votes do not say what. */
static bool recover_rule(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	uint32_t members = 0;

	if (co->id.generation != co->view.generation || co->id.step != co->last.id.step + 1)
		return true;
	co->attempt = co->id.attempt;
	if (co->id.term != co->view.term || co->id.seq != co->view.seq)
		return true;
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		const struct coord_node *n = &co->node[i];

		if (!n->answered || n->incarnation != co->view.incarnation[i])
			continue;
		members++;
		if (!n->is_prepared || core_id_cmp(&n->prepared, &co->id))
			return true;
	}
	if (!members || co->prepared_differs)
		return true; /* votes that differ in lr were never committed */
	for (uint32_t i = 0; i < co->prepared.size; i++) {
		uint16_t node = co->prepared.rank[i].node;

		if (!co->node[node].answered || co->node[node].incarnation != co->view.incarnation[node]) {
			core_copy_text(co->lost, sizeof(co->lost),
				       core_text(c,
						 "step %llu may have been decided, but the weight of %s went with its node, "
						 "which started again: %s",
						 (unsigned long long)co->id.step, core_rank_name(c, &co->prepared, i),
						 recover_remedy(c)));
			return false;
		}
	}
	coord_decide(c, &co->id, &co->prepared);
	return true;
}

static bool recover_complete(const struct core *c, uint64_t now)
{
	bool all = true;

	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (node_given_up(c, i, now))
			return true;
		all = all && c->coord.node[i].answered;
	}
	return all;
}

static bool recover_changed(const struct core *c, uint64_t now)
{
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (node_restarted(c, i) || node_given_up(c, i, now))
			return true;
	}
	return false;
}

static bool recover_adopted(const struct core *c)
{
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (!c->coord.node[i].view_ok)
			return false;
	}
	return true;
}

static void recover_seal(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	struct core_id id = {
		.term = co->view.term, .seq = co->view.seq + 1, .generation = co->view.generation, .step = co->seal_step};

	record_seal(&co->last, &c->conf.record, &id);
	co->view.tune.resumed_step = co->view.tune.resumed_skips = 0; /* of steps that are no more */
	if (co->has_restored) {
		co->last.applied = co->restored.applied;
		co->last.skipped_in_row = co->restored.skipped_in_row;
		co->last.scaler = co->restored.scaler;
		co->last.loss_scale = co->restored.scaler.scale;
		co->view.tune = co->restored.tune;
	}
	co->has_last = true;
	co->want_seal = false;
	co->attempt = 0;
	co->lost[0] = 0;
	co->view.sealed = true;
	co->view.restoring = false;
	co->view.record = co->last;
	recover_persist(x);
}

/* Ordered: back to a checkpoint, or no longer on the way there. */
static bool recover_ordered(const struct core *c)
{
	const struct coord *co = &c->coord;

	return (co->rollback && co->view.sealed && co->checkpoint) || (co->view.restoring && !co->checkpoint);
}

static bool recover_tune_due(const struct core *c) /* at a boundary */
{
	return c->coord.state == COORD_OPEN && c->coord.tune_due && !c->coord.undecided && coord_all_done(c);
}

static void recover_again(struct ctx *x) /* the coordinator that was restoring started again: what it had written is not known */
{
	struct core *c = x->c;

	core_copy_text(c->coord.lost, sizeof(c->coord.lost),
		       core_text(c, "the coordinator started again while it restored the model: %s", recover_remedy(c)));
}

static void recover_open(struct ctx *x)
{
	struct coord *co = &x->c->coord;

	co->state = COORD_OPEN;
	timer_stop(&co->timer);
	for (uint16_t i = 0; i < x->c->conf.nodes_nr; i++)
		co->node[i].done = true; /* who adopted the view has finished its record */
	if (co->tune_tell && !co->tune_due)
		core_act(x, CORE_ACT_TUNED);
	co->tune_tell = false;
}

static void recover_leave(struct ctx *x, bool lost) /* the view in hand */
{
	struct coord *co = &x->c->coord;

	coord_abort(x, SHARD_WORLD_CHANGED, lost ? core_text(x->c, "%s", co->lost) : "a node started again");
	recover_change(x, lost);
}

void recover_settle(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	bool may_change = co->state == COORD_VIEW || co->state == COORD_OPEN;

	if (co->state == COORD_RECOVER && recover_complete(c, x->now)) {
		bool lost = recover_lost(x) || (co->view.sealed && !recover_rule(x));

		if (!lost && co->view.restoring)
			recover_again(x);
		recover_change(x, lost || co->view.restoring);
	} else if (may_change && recover_changed(c, x->now)) {
		recover_leave(x, recover_lost(x));
	} else if (may_change && recover_ordered(c)) {
		core_copy_text(co->lost, sizeof(co->lost),
			       core_text(c, co->checkpoint ? "%s" : "%s: write all weights and seal again", co->order_why));
		recover_leave(x, true);
	} else if (co->state == COORD_VIEW && recover_adopted(c)) {
		recover_open(x);
	}
	if (co->state == COORD_OPEN && co->want_seal && !co->view.sealed)
		recover_seal(x);
	else if (recover_tune_due(c))
		recover_change(x, false);
}

bool recover_due(const struct core *c)
{
	return (c->coord.state == COORD_VIEW && recover_adopted(c)) || recover_tune_due(c);
}

void recover_send(struct ctx *x, uint16_t node)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	struct core_id id = {.term = c->conf.term, .seq = co->view.seq, .generation = co->view.generation};
	struct core_msg *m;

	if (co->state == COORD_RECOVER && !co->node[node].answered) {
		id.seq = 0;
		core_send(x, node, CORE_ASK, &id);
	} else if (co->state == COORD_VIEW && !co->node[node].view_ok &&
		   node_incarnation(c, node) == co->durable.incarnation[node]) { /* else the next view is for it */
		m = core_send(x, node, CORE_VIEW, &id);
		m->view = &co->durable;
		m->why = co->lost[0] ? core_text(c, "%s", co->lost) : NULL;
	}
}

void recover_on_persisted(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;

	(void)e;
	CHECK(c->coord.state == COORD_PERSIST);
	c->coord.state = COORD_VIEW;
	c->coord.durable = c->coord.view;
	timer_start(c, &c->coord.timer, x->now);
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++)
		recover_send(x, i);
}

static void recover_prepared(struct ctx *x, uint16_t from, const struct core_answer *a)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	const char *differs;

	if (core_id_cmp(&a->id, &co->id) > 0) {
		co->id = a->id;
		co->prepared = a->world;
		co->skip = co->has_lr = co->prepared_differs = false;
		co->lr_nr = 0;
		co->bad_tensor = -1;
		co->bad_rank = -1;
	}
	co->node[from].prepared = a->id;
	co->node[from].is_prepared = true;
	if (core_id_cmp(&a->id, &co->id))
		return;
	if (!coord_scatter(c, from, &a->vote, &co->prepared, &differs))
		co->node[from].is_prepared = false;
	else if (differs)
		co->prepared_differs = true;
}

void recover_on_answer(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	struct coord_node *n = &co->node[m->from];
	const struct core_answer *a = m->answer;

	if (co->state != COORD_RECOVER || m->id.term != c->conf.term || !a || n->answered)
		return;
	if (a->prepared && !core_world_ok(c, &a->world))
		return;
	n->answered = true;
	n->incarnation = m->from_incarnation;
	n->generation = a->generation;
	n->is_prepared = false;
	if (a->generation != co->view.generation || n->incarnation != co->view.incarnation[m->from] || !co->view.sealed)
		return;
	if (a->has_record && core_id_cmp(&a->record.id, &co->last.id) > 0)
		co->last = a->record;
	if (a->prepared)
		recover_prepared(x, m->from, a);
}

void recover_on_view_ok(struct ctx *x, const struct core_msg *m)
{
	struct coord *co = &x->c->coord;

	if (co->state == COORD_VIEW && m->id.term == co->view.term && m->id.seq == co->view.seq &&
	    m->from_incarnation == co->view.incarnation[m->from])
		co->node[m->from].view_ok = true;
}

/* The writer speaks of a generation: a newer one may be on its way to disk. The first one may be, too, and then it is meant. */
void recover_on_written(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	uint32_t generation = e->id.generation ? e->id.generation : c->member.generation;
	bool first = !c->coord.has_view && generation == 1;

	if (c->coord.state == COORD_OFF || c->coord.view.sealed || (generation != c->coord.view.generation && !first))
		return;
	c->coord.want_seal = true;
	c->coord.seal_step = e->step;
	c->coord.has_restored = e->restored != NULL;
	if (e->restored)
		c->coord.restored = *e->restored;
}

uint64_t recover_deadline(const struct core *c)
{
	uint64_t at = UINT64_MAX;

	if (c->coord.state == COORD_OFF || c->coord.state == COORD_PERSIST || !c->coord.view.sealed)
		return at;
	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		uint64_t since = c->coord.node[i].absent_since;

		if (c->held_nr[i] && c->coord.view.incarnation[i] && since && since + c->conf.heartbeat_timeout_ns < at)
			at = since + c->conf.heartbeat_timeout_ns;
	}
	return at;
}

void recover_init(struct core *c, const struct core_view *view)
{
	struct coord *co = &c->coord;

	co->state = COORD_RECOVER;
	co->bad_tensor = -1;
	co->bad_rank = -1;
	co->timer.at = 0; /* at the first tick it asks */
	if (!view)
		return;
	co->has_view = true;
	co->view = *view;
	if (!view->sealed)
		return;
	co->has_last = true;
	co->last = view->record;
}
