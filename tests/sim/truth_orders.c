/* SPDX-License-Identifier: Apache-2.0 */
/* The checkers of what operators and checkpoints ask of a model. held: nothing is decided and
 * nobody is expelled while a checkpoint is written. tuned: each decision takes the tune of its
 * view, and an answered tune stays. paused and kicked watch those orders. restored: a LOST model
 * with a checkpoint comes back as it was written, and its trainers stay. truth.c, truth_pure.c and
 * load.c call them. */
#include "sim/sim.h"

#include "core/inner.h"

#include <string.h>

/* Compares two orders without what the core says of a resume. */
static bool same_order(const struct core_tune *a, const struct core_tune *b)
{
	return a->paused == b->paused && a->has_lr == b->has_lr && a->has_clip == b->has_clip &&
	       !memcmp(&a->lr, &b->lr, 8) && !memcmp(&a->clip, &b->clip, 8) &&
	       !memcmp(a->set, b->set, sizeof(a->set)) &&
	       !memcmp(a->hyper, b->hyper, sizeof(a->hyper));
}

static bool same_tune(const struct core_tune *a, const struct core_tune *b)
{
	return same_order(a, b) && a->resumed_step == b->resumed_step &&
	       a->resumed_skips == b->resumed_skips;
}

/* NULL: that view is too old. */
static const struct sim_view *view_of(const struct sim *s, const struct core_id *id)
{
	for (uint32_t i = s->m->views_nr; i-- > 0 && i + VIEWS > s->m->views_nr;) {
		if (s->m->view[i % VIEWS].term == id->term && s->m->view[i % VIEWS].seq == id->seq)
			return &s->m->view[i % VIEWS];
	}
	return NULL;
}

const struct core_tune *truth_tune_of(const struct sim *s, const struct core_id *id)
{
	const struct sim_view *v = view_of(s, id);

	return v ? &v->tune : NULL;
}

/* A decision takes what operators ordered in its view, and nothing else of the tune. */
void truth_ordered(struct sim *s, const struct record *prev, const struct record *r,
		   const struct core_tune *t)
{
	uint64_t row = r->outcome == RECORD_APPLIED ? 0 : prev->skipped_in_row + 1, since;
	char a[64];

	/* Of a longer row the rest was before the resume. */
	since = r->id.step - t->resumed_step;
	if (t->resumed_step && row > since)
		row = since;
	if (r->diverged != (s->m->conf.max_skips && row >= s->m->conf.max_skips))
		sim_fail(s, "paused", "%s: diverged is %d after %llu skips since the resume",
			 sim_id(&r->id, a), r->diverged, (unsigned long long)row);
	if (same_tune(t, &shell_of(s, s->lead)->disk.tune) && t->paused)
		sim_fail(s, "paused", "%s is committed to a paused model", sim_id(&r->id, a));
	if (!core_id_cmp(&r->id, &s->m->orders.kicked))
		sim_fail(s, "kicked", "%s is committed with a rank that was put out",
			 sim_id(&r->id, a));
	if (s->m->orders.held && r->id.generation == s->m->orders.held_id.generation)
		sim_fail(s, "held", "%s is committed while step %llu is held", sim_id(&r->id, a),
			 (unsigned long long)s->m->orders.held_id.step);
}

static void order_held(struct sim *s, const struct record *r)
{
	struct sim_orders *o = &s->m->orders;
	const struct truth *t = truth_of(s, r->id.generation);
	struct core_state st;
	char a[64];

	core_state(shell_of(s, s->lead)->core, &st);
	if (!o->hold || o->held)
		sim_fail(s, "held", "%s is held, but nobody asked", sim_id(&r->id, a));
	if (r->id.generation != s->m->generation || t->last != r->id.step ||
	    st.part == CORE_PREPARED || !st.held)
		sim_fail(s, "held", "%s is held, but step %llu was decided, or may be",
			 sim_id(&r->id, a), (unsigned long long)t->last);
	o->held = true;
	o->held_id = r->id;
	o->helds++;
}

static void order_tuned(struct sim *s)
{
	const struct core_view *disk = &shell_of(s, s->lead)->disk;
	struct sim_orders *o = &s->m->orders;
	struct core_state st;

	if (!same_order(&disk->tune, &o->tune))
		sim_fail(s, "tuned", "tune %llu is answered without being in the durable view",
			 (unsigned long long)o->tunes_nr);
	if (o->resumed.step && o->resumed.generation == disk->generation &&
	    disk->tune.resumed_step < o->resumed.step)
		sim_fail(s, "tuned",
			 "a resume after step %llu is answered, but counts up to step %llu",
			 (unsigned long long)o->resumed.step,
			 (unsigned long long)disk->tune.resumed_step);
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (!s->node[n].alive || !truth_lists(s, n))
			continue;
		core_state(shell_of(s, n)->core, &st);
		if (st.term && !same_tune(st.tune, &disk->tune))
			sim_fail(s, "tuned", "tune %llu is answered, but n%u has another",
				 (unsigned long long)o->tunes_nr, n);
	}
	o->tuned_lr = o->tunes_nr;
	o->tuneds++;
}

static void order_begin(struct sim *s, const struct core_id *id)
{
	const struct core_tune *tune = truth_tune_of(s, id);
	const struct truth *t = truth_of(s, id->generation);
	const struct record *last = &t->record[t->last % 2];
	char a[64];

	if (!tune || t->last + 1 != id->step)
		return;
	if (tune->paused)
		sim_fail(s, "paused", "%s begins in a paused model", sim_id(id, a));
	if (last->diverged && last->id.step > tune->resumed_step)
		sim_fail(s, "paused", "%s begins though step %llu diverged", sim_id(id, a),
			 (unsigned long long)last->id.step);
}

static void order_lost(struct sim *s, uint16_t n, const struct core_action *a)
{
	const struct sim_view *v = view_of(s, &a->id);
	/* A node that was no member meanwhile hears of it when other weights are there. */
	bool restoring = truth_of(s, a->id.generation)->restoring || (v && v->sealed);

	if ((a->status == SHARD_ROLLED_BACK) != restoring || (a->status == SHARD_LOST) == restoring)
		sim_fail(s, "restored", "n%u tells of generation %u with status %d, restoring %d",
			 n, a->id.generation, a->status, restoring);
	if (restoring && strstr(a->why, "no checkpoint"))
		sim_fail(s, "restored", "n%u asks for weights that come from the checkpoint: %s", n,
			 a->why);
	if (n == s->lead)
		s->m->orders.hold = s->m->orders.held = false;
}

void truth_order(struct sim *s, uint16_t n, const struct core_action *a)
{
	const struct shell *sh = shell_of(s, s->lead);

	/* Its operators have gone to its successor, and its views are fenced. */
	if (elect_former(s, n) &&
	    (a->type == CORE_ACT_HELD || a->type == CORE_ACT_TUNED || a->type == CORE_ACT_PERSIST))
		return;
	if (a->type == CORE_ACT_HELD)
		order_held(s, a->record);
	else if (a->type == CORE_ACT_TUNED)
		order_tuned(s);
	else if (a->type == CORE_ACT_BEGIN)
		order_begin(s, &a->id);
	else if (a->type == CORE_ACT_LOST)
		order_lost(s, n, a);
	else if (a->type == CORE_ACT_PERSIST &&
		 a->view->generation > (sh->has_disk ? sh->disk.generation : 0) &&
		 a->view->restoring != (sh->has_disk && s->m->orders.told))
		sim_fail(s, "restored", "generation %u: restoring is %d, checkpoint %d",
			 a->view->generation, a->view->restoring, s->m->orders.told);
	/* Who was put out before may be told again. */
	else if (n == s->lead && !elect_former(s, n) && s->m->orders.held && sh->was_undecided &&
		 !sh->core->coord.undecided &&
		 ((a->type == CORE_ACT_SEND && a->msg.op == CORE_GONE) ||
		  a->type == CORE_ACT_EXPEL) &&
		 strstr(a->type == CORE_ACT_SEND ? a->msg.why ? a->msg.why : "" : a->why,
			" waited "))
		sim_fail(s, "held", "a deadline passes while a checkpoint is written");
}

/* An answered tune is in every later view, unless the model returned to an older checkpoint. A
 * resume is about steps that exist. */
void truth_view(struct sim *s, const struct core_view *v)
{
	struct truth *t = truth_of(s, v->generation);

	if (!v->sealed && v->restoring && !t->restoring) {
		t->restoring = true;
		t->checkpoint = s->m->orders.newest;
	}
	if (v->sealed && !t->sealed && (t->restoring || t->loaded))
		s->m->orders.tuned_lr = orders_number(&t->checkpoint.restored.tune);
	if (v->sealed && v->tune.resumed_step > v->record.id.step)
		sim_fail(s, "paused", "a view at step %llu goes on after a divergence at step %llu",
			 (unsigned long long)v->record.id.step,
			 (unsigned long long)v->tune.resumed_step);
	if (orders_number(&v->tune) < s->m->orders.tuned_lr)
		sim_fail(s, "tuned", "tune %llu was answered, but a view has %llu",
			 (unsigned long long)s->m->orders.tuned_lr,
			 (unsigned long long)orders_number(&v->tune));
}

void truth_written(struct sim *s, uint32_t generation, bool loaded)
{
	struct truth *t = truth_of(s, generation);

	if (t->sealed || t->restoring)
		return;
	t->loaded = loaded;
	t->checkpoint = s->m->orders.newest;
}

void truth_seal(struct sim *s, struct truth *t, const struct record *r)
{
	const struct core_restored *c = &t->checkpoint.restored;

	if (!t->restoring && !t->loaded)
		return;
	s->m->orders.restores++;
	if (r->id.step != t->checkpoint.step || r->applied != c->applied ||
	    r->skipped_in_row != c->skipped_in_row ||
	    memcmp(&r->scaler.scale, &c->scaler.scale, 8) ||
	    memcmp(&r->loss_scale, &c->scaler.scale, 8) || r->scaler.iter != c->scaler.iter ||
	    r->scaler.hysteresis != c->scaler.hysteresis ||
	    r->scaler.last_overflow != c->scaler.last_overflow)
		sim_fail(s, "restored",
			 "generation %u begins at step %llu, the checkpoint is of %llu",
			 r->id.generation, (unsigned long long)r->id.step,
			 (unsigned long long)t->checkpoint.step);
}

/* Has a rank of the world been ready for so long in this attempt? What it gave is not known any
 * more if the attempt is one of a zombie that stood still while its successor made many others. */
static bool ready_since(const struct sim *s, const struct core_world *w, const struct core_id *id,
			uint64_t ns)
{
	for (uint32_t i = 0; i < w->size; i++) {
		const struct sim_session *ses = &s->m->session[w->rank[i].session];
		const struct sim_gave *gave = truth_gave(ses, id);

		if (gave && gave->at + ns <= s->now)
			return true;
		if (ses->gave_nr >= GAVE && core_id_cmp(&ses->gave[ses->gave_nr % GAVE].id, id) > 0)
			return true;
	}
	return false;
}

/* A coordinator has put slow trainers out: enough others are left, one of them has waited for them
 * long enough, and their nodes were not busy with the step before. */
void truth_stragglers(struct sim *s, uint16_t n)
{
	const struct core *c = shell_of(s, n)->core;
	struct shell *sh = shell_of(s, n);
	uint64_t before = sh->stragglers;
	char a[64];

	sh->stragglers = c->coord.stragglers_nr;
	if (sh->stragglers <= before)
		return;
	s->m->stragglers += sh->stragglers - before;
	if (n == s->lead && !elect_former(s, n) && s->m->orders.held)
		sim_fail(s, "stragglers", "n%u puts trainers out while a step is held", n);
	if (c->coord.trainers_nr < s->m->min_world)
		sim_fail(s, "stragglers", "n%u puts trainers out of %s, and %u are left", n,
			 sim_id(&sh->begun, a), c->coord.trainers_nr);
	if (core_id_cmp(&c->coord.aborted_id, &sh->begun) ||
	    !ready_since(s, &sh->begun_world, &sh->begun, s->m->straggler_ns))
		sim_fail(s, "stragglers", "n%u puts trainers out of %s, and no rank waited so long",
			 n, sim_id(&sh->begun, a));
	for (uint32_t i = 0; i < sh->begun_world.size; i++) {
		uint16_t at = sh->begun_world.rank[i].node;

		if (core_rank_of(&c->coord.world, at, sh->begun_world.rank[i].session) < 0 &&
		    s->node[at].alive && sh->begun.step && shell_of(s, at)->applying)
			sim_fail(s, "stragglers", "n%u puts rank %u out, whose node still applies",
				 n, i);
	}
}

void truth_orders_end(struct sim *s)
{
	if (s->m->orders.script && (s->m->orders.phase != 4 || s->m->orders.helds != 1 ||
				    s->m->orders.restores != 1 || s->m->generation != 2))
		sim_fail(s, "restored", "the script stops in phase %u", s->m->orders.phase);
	if (s->m->orders.script && s->m->sessions_nr != s->m->trainers_nr)
		sim_fail(s, "restored", "the trainers did not stay: %u sessions",
			 s->m->sessions_nr);
}
