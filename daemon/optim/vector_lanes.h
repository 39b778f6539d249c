/* SPDX-License-Identifier: Apache-2.0 */
/* vector_lanes.h: what vector_reduce.h and vector_quant.h share: elements of any type as vectors of
 * fp32, and the sixteen sums of squares of a block. The including file has defined the vector. */
#ifndef SHARD_OPTIM_VECTOR_LANES_H
#define SHARD_OPTIM_VECTOR_LANES_H

#include "optim/reduce.h"

enum { PARTS = REDUCE_LANES / VEC_LANES };

struct rlanes { /* Sixteen sums of squares, and which lanes have been finite so far. */
	struct vec_sq sq[PARTS];
	vmask finite[PARTS];
};

INLINE vec rload(enum shard_dtype dt, const void *src, size_t i)
{
	if (dt == SHARD_F32)
		return vec_load((const float *)src + i);
	return dt == SHARD_BF16 ? vec_load_bf16((const uint16_t *)src + i)
				: vec_load_f16((const uint16_t *)src + i);
}

/* Stores x rounded to dt, with every NaN as the plain one, and returns what a reader of dst will
 * see. `stream` writes past the caches. */
INLINE vec rstore(enum shard_dtype dt, void *dst, size_t i, vec x, bool stream)
{
	vec_half h;

	if (dt == SHARD_F32) {
		x = vec_plain_nan(x);
		if (stream)
			vec_stream((float *)dst + i, x);
		else
			vec_store((float *)dst + i, x);
		return x;
	}
	if (dt == SHARD_BF16) {
		x = vec_round_bf16(x, &h);
	} else {
		h = vec_to_f16(vec_plain_nan(x));
		x = vec_from_f16(h);
	}
	if (stream)
		vec_stream_half((uint16_t *)dst + i, h);
	else
		vec_store_half((uint16_t *)dst + i, h);
	return x;
}

INLINE double fold(const struct rlanes *l)
{
	double lane[REDUCE_LANES];

	for (int part = 0; part < PARTS; part++)
		vec_sq_store(lane + part * VEC_LANES, l->sq[part]);
	for (int width = REDUCE_LANES / 2; width > 0; width /= 2)
		for (int j = 0; j < width; j++)
			lane[j] += lane[j + width];
	return lane[0];
}

INLINE void lanes_zero(struct rlanes *l)
{
	for (int part = 0; part < PARTS; part++) {
		l->sq[part] = vec_sq_zero();
		l->finite[part] = vec_finite(vec_all(0));
	}
}

#endif
