/* SPDX-License-Identifier: Apache-2.0 */
/* quant.h: fp32 values as small integers with one scale for each block of them. Gradients are coded
 * so between nodes, with what the code loses kept as a residual for the next step (error feedback),
 * and images as the difference from the image that the receivers have. The order of every operation
 * is in wire/ARITHMETIC.md, section 2a. All instruction sets give the same bits.
 *
 * A segment of n elements is cut into blocks, the last one shorter. Its coded form has the codes of
 * all blocks, zeros up to a multiple of four bytes, and then one fp32 scale for each block. int8: a
 * code is a byte. int4: a block of m elements takes h = (m + 1) / 2 bytes, of which byte i has
 * element i in its low half and element h + i in its high half. A code is from -127 to 127, or from
 * -7 to 7. A scale is a NaN for a block with an element that is infinite or NaN, and 0 for a block
 * without any magnitude above 2^-100. */
#ifndef SHARD_OPTIM_QUANT_H
#define SHARD_OPTIM_QUANT_H

#include "base/isa.h"
#include "optim/reduce.h"
#include "wire/dtype.h"

#include <stddef.h>
#include <stdint.h>

enum quant_kind { QUANT_NONE, QUANT_INT8, QUANT_INT4, QUANT_NR };
enum { QUANT_BLOCK_MIN = 64, QUANT_BLOCK_MAX = 1024 };

struct quant {
	enum quant_kind kind; /* Never QUANT_NONE where something is coded. */
	uint32_t block;       /* In elements: a power of two from 64 to 1024. */
};

struct quant_residual {       /* What codes lose, bf16, and where it goes. */
	const uint16_t *last; /* [n] Is added to the source, times factor. NULL: it is 0. */
	float factor;
	uint16_t *next; /* [n] Gets what the codes lose. NULL: nobody keeps it. May be .last. */
};

/* Of the coded form of a segment of n elements. */
size_t quant_bytes(const struct quant *q, size_t n);

/* Is none of its scales infinite or NaN? */
bool quant_finite(const struct quant *q, size_t n, const void *coded);

/* What each instruction set has. Segments have n >= 1 elements and need no alignment. Coded ones
 * may come from another node, and any bytes stand for some value. */
struct quant_kernels {
	/* Codes src (dt) into dst. r NULL: without error feedback. src may change meanwhile; then
	 * any codes come of it. */
	void (*encode)(const struct quant *q, size_t n, const void *src, enum shard_dtype dt,
		       const struct quant_residual *r, void *dst);
	/* As reduce_fn, of k coded segments. dst (dt) overlaps none of them. */
	struct reduce_sum (*sum)(const struct quant *q, size_t n, uint32_t k,
				 const void *const *coded, void *dst, enum shard_dtype dt,
				 bool norm);
	/* Codes master - before into dst, and writes the image (dt) that patch() makes of it.
	 * before (dt) is the image that the receivers have. It may be the same memory as image. */
	void (*delta)(const struct quant *q, size_t n, const float *master, const void *before,
		      void *image, enum shard_dtype dt, void *dst);
	void (*patch)(const struct quant *q, size_t n, const void *coded, const void *before,
		      void *image, enum shard_dtype dt);
};

const struct quant_kernels *quant_kernels(enum isa isa); /* CHECKs isa_has(isa). */

#endif
