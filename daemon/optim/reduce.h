/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h: sums gradients of several sources in one pass over memory, rounds once, and takes the
 * sum of squares of the rounded result. It is used for the sum of a node over its ranks, for the
 * sum of a chunk over nodes, and (one source, no destination) for the norm alone. The order of
 * every operation is in wire/ARITHMETIC.md. All instruction sets give the same bits. */
#ifndef SHARD_OPTIM_REDUCE_H
#define SHARD_OPTIM_REDUCE_H

#include "base/isa.h"
#include "wire/dtype.h"

enum {
	REDUCE_LANES = 16,
	REDUCE_BLOCK = 4096, /* Elements after which the lanes are folded together. */
	REDUCE_MAX = 1024,   /* The largest number of sources. */
};

struct reduce_sum {
	double sq;   /* The sum of squares of the segment's result. 0.0 if norm was false. */
	bool finite; /* No element of the result is infinite or NaN. */
};

/* Reduces one segment of n elements from k sources, 1 <= k <= REDUCE_MAX, added in the order of
 * src. dst may be exactly one of the sources, and otherwise overlaps none. It may be NULL if k is 1
 * and pre is 1. Each source is multiplied by pre before it is added. If pre is 1 nothing is
 * multiplied, and the bits of a single source are kept. */
typedef struct reduce_sum reduce_fn(size_t n, uint32_t k, const void *const *src, void *dst,
				    float pre, bool norm);

reduce_fn *reduce_kernel(enum isa isa, enum shard_dtype dt); /* CHECKs isa_has(isa). */

#endif
