/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the processor for its instruction sets. The conversions, the kernels and the tests call it.
 * It is cheap enough to call before each array, because the compiler's run-time support executes
 * CPUID once per process and keeps the answer. (In a virtual machine CPUID traps and takes 20 us.)
 * The run-time support also knows whether the operating system saves the wide registers. It cannot
 * fail. */
#include "base/isa.h"

#include "base/check.h"
#ifdef __x86_64__
#ifdef __clang__ /* It cannot ask for "f16c", so each call executes CPUID. */
#include <cpuid.h>
#endif

static bool has_f16c(void)
{
#ifdef __clang__
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
#else
	return __builtin_cpu_supports("f16c");
#endif
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
		return avx2 && __builtin_cpu_supports("avx512f") &&
		       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
		       __builtin_cpu_supports("avx512dq");
	case ISA_NR:
		break;
	}
	return false;
}
#else
bool isa_has(enum isa isa)
{
	return isa == ISA_SCALAR;
}
#endif

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
