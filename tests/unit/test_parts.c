/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how parts of chunks are marked one by one. The marks are compared with a plain table of
 * what came, in random orders and with repetitions. */
#include "base/rng.h"
#include "data/parts.h"

#include <stddef.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { CHUNKS = 7, PARTS_MAX = 256, DRAWS = 20000 };

typedef bool table[CHUNKS][PARTS_MAX];

static void compare(const struct parts *p, table begun, table here, uint32_t parts)
{
	for (uint32_t c = 0; c < CHUNKS; c++) {
		for (uint32_t i = 0; i < parts; i++) {
			assert_int_equal(parts_begun(p, c, i), begun[c][i]);
			assert_int_equal(parts_here(p, c, i), here[c][i]);
		}
	}
}

static void test_against_a_table(void **state)
{
	static const uint32_t sizes[] = {1, 2, 7, 8, 9, 64, 255, 256};
	struct rng r = {3};

	(void)state;
	for (size_t n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++) {
		table begun = {{false}}, here = {{false}};
		struct parts p;

		assert_true(parts_init(&p, CHUNKS, sizes[n]));
		for (int i = 0; i < DRAWS; i++) {
			uint32_t c = (uint32_t)rng_below(&r, CHUNKS);
			uint32_t part = (uint32_t)rng_below(&r, sizes[n]);

			if (rng_below(&r, 2)) {
				assert_int_equal(parts_begin(&p, c, part), !begun[c][part]);
				begun[c][part] = true;
			} else {
				parts_came(&p, c, part);
				here[c][part] |= begun[c][part];
			}
			if (i % 1000 == 0)
				compare(&p, begun, here, sizes[n]);
		}
		compare(&p, begun, here, sizes[n]);
		parts_clear(&p, CHUNKS);
		memset(begun, 0, sizeof(begun));
		memset(here, 0, sizeof(here));
		compare(&p, begun, here, sizes[n]);
		parts_free(&p);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_a_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
