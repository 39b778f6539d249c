/* SPDX-License-Identifier: Apache-2.0 */
/* The checker `liveness`, as far as it is about time. When nothing is wrong any more, every trainer
 * has a part in a committed step again and again, within 10 times heartbeat_timeout, and every node
 * is a member that counts within that time. If a node died for good, lost_timeout comes on top. The
 * event table in sim.c looks at each model every 50 ms from the end of the faults on. What counts
 * is the time in which the model could have gone on. It stands still while a process is down or
 * stands still, while an operator holds or pauses the model, and while two nodes are cut off from
 * each other (cuts.c has a bound for that). Each trainer that hangs must be put out within
 * step_timeout on top of that. One for which there is no place in a full world may wait for as long
 * as it likes. LOST begins all clocks anew. */
#include "sim/sim.h"

#include "core/inner.h"

#define LOOK_NS  (50 * MS)
#define BOUND_NS (10 * SILENT_NS)

/* A node that died for good may be one that is waited for (weights that are to be written). */
static uint64_t lively_bound(const struct sim *s)
{
	return BOUND_NS + (s->grave == NOWHERE ? 0 : AWAY_NS);
}

void lively_begin(struct sim *s)
{
	for (uint16_t i = 0; i < s->models_nr; i++) {
		struct sim_model *m = &s->model[i];

		m->lively = (struct sim_lively){.losts = m->losts, .looks = m->lively.looks};
		for (uint32_t t = 0; t < m->trainers_nr; t++) {
			m->trainer[t].owed_ns = 0;
			m->trainer[t].committed = false;
		}
		s->m = m;
		if (!m->lively.looks)
			sim_at(s, LOOK_NS, SIM_LIVELY, NOWHERE);
		m->lively.looks = true;
	}
}

void lively_committed(struct sim *s, const struct record *r)
{
	for (uint32_t i = 0; i < r->world.size; i++) {
		struct sim_trainer *tr =
			&s->m->trainer[s->m->session[r->world.rank[i].session].trainer];

		tr->committed = true;
		tr->owed_ns = 0;
	}
	s->m->lively.full = r->world.size == s->m->max_world;
	/* Whoever hangs had no place in that world. */
	s->m->lively.hung_ns = s->m->lively.hung_nr = 0;
}

bool lively_over(const struct sim *s)
{
	for (uint32_t t = 0; t < s->m->trainers_nr && !s->m->lively.full; t++) {
		if (!s->m->trainer[t].committed)
			return false;
	}
	return true;
}

/* Is something still wrong, or does an operator want the model to stand still? */
static bool lively_excused(struct sim *s)
{
	struct core_state st;

	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (n != s->grave && (s->node[n].paused || !s->node[n].alive || clocks_stand(s, n)))
			return true;
	}
	if (s->faults || cuts_on(s) || s->m->orders.hold || truth_excused(s))
		return true;
	if (!s->node[s->lead].alive || !elect_acts(s))
		return false;
	core_state(shell_of(s, s->lead)->core, &st);
	return st.paused;
}

static uint32_t lively_hang(struct sim *s)
{
	uint32_t nr = 0;

	for (uint32_t t = 0; t < s->m->trainers_nr; t++)
		nr += s->m->trainer[t].state != TR_DEAD && s->m->trainer[t].stopped;
	return nr;
}

/* The trainers were told, and start again with the new weights. */
static void lively_lost(struct sim *s)
{
	s->m->lively.losts = s->m->losts;
	s->m->lively.away_ns = 0;
	for (uint32_t t = 0; t < s->m->trainers_nr; t++)
		s->m->trainer[t].owed_ns = 0;
}

/* The nodes that the coordinator keeps out for a while, because they had no link to another one
 * (hear.c does so for up to 64 times RECONNECT_NS). Their trainers wait, and all others do if there
 * are too few without them. */
static uint64_t lively_kept_out(struct sim *s)
{
	const struct core *c = shell_of(s, s->lead)->core;
	struct core_state st;

	if (!s->node[s->lead].alive || !elect_acts(s))
		return 0;
	core_state(c, &st);
	return st.too_few && c->coord.reports.kept ? UINT64_MAX : c->coord.reports.kept;
}

static void lively_fail(struct sim *s, uint32_t t, uint64_t owed_ns)
{
	struct core_state st = {.waits = "nobody coordinates"};

	if (s->node[s->lead].alive && elect_acts(s))
		core_state(shell_of(s, s->lead)->core, &st);
	sim_fail(s, "liveness",
		 "trainer %u of model %u had no part in a step for %.2f s in which nothing was "
		 "wrong; the coordinator waits for: %s",
		 t, s->m->index, (double)owed_ns / (double)SEC, st.waits);
}

void lively_look(struct sim *s, const struct sim_event *e)
{
	struct sim_lively *l = &s->m->lively;
	uint64_t out = lively_kept_out(s);
	uint32_t hang = lively_hang(s);

	(void)e;
	sim_at(s, LOOK_NS, SIM_LIVELY, NOWHERE);
	if (l->losts != s->m->losts)
		lively_lost(s);
	if (lively_excused(s))
		return;
	l->hung_ns = hang ? l->hung_ns + LOOK_NS : 0;
	l->hung_nr = hang > l->hung_nr ? hang : l->hung_nr;
	if (l->hung_ns > l->hung_nr * STEP_NS + lively_bound(s))
		lively_fail(s, 0, l->hung_ns);
	if (hang)
		return;
	l->away_ns = truth_all_back(s) || out ? 0 : l->away_ns + LOOK_NS;
	if (l->away_ns > lively_bound(s))
		sim_fail(
			s, "liveness",
			"not every node of model %u counts after %.2f s in which nothing was wrong",
			s->m->index, (double)l->away_ns / (double)SEC);
	for (uint32_t t = 0; t < s->m->trainers_nr; t++) {
		struct sim_trainer *tr = &s->m->trainer[t];

		tr->owed_ns = l->full || out >> tr->node & 1 ? 0 : tr->owed_ns + LOOK_NS;
		if (tr->owed_ns > lively_bound(s))
			lively_fail(s, t, tr->owed_ns);
	}
}
