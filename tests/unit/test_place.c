/* SPDX-License-Identifier: Apache-2.0 */
/* Tests placement: round robin at the beginning, always balanced within one chunk, as few moves as
 * possible, and runs that survive the wire, with one holder and with several. */
#include "base/rng.h"
#include "wire/place.h"

#include <stddef.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { CHUNKS = 1000 };

static void test_from_nothing(void **state)
{
	const uint16_t members[] = {0, 1, 2, 5};
	uint16_t owner[CHUNKS];

	(void)state;
	place_fill(owner, CHUNKS, members, 4, NULL);
	for (uint32_t c = 0; c < CHUNKS; c++)
		assert_int_equal(owner[c], members[c % 4]);
	place_fill(owner, 0, members, 4, NULL);
}

static void count(const uint16_t *owner, uint32_t nr, uint32_t *held)
{
	memset(held, 0, PLACE_NODES_MAX * sizeof(*held));
	for (uint32_t c = 0; c < nr; c++)
		held[owner[c]]++;
}

/* The least that must move: chunks without a holder, and what is over the shares. The odd chunks
 * stay where most are. */
static uint32_t least_moves(const uint16_t *previous, uint32_t nr, const uint16_t *members,
			    uint16_t members_nr)
{
	uint32_t held[PLACE_NODES_MAX], kept = 0, each = nr / members_nr, odd = nr % members_nr;

	count(previous, nr, held);
	for (uint16_t i = 0; i < members_nr; i++) {
		uint32_t h = held[members[i]];

		kept += h < each ? h : each;
		if (h > each && odd > 0) {
			kept++;
			odd--;
		}
	}
	return nr - kept;
}

static void test_fewest_moves(void **state)
{
	uint16_t before[CHUNKS], after[CHUNKS], again[CHUNKS], members[PLACE_NODES_MAX];
	uint32_t held[PLACE_NODES_MAX];
	struct rng r = {1};

	(void)state;
	members[0] = 0;
	place_fill(before, CHUNKS, members, 1, NULL);
	for (int round = 0; round < 500; round++) {
		uint32_t nr = 1 + (uint32_t)rng_below(&r, CHUNKS), moves = 0;
		uint16_t members_nr = 0;

		for (uint16_t n = 0; n < PLACE_NODES_MAX; n++)
			if (rng_below(&r, 1 + round % 7) == 0)
				members[members_nr++] = n;
		if (members_nr == 0)
			members[members_nr++] = (uint16_t)rng_below(&r, PLACE_NODES_MAX);
		place_fill(after, nr, members, members_nr, before);
		place_fill(again, nr, members, members_nr, before);
		assert_memory_equal(after, again, nr * sizeof(*after));
		count(after, nr, held);
		for (uint16_t i = 0; i < members_nr; i++) {
			assert_in_range(held[members[i]], nr / members_nr,
					(nr + members_nr - 1) / members_nr);
			held[members[i]] = 0;
		}
		for (uint16_t n = 0; n < PLACE_NODES_MAX; n++)
			assert_int_equal(held[n], 0);
		for (uint32_t c = 0; c < nr; c++)
			moves += after[c] != before[c];
		assert_int_equal(moves, least_moves(before, nr, members, members_nr));
		memcpy(before, after, nr * sizeof(*after));
	}
}

static void test_runs(void **state)
{
	const uint16_t owner[] = {3, 3, 3, 0, 1, 1};
	const uint32_t want[] = {3, 3, 0, 1, 1, 2};
	uint32_t runs[6];
	uint16_t back[6];

	(void)state;
	assert_int_equal(place_encode(runs, 3, owner, 6), 3);
	assert_memory_equal(runs, want, sizeof(want));
	assert_int_equal(place_encode(runs, 2, owner, 6), 0);
	assert_null(place_decode(back, 6, 4, runs, 6));
	assert_memory_equal(back, owner, sizeof(owner));
	assert_non_null(place_decode(back, 6, 3, runs, 6)); /* There is no node 3. */
	assert_non_null(place_decode(back, 5, 4, runs, 6)); /* Too many. */
	assert_non_null(place_decode(back, 7, 4, runs, 6)); /* Too few. */
	assert_non_null(place_decode(back, 6, 4, runs, 5));
	runs[5] = 0;
	assert_non_null(place_decode(back, 6, 4, runs, 6));
	runs[5] = UINT32_MAX;
	assert_non_null(place_decode(back, 6, 4, runs, 6));
}

static const char *holders(const uint64_t *runs, size_t runs_nr, uint32_t copies)
{
	static const uint16_t primary[] = {3, 3, 0, 1, 1};
	uint64_t back[5];

	return place_decode_holders(back, primary, 5, 4, copies, runs, runs_nr);
}

static void test_holders(void **state)
{
	const uint64_t want[] = {0xa, 0xa, 0x3, 0x3, 0x6}, runs_want[] = {0xa, 2, 0x3, 2, 0x6, 1};
	const uint16_t primary[] = {3, 3, 0, 1, 1};
	uint64_t runs[6], back[5];

	(void)state;
	assert_int_equal(place_encode_holders(runs, 3, want, 5), 3);
	assert_memory_equal(runs, runs_want, sizeof(runs));
	assert_int_equal(place_encode_holders(runs, 2, want, 5), 0);
	assert_null(place_decode_holders(back, primary, 5, 4, 2, runs, 6));
	assert_memory_equal(back, want, sizeof(want));
	assert_non_null(place_decode_holders(back, primary, 5, 3, 2, runs, 6)); /* No node 3. */
	assert_non_null(place_decode_holders(back, primary, 4, 4, 2, runs, 6)); /* Too many. */
	assert_non_null(holders(runs, 4, 2));                                   /* Too few. */
	assert_non_null(holders(runs, 5, 2));
	assert_non_null(holders(NULL, 0, 2));
	assert_non_null(holders(runs, 6, 1));
	assert_non_null(holders(runs, 6, 3));
	assert_null(holders((uint64_t[]){0x9, 3, 0x3, 2}, 4, 2));
	assert_non_null(holders((uint64_t[]){0x9, 2, 0x6, 1, 0x3, 2}, 6, 2)); /* Primary 0. */
	assert_non_null(holders((uint64_t[]){0x9, 3, 0x3, 1, 0x2, 1}, 6, 2)); /* One copy. */
	assert_non_null(holders((uint64_t[]){0x9, 3, 0x3, 0, 0x3, 2}, 6, 2));
	assert_non_null(holders((uint64_t[]){0x9, 3, 0x3, UINT64_MAX}, 4, 2));
	assert_non_null(holders((uint64_t[]){0x9, 3, 0x3 | 1ull << 63, 2}, 4, 3));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_from_nothing),
		cmocka_unit_test(test_fewest_moves),
		cmocka_unit_test(test_runs),
		cmocka_unit_test(test_holders),
	};

	return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
