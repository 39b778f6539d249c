/* SPDX-License-Identifier: Apache-2.0 */
/* Coded segments against a reference that works element by element from the text of
 * wire/ARITHMETIC.md, section 2a: every instruction set, both kinds, all element types, lengths
 * around blocks and lines, sources at odd addresses, and values that are awkward. Then what must
 * hold whatever the codes are: no element is off by more than half a step of its block, residuals
 * make up for what codes lose, and sender and receiver have the same image. */
#include "kernel/cases.h"

#include "optim/quant.h"

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { LEN = 5000, SOURCES = 9, ODD = 6 }; /* ODD: in bytes, where a source begins. */

static const struct quant kinds[] = {{QUANT_INT8, 256}, {QUANT_INT4, 256},  {QUANT_INT8, 64},
				     {QUANT_INT4, 64},  {QUANT_INT8, 1024}, {QUANT_INT4, 1024}};
static const size_t lengths[] = {1,   2,   3,   15,  16,  17,  31,   63,   64,   65,   127,
				 128, 255, 256, 257, 511, 767, 1000, 1024, 4095, 4096, LEN};

struct memory {
	char src[SOURCES][ODD + LEN * 4], before[ODD + LEN * 4];
	uint16_t residual[LEN], next[2][LEN];
	float master[LEN];
	char coded[SOURCES][ODD + LEN + 1024], want[ODD + LEN + 1024];
	char out[2][LEN * 4];
};

/* --- the reference --- */

static float get(enum shard_dtype dt, const void *p, size_t i)
{
	float x;

	dtype_convert(&x, SHARD_F32, (const char *)p + i * dtype_bytes(dt), dt, 1);
	return x;
}

static void set(enum shard_dtype dt, void *p, size_t i, float x)
{
	if (x != x)
		x = dtype_float(0x7fc00000u);
	dtype_convert((char *)p + i * dtype_bytes(dt), dt, &x, SHARD_F32, 1);
}

static size_t block_bytes(const struct quant *q, size_t m)
{
	return q->kind == QUANT_INT8 ? m : m / 2 + m % 2;
}

static size_t scales_from(const struct quant *q, size_t n)
{
	size_t bytes = n / q->block * block_bytes(q, q->block) + block_bytes(q, n % q->block);

	while (bytes % 4 != 0)
		bytes++;
	return bytes;
}

static float scale_of(const struct quant *q, size_t n, const void *coded, size_t i)
{
	float x;

	memcpy(&x, (const char *)coded + scales_from(q, n) + i / q->block * 4, 4);
	return x;
}

static int code_of(const struct quant *q, size_t n, const void *coded, size_t i)
{
	size_t block = i / q->block, in = i % q->block;
	size_t m = n - block * q->block < q->block ? n - block * q->block : q->block;
	const uint8_t *p = (const uint8_t *)coded + block * block_bytes(q, q->block);
	int nibble;

	if (q->kind == QUANT_INT8)
		return (int8_t)p[in];
	nibble = in < (m + 1) / 2 ? p[in] & 15 : p[in - (m + 1) / 2] >> 4;
	return nibble < 8 ? nibble : nibble - 16;
}

static void code_set(const struct quant *q, size_t n, void *coded, size_t i, int code)
{
	size_t block = i / q->block, in = i % q->block;
	size_t m = n - block * q->block < q->block ? n - block * q->block : q->block;
	uint8_t *p = (uint8_t *)coded + block * block_bytes(q, q->block);

	if (q->kind == QUANT_INT8)
		p[in] = (uint8_t)code;
	else if (in < (m + 1) / 2)
		p[in] = (uint8_t)((p[in] & 0xf0) | (code & 15));
	else
		p[in - (m + 1) / 2] = (uint8_t)((p[in - (m + 1) / 2] & 0x0f) | (code & 15) << 4);
}

/* Codes y [n] into coded. lost [n] gets y - code * scale, or 0 in a block that is not finite. */
static void plain_code(const struct quant *q, size_t n, const float *y, void *coded, float *lost)
{
	volatile float most = q->kind == QUANT_INT8 ? 127 : 7;

	memset(coded, 0, quant_bytes(q, n));
	for (size_t at = 0; at < n; at += q->block) {
		size_t end = at + q->block < n ? at + q->block : n;
		volatile float top = 0, scale = 0, inverse = 0;
		bool finite = true;

		for (size_t i = at; i < end; i++) {
			finite = finite && isfinite(y[i]);
			if (dtype_bits(fabsf(y[i])) > dtype_bits(top))
				top = fabsf(y[i]);
		}
		if (!finite) {
			scale = dtype_float(0x7fc00000u);
		} else if (dtype_bits(top) > dtype_bits(0x1p-100f)) {
			scale = top / most;
			inverse = most / top;
		}
		for (size_t i = at; i < end; i++) {
			volatile float r = finite ? y[i] * inverse : 0, back;
			int code = (int)nearbyintf(r);

			assert_true(abs(code) <= (int)most);
			code_set(q, n, coded, i, code);
			back = (float)code * scale;
			lost[i] = finite ? y[i] - back : 0;
		}
		memcpy((char *)coded + scales_from(q, n) + at / q->block * 4,
		       (const void *)&(float){scale}, 4);
	}
}

static struct reduce_sum plain_sum(const struct quant *q, size_t n, uint32_t k,
				   const void *const *coded, void *dst, enum shard_dtype dt)
{
	struct reduce_sum r = {0, true};
	double lane[REDUCE_LANES] = {0};

	for (size_t i = 0; i < n; i++) {
		volatile float s = 0, x;

		for (uint32_t from = 0; from < k; from++) {
			x = (float)code_of(q, n, coded[from], i) * scale_of(q, n, coded[from], i);
			s = from == 0 ? x : s + x;
		}
		set(dt, dst, i, s);
		volatile double d = get(dt, dst, i);

		r.finite = r.finite && isfinite(get(dt, dst, i));
		if (i % REDUCE_BLOCK == 0)
			memset(lane, 0, sizeof(lane));
		lane[i % REDUCE_LANES] += d * d;
		if ((i + 1) % REDUCE_BLOCK == 0 || i + 1 == n) {
			for (int w = REDUCE_LANES / 2; w > 0; w /= 2)
				for (int j = 0; j < w; j++)
					lane[j] += lane[j + w];
			r.sq += lane[0];
		}
	}
	return r;
}

/* --- what is coded --- */

static void fill(enum shard_dtype dt, void *to, size_t n, struct rng *r, bool wild)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t u = rng_next(r);
		float x = (float)(rng_unit(r) - 0.5) * (u & 64 ? 1e-3f : 4.0f);

		if (wild && (u & 15) == 0)
			x = dtype_float(awkward[(u >> 8) % NR(awkward)]);
		if (!wild && (u & 1023) == 0)
			x = 0;
		dtype_convert((char *)to + i * dtype_bytes(dt), dt, &x, SHARD_F32, 1);
	}
}

static struct memory *m;

static int setup(void **state)
{
	(void)state;
	m = calloc(1, sizeof(*m));
	return m == NULL;
}

static int teardown(void **state)
{
	(void)state;
	free(m);
	return 0;
}

static void encode_one(enum isa isa, const struct quant *q, enum shard_dtype dt, size_t n,
		       bool feedback, unsigned mode)
{
	static float y[LEN], lost[LEN];
	char *got = m->coded[0] + ODD;
	bool first = n % 3 == 0;
	float factor = n % 2 == 0 ? 1 : 0.5f;
	struct quant_residual r = {first ? NULL : m->residual, factor, m->next[1]};
	unsigned before = mode_set(mode);

	for (size_t i = 0; i < n; i++) {
		volatile float x = get(dt, m->src[0] + ODD, i);

		volatile float left = dtype_from_bf16(m->residual[i]) * factor;

		if (feedback && !first)
			x = x + left;
		y[i] = x;
	}
	plain_code(q, n, y, m->want, lost);
	memset(m->next[0], 0, sizeof(m->next[0]));
	for (size_t i = 0; feedback && i < n; i++)
		set(SHARD_BF16, m->next[0], i, lost[i]);
	memset(got, 0x5a, quant_bytes(q, n) + 1);
	quant_kernels(isa)->encode(q, n, m->src[0] + ODD, dt, feedback ? &r : NULL, got);
	_mm_setcsr(before);
	assert_int_equal(quant_bytes(q, n), scales_from(q, n) + (n + q->block - 1) / q->block * 4);
	same("coded", m->want, got, quant_bytes(q, n), 1);
	assert_int_equal((uint8_t)got[quant_bytes(q, n)], 0x5a);
	if (feedback)
		same("residual", m->next[0], m->next[1], n, 2);
}

static void sum_one(enum isa isa, const struct quant *q, enum shard_dtype dt, size_t n, uint32_t k,
		    unsigned mode)
{
	const void *coded[SOURCES];
	struct reduce_sum w, g;
	unsigned before;

	for (uint32_t s = 0; s < k; s++) {
		coded[s] = m->coded[s] + ODD;
		quant_kernels(ISA_SCALAR)
			->encode(q, n, m->src[s] + ODD, dt, NULL, m->coded[s] + ODD);
	}
	before = mode_set(mode);
	w = plain_sum(q, n, k, coded, m->out[0], dt);
	g = quant_kernels(isa)->sum(q, n, k, coded, m->out[1], dt, true);
	_mm_setcsr(before);
	same("sum", m->out[0], m->out[1], n, dtype_bytes(dt));
	assert_int_equal(w.finite, g.finite);
	assert_true(w.sq == g.sq || (w.sq != w.sq && g.sq != g.sq));
	g = quant_kernels(isa)->sum(q, n, k, coded, m->out[1], dt, false);
	assert_int_equal(w.finite, g.finite);
	assert_true(g.sq == 0);
}

/* The sender's image and codes, and the receiver's image. */
static void delta_one(enum isa isa, const struct quant *q, enum shard_dtype dt, size_t n,
		      unsigned mode)
{
	static float y[LEN], lost[LEN];
	char *got = m->coded[0] + ODD;
	unsigned before = mode_set(mode);

	for (size_t i = 0; i < n; i++) {
		volatile float d = m->master[i] - get(dt, m->before + ODD, i);

		y[i] = d;
	}
	plain_code(q, n, y, m->want, lost);
	for (size_t i = 0; i < n; i++) {
		volatile float step = (float)code_of(q, n, m->want, i) * scale_of(q, n, m->want, i),
			       x = get(dt, m->before + ODD, i) + step;

		set(dt, m->out[0], i, x);
	}
	quant_kernels(isa)->delta(q, n, m->master, m->before + ODD, m->out[1], dt, got);
	same("coded delta", m->want, got, quant_bytes(q, n), 1);
	same("image", m->out[0], m->out[1], n, dtype_bytes(dt));
	memset(m->out[1], 0, sizeof(m->out[1]));
	quant_kernels(isa)->patch(q, n, got, m->before + ODD, m->out[1], dt);
	same("patched image", m->out[0], m->out[1], n, dtype_bytes(dt));
	memcpy(m->out[1], m->before + ODD, n * dtype_bytes(dt)); /* In place. */
	quant_kernels(isa)->patch(q, n, got, m->out[1], m->out[1], dt);
	same("image patched in place", m->out[0], m->out[1], n, dtype_bytes(dt));
	_mm_setcsr(before);
}

static void all(enum isa isa)
{
	struct rng r = {7};

	if (!isa_has(isa))
		skip();
	for (size_t l = 0; l < NR(lengths); l++)
		for (unsigned turn = 0; turn < NR(kinds) * 3 * 2; turn++) {
			const struct quant *q = &kinds[turn % NR(kinds)];
			enum shard_dtype dt = (enum shard_dtype)(1 + turn / NR(kinds) % 3);
			unsigned mode = (unsigned)rng_next(&r) % 4;
			bool wild = turn >= NR(kinds) * 3;
			size_t n = lengths[l];

			for (uint32_t s = 0; s < SOURCES; s++)
				fill(dt, m->src[s] + ODD, n, &r, wild);
			fill(SHARD_BF16, m->residual, n, &r, wild);
			fill(SHARD_F32, m->master, n, &r, wild);
			fill(dt, m->before + ODD, n, &r, wild);
			encode_one(isa, q, dt, n, false, mode);
			encode_one(isa, q, dt, n, true, mode);
			delta_one(isa, q, dt, n, mode);
			for (uint32_t k = 1; k <= SOURCES; k++)
				sum_one(isa, q, dt, n, k, mode);
		}
}

static void all_scalar(void **state)
{
	(void)state;
	all(ISA_SCALAR);
}

static void all_avx2(void **state)
{
	(void)state;
	all(ISA_AVX2);
}

static void all_avx512(void **state)
{
	(void)state;
	all(ISA_AVX512);
}

/* --- what codes are good for --- */

static void test_close(void **state)
{
	struct rng r = {11};

	(void)state;
	for (size_t t = 0; t < NR(kinds); t++) {
		const struct quant *q = &kinds[t];
		float half = 0.5001f;

		fill(SHARD_F32, m->src[0] + ODD, LEN, &r, false);
		quant_kernels(isa_best())
			->encode(q, LEN, m->src[0] + ODD, SHARD_F32, NULL, m->coded[0]);
		for (size_t i = 0; i < LEN; i++) {
			float scale = scale_of(q, LEN, m->coded[0], i),
			      is = (float)code_of(q, LEN, m->coded[0], i) * scale;

			assert_true(fabsf(is - get(SHARD_F32, m->src[0] + ODD, i)) <= half * scale);
		}
	}
}

/* After many steps the sum of what was sent is the sum of what was meant, but for the residual. */
static void test_feedback(void **state)
{
	enum { STEPS = 200, N = 1000 };
	static double meant[N], sent[N];
	struct rng r = {13};

	(void)state;
	for (size_t t = 0; t < NR(kinds); t++) {
		const struct quant *q = &kinds[t];
		struct quant_residual kept = {m->residual, 1, m->residual};
		double worst = 0, least = 1e9;

		memset(m->residual, 0, sizeof(m->residual));
		memset(meant, 0, sizeof(meant));
		memset(sent, 0, sizeof(sent));
		for (int step = 0; step < STEPS; step++) {
			fill(SHARD_BF16, m->src[0], N, &r, false);
			quant_kernels(isa_best())
				->encode(q, N, m->src[0], SHARD_BF16, &kept, m->coded[0]);
			for (size_t i = 0; i < N; i++) {
				float scale = scale_of(q, N, m->coded[0], i);

				meant[i] += (double)get(SHARD_BF16, m->src[0], i);
				sent[i] += (double)code_of(q, N, m->coded[0], i) * (double)scale;
				if (scale > 0 && (double)scale < least)
					least = (double)scale;
			}
		}
		for (size_t i = 0; i < N; i++) {
			double left = (double)dtype_from_bf16(m->residual[i]);

			/* Each step rounds the residual to bf16 once. */
			worst = fmax(worst, fabs(meant[i] - sent[i] - left));
		}
		/* A residual is at most half a step of its block, 2 / 7, and loses 2^-9 of it. */
		assert_true(worst < STEPS * (q->kind == QUANT_INT8 ? 2.2 / 127 : 2.2 / 7) / 512);
		assert_true(least > 0);
	}
}

/* At the border below which a block has no magnitude. */
static void test_border(void **state)
{
	static const struct {
		float top;
		int code;
	} rows[] = {{0x1p-100f, 0}, {0x1.000002p-100f, 1}, {0x1p-101f, 0}, {0x1.8p-99f, 1}};

	(void)state;
	for (int isa = 0; isa < ISA_NR; isa++)
		for (size_t t = 0; isa_has((enum isa)isa) && t < NR(kinds); t++)
			for (size_t i = 0; i < NR(rows); i++) {
				const struct quant *q = &kinds[t];
				int most = q->kind == QUANT_INT8 ? 127 : 7;

				quant_kernels((enum isa)isa)
					->encode(q, 1, &rows[i].top, SHARD_F32, NULL, m->coded[0]);
				assert_int_equal(code_of(q, 1, m->coded[0], 0),
						 rows[i].code * most);
			}
}

/* Whatever a node sends stands for some gradient, or for one that is not finite. */
static void test_any_bytes(void **state)
{
	struct rng r = {17};

	(void)state;
	for (size_t t = 0; t < NR(kinds); t++) {
		size_t n = 777, bytes = quant_bytes(&kinds[t], n);
		const void *two[] = {m->coded[0], m->coded[1]};
		struct reduce_sum w, g;

		for (size_t i = 0; i < bytes; i++) {
			m->coded[0][i] = (char)rng_next(&r);
			m->coded[1][i] = (char)(i < bytes / 2 ? 0x80 : rng_next(&r));
		}
		w = quant_kernels(ISA_SCALAR)
			    ->sum(&kinds[t], n, 2, two, m->out[0], SHARD_F32, true);
		g = quant_kernels(isa_best())
			    ->sum(&kinds[t], n, 2, two, m->out[1], SHARD_F32, true);
		same("sum", m->out[0], m->out[1], n, 4);
		assert_int_equal(w.finite, g.finite);
	}
}

/* Scales that no encoder makes, those where a kernel may go another way, and those whose sums lie
 * between two bf16. A scale of 0 comes with codes that are 0 and with others. */
static void test_any_scales(void **state)
{
	static const float scales[] = {0,           -0.0f,     0x1p-90f, 0x1.fp-91f, -0x1.8p-110f,
				       0x1p-126f,   0x1p-149f, 1,        -0x1p100f,  0x1.8p100f,
				       -0x1.fp127f, 0x1p127f,  INFINITY, NAN,        0.25f,
				       0x1p-8f};
	struct rng r = {19};

	(void)state;
	for (size_t t = 0; t < NR(kinds) * NR(scales) * NR(scales) * 2; t++) {
		const struct quant *q = &kinds[t % NR(kinds)];
		size_t n = q->block, pair = t / NR(kinds);
		uint32_t k = 1 + (uint32_t)(pair % 2);
		const float with[] = {scales[pair / 2 % NR(scales)], scales[pair / 2 / NR(scales)]};
		const void *two[] = {m->coded[0], m->coded[1]};
		unsigned before = mode_set((unsigned)rng_next(&r) % 4);

		fill(SHARD_BF16, m->before, n, &r, t % 5 == 0);
		for (int s = 0; s < 2; s++) {
			bool zeros = with[s] == 0 && rng_next(&r) % 2 == 0;

			for (size_t i = 0; i < quant_bytes(q, n); i++)
				m->coded[s][i] = zeros ? 0 : (char)rng_next(&r);
			memcpy(m->coded[s] + scales_from(q, n), &with[s], sizeof(with[s]));
		}
		quant_kernels(ISA_SCALAR)->sum(q, n, k, two, m->out[0], SHARD_BF16, true);
		quant_kernels(isa_best())->sum(q, n, k, two, m->out[1], SHARD_BF16, true);
		same("sum", m->out[0], m->out[1], n, 2);
		quant_kernels(ISA_SCALAR)->patch(q, n, two[0], m->before, m->out[0], SHARD_BF16);
		quant_kernels(isa_best())->patch(q, n, two[0], m->before, m->out[1], SHARD_BF16);
		_mm_setcsr(before);
		same("image", m->out[0], m->out[1], n, 2);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(all_scalar, setup, teardown),
		cmocka_unit_test_setup_teardown(all_avx2, setup, teardown),
		cmocka_unit_test_setup_teardown(all_avx512, setup, teardown),
		cmocka_unit_test_setup_teardown(test_close, setup, teardown),
		cmocka_unit_test_setup_teardown(test_feedback, setup, teardown),
		cmocka_unit_test_setup_teardown(test_border, setup, teardown),
		cmocka_unit_test_setup_teardown(test_any_bytes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_any_scales, setup, teardown),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
