/* SPDX-License-Identifier: Apache-2.0 */
/* The first table of a model: equal nodes in turn, shares by capacity, nothing on a node without
 * capacity, the copies beside those of a node on all others, and the same table each time. */
#include "model/placing.h"

#include "base/rng.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { CHUNKS = 4096 };

static uint16_t primary[CHUNKS], again[CHUNKS];
static uint64_t holders[CHUNKS], holders_again[CHUNKS];

static uint64_t sum_of(const uint64_t *capacity)
{
	uint64_t sum = 0;

	for (int n = 0; n < CORE_NODES_MAX; n++)
		sum += capacity[n];
	return sum;
}

static void fill(uint32_t chunks, uint32_t copies, const uint64_t *capacity)
{
	assert_true(placing_fill(primary, holders, chunks, copies, capacity));
	assert_true(placing_fill(again, holders_again, chunks, copies, capacity));
	assert_memory_equal(primary, again, chunks * sizeof(*primary));
	assert_memory_equal(holders, holders_again, chunks * sizeof(*holders));
	for (uint32_t c = 0; c < chunks; c++) {
		assert_int_equal(__builtin_popcountll(holders[c]), copies);
		assert_true(holders[c] >> primary[c] & 1);
	}
}

static void count(uint32_t chunks, uint32_t held[CORE_NODES_MAX], uint32_t first[CORE_NODES_MAX])
{
	memset(held, 0, CORE_NODES_MAX * sizeof(*held));
	memset(first, 0, CORE_NODES_MAX * sizeof(*first));
	for (uint32_t c = 0; c < chunks; c++) {
		first[primary[c]]++;
		for (int n = 0; n < CORE_NODES_MAX; n++)
			held[n] += holders[c] >> n & 1;
	}
}

/* One copy on equal nodes: in turn, with or without a table of holders. */
static void test_turns(void **state)
{
	const uint64_t capacity[CORE_NODES_MAX] = {5, 5, 0, 5};
	const uint16_t want[] = {0, 1, 3};

	(void)state;
	fill(1000, 1, capacity);
	for (uint32_t c = 0; c < 1000; c++)
		assert_int_equal(primary[c], want[c % 3]);
	assert_true(placing_fill(again, NULL, 1000, 1, capacity));
	assert_memory_equal(primary, again, 1000 * sizeof(*again));
}

/* No share is above all chunks here, so each is known. */
static void test_shares(void **state)
{
	const uint64_t capacity[CORE_NODES_MAX] = {1, 2, 3, 0, 6};
	uint32_t held[CORE_NODES_MAX], first[CORE_NODES_MAX];

	(void)state;
	for (uint32_t copies = 1; copies <= 2; copies++) {
		fill(1200, copies, capacity);
		count(1200, held, first);
		for (int n = 0; n < CORE_NODES_MAX; n++) {
			assert_int_equal(held[n], 100 * copies * capacity[n]);
			assert_int_equal(first[n], 100 * capacity[n]);
		}
	}
	/* Node 4 has room for all of three copies, and takes one of each chunk. */
	fill(1200, 3, capacity);
	count(1200, held, first);
	assert_int_equal(held[4], 1200);
	assert_int_equal(held[0], 400);
	assert_int_equal(held[1], 800);
	assert_int_equal(held[2], 1200);
}

/* A node that is lost is helped by all others alike. */
static void test_spread(void **state)
{
	uint64_t capacity[CORE_NODES_MAX] = {0};

	(void)state;
	for (int n = 0; n < 9; n++)
		capacity[n] = 4;
	fill(9 * 8 * 20, 2, capacity);
	for (int a = 0; a < 9; a++) {
		for (int b = 0; b < 9; b++) {
			uint32_t both = 0;

			for (uint32_t c = 0; c < 9 * 8 * 20; c++)
				both += holders[c] >> a & 1 && holders[c] >> b & 1;
			if (a != b)
				assert_in_range(both, 30, 50);
		}
	}
}

/* Any capacities: each node has its share, rounded up or down, unless that would be more than all
 * chunks. */
static void test_any(void **state)
{
	uint32_t held[CORE_NODES_MAX], first[CORE_NODES_MAX];
	struct rng r = {3};

	(void)state;
	for (int round = 0; round < 200; round++) {
		uint32_t nodes = 2 + (uint32_t)rng_below(&r, 7), copies,
			 chunks = 1 + (uint32_t)rng_below(&r, 300);
		uint64_t capacity[CORE_NODES_MAX] = {0}, sum;
		bool capped = false;

		for (uint32_t n = 0; n < nodes; n++)
			capacity[rng_below(&r, CORE_NODES_MAX)] = 1 + rng_below(&r, 1u << 20);
		sum = sum_of(capacity);
		for (nodes = 0, copies = 0; copies < CORE_NODES_MAX; copies++)
			nodes += capacity[copies] > 0;
		copies = 1 + (uint32_t)rng_below(&r, nodes);
		fill(chunks, copies, capacity);
		count(chunks, held, first);
		for (int n = 0; n < CORE_NODES_MAX; n++)
			capped = capped || capacity[n] * copies > sum;
		for (int n = 0; n < CORE_NODES_MAX; n++) {
			uint64_t share = capacity[n] * chunks * copies / sum;

			if (capacity[n] == 0)
				assert_int_equal(held[n], 0);
			else if (!capped)
				assert_in_range(held[n], share, share + 1);
			else
				assert_true(held[n] >= (share < chunks ? share : chunks));
			assert_in_range(first[n], held[n] / copies,
					(held[n] + copies - 1) / copies);
		}
	}
}

/* One node has nearly all capacity, so the other one comes in line once in a million places. */
static void test_skewed(void **state)
{
	const uint64_t capacity[CORE_NODES_MAX] = {1u << 20, 1};
	uint32_t held[CORE_NODES_MAX], first[CORE_NODES_MAX];

	(void)state;
	fill(CHUNKS, 2, capacity);
	count(CHUNKS, held, first);
	assert_int_equal(held[0], CHUNKS);
	assert_int_equal(held[1], CHUNKS);
}

/* As large as a model may be, with capacities that differ. */
static void test_large(void **state)
{
	enum { LARGE = 16384 };
	static uint16_t big[LARGE];
	static uint64_t all[LARGE];
	uint64_t capacity[CORE_NODES_MAX];

	(void)state;
	for (int n = 0; n < CORE_NODES_MAX; n++)
		capacity[n] = 100 + (uint64_t)n * 7;
	assert_true(placing_fill(big, all, LARGE, 2, capacity));
	for (uint32_t c = 0; c < LARGE; c++)
		assert_int_equal(__builtin_popcountll(all[c]), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_turns),  cmocka_unit_test(test_shares),
		cmocka_unit_test(test_spread), cmocka_unit_test(test_any),
		cmocka_unit_test(test_large),  cmocka_unit_test(test_skewed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
