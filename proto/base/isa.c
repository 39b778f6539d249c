/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the processor. Called by whoever picks a kernel, once; never in a loop. The compiler's run-time support also checks that
 * the operating system saves the wide registers; F16C is read by hand because not every compiler's list knows it. Cannot fail. */
#include "base/isa.h"

#include "base/check.h"
#include <cpuid.h>

static bool has_f16c(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool isa_has(enum isa isa)
{
	__builtin_cpu_init();
	bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();

	switch (isa) {
	case ISA_SCALAR:
		return true;
	case ISA_AVX2:
		return avx2;
	case ISA_AVX512:
		return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
	case ISA_NR:
		break;
	}
	return false;
}

enum isa isa_best(void)
{
	return isa_has(ISA_AVX512) ? ISA_AVX512 : isa_has(ISA_AVX2) ? ISA_AVX2 : ISA_SCALAR;
}

const char *isa_name(enum isa isa)
{
	static const char *const names[ISA_NR] = {"scalar", "avx2", "avx512"};

	CHECK((unsigned)isa < ISA_NR);
	return names[isa];
}
