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

#include <string.h>

enum {
	LINE = REDUCE_LANES,
	OPERANDS = 4, /* So many coded operands are read side by side. */
	LATER = 2 * LINE,
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

/* --- lines --- */

#ifdef VEC_LINE
INLINE void line_load(enum shard_dtype dt, const void *p, vec x[PARTS])
{
	if (dt == SHARD_F32)
		line_load_f32(p, x);
	else if (dt == SHARD_BF16)
		line_load_bf16(p, x);
	else
		line_load_f16(p, x);
}

/* Stores x rounded to dt, with every NaN as the plain one, and leaves in x what a reader of p will
 * see. number: there is no NaN. */
INLINE void line_store(enum shard_dtype dt, void *p, vec x[PARTS], bool number)
{
	for (int part = 0; part < PARTS && !number && dt != SHARD_BF16; part++)
		x[part] = vec_plain_nan(x[part]);
	if (dt == SHARD_F32) {
		line_store_f32(p, x);
	} else if (dt == SHARD_BF16) {
		for (int part = 0; part < PARTS; part++)
			x[part] = vec_round_bf16_quiet(x[part], number);
		line_store_bf16(p, x);
	} else {
		line_store_f16(p, x);
		line_load_f16(p, x);
	}
}
#else
INLINE void line_load(enum shard_dtype dt, const void *p, vec x[PARTS])
{
	for (int part = 0; part < PARTS; part++)
		x[part] = rload(dt, p, (size_t)part * VEC_LANES);
}

/* Stores x rounded to dt, with every NaN as the plain one, and leaves in x what a reader of p will
 * see. number: there is no NaN. */
INLINE void line_store(enum shard_dtype dt, void *p, vec x[PARTS], bool number)
{
	(void)number;
	for (int part = 0; part < PARTS; part++)
		x[part] = rstore(dt, p, (size_t)part * VEC_LANES, x[part], false);
}

#define CODE_UNIT   1 /* line_load_codes() gives codes times this. */
#define vec_code(i) (i)

INLINE void line_load_codes(const int8_t *p, vec_bits c[PARTS])
{
	for (int part = 0; part < PARTS; part++)
		c[part] = vec_load_bytes(p + part * VEC_LANES);
}

INLINE void line_store_codes(int8_t *p, const vec_bits c[PARTS])
{
	for (int part = 0; part < PARTS; part++)
		vec_store_bytes(p + part * VEC_LANES, c[part]);
}

INLINE void line_sq_add(struct vec_sq sq[PARTS], const float *x)
{
	for (int part = 0; part < PARTS; part++)
		sq[part] = vec_sq_add(sq[part], vec_load(x + part * VEC_LANES));
}
#endif

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

INLINE void keep(struct qblock *b, size_t i, const vec x[PARTS], struct qtop *t)
{
	for (int part = 0; part < PARTS; part++) {
		vec_store(b->x + i + part * VEC_LANES, x[part]);
		t->part[part] = vec_bits_max(t->part[part], vec_magnitude(x[part]));
	}
}

INLINE void kept(const struct qblock *b, size_t i, vec x[PARTS])
{
	for (int part = 0; part < PARTS; part++)
		x[part] = vec_load(b->x + i + part * VEC_LANES);
}

/* Takes m elements of src from `at` on, and what was left of them before. Returns their tops. */
INLINE struct qtop take(enum shard_dtype dt, const void *src, const uint16_t *left, float factor,
			size_t at, size_t m, struct qblock *b)
{
	struct qtop t = top_zero();
	vec x[PARTS], r[PARTS];

	for (size_t i = 0; i < m; i += LINE) {
		line_load(dt, line_of(b, src, at + i, m - i, dtype_bytes(dt), 0), x);
		if (left != NULL) {
			line_load(SHARD_BF16, line_of(b, left, at + i, m - i, 2, 1), r);
			for (int part = 0; part < PARTS; part++)
				x[part] = vec_add(x[part], vec_mul(r[part], vec_all(factor)));
		}
		keep(b, i, x, &t);
	}
	return t;
}

/* Takes by how much a master differs from the image before. */
INLINE struct qtop take_delta(enum shard_dtype dt, const float *master, const void *before,
			      size_t at, size_t m, struct qblock *b)
{
	struct qtop t = top_zero();
	vec x[PARTS], was[PARTS];

	for (size_t i = 0; i < m; i += LINE) {
		line_load(SHARD_F32, line_of(b, master, at + i, m - i, sizeof(float), 0), x);
		line_load(dt, line_of(b, before, at + i, m - i, dtype_bytes(dt), 1), was);
		for (int part = 0; part < PARTS; part++)
			x[part] = vec_sub(x[part], was[part]);
		keep(b, i, x, &t);
	}
	return t;
}

/* Puts a line out as dt, as element `at` of dst and those after it. `left` elements are left of the
 * block. number: none of them is a NaN. Leaves in x what a reader of dst will see, and zeros after
 * it. */
INLINE void put(enum shard_dtype dt, void *dst, size_t at, size_t left, vec x[PARTS], bool number,
		struct qblock *b)
{
	const size_t size = dtype_bytes(dt);
	char *to = (char *)dst + at * size;

	if (left >= LINE) {
		line_store(dt, to, x, number);
		return;
	}
	line_store(dt, b->rest[0], x, number);
	memcpy(to, b->rest[0], left * size);
	memset(b->rest[0] + left * size, 0, (LINE - left) * size);
	line_load(dt, b->rest[0], x);
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
	size_t h = (m + 1) / 2, i = 0;

#ifdef VEC_LINE
	for (; i + 32 <= h; i += 32)
		halves_store(out + i, code + i, code + h + i);
#endif
	for (; i < h; i++)
		out[i] = (uint8_t)((code[i] & 15) | (code[h + i] & 15) << 4);
}

INLINE void unpack(const uint8_t *in, size_t m, int8_t *code)
{
	size_t h = (m + 1) / 2, i = 0;

#ifdef VEC_LINE
	for (; i + 32 <= h; i += 32)
		halves_load(in + i, code + i, code + h + i);
#endif
	for (; i < h; i++) {
		code[i] = (int8_t)((int8_t)(uint8_t)(in[i] << 4) >> 4);
		code[h + i] = (int8_t)((int8_t)in[i] >> 4);
	}
}

enum qkeep { KEEP_NOTHING, KEEP_LOST, KEEP_IMAGE };

struct qwhat {                /* What is coded, and what is kept of it. */
	enum qkeep keep;      /* A constant. */
	const void *src;      /* NULL: master - before. */
	const uint16_t *left; /* A residual that is added, times factor, or NULL. */
	float factor;
	const float *master;
	const void *before; /* The image that the receivers have. */
	void *to;           /* KEEP_LOST: residuals, KEEP_IMAGE: the image. */
};

/* Codes the block, which is at element `at` of n. What its codes lose is 0 if the block is not
 * finite, because no step is made of it. */
INLINE void code(const struct qhow *how, size_t n, size_t at, size_t m, const struct qscale *s,
		 struct qblock *b, const struct qwhat *w, void *dst)
{
	vec inverse = vec_all(s->inverse),
	    scale = vec_all(w->keep == KEEP_LOST && !s->finite ? 0 : s->scale);
	bool direct = how->kind == QUANT_INT8 && m % LINE == 0;
	int8_t *codes = direct ? (int8_t *)codes_of(how, dst, at) : b->code[0];
	vec x[PARTS], before[PARTS];
	vec_bits c[PARTS];

	memcpy(scale_of(how, n, dst, at), &s->scale, sizeof(s->scale));
	if (!s->finite)
		memset(b->x, 0, sizeof(b->x));
	for (size_t i = 0; i < m; i += LINE) {
		kept(b, i, x);
		for (int part = 0; part < PARTS; part++)
			c[part] = vec_nearest(vec_mul(x[part], inverse));
		line_store_codes(codes + i, c);
		if (w->keep == KEEP_NOTHING)
			continue;
		if (w->keep == KEEP_IMAGE)
			line_load(how->dt,
				  line_of(b, w->before, at + i, m - i, dtype_bytes(how->dt), 1),
				  before);
		for (int part = 0; part < PARTS; part++) {
			vec y = vec_mul(vec_from_bits(c[part]), scale);

			x[part] = w->keep == KEEP_LOST ? vec_sub(x[part], y)
						       : vec_add(before[part], y);
		}
		if (w->keep == KEEP_LOST)
			put(SHARD_BF16, w->to, at + i, m - i, x, true, b);
		else
			put(how->dt, w->to, at + i, m - i, x, false, b);
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

/* --- sums --- */

struct qsum { /* Operands that are read side by side. */
	uint32_t k;
	const int8_t *codes[OPERANDS];
	float scale[OPERANDS];
};

struct qplace { /* Where a sum goes. */
	size_t at, m;
	void *dst;
	struct qblock *b;
	struct rlanes *l;
};

#ifdef VEC_LINE
/* Is it a block in whole lines whose sum is bf16, complete, no NaN, not -0 and far from what is too
 * small or too large, so that it needs less care? Scales are positive or, for a block that is all
 * zeros, +0. */
INLINE bool tame_block(const struct qhow *how, const struct qsum *q, size_t m)
{
	if (how->dt != SHARD_BF16 || m % LINE != 0)
		return false;
	for (uint32_t s = 0; s < q->k; s++) {
		int any = 0;

		if (q->scale[s] >= 0x1p-90f && q->scale[s] <= 0x1p100f)
			continue;
		if (dtype_bits(q->scale[s]) != 0)
			return false;
		for (size_t i = 0; i < m; i++)
			any |= q->codes[s][i];
		if (any)
			return false;
	}
	return true;
}

INLINE void put_sum(enum shard_dtype dt, bool tame, void *dst, size_t at, size_t left, vec x[PARTS],
		    struct qblock *b)
{
	if (!tame) {
		put(dt, dst, at, left, x, false, b);
		return;
	}
	for (int part = 0; part < PARTS; part++)
		x[part] = vec_round_tame(x[part]);
	line_store_bf16((uint16_t *)dst + at, x);
}
#else
#define tame_block(how, q, m)                  false
#define put_sum(dt, tame, dst, at, left, x, b) put(dt, dst, at, left, x, false, b)
#endif

/* Adds k operands to what the block has, in their order. All but q and p are constants. first: it
 * has nothing yet. last: the sum is complete, and is put out. tame: see tame_block(). */
INLINE void add(const struct qhow *how, uint32_t k, bool first, bool last, bool tame,
		const struct qsum *q, const struct qplace *p)
{
	const int8_t *codes[OPERANDS];
	struct vec_sq sq[PARTS]; /* A copy, so that it stays in registers. */
	struct qblock *b = p->b;
	const size_t m = p->m, at = p->at;
	void *dst = p->dst;
	vec by[OPERANDS], x[PARTS] = {0};
	vec_bits c[PARTS];

	for (int part = 0; part < PARTS; part++)
		sq[part] = p->l->sq[part];
	for (uint32_t s = 0; s < k; s++) {
		codes[s] = q->codes[s];
		by[s] = vec_all(tame ? q->scale[s] / CODE_UNIT : q->scale[s]);
	}
	for (size_t i = 0; i < m; i += LINE) {
		if (!first)
			kept(b, i, x);
		for (uint32_t s = 0; s < k; s++) {
			line_load_codes(codes[s] + i, c);
			for (int part = 0; part < PARTS; part++) {
				vec y = vec_mul(vec_from_bits(tame ? c[part] : vec_code(c[part])),
						by[s]);

				x[part] = s == 0 && first ? y : vec_add(x[part], y);
			}
		}
		if (last)
			put_sum(how->dt, tame, dst, at + i, m - i, x, b);
		for (int part = 0; part < PARTS; part++)
			vec_store(b->x + i + part * VEC_LANES, x[part]);
		/* Later, so that what comes of a store need not be waited for. */
		if (last && i >= LATER)
			line_sq_add(sq, b->x + i - LATER);
	}
	for (size_t i = m > LATER ? (m - 1) / LINE * LINE + LINE - LATER : 0; last && i < m;
	     i += LINE)
		line_sq_add(sq, b->x + i);
	for (int part = 0; part < PARTS; part++)
		p->l->sq[part] = sq[part];
}

/* Gives each number of operands a copy of the loop. */
INLINE void add_few(const struct qhow *how, bool first, bool last, bool tame, const struct qsum *q,
		    const struct qplace *p)
{
	switch (q->k) {
	case 1:
		add(how, 1, first, last, tame, q, p);
		break;
	case 2:
		add(how, 2, first, last, tame, q, p);
		break;
	case 3:
		add(how, 3, first, last, tame, q, p);
		break;
	default:
		add(how, OPERANDS, first, last, tame, q, p);
	}
}

/* The sum of tame blocks. On its own, because in the midst of other loops the compiler keeps the
 * sums of squares in memory. */
static __attribute__((noinline)) void add_tame(const struct qsum *q, const struct qplace *p)
{
	const struct qhow how = {.dt = SHARD_BF16};

	add_few(&how, true, true, true, q, p);
}

INLINE void sum_block(const struct qhow *how, size_t n, uint32_t k, const void *const *coded,
		      const struct qplace *p)
{
	for (uint32_t s = 0; s < k; s += OPERANDS) {
		struct qsum q = {.k = k - s < OPERANDS ? k - s : OPERANDS};
		bool last = s + q.k == k;

		for (uint32_t i = 0; i < OPERANDS && i < q.k; i++) {
			q.codes[i] = codes(how, coded[s + i], p->at, p->m, p->b, i);
			memcpy(&q.scale[i], scale_of(how, n, coded[s + i], p->at), sizeof(float));
		}
		if (s == 0 && last && tame_block(how, &q, p->m))
			add_tame(&q, p);
		else if (s == 0 && last)
			add_few(how, true, true, false, &q, p);
		else if (s == 0)
			add(how, OPERANDS, true, false, false, &q, p);
		else if (last)
			add_few(how, false, true, false, &q, p);
		else
			add(how, OPERANDS, false, false, false, &q, p);
	}
}

/* --- the four kernels --- */

INLINE size_t block_at(const struct qhow *how, size_t n, size_t at)
{
	return n - at < how->block ? n - at : how->block;
}

/* The next block is taken before this one is coded, because its scale takes two divisions. */
INLINE void encode_as(const struct qhow *how, size_t n, const struct qwhat *w, void *dst)
{
	struct qblock b[2];
	struct qscale s = {0};
	struct qtop t = top_zero();
	size_t last = 0, coded = 0;

	memset((char *)dst + code_bytes(how->kind, n), 0,
	       scales_at(how, n) - code_bytes(how->kind, n));
	for (size_t turn = 0; coded < n; turn++) {
		size_t at = coded + last, m = block_at(how, n, at);

		if (turn > 0)
			s = scale_for(how->kind, &t);
		if (m > 0)
			t = w->src == NULL
				    ? take_delta(how->dt, w->master, w->before, at, m, &b[turn % 2])
				    : take(how->dt, w->src, w->left, w->factor, at, m,
					   &b[turn % 2]);
		if (turn > 0)
			code(how, n, coded, last, &s, &b[(turn + 1) % 2], w, dst);
		coded += last;
		last = m;
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
			sum_block(how, n, k, coded, &(struct qplace){at, m, dst, &b, &l});
		}
		r.sq += fold(&l);
	}
	/* The square of a finite float fits into a double, so the sum tells of all. */
	r.finite = r.sq - r.sq == 0;
	r.sq = norm ? r.sq : 0;
	return r;
}

/* near: a constant. The scale, divided by CODE_UNIT, loses nothing. */
INLINE void patch_block(const struct qhow *how, bool near, const int8_t *code, float scale,
			const void *before, void *image, size_t at, size_t m, struct qblock *b)
{
	vec by = vec_all(near ? scale / CODE_UNIT : scale), x[PARTS];
	vec_bits c[PARTS];

	for (size_t i = 0; i < m; i += LINE) {
		line_load(how->dt, line_of(b, before, at + i, m - i, dtype_bytes(how->dt), 1), x);
		line_load_codes(code + i, c);
		for (int part = 0; part < PARTS; part++) {
			vec_bits whole = near ? c[part] : vec_code(c[part]);

			x[part] = vec_add(x[part], vec_mul(vec_from_bits(whole), by));
		}
		put(how->dt, image, at + i, m - i, x, false, b);
	}
}

INLINE void patch_as(const struct qhow *how, size_t n, const void *coded, const void *before,
		     void *image)
{
	struct qblock b;
	float scale;

	for (size_t at = 0; at < n; at += how->block) {
		size_t m = block_at(how, n, at);
		const int8_t *code = codes(how, coded, at, m, &b, 0);

		memcpy(&scale, scale_of(how, n, coded, at), sizeof(float));
		if (scale >= 0x1p-90f)
			patch_block(how, true, code, scale, before, image, at, m, &b);
		else
			patch_block(how, false, code, scale, before, image, at, m, &b);
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
	const struct qwhat plain = {.keep = KEEP_NOTHING,
				    .src = src,
				    .left = r == NULL ? NULL : r->last,
				    .factor = r == NULL ? 0 : r->factor};
	const struct qwhat lost = {.keep = KEEP_LOST,
				   .src = src,
				   .left = plain.left,
				   .factor = plain.factor,
				   .to = r == NULL ? NULL : r->next};

	if (lost.to == NULL)
		EACH(q, dt, encode_as(&how, n, &plain, dst));
	else
		EACH(q, dt, encode_as(&how, n, &lost, dst));
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
	const struct qwhat w = {
		.keep = KEEP_IMAGE, .master = master, .before = before, .to = image};

	EACH(q, dt, encode_as(&how, n, &w, dst));
}

static void patch(const struct quant *q, size_t n, const void *coded, const void *before,
		  void *image, enum shard_dtype dt)
{
	EACH(q, dt, patch_as(&how, n, coded, before, image));
}

#endif
