/* SPDX-License-Identifier: Apache-2.0 */
/* A register that is only a model: one value, and one node at a time that is elected to replace it.
 * It gives every nasty answer of the contract (cluster/source.h). A proposal is answered with
 * UNKNOWN, and has landed, lands later as long as nobody else is elected, or never. A node hears
 * late that it leads, or that it does not any more, so that two nodes believe that they lead. The
 * lease of a node that stands still ends, and it wakes up in the middle of what it did. A killed
 * leader's proposal may land until the next one is elected. All that is certain is what every
 * source promises: terms grow, the value that a new leader is given is the newest one, and nothing
 * of an older term lands after it was read. When the faults have ceased, nothing of this happens
 * any more. */
#include "sim/sim.h"

#include <stdlib.h>
#include <string.h>

void register_started(struct sim *s)
{
	if (s->quorum)
		voters_begin(s);
	else
		sim_at(s, sim_between(s, 0, 5 * MS), SIM_ELECT, NOWHERE);
}

static struct sim_event *register_at(struct sim *s, uint64_t delay, enum sim_kind kind,
				     struct sim_value *v)
{
	struct sim_event *e = sim_at(s, delay, kind, v->node);

	e->value = v;
	return e;
}

/* --- proposals --- */

void register_propose(struct sim *s, struct sim_value *v)
{
	uint64_t delay = s->faults && sim_chance(s, 50) ? sim_between(s, MS, 300 * MS)
							: sim_between(s, 200000, 15 * MS);

	if (s->quorum)
		voters_propose(s, v);
	else
		sim_at(s, delay, SIM_LAND, NOWHERE)->value = v;
}

static struct sim_value *register_copy(struct sim *s, const struct sim_value *v)
{
	struct sim_value *to = elect_value(s, v->node);

	memcpy(to, v, sizeof(*v) + s->models_nr * sizeof(v->view[0]));
	return to;
}

static void register_answer(struct sim *s, struct sim_value *v, enum sim_answer how, uint64_t delay)
{
	v->how = how;
	(void)register_at(s, delay, SIM_ANSWERED, v);
}

/* Could this proposal be written now? It has no effect any more once another node was elected. */
static enum sim_answer register_may(const struct sim *s, const struct sim_value *v)
{
	if (v->term != s->reg.term)
		return ANSWER_FENCED;
	return v->seq == s->reg.seq + 1 ? ANSWER_OK : ANSWER_CONFLICT;
}

/* A proposal that was answered with UNKNOWN lands after all, if it still can. */
void register_late(struct sim *s, const struct sim_event *e)
{
	if (register_may(s, e->value) == ANSWER_OK) {
		s->landed_late++;
		elect_lands(s, e->value);
	}
	free(e->value);
}

/* The proposal has reached the register. */
void register_land(struct sim *s, const struct sim_event *e)
{
	struct sim_value *v = e->value;
	enum sim_answer how = register_may(s, v);
	uint64_t what = s->faults ? sim_between(s, 0, 99) : 99,
		 soon = sim_between(s, 100000, 8 * MS), never = sim_between(s, 50 * MS, PROPOSE_NS);

	if (how != ANSWER_OK) {
		register_answer(s, v, what < 30 ? ANSWER_UNKNOWN : how, what < 30 ? never : soon);
		return;
	}
	if (what < 4) { /* It never lands. */
		register_answer(s, v, ANSWER_UNKNOWN, never);
	} else if (what < 10) {
		sim_at(s, sim_between(s, 10 * MS, 2 * SEC), SIM_LAND_LATE, NOWHERE)->value =
			register_copy(s, v);
		register_answer(s, v, ANSWER_UNKNOWN, never);
	} else if (what < 14) {
		register_answer(s, v, ANSWER_NOSPACE, soon);
	} else {
		elect_lands(s, v);
		if (what < 18)
			register_answer(s, v, ANSWER_UNKNOWN, never);
		else
			register_answer(s, v, ANSWER_OK, what < 24 ? never : soon);
	}
}

void register_answered(struct sim *s, const struct sim_event *e)
{
	elect_answer(s, e->value);
	free(e->value);
}

/* --- who leads --- */

void register_leading(struct sim *s, const struct sim_event *e)
{
	elect_leading(s, e->value);
	free(e->value);
}

void register_lost(struct sim *s, const struct sim_event *e)
{
	elect_lost(s, e->node, e->session);
}

/* Tells the node that it does not lead any more, but never before it was told that it does. */
static void register_ends(struct sim *s, uint64_t delay)
{
	uint64_t after = s->reg.told_at > s->now ? s->reg.told_at - s->now : 0;

	if (s->reg.term)
		sim_at(s, after + delay, SIM_LOST, s->lead)->session = s->reg.term;
}

void register_resign(struct sim *s, uint16_t n)
{
	if (s->quorum) {
		voters_resign(s, n);
	} else if (s->reg.term == s->node[n].lead.term && !s->reg.resigned) {
		s->reg.resigned = true;
		register_ends(s, sim_between(s, 1000, 5 * MS));
	}
}

static bool register_leads(const struct sim *s)
{
	const struct sim_node *n = &s->node[s->lead];

	return s->reg.term && n->alive && !n->paused && n->starts == s->reg.start &&
	       !s->reg.resigned && (n->lead.term == s->reg.term || s->now <= s->reg.told_at + MS);
}

static void register_elect(struct sim *s)
{
	uint16_t n = (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);
	struct sim_value *v;
	uint64_t delay;

	while (n == s->stranger || !s->node[n].alive || s->node[n].paused) {
		n = (uint16_t)((n + 1u) % s->nodes_nr);
		if (sim_chance(s, 50))
			return; /* Perhaps there is none. */
	}
	if (!s->reg.resigned)
		register_ends(s, s->faults && sim_chance(s, 500) ? sim_between(s, 1000, 1500 * MS)
								 : sim_between(s, 1000, 10 * MS));
	v = elect_read(s, n);
	v->term = s->reg.term + sim_between(s, 1, 4);
	elect_is(s, n, v->term);
	delay = s->faults && sim_chance(s, 100) ? sim_between(s, MS, 500 * MS)
						: sim_between(s, 100000, 10 * MS);
	s->reg.told_at = s->now + delay;
	(void)register_at(s, delay, SIM_LEADING, v);
}

void register_look(struct sim *s, const struct sim_event *e)
{
	bool leads = register_leads(s);

	(void)e;
	sim_at(s, sim_between(s, 10 * MS, 120 * MS), SIM_ELECT, NOWHERE);
	if (leads)
		s->reg.gone_since = 0;
	else if (!s->reg.gone_since)
		s->reg.gone_since = s->now;
	if (leads ? s->faults && sim_chance(s, 15)
		  : !s->reg.term || s->reg.resigned ||
			    s->now >= s->reg.gone_since + sim_between(s, 0, LEASE_NS))
		register_elect(s);
}
