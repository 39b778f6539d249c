/* SPDX-License-Identifier: Apache-2.0 */
/* Trainers are small state machines that join, read the image of the last step, push a gradient
 * chunk by chunk, commit, and wait for the result. shell.c tells them what their daemon says, and
 * the event table in sim.c moves them on. Some vote to skip, some push a NaN, and some abandon,
 * leave, die or stop in the middle (fault.c). */
#include "sim/sim.h"

#include <string.h>

static bool same(const struct core_id *a, const struct core_id *b)
{
	return core_id_cmp(a, b) == 0;
}

static uint32_t trainer_find(const struct sim *s, uint16_t n, uint64_t session)
{
	for (uint32_t t = 0; t < s->m->trainers_nr; t++) {
		if (s->m->trainer[t].state != TR_DEAD && s->m->trainer[t].node == n &&
		    s->m->trainer[t].session == session)
			return t;
	}
	return TRAINERS;
}

void trainer_spawn(struct sim *s, uint32_t t)
{
	struct sim_trainer *tr = &s->m->trainer[t];
	struct core_event join = {.type = CORE_EV_JOIN};

	if (tr->state != TR_DEAD)
		return;
	if (s->joins)
		joins_wander(s, tr);
	if (tr->node == s->grave)
		tr->node = s->lead;
	if (!s->node[tr->node].alive || s->node[tr->node].paused ||
	    s->m->sessions_nr + 1 >= SESSIONS) {
		sim_at(s, 50 * MS, SIM_SPAWN, NOWHERE)->trainer = t;
		return;
	}
	tr->state = TR_IDLE;
	tr->stopped = false;
	tr->session = ++s->m->sessions_nr;
	tr->id = (struct core_id){0};
	memset(tr->arena, 0, sizeof(tr->arena));
	s->m->session[tr->session] = (struct sim_session){
		.node = tr->node, .trainer = t, .hint = sim_chance(s, 500) ? (int32_t)t : -1};
	join.trainer = (struct core_trainer){.session = tr->session,
					     .pid = 100 + t,
					     .hint = s->m->session[tr->session].hint,
					     .node = tr->node};
	sim_trace(s, "n%u JOIN session %llu", tr->node, (unsigned long long)tr->session);
	node_event(s, tr->node, &join);
}

static void trainer_end(struct sim *s, uint32_t t)
{
	s->m->session[s->m->trainer[t].session].dead = true;
	s->m->trainer[t].state = TR_DEAD;
	if (s->m->trainer[t].node == ZOMBIE)
		s->m->trainer[t].node = s->lead;
	sim_at(s, sim_between(s, 20 * MS, 400 * MS), SIM_SPAWN, NOWHERE)->trainer = t;
}

void trainer_die(struct sim *s, uint32_t t, const char *why)
{
	struct sim_trainer *tr = &s->m->trainer[t];
	struct sim_event *e;

	if (tr->state == TR_DEAD)
		return;
	sim_trace(s, "trainer %u session %llu DIES", t, (unsigned long long)tr->session);
	e = sim_at(s, sim_between(s, 10000, 5 * MS), SIM_GONE, tr->node);
	e->session = tr->session;
	(void)why;
	trainer_end(s, t);
}

void trainer_closed(struct sim *s, uint16_t n, uint64_t session, const char *why)
{
	uint32_t t = trainer_find(s, n, session);

	if (!why || !why[0])
		sim_fail(s, "deadline_named", "session %llu is closed without a reason",
			 (unsigned long long)session);
	if (t < TRAINERS)
		trainer_end(s, t);
}

void trainer_tell(struct sim *s, uint16_t n, const struct core_world *w, enum sim_kind kind,
		  const struct core_id *id)
{
	for (uint32_t i = 0; i < w->size; i++) {
		struct sim_event *e;

		if (w->rank[i].node != n || trainer_find(s, n, w->rank[i].session) == TRAINERS)
			continue;
		e = sim_at(s, sim_between(s, 10000, 300000), kind, n);
		e->session = w->rank[i].session;
		e->id = *id;
	}
}

/* All ranks come to the same learning rates by themselves, from the step and the attempt. A
 * careless one does not. */
static void trainer_lr(struct sim *s, struct sim_trainer *tr)
{
	bool gives = s->m->lr == LR_OWN ||
		     (s->m->lr == LR_BY_ATTEMPT && (tr->id.step + tr->id.attempt) % 2);

	if (s->faults && s->m->lr != LR_NONE && sim_chance(s, s->m->careless / 2))
		gives = !gives;
	tr->lr_nr = gives ? s->m->conf.groups_nr : 0;
	for (uint32_t g = 0; g < tr->lr_nr; g++)
		tr->lr[g] = 1e-3 * (double)(1 + (tr->id.step * 3 + tr->id.attempt) % 7) * (g + 1);
	if (s->faults && gives && sim_chance(s, s->m->careless / 2))
		tr->lr[tr->lr_nr - 1] *= 2;
	tr->clip = truth_clip(&tr->id);
	/* It draws nothing, so that seeds stay what they were before there was this. */
	if (s->faults && s->m->careless && truth_gradient(&tr->id, tr->session, 2000) % 64 == 0)
		tr->clip = tr->clip < 0 ? 0.25 : tr->clip > 0 ? -1 : 0.5;
}

static void trainer_compute(struct sim *s, uint32_t t)
{
	struct sim_trainer *tr = &s->m->trainer[t];
	uint64_t delay = sim_between(s, MS, 30 * MS);

	if (s->m->straggler_ns && s->faults && sim_chance(s, 100))
		delay += sim_between(s, 100 * MS, 2 * SEC);
	tr->state = TR_COMPUTING;
	tr->pushed = 0;
	trainer_lr(s, tr);
	tr->nan = s->faults && sim_chance(s, 40);
	tr->skip = s->faults && sim_chance(s, 20);
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		struct sim_event *e = sim_at(s, delay, SIM_PUSH, tr->node);

		e->session = tr->session;
		e->id = tr->id;
		e->chunk = s->m->chunks_nr - 1 - c;
		delay += sim_between(s, 0, 3 * MS);
	}
}

static void trainer_push(struct sim *s, uint32_t t, const struct sim_event *e)
{
	struct sim_trainer *tr = &s->m->trainer[t];
	struct shell *sh = shell_of(s, tr->node);
	struct sim_event *ready;

	if (tr->state != TR_COMPUTING || !same(&tr->id, &e->id) || !sh->running ||
	    !same(&sh->id, &e->id))
		return; /* The daemon refuses a push of an attempt that is over. */
	tr->arena[e->chunk] = (struct cell){.id = e->id,
					    .hash = truth_gradient(&e->id, tr->session, e->chunk),
					    .nan = tr->nan && e->chunk == 0};
	shell_pushed(s, tr->node, e->chunk);
	if (++tr->pushed < s->m->chunks_nr)
		return;
	ready = sim_at(s, sim_between(s, 0, 5 * MS), SIM_READY, tr->node);
	ready->session = tr->session;
	ready->id = tr->id;
}

static void trainer_ready(struct sim *s, uint32_t t)
{
	struct sim_trainer *tr = &s->m->trainer[t];
	const struct shell *sh = shell_of(s, tr->node);
	struct sim_session *ses = &s->m->session[tr->session];
	struct sim_gave *gave;
	struct core_event ready = {.type = CORE_EV_READY, .session = tr->session, .id = tr->id};

	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (sh->image[c] + 1 != tr->id.step)
			sim_fail(s, "image_open",
				 "trainer %u read step %llu and finds chunk %u at %llu before its "
				 "commit",
				 t, (unsigned long long)tr->id.step - 1, c,
				 (unsigned long long)sh->image[c]);
	}
	if (s->faults && sim_chance(s, 15)) {
		ready.type = CORE_EV_ABANDON;
		ready.why = "bad data";
		tr->state = TR_IDLE;
		node_event(s, tr->node, &ready);
		return;
	}
	tr->state = TR_READY;
	ready.weight = s->faults && sim_chance(s, 30) ? 0 : 1 + t;
	ready.lr = tr->lr;
	ready.lr_nr = tr->lr_nr;
	ready.clip = tr->clip < 0 ? NULL : &tr->clip;
	ready.skip = tr->skip;
	gave = &ses->gave[ses->gave_nr++ % GAVE];
	gave->id = tr->id;
	gave->at = s->now;
	gave->weight = ready.weight;
	memcpy(gave->lr, tr->lr, sizeof(gave->lr));
	gave->lr_nr = tr->lr_nr;
	gave->clip = tr->clip;
	for (uint32_t i = 0; i < CORE_VALUES_NR; i++)
		gave->values[i] = truth_value(&tr->id, tr->session, i);
	ready.values = tr->session % 5 ? gave->values : NULL;
	gave->nan = tr->nan;
	gave->skip = tr->skip;
	truth_ready(s, ses);
	node_event(s, tr->node, &ready);
}

/* Computing starts when the image has the step before. A node that missed an image write asks the
 * chunk's primary. */
static void trainer_read(struct sim *s, uint32_t t)
{
	struct sim_trainer *tr = &s->m->trainer[t];
	const struct sim_node *nd = &s->node[tr->node];
	struct shell *sh = shell_of(s, tr->node);
	bool all = true;

	if (!sh->running || !same(&sh->id, &tr->id))
		return;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		uint16_t has = place_primary(&sh->place, c), from;
		const struct shell *owner;

		if (sh->image[c] + 1 >= tr->id.step)
			continue;
		all = false;
		if (has >= NODES || has == nd->self || !nd->link[has])
			continue;
		from = nd->end[has];
		owner = shell_of(s, from);
		if (s->node[from].alive && owner->generation == sh->generation &&
		    owner->image[c] + 1 == tr->id.step)
			sh->image[c] = owner->image[c];
	}
	if (all) {
		trainer_compute(s, t);
	} else {
		struct sim_event *e = sim_at(s, 5 * MS, SIM_TRAINER_READ, tr->node);

		e->session = tr->session;
		e->id = tr->id;
	}
}

void trainer_event(struct sim *s, const struct sim_event *e)
{
	struct core_event gone = {.type = CORE_EV_GONE,
				  .trainer = {.session = e->session, .leave = e->epoch},
				  .why = "closed its socket"};
	uint32_t t = trainer_find(s, e->node, e->session);
	struct sim_trainer *tr = &s->m->trainer[t < TRAINERS ? t : 0];

	if (e->kind == SIM_GONE) {
		node_event(s, e->node, &gone);
		return;
	}
	if (t == TRAINERS)
		return;
	if (tr->stopped) { /* What it is told waits in its socket, and it does nothing itself. */
		struct sim_event *later = sim_at(s, 50 * MS, e->kind, e->node);

		later->session = e->session;
		later->id = e->id;
		later->chunk = e->chunk;
		return;
	}
	if (e->kind == SIM_TRAINER_BEGIN) {
		if (core_id_cmp(&e->id, &tr->id) < 0)
			return; /* Its socket keeps the order, and this queue does not. */
		tr->state = TR_READING;
		tr->id = e->id;
		trainer_read(s, t);
		return;
	}
	if (e->kind == SIM_TRAINER_RESULT && !tr->id.step)
		sim_fail(s, "told_stays_true",
			 "trainer %u is told of step %llu, in which it had no part", t,
			 (unsigned long long)e->id.step);
	if (!same(&tr->id, &e->id))
		return;
	if (e->kind == SIM_TRAINER_READ && tr->state == TR_READING)
		trainer_read(s, t);
	else if (e->kind == SIM_PUSH)
		trainer_push(s, t, e);
	else if (e->kind == SIM_READY && tr->state == TR_COMPUTING &&
		 shell_of(s, e->node)->running && same(&shell_of(s, e->node)->id, &tr->id))
		trainer_ready(s, t);
	else if (e->kind == SIM_TRAINER_ENDED || e->kind == SIM_TRAINER_RESULT)
		tr->state = TR_IDLE;
}
