// SPDX-License-Identifier: Apache-2.0
/* Who should vote, for lists of one to eight nodes: voters join one by one, and a replaced one
 * leaves for another. */
#include "model/voters.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NODES = 8 };

static uint8_t node[NODES][MEMBER_UUID_BYTES];

static void name(uint32_t n, uint8_t id)
{
	memset(node[n], id, sizeof(node[n]));
}

/* Makes the change. False: there is none. */
static bool step(struct voters *v, uint64_t known, uint64_t gone, uint32_t nodes_nr)
{
	bool joins;
	const uint8_t *uuid = voters_next(v, (const uint8_t(*)[MEMBER_UUID_BYTES])node, known, gone,
					  nodes_nr, &joins);

	if (uuid == NULL)
		return false;
	if (joins) {
		assert_true(v->nr < MEMBER_VOTERS_MAX);
		for (uint32_t i = 0; i < v->nr; i++)
			assert_memory_not_equal(v->uuid[i], uuid, MEMBER_UUID_BYTES);
		memcpy(v->uuid[v->nr++], uuid, MEMBER_UUID_BYTES);
		return true;
	}
	for (uint32_t i = 0; i < v->nr; i++) {
		if (memcmp(v->uuid[i], uuid, MEMBER_UUID_BYTES) != 0)
			continue;
		memmove(v->uuid[i], v->uuid[i + 1], (v->nr - i - 1) * sizeof(v->uuid[0]));
		v->nr--;
		return true;
	}
	fail_msg("who leaves is no voter");
	return false;
}

static uint32_t settle_without(struct voters *v, uint64_t known, uint64_t gone, uint32_t nodes_nr)
{
	uint32_t steps = 0;

	while (step(v, known, gone, nodes_nr))
		assert_true(++steps < 20);
	return v->nr;
}

static uint32_t settle(struct voters *v, uint64_t known, uint32_t nodes_nr)
{
	return settle_without(v, known, 0, nodes_nr);
}

static void test_grows(void **state)
{
	static const uint32_t want[NODES + 1] = {0, 1, 1, 3, 3, 5, 5, 5, 5};

	(void)state;
	for (uint32_t nr = 1; nr <= NODES; nr++) {
		struct voters v = {.nr = 1};

		for (uint32_t n = 0; n < NODES; n++)
			name(n, (uint8_t)(n + 1));
		memset(v.uuid[0], 1, sizeof(v.uuid[0]));
		assert_int_equal(settle(&v, (1ull << nr) - 1, nr), want[nr]);
	}
}

/* Who is not linked does not become a voter, and nobody leaves while a node is not known. */
static void test_waits(void **state)
{
	struct voters v = {.nr = 1};

	(void)state;
	for (uint32_t n = 0; n < NODES; n++)
		name(n, (uint8_t)(n + 1));
	memset(v.uuid[0], 1, sizeof(v.uuid[0]));
	assert_int_equal(settle(&v, 3, 3), 2);
	assert_int_equal(settle(&v, 7, 3), 3);
	name(1, 99);
	assert_int_equal(settle(&v, 3, 3), 3);
}

static void test_replaced(void **state)
{
	(void)state;
	for (uint32_t nr = 3; nr <= NODES; nr++) {
		struct voters v = {.nr = 1};
		bool there = false;

		for (uint32_t n = 0; n < NODES; n++)
			name(n, (uint8_t)(n + 1));
		memset(v.uuid[0], 1, sizeof(v.uuid[0]));
		settle(&v, (1ull << nr) - 1, nr);
		name(1, 99);
		assert_int_equal(settle(&v, (1ull << nr) - 1, nr), nr >= 5 ? 5 : 3);
		for (uint32_t i = 0; i < v.nr; i++) {
			assert_int_not_equal(v.uuid[i][0], 2);
			there = there || v.uuid[i][0] == 99;
		}
		if (nr == 3 || nr == 5)
			assert_true(there);
	}
}

/* All nodes vote that should, and then some are gone, one after the other. As many losses must be
 * tolerated as the nodes that are left could, and who comes back votes again where there is need.
 */
static void test_gone(void **state)
{
	(void)state;
	for (uint32_t nr = 3; nr <= NODES; nr++) {
		uint64_t all = (1ull << nr) - 1, gone = 0;
		struct voters v = {.nr = 1};

		for (uint32_t n = 0; n < NODES; n++)
			name(n, (uint8_t)(n + 1));
		memset(v.uuid[0], 1, sizeof(v.uuid[0]));
		settle(&v, all, nr);
		for (uint32_t n = 1; n + 2 < nr; n++) {
			uint32_t left = nr - n, alive = 0;

			gone |= 1ull << n;
			/* While it is away for less than lost_timeout nothing is to change. */
			if (nr >= 5)
				assert_false(step(&v, all & ~gone, gone & ~(1ull << n), nr));
			settle_without(&v, all & ~gone, gone, nr);
			for (uint32_t i = 0; i < v.nr; i++)
				alive += !(gone >> (v.uuid[i][0] - 1) & 1);
			assert_true(alive - (v.nr / 2 + 1) >= (left >= 5 && nr >= 5 ? 2
							       : left >= 3          ? 1
										    : 0));
		}
		assert_int_equal(settle(&v, all, nr), nr >= 5 ? 5 : 3);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_grows),
		cmocka_unit_test(test_waits),
		cmocka_unit_test(test_replaced),
		cmocka_unit_test(test_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
