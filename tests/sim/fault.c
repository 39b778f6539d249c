/* SPDX-License-Identifier: Apache-2.0 */
/* What a seed decides: the shape of the cluster, and what goes wrong in the first seconds.
 * Processes crash, end when asked, stop and start again. Links break. Trainers die, leave and hang.
 * Then everything heals, and the run must get on, which the checker `liveness` watches. Seed 0 has
 * no faults and no orders, and seed 1 has no faults. */
#include "sim/sim.h"

#include <string.h>

#define HEAL_NS (90 * SEC)

static void fault_next(struct sim *s)
{
	if (s->now < s->faults_end)
		sim_at(s, sim_between(s, 5 * MS, 400 * MS), SIM_FAULT, NOWHERE);
}

static uint16_t fault_not_lead(struct sim *s)
{
	uint16_t n = (uint16_t)sim_between(s, 0, s->nodes_nr - 2u);

	return n < s->lead ? n : n + 1;
}

static void fault_shape_schedule(struct sim *s, struct schedule_conf *conf)
{
	static const enum schedule_id ids[] = {SCHEDULE_NONE,          SCHEDULE_NONE,
					       SCHEDULE_ONE_CYCLE,     SCHEDULE_WARMUP,
					       SCHEDULE_LR_RANGE_TEST, SCHEDULE_NONE};

	conf->id = ids[sim_between(s, 0, NR(ids) - 1)];
	conf->lr = 1e-3;
	if (conf->id == SCHEDULE_NONE)
		return;
	for (uint32_t i = 0; i < SCHEDULE_PARAM_NR; i++)
		conf->param[i] = schedule_row(conf->id)->param[i].value;
	/* The cycles are short, so that each part is run. */
	conf->param[SCHEDULE_CYCLE_MIN_LR] = 1e-4;
	conf->param[SCHEDULE_CYCLE_MAX_LR] = conf->param[SCHEDULE_WARMUP_MAX_LR] = 2e-3;
	conf->param[SCHEDULE_CYCLE_FIRST_STEP_SIZE] = conf->param[SCHEDULE_CYCLE_SECOND_STEP_SIZE] =
		8;
	conf->param[SCHEDULE_WARMUP_NUM_STEPS] = conf->param[SCHEDULE_LR_RANGE_TEST_STEP_SIZE] = 16;
}

static void fault_shape_record(struct sim *s, struct record_conf *conf)
{
	static const double factors[] = {1, 0.5, 2}, clips[] = {0, 1, 1e-3},
			    predivides[] = {0, 0, 2, 0.5};

	conf->optim = optim_row(sim_chance(s, 700) ? OPTIM_ADAMW : OPTIM_SGD);
	conf->groups_nr = (uint32_t)sim_between(s, 1, GROUPS);
	conf->clip = clips[sim_between(s, 0, NR(clips) - 1)];
	conf->predivide = predivides[sim_between(s, 0, NR(predivides) - 1)];
	conf->dynamic_scale = s->m->fp16;
	conf->initial_scale = s->m->fp16 ? 65536 : 1;
	conf->min_scale = 0x1p-40;
	conf->scale_window = 4;
	conf->hysteresis = 2;
	for (uint32_t g = 0; g < conf->groups_nr; g++) {
		optim_defaults(conf->optim, conf->hyper[g]);
		conf->lr_factor[g] = factors[sim_between(s, 0, NR(factors) - 1)];
		conf->hyper[g][HYPER_LR] = 1e-3 * conf->lr_factor[g];
	}
}

/* bare: the coordinator holds no chunk of the model and has no trainer, or hardly any, so that it
 * may start again without loss. */
static void fault_shape_model(struct sim *s, bool bare, uint32_t away)
{
	struct sim_model *m = s->m;
	bool may = s->nodes_nr > 1;

	m->chunks_nr = (uint32_t)sim_between(s, 1, CHUNKS);
	m->trainers_nr = (uint32_t)sim_between(s, 1, TRAINERS);
	m->min_world = (uint32_t)sim_between(s, 1, m->trainers_nr);
	m->max_world = (uint32_t)sim_between(s, m->min_world, m->trainers_nr);
	for (uint32_t c = 0; c < m->chunks_nr; c++)
		m->owner[c] = bare && may ? fault_not_lead(s)
					  : (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);
	for (uint32_t t = 0; t < m->trainers_nr; t++)
		m->trainer[t].node = bare && may && sim_chance(s, away)
					     ? fault_not_lead(s)
					     : (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);
	m->fp16 = sim_chance(s, 500);
	m->orders.on = sim_chance(s, 700);
	m->conf.max_skips = m->orders.on && sim_chance(s, 300) ? (uint32_t)sim_between(s, 1, 3) : 0;
	m->lr = sim_chance(s, 400) ? (sim_chance(s, 500) ? LR_OWN : LR_BY_ATTEMPT) : LR_NONE;
	m->careless = sim_chance(s, 300) ? (uint32_t)sim_between(s, 10, 600) : 0;
	fault_shape_schedule(s, &m->conf.schedule);
	fault_shape_record(s, &m->conf);
}

static void fault_shape(struct sim *s)
{
	s->nodes_nr = (uint16_t)sim_between(s, 1, NODES);
	s->lead = (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);
	s->models_nr = sim_chance(s, 200) ? (uint16_t)sim_between(s, 2, MODELS) : 1;
	s->holders_crash = sim_chance(s, 500);
	s->slow = (uint16_t)sim_between(s, 0, 2 * NODES);
	s->reorder = sim_chance(s, 300);
	s->loss = sim_chance(s, 600) ? (uint32_t)sim_between(s, 0, 80) : 0;
	s->copy = sim_chance(s, 600) ? (uint32_t)sim_between(s, 0, 80) : 0;
	s->late = sim_chance(s, 600) ? (uint32_t)sim_between(s, 0, 60) : 0;
	s->warm = sim_chance(s, 700) ? (uint32_t)sim_between(s, 300, 1300) : 0;
	s->dies = sim_chance(s, 600) ? (uint32_t)sim_between(s, 1, 6) : 0;
	s->zombies = s->nodes_nr > 1 && sim_chance(s, 300) ? (uint32_t)sim_between(s, 100, 600) : 0;
	s->put_back = sim_chance(s, 150) ? (uint32_t)sim_between(s, 50, 300) : 0;
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->m = &s->model[i];
		memset(s->m, 0, sizeof(*s->m));
		s->m->index = i;
		fault_shape_model(s, sim_chance(s, s->zombies ? 900 : 400), s->zombies ? 950 : 700);
	}
}

static void fault_plain(
	struct sim *s) /* Two nodes that share everything, three trainers, no faults at all. */
{
	s->nodes_nr = 2;
	s->models_nr = 1;
	s->lead = 0;
	s->m = &s->model[0];
	s->m->chunks_nr = 2;
	s->m->trainers_nr = s->m->min_world = s->m->max_world = 3;
	for (uint16_t i = 0; i < 3; i++) {
		s->m->owner[i] = i % 2;
		s->m->trainer[i].node = i % 2;
	}
	s->reorder = false;
	s->loss = s->copy = s->late = s->m->conf.max_skips = s->m->careless = s->warm = s->dies =
		s->zombies = s->put_back = 0;
	s->m->orders.on = s->m->orders.script = s->seed == 1;
}

void fault_start(struct sim *s)
{
	fault_shape(s);
	if (s->seed <= 1)
		fault_plain(s);
	s->faults = s->seed > 1;
	s->faults_end = s->faults ? sim_between(s, 3, 8) * SEC : 0;
	for (uint16_t i = 0; i < SLOTS; i++)
		s->node[i].self = i == ZOMBIE ? s->lead : i;
	for (uint16_t i = 0; i < s->nodes_nr; i++)
		node_start(s, i);
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->m = &s->model[i];
		for (uint32_t t = 0; t < s->m->trainers_nr; t++)
			trainer_spawn(s, t);
		sim_at(s, 5 * MS, SIM_WRITE, NOWHERE);
		sim_at(s, SEC, SIM_WATCH, NOWHERE);
		if (s->m->orders.on)
			sim_at(s, 10 * MS, SIM_ORDER, NOWHERE);
	}
	if (s->faults)
		sim_at(s, 20 * MS, SIM_FAULT, NOWHERE);
}

static void fault_heal(struct sim *s)
{
	sim_trace(s, "FAULTS CEASE");
	s->faults = false;
	s->reorder = false;
	s->healed_at = s->now;
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->model[i].healed_commits = 0;
		s->model[i].progress_at = s->now;
	}
	if (s->node[ZOMBIE].alive)
		node_crash(s, ZOMBIE, false);
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (s->node[n].alive && s->node[n].stopping)
			node_crash(s, n, true);
		if (!s->node[n].alive)
			node_start(s, n);
	}
	link_heal(s);
}

/* The process gets SIGTERM first. The core hears of it, and the process ends soon, whatever it
 * still waits for. */
static void fault_term(struct sim *s, uint16_t n)
{
	struct core_event stop = {.type = CORE_EV_STOP, .why = "SIGTERM"};

	sim_trace(s, "n%u HEARS SIGTERM", n);
	s->node[n].stopping = true;
	link_tell(s, n, &stop);
	sim_at(s, sim_between(s, 0, 400 * MS), SIM_END, NOWHERE)->node = n;
}

static void fault_die(struct sim *s, uint16_t n)
{
	bool asked = s->seed % 8 == 7 && s->node[n].alive && !s->node[n].paused &&
		     !s->node[n].stopping; /* Other seeds replay as before. */

	if (n == s->lead && s->zombies && sim_chance(s, s->zombies) && zombie_rises(s))
		return;
	if (asked)
		fault_term(s, n);
	else
		fault_crash(s, n);
}

void fault_end(struct sim *s, uint16_t n)
{
	if (s->node[n].alive && n == ZOMBIE)
		node_crash(s, n, false);
	else if (s->node[n].alive && s->node[n].stopping && !s->node[n].paused)
		fault_crash(s, n);
	else if (s->node[n].alive && s->node[n].stopping)
		sim_at(s, 10 * MS, SIM_END, NOWHERE)->node = n;
}

/* A node loses what it held only where the seed lets holders lose it. The coordinator, which may
 * hold nothing, can always lose it. */
void fault_crash(struct sim *s, uint16_t n)
{
	bool whole = sim_chance(s, s->warm) || !(s->holders_crash || n == s->lead);

	if (!s->node[n].alive || s->node[n].paused)
		return;
	node_crash(s, n, whole && n != ZOMBIE);
	if (n != ZOMBIE)
		sim_at(s, sim_between(s, 0, sim_chance(s, 250) ? 4 * SEC : 200 * MS), SIM_START,
		       NOWHERE)
			->node = n;
}

/* SIGSTOP. Other nodes may notice it and close the link. */
static void fault_stop(struct sim *s, uint16_t n)
{
	if (!s->node[n].alive || s->node[n].paused)
		return;
	s->node[n].paused = true;
	s->node[n].resume_at = s->now + sim_between(s, MS, sim_chance(s, 200) ? 3 * SEC : 300 * MS);
	sim_trace(s, "n%u STOPS until %.6f", n, (double)s->node[n].resume_at / (double)SEC);
	sim_at(s, s->node[n].resume_at - s->now, SIM_RESUME, n);
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		if (i != n && sim_chance(s, 300))
			link_break(s, n, i);
	}
}

/* A trainer stops, and the deadline must expel it. */
static void fault_hang(struct sim *s, uint32_t t)
{
	if (s->m->trainer[t].state != TR_DEAD && s->m->trainers_nr > s->m->min_world)
		s->m->trainer[t].stopped = true;
}

static void fault_leave(struct sim *s, uint32_t t)
{
	struct sim_event *e;

	if (s->m->trainer[t].state == TR_DEAD || !s->node[s->m->trainer[t].node].alive)
		return;
	sim_trace(s, "trainer %u LEAVES", t);
	e = sim_at(s, 1000, SIM_GONE, s->m->trainer[t].node);
	e->session = s->m->trainer[t].session;
	e->epoch = 1;
}

void fault_event(struct sim *s, const struct sim_event *e)
{
	uint16_t n = (uint16_t)sim_between(s, 0, s->nodes_nr - 1u),
		 m = (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);
	uint64_t what = sim_between(s, 0, 99);
	uint32_t t;

	(void)e;
	s->m = &s->model[s->models_nr > 1 ? sim_between(s, 0, s->models_nr - 1u) : 0];
	t = (uint32_t)sim_between(s, 0, s->m->trainers_nr - 1);
	if (s->now >= s->faults_end) {
		fault_heal(s);
		return;
	}
	if (what < 8 && (s->holders_crash || s->warm))
		fault_die(s, n);
	else if (what < 16)
		fault_die(s, s->lead);
	else if (what < 28)
		fault_stop(s, sim_chance(s, 400) ? s->lead : n);
	else if (what < 48 && n != m)
		link_break(s, n, m);
	else if (what < 72)
		trainer_die(s, t, "closed its socket");
	else if (what < 80)
		fault_leave(s, t);
	else if (what < 82)
		fault_hang(s, t);
	else if (what < 85 && n != m)
		link_conn(s, n, m)->cut = true;
	else if (what < 90 && n != m)
		link_conn(s, n, m)->cut = false;
	if (s->now + 400 * MS >= s->faults_end)
		sim_at(s, s->faults_end - s->now, SIM_FAULT, NOWHERE);
	else
		fault_next(s);
}

/* Runs once a second. A node that waits must be able to say for whom, and a healed cluster must get
 * on. */
void fault_watch(struct sim *s)
{
	const struct sim_node *nd = &s->node[s->lead];
	struct core_state st;

	sim_at(s, SEC, SIM_WATCH, NOWHERE);
	if (s->faults)
		return;
	if (s->now > s->m->progress_at + HEAL_NS) {
		core_state(shell_of(s, s->lead)->core, &st);
		sim_fail(s, "liveness",
			 "no step committed for %llu s after the faults ceased; the coordinator "
			 "waits for: %s",
			 (unsigned long long)(HEAL_NS / SEC), st.waits);
	}
	if (!nd->alive || nd->paused || s->now < s->m->progress_at + 3 * SEC)
		return;
	core_state(shell_of(s, s->lead)->core, &st);
	if (st.sealed && !st.paused && !st.waits[0])
		sim_fail(s, "deadline_named", "nothing happens and nobody is waited for");
}
