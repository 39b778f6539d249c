/* SPDX-License-Identifier: Apache-2.0 */
/* One-way partitions. In some seeds what one node sends to another one is lost for a while, and
 * what comes back is not. Messages are gone, and bulk data comes late. When the receiver has heard
 * nothing for SILENT_NS it ends the link, and no new one can be made until the way is open again,
 * because a handshake needs both. fault.c starts it, and ends all of it when faults cease. It is
 * drawn from numbers of its own, so that every other seed replays without it. */
#include "sim/sim.h"

enum { BEGINS, SILENT, ENDS };

/* One seed in nine, of whose first ones the mutants and sim/seeds have none. */
static bool one_way_seed(const struct sim *s)
{
	uint64_t k = s->seed % 1000000000;

	return s->faults && k >= 64 && (k % 17 == 13 || k % 17 == 16);
}

void one_way_start(struct sim *s)
{
	uint64_t nr;

	if (!one_way_seed(s))
		return;
	nr = 2 + rng_below(&s->more, 6);
	for (uint64_t i = 0; i < nr; i++)
		sim_at(s, rng_below(&s->more, s->faults_end), SIM_ONE_WAY, NOWHERE)->chunk = BEGINS;
}

static void next(struct sim *s, const struct sim_event *e, uint64_t delay, uint32_t what)
{
	struct sim_event *then = sim_at(s, delay, SIM_ONE_WAY, NOWHERE);

	then->node = e->node;
	then->peer = e->peer;
	then->chunk = what;
}

static void begins(struct sim *s)
{
	/* Shorter than the silence that ends a link, and longer. */
	static const uint64_t most[] = {SILENT_NS - 10 * MS, 4 * SILENT_NS, 3 * SEC};
	uint64_t lasts = 10 * MS + rng_below(&s->more, most[rng_below(&s->more, NR(most))]);
	struct sim_event e = {.node = (uint16_t)rng_below(&s->more, s->nodes_nr),
			      .peer = (uint16_t)rng_below(&s->more, s->nodes_nr)};
	struct conn *c;

	if (rng_below(&s->more, 3) == 0)
		e.node = s->lead;
	if (e.node == e.peer || !(c = link_conn(s, e.node, e.peer))->up || c->deaf[0] || c->deaf[1])
		return;
	sim_trace(s, "n%u IS NOT HEARD by n%u for %.6f s", e.node, e.peer,
		  (double)lasts / (double)SEC);
	c->deaf[e.node < e.peer] = true;
	s->one_ways++;
	if (lasts > SILENT_NS)
		next(s, &e, SILENT_NS, SILENT);
	next(s, &e, lasts, ENDS);
}

void one_way_event(struct sim *s, const struct sim_event *e)
{
	struct conn *c;

	if (!s->faults)
		return;
	if (e->chunk == BEGINS) {
		begins(s);
		return;
	}
	c = link_conn(s, e->node, e->peer);
	if (e->chunk == SILENT)
		link_break(s, e->node, e->peer);
	else
		c->deaf[e->node < e->peer] = false;
}

bool one_way_lost(struct sim *s, uint16_t from, uint16_t to)
{
	return s->faults && link_conn(s, from, to)->deaf[from < to];
}

bool one_way_shut(const struct sim *s, const struct conn *c)
{
	return s->faults && (c->deaf[0] || c->deaf[1]);
}
