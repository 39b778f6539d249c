/* SPDX-License-Identifier: Apache-2.0 */
/* A coordinator that is taken for dead and is not. fault.c calls zombie_rises(). The old process
 * goes on with its term, its links, its trainers and its frames on the way. Beside it runs its
 * successor, a process of the same node with a higher term and without its memory, which asks the
 * members. A member may be linked with either of them, and the newest connection counts. Views are
 * fenced as by a register: a write of the old process reached the disk before the successor read
 * it, or it never counts. Promises and terms must hold off the rest (schedule F2). The checkers see
 * one cluster. */
#include "sim/sim.h"

#include <stdlib.h>
#include <string.h>

static void zombie_model(struct sim *s)
{
	struct shell *old = shell_of(s, ZOMBIE), *next = shell_of(s, s->lead);

	old->landed = old->persisting && sim_chance(s, 500);
	memset(next, 0, sizeof(*next));
	next->has_disk = old->has_disk;
	next->disk = old->disk;
	next->prepared = old->prepared;
	if (old->landed) {
		next->has_disk = true;
		next->disk = old->pending;
		truth_durable(s, &next->disk);
	}
	for (uint32_t t = 0; t < s->m->trainers_nr; t++) {
		if (s->m->trainer[t].node == s->lead && s->m->trainer[t].state != TR_DEAD)
			s->m->trainer[t].node = ZOMBIE;
	}
	for (uint32_t i = 0; i < TRANSFERS; i++) {
		struct transfer *t = &s->m->transfer[i];

		t->src = t->src == s->lead ? ZOMBIE : t->src;
		t->dst = t->dst == s->lead ? ZOMBIE : t->dst;
	}
	orders_crashed(s);
}

static void zombie_links(struct sim *s)
{
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		struct conn *was = link_conn(s, i, s->lead), *now = link_conn(s, i, ZOMBIE);

		if (i == s->lead)
			continue;
		*now = *was;
		now->last_at[i < ZOMBIE] = was->last_at[i < s->lead];
		now->last_at[ZOMBIE < i] = was->last_at[s->lead < i];
		*was = (struct conn){0};
		s->node[i].end[s->lead] = ZOMBIE;
	}
}

/* Everything that is on its way to or from the old process, or that the old process does, stays its
 * own. */
static void zombie_events(struct sim *s)
{
	for (uint32_t i = 0; i < s->heap_nr; i++) {
		struct sim_event *e = &s->heap[i];

		if (e->node == s->lead && e->start == s->node[ZOMBIE].starts)
			e->node = ZOMBIE;
		if (e->peer == s->lead &&
		    (e->kind == SIM_LINK_UP || e->kind == SIM_LINK_DOWN || e->kind == SIM_CONNECT))
			e->peer = ZOMBIE;
	}
}

bool zombie_rises(struct sim *s)
{
	struct sim_node *old = &s->node[ZOMBIE], *next = &s->node[s->lead];

	if (!next->alive || next->paused || next->stopping || old->alive)
		return false;
	sim_trace(s, "n%u IS TAKEN FOR DEAD, its process goes on as n%u", s->lead, ZOMBIE);
	node_free(old);
	*old = *next;
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->m = &s->model[i];
		zombie_model(s);
	}
	zombie_events(s);
	zombie_links(s);
	next->alive = next->whole = false;
	memset(next->link, 0, sizeof(next->link));
	s->zombies_nr++;
	if (sim_chance(s, 500)) {
		old->paused = true;
		old->resume_at = s->now + sim_between(s, MS, 800 * MS);
		sim_at(s, old->resume_at - s->now, SIM_RESUME, ZOMBIE);
	}
	sim_at(s, sim_between(s, 300 * MS, 3 * SEC), SIM_END, NOWHERE)->node = ZOMBIE;
	sim_at(s, sim_between(s, 0, 200 * MS), SIM_START, NOWHERE)->node = s->lead;
	return true;
}
