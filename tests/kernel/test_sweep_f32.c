/* SPDX-License-Identifier: Apache-2.0 */
/* Runs fp32 gradients, which are the awkward numbers and a spread of bit patterns, times 64 states,
 * and compares each instruction set with the scalar kernels. */
#include "kernel/sweep.h"

enum { PATTERNS = 8192 };

static void sample(enum isa isa)
{
	static uint32_t grad[PATTERNS];
	struct rng r = {2026};

	for (size_t i = 0; i < PATTERNS; i++)
		grad[i] = i < NR(awkward) ? awkward[i] : (uint32_t)rng_next(&r);
	sweep_isa(&(struct sweep){SHARD_F32, PATTERNS, grad}, isa);
}

static void avx2(void **state)
{
	(void)state;
	sample(ISA_AVX2);
}

static void avx512(void **state)
{
	(void)state;
	sample(ISA_AVX512);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(avx2), cmocka_unit_test(avx512)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
