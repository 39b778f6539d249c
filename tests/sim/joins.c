/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that were not in the first view, and come while everything else goes on. fault.c calls
 * joins_shape() where the seed says so, and the event table in sim.c starts each node at its time.
 * From then on the node is one like any other: it is linked, fails, dies, comes back, and an
 * operator moves chunks to it. Trainers that start again may do so there. Often the coordinator
 * dies soon after a node came, in one of the events of the join and with a part of its actions
 * done, or the node itself does. In some seeds one of the nodes has a slot that no view may have.
 */
#include "sim/sim.h"

void joins_shape(struct sim *s)
{
	uint64_t free_nr = (uint64_t)NODES - s->nodes_nr, most = free_nr < 3 ? free_nr : 3,
		 nr = most ? sim_between(s, 1, most) : 0;

	if (nr > 1 && sim_chance(s, 250))
		s->stranger = (uint16_t)(s->nodes_nr + sim_between(s, 0, nr - 1));
	for (uint64_t i = 0; i < nr; i++)
		sim_at(s, sim_between(s, 0, s->faults_end), SIM_JOIN, NOWHERE);
}

uint64_t joins_slots(const struct sim *s, uint16_t n)
{
	uint64_t all = s->joins ? UINT64_MAX : view_first(s->first_nr, s->lead).nodes;

	if (s->stranger != NOWHERE && s->stranger != s->node[n].self)
		all &= ~(1ull << s->stranger);
	return all;
}

void joins_event(struct sim *s, const struct sim_event *e)
{
	uint16_t n = s->nodes_nr++;

	(void)e;
	sim_trace(s, "n%u COMES%s", n, n == s->stranger ? ", and is no member" : "");
	node_start(s, n);
	if (s->faults && sim_chance(s, 500))
		sim_at(s, sim_between(s, 0, sim_chance(s, 500) ? 60 * MS : SEC), SIM_JOIN_FAULT,
		       NOWHERE)
			->peer = sim_chance(s, 800) ? s->lead : n;
}

void joins_fault(struct sim *s, const struct sim_event *e)
{
	if (s->faults)
		fault_crash(s, e->peer);
}

void joins_linked(struct sim *s, uint16_t peer)
{
	if (s->joins && s->faults && peer >= s->first_nr && sim_chance(s, 200))
		s->join_dies = (uint32_t)sim_between(s, 1, 24);
}

bool joins_dies(struct sim *s, uint16_t n)
{
	return n == s->lead && s->faults && s->join_dies && --s->join_dies == 0;
}

void joins_wander(struct sim *s, struct sim_trainer *tr)
{
	uint16_t to = (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);

	if (to >= s->first_nr && to != s->stranger && sim_chance(s, 500))
		tr->node = to;
}
