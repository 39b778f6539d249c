// SPDX-License-Identifier: Apache-2.0
/* Tests sums of micro-steps. Random ranges in random order are compared with a plain array of
 * counts and a plain sum in the same order. It also tests what is refused, and tensors without a
 * gradient in some or all micro-steps. */
#include "base/check.h"
#include "base/rng.h"
#include "client/adds.h"
#include "wire/dtype.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NUMEL = 500, MICRO = 4 };

static const struct shard_tensor tensors[] = {{.name = "a", .ndim = 1, .shape = {NUMEL}},
					      {.name = "b", .ndim = 1, .shape = {NUMEL}}};

static struct layout *layout_make(void)
{
	struct layout *l = NULL;
	struct err e;

	assert_int_equal(layout_init(&l, tensors, NR(tensors), 0, SHARD_BF16, 0, &e), SHARD_OK);
	return l;
}

static void check(const struct adds *a, const uint32_t *times, const float *sum)
{
	float got[NUMEL];
	uint64_t until;

	adds_round(a, 1, 0, NUMEL, got, SHARD_F32);
	for (uint64_t at = 0; at < NUMEL; at = until) {
		bool complete = adds_complete(a, 1, at, &until);

		assert_true(until > at && until <= NUMEL);
		for (uint64_t i = at; i < until; i++) {
			assert_int_equal(complete, times[i] == MICRO);
			assert_true(times[i] == 0 || got[i] == sum[i]);
		}
	}
}

/* Random ranges give the sum of a plain loop, and a range with an element that has all its
 * micro-steps is refused. */
static void random_ranges(void **state)
{
	struct rng r = {.state = 5};
	struct layout *l = layout_make();
	struct adds a = {.micro_steps = MICRO};
	struct err e;

	(void)state;
	assert_int_equal(adds_init(&a, l, &e), SHARD_OK);
	for (int run = 0; run < 200; run++) {
		uint32_t times[NUMEL] = {0}, refused = 0;
		float sum[NUMEL] = {0}, src[NUMEL];

		adds_reset(&a);
		for (int i = 0; i < 60; i++) {
			uint64_t first = rng_below(&r, NUMEL),
				 count = 1 + rng_below(&r, NUMEL - first);
			enum shard_status want = SHARD_OK;

			if (rng_below(&r, 4) == 0) /* The whole tensor. */
				first = 0, count = NUMEL;
			for (uint64_t k = 0; k < count; k++) {
				src[k] = (float)rng_unit(&r) - 0.5f;
				if (times[first + k] == MICRO)
					want = SHARD_DUPLICATE;
			}
			assert_int_equal(adds_claim(&a, 1, first, count, &e), want);
			refused += want != SHARD_OK;
			if (want != SHARD_OK)
				continue;
			adds_add(&a, 1, first, count, src, SHARD_F32);
			/* The first operand is copied and not added to 0. */
			for (uint64_t k = 0; k < count; k++)
				sum[first + k] =
					times[first + k]++ ? sum[first + k] + src[k] : src[k];
			check(&a, times, sum);
		}
		assert_true(refused > 0);
	}
	adds_deinit(&a);
	layout_free(&l);
}

/* A tensor may have no gradient in some or all of the micro-steps. */
static void none(void **state)
{
	float minus_zero = -0.0f, got;
	struct layout *l = layout_make();
	struct adds a = {.micro_steps = 2};
	struct err e;
	uint64_t until;

	(void)state;
	assert_int_equal(adds_init(&a, l, &e), SHARD_OK);
	adds_reset(&a);
	assert_int_equal(adds_claim_none(&a, 0, &e), SHARD_OK);
	assert_false(adds_absent(&a, 0));
	assert_int_equal(adds_claim(&a, 0, 7, 1, &e), SHARD_OK);
	adds_add(&a, 0, 7, 1, &minus_zero, SHARD_F32);
	assert_true(adds_complete(&a, 0, 7, &until));
	assert_int_equal(until, 8);
	assert_false(adds_complete(&a, 0, 0, &until));
	assert_int_equal(until, 7);
	adds_round(&a, 0, 7, 1, &got, SHARD_F32);
	/* A sum of one operand has its bits. */
	assert_memory_equal(&got, &minus_zero, sizeof(got));
	assert_int_equal(adds_claim_none(&a, 0, &e), SHARD_DUPLICATE);
	assert_string_equal(e.text, "shard_push_none() of \"a\", of which elements were pushed in "
				    "all 2 micro-steps already");
	assert_int_equal(adds_claim(&a, 0, 5, 5, &e), SHARD_DUPLICATE);
	assert_string_equal(
		e.text, "push of \"a\": elements 7 to 7 were pushed in all 2 micro-steps already");
	assert_int_equal(adds_claim_none(&a, 1, &e), SHARD_OK);
	assert_int_equal(adds_claim_none(&a, 1, &e), SHARD_OK);
	assert_true(adds_absent(&a, 1));
	assert_int_equal(adds_claim(&a, 1, 0, 1, &e), SHARD_DUPLICATE);
	adds_deinit(&a);
	layout_free(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(random_ranges), cmocka_unit_test(none)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
