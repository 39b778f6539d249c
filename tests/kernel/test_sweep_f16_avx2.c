/* SPDX-License-Identifier: Apache-2.0 */
/* Runs all 65536 f16 gradients times 64 states. ISA_AVX2 equals the scalar kernels bit for bit, for
 * every optimizer, image type and setting of flush-to-zero. */
#include "kernel/sweep.h"

static void all_patterns(void **state)
{
	static uint16_t grad[65536];

	(void)state;
	for (size_t i = 0; i < NR(grad); i++)
		grad[i] = (uint16_t)i;
	sweep_isa(&(struct sweep){SHARD_F16, NR(grad), grad}, ISA_AVX2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(all_patterns)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
