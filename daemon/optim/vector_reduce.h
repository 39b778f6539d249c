/* SPDX-License-Identifier: Apache-2.0 */
/* vector_reduce.h: the sum of reduce.h for whatever vector the including file has defined. Works on REDUCE_LANES elements at a time
 * (vec is one or two of them per turn); what is left over at the end of a block is copied into a padded line, so that one
 * arithmetic serves both. The number of sources is a constant for up to four, so that their loop disappears. */
#ifndef SHARD_OPTIM_VECTOR_REDUCE_H
#define SHARD_OPTIM_VECTOR_REDUCE_H

#include "base/check.h"
#include "optim/kernels.h"

enum {
	PARTS = REDUCE_LANES / VEC_LANES,
	SUM_STREAM_MIN = 256 << 10, /* elements */
};

struct rlanes { /* sixteen sums of squares and what has been seen of non-finite elements */
	struct vec_sq sq[PARTS];
	vmask finite[PARTS];
};

INLINE vec rload(enum shard_dtype dt, const void *src, size_t i)
{
	if (dt == SHARD_F32)
		return vec_load((const float *)src + i);
	return dt == SHARD_BF16 ? vec_load_bf16((const uint16_t *)src + i) : vec_load_f16((const uint16_t *)src + i);
}

/* Stores x rounded to dt, every NaN as the plain one, and returns what a reader of dst will see. `stream` writes past the caches. */
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

/* The square of a finite float fits into a double, so with a norm the sum itself tells whether all was finite. */
INLINE void look(vec x, bool norm, int part, struct rlanes *l)
{
	if (norm)
		l->sq[part] = vec_sq_add(l->sq[part], x);
	else
		l->finite[part] = vmask_and(l->finite[part], vec_finite(x));
}

/* REDUCE_LANES elements from i on. */
INLINE void line(enum shard_dtype dt, uint32_t k, const void *const *src, void *dst, size_t i, bool norm, bool stream,
		 struct rlanes *l)
{
	for (int part = 0; part < PARTS; part++, i += VEC_LANES) {
		vec x = rload(dt, src[0], i);

		for (uint32_t s = 1; s < k; s++)
			x = vec_add(x, rload(dt, src[s], i));
		if (k > 1)
			x = rstore(dt, dst, i, x, stream);
		look(x, norm, part, l);
	}
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

/* nr < REDUCE_LANES elements from i on: zeros behind them change neither a sum of squares nor the finite flag. */
static void short_line(enum shard_dtype dt, uint32_t k, const void *const *src, void *dst, size_t i, size_t nr, bool norm,
		       struct rlanes *l)
{
	_Alignas(64) char in[REDUCE_LANES * DTYPE_BYTES_MAX] = {0}, out[REDUCE_LANES * DTYPE_BYTES_MAX];
	size_t size = dtype_bytes(dt), at = i * size, bytes = nr * size;
	vec x[PARTS];

	memcpy(in, (const char *)src[0] + at, bytes);
	for (int part = 0; part < PARTS; part++)
		x[part] = rload(dt, in, (size_t)part * VEC_LANES);
	for (uint32_t s = 1; s < k; s++) {
		memcpy(in, (const char *)src[s] + at, bytes);
		for (int part = 0; part < PARTS; part++)
			x[part] = vec_add(x[part], rload(dt, in, (size_t)part * VEC_LANES));
	}
	for (int part = 0; part < PARTS; part++) {
		if (k > 1)
			x[part] = rstore(dt, out, (size_t)part * VEC_LANES, x[part], false);
		look(x[part], norm, part, l);
	}
	if (k > 1)
		memcpy((char *)dst + at, out, bytes);
}

INLINE void lanes_zero(struct rlanes *l)
{
	for (int part = 0; part < PARTS; part++) {
		l->sq[part] = vec_sq_zero();
		l->finite[part] = vec_finite(vec_all(0));
	}
}

INLINE bool lanes_finite(const struct rlanes *l)
{
	bool finite = true;

	for (int part = 0; part < PARTS; part++)
		finite = finite && vmask_count(l->finite[part]) == VEC_LANES;
	return finite;
}

/* The norm of one source, two whole blocks at a time: a lane's additions wait for one another, those of different blocks do not. The
 * processor does not guess that reading goes on behind the other block, so the next pair is asked for. One core, 64 Mi bf16 from
 * memory: 4.3 ms block by block, 3.3 in pairs; with more sources it is the memory that counts, and pairs lose. */
INLINE size_t norm_pairs(enum shard_dtype dt, size_t n, const void *const *src, struct reduce_sum *r)
{
	const size_t pair = 2 * REDUCE_BLOCK, size = dtype_bytes(dt);
	struct rlanes one, two;
	size_t at = 0;

	for (; n - at >= pair; at += pair) {
		lanes_zero(&one);
		lanes_zero(&two);
		for (size_t i = at; i < at + REDUCE_BLOCK; i += REDUCE_LANES) {
			__builtin_prefetch((const char *)src[0] + (i + pair) * size);
			__builtin_prefetch((const char *)src[0] + (i + pair + REDUCE_BLOCK) * size);
			line(dt, 1, src, NULL, i, true, false, &one);
			line(dt, 1, src, NULL, i + REDUCE_BLOCK, true, false, &two);
		}
		r->sq += fold(&one);
		r->sq += fold(&two);
	}
	return at;
}

/* The last sum of a large segment is read again only after the commit: its lines need not be fetched to be overwritten. */
INLINE struct reduce_sum reduce_k(enum shard_dtype dt, size_t n, uint32_t k, const void *const *src, void *dst, bool norm)
{
	struct reduce_sum r = {0, true};
	const bool stream = k > 1 && norm && n >= SUM_STREAM_MIN && (uintptr_t)dst % 64 == 0;
	struct rlanes l;

	for (size_t at = k == 1 && norm ? norm_pairs(dt, n, src, &r) : 0; at < n; at += REDUCE_BLOCK) {
		size_t end = n - at < REDUCE_BLOCK ? n : at + REDUCE_BLOCK, i = at;

		lanes_zero(&l);
		for (; i + REDUCE_LANES <= end; i += REDUCE_LANES) {
			line(dt, k, src, dst, i, norm, stream, &l);
		}
		if (i < end)
			short_line(dt, k, src, dst, i, end - i, norm, &l);
		if (norm)
			r.sq += fold(&l);
		r.finite = r.finite && lanes_finite(&l);
	}
	if (stream)
		_mm_sfence(); /* before anybody hears that the sum is there */
	if (norm)
		r.finite = r.sq - r.sq == 0;
	return r;
}

INLINE struct reduce_sum reduce_dt(enum shard_dtype dt, size_t n, uint32_t k, const void *const *src, void *dst, bool norm)
{
	CHECK(k >= 1 && k <= REDUCE_MAX && (dst || k == 1));
	switch (k) {
	case 1:
		if (dst && dst != src[0])
			memcpy(dst, src[0], n * dtype_bytes(dt));
		return norm ? reduce_k(dt, n, 1, src, dst, true) : reduce_k(dt, n, 1, src, dst, false);
	case 2:
		return norm ? reduce_k(dt, n, 2, src, dst, true) : reduce_k(dt, n, 2, src, dst, false);
	case 3:
		return norm ? reduce_k(dt, n, 3, src, dst, true) : reduce_k(dt, n, 3, src, dst, false);
	case 4:
		return norm ? reduce_k(dt, n, 4, src, dst, true) : reduce_k(dt, n, 4, src, dst, false);
	default:
		return norm ? reduce_k(dt, n, k, src, dst, true) : reduce_k(dt, n, k, src, dst, false);
	}
}

#define REDUCE_DEFINE(table)                                                                                                       \
	static struct reduce_sum reduce_f32(size_t n, uint32_t k, const void *const *src, void *dst, bool norm)                    \
	{                                                                                                                          \
		return reduce_dt(SHARD_F32, n, k, src, dst, norm);                                                                 \
	}                                                                                                                          \
	static struct reduce_sum reduce_bf16(size_t n, uint32_t k, const void *const *src, void *dst, bool norm)                   \
	{                                                                                                                          \
		return reduce_dt(SHARD_BF16, n, k, src, dst, norm);                                                                \
	}                                                                                                                          \
	static struct reduce_sum reduce_f16(size_t n, uint32_t k, const void *const *src, void *dst, bool norm)                    \
	{                                                                                                                          \
		return reduce_dt(SHARD_F16, n, k, src, dst, norm);                                                                 \
	}                                                                                                                          \
	const struct reduce_kernels table = {{reduce_f32, reduce_bf16, reduce_f16}};

#endif
