/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 for every processor, and the choice between the variants. frame.c calls it for headers and
 * net/stream.c for bodies. xxh_best() asks the compiler's run-time support and not isa_has(), which
 * executes CPUID at each call where clang compiled it. That costs microseconds in a virtual
 * machine. It cannot fail. */
#define XXH_ROW xxh_base
#ifdef __x86_64__
#define XXH_VECTOR 1 /* XXH_SSE2, which every x86-64 has. */
#else
#define XXH_VECTOR 0 /* XXH_SCALAR. */
#endif
#include "wire/xxh_impl.h"

#include "base/check.h"

#ifdef __x86_64__
const struct xxh_row *xxh_row(enum isa isa)
{
	CHECK((unsigned)isa < ISA_NR);
	return isa == ISA_AVX512 ? &xxh_avx512 : isa == ISA_AVX2 ? &xxh_avx2 : &xxh_base;
}

const struct xxh_row *xxh_best(void)
{
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512vl"))
		return &xxh_avx512;
	return __builtin_cpu_supports("avx2") ? &xxh_avx2 : &xxh_base;
}
#else
const struct xxh_row *xxh_row(enum isa isa)
{
	CHECK(isa == ISA_SCALAR);
	return &xxh_base;
}

const struct xxh_row *xxh_best(void)
{
	return &xxh_base;
}
#endif
