/* SPDX-License-Identifier: Apache-2.0 */
/* What a seed decides: the shape of the cluster, and what goes wrong for the first seconds: processes crash, end when asked, stop and start
 * again, links break, trainers die, leave and hang. Then everything heals, and the run must get on (liveness). Seed 0 has no faults
 * and no orders, seed 1 has no faults. */
#include "sim/sim.h"

#include <string.h>

#define HEAL_NS (90 * SEC)

static void fault_next(struct sim *s)
{
	if (s->now < s->faults_end)
		sim_at(s, sim_between(s, 5 * MS, 400 * MS), SIM_FAULT, NODES);
}

static void fault_shape(struct sim *s)
{
	bool bare = sim_chance(s, 400); /* the coordinator holds no chunk: it may restart without loss */

	s->nodes_nr = (uint16_t)sim_between(s, 1, NODES);
	s->chunks_nr = (uint32_t)sim_between(s, 1, CHUNKS);
	s->trainers_nr = (uint32_t)sim_between(s, 1, TRAINERS);
	s->min_world = (uint32_t)sim_between(s, 1, s->trainers_nr);
	s->max_world = (uint32_t)sim_between(s, s->min_world, s->trainers_nr);
	for (uint32_t c = 0; c < s->chunks_nr; c++)
		s->owner[c] = bare && s->nodes_nr > 1 ? (uint16_t)sim_between(s, 1, s->nodes_nr - 1u)
						      : (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);
	for (uint32_t t = 0; t < s->trainers_nr; t++)
		s->trainer[t].node = (uint16_t)sim_between(s, bare && s->nodes_nr > 1 && sim_chance(s, 700), s->nodes_nr - 1u);
	s->holders_crash = sim_chance(s, 500);
	s->slow = (uint16_t)sim_between(s, 0, 2 * NODES);
	s->fp16 = sim_chance(s, 500);
	s->reorder = sim_chance(s, 300);
	s->loss = sim_chance(s, 600) ? (uint32_t)sim_between(s, 0, 80) : 0;
	s->copy = sim_chance(s, 600) ? (uint32_t)sim_between(s, 0, 80) : 0;
	s->late = sim_chance(s, 600) ? (uint32_t)sim_between(s, 0, 60) : 0;
	s->orders.on = sim_chance(s, 700);
	s->warm = sim_chance(s, 700) ? (uint32_t)sim_between(s, 300, 1300) : 0;
	s->dies = sim_chance(s, 600) ? (uint32_t)sim_between(s, 1, 6) : 0;
	s->max_skips = s->orders.on && sim_chance(s, 300) ? (uint32_t)sim_between(s, 1, 3) : 0;
}

static void fault_plain(struct sim *s) /* two nodes that share everything, three trainers, nothing goes wrong */
{
	s->nodes_nr = 2;
	s->chunks_nr = 2;
	s->trainers_nr = s->min_world = s->max_world = 3;
	for (uint16_t i = 0; i < 3; i++) {
		s->owner[i] = i % 2;
		s->trainer[i].node = i % 2;
	}
	s->reorder = false;
	s->loss = s->copy = s->late = s->max_skips = s->warm = s->dies = 0;
	s->orders.on = s->orders.script = s->seed == 1;
}

void fault_start(struct sim *s)
{
	fault_shape(s);
	if (s->seed <= 1)
		fault_plain(s);
	s->faults = s->seed > 1;
	s->faults_end = s->faults ? sim_between(s, 3, 8) * SEC : 0;
	for (uint16_t i = 0; i < s->nodes_nr; i++)
		node_start(s, i);
	for (uint32_t t = 0; t < s->trainers_nr; t++)
		trainer_spawn(s, t);
	sim_at(s, 5 * MS, SIM_WRITE, NODES);
	sim_at(s, SEC, SIM_WATCH, NODES);
	if (s->orders.on)
		sim_at(s, 10 * MS, SIM_ORDER, NODES);
	if (s->faults)
		sim_at(s, 20 * MS, SIM_FAULT, NODES);
}

static void fault_heal(struct sim *s)
{
	sim_trace(s, "FAULTS CEASE");
	s->faults = false;
	s->reorder = false;
	s->healed_commits = 0;
	s->healed_at = s->now;
	s->progress_at = s->now;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (s->node[n].alive && s->node[n].stopping)
			node_crash(s, n, true);
		if (!s->node[n].alive)
			node_start(s, n);
	}
	link_heal(s);
}

/* SIGTERM first: the core hears it, and the process ends before long, whatever it still waits for. */
static void fault_term(struct sim *s, uint16_t n)
{
	struct core_event stop = {.type = CORE_EV_STOP, .why = "SIGTERM"};

	sim_trace(s, "n%u HEARS SIGTERM", n);
	s->node[n].stopping = true;
	node_event(s, n, &stop);
	sim_at(s, sim_between(s, 0, 400 * MS), SIM_END, NODES)->node = n;
}

static void fault_die(struct sim *s, uint16_t n)
{
	bool asked =
		s->seed % 8 == 7 && s->node[n].alive && !s->node[n].paused && !s->node[n].stopping; /* other seeds: as they were */

	if (asked)
		fault_term(s, n);
	else
		fault_crash(s, n);
}

void fault_end(struct sim *s, uint16_t n)
{
	if (s->node[n].alive && s->node[n].stopping && !s->node[n].paused)
		fault_crash(s, n);
	else if (s->node[n].alive && s->node[n].stopping)
		sim_at(s, 10 * MS, SIM_END, NODES)->node = n;
}

/* Without what it held only where the seed lets holders lose it, and the coordinator, which may hold nothing. */
void fault_crash(struct sim *s, uint16_t n)
{
	bool whole = sim_chance(s, s->warm) || !(s->holders_crash || n == 0);

	if (!s->node[n].alive || s->node[n].paused)
		return;
	node_crash(s, n, whole);
	sim_at(s, sim_between(s, 0, sim_chance(s, 250) ? 4 * SEC : 200 * MS), SIM_START, NODES)->node = n;
}

static void fault_stop(struct sim *s, uint16_t n) /* SIGSTOP; others may notice and close the link */
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

static void fault_hang(struct sim *s, uint32_t t) /* a trainer that stops: the deadline must expel it */
{
	if (s->trainer[t].state != TR_DEAD && s->trainers_nr > s->min_world)
		s->trainer[t].stopped = true;
}

static void fault_leave(struct sim *s, uint32_t t)
{
	struct sim_event *e;

	if (s->trainer[t].state == TR_DEAD || !s->node[s->trainer[t].node].alive)
		return;
	sim_trace(s, "trainer %u LEAVES", t);
	e = sim_at(s, 1000, SIM_GONE, s->trainer[t].node);
	e->session = s->trainer[t].session;
	e->epoch = 1;
}

void fault_event(struct sim *s, const struct sim_event *e)
{
	uint16_t n = (uint16_t)sim_between(s, 0, s->nodes_nr - 1u), m = (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);
	uint32_t t = (uint32_t)sim_between(s, 0, s->trainers_nr - 1);
	uint64_t what = sim_between(s, 0, 99);

	(void)e;
	if (s->now >= s->faults_end) {
		fault_heal(s);
		return;
	}
	if (what < 8 && (s->holders_crash || s->warm))
		fault_die(s, n);
	else if (what < 16)
		fault_die(s, 0);
	else if (what < 28)
		fault_stop(s, sim_chance(s, 400) ? 0 : n);
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
		sim_at(s, s->faults_end - s->now, SIM_FAULT, NODES);
	else
		fault_next(s);
}

/* Once a second: who waits must be able to say for whom, and a healed cluster gets on. */
void fault_watch(struct sim *s)
{
	struct sim_node *nd = &s->node[0];
	struct core_state st;

	sim_at(s, SEC, SIM_WATCH, NODES);
	if (s->faults)
		return;
	if (s->now > s->progress_at + HEAL_NS) {
		core_state(nd->core, &st);
		sim_fail(s, "liveness", "no step committed for %llu s after the faults ceased; the coordinator waits for: %s",
			 (unsigned long long)(HEAL_NS / SEC), st.waits);
	}
	if (!nd->alive || nd->paused || s->now < s->progress_at + 3 * SEC)
		return;
	core_state(nd->core, &st);
	if (st.sealed && !st.paused && !st.waits[0])
		sim_fail(s, "deadline_named", "nothing happens and nobody is waited for");
}
