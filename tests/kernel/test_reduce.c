/* SPDX-License-Identifier: Apache-2.0 */
/* Tests sums, norms and finite flags. Every instruction set, and the scalar one too, is compared
 * with a plain implementation in this file that works in another way: one element after the other,
 * and the tree by recursion. */
#include "kernel/cases.h"

#include "optim/reduce.h"

#include <pthread.h>

enum { SOURCES = 70, LEN = 3 * REDUCE_BLOCK + 300, MARGIN = 64 };

struct reduce_case {
	enum shard_dtype dt;
	size_t n;
	uint32_t k;
	int dst;    /* The source that is also the destination. -1: a separate buffer. -2: none. */
	size_t off; /* Elements by which all buffers are moved. */
	float pre;  /* 0: 1. */
};

struct memory {
	_Alignas(64) char src[SOURCES][MARGIN + LEN * 4 + MARGIN], dst[MARGIN + LEN * 4 + MARGIN];
};

static float get(enum shard_dtype dt, const void *p)
{
	float f;
	uint16_t h;

	memcpy(&h, p, 2);
	if (dt == SHARD_F32)
		memcpy(&f, p, 4);
	else
		f = dt == SHARD_BF16 ? dtype_from_bf16(h) : dtype_from_f16(h);
	return f;
}

/* The sum of lanes j, j + width, j + 2 width, ... */
static double tree(const double *lane, int j, int width)
{
	return width == REDUCE_LANES ? lane[j]
				     : tree(lane, j, 2 * width) + tree(lane, j + width, 2 * width);
}

/* Sums into dst, which is a separate buffer. Returns what the kernel should return. */
static struct reduce_sum plain(const struct reduce_case *c, const char *const *src, char *dst)
{
	size_t size = dtype_bytes(c->dt);
	struct reduce_sum r = {0, true};
	double lane[REDUCE_LANES] = {0};

	for (size_t i = 0; i < c->n; i++) {
		volatile float sum = get(c->dt, src[0] + i * size), next;

		if (c->pre != 0)
			sum = sum * c->pre;
		for (uint32_t s = 1; s < c->k; s++) {
			next = get(c->dt, src[s] + i * size);
			if (c->pre != 0)
				next = next * c->pre;
			sum = sum + next;
		}
		if (c->k == 1 && c->pre == 0) {
			memcpy(dst + i * size, src[0] + i * size, size);
		} else {
			float x = sum != sum ? dtype_float(0x7fc00000) : sum;
			uint16_t h = c->dt == SHARD_BF16 ? dtype_to_bf16(x) : dtype_to_f16(x);

			memcpy(dst + i * size, c->dt == SHARD_F32 ? (const void *)&x : &h, size);
		}
		volatile double d = get(c->dt, dst + i * size);
		uint32_t bits = dtype_bits(get(c->dt, dst + i * size));
		if (i % REDUCE_BLOCK == 0)
			memset(lane, 0, sizeof(lane));
		lane[i % 16] = lane[i % 16] + d * d;
		if ((i + 1) % REDUCE_BLOCK == 0 || i + 1 == c->n)
			r.sq += tree(lane, 0, 1);
		if ((bits >> 23 & 255) == 255)
			r.finite = false;
	}
	return r;
}

static void fill(struct memory *m, const struct reduce_case *c, uint64_t seed, bool wild)
{
	struct rng r = {seed};
	size_t nr = (c->n + c->off) * dtype_bytes(c->dt);

	memset(m->dst, 0x5a, MARGIN + nr + MARGIN);
	for (uint32_t s = 0; s < c->k; s++) {
		memset(m->src[s], 0x5a, MARGIN + nr + MARGIN);
		for (size_t i = c->off; i < c->off + c->n; i++) {
			uint64_t u = rng_next(&r);
			float x = (float)(rng_unit(&r) - 0.5) * (u & 64 ? 1e-3f : 4.0f);
			char *to = m->src[s] + MARGIN + i * dtype_bytes(c->dt);

			if (wild && (u & 31) == 0)
				x = dtype_float(awkward[(u >> 8) % NR(awkward)]);
			dtype_convert(to, c->dt, &x, SHARD_F32, 1);
		}
	}
}

static void compare(const struct reduce_case *c, enum isa isa, unsigned mode, bool norm, bool wild)
{
	static struct memory m;
	static char want[LEN * 4];
	const char *src[SOURCES];
	size_t at = MARGIN + c->off * dtype_bytes(c->dt), bytes = c->n * dtype_bytes(c->dt);
	char *dst = c->dst == -2 ? NULL : c->dst == -1 ? m.dst + at : m.src[c->dst] + at;
	char *room = c->dst < 0 ? m.dst : m.src[c->dst];

	fill(&m, c, c->n * 31 + c->k, wild);
	for (uint32_t s = 0; s < c->k; s++)
		src[s] = m.src[s] + at;
	unsigned before = mode_set(mode);
	struct reduce_sum w = plain(c, src, want);
	struct reduce_sum g = reduce_kernel(isa, c->dt)(c->n, c->k, (const void *const *)src, dst,
							c->pre != 0 ? c->pre : 1, norm);
	_mm_setcsr(before);

	w.sq = norm ? w.sq : 0;
	if ((memcmp(&w.sq, &g.sq, 8) != 0 && !(w.sq != w.sq && g.sq != g.sq)) ||
	    w.finite != g.finite)
		fail_msg("%s %s n=%zu k=%u: %a %d, plainly it is %a %d", isa_name(isa),
			 dtype_name(c->dt), c->n, c->k, g.sq, g.finite, w.sq, w.finite);
	if (dst)
		same("sum", want, dst, c->n, dtype_bytes(c->dt));
	for (size_t i = 0; i < MARGIN; i++)
		assert_true(room[at - 1 - i] == 0x5a && room[at + bytes + i] == 0x5a);
}

static void lengths(enum isa isa)
{
	static const size_t long_n[] = {4095, 4096, 4097, 8192, 8192 + 17, 3 * 4096 + 255};
	struct reduce_case c = {0};

	if (!isa_has(isa))
		skip();
	for (int dt = 1; dt <= DTYPE_NR; dt++)
		for (size_t i = 0; i < 258 + NR(long_n); i++)
			for (uint32_t k = 1; k <= 5; k++) {
				c = (struct reduce_case){(enum shard_dtype)dt,
							 i < 258 ? i : long_n[i - 258],
							 k,
							 -1,
							 0,
							 0};
				compare(&c, isa, (unsigned)i % MODES, k % 2 || i % 3, i % 4 == 1);
				c.dst = (int)(i % k);
				compare(&c, isa, 3, true, i % 2);
			}
}

static void corners(enum isa isa)
{
	static const uint32_t many[] = {6, 8, 9, 16, 33, 64, SOURCES};
	static const size_t n[] = {201, 2048, 4096 + 33, 2 * 4096 + 2048 + 17};

	if (!isa_has(isa))
		skip();
	for (int dt = 1; dt <= DTYPE_NR; dt++) {
		struct reduce_case c = {(enum shard_dtype)dt, 77, 1, -2, 0, 0};

		for (unsigned mode = 0; mode < MODES; mode++) {
			compare(&c, isa, mode, true, true); /* Only the norm. */
			compare(&c, isa, mode, false, true);
		}
		for (size_t i = 0; i < NR(many) * NR(n); i++) {
			c = (struct reduce_case){(enum shard_dtype)dt,
						 n[i / NR(many)],
						 many[i % NR(many)],
						 i % 2 ? -1 : 5,
						 0,
						 0};
			compare(&c, isa, (unsigned)i % MODES, true, i % 3 != 0);
		}
		for (c.off = 0; c.off < 64; c.off++) { /* Every alignment. */
			c.n = 101;
			c.k = 1 + (uint32_t)c.off % 5;
			c.dst = c.off % 2 ? -1 : 0;
			compare(&c, isa, (unsigned)c.off % MODES, true, true);
		}
	}
}

/* Operands are multiplied before they are added. A single one is multiplied, too, and then loses
 * its bits. */
static void divided(enum isa isa)
{
	static const float pre[] = {0.125f, 1.0f / 3, 1e-6f, 3.0f, 1e6f};
	static const size_t n[] = {1, 15, 16, 17, 100, 4096, 4097, 8192 + 17};

	if (!isa_has(isa))
		skip();
	for (int dt = 1; dt <= DTYPE_NR; dt++)
		for (size_t i = 0; i < NR(n) * NR(pre); i++)
			for (uint32_t k = 1; k <= 6; k++) {
				struct reduce_case c = {
					(enum shard_dtype)dt, n[i / NR(pre)], k, -1, 0,
					pre[i % NR(pre)]};

				compare(&c, isa, (unsigned)(i + k) % MODES, k % 2 || i % 3, i % 2);
				/* The destination is one of the sources, as on a node with one
				 * rank. */
				c.dst = (int)(i % k);
				compare(&c, isa, (unsigned)i % MODES, i % 2, true);
				compare(&c, isa, 3, true, false);
			}
}

/* Two sources: all patterns of a 16-bit type against the awkward numbers. */
static void patterns(enum isa isa)
{
	enum { N = 65536 };
	static uint16_t a[N], b[N], want[N], got[N];
	const void *src[2] = {a, b};

	if (!isa_has(isa))
		skip();
	for (int dt = SHARD_BF16; dt <= DTYPE_NR; dt++)
		for (unsigned turn = 0; turn < STATES * MODES; turn++) {
			struct reduce_case c = {(enum shard_dtype)dt, N, 2, -1, 0, 0};

			for (uint32_t i = 0; i < N; i++) {
				float y = dtype_float(awkward[(i + turn / MODES) % NR(awkward)]);

				a[i] = (uint16_t)i;
				dtype_convert(&b[i], c.dt, &y, SHARD_F32, 1);
				b[i] ^= turn / MODES >= NR(awkward)
						? (uint16_t)(i * 2654435761u >> turn / MODES % 16)
						: 0;
			}
			unsigned before = mode_set(turn % MODES);
			struct reduce_sum w =
				turn < 8
					? plain(&c, (const char *const *)src, (char *)want)
					: reduce_kernel(ISA_SCALAR, c.dt)(N, 2, src, want, 1, true);
			struct reduce_sum g = reduce_kernel(isa, c.dt)(N, 2, src, got, 1, true);
			_mm_setcsr(before);

			same("sum", want, got, N, 2);
			assert_int_equal(w.finite, g.finite);
			assert_true(w.sq == g.sq || (w.sq != w.sq && g.sq != g.sq));
		}
}

/* Compares each instruction set with the scalar kernel for k sources. */
static void large_one(enum shard_dtype dt, uint32_t k, char *const *at, size_t n)
{
	const void *const src[] = {at[0], at[1], at[2]};
	struct reduce_sum want = reduce_kernel(ISA_SCALAR, dt)(n, k, src, at[3], 1, true), got;

	for (enum isa isa = ISA_AVX2; isa < ISA_NR; isa++) {
		if (!isa_has(isa))
			continue;
		memset(at[4], 0, n * dtype_bytes(dt));
		got = reduce_kernel(isa, dt)(n, k, src, at[4], 1, true);
		assert_memory_equal(at[3], at[4], n * dtype_bytes(dt));
		assert_memory_equal(&want.sq, &got.sq, sizeof(want.sq));
		assert_int_equal(want.finite, got.finite);
	}
}

/* From a certain length on the sum is written past the caches if dst is aligned. It has the same
 * bits and sums as the scalar kernel. */
static void large(void **state)
{
	enum { N = (256 << 10) + 3 * REDUCE_BLOCK + 13 };
	char *at[5]; /* Three sources, the scalar sum, and the other sum. */

	(void)state;
	for (int i = 0; i < 5; i++)
		assert_non_null(at[i] = aligned_alloc(64, N * sizeof(float) + 256));
	for (enum shard_dtype dt = SHARD_F32; dt <= SHARD_F16; dt++) {
		for (size_t i = 0; i < 3 * (size_t)N; i++) {
			float x = (float)(i % 10007) * 1e-3f - 5.0f;

			dtype_convert(at[i % 3] + i / 3 * dtype_bytes(dt), dt, &x, SHARD_F32, 1);
		}
		for (uint32_t k = 1; k <= 3; k++)
			large_one(dt, k, at, N);
	}
	for (int i = 0; i < 5; i++)
		free(at[i]);
}

struct writer {
	uint64_t *at;
	bool stop;
};

/* Makes a few elements infinite and finite again, as fast as it can. */
static void *writes(void *arg)
{
	struct writer *w = arg;

	for (uint64_t word = 0; !__atomic_load_n(&w->stop, __ATOMIC_RELAXED);) {
		word ^= 0x7f807f807f807f80u;
		__atomic_store_n(w->at, word, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* A trainer may write its arena at any time. Sum and finite flag of a lone source belong to the
 * bytes that were copied, whatever the source holds now. */
static void changing(void **state)
{
	enum { N = 2 * REDUCE_BLOCK + 37, SHORT = 80, ROUNDS = 20000 };
	char *src = aligned_alloc(64, N * sizeof(float) + 128), *dst = malloc(N * sizeof(float));
	static struct writer w; /* Also after a failure, the thread goes on. */
	uint32_t infinite = 0;
	pthread_t t;

	(void)state;
	assert_true(src != NULL && dst != NULL);
	memset(src, 0, N * sizeof(float) + 128);
	w.at = (uint64_t *)(void *)src + 8;
	assert_int_equal(pthread_create(&t, NULL, writes, &w), 0);
	for (uint32_t i = 0; i < ROUNDS * ISA_NR * 3; i++) {
		enum isa isa = (enum isa)(i % ISA_NR);
		enum shard_dtype dt = (enum shard_dtype)(SHARD_F32 + i / ISA_NR % 3);
		size_t n = i % 20 ? SHORT : N; /* Both ways through the kernel. */
		struct reduce_sum got, copied;

		if (!isa_has(isa))
			continue;
		for (int norm = 0; norm < 2; norm++) {
			got = reduce_kernel(isa, dt)(n, 1, (const void *const[]){src}, dst, 1,
						     norm);
			copied = reduce_kernel(isa, dt)(n, 1, (const void *const[]){dst}, NULL, 1,
							norm);
			assert_int_equal(got.finite, copied.finite);
			if (copied.finite)
				assert_memory_equal(&got.sq, &copied.sq, sizeof(got.sq));
			infinite += !got.finite;
		}
	}
	__atomic_store_n(&w.stop, true, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	assert_true(infinite > 0);
	free(src);
	free(dst);
}

/* Both roundings by hand: 1 + 2^-8 is a tie in bf16 and goes to the even neighbour, and there is no
 * extra +0 at the beginning of a sum. */
static void by_hand(void **state)
{
	uint16_t one[2] = {0x3f80, 0x8000}, eps[2] = {0x3b80, 0x8000}, odd[2] = {0x3f81, 0x8000},
		 dst[2];

	(void)state;
	for (int isa = 0; isa < ISA_NR; isa++) {
		if (!isa_has((enum isa)isa))
			continue;
		reduce_fn *f = reduce_kernel((enum isa)isa, SHARD_BF16);
		struct reduce_sum r = f(2, 2, (const void *const[]){one, eps}, dst, 1, true);

		assert_int_equal(dst[0], 0x3f80);
		assert_int_equal(dst[1], 0x8000); /* -0 + -0 stays -0. */
		assert_true(r.sq == 1.0 && r.finite);
		f(2, 2, (const void *const[]){odd, eps}, dst, 1, true);
		assert_int_equal(dst[0], 0x3f82);
		f(2, 3, (const void *const[]){one, eps, eps}, dst, 1, true);
		assert_int_equal(dst[0], 0x3f81); /* It is rounded once, not after each source. */
	}
}

#define PER_ISA(test)                                                                              \
	static void test##_scalar(void **state)                                                    \
	{                                                                                          \
		(void)state;                                                                       \
		test(ISA_SCALAR);                                                                  \
	}                                                                                          \
	static void test##_avx2(void **state)                                                      \
	{                                                                                          \
		(void)state;                                                                       \
		test(ISA_AVX2);                                                                    \
	}                                                                                          \
	static void test##_avx512(void **state)                                                    \
	{                                                                                          \
		(void)state;                                                                       \
		test(ISA_AVX512);                                                                  \
	}
PER_ISA(lengths)
PER_ISA(corners)
PER_ISA(divided)
PER_ISA(patterns)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lengths_scalar), cmocka_unit_test(lengths_avx2),
		cmocka_unit_test(lengths_avx512), cmocka_unit_test(corners_scalar),
		cmocka_unit_test(corners_avx2),   cmocka_unit_test(corners_avx512),
		cmocka_unit_test(divided_scalar), cmocka_unit_test(divided_avx2),
		cmocka_unit_test(divided_avx512), cmocka_unit_test(patterns_scalar),
		cmocka_unit_test(patterns_avx2),  cmocka_unit_test(patterns_avx512),
		cmocka_unit_test(by_hand),        cmocka_unit_test(large),
		cmocka_unit_test(changing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
