/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the plan of copies against a search through all tables for up to 5 nodes and 12 chunks, and
 * by its rules for 64 nodes. The search goes through the chunks one by one and keeps, for each
 * vector of loads, the fewest new copies with which it can be reached. */
#include "base/check.h"
#include "base/rng.h"
#include "core/plan.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { SMALL_CHUNKS = 12, SMALL_NODES = 5, LARGE_CHUNKS = 1500, IMPOSSIBLE = 255 };

struct arena {
	struct plan *plan;
	uint64_t holders[2][LARGE_CHUNKS];
	uint16_t primary[2][LARGE_CHUNKS];
	struct plan_table from, to;
	struct plan_conf conf;
	struct plan_cost cost;
	/* What a node may have, by its share. */
	uint64_t low[CORE_NODES_MAX], high[CORE_NODES_MAX];
	uint32_t want;
};

static int setup(void **state)
{
	struct arena *a = calloc(1, sizeof(*a));

	assert_non_null(a);
	a->plan = aligned_alloc(16, (plan_bytes() + 15) / 16 * 16);
	assert_non_null(a->plan);
	a->from = (struct plan_table){a->holders[0], a->primary[0]};
	a->to = (struct plan_table){a->holders[1], a->primary[1]};
	*state = a;
	return 0;
}

static int teardown(void **state)
{
	struct arena *a = *state;

	free(a->plan);
	free(a);
	return 0;
}

/* The shares by another way than the plan's: the largest one is cut to all chunks, again and again.
 * Capacities of the tests are small, so that the products fit. */
static void shares(struct arena *a)
{
	const struct plan_conf *c = &a->conf;
	bool cut[CORE_NODES_MAX] = {false};
	uint64_t left, sum;
	uint32_t nr = 0;

	for (uint32_t n = 0; n < CORE_NODES_MAX; n++)
		nr += c->capacity[n] > 0;
	a->want = c->copies < nr ? c->copies : nr;
	left = (uint64_t)a->want * c->chunks_nr;
	for (;;) {
		uint32_t big = CORE_NODES_MAX;

		sum = 0;
		for (uint32_t n = 0; n < CORE_NODES_MAX; n++) {
			if (cut[n] || !c->capacity[n])
				continue;
			sum += c->capacity[n];
			if (big == CORE_NODES_MAX || c->capacity[n] > c->capacity[big])
				big = n;
		}
		if (big == CORE_NODES_MAX || left * c->capacity[big] <= c->chunks_nr * sum)
			break;
		cut[big] = true;
		left -= c->chunks_nr;
	}
	for (uint32_t n = 0; n < CORE_NODES_MAX; n++) {
		uint64_t all = cut[n] ? c->chunks_nr : 0;

		if (!cut[n] && c->capacity[n] > 0) {
			a->low[n] = left * c->capacity[n] / sum;
			a->high[n] = (left * c->capacity[n] + sum - 1) / sum;
		} else {
			a->low[n] = a->high[n] = all;
		}
	}
}

static void plan(struct arena *a)
{
	plan_make(a->plan, &a->conf, &a->from, &a->to, &a->cost);
}

/* What must hold of every plan. */
static void check(struct arena *a)
{
	uint64_t load[CORE_NODES_MAX] = {0}, primaries[CORE_NODES_MAX] = {0};
	uint64_t copies = 0, changed = 0;

	shares(a);
	for (uint32_t c = 0; c < a->conf.chunks_nr; c++) {
		uint64_t set = a->to.holders[c];

		assert_int_equal(__builtin_popcountll(set), a->want);
		assert_true(a->to.primary[c] < CORE_NODES_MAX && set >> a->to.primary[c] & 1);
		for (uint32_t n = 0; n < CORE_NODES_MAX; n++)
			load[n] += set >> n & 1;
		primaries[a->to.primary[c]]++;
		copies += (uint64_t)__builtin_popcountll(set & ~a->from.holders[c]);
		changed += a->to.primary[c] != a->from.primary[c];
	}
	assert_int_equal(copies, a->cost.copies);
	assert_int_equal(changed, a->cost.primaries);
	for (uint32_t n = 0; n < CORE_NODES_MAX; n++) {
		assert_in_range(load[n], a->low[n], a->high[n]);
		assert_in_range(primaries[n], load[n] / a->want, (load[n] + a->want - 1) / a->want);
	}
}

/* The cheapest of all ways in which each chunk chooses `want` of the nodes it may have, with loads
 * from low to high. was: what it chose before. node: the slots that occur. */
static uint32_t cheapest(uint32_t chunks_nr, uint32_t want, const uint32_t *node, uint32_t nr,
			 const uint64_t *may, const uint64_t *was, const uint64_t *low,
			 const uint64_t *high)
{
	uint32_t states = 1, weight[SMALL_NODES], best = IMPOSSIBLE;
	uint8_t *now, *then;

	for (uint32_t i = 0; i < nr; i++) {
		weight[i] = states;
		states *= (uint32_t)high[node[i]] + 1;
	}
	now = malloc(states);
	then = malloc(states);
	assert_non_null(now);
	assert_non_null(then);
	memset(now, IMPOSSIBLE, states);
	now[0] = 0;
	for (uint32_t c = 0; c < chunks_nr; c++) {
		uint8_t *swap = now;

		memset(then, IMPOSSIBLE, states);
		for (uint32_t set = 0; set < 1u << nr; set++) {
			uint32_t step = 0, cost = 0;
			bool can = (uint32_t)__builtin_popcount(set) == want;

			for (uint32_t i = 0; i < nr; i++) {
				if (!(set >> i & 1))
					continue;
				can = can && may[c] >> node[i] & 1;
				step += weight[i];
				cost += !(was[c] >> node[i] & 1);
			}
			for (uint32_t s = 0; can && s < states; s++) {
				bool fits = now[s] != IMPOSSIBLE;

				for (uint32_t i = 0; i < nr; i++)
					fits = fits && (!(set >> i & 1) ||
							s / weight[i] % (high[node[i]] + 1) <
								high[node[i]]);
				if (fits && now[s] + cost < then[s + step])
					then[s + step] = (uint8_t)(now[s] + cost);
			}
		}
		now = then;
		then = swap;
	}
	for (uint32_t s = 0; s < states; s++) {
		bool fits = true;

		for (uint32_t i = 0; i < nr; i++)
			fits = fits && s / weight[i] % (high[node[i]] + 1) >= low[node[i]];
		if (fits && now[s] < best)
			best = now[s];
	}
	free(now);
	free(then);
	return best;
}

static void compare(struct arena *a)
{
	uint64_t may[SMALL_CHUNKS], was[SMALL_CHUNKS], nodes = 0;
	uint64_t low[CORE_NODES_MAX] = {0}, high[CORE_NODES_MAX] = {0};
	uint32_t node[SMALL_NODES], nr = 0, changed;

	for (uint32_t n = 0; n < CORE_NODES_MAX; n++) {
		if (a->conf.capacity[n] > 0) {
			node[nr++] = n;
			nodes |= 1ull << n;
		}
	}
	plan(a);
	check(a);
	for (uint32_t c = 0; c < a->conf.chunks_nr; c++)
		may[c] = nodes;
	assert_int_equal(a->cost.copies, cheapest(a->conf.chunks_nr, a->want, node, nr, may,
						  a->from.holders, a->low, a->high));

	for (uint32_t c = 0; c < a->conf.chunks_nr; c++) {
		may[c] = a->to.holders[c];
		was[c] = a->from.primary[c] < CORE_NODES_MAX ? 1ull << a->from.primary[c] : 0;
		for (uint32_t n = 0; n < CORE_NODES_MAX; n++)
			high[n] += a->to.holders[c] >> n & 1;
	}
	for (uint32_t n = 0; n < CORE_NODES_MAX; n++) {
		low[n] = high[n] / a->want;
		high[n] = (high[n] + a->want - 1) / a->want;
	}
	changed = cheapest(a->conf.chunks_nr, 1, node, nr, may, was, low, high);
	assert_int_equal(a->cost.primaries, changed);
}

static void test_fewest(void **state)
{
	struct arena *a = *state;
	const char *all = getenv("CHECK_ALL");
	int rounds = all && *all == '1' ? 20000 : 2000;

	for (int seed = 0; seed < rounds; seed++) {
		struct rng rng = {(uint64_t)seed};
		uint32_t nr = 1 + (uint32_t)(rng_next(&rng) % SMALL_NODES);
		uint64_t slots[SMALL_NODES + 1];

		memset(&a->conf, 0, sizeof(a->conf));
		a->conf.chunks_nr = 1 + (uint32_t)(rng_next(&rng) % SMALL_CHUNKS);
		a->conf.copies = 1 + (uint32_t)(rng_next(&rng) % 3);
		for (uint32_t i = 0; i <= nr; i++)
			slots[i] = rng_next(&rng) % CORE_NODES_MAX;
		for (uint32_t i = 0; i < nr; i++) /* The last slot may be one that is gone. */
			a->conf.capacity[slots[i]] = 1 + rng_next(&rng) % 4 * (seed % 3);
		for (uint32_t c = 0; c < a->conf.chunks_nr; c++) {
			uint64_t set = 0;

			for (uint64_t i = rng_next(&rng) % 4; i > 0; i--)
				set |= 1ull << slots[rng_next(&rng) % (nr + 1)];
			a->from.holders[c] = set;
			a->from.primary[c] = set ? (uint16_t)__builtin_ctzll(set) : PLAN_NOBODY;
		}
		compare(a);
		/* From a plan on: one node leaves, or another one comes. */
		memcpy(a->from.holders, a->to.holders, sizeof(a->holders[0]));
		memcpy(a->from.primary, a->to.primary, sizeof(a->primary[0]));
		plan(a);
		assert_int_equal(a->cost.copies, 0);
		assert_int_equal(a->cost.primaries, 0);
		if (nr > 1 && seed % 2) {
			a->conf.capacity[slots[0]] = 0;
			a->conf.capacity[slots[1]] += a->conf.capacity[slots[1]] == 0;
		} else if (nr < SMALL_NODES) {
			a->conf.capacity[slots[nr]] = 2;
		}
		compare(a);
	}
}

static void adopt(struct arena *a)
{
	memcpy(a->from.holders, a->to.holders, sizeof(a->holders[0]));
	memcpy(a->from.primary, a->to.primary, sizeof(a->primary[0]));
}

/* Nodes come and go, one by one and several at once, among up to 64 of equal or of different
 * capacity. What a lost node held is made anew, and nothing else if all are equal. */
static void test_large(void **state)
{
	struct arena *a = *state;

	for (int seed = 0; seed < 12; seed++) {
		struct rng rng = {(uint64_t)seed};
		bool equal = seed % 2;

		memset(&a->conf, 0, sizeof(a->conf));
		memset(a->holders, 0, sizeof(a->holders));
		memset(a->primary, 0xff, sizeof(a->primary)); /* PLAN_NOBODY */
		a->conf.chunks_nr = LARGE_CHUNKS - (uint32_t)seed;
		a->conf.copies = 1 + (uint32_t)seed % 3;
		for (uint32_t n = 0; n < 8; n++)
			a->conf.capacity[n] = equal ? 7 : 1 + rng_below(&rng, 100);
		plan(a);
		check(a);
		for (int change = 0; change < 40; change++) {
			uint32_t n = (uint32_t)rng_below(&rng, CORE_NODES_MAX), nr = 0;
			uint64_t lost = 0;

			adopt(a);
			for (uint32_t i = 0; i < CORE_NODES_MAX; i++)
				nr += a->conf.capacity[i] > 0 && i != n;
			if (nr == 0 || a->conf.capacity[n] == 0) {
				a->conf.capacity[n] = equal ? 7 : 1 + rng_below(&rng, 100);
				plan(a);
				check(a);
				continue;
			}
			a->conf.capacity[n] = 0;
			for (uint32_t c = 0; c < a->conf.chunks_nr; c++)
				lost += a->from.holders[c] >> n & 1;
			plan(a);
			check(a);
			if (equal && nr >= a->conf.copies)
				assert_int_equal(a->cost.copies, lost);
			if (equal && nr < a->conf.copies)
				assert_int_equal(a->cost.copies, 0);
		}
	}
}

/* Each pair of nodes shares about as many chunks as any other, so that all help when one is lost.
 */
static void test_spread(void **state)
{
	struct arena *a = *state;
	uint32_t shared[8][8] = {{0}};

	memset(&a->conf, 0, sizeof(a->conf));
	memset(a->holders, 0, sizeof(a->holders));
	memset(a->primary, 0xff, sizeof(a->primary));
	a->conf.chunks_nr = LARGE_CHUNKS;
	a->conf.copies = 2;
	for (uint32_t n = 0; n < 8; n++)
		a->conf.capacity[n] = 1;
	plan(a);
	check(a);
	for (uint32_t c = 0; c < a->conf.chunks_nr; c++)
		for (uint32_t i = 0; i < 8; i++)
			for (uint32_t k = 0; k < i; k++)
				shared[i][k] += a->to.holders[c] >> i & a->to.holders[c] >> k & 1;
	for (uint32_t i = 0; i < 8; i++)
		for (uint32_t k = 0; k < i; k++)
			assert_in_range(shared[i][k], LARGE_CHUNKS / 28 / 2, LARGE_CHUNKS / 28 * 2);
}

/* Capacities of any size: one node with almost all of it, and sums that do not fit 64 bits. */
static void test_capacity(void **state)
{
	struct arena *a = *state;
	uint32_t load[3] = {0};

	memset(&a->conf, 0, sizeof(a->conf));
	memset(a->holders, 0, sizeof(a->holders));
	memset(a->primary, 0xff, sizeof(a->primary));
	a->conf.chunks_nr = LARGE_CHUNKS;
	a->conf.copies = 2;
	a->conf.capacity[0] = UINT64_MAX;
	a->conf.capacity[1] = 1;
	a->conf.capacity[2] = 1;
	plan(a);
	for (uint32_t c = 0; c < a->conf.chunks_nr; c++)
		for (uint32_t n = 0; n < 3; n++)
			load[n] += a->to.holders[c] >> n & 1;
	assert_int_equal(load[0], LARGE_CHUNKS);
	assert_int_equal(load[1], LARGE_CHUNKS / 2);
	assert_int_equal(load[2], LARGE_CHUNKS / 2);

	adopt(a);
	for (uint32_t n = 0; n < CORE_NODES_MAX; n++)
		a->conf.capacity[n] = UINT64_MAX;
	plan(a);
	memset(load, 0, sizeof(load));
	for (uint32_t c = 0; c < a->conf.chunks_nr; c++)
		for (uint32_t n = 0; n < 3; n++)
			load[n] += a->to.holders[c] >> n & 1;
	for (uint32_t n = 0; n < 3; n++)
		assert_in_range(load[n], 2 * LARGE_CHUNKS / 64, 2 * LARGE_CHUNKS / 64 + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_fewest, setup, teardown),
		cmocka_unit_test_setup_teardown(test_large, setup, teardown),
		cmocka_unit_test_setup_teardown(test_spread, setup, teardown),
		cmocka_unit_test_setup_teardown(test_capacity, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
