// SPDX-License-Identifier: Apache-2.0
/* Tests the kernels of GPUs on this processor (cuda/shim.h): each rule and pair of types has the
 * bits of the scalar kernels and of the best ones here, for awkward numbers and for those around
 * 2^-126, wherever a device looks for what it flushes. One launch takes several chunks and segments
 * of all lengths, changes nothing beside them, and leaves the old state alone. */
#include "base/check.h"
#include "base/rng.h"
#include "cuda/shim_kernels.h"
#include "optim/ftz.h"
#include "optim/optim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CHUNKS = 2, CHUNK = 9216, SEGMENTS = 10, GROUPS = 3, TENSORS = OPTIM_STATES_MAX + 1 };

/* Segments of all lengths, with gaps. Those of chunk 1 begin at number 7. */
static const struct gpu_segment shape[SEGMENTS] = {
	{.start = 0, .n = 1},
	{.start = 64, .n = 64},
	{.start = 128, .n = 3},
	{.start = 192, .n = 1027, .zero = 1, .group = 2},
	{.start = 1280, .n = 7, .group = 1},
	{.start = 1344, .n = 4096, .group = 1},
	{.start = 5440, .n = 2050},
	{.chunk = 1, .start = 64, .n = 4096 + 1030, .group = 2},
	{.chunk = 1, .start = 5248, .n = 5, .zero = 1},
	{.chunk = 1, .start = 5312, .n = 3900},
};

struct world { /* What one kernel works on. All addresses are to exactly CHUNK elements. */
	struct gpu_segment segments[SEGMENTS];
	struct optim_args args[GROUPS];
	float *old[CHUNKS][TENSORS], *new[CHUNKS][TENSORS], *want[CHUNKS][TENSORS];
	void *grad[CHUNKS], *image[CHUNKS], *want_image[CHUNKS];
	unsigned long long kept[CHUNKS];
	uint32_t blocks;
	struct rng rng;
};

enum numbers { ANY, AWKWARD, ORDINARY, TINY, BORDER, NUMBERS_NR };

/* A number that makes about 2^-126 when it is multiplied by a word of the step, or with itself and
 * one. */
static float border_number(const struct optim_args *a, struct rng *r)
{
	const float words[] = {a->mult, a->decay, a->beta1, a->beta2, a->one_minus_beta2};
	double word = words[rng_below(r, NR(words))], x = 0x1p-126 / (word > 0 ? word : 1);
	uint32_t u = dtype_bits((float)(rng_below(r, 4) ? x : sqrt(x)));

	u += (uint32_t)rng_below(r, 3) - 1;
	return dtype_float(u | (uint32_t)rng_below(r, 2) << 31);
}

static float number(struct world *w, enum numbers kind, bool positive)
{
	struct rng *r = &w->rng;
	static const uint32_t awkward[] = {
		0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00400000, 0x00800000,
		0x80800000, 0x3f800000, 0xbf800000, 0x33800000, 0x7f7fffff, 0xff7fffff, 0x7f000000,
		0x5f800000, 0x1f800000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001};
	uint32_t u = (uint32_t)(rng_next(r) >> 20);

	if (kind == AWKWARD)
		u = awkward[rng_below(r, NR(awkward))];
	else if (kind == ORDINARY)
		u = (u & 0x807fffff) | (uint32_t)(100 + rng_below(r, 30)) << 23;
	else if (kind == BORDER)
		u = rng_below(r, 3) ? dtype_bits(border_number(&w->args[rng_below(r, GROUPS)], r))
				    : 0;
	else if (kind == TINY)
		u = (u & 0x807fffff) | (uint32_t)rng_below(r, 8) << 23;
	return dtype_float(positive ? u & 0x7fffffff : u);
}

static void *memory(size_t bytes)
{
	void *p = aligned_alloc(16, bytes);

	assert_non_null(p);
	return p;
}

static void world_make(struct world *w)
{
	memset(w, 0, sizeof(*w));
	w->rng.state = 5;
	memcpy(w->segments, shape, sizeof(shape));
	for (uint32_t i = 0; i < SEGMENTS; i++) {
		w->segments[i].block = w->blocks;
		w->blocks += (shape[i].n + REDUCE_BLOCK - 1) / REDUCE_BLOCK;
	}
	for (uint32_t c = 0; c < CHUNKS; c++) {
		for (uint32_t t = 0; t < TENSORS; t++) {
			w->old[c][t] = memory(CHUNK * 4);
			w->new[c][t] = memory(CHUNK * 4);
			w->want[c][t] = memory(CHUNK * 4);
		}
		w->grad[c] = memory(CHUNK * 4);
		w->image[c] = memory(CHUNK * 4);
		w->want_image[c] = memory(CHUNK * 4);
	}
}

static void world_free(struct world *w)
{
	for (uint32_t c = 0; c < CHUNKS; c++) {
		for (uint32_t t = 0; t < TENSORS; t++)
			free(w->old[c][t]), free(w->new[c][t]), free(w->want[c][t]);
		free(w->grad[c]), free(w->image[c]), free(w->want_image[c]);
	}
}

static void args_make(struct world *w, const struct optim_row *row)
{
	double h[HYPER_NR];

	for (uint32_t g = 0; g < GROUPS; g++) {
		optim_defaults(row, h);
		h[HYPER_LR] = 0.01 * (g + 1);
		h[HYPER_WEIGHT_DECAY] = 0.1 * g;
		if (row->hyper[HYPER_MOMENTUM].name)
			h[HYPER_MOMENTUM] = 0.9;
		h[HYPER_NESTEROV] = row->hyper[HYPER_NESTEROV].name != NULL && g == 1;
		optim_args_set(&w->args[g], row, h, 3 + g, 0.37f);
	}
}

static void world_fill(struct world *w, enum numbers kind, enum shard_dtype grad)
{
	for (uint32_t c = 0; c < CHUNKS; c++) {
		for (uint32_t i = 0; i < CHUNK; i++) {
			float x = number(w, kind, false);

			w->old[c][0][i] = number(w, kind, false);
			w->old[c][1][i] = number(w, kind, false);
			w->old[c][2][i] = number(w, kind, true);
			dtype_convert((char *)w->grad[c] + i * dtype_bytes(grad), grad, &x,
				      SHARD_F32, 1);
		}
		for (uint32_t t = 0; t < TENSORS; t++) {
			memset(w->new[c][t], 0x5a, CHUNK * 4);
			memset(w->want[c][t], 0x5a, CHUNK * 4);
		}
		memset(w->image[c], 0xa5, CHUNK * 4);
		memset(w->want_image[c], 0xa5, CHUNK * 4);
		w->kept[c] = 7 + c;
	}
}

/* What the kernel of a processor makes of it, segment by segment. */
static void expect(struct world *w, const struct optim_row *row, enum isa isa, enum shard_dtype gdt,
		   enum shard_dtype idt, unsigned long long *kept)
{
	optim_apply *apply = optim_kernel(row, isa, gdt, idt);
	unsigned before = ftz_on();

	for (uint32_t i = 0; i < SEGMENTS; i++) {
		const struct gpu_segment *s = &w->segments[i];
		float *to[TENSORS] = {NULL};

		for (uint32_t t = 0; t <= row->states_nr; t++) {
			to[t] = w->want[s->chunk][t] + s->start;
			memcpy(to[t], w->old[s->chunk][t] + s->start, s->n * 4);
		}
		kept[s->chunk] += apply(
			&w->args[s->group], s->n,
			s->zero ? NULL : (char *)w->grad[s->chunk] + s->start * dtype_bytes(gdt),
			to[0], to[1], to[2],
			(char *)w->want_image[s->chunk] + s->start * dtype_bytes(idt));
	}
	ftz_restore(before);
}

static void launch(struct world *w, const struct optim_row *row, enum shard_dtype gdt,
		   enum shard_dtype idt, bool in_place)
{
	struct gpu_chunk chunks[CHUNKS];
	struct gpu_apply job = {w->segments, chunks, w->args, w->kept, SEGMENTS, w->blocks};
	char name[64];

	for (uint32_t c = 0; c < CHUNKS; c++) {
		float *const *to = in_place ? w->old[c] : w->new[c];
		bool s1 = row->states_nr > 0, s2 = row->states_nr > 1;

		chunks[c] = (struct gpu_chunk){w->old[c][0],
					       s1 ? w->old[c][1] : NULL,
					       s2 ? w->old[c][2] : NULL,
					       to[0],
					       s1 ? to[1] : NULL,
					       s2 ? to[2] : NULL,
					       w->grad[c],
					       w->image[c]};
	}
	snprintf(name, sizeof(name), "apply_%s_%s_%s", row->name, dtype_name(gdt), dtype_name(idt));
	shim_call(shim_kernel(name), &job, w->blocks, GPU_THREADS);
}

static void same(const char *what, uint32_t c, const void *want, const void *got, size_t size)
{
	for (size_t i = 0; i < CHUNK; i++)
		if (memcmp((const char *)want + i * size, (const char *)got + i * size, size) != 0)
			fail_msg("%s of chunk %u: element %zu differs (ftz %d)", what, c, i,
				 (int)shim.ftz);
}

static void compare(struct world *w, const struct optim_row *row, enum shard_dtype gdt,
		    enum shard_dtype idt, enum numbers kind, bool in_place)
{
	unsigned long long kept[CHUNKS] = {7, 8};

	world_fill(w, kind, gdt);
	expect(w, row, kind % 2 ? isa_best() : ISA_SCALAR, gdt, idt, kept);
	if (in_place) /* Between the segments nothing changes. */
		for (uint32_t i = 0; i < CHUNKS * (1 + row->states_nr); i++)
			memcpy(w->new[i % CHUNKS][i / CHUNKS], w->old[i % CHUNKS][i / CHUNKS],
			       CHUNK * 4);
	launch(w, row, gdt, idt, in_place);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		if (in_place)
			for (uint32_t i = 0; i < SEGMENTS; i++)
				for (uint32_t t = 0; t <= row->states_nr; t++)
					if (shape[i].chunk == c)
						memcpy(w->new[c][t] + shape[i].start,
						       w->want[c][t] + shape[i].start,
						       shape[i].n * 4);
		for (uint32_t t = 0; t <= row->states_nr; t++)
			same(t == 0   ? "master"
			     : t == 1 ? "first state"
				      : "second state",
			     c, in_place ? w->new[c][t] : w->want[c][t],
			     in_place ? w->old[c][t] : w->new[c][t], 4);
		same("image", c, w->want_image[c], w->image[c], dtype_bytes(idt));
		assert_int_equal(kept[c], w->kept[c]);
	}
}

static void all_pairs(enum optim_id id)
{
	struct world w;

	world_make(&w);
	args_make(&w, optim_row(id));
	for (int pair = 0; pair < DTYPE_NR * DTYPE_NR; pair++)
		for (int ftz = 0; ftz < SHIM_FTZ_NR; ftz++)
			for (int kind = 0; kind < NUMBERS_NR; kind++) {
				shim.ftz = (enum shim_ftz)ftz;
				compare(&w, optim_row(id), (enum shard_dtype)(1 + pair % DTYPE_NR),
					(enum shard_dtype)(1 + pair / DTYPE_NR), (enum numbers)kind,
					(pair + ftz + kind) % 2);
			}
	world_free(&w);
}

#define RULE(rule, states, id)                                                                     \
	static void rule(void **state)                                                             \
	{                                                                                          \
		(void)state;                                                                       \
		all_pairs(id);                                                                     \
	}
OPTIM_KINDS(RULE)

/* --- where a device looks for what it flushes --- */

/* How many results of the kernel differ from those of x86. */
static uint32_t differ(enum border_op op, const char *how, enum shim_ftz ftz)
{
	enum { N = 1 << 14 };
	static const char *const names[] = {"mul", "fma", "div"};
	static float x[N], y[N], z[N], out[N], want[N];
	struct border_job job = {x, y, z, out, N};
	char name[32];
	uint32_t nr = 0;

	border_make(op, 1 + op, N, x, y, z);
	border_expect(op, N, x, y, z, want);
	snprintf(name, sizeof(name), "%s_%s", how, names[op]);
	shim.ftz = ftz;
	shim_call(shim_kernel(name), &job, N / BORDER_THREADS, BORDER_THREADS);
	for (uint32_t i = 0; i < N; i++)
		nr += memcmp(&out[i], &want[i], 4) != 0;
	return nr;
}

/* The cases find a device that looks elsewhere than x86 does, and the repair makes up for it. */
static void border(void **state)
{
	(void)state;
	for (int op = 0; op < BORDER_OPS; op++) {
		assert_int_equal(differ((enum border_op)op, "raw", SHIM_X86), 0);
		assert_true(differ((enum border_op)op, "raw", SHIM_KEEPS) > 100);
		for (int ftz = 0; ftz < SHIM_FTZ_NR; ftz++)
			assert_int_equal(differ((enum border_op)op, "careful", (enum shim_ftz)ftz),
					 0);
	}
	/* No quotient is between (1 - 2^-25) and 1 times 2^-126. */
	assert_true(differ(BORDER_MUL, "raw", SHIM_BEFORE) > 100);
	assert_true(differ(BORDER_FMA, "raw", SHIM_BEFORE) > 100);
}

int main(void)
{
#define TEST(rule, states, id) cmocka_unit_test(rule),
	const struct CMUnitTest tests[] = {OPTIM_KINDS(TEST) cmocka_unit_test(border)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
