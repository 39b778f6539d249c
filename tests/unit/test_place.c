/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of placement as runs: what was encoded is decoded, with one holder and with several, and
 * runs that fit no table are refused. */
#include "wire/place.h"

#include <stddef.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

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

/* While one move gives way to another, chunks have different numbers of holders. */
static void test_any_number(void **state)
{
	const uint64_t want[] = {0xf, 0x8, 0x1, 0x6, 0x6};
	uint64_t runs[10], back[5];
	const uint16_t primary[] = {3, 3, 0, 1, 1};

	(void)state;
	assert_int_equal(place_encode_holders(runs, 5, want, 5), 4);
	assert_null(place_decode_holders(back, primary, 5, 4, 0, runs, 8));
	assert_memory_equal(back, want, sizeof(want));
	assert_non_null(holders(runs, 8, 2));
	assert_non_null(holders((uint64_t[]){0, 5}, 2, 0));
	assert_non_null(holders((uint64_t[]){0x8, 5}, 2, 0)); /* Not at primary 0. */
	assert_non_null(holders((uint64_t[]){0x1f, 5}, 2, 0));
}

/* How many chunks a table is of may be read from it. */
static void test_chunks(void **state)
{
	(void)state;
	assert_int_equal(place_chunks((uint32_t[]){3, 3, 0, 1, 1, 2}, 6, 6), 6);
	assert_int_equal(place_chunks((uint32_t[]){3, 3, 0, 1, 1, 2}, 6, 5), 0);
	assert_int_equal(place_chunks((uint32_t[]){3, 3, 0, UINT32_MAX, 1, 2}, 6, 6), 0);
	assert_int_equal(place_chunks((uint32_t[]){3, 3, 0}, 3, 6), 3); /* Decoding refuses it. */
	assert_int_equal(place_chunks(NULL, 0, 6), 0);
}

/* Tables that another process left are checked as those of a peer are. */
static void test_wrong(void **state)
{
	uint16_t primary[] = {3, 3, 0};
	uint64_t masks[] = {0x8, 0xf, 0x1};

	(void)state;
	assert_null(place_wrong(primary, masks, 3, 4));
	assert_null(place_wrong(primary, NULL, 3, 4));
	assert_non_null(place_wrong(primary, NULL, 3, 3));
	masks[1] |= 1ull << 63;
	assert_non_null(place_wrong(primary, masks, 3, 4));
	assert_null(place_wrong(primary, masks, 3, 64));
	masks[1] = 0x7;
	assert_non_null(place_wrong(primary, masks, 3, 4));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_runs),       cmocka_unit_test(test_holders),
		cmocka_unit_test(test_any_number), cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_wrong),
	};

	return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
