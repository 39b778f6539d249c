/* SPDX-License-Identifier: Apache-2.0 */
/* What the coordinator's shell is asked to do while everything else goes on. It holds the model
 * still while a checkpoint is read from all nodes, takes another tune, pauses and resumes, and puts
 * a trainer out. It also comes back from the checkpoint, or finds that the checkpoint cannot be
 * read. A coordinator that starts again is told of the checkpoint and of nothing else. Seed 1 goes
 * through a script. */
#include "sim/sim.h"

#include <string.h>

uint64_t orders_number(const struct core_tune *t) /* The lr tells the tunes apart. */
{
	return t->lr > 0 ? (uint64_t)((t->lr / 1e-3 - 1) * 4096 + 0.5) : 0;
}

static void orders_tune(struct sim *s, struct core_tune t, const struct record *resumed)
{
	struct core_event e = {
		.type = CORE_EV_TUNE, .tune = &s->m->orders.tune, .on = resumed != NULL};

	s->m->orders.resumed = resumed && resumed->diverged ? resumed->id : (struct core_id){0};
	t.lr = 1e-3 * (1 + (double)++s->m->orders.tunes_nr / 4096);
	s->m->orders.tune = t;
	sim_trace(s, "n%u TUNE %llu%s", s->lead, (unsigned long long)s->m->orders.tunes_nr,
		  t.paused ? " paused" : "");
	node_event(s, s->lead, &e);
}

/* It draws nothing, so that seeds stay what they were before there was this. */
static void orders_hyper(const struct sim *s, struct core_tune *t)
{
	memset(t->set, 0, sizeof(t->set));
	memset(t->hyper, 0, sizeof(t->hyper));
	for (uint32_t g = 0; g < s->m->conf.groups_nr; g++) {
		uint64_t h = sim_mix(s->m->orders.tunes_nr, g);

		t->set[g] = (uint32_t)h & TUNE_HYPERS;
		for (uint32_t i = 0; i < HYPER_NR; i++) {
			if (t->set[g] >> i & 1)
				t->hyper[g][i] = (double)(h >> 40 & 255) / 1024 + 1e-9 * i;
		}
	}
}

static void orders_change(struct sim *s, const struct core_state *st)
{
	static const double clips[] = {0, 1e-7, 0.5, 1e3};
	struct core_tune t = *st->tune;

	t.has_lr = sim_chance(s, 700);
	t.has_clip = sim_chance(s, 500);
	t.clip = clips[sim_between(s, 0, NR(clips) - 1)];
	t.paused = sim_chance(s, 200);
	orders_hyper(s, &t);
	orders_tune(s, t, NULL);
}

/* What the shell says of steps in a resume must not count. */
void orders_resume(struct sim *s, const struct core_state *st)
{
	struct core_tune t = *st->tune;

	t.paused = false;
	t.resumed_step = 1000000;
	t.resumed_skips = 1000000;
	orders_tune(s, t, st->record);
}

static void orders_hold(struct sim *s, bool on)
{
	struct sim_orders *o = &s->m->orders;
	struct core_event e = {.type = CORE_EV_HOLD, .on = on};

	o->hold = on;
	o->held = false;
	o->hold_since = s->now;
	o->hold_until = s->now + (sim_chance(s, 100) ? sim_between(s, 4500 * MS, 7 * SEC)
						     : sim_between(s, 50 * MS, 800 * MS));
	sim_trace(s, "n%u HOLD %d", s->lead, on);
	node_event(s, s->lead, &e);
}

static void orders_told(struct sim *s, bool on, const char *why)
{
	struct core_event e = {.type = CORE_EV_CHECKPOINT, .on = on, .why = why};

	sim_trace(s, "n%u CHECKPOINT %d", s->lead, on);
	s->m->orders.told = on;
	node_event(s, s->lead, &e);
}

void orders_started(struct sim *s)
{
	if (s->m->orders.newest.has)
		orders_told(s, true, NULL);
}

void orders_crashed(struct sim *s)
{
	s->m->orders.hold = s->m->orders.held = s->m->orders.told = s->m->orders.rolled = false;
	s->m->orders.kicked = (struct core_id){0}; /* Nobody may have heard of it. */
}

/* Saves the weights of all nodes, once they have applied the held step. */
static bool orders_save(struct sim *s, const struct core_state *st)
{
	struct sim_orders *o = &s->m->orders;
	const struct truth *t = truth_of(s, o->held_id.generation);
	uint64_t step = o->held_id.step;

	/* The model is on the way back to another generation. */
	if (o->held_id.generation != s->m->generation)
		return false;
	if (!load_save(s, &o->held_id, o->newest.weights))
		return false;
	o->newest.has = true;
	o->newest.step = step;
	o->newest.restored =
		(struct core_restored){.applied = t->record[step % 2].applied,
				       .skipped_in_row = t->record[step % 2].skipped_in_row,
				       .scaler = t->record[step % 2].scaler,
				       .tune = *st->tune};
	sim_trace(s, "n%u SAVES step %llu", s->lead, (unsigned long long)step);
	return true;
}

static void orders_held(struct sim *s, const struct core_state *st)
{
	struct sim_orders *o = &s->m->orders;
	bool saved = o->held && (s->now >= o->hold_until || s->now < o->hold_since + 4 * SEC) &&
		     orders_save(s, st);

	if (!o->held && !s->faults && st->sealed && !st->recovering &&
	    s->now > o->hold_since + 20 * SEC)
		sim_fail(s, "held", "the hold that began at %.6f is not in effect",
			 (double)o->hold_since / (double)SEC);
	if (saved && !o->told)
		orders_told(s, true, NULL);
	if (!s->node[s->lead].alive)
		return;
	if (s->now >= o->hold_until || (saved && o->hold_until < o->hold_since + 4 * SEC))
		orders_hold(s, false);
}

static void orders_kick(struct sim *s, const struct core_state *st)
{
	uint32_t most = s->m->trainers_nr > FEW_TRAINERS ? s->m->trainers_nr : FEW_TRAINERS;
	struct core_event e = {.type = CORE_EV_KICK,
			       .rank = (uint32_t)sim_between(s, 0, most - 1),
			       .why = "an operator asked"};

	/* In the seeds that have slow trainers one is sometimes named by its process. */
	if (s->m->straggler_ns && sim_chance(s, 500)) {
		e.on = true;
		e.trainer.node = s->m->trainer[e.rank % s->m->trainers_nr].node;
		e.trainer.pid = 100 + e.rank % s->m->trainers_nr;
		for (e.rank = 0;
		     e.rank < st->world->size && (st->world->rank[e.rank].pid != e.trainer.pid ||
						  st->world->rank[e.rank].node != e.trainer.node);)
			e.rank++;
	}
	if (!st->recovering && (st->part == CORE_STAGING || st->part == CORE_PREPARED) &&
	    e.rank < st->world->size)
		s->m->orders.kicked = st->id;
	sim_trace(s, "n%u KICK rank %u", s->lead, e.rank);
	node_event(s, s->lead, &e);
}

static void orders_rollback(struct sim *s)
{
	struct core_event e = {.type = CORE_EV_ROLLBACK, .why = "an operator asked"};

	s->m->orders.rolled = true;
	sim_trace(s, "n%u ROLLBACK", s->lead);
	node_event(s, s->lead, &e);
}

/* The script of the seed in which nothing goes wrong. */
static void orders_script(struct sim *s, const struct core_state *st)
{
	struct sim_orders *o = &s->m->orders;

	if (o->phase == 0 && s->m->commits >= 1) {
		orders_hold(s, true);
		o->phase++;
	} else if (o->phase == 1 && o->newest.has && !o->hold) {
		orders_change(s, st);
		o->phase++;
	} else if (o->phase == 2 && o->tuneds == 1) {
		orders_resume(s, st);
		o->phase++;
	} else if (o->phase == 3 && o->tuneds == 2 && s->m->commits >= 4) {
		orders_rollback(s);
		o->phase++;
	}
}

static void orders_draw(struct sim *s, const struct core_state *st)
{
	struct sim_orders *o = &s->m->orders;
	uint64_t what = sim_between(s, 0, 99);

	if (st->paused && (!s->faults || what < 30)) {
		orders_resume(s, st);
	} else if (what < 10 && !o->hold) {
		orders_hold(s, true);
	} else if (s->faults && what >= 20 && what < 26) {
		orders_change(s, st);
	} else if (s->faults && what >= 30 && what < 34) {
		orders_kick(s, st);
	} else if (s->faults && what >= 40 && what < 42) {
		orders_rollback(s);
	} else if (what >= 50 && what < 60 && st->restoring && o->told) {
		o->newest.has = false;
		orders_told(s, false, "its files are torn");
	}
}

void orders_event(struct sim *s, const struct sim_event *e)
{
	const struct sim_node *nd = &s->node[s->lead];
	const struct shell *sh = shell_of(s, s->lead);
	struct core_state st;

	(void)e;
	sim_at(s,
	       s->m->orders.hold || s->m->orders.script ? 10 * MS
							: sim_between(s, 20 * MS, 200 * MS),
	       SIM_ORDER, NOWHERE);
	if (!nd->alive || nd->paused || !elect_acts(s))
		return;
	core_state(sh->core, &st);
	if (s->m->orders.hold)
		orders_held(s, &st);
	if (!nd->alive)
		return;
	if (s->m->orders.script)
		orders_script(s, &st);
	else if (!cuts_on(s))
		orders_draw(s, &st);
}
