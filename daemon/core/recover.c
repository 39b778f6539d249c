/* SPDX-License-Identifier: Apache-2.0 */
/* The views of the coordinator. coord.c calls it at the end of every event. A new coordinator asks
 * every member, and ASK binds each to ignore lower terms. It applies the recovery rule of DESIGN
 * section 5 to what they hold, makes the result durable as a view and only then sends it. When all
 * have adopted the view the model is open. Later views seal the model, take in a node that came or
 * started again, or carry out an order: another tune at a boundary, a rollback, or the end of one.
 * If a node that held chunks starts again without them, or stays away for lost_timeout, the only
 * copies are gone. The model is then LOST, its generation grows, and it is restored from a
 * checkpoint or is written and sealed again. A node that only fails to answer is waited for. */
#include "core/recover.h"

#include "core/copies.h"
#include "core/hear.h"
#include "core/inner.h"
#include "core/moves.h"

#include <string.h>

void recover_check(const struct core *c)
{
	const struct coord *co = &c->coord;

	CHECK(!co->view.restoring || !co->view.sealed);
	CHECK(co->state != COORD_OPEN || (co->has_view && co->view.term == co->term));
	CHECK(!co->tune_tell || co->has_view);
	/* This node has adopted the view, too. */
	CHECK(co->state != COORD_OPEN || place_same(&co->view.place, core_place(c)));
}

/* --- LOST --- */

static const char *recover_remedy(const struct core *c)
{
	return c->coord.checkpoint ? "it comes back from its newest checkpoint"
				   : "no checkpoint of it is known";
}

/* Says what happened to a node that is lost with the only copies of its chunks. */
static const char *recover_end(struct core *c, uint16_t node)
{
	const char *why = c->link[node].why;

	if (!node_restarted(c, node))
		return "stayed away";
	return why[0] ? core_text(c, "has lost its memory of this model (%s)", why)
		      : "started again";
}

static bool recover_lost(struct ctx *x) /* The sentence about the loss is kept in .lost. */
{
	struct core *c = x->c;
	uint32_t chunk = copies_lost(c, x->now);
	const char *others;
	char which[120];
	uint16_t i;

	c->coord.lost[0] = 0;
	if (chunk == c->conf.chunks_nr)
		return false;
	i = copies_lost_at(c, chunk, x->now);
	copies_lost_text(c, x->now, which, sizeof(which));
	others = copies_several(c) ? ", and no other node has a copy" : "";
	core_copy_text(c->coord.lost, sizeof(c->coord.lost),
		       core_text(c,
				 "node %s %s, which held %u of %u chunks (lost: %s, of step "
				 "%lu)%s: %s",
				 core_node_name(c, i), recover_end(c, i), c->coord.held_nr[i],
				 c->conf.chunks_nr, which, (unsigned long)c->coord.last.id.step,
				 others, recover_remedy(c)));
	return true;
}

/* --- orders --- */

static void orders_forget(struct core *c)
{
	struct coord *co = &c->coord;

	co->held = co->rollback = co->weights_void = false;
	odd_forgive(&co->odd, UINT64_MAX); /* Who is told may not know the generation. */
	/* A change of the tune that has not been answered takes effect after the seal of the
	 * checkpoint, which brings the tune of its time. Without a checkpoint the operator is told
	 * that the model is LOST. */
	co->tune_due = co->view.restoring && (co->tune_due || co->tune_tell);
	co->tune_tell = false;
	co->resumes = false; /* The step after which an operator resumed does not exist any more. */
}

/* Returns the record that the shell shows as the last one, if it diverged and is of the present
 * generation. Otherwise returns NULL. */
static const struct record *orders_diverged(const struct core *c)
{
	const struct record *r = &c->step.record;
	const struct core_view *v = &c->coord.view;

	if (!c->step.has_record || !r->diverged)
		return NULL;
	return v->sealed && r->id.generation == v->generation ? r : NULL;
}

void recover_on_tune(struct ctx *x, const struct core_event *e)
{
	struct coord *co = &x->c->coord;
	const struct record *seen = orders_diverged(x->c);

	CHECK(e->tune);
	if (co->state == COORD_OFF)
		return;
	if (e->on && seen) {
		co->resumes = true;
		co->resumed_step = seen->id.step;
		co->resumed_skips = seen->skipped_in_row;
	}
	if (e->on)
		odd_forgive(&co->odd, members_odd(x->c));
	co->tune = *e->tune;
	co->tune_due = true;
}

static void orders_take_tune(struct core *c)
{
	struct coord *co = &c->coord;
	struct core_tune to = co->tune;

	CHECK(co->tune_due && !co->view.restoring);
	CHECK(!co->resumes || (co->has_last && co->resumed_step <= co->last.id.step));
	to.resumed_step = co->resumes ? co->resumed_step : co->view.tune.resumed_step;
	to.resumed_skips = co->resumes ? co->resumed_skips : co->view.tune.resumed_skips;
	co->view.tune = to;
	co->tune_due = co->resumes = false;
	co->tune_tell = true;
}

void recover_on_checkpoint(struct ctx *x, const struct core_event *e)
{
	struct coord *co = &x->c->coord;

	if (co->state == COORD_OFF)
		return;
	co->checkpoint = e->on;
	if (!e->on)
		core_copy_text(co->order_why, sizeof(co->order_why),
			       e->why ? e->why : "no checkpoint could be read");
}

void recover_on_rollback(struct ctx *x, const struct core_event *e)
{
	struct coord *co = &x->c->coord;

	if (co->state == COORD_OFF || !co->view.sealed || (!co->checkpoint && !e->on))
		return;
	co->rollback = true;
	co->weights_void = co->weights_void || e->on;
	core_copy_text(co->order_why, sizeof(co->order_why),
		       e->why ? e->why : "an operator rolled the model back");
}

/* --- views --- */

static void recover_persist(struct ctx *x)
{
	struct coord *co = &x->c->coord;
	struct core_action *a;

	CHECK(!co->undecided && view_names_ok(&co->view.members));
	co->has_view = true;
	co->view.term = co->term;
	co->view.seq++;
	/* While restoring, a new tune waits. The seal of the checkpoint brings the checkpoint's own
	 * tune first. */
	if (co->tune_due && !co->view.restoring)
		orders_take_tune(x->c);
	co->state = COORD_PERSIST;
	timer_stop(&co->timer);
	hear_void(x->c);
	view_each(i, coord_members(x->c))
		co->node[i].view_ok = co->node[i].done = co->node[i].caught = false;
	a = core_act(x, CORE_ACT_PERSIST);
	a->view = &co->view;
	a->why = co->view.lost && !co->view.restoring && co->lost[0] ? co->lost : NULL;
}

/* Returns the members as they are now. A node that is away when the model is LOST may come back
 * with any memory. */
static struct view_members recover_members(const struct core *c, bool lost)
{
	struct view_members to = *coord_members(c);
	uint64_t leaving = lost ? 0 : members_leaving(c), joining = lost ? 0 : members_joining(c);

	to.coordinator = c->conf.self;
	to.nodes = (to.nodes | joining) & ~leaving;
	for (uint16_t i = 0; i < CORE_NODES_MAX; i++) {
		const struct view_node *now = joining >> i & 1 ? &c->link[i].who : node_now(c, i);

		if (!view_is_member(&to, i))
			memset(&to.node[i], 0, sizeof(to.node[i]));
		else if (now)
			to.node[i] = *now;
		else if (lost)
			to.node[i].incarnation = 0;
	}
	return to;
}

/* Returns the placement among these members. Copies that are gone are learned again, by whoever has
 * memory for them. When the weights are written anew, everybody writes. */
static struct placement recover_place(const struct core *c, const struct view_members *to,
				      bool sealed)
{
	struct placement p = *coord_place(c);

	p.gone = ~to->nodes;
	if (!sealed) {
		p.learns = p.moves = 0;
		return p;
	}
	p.learns = (p.learns & ~members_caught(c, false)) | members_joining(c);
	p.moves &= ~members_caught(c, false);
	view_each(i, coord_members(c)) {
		if (c->coord.held_nr[i] && node_restarted(c, i))
			p.learns |= 1ull << i;
	}
	if (copies_step_back(c))
		p.learns |= 1ull << c->conf.self;
	for (uint16_t i = 0; i < CORE_NODES_MAX; i++) {
		if (!c->coord.held_nr[i])
			p.learns &= ~(1ull << i);
	}
	p.learns &= to->nodes;
	moves_change(c, &p);
	return p;
}

/* If every member is the one that the view names, they differ as they do in the view. */
bool recover_twins(const struct core *c, uint16_t *a, uint16_t *b)
{
	struct view_members now;
	bool changed = false;

	view_each(i, coord_members(c))
		changed = changed || node_restarted(c, i);
	if (!changed && !members_joining(c))
		return false;
	now = recover_members(c, false);
	return view_twins(&now, a, b);
}

bool recover_differ(const struct core *c)
{
	uint16_t a, b;

	return !recover_twins(c, &a, &b);
}

static void recover_change(struct ctx *x,
			   bool lost) /* Makes the next view, of the members as they are now. */
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	uint32_t generation = co->view.generation;
	struct view_members to;
	struct placement place;

	view_each(i, coord_members(c)) {
		/* The view on this disk is an old one. What it says does not count. */
		if (co->state == COORD_RECOVER && co->node[i].answered &&
		    co->node[i].generation > generation)
			generation = co->node[i].generation;
	}
	if (lost || !co->has_view || generation > co->view.generation) {
		/* All weights may be written before the first view exists. */
		bool first = !lost && !co->has_view && generation == 0;

		co->view.lost |= co->view.sealed || generation > co->view.generation;
		co->want_seal = co->want_seal && first;
		co->view.generation = generation + 1;
		co->view.sealed = co->has_last = false;
		co->view.restoring = co->checkpoint && !first;
		co->attempt = 0;
		if (!first)
			orders_forget(c);
	}
	to = recover_members(c, lost);
	hear_changed(x, &to);
	place = recover_place(c, &to, co->view.sealed);
	moves_take(c, &place);
	for (uint16_t i = 0; i < CORE_NODES_MAX; i++) {
		if (view_is_member(&co->view.members, i) != view_is_member(&to, i))
			memset(&co->node[i], 0, sizeof(co->node[i]));
	}
	co->view.members = to;
	/* .last itself stays as it is, because a message of this call may point to it. */
	if (co->has_last)
		co->view.record = co->last;
	else
		memset(&co->view.record, 0, sizeof(co->view.record));
	recover_persist(x);
}

/* The recovery rule, over the members that answered with the memory that the view lists. None of
 * them has a newer record than .last. If all are PREPARED for the step after it, in the durable
 * view, the old coordinator may have committed that step. It is then decided from their votes.
 * Each vote has the weights of the whole world, so those of nodes that are gone are not missed. */
static void recover_rule(struct core *c)
{
	struct coord *co = &c->coord;
	uint32_t members = 0;

	if (co->id.generation != co->view.generation || co->id.step != co->last.id.step + 1)
		return;
	co->attempt = co->id.attempt;
	if (co->id.term != co->view.term || co->id.seq != co->view.seq)
		return;
	view_each(i, coord_members(c)) {
		const struct coord_node *n = &co->node[i];

		if (!n->answered || !view_same(&n->who, &co->view.members.node[i]))
			continue;
		members++;
		if (!n->is_prepared || core_id_cmp(&n->prepared, &co->id))
			return;
	}
	/* Votes that differ in what the ranks gave were never committed. */
	if (members && !co->prepared_differs)
		attempt_decide(c, &co->id, &co->prepared);
}

/* Does a new coordinator not wait for this member any more? Its link broke, or it has had time to
 * make one. */
static bool recover_out(const struct core *c, uint16_t node, uint64_t now)
{
	uint64_t since = c->coord.node[node].absent_since;

	return since && !core_linked(c, node) &&
	       (c->link[node].known || now >= since + c->conf.heartbeat_timeout_ns);
}

/* Can a model with one copy of each chunk, or one without weights, do without this member? */
static bool recover_spares(const struct core *c, uint16_t node, uint64_t now)
{
	if (!c->coord.view.sealed)
		return members_leaving(c) >> node & 1;
	return members_vary(c) && !c->coord.held_nr[node] && recover_out(c, node, now);
}

static bool recover_complete(const struct core *c, uint64_t now)
{
	bool all = true, out = false;

	if (copies_several(c)) {
		/* This node itself promises the term before anything is decided in it. */
		if (!c->coord.node[c->conf.self].answered)
			return false;
		if (copies_lost(c, now) < c->conf.chunks_nr)
			return true;
		view_each(i, coord_members(c)) {
			out = out || !c->coord.node[i].answered;
			all = all && (c->coord.node[i].answered || recover_out(c, i, now));
		}
		if (out)
			return all && members_leaving(c);
		return copies_missing(c, copies_here(c)) == c->conf.chunks_nr;
	}
	view_each(i, coord_members(c)) { /* Who has the only copies is waited for. */
		if (node_given_up(c, i, now))
			return true;
		out = out || !c->coord.node[i].answered;
		all = all && (c->coord.node[i].answered || recover_spares(c, i, now));
	}
	/* A step is decided only without those who leave. A loss decides none. */
	return all && (!out || members_leaving(c) || copies_lost(c, now) < c->conf.chunks_nr);
}

static bool recover_changed(const struct core *c, uint64_t now)
{
	view_each(i, coord_members(c)) {
		if (node_restarted(c, i))
			return true;
	}
	return copies_lost(c, now) < c->conf.chunks_nr || members_leaving(c) || copies_step_back(c);
}

/* Shall nodes join, or copies count, with the next view? Then a chunk may get another primary,
 * which is who saves it. So a save that is under way ends first. all: also copies that are about
 * to. */
static bool grows(const struct core *c, bool all)
{
	return !c->coord.held && !c->coord.keeps_view &&
	       (members_joining(c) || members_caught(c, all));
}

bool recover_boundary(const struct core *c)
{
	return grows(c, true) || moves_boundary(c);
}

/* Is a boundary reached at which nodes join, or copies count from now on? */
static bool recover_grows(const struct core *c)
{
	return c->coord.state == COORD_OPEN && !c->coord.undecided && attempt_all_done(c) &&
	       recover_differ(c) && grows(c, false);
}

static bool recover_adopted(const struct core *c)
{
	view_each(i, coord_members(c)) {
		if (!c->coord.node[i].view_ok)
			return false;
	}
	return true;
}

static void recover_seal(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	struct core_id id = {.term = co->view.term,
			     .seq = co->view.seq + 1,
			     .generation = co->view.generation,
			     .step = co->seal_step};

	record_seal(&co->last, &c->conf.record, &id);
	if (co->has_restored) {
		co->last.applied = co->restored.applied;
		co->last.skipped_in_row = co->restored.skipped_in_row;
		co->last.scaler = co->restored.scaler;
		co->last.loss_scale = co->restored.scaler.scale;
		co->view.tune = co->restored.tune;
	}
	/* The steps that these refer to do not exist any more. */
	co->view.tune.resumed_step = co->view.tune.resumed_skips = 0;
	co->has_last = true;
	co->want_seal = false;
	co->attempt = 0;
	co->lost[0] = 0;
	co->view.sealed = true;
	co->view.restoring = co->view.lost = false;
	co->view.record = co->last;
	recover_persist(x);
}

/* Is it ordered to go back to a checkpoint, or to stop restoring? */
static bool recover_ordered(const struct core *c)
{
	const struct coord *co = &c->coord;

	return (co->rollback && co->view.sealed && (co->checkpoint || co->weights_void)) ||
	       (co->view.restoring && !co->checkpoint);
}

/* Can the new tune take effect, at a boundary? */
static bool recover_tune_due(const struct core *c)
{
	return c->coord.state == COORD_OPEN && c->coord.tune_due && !c->coord.keeps_view &&
	       !c->coord.undecided && !c->coord.view.restoring && attempt_all_done(c) &&
	       recover_differ(c);
}

/* The coordinator started again while it restored the model. It does not know what had been
 * written. */
static void recover_again(struct ctx *x)
{
	struct core *c = x->c;

	if (!c->coord.checkpoint && c->coord.order_why[0]) {
		core_copy_text(c->coord.lost, sizeof(c->coord.lost), c->coord.order_why);
		return;
	}
	core_copy_text(c->coord.lost, sizeof(c->coord.lost),
		       core_text(c, "the coordinator started again while it restored the model: %s",
				 recover_remedy(c)));
}

static void recover_open(struct ctx *x)
{
	struct coord *co = &x->c->coord;

	co->state = COORD_OPEN;
	timer_stop(&co->timer);
	/* A node that adopted the view has finished the record of the view. */
	view_each(i, coord_members(x->c))
		co->node[i].done = true;
	if (co->tune_tell && !co->tune_due)
		core_act(x, CORE_ACT_TUNED);
	co->tune_tell = false;
	moves_opened(x);
}

static void recover_leave(struct ctx *x, bool lost) /* Gives up the current view. */
{
	struct coord *co = &x->c->coord;

	attempt_abort(x, SHARD_WORLD_CHANGED,
		      lost ? core_text(x->c, "%s", co->lost) : "the members have changed");
	recover_change(x, lost);
}

void recover_settle(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	bool may_change = co->state == COORD_VIEW || co->state == COORD_OPEN;

	if (co->state == COORD_RECOVER && recover_complete(c, x->now) && recover_differ(c)) {
		bool lost = co->older || recover_lost(x);
		enum back_is back = lost ? BACK_NONE : back_settle(x, recover_remedy(c));

		if (back == BACK_WAITS)
			return;
		lost = lost || back == BACK_LOST;
		if (!lost && co->view.sealed)
			recover_rule(c);
		if (!lost && co->view.restoring)
			recover_again(x);
		co->older = false;
		recover_change(x, lost || co->view.restoring);
	} else if (may_change && recover_changed(c, x->now) && recover_differ(c)) {
		recover_leave(x, recover_lost(x));
	} else if (may_change && recover_ordered(c) && recover_differ(c)) {
		core_copy_text(co->lost, sizeof(co->lost),
			       core_text(c,
					 co->checkpoint ? "%s" : "no checkpoint of it is good: %s",
					 co->order_why));
		recover_leave(x, true);
	} else if (co->state == COORD_VIEW && recover_adopted(c)) {
		recover_open(x);
	}
	if (co->state == COORD_OPEN && co->want_seal && !co->view.sealed)
		recover_seal(x);
	else if (recover_tune_due(c) || recover_grows(c) || moves_due(c))
		recover_change(x, false);
}

bool recover_due(const struct core *c)
{
	return (c->coord.state == COORD_VIEW && recover_adopted(c)) || recover_tune_due(c) ||
	       recover_grows(c) || moves_due(c);
}

void recover_send(struct ctx *x, uint16_t node)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	struct core_id id = {
		.term = co->term, .seq = co->view.seq, .generation = co->view.generation};
	const struct view_node *now = node_now(c, node);
	struct core_msg *m;

	if (co->state == COORD_RECOVER && !co->node[node].answered) {
		id.seq = 0;
		core_send(x, node, CORE_ASK, &id);
		/* VIEW goes only to the memory that the view lists. Other memory gets the next
		 * view. */
	} else if (co->state == COORD_VIEW && !co->node[node].view_ok && now &&
		   view_same(now, &co->durable.members.node[node])) {
		m = core_send(x, node, CORE_VIEW, &id);
		m->view = &co->durable;
		m->why = co->lost[0] ? core_text(c, "%s", co->lost) : NULL;
	}
}

void recover_on_persisted(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	bool asked = c->coord.state == COORD_PERSIST;

	/* The view may be that of a term in which this node led before. */
	if (c->conf.elected &&
	    (!asked || e->id.term != c->coord.view.term || e->id.seq != c->coord.view.seq))
		return;
	CHECK(asked);
	c->coord.state = COORD_VIEW;
	c->coord.durable = c->coord.view;
	timer_start(c, &c->coord.timer, x->now);
	view_each(i, coord_members(c))
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
		co->prepared_differs = false;
		attempt_no_votes(c);
	}
	co->node[from].prepared = a->id;
	co->node[from].is_prepared = true;
	if (core_id_cmp(&a->id, &co->id))
		return;
	if (!attempt_scatter(c, from, &a->vote, &co->prepared, &differs))
		co->node[from].is_prepared = false;
	else if (differs || co->odd.others)
		co->prepared_differs = true;
}

static bool view_before(const struct core_view *v, uint64_t term, uint32_t seq)
{
	return v->term < term || (v->term == term && v->seq < seq);
}

/* Did a member adopt a newer view than the one on this disk, or vote in one, or apply a record of
 * one? A view is durable before anybody hears of it, so the view here must be an old copy. This
 * node does not know everything that was decided and ordered since. */
static bool recover_is_older(const struct coord *co, const struct core_answer *a)
{
	return view_before(&co->view, a->term, a->seq) ||
	       (a->has_record && view_before(&co->view, a->record.id.term, a->record.id.seq)) ||
	       (a->prepared && view_before(&co->view, a->id.term, a->id.seq));
}

static void recover_older(struct ctx *x, uint16_t node)
{
	struct core *c = x->c;

	c->coord.older = true;
	core_copy_text(c->coord.lost, sizeof(c->coord.lost),
		       core_text(c,
				 "the view on the disk of node %s is an old copy: node %s has a "
				 "newer one. Was its state folder put back? %s",
				 core_node_name(c, c->conf.self), core_node_name(c, node),
				 recover_remedy(c)));
}

void recover_on_answer(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	struct coord_node *n = &co->node[m->from];
	const struct core_answer *a = m->answer;

	if (co->state != COORD_RECOVER || m->id.term != co->term || !a || n->answered)
		return;
	if (a->prepared && !core_world_ok(c, &a->world, c->conf.slots))
		return;
	if (a->generation == co->view.generation && recover_is_older(co, a))
		recover_older(x, m->from);
	hear_report(x, m);
	n->answered = true;
	n->who = c->link[m->from].who;
	n->generation = a->generation;
	n->is_prepared = false;
	back_answered(c, m);
	if (a->generation != co->view.generation || !coord_lists(c, m->from) || !co->view.sealed)
		return;
	if (a->has_record && core_id_cmp(&a->record.id, &co->last.id) > 0)
		co->last = a->record;
	if (a->prepared)
		recover_prepared(x, m->from, a);
}

/* The last copy came after the view was adopted, and no step was committed since. */
static bool recover_caught_late(const struct coord *co, const struct core_msg *m)
{
	return co->state == COORD_OPEN && m->caught && m->id.term == co->view.term &&
	       m->id.seq == co->view.seq && !core_id_cmp(&co->last.id, &co->view.record.id);
}

void recover_on_view_ok(struct ctx *x, const struct core_msg *m)
{
	struct coord *co = &x->c->coord;

	if (co->state == COORD_VIEW && m->id.term == co->view.term && m->id.seq == co->view.seq &&
	    coord_lists(x->c, m->from)) {
		co->node[m->from].view_ok = true;
		co->node[m->from].caught = co->node[m->from].catches = m->caught;
	} else if (recover_caught_late(co, m) && coord_lists(x->c, m->from)) {
		co->node[m->from].caught = co->node[m->from].catches = true;
	}
	hear_report(x, m);
}

/* The shell names the generation whose weights are written. If a newer one is already on its way to
 * disk, the event does not count. The weights of the first generation may be written before its
 * view exists, and then the event counts. */
void recover_on_written(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	uint32_t generation = e->id.generation ? e->id.generation : c->member.generation;
	bool first = !c->coord.has_view && generation == 1;

	if (c->coord.state == COORD_OFF || c->coord.view.sealed ||
	    (generation != c->coord.view.generation && !first))
		return;
	c->coord.want_seal = true;
	c->coord.seal_step = e->step;
	c->coord.has_restored = e->restored != NULL;
	if (e->restored)
		c->coord.restored = *e->restored;
}

static void recover_earlier(const struct core *c, uint64_t *at, uint64_t since, uint64_t wait)
{
	if (since + wait > c->coord.seen_ns && since + wait < *at)
		*at = since + wait;
}

uint64_t recover_deadline(const struct core *c)
{
	uint64_t at = UINT64_MAX;

	if (c->coord.state == COORD_OFF || c->coord.state == COORD_PERSIST)
		return at;
	view_each(i, coord_members(c)) {
		uint64_t since = c->coord.node[i].absent_since;

		if (!since || !recover_differ(c))
			continue;
		if (!c->coord.view.sealed ||
		    (c->coord.held_nr[i] && coord_members(c)->node[i].incarnation))
			recover_earlier(c, &at, since, c->conf.lost_timeout_ns);
		if (members_vary(c) && c->coord.state == COORD_RECOVER)
			recover_earlier(c, &at, since, c->conf.heartbeat_timeout_ns);
	}
	return at;
}

/* An elected coordinator need not be a member of the view that it begins with. It is asked and
 * promises like a member, and the next view has it as one that started again, because nobody's
 * memory is the one that is listed for it here. */
static void recover_lead_from_outside(struct core *c)
{
	struct coord *co = &c->coord;
	uint16_t self = c->conf.self;

	if (member_is_in(c, &co->view.members))
		return;
	co->view.members.nodes |= 1ull << self;
	co->view.members.node[self] = (struct view_node){.incarnation = UINT64_MAX};
	if (co->view.sealed && co->held_nr[self])
		co->view.place.learns |= 1ull << self;
	co->view.place.moves &= ~(1ull << self);
	co->view.place.gone = ~co->view.members.nodes;
}

void recover_init(struct core *c, uint64_t term, const struct core_view *view)
{
	struct coord *co = &c->coord;

	memset(co, 0, sizeof(*co));
	co->state = COORD_RECOVER;
	co->term = term;
	co->bad_tensor = -1;
	co->bad_rank = -1;
	co->timer.at = 0; /* It asks at the first tick. */
	co->view.members = c->conf.members;
	co->view.members.coordinator = c->conf.self;
	co->view.place = c->conf.place;
	coord_placed(c);
	if (!view && !view_is_member(&co->view.members, c->conf.self))
		recover_lead_from_outside(c);
	if (!view)
		return;
	CHECK(view->place.primary || view->place.sum == c->conf.place.sum);
	CHECK(!((view->place.learns | view->place.moves) & ~view->members.nodes));
	CHECK(view_members_ok(&view->members, c->conf.slots) && view_names_ok(&view->members) &&
	      (c->conf.elected || (member_is_in(c, &view->members) &&
				   view_coordinator(&view->members) == c->conf.self)));
	co->has_view = true;
	co->view = *view;
	if (!view->place.primary) { /* It need not have the tables. */
		co->view.place = c->conf.place;
		co->view.place.learns = view->place.learns;
		co->view.place.moves = view->place.moves;
	}
	co->view.place.gone = ~view->members.nodes;
	coord_placed(c);
	recover_lead_from_outside(c);
	coord_placed(c);
	if (!view->sealed)
		return;
	co->has_last = true;
	co->last = view->record;
}
