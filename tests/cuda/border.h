/* SPDX-License-Identifier: Apache-2.0 */
/* border.h: operands whose product, sum of product, or quotient is next to 2^-126, where devices
 * may flush otherwise than x86 does (optim/ops.h). Tests give them to the kernels of border.cu, on
 * a processor with shim.h or on a GPU. It is plain enough for C, C++ and CUDA. */
#ifndef SHARD_TESTS_BORDER_H
#define SHARD_TESTS_BORDER_H

#include <stdint.h>

enum { BORDER_THREADS = 256 };
enum border_op { BORDER_MUL, BORDER_FMA, BORDER_DIV, BORDER_OPS };

struct border_job {
	const float *x, *y, *z;
	float *out;
	uint32_t n;
};

/* Makes n cases from a seed. In most of them the exact result is within 2^-22 of the border, and in
 * many within 2^-24 below it. */
void border_make(enum border_op op, uint64_t seed, uint32_t n, float *x, float *y, float *z);
/* The calling thread's own arithmetic, with flush-to-zero. */
void border_expect(enum border_op op, uint32_t n, const float *x, const float *y, const float *z,
		   float *out);

#endif
