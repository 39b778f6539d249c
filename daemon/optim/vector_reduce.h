/* SPDX-License-Identifier: Apache-2.0 */
/* vector_reduce.h: the sum of reduce.h with the vector that the including file has defined. It
 * works on REDUCE_LANES elements at a time, which are one or two of these vectors. What is left
 * over at the end of a block is copied into a padded line, so that the same arithmetic serves both.
 * The number of sources is a constant for up to four sources, so that the loop over them
 * disappears. It is not where sources are multiplied first, which is rare. `scaled` is a constant
 * everywhere. */
#ifndef SHARD_OPTIM_VECTOR_REDUCE_H
#define SHARD_OPTIM_VECTOR_REDUCE_H

#include "base/check.h"
#include "optim/kernels.h"
#include "optim/vector_lanes.h"

enum {
	SUM_STREAM_MIN = 256 << 10, /* In elements. */
	FEW = 4,                    /* So many sources are read side by side. */
	RUN = REDUCE_BLOCK / 2,     /* In elements. */
};

/* Copies a vector of a lone source bit by bit, and returns it. The source may change at any time,
 * so it is loaded once, and what is judged is what was stored. The empty assembler line keeps the
 * compiler from loading it a second time. */
INLINE vec rcopy(enum shard_dtype dt, const void *src, void *dst, size_t i, bool stream)
{
	if (dt == SHARD_F32) {
		vec x = vec_load((const float *)src + i);

		__asm__("" : "+x"(x));
		if (stream)
			vec_stream((float *)dst + i, x);
		else
			vec_store((float *)dst + i, x);
		return x;
	}
	vec_half h = vec_load_half((const uint16_t *)src + i);

	__asm__("" : "+x"(h));
	if (stream)
		vec_stream_half((uint16_t *)dst + i, h);
	else
		vec_store_half((uint16_t *)dst + i, h);
	return dt == SHARD_BF16 ? vec_from_bf16(h) : vec_from_f16(h);
}

/* The square of a finite float fits into a double. With a norm the sum itself therefore tells
 * whether all elements were finite. */
INLINE void look(vec x, bool norm, int part, struct rlanes *l)
{
	if (norm)
		l->sq[part] = vec_sq_add(l->sq[part], x);
	else
		l->finite[part] = vmask_and(l->finite[part], vec_finite(x));
}

struct rhow { /* What is done to each element. All but pre are constants. */
	bool scaled, norm, stream;
	bool copy; /* A lone source, not scaled, goes to dst. */
	vec pre;
};

INLINE vec operand(enum shard_dtype dt, const void *src, size_t i, const struct rhow *how)
{
	vec x = rload(dt, src, i);

	return how->scaled ? vec_mul(x, how->pre) : x;
}

/* Reduces REDUCE_LANES elements from i on. */
INLINE void line(enum shard_dtype dt, uint32_t k, const void *const *src, void *dst, size_t i,
		 const struct rhow *how, struct rlanes *l)
{
	for (int part = 0; part < PARTS; part++, i += VEC_LANES) {
		vec x = how->copy ? rcopy(dt, src[0], dst, i, how->stream)
				  : operand(dt, src[0], i, how);

		for (uint32_t s = 1; s < k; s++)
			x = vec_add(x, operand(dt, src[s], i, how));
		if (k > 1 || how->scaled)
			x = rstore(dt, dst, i, x, how->stream);
		look(x, how->norm, part, l);
	}
}

/* Reduces nr < REDUCE_LANES elements from i on. The zeros after them change neither a sum of
 * squares nor the finite flag. */
static void short_line(enum shard_dtype dt, uint32_t k, const void *const *src, void *dst, size_t i,
		       size_t nr, const struct rhow *how, struct rlanes *l)
{
	_Alignas(64) char in[REDUCE_LANES * DTYPE_BYTES_MAX] = {0},
					    out[REDUCE_LANES * DTYPE_BYTES_MAX];
	size_t size = dtype_bytes(dt), at = i * size, bytes = nr * size;
	vec x[PARTS];

	memcpy(in, (const char *)src[0] + at, bytes);
	for (int part = 0; part < PARTS; part++)
		x[part] = operand(dt, in, (size_t)part * VEC_LANES, how);
	for (uint32_t s = 1; s < k; s++) {
		memcpy(in, (const char *)src[s] + at, bytes);
		for (int part = 0; part < PARTS; part++)
			x[part] = vec_add(x[part], operand(dt, in, (size_t)part * VEC_LANES, how));
	}
	for (int part = 0; part < PARTS; part++) {
		if (k > 1 || how->scaled)
			x[part] = rstore(dt, out, (size_t)part * VEC_LANES, x[part], false);
		look(x[part], how->norm, part, l);
	}
	if (how->copy)
		memcpy((char *)dst + at, in, bytes);
	else if (k > 1 || how->scaled)
		memcpy((char *)dst + at, out, bytes);
}

INLINE bool lanes_finite(const struct rlanes *l)
{
	bool finite = true;

	for (int part = 0; part < PARTS; part++)
		finite = finite && vmask_count(l->finite[part]) == VEC_LANES;
	return finite;
}

/* Takes the norm of one source, and copies it, two whole blocks at a time. The additions of one
 * lane wait for one another, but those of different blocks do not. The processor does not guess
 * that reading goes on after the other block, so the next pair is prefetched. With one core and 64
 * Mi bf16 from memory this took 3.3 ms, and 4.3 ms block by block. With more sources the memory
 * limits the speed, and pairs are slower. */
INLINE size_t norm_pairs(enum shard_dtype dt, size_t n, const void *const *src, void *dst,
			 const struct rhow *how, struct reduce_sum *r)
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
			line(dt, 1, src, dst, i, how, &one);
			line(dt, 1, src, dst, i + REDUCE_BLOCK, how, &two);
		}
		r->sq += fold(&one);
		r->sq += fold(&two);
	}
	return at;
}

/* Adds m of the sources, from src[0] on, to what acc has of a run, for `nr` elements, which are
 * whole lines. first: acc has nothing yet. last: no source follows, so the sum goes to dst. ahead[]
 * is what will be read next, as it lies at the beginning of the run. */
INLINE void add_few(enum shard_dtype dt, uint32_t m, bool first, bool last, const void *const *src,
		    const char *const *ahead, void *dst, float *acc, size_t at, size_t nr,
		    const struct rhow *how, struct rlanes *l)
{
	const size_t size = dtype_bytes(dt);

	for (size_t i = 0; i < nr; i += REDUCE_LANES) {
		for (uint32_t s = 0; s < FEW && i * size % 64 == 0; s++)
			__builtin_prefetch(ahead[s] + i * size, 0, 2);
		for (int part = 0; part < PARTS; part++) {
			size_t j = i + (size_t)part * VEC_LANES;
			vec x = operand(dt, src[0], at + j, how);

			if (!first)
				x = vec_add(vec_load(acc + j), x);
			for (uint32_t s = 1; s < m; s++)
				x = vec_add(x, operand(dt, src[s], at + j, how));
			if (last)
				look(rstore(dt, dst, at + j, x, how->stream), how->norm, part, l);
			else
				vec_store(acc + j, x);
		}
	}
}

/* Many sources, a run of each at a time, a few side by side. Side by side, all of them would push
 * each other out of the first cache, because arenas lie at like addresses, and the processor does
 * not follow so many streams. The sums in between stay in the first cache. What is read next is
 * prefetched into the second one. On two cores 16 sources were summed at 30 GB/s, and at 22 side by
 * side; 32 sources at 31 and 17. */
INLINE void add_many(enum shard_dtype dt, uint32_t k, const void *const *src, void *dst, size_t at,
		     size_t nr, const struct rhow *how, struct rlanes *l)
{
	_Alignas(64) float acc[RUN];
	const size_t size = dtype_bytes(dt);

	for (uint32_t g = 0; g < k; g += FEW) {
		const char *ahead[FEW];
		uint32_t m = k - g < FEW ? k - g : FEW;

		for (uint32_t s = 0; s < FEW; s++) {
			uint32_t next = g + FEW + s;

			ahead[s] = next < k ? (const char *)src[next] + at * size
					    : (const char *)src[(next - k) % k] + (at + nr) * size;
		}
		if (g == 0)
			add_few(dt, FEW, true, false, src, ahead, dst, acc, at, nr, how, l);
		else if (g + m < k)
			add_few(dt, FEW, false, false, src + g, ahead, dst, acc, at, nr, how, l);
		else
			add_few(dt, m, false, true, src + g, ahead, dst, acc, at, nr, how, l);
	}
}

/* The last sum of a large segment is read again only after the commit. It is written past the
 * caches, so that its lines are not fetched only to be overwritten. So is the copy of a lone
 * source.
 */
INLINE struct reduce_sum reduce_k(enum shard_dtype dt, size_t n, uint32_t k, const void *const *src,
				  void *dst, bool scaled, bool copy, float pre, bool norm)
{
	struct reduce_sum r = {0, true};
	const struct rhow how = {.scaled = scaled,
				 .norm = norm,
				 .stream = (k > 1 || copy) && norm && n >= SUM_STREAM_MIN &&
					   (uintptr_t)dst % 64 == 0,
				 .copy = copy,
				 .pre = vec_all(pre)};
	struct rlanes l;

	for (size_t at = k == 1 && norm && !scaled ? norm_pairs(dt, n, src, dst, &how, &r) : 0;
	     at < n; at += REDUCE_BLOCK) {
		size_t end = n - at < REDUCE_BLOCK ? n : at + REDUCE_BLOCK, i = at;

		lanes_zero(&l);
		while (k > FEW && i + REDUCE_LANES <= end) {
			size_t nr = end - i < RUN ? (end - i) / REDUCE_LANES * REDUCE_LANES : RUN;

			add_many(dt, k, src, dst, i, nr, &how, &l);
			i += nr;
		}
		for (; i + REDUCE_LANES <= end; i += REDUCE_LANES)
			line(dt, k, src, dst, i, &how, &l);
		if (i < end)
			short_line(dt, k, src, dst, i, end - i, &how, &l);
		if (norm)
			r.sq += fold(&l);
		r.finite = r.finite && lanes_finite(&l);
	}
	if (how.stream)
		_mm_sfence(); /* The sum is complete in memory before anybody is told of it. */
	if (norm)
		r.finite = r.sq - r.sq == 0;
	return r;
}

INLINE struct reduce_sum reduce_dt(enum shard_dtype dt, size_t n, uint32_t k,
				   const void *const *src, void *dst, float pre, bool norm)
{
	CHECK(k >= 1 && k <= REDUCE_MAX && (dst || (k == 1 && pre == 1)));
	if (pre != 1)
		return norm ? reduce_k(dt, n, k, src, dst, true, false, pre, true)
			    : reduce_k(dt, n, k, src, dst, true, false, pre, false);
	switch (k) {
	case 1:
		if (dst && dst != src[0])
			return norm ? reduce_k(dt, n, 1, src, dst, false, true, 1, true)
				    : reduce_k(dt, n, 1, src, dst, false, true, 1, false);
		return norm ? reduce_k(dt, n, 1, src, dst, false, false, 1, true)
			    : reduce_k(dt, n, 1, src, dst, false, false, 1, false);
	case 2:
		return norm ? reduce_k(dt, n, 2, src, dst, false, false, 1, true)
			    : reduce_k(dt, n, 2, src, dst, false, false, 1, false);
	case 3:
		return norm ? reduce_k(dt, n, 3, src, dst, false, false, 1, true)
			    : reduce_k(dt, n, 3, src, dst, false, false, 1, false);
	case 4:
		return norm ? reduce_k(dt, n, 4, src, dst, false, false, 1, true)
			    : reduce_k(dt, n, 4, src, dst, false, false, 1, false);
	default:
		return norm ? reduce_k(dt, n, k, src, dst, false, false, 1, true)
			    : reduce_k(dt, n, k, src, dst, false, false, 1, false);
	}
}

#define REDUCE_DEFINE(table)                                                                       \
	static struct reduce_sum reduce_f32(size_t n, uint32_t k, const void *const *src,          \
					    void *dst, float pre, bool norm)                       \
	{                                                                                          \
		return reduce_dt(SHARD_F32, n, k, src, dst, pre, norm);                            \
	}                                                                                          \
	static struct reduce_sum reduce_bf16(size_t n, uint32_t k, const void *const *src,         \
					     void *dst, float pre, bool norm)                      \
	{                                                                                          \
		return reduce_dt(SHARD_BF16, n, k, src, dst, pre, norm);                           \
	}                                                                                          \
	static struct reduce_sum reduce_f16(size_t n, uint32_t k, const void *const *src,          \
					    void *dst, float pre, bool norm)                       \
	{                                                                                          \
		return reduce_dt(SHARD_F16, n, k, src, dst, pre, norm);                            \
	}                                                                                          \
	const struct reduce_kernels table = {{reduce_f32, reduce_bf16, reduce_f16}};

#endif
