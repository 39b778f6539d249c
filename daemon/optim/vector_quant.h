/* SPDX-License-Identifier: Apache-2.0 */
/* vector_quant.h: the kernels of quant.h with the vector that the including file has defined. Each
 * kernel goes from block to block. It takes a block into a buffer of fp32 that stays in the first
 * cache, so that memory is read once and a source that changes meanwhile does no harm, works there
 * on whole lines, and puts out what the block has. The last block is filled up with zeros, which
 * have no magnitude and change no sum. */
#ifndef SHARD_OPTIM_VECTOR_QUANT_H
#define SHARD_OPTIM_VECTOR_QUANT_H

#include "base/check.h"
#include "optim/kernels.h"
#include "optim/vector_lanes.h"

#include <math.h>
#include <string.h>

enum {
	LINE = REDUCE_LANES,
	OPERANDS = 4, /* So many coded operands are read side by side. */
};

/* A block, in whole lines. */
struct qblock {
	_Alignas(64) float x[QUANT_BLOCK_MAX];
	_Alignas(64) int8_t code[OPERANDS][QUANT_BLOCK_MAX];
	_Alignas(64) char rest[2][LINE * DTYPE_BYTES_MAX];
};

/* What a kernel knows at compile time. */
struct qhow {
	enum quant_kind kind;
	enum shard_dtype dt;
	uint32_t block;
};

/* --- where things are in a coded segment --- */

INLINE size_t code_bytes(enum quant_kind kind, size_t n)
{
	return kind == QUANT_INT8 ? n : (n + 1) / 2;
}

INLINE size_t scales_at(const struct qhow *how, size_t n)
{
	return (code_bytes(how->kind, n) + 3) / 4 * 4;
}

INLINE char *scale_of(const struct qhow *how, size_t n, const void *coded, size_t at)
{
	return (char *)(uintptr_t)coded + scales_at(how, n) + at / how->block * sizeof(float);
}

INLINE char *codes_of(const struct qhow *how, const void *coded, size_t at)
{
	return (char *)(uintptr_t)coded + (how->kind == QUANT_INT8 ? at : at / 2);
}

/* --- elements --- */

/* A line of src. `left` elements are left of the block: what a short line lacks is zero, and is
 * made in one of two places. */
INLINE const char *line_of(struct qblock *b, const void *src, size_t at, size_t left, size_t size,
			   int place)
{
	if (left >= LINE)
		return (const char *)src + at * size;
	memset(b->rest[place], 0, sizeof(b->rest[place]));
	memcpy(b->rest[place], (const char *)src + at * size, left * size);
	return b->rest[place];
}

struct qtop { /* The largest magnitudes so far, of each lane. */
	vec_bits part[PARTS];
};

INLINE struct qtop top_zero(void)
{
	struct qtop t;

	for (int part = 0; part < PARTS; part++)
		t.part[part] = vec_bits_zero();
	return t;
}

INLINE void keep(struct qblock *b, size_t i, int part, vec x, struct qtop *t)
{
	vec_store(b->x + i + part * VEC_LANES, x);
	t->part[part] = vec_bits_max(t->part[part], vec_magnitude(x));
}

INLINE vec part_of(enum shard_dtype dt, const char *line, int part)
{
	return rload(dt, line, (size_t)part * VEC_LANES);
}

/* Takes m elements of src from `at` on, and what was left of them before. Returns their tops. */
INLINE struct qtop take(enum shard_dtype dt, const void *src, const uint16_t *left, float factor,
			size_t at, size_t m, struct qblock *b)
{
	struct qtop t = top_zero();

	for (size_t i = 0; i < m; i += LINE) {
		const char *p = line_of(b, src, at + i, m - i, dtype_bytes(dt), 0);
		const char *r = left ? line_of(b, left, at + i, m - i, 2, 1) : NULL;

		for (int part = 0; part < PARTS; part++) {
			vec x = part_of(dt, p, part);

			if (left != NULL)
				x = vec_add(x,
					    vec_mul(part_of(SHARD_BF16, r, part), vec_all(factor)));
			keep(b, i, part, x, &t);
		}
	}
	return t;
}

/* Takes by how much a master differs from the image before. */
INLINE struct qtop take_delta(enum shard_dtype dt, const float *master, const void *before,
			      size_t at, size_t m, struct qblock *b)
{
	struct qtop t = top_zero();

	for (size_t i = 0; i < m; i += LINE) {
		const char *p = line_of(b, master, at + i, m - i, sizeof(float), 0);
		const char *was = line_of(b, before, at + i, m - i, dtype_bytes(dt), 1);

		for (int part = 0; part < PARTS; part++)
			keep(b, i, part,
			     vec_sub(part_of(SHARD_F32, p, part), part_of(dt, was, part)), &t);
	}
	return t;
}

/* --- coding --- */

struct qscale {
	float scale, inverse; /* 0 and 0: all codes are 0. */
	bool finite;
};

INLINE struct qscale scale_for(enum quant_kind kind, const struct qtop *t)
{
	const float most = kind == QUANT_INT8 ? 127.0f : 7.0f;
	vec_bits top = t->part[0];
	uint32_t bits;

	for (int part = 1; part < PARTS; part++)
		top = vec_bits_max(top, t->part[part]);
	bits = vec_bits_top(top);
	if (bits >= 0x7f800000u)
		return (struct qscale){dtype_float(0x7fc00000u), 0, false};
	if (bits <= 0x0d800000u) /* 2^-100 */
		return (struct qscale){0, 0, true};
	return (struct qscale){dtype_float(bits) / most, most / dtype_float(bits), true};
}

/* Two codes for each byte. The second half of an odd block ends with a zero. */
INLINE void pack(const int8_t *code, size_t m, uint8_t *out)
{
	size_t h = (m + 1) / 2;

	for (size_t i = 0; i < h; i++)
		out[i] = (uint8_t)((code[i] & 15) | (code[h + i] & 15) << 4);
}

INLINE void unpack(const uint8_t *in, size_t m, int8_t *code)
{
	size_t h = (m + 1) / 2;

	for (size_t i = 0; i < h; i++)
		code[i] = (int8_t)((int8_t)(uint8_t)(in[i] << 4) >> 4);
	for (size_t i = 0; i < h; i++)
		code[h + i] = (int8_t)((int8_t)in[i] >> 4);
}

/* Codes the block, which is at element `at` of n. Each x becomes what its code loses, or 0 if the
 * block is not finite, because no step is made of it. `stands`: it becomes what its code stands
 * for. */
INLINE void code(const struct qhow *how, size_t n, size_t at, size_t m, const struct qtop *t,
		 struct qblock *b, bool stands, void *dst)
{
	struct qscale s = scale_for(how->kind, t);
	vec inverse = vec_all(s.inverse), scale = vec_all(s.scale);
	bool direct = how->kind == QUANT_INT8 && m % LINE == 0;
	int8_t *codes = direct ? (int8_t *)codes_of(how, dst, at) : b->code[0];

	memcpy(scale_of(how, n, dst, at), &s.scale, sizeof(s.scale));
	for (size_t i = 0; i < m; i += LINE)
		for (int part = 0; part < PARTS; part++) {
			float *p = b->x + i + part * VEC_LANES;
			vec x = vec_load(p), y;
			vec_bits c = s.finite ? vec_nearest(vec_mul(x, inverse)) : vec_bits_zero();

			vec_store_bytes(codes + i + part * VEC_LANES, c);
			y = vec_mul(vec_from_bits(c), scale);
			if (!stands)
				y = s.finite ? vec_sub(x, y) : vec_all(0);
			vec_store(p, y);
		}
	if (how->kind == QUANT_INT8 && !direct)
		memcpy(codes_of(how, dst, at), codes, m);
	if (how->kind == QUANT_INT4)
		pack(codes, m, (uint8_t *)codes_of(how, dst, at));
}

/* The codes of a block, one to a byte, in whole lines. */
INLINE const int8_t *codes(const struct qhow *how, const void *coded, size_t at, size_t m,
			   struct qblock *b, uint32_t slot)
{
	const char *in = codes_of(how, coded, at);
	int8_t *out = b->code[slot];

	if (how->kind == QUANT_INT8 && m % LINE == 0)
		return (const int8_t *)in;
	if (how->kind == QUANT_INT8)
		memcpy(out, in, m);
	else
		unpack((const uint8_t *)in, m, out);
	for (size_t i = m; i % LINE != 0; i++)
		out[i] = 0;
	return out;
}

INLINE vec stands_for(const int8_t *code, float scale)
{
	return vec_mul(vec_from_bits(vec_load_bytes(code)), vec_all(scale));
}

/* --- sums --- */

/* Adds the blocks of k operands at element `at` to what the block has, in their order. first: it
 * has nothing yet. */
INLINE void add(const struct qhow *how, size_t n, uint32_t k, bool first, const void *const *coded,
		size_t at, size_t m, struct qblock *b)
{
	const int8_t *c[OPERANDS];
	float scale[OPERANDS];

	for (uint32_t s = 0; s < k; s++) {
		c[s] = codes(how, coded[s], at, m, b, s);
		memcpy(&scale[s], scale_of(how, n, coded[s], at), sizeof(float));
	}
	for (size_t i = 0; i < m; i += VEC_LANES) {
		vec x = stands_for(c[0] + i, scale[0]);

		if (!first)
			x = vec_add(vec_load(b->x + i), x);
		for (uint32_t s = 1; s < k; s++)
			x = vec_add(x, stands_for(c[s] + i, scale[s]));
		vec_store(b->x + i, x);
	}
}

INLINE void add_all(const struct qhow *how, size_t n, uint32_t k, const void *const *coded,
		    size_t at, size_t m, struct qblock *b)
{
	for (uint32_t s = 0; s < k; s += OPERANDS) {
		const void *const *c = coded + s;

		switch (k - s) {
		case 1:
			add(how, n, 1, s == 0, c, at, m, b);
			break;
		case 2:
			add(how, n, 2, s == 0, c, at, m, b);
			break;
		case 3:
			add(how, n, 3, s == 0, c, at, m, b);
			break;
		default:
			add(how, n, OPERANDS, s == 0, c, at, m, b);
		}
	}
	/* A block that is not finite has made NaN of the zeros after it. */
	for (size_t i = m; i % LINE != 0; i++)
		b->x[i] = 0;
}

/* Puts the m elements of the block out as dt, from element `at` of dst on. */
INLINE void put(enum shard_dtype dt, void *dst, size_t at, size_t m, struct qblock *b,
		struct rlanes *l)
{
	const size_t size = dtype_bytes(dt);

	for (size_t i = 0; i < m; i += LINE) {
		bool whole = m - i >= LINE;
		char *to = whole ? (char *)dst + (at + i) * size : b->rest[0];

		for (int part = 0; part < PARTS; part++) {
			vec x = rstore(dt, to, (size_t)part * VEC_LANES,
				       vec_load(b->x + i + part * VEC_LANES), false);

			if (l != NULL)
				l->sq[part] = vec_sq_add(l->sq[part], x);
		}
		if (!whole)
			memcpy((char *)dst + (at + i) * size, to, (m - i) * size);
	}
}

#ifdef VEC_HALVES
/* Blocks of int4 to bf16 in one go, without a stop in memory. Their scales are such that a code may
 * stay where it is in its byte, at 2^4 or 2^28 times its value, which the scale makes up for
 * exactly, and that no sum is a NaN. On a core of which another process has the other half (Zen 3)
 * two operands take 0.7 of the time, and on an idle one 0.97. The same for int8 took longer. */
INLINE bool tame(const struct qhow *how, size_t n, uint32_t k, const void *const *coded, size_t at,
		 float *scale)
{
	bool all = true;

	for (uint32_t s = 0; s < k; s++) {
		memcpy(&scale[s], scale_of(how, n, coded[s], at), sizeof(float));
		all = all && (scale[s] == 0 ||
			      (fabsf(scale[s]) >= 0x1p-90f && fabsf(scale[s]) <= 0x1p100f));
	}
	return all;
}

INLINE void half_sum(uint32_t k, bool high, const int8_t *const *c, const float *scale, size_t nr,
		     uint16_t *dst, struct rlanes *l)
{
	vec by[OPERANDS];

	for (uint32_t s = 0; s < k; s++)
		by[s] = vec_all(scale[s] * (high ? 0x1p-4f : 0x1p-28f));
	for (size_t i = 0; i < nr; i += LINE) {
		vec x[PARTS];

		for (int part = 0; part < PARTS; part++) {
			for (uint32_t s = 0; s < k; s++) {
				vec_bits b = vec_load_bytes(c[s] + i + part * VEC_LANES);
				vec y = vec_mul(
					vec_from_bits(high ? vec_high_half(b) : vec_low_half(b)),
					by[s]);

				x[part] = s == 0 ? y : vec_add(x[part], y);
			}
			x[part] = vec_plain_bf16(x[part]);
			l->sq[part] = vec_sq_add(l->sq[part], x[part]);
		}
		vec_store_bf16(dst + i, x[0], x[1]);
	}
}

INLINE void sum_halves(const struct qhow *how, uint32_t k, const void *const *coded,
		       const float *scale, size_t at, size_t m, uint16_t *dst, struct rlanes *l)
{
	const int8_t *c[OPERANDS];

	for (uint32_t s = 0; s < k; s++)
		c[s] = (const int8_t *)codes_of(how, coded[s], at);
	half_sum(k, false, c, scale, m / 2, dst + at, l);
	half_sum(k, true, c, scale, m / 2, dst + at + m / 2, l);
}

/* False: it is not such a block, and nothing was done. */
INLINE bool sum_at_once(const struct qhow *how, size_t n, uint32_t k, const void *const *coded,
			size_t at, size_t m, uint16_t *dst, struct rlanes *l)
{
	float scale[OPERANDS];

	if (how->kind != QUANT_INT4 || how->dt != SHARD_BF16 || m % (2 * LINE) != 0 ||
	    k > OPERANDS || !tame(how, n, k, coded, at, scale))
		return false;
	switch (k) {
	case 1:
		sum_halves(how, 1, coded, scale, at, m, dst, l);
		break;
	case 2:
		sum_halves(how, 2, coded, scale, at, m, dst, l);
		break;
	case 3:
		sum_halves(how, 3, coded, scale, at, m, dst, l);
		break;
	default:
		sum_halves(how, OPERANDS, coded, scale, at, m, dst, l);
	}
	return true;
}
#else
#define sum_at_once(how, n, k, coded, at, m, dst, l) false
#endif

/* --- the four kernels --- */

INLINE size_t block_at(const struct qhow *how, size_t n, size_t at)
{
	return n - at < how->block ? n - at : how->block;
}

INLINE void encode_as(const struct qhow *how, size_t n, const void *src,
		      const struct quant_residual *r, void *dst)
{
	struct qblock b;

	memset((char *)dst + code_bytes(how->kind, n), 0,
	       scales_at(how, n) - code_bytes(how->kind, n));
	for (size_t at = 0; at < n; at += how->block) {
		size_t m = block_at(how, n, at);

		struct qtop t = take(how->dt, src, r->last, r->factor, at, m, &b);

		code(how, n, at, m, &t, &b, false, dst);
		if (r->next != NULL)
			put(SHARD_BF16, r->next, at, m, &b, NULL);
	}
}

INLINE struct reduce_sum sum_as(const struct qhow *how, size_t n, uint32_t k,
				const void *const *coded, void *dst, bool norm)
{
	struct reduce_sum r = {0, true};
	struct qblock b;
	struct rlanes l;

	CHECK(k >= 1 && k <= REDUCE_MAX);
	for (size_t at = 0; at < n;) {
		size_t end = n - at < REDUCE_BLOCK ? n : at + REDUCE_BLOCK;

		lanes_zero(&l);
		for (size_t m; at < end; at += m) {
			m = block_at(how, n, at);
			if (sum_at_once(how, n, k, coded, at, m, dst, &l))
				continue;
			add_all(how, n, k, coded, at, m, &b);
			put(how->dt, dst, at, m, &b, &l);
		}
		r.sq += fold(&l);
	}
	/* The square of a finite float fits into a double, so the sum tells of all. */
	r.finite = r.sq - r.sq == 0;
	r.sq = norm ? r.sq : 0;
	return r;
}

/* The image of a block: what was before, and what the codes stand for, which the block has. */
INLINE void image_of(const struct qhow *how, const void *before, void *image, size_t at, size_t m,
		     struct qblock *b)
{
	const size_t size = dtype_bytes(how->dt);

	for (size_t i = 0; i < m; i += LINE) {
		const char *p = line_of(b, before, at + i, m - i, size, 0);

		for (int part = 0; part < PARTS; part++) {
			float *x = b->x + i + part * VEC_LANES;

			vec_store(x, vec_add(part_of(how->dt, p, part), vec_load(x)));
		}
	}
	put(how->dt, image, at, m, b, NULL);
}

INLINE void delta_as(const struct qhow *how, size_t n, const float *master, const void *before,
		     void *image, void *dst)
{
	struct qblock b;

	memset((char *)dst + code_bytes(how->kind, n), 0,
	       scales_at(how, n) - code_bytes(how->kind, n));
	for (size_t at = 0; at < n; at += how->block) {
		size_t m = block_at(how, n, at);

		struct qtop t = take_delta(how->dt, master, before, at, m, &b);

		code(how, n, at, m, &t, &b, true, dst);
		image_of(how, before, image, at, m, &b);
	}
}

INLINE void patch_as(const struct qhow *how, size_t n, const void *coded, const void *before,
		     void *image)
{
	struct qblock b;

	for (size_t at = 0; at < n; at += how->block) {
		size_t m = block_at(how, n, at);

		add(how, n, 1, true, &coded, at, m, &b);
		image_of(how, before, image, at, m, &b);
	}
}

/* Gives each pair of a kind and an element type a copy of the kernel. With one lane that is not
 * worth the compiler's time. */
#define EACH(q, dtype, call)                                                                       \
	do {                                                                                       \
		struct qhow how = {.kind = (q)->kind, .block = (q)->block, .dt = dtype};           \
                                                                                                   \
		CHECK((q)->kind == QUANT_INT8 || (q)->kind == QUANT_INT4);                         \
		if (VEC_LANES == 1)                                                                \
			call;                                                                      \
		else if ((q)->kind == QUANT_INT8)                                                  \
			EACH_DTYPE(QUANT_INT8, dtype, call);                                       \
		else                                                                               \
			EACH_DTYPE(QUANT_INT4, dtype, call);                                       \
	} while (0)
#define EACH_DTYPE(k, dtype, call)                                                                 \
	do {                                                                                       \
		how.kind = k;                                                                      \
		if ((dtype) == SHARD_F32) {                                                        \
			how.dt = SHARD_F32;                                                        \
			call;                                                                      \
		} else if ((dtype) == SHARD_BF16) {                                                \
			how.dt = SHARD_BF16;                                                       \
			call;                                                                      \
		} else {                                                                           \
			how.dt = SHARD_F16;                                                        \
			call;                                                                      \
		}                                                                                  \
	} while (0)

static void encode(const struct quant *q, size_t n, const void *src, enum shard_dtype dt,
		   const struct quant_residual *r, void *dst)
{
	static const struct quant_residual none = {NULL, 0, NULL};

	if (r == NULL)
		EACH(q, dt, encode_as(&how, n, src, &none, dst));
	else
		EACH(q, dt, encode_as(&how, n, src, r, dst));
}

static struct reduce_sum sum(const struct quant *q, size_t n, uint32_t k, const void *const *coded,
			     void *dst, enum shard_dtype dt, bool norm)
{
	struct reduce_sum r = {0, true};

	EACH(q, dt, r = sum_as(&how, n, k, coded, dst, norm));
	return r;
}

static void delta(const struct quant *q, size_t n, const float *master, const void *before,
		  void *image, enum shard_dtype dt, void *dst)
{
	EACH(q, dt, delta_as(&how, n, master, before, image, dst));
}

static void patch(const struct quant *q, size_t n, const void *coded, const void *before,
		  void *image, enum shard_dtype dt)
{
	EACH(q, dt, patch_as(&how, n, coded, before, image));
}

#endif
