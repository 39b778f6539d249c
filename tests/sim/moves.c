/* SPDX-License-Identifier: Apache-2.0 */
/* The operator who moves chunks, and the shell of the coordinator that asks for it. The event table
 * in sim.c calls it from time to time, at any moment of the cluster's life. A node without chunks
 * gets some, another one is drained, chunks are spread by other capacities, a single chunk changes
 * one holder, and a move is called back or gives way to another. The plans are those of
 * core/plan.c. Nothing is remembered of a move that a coordinator was asked for before it died.
 * When the faults have ceased, a move that waits for a node which never comes back is replaced. */
#include "sim/sim.h"

#include "core/inner.h"
#include "core/plan.h"

#include <stdlib.h>
#include <string.h>

static struct sim_tables *moves_new(struct sim *s)
{
	return s->m->tables_nr < TABLES ? &s->m->tables[s->m->tables_nr++] : NULL;
}

/* The table that is in force or, while chunks move, the one to which they move. */
static void moves_now(const struct placement *p, uint16_t primary[CHUNKS], uint64_t holders[CHUNKS])
{
	for (uint32_t c = 0; c < p->chunks_nr; c++) {
		primary[c] = p->to ? p->to_primary[c] : p->primary[c];
		holders[c] = p->to ? p->to[c] : place_base(p, c);
	}
}

/* May the node be given chunks? It need not be a member yet. */
static bool moves_may(const struct sim *s, uint16_t n)
{
	return n != s->grave && n != s->stranger;
}

static void moves_plan(struct sim *s, const struct placement *now, struct sim_tables *t, bool drain)
{
	struct plan_conf conf = {.chunks_nr = s->m->chunks_nr};
	struct plan *scratch = aligned_alloc(16, (plan_bytes() + 15) & ~(size_t)15);
	uint16_t primary[CHUNKS], out = (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);
	uint64_t holders[CHUNKS];
	struct plan_table from = {.holders = holders, .primary = primary},
			  to = {.holders = t->holders, .primary = t->primary};
	struct plan_cost cost;

	CHECK(scratch);
	moves_now(now, primary, holders);
	conf.copies = (uint32_t)sim_between(s, sim_chance(s, 100) ? 1 : 2, COPIES);
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		conf.capacity[n] = drain ? 1 : sim_between(s, sim_chance(s, 300) ? 0 : 1, 3);
		if (!moves_may(s, n) || (drain && n == out))
			conf.capacity[n] = 0;
	}
	conf.capacity[(out + 1) % s->nodes_nr] |= moves_may(s, (out + 1) % s->nodes_nr);
	conf.capacity[(out + 2) % s->nodes_nr] |= moves_may(s, (out + 2) % s->nodes_nr);
	conf.capacity[s->lead] |= s->joins && moves_may(s, s->lead);
	plan_make(scratch, &conf, &from, &to, &cost);
	free(scratch);
}

/* One chunk goes from one holder to a node that has no copy of it. */
static void moves_swap(struct sim *s, const struct placement *now, struct sim_tables *t)
{
	uint32_t c = (uint32_t)sim_between(s, 0, s->m->chunks_nr - 1);
	uint16_t to = (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);

	moves_now(now, t->primary, t->holders);
	if (t->holders[c] >> to & 1 || !moves_may(s, to))
		return;
	t->holders[c] = (t->holders[c] & ~(1ull << t->primary[c])) | 1ull << to;
	t->primary[c] = to;
}

/* Gives the coordinator a table. */
static void moves_order(struct sim *s, const struct placement *to, struct sim_tables *t)
{
	struct core_event e = {.type = CORE_EV_PLACE, .to = to, .room = t->room};

	sim_trace(s, "n%u MOVES chunks to table %u", s->lead, s->m->tables_nr);
	s->m->orders_moves++;
	node_event(s, s->lead, &e);
}

static void moves_draw(struct sim *s, const struct placement *now)
{
	struct sim_tables *t = moves_new(s);
	struct placement to;
	uint64_t what = sim_between(s, 0, 99);

	if (!t)
		return;
	if (what < 25 && now->to) { /* Back to where it came from. */
		moves_now(&(struct placement){.primary = now->primary,
					      .holders = now->holders,
					      .chunks_nr = now->chunks_nr},
			  t->primary, t->holders);
		s->m->backs++;
	} else if (what < 50) {
		moves_plan(s, now, t, true);
	} else if (what < 75) {
		moves_plan(s, now, t, false);
	} else {
		moves_swap(s, now, t);
	}
	to = place_of(t->primary, t->holders, s->m->chunks_nr);
	moves_order(s, &to, t);
}

/* Does the table want copies at the node that never comes back? */
static bool moves_want_dead(const struct sim *s, const struct placement *p)
{
	for (uint32_t c = 0; p->to && s->grave != NOWHERE && c < p->chunks_nr; c++) {
		if (p->to[c] >> s->grave & 1)
			return true;
	}
	return false;
}

void moves_event(struct sim *s, const struct sim_event *e)
{
	const struct sim_node *nd = &s->node[s->lead];
	const struct placement *now;

	(void)e;
	/* Often the next table comes while nodes still fetch what this one gives them. */
	sim_at(s,
	       !s->faults           ? SEC
	       : sim_chance(s, 400) ? sim_between(s, MS, 100 * MS)
				    : sim_between(s, 20 * MS, 1500 * MS),
	       SIM_MOVE, NOWHERE);
	if (!nd->alive || nd->paused || nd->stopping || !elect_acts(s))
		return;
	now = &shell_of(s, s->lead)->core->coord.view.place;
	if (s->faults || moves_want_dead(s, now))
		moves_draw(s, now);
}

/* The shell is told where chunks lie. It gives memory back, and has new memory without a copy. */
void moves_placed(struct sim *s, uint16_t n, const struct placement *p)
{
	struct shell *sh = shell_of(s, n);

	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (place_keeps(p, c, s->node[n].self) == shell_keeps(s, n, c))
			continue;
		sh->written[c] = false;
		sh->weights[c] = sh->version[c] = 0;
	}
	sh->place = *p;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (shell_keeps(s, n, c) && !shell_holds(s, n, c))
			return;
	}
	sh->learning = false; /* Nothing is left to fetch. */
	sh->learn++;
}
