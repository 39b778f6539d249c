/* SPDX-License-Identifier: Apache-2.0 */
/* The clocks of nodes. Each core and each voter gets the time of its own node. In some seeds a
 * node's clock jumps: forward by up to ten minutes, as after a virtual machine was suspended, and
 * all timers that are due fire at once. Or it stands still for up to two seconds while the node
 * goes on, and no timer fires. It never goes back, because CLOCK_MONOTONIC does not. A jump is
 * drawn from numbers of its own, so that every other seed replays without it. */
#include "sim/sim.h"

#define MINUTE (60 * SEC)

/* Of 64. No seed of them that slow trainers are in. */
#define CLOCK_SEEDS                                                                                \
	(1ull << 24 | 1ull << 33 | 1ull << 37 | 1ull << 43 | 1ull << 44 | 1ull << 48 |             \
	 1ull << 49 | 1ull << 50 | 1ull << 51 | 1ull << 53 | 1ull << 54 | 1ull << 55 |             \
	 1ull << 56 | 1ull << 58 | 1ull << 60 | 1ull << 61)

uint64_t clock_of(const struct sim *s, uint16_t n)
{
	const struct sim_node *nd = &s->node[n];

	return s->now < nd->frozen_until ? nd->frozen_at : s->now + nd->ahead;
}

uint64_t clock_when(const struct sim *s, uint16_t n, uint64_t at)
{
	const struct sim_node *nd = &s->node[n];
	uint64_t now = clock_of(s, n), soon = s->now + 1000;

	if (s->now < nd->frozen_until && soon < nd->frozen_until)
		soon = nd->frozen_until;
	return at <= now ? soon : at - nd->ahead;
}

void clocks_start(struct sim *s)
{
	uint64_t nr;

	if (!s->faults || !(CLOCK_SEEDS >> s->seed % 64 & 1))
		return;
	for (uint16_t n = 0; n < SLOTS; n++)
		s->node[n].ahead = rng_below(&s->more, 60 * MINUTE);
	nr = 1 + rng_below(&s->more, 6);
	for (uint64_t i = 0; i < nr; i++)
		sim_at(s, rng_below(&s->more, s->faults_end), SIM_CLOCK, NOWHERE);
}

/* How far, or for how long. */
static uint64_t clock_far(struct sim *s, bool stands)
{
	static const uint64_t most[] = {400 * MS, 5 * SEC, 10 * MINUTE};

	return 1 + rng_below(&s->more, stands ? 2 * SEC : most[rng_below(&s->more, NR(most))]);
}

void clocks_event(struct sim *s, const struct sim_event *e)
{
	uint16_t n = (uint16_t)rng_below(&s->more, s->nodes_nr);
	struct sim_node *nd = &s->node[rng_below(&s->more, 3) ? n : s->lead];
	bool stands = rng_below(&s->more, 10) < 4;
	uint64_t far = clock_far(s, stands);

	(void)e;
	n = (uint16_t)(nd - s->node);
	if (!s->faults || s->now < nd->frozen_until)
		return;
	s->clocks_nr++;
	sim_trace(s, "n%u: ITS CLOCK %s %.6f s", n, stands ? "STANDS STILL for" : "JUMPS by",
		  (double)far / (double)SEC);
	if (stands) {
		nd->frozen_at = clock_of(s, n);
		nd->frozen_until = s->now + far;
		nd->ahead -= far;
	} else {
		nd->ahead += far;
	}
	for (uint16_t i = 0; i < s->models_nr && nd->alive; i++) {
		s->m = &s->model[i];
		shell_timer(s, n);
	}
	if (nd->alive)
		voters_timer(s, n);
}

bool clocks_stand(const struct sim *s, uint16_t n)
{
	return s->now < s->node[n].frozen_until;
}
