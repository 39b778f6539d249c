/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h: sums gradients of several sources in one pass over memory, rounds once, and takes the
 * sum of squares of what it rounded. Used for a node's sum over its ranks, a primary's sum over
 * nodes, and (one source, no destination) for the norm alone. The order of every operation is in
 * wire/ARITHMETIC.md; all instruction sets give the same bits. */
#ifndef SHARD_OPTIM_REDUCE_H
#define SHARD_OPTIM_REDUCE_H

#include "base/isa.h"
#include "wire/dtype.h"

enum {
	REDUCE_LANES = 16,
	REDUCE_BLOCK = 4096, /* elements whose lanes are folded together */
	REDUCE_MAX = 1024,   /* sources */
};

struct reduce_sum {
	double sq;   /* sum of squares of the segment's result; 0.0 where norm was false */
	bool finite; /* no element of the result is infinite or NaN */
};

/* One segment of n elements from k sources, 1 <= k <= REDUCE_MAX, added in the order of src. dst
 * may be any one of the sources exactly, may overlap none otherwise, and may be NULL when k is 1
 * and pre is 1. Each source is multiplied by pre before it is added; 1: it is not, and one source's
 * bits are kept. */
typedef struct reduce_sum reduce_fn(size_t n, uint32_t k, const void *const *src, void *dst,
				    float pre, bool norm);

reduce_fn *reduce_kernel(enum isa isa, enum shard_dtype dt); /* CHECKs isa_has(isa) */

#endif
