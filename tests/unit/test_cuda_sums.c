// SPDX-License-Identifier: Apache-2.0
/* Tests the sums of the kernels for GPUs on this processor (cuda/shim.h): result, sum of squares of
 * each block and whether all is finite are those of the scalar kernel and of the reference, bit by
 * bit, wherever a device looks for what it flushes. One launch takes segments of all lengths with
 * different numbers of operands, of two chunks. */
#include "base/check.h"
#include "base/rng.h"
#include "cuda/shim_kernels.h"
#include "optim/ftz.h"
#include "ref/refmath.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CHUNKS = 2, CHUNK = 9216, SEGMENTS = 10, SOURCES = 4, BLOCKS_MAX = 20 };

static const struct gpu_segment shape[SEGMENTS] = {
	{.start = 0, .n = 1, .sources_nr = 1},
	{.start = 64, .n = 64, .sources_nr = 2},
	{.start = 128, .n = 3, .sources_nr = 4},
	{.start = 192, .n = 1027, .sources_nr = 3},
	{.start = 1280, .n = 7, .source = 1, .sources_nr = 2},
	{.start = 1344, .n = 4096, .sources_nr = 2},
	{.start = 5440, .n = 2050, .source = 2, .sources_nr = 1},
	{.chunk = 1, .start = 64, .n = 4096 + 1030, .source = 4, .sources_nr = 4},
	{.chunk = 1, .start = 5248, .n = 5, .source = 5, .sources_nr = 3},
	{.chunk = 1, .start = 5312, .n = 3900, .source = 7, .sources_nr = 1},
};

struct world {
	struct gpu_segment segments[SEGMENTS];
	char *source[CHUNKS][SOURCES], *to[CHUNKS], *want[CHUNKS];
	double squares[BLOCKS_MAX];
	uint32_t blocks, bad[SEGMENTS];
	size_t size; /* Of an element. */
	enum shard_dtype dt;
	struct rng rng;
};

enum numbers { ANY, AWKWARD, ORDINARY, TINY, NUMBERS_NR };

static float number(struct rng *r, enum numbers kind)
{
	static const uint32_t awkward[] = {0,          0x80000000, 1,          0x80000001,
					   0x007fffff, 0x00800000, 0x80800000, 0x3f800000,
					   0xbf800000, 0x7f7fffff, 0xff7fffff, 0x7f800000,
					   0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001};
	uint32_t u = (uint32_t)(rng_next(r) >> 20);

	/* Nearly all ordinary, or every sum would be infinite. */
	if (kind == AWKWARD && rng_below(r, 500) == 0)
		u = awkward[rng_below(r, NR(awkward))];
	else if (kind == TINY)
		u = (u & 0x807fffff) | (uint32_t)rng_below(r, 8) << 23;
	else if (kind != ANY)
		u = (u & 0x807fffff) | (uint32_t)(100 + rng_below(r, 30)) << 23;
	return dtype_float(u);
}

static void world_make(struct world *w)
{
	memset(w, 0, sizeof(*w));
	w->rng.state = 7;
	memcpy(w->segments, shape, sizeof(shape));
	for (uint32_t i = 0; i < SEGMENTS; i++) {
		w->segments[i].block = w->blocks;
		w->blocks += (shape[i].n + REDUCE_BLOCK - 1) / REDUCE_BLOCK;
	}
	assert_true(w->blocks <= BLOCKS_MAX);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		assert_non_null(w->to[c] = aligned_alloc(16, CHUNK * 4));
		assert_non_null(w->want[c] = aligned_alloc(16, CHUNK * 4));
		for (uint32_t k = 0; k < SOURCES; k++)
			assert_non_null(w->source[c][k] = aligned_alloc(16, CHUNK * 4));
	}
}

static void world_free(struct world *w)
{
	for (uint32_t c = 0; c < CHUNKS; c++) {
		free(w->to[c]);
		free(w->want[c]);
		for (uint32_t k = 0; k < SOURCES; k++)
			free(w->source[c][k]);
	}
}

static void world_fill(struct world *w, enum shard_dtype dt, enum numbers kind)
{
	w->dt = dt;
	w->size = dtype_bytes(dt);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		for (uint32_t i = 0; i < CHUNK * SOURCES; i++) {
			float x = number(&w->rng, kind);

			dtype_convert(w->source[c][i % SOURCES] + i / SOURCES * w->size, dt, &x,
				      SHARD_F32, 1);
		}
		memset(w->to[c], 0x5a, CHUNK * 4);
		memset(w->want[c], 0x5a, CHUNK * 4);
	}
	memset(w->bad, 0, sizeof(w->bad));
	memset(w->squares, 0x5a, sizeof(w->squares));
}

/* Where the sum goes. */
enum where { APART, INTO_A_SOURCE, NOWHERE };

static void check_segment(struct world *w, uint32_t nr, float pre, enum where where, bool norm)
{
	const struct gpu_segment *s = &w->segments[nr];
	const size_t at = s->start * w->size;
	const void *from[SOURCES];
	char *want = w->want[s->chunk] + at, *got = w->to[s->chunk] + at;
	uint32_t blocks = (s->n + REDUCE_BLOCK - 1) / REDUCE_BLOCK;
	double total = 0;

	for (uint32_t k = 0; k < s->sources_nr; k++)
		from[k] = w->source[(s->source + k) / SOURCES][(s->source + k) % SOURCES] + at;
	struct reduce_sum r =
		reduce_kernel(ISA_SCALAR, w->dt)(s->n, s->sources_nr, from, want, pre, norm);
	if (where == NOWHERE)
		memset(want, 0x5a, s->n * w->size);
	else if (r.finite) { /* The reference has other NaNs, and a step with any is skipped. */
		char *ref = malloc(s->n * w->size);

		assert_non_null(ref);
		refmath_sum(ref, from, s->sources_nr, w->dt, pre, s->n);
		assert_memory_equal(ref, want, s->n * w->size);
		free(ref);
	}
	assert_int_equal(w->bad[nr], !r.finite);
	if (where != INTO_A_SOURCE)
		assert_memory_equal(want, got, s->n * w->size);
	for (uint32_t b = 0; norm && b < blocks; b++)
		total += w->squares[s->block + b];
	if (norm && r.finite)
		assert_memory_equal(&total, &r.sq, sizeof(total));
	for (uint32_t b = 0; norm && r.finite && where == APART && b < blocks; b++) {
		uint32_t first = b * REDUCE_BLOCK, n = s->n - first;
		double square =
			refmath_square(want, w->dt, first, n < REDUCE_BLOCK ? n : REDUCE_BLOCK);

		assert_memory_equal(&square, &w->squares[s->block + b], sizeof(square));
	}
}

static void launch(struct world *w, float pre, enum where where, bool norm)
{
	const void *sources[CHUNKS * SOURCES];
	void *to[CHUNKS];
	struct gpu_sum job = {w->segments, sources,  to,        norm ? w->squares : NULL,
			      w->bad,      SEGMENTS, w->blocks, pre};
	char name[32];

	for (uint32_t i = 0; i < CHUNKS * SOURCES; i++)
		sources[i] = w->source[i / SOURCES][i % SOURCES];
	for (uint32_t c = 0; c < CHUNKS; c++)
		to[c] = where == NOWHERE ? NULL : w->to[c];
	snprintf(name, sizeof(name), "sum_%s", dtype_name(w->dt));
	shim_call(shim_kernel(name), &job, (w->blocks + GPU_SUM_BLOCKS - 1) / GPU_SUM_BLOCKS,
		  GPU_THREADS);
}

static void compare(struct world *w, float pre, enum where where, bool norm)
{
	unsigned before;

	for (uint32_t i = 0; i < SEGMENTS; i++)
		w->segments[i].sources_nr = where == NOWHERE ? 1 : shape[i].sources_nr;
	launch(w, pre, where, norm);
	before = ftz_on();
	for (uint32_t i = 0; i < SEGMENTS; i++)
		check_segment(w, i, pre, where, norm);
	for (uint32_t c = 0; c < CHUNKS; c++) /* And nothing between the segments. */
		assert_memory_equal(w->want[c], w->to[c], CHUNK * 4);
	ftz_restore(before);
}

/* Sums into the only source, and into one of several. */
static void in_place(struct world *w, float pre)
{
	char *apart[CHUNKS], *own[CHUNKS];

	launch(w, pre, APART, true);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		apart[c] = w->to[c];
		own[c] = w->to[c] = w->source[c][c + 2];
	}
	memset(w->bad, 0, sizeof(w->bad));
	launch(w, pre, INTO_A_SOURCE, true);
	for (uint32_t i = 0; i < SEGMENTS; i++) {
		const struct gpu_segment *s = &w->segments[i];
		size_t at = s->start * w->size;

		assert_memory_equal(apart[s->chunk] + at, own[s->chunk] + at, s->n * w->size);
	}
	for (uint32_t c = 0; c < CHUNKS; c++)
		w->to[c] = apart[c];
}

static void all(enum shard_dtype dt)
{
	static const float pre[] = {1, 0.25f, 1 / 3.0f};
	struct world w;

	world_make(&w);
	for (int kind = 0; kind < NUMBERS_NR; kind++)
		for (int ftz = 0; ftz < SHIM_FTZ_NR; ftz++)
			for (size_t p = 0; p < NR(pre); p++) {
				shim.ftz = (enum shim_ftz)ftz;
				world_fill(&w, dt, (enum numbers)kind);
				compare(&w, pre[p], APART, (kind + ftz) % 4 != 1);
				if (pre[p] == 1) {
					world_fill(&w, dt, (enum numbers)kind);
					compare(&w, 1, NOWHERE, true);
				}
				world_fill(&w, dt, (enum numbers)kind);
				for (uint32_t i = 0; i < SEGMENTS; i++)
					w.segments[i].sources_nr = shape[i].sources_nr;
				in_place(&w, pre[p]);
			}
	world_free(&w);
}

static void sums_fp32(void **state)
{
	(void)state;
	all(SHARD_F32);
}

static void sums_bf16(void **state)
{
	(void)state;
	all(SHARD_BF16);
}

static void sums_fp16(void **state)
{
	(void)state;
	all(SHARD_F16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(sums_fp32), cmocka_unit_test(sums_bf16),
					   cmocka_unit_test(sums_fp16)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
