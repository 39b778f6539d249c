/* SPDX-License-Identifier: Apache-2.0 */
/* What a seed decides: the shape of the cluster, and what goes wrong in the first seconds.
 * Processes crash, end when asked, stop and start again. Links break. Trainers die, leave and hang.
 * Then everything heals, and the run must get on, which the checker `liveness` watches. Seed 0 has
 * no faults and no orders, and seed 1 has no faults. */
#include "sim/sim.h"

#include <string.h>

/* Longer than a node is kept out because it had no link to another one (hear.c: 64 times). What can
 * be said of shorter times is in lively.c. */
#define HEAL_NS (100 * RECONNECT_NS)

static void fault_next(struct sim *s)
{
	if (s->now < s->faults_end)
		sim_at(s, sim_between(s, 5 * MS, s->gap), SIM_FAULT, NOWHERE);
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

/* The holders of a chunk are neighbours. Some chunks have fewer copies than others. */
static bool fault_shape_copies(struct sim *s)
{
	struct sim_model *m = s->m;
	uint64_t most = s->nodes_nr < COPIES ? s->nodes_nr : COPIES, nr;
	bool uneven;

	if (!s->copies)
		return false;
	nr = sim_chance(s, 850) ? sim_between(s, 2, most) : 1;
	uneven = sim_chance(s, 200);
	for (uint32_t c = 0; c < m->chunks_nr; c++) {
		uint64_t here = uneven ? sim_between(s, 1, nr) : nr;

		m->holders[c] = 0;
		for (uint64_t i = 0; i < here; i++)
			m->holders[c] |= 1ull << (m->primary[c] + i) % s->nodes_nr;
	}
	return nr > 1;
}

#define SLOW_SEEDS (1u << 25 | 1u << 27 | 1u << 30) /* Of 32. Some of them have copies. */

/* bare: the coordinator holds no chunk of the model and has no trainer, or hardly any, so that it
 * may start again without loss. */
static void fault_shape_model(struct sim *s, bool bare, uint32_t away)
{
	struct sim_model *m = s->m;
	bool may = s->nodes_nr > 1;

	m->chunks_nr = (uint32_t)sim_between(s, 1, CHUNKS);
	m->trainers_nr = (uint32_t)sim_between(s, 1, FEW_TRAINERS);
	m->min_world = (uint32_t)sim_between(s, 1, m->trainers_nr);
	m->max_world = (uint32_t)sim_between(s, m->min_world, m->trainers_nr);
	for (uint32_t c = 0; c < m->chunks_nr; c++)
		m->primary[c] = bare && may ? fault_not_lead(s)
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
	/* Only these seeds draw any number for it, so that all others are what they were. */
	if (s->seed > 1 && SLOW_SEEDS >> s->seed % 32 & 1)
		m->straggler_ns = sim_between(s, 300 * MS, 900 * MS);
	m->place = place_of(m->primary, fault_shape_copies(s) ? m->holders : NULL, m->chunks_nr);
}

/* Where copies are on several nodes, faults are further apart, so that nodes catch up between them.
 * An old view that is put back there could pass for the newest one: its members may all be nodes
 * that have left since. */
static void fault_shape_more(struct sim *s)
{
	s->put_back = 0;
	s->holders_crash = sim_chance(s, 800);
	s->gap = sim_between(s, 200 * MS, 2 * SEC);
	s->buries = sim_chance(s, 300);
	if (sim_chance(s, 300))
		s->late = (uint32_t)sim_between(s, 50, 300);
	s->damage = sim_chance(s, 300) ? (uint32_t)sim_between(s, 1, 10) : 0;
}

/* An operator moves chunks in these seeds. In half of their models some nodes begin without
 * any. */
static void fault_shape_moves(struct sim *s)
{
	struct sim_model *m = s->m;
	uint64_t hold = sim_between(s, 1, s->nodes_nr), copies;

	if (sim_chance(s, 500))
		return;
	for (uint32_t c = 0; c < m->chunks_nr; c++) {
		copies = (uint64_t)__builtin_popcountll(m->holders[c]);
		m->primary[c] = (uint16_t)(m->primary[c] % hold);
		m->holders[c] = 0;
		for (uint64_t i = 0; i < copies && i < hold; i++)
			m->holders[c] |= 1ull << (m->primary[c] + i) % hold;
	}
	m->place = place_of(m->primary, m->place.holders ? m->holders : NULL, m->chunks_nr);
}

/* A node that leads on and a view that is put back are matters of the register there. */
static void fault_shape_elected(struct sim *s)
{
	s->zombies = s->put_back = 0;
	s->quorum = s->seed > 1 ? sim_chance(s, 500) : s->seed == 1;
	if (s->nodes_nr < (s->quorum ? 3 : 2))
		s->nodes_nr = s->first_nr = (uint16_t)sim_between(s, s->quorum ? 3 : 2, 4);
}

#define MANY_SEEDS (1ull << 39 | 1ull << 40 | 1ull << 41 | 1ull << 46) /* Of 64. */

/* In these seeds the models have up to 32 trainers together. */
static void fault_shape_many(struct sim *s)
{
	uint32_t all = (uint32_t)(FEW_TRAINERS + 1 + rng_below(&s->more, TRAINERS - FEW_TRAINERS));

	for (uint16_t i = 0; i < s->models_nr; i++) {
		struct sim_model *m = &s->model[i];
		uint32_t nr = all / s->models_nr;

		if (nr <= m->trainers_nr)
			continue;
		for (uint32_t t = m->trainers_nr; t < nr; t++)
			m->trainer[t].node = (uint16_t)rng_below(&s->more, s->first_nr);
		m->trainers_nr = nr;
		m->min_world = (uint32_t)(1 + rng_below(&s->more, nr / 2));
		m->max_world =
			(uint32_t)(m->min_world + rng_below(&s->more, nr - m->min_world + 1));
	}
}

static void fault_shape(struct sim *s)
{
	s->copies = s->seed % 4 >= 2;
	/* Nodes join in these seeds. In the first two kinds there is one copy of each chunk, and in
	 * the second and the last one chunks move. */
	s->joins = s->seed % 16 == 4 || s->seed % 32 == 9 || s->seed % 32 == 18 ||
		   s->seed % 32 == 26 || s->seed % 16 == 14;
	s->moves = s->seed % 8 == 6 || s->seed % 16 == 11 || s->seed % 32 == 9;
	if (s->copies)
		s->nodes_nr = (uint16_t)sim_between(s, 2, sim_chance(s, 150) ? NODES : 5);
	else
		s->nodes_nr = (uint16_t)sim_between(s, 1, 4);
	s->lead = (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);
	s->models_nr = sim_chance(s, 200) ? (uint16_t)sim_between(s, 2, MODELS) : 1;
	s->holders_crash = sim_chance(s, 500);
	s->slow = (uint16_t)sim_between(s, 0, 8);
	s->reorder = sim_chance(s, 300);
	s->loss = sim_chance(s, 600) ? (uint32_t)sim_between(s, 0, 80) : 0;
	s->copy = sim_chance(s, 600) ? (uint32_t)sim_between(s, 0, 80) : 0;
	s->late = sim_chance(s, 600) ? (uint32_t)sim_between(s, 0, 60) : 0;
	s->warm = sim_chance(s, 700) ? (uint32_t)sim_between(s, 300, 1300) : 0;
	s->dies = sim_chance(s, 600) ? (uint32_t)sim_between(s, 1, 6) : 0;
	s->zombies = s->nodes_nr > 1 && sim_chance(s, 300) ? (uint32_t)sim_between(s, 100, 600) : 0;
	s->put_back = sim_chance(s, 150) ? (uint32_t)sim_between(s, 50, 300) : 0;
	s->gap = 400 * MS;
	s->grave = s->stranger = NOWHERE;
	s->first_nr = s->nodes_nr;
	if (s->joins) /* The members of an old view may all be nodes that have left since. */
		s->put_back = 0;
	if (s->copies)
		fault_shape_more(s);
	if (s->elected)
		fault_shape_elected(s);
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->m = &s->model[i];
		memset(s->m, 0, offsetof(struct sim_model, session[1]));
		s->m->index = i;
		fault_shape_model(s, sim_chance(s, s->zombies ? 900 : 400), s->zombies ? 950 : 700);
		if (s->moves)
			fault_shape_moves(s);
	}
	if (MANY_SEEDS >> s->seed % 64 & 1)
		fault_shape_many(s);
}

static void fault_plain(
	struct sim *s) /* Two nodes that share everything, three trainers, no faults at all. */
{
	s->nodes_nr = s->first_nr = 2;
	s->models_nr = 1;
	s->lead = 0;
	s->m = &s->model[0];
	s->m->chunks_nr = 2;
	s->m->trainers_nr = s->m->min_world = s->m->max_world = 3;
	for (uint16_t i = 0; i < 3; i++) {
		s->m->primary[i] = i % 2;
		s->m->trainer[i].node = i % 2;
	}
	s->reorder = false;
	s->loss = s->copy = s->late = s->m->conf.max_skips = s->m->careless = s->warm = s->dies =
		s->zombies = s->put_back = 0;
	s->m->place = place_of(s->m->primary, NULL, s->m->chunks_nr);
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
	if (s->joins)
		joins_shape(s);
	clocks_start(s);
	one_way_start(s);
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
		if (s->moves)
			sim_at(s, 15 * MS, SIM_MOVE, NOWHERE);
		if (s->copies)
			sim_at(s, 100 * MS, SIM_ODD, NOWHERE);
	}
	if (s->elected)
		register_started(s);
	if (s->faults)
		sim_at(s, 20 * MS, SIM_FAULT, NOWHERE);
	else
		lively_begin(s);
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
		if (s->node[n].alive && (s->node[n].stopping || s->node[n].ends))
			node_crash(s, n, true);
		if (!s->node[n].alive && n != s->grave)
			node_start(s, n);
	}
	link_heal(s);
	lively_begin(s);
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
	else if (!s->node[n].alive || !(s->node[n].stopping || s->node[n].ends))
		return;
	else if (!s->node[n].paused)
		fault_crash(s, n);
	else
		sim_at(s, 10 * MS, SIM_END, NOWHERE)->node = n;
}

/* A node loses what it held only where the seed lets holders lose it. The coordinator, which may
 * hold nothing, can always lose it. */
void fault_crash(struct sim *s, uint16_t n)
{
	bool whole = sim_chance(s, s->warm) || !(s->holders_crash || (n == s->lead && !s->elected));

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
	if (s->copies)
		sim_at(s, SILENT_NS, SIM_SILENCE, NOWHERE)->node = n;
}

/* Nobody has heard anything of the process for so long that its links end. */
void fault_silence(struct sim *s, const struct sim_event *e)
{
	for (uint16_t i = 0; i < s->nodes_nr && s->node[e->node].paused; i++) {
		if (i != e->node)
			link_break(s, e->node, i);
	}
}

/* A link falls and stays down, between two nodes or between one and all others. */
static void fault_cut(struct sim *s, uint16_t n, uint16_t m, bool all)
{
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		if (i == n || (i != m && !all))
			continue;
		sim_trace(s, "n%u and n%u ARE CUT OFF from each other", n, i);
		link_conn(s, n, i)->cut = true;
		link_break(s, n, i);
	}
}

static void fault_mend(struct sim *s)
{
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		for (uint16_t j = i + 1; j < s->nodes_nr; j++)
			s->conn[i][j].cut = false;
	}
}

/* The node dies for good. Its trainers are started elsewhere. */
static void fault_bury(struct sim *s, uint16_t n)
{
	sim_trace(s, "n%u DIES FOR GOOD", n);
	s->grave = n;
	node_crash(s, n, false);
}

/* Faults that matter where a view goes on without a member. */
static void fault_more(struct sim *s, uint16_t n, uint16_t m, uint64_t what)
{
	if (what < 93 && n != m)
		fault_cut(s, n, m, false);
	else if (what < 95)
		fault_cut(s, n, m, true);
	else if (what < 98)
		fault_mend(s);
	else if ((n != s->lead || s->elected) && s->grave == NOWHERE && s->buries &&
		 s->node[n].alive)
		fault_bury(s, n);
	else
		fault_crash(s, n);
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
	else if (what >= 90 && s->copies)
		fault_more(s, n, m, what);
	else if (what >= 97 && n >= s->first_nr && s->grave == NOWHERE && s->node[n].alive)
		fault_bury(s, n); /* It may have no chunk. */
	if (s->now + s->gap >= s->faults_end)
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
	if (s->faults || truth_excused(s))
		return;
	if (s->now > s->healed_at + HEAL_NS && !truth_all_back(s))
		sim_fail(s, "liveness", "not every node counts %llu s after the faults ceased",
			 (unsigned long long)(HEAL_NS / SEC));
	if (s->now > s->m->progress_at + HEAL_NS && !elect_acts(s))
		sim_fail(s, "liveness", "nobody coordinates %llu s after the faults ceased",
			 (unsigned long long)(HEAL_NS / SEC));
	if (s->now > s->m->progress_at + HEAL_NS) {
		core_state(shell_of(s, s->lead)->core, &st);
		sim_fail(s, "liveness",
			 "no step committed for %llu s after the faults ceased; the coordinator "
			 "waits for: %s",
			 (unsigned long long)(HEAL_NS / SEC), st.waits);
	}
	if (!nd->alive || nd->paused || s->now < s->m->progress_at + 3 * SEC || !elect_acts(s))
		return;
	core_state(shell_of(s, s->lead)->core, &st);
	if (st.sealed && !st.paused && !st.waits[0])
		sim_fail(s, "deadline_named", "nothing happens and nobody is waited for");
}
