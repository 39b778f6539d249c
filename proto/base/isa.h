/* SPDX-License-Identifier: Apache-2.0 */
/* isa.h: which instruction sets this processor and its kernel offer. Every routine with a variant
 * per instruction set takes an enum isa, so that a test can run all of them. The results never
 * depend on the choice. */
#ifndef SHARD_BASE_ISA_H
#define SHARD_BASE_ISA_H

#include <stdbool.h>

enum isa {
	ISA_SCALAR, /* Baseline x86-64. This is the reference. */
	ISA_AVX2,   /* With FMA and F16C. */
	ISA_AVX512, /* F, BW, VL and DQ, and all of ISA_AVX2. */
	ISA_NR,
};

bool isa_has(enum isa isa);
enum isa isa_best(void);
const char *isa_name(enum isa isa); /* "scalar", "avx2", "avx512" */

#endif
