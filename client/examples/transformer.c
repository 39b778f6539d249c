// SPDX-License-Identifier: Apache-2.0
/* transformer.c: owns the tensors and activations of the example model. gpt.c uses it to read
 * weights from the shared image and to push gradients, and the in-process reference uses it, too.
 * transformer_init() lays out the memory of one sequence, so that memory does not grow with the
 * batch. transformer_run.c has the forward and backward pass. Only the init can fail: on a shape
 * that makes no sense, or without memory. */
#include "examples/transformer.h"
#include "base/check.h"
#include "base/rng.h"
#include "examples/layer.h"
#include "examples/matmul.h"
#include "wire/dtype.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#define FLUSH_TO_ZERO      0x8000u
#define DENORMALS_ARE_ZERO 0x0040u

enum { WTE, WPE, FIRST_BLOCK };

void transformer_fp_mode(void)
{
#ifdef __x86_64__
	_mm_setcsr(_mm_getcsr() | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
#endif
}

/* --- layout --- */

static const struct {
	const char *name;
	uint32_t from, to; /* In units of dim. Where `to` is 0 the tensor is a vector of `from`. */
} block_rows[BLOCK_TENSORS] = {
	[BLOCK_LN1_W] = {"ln_1.weight", 1, 0},      [BLOCK_LN1_B] = {"ln_1.bias", 1, 0},
	[BLOCK_QKV_W] = {"attn.qkv.weight", 1, 3},  [BLOCK_QKV_B] = {"attn.qkv.bias", 3, 0},
	[BLOCK_MIX_W] = {"attn.out.weight", 1, 1},  [BLOCK_MIX_B] = {"attn.out.bias", 1, 0},
	[BLOCK_LN2_W] = {"ln_2.weight", 1, 0},      [BLOCK_LN2_B] = {"ln_2.bias", 1, 0},
	[BLOCK_UP_W] = {"mlp.up.weight", 1, 4},     [BLOCK_UP_B] = {"mlp.up.bias", 4, 0},
	[BLOCK_DOWN_W] = {"mlp.down.weight", 4, 1}, [BLOCK_DOWN_B] = {"mlp.down.bias", 1, 0},
};

static uint32_t block_tensor(uint32_t block, uint32_t which)
{
	return FIRST_BLOCK + block * BLOCK_TENSORS + which;
}

static void describe(struct transformer_tensor *d, const char *name, uint64_t rows,
		     uint64_t columns)
{
	snprintf(d->name, sizeof(d->name), "%s", name);
	d->ndim = columns ? 2 : 1;
	d->shape[0] = rows;
	d->shape[1] = columns;
	d->numel = rows * (columns ? columns : 1);
}

static void describe_all(struct transformer *t)
{
	const uint64_t dim = t->shape.dim;
	char name[40];

	describe(&t->tensors[WTE], "wte.weight", TRANSFORMER_CLASSES, dim);
	describe(&t->tensors[WPE], "wpe.weight", t->shape.seq, dim);
	for (uint32_t l = 0; l < t->shape.layers; l++) {
		for (uint32_t k = 0; k < BLOCK_TENSORS; k++) {
			snprintf(name, sizeof(name), "h.%u.%s", l, block_rows[k].name);
			describe(&t->tensors[block_tensor(l, k)], name, block_rows[k].from * dim,
				 block_rows[k].to * dim);
		}
	}
	describe(&t->tensors[t->tensors_nr - 2], "ln_f.weight", dim, 0);
	describe(&t->tensors[t->tensors_nr - 1], "ln_f.bias", dim, 0);
}

/* --- memory: lay_out() runs twice, first to count and then to hand out --- */

static float *take(struct transformer *t, size_t floats)
{
	float *p = t->memory ? t->memory + t->memory_floats : NULL;

	t->memory_floats += (floats + 15) & ~(size_t)15;
	return p;
}

static void lay_out(struct transformer *t)
{
	const size_t rows = t->shape.seq, dim = t->shape.dim;
	const size_t longest = 4 * dim > rows ? 4 * dim : rows;

	t->memory_floats = 0;
	for (uint32_t i = 0; i < t->tensors_nr; i++) {
		t->w[i] = take(t, t->tensors[i].numel);
		t->g[i] = take(t, t->tensors[i].numel);
	}
	for (uint32_t l = 0; l < t->shape.layers; l++) {
		struct transformer_block *b = &t->blocks[l];

		b->in = take(t, rows * dim), b->mid = take(t, rows * dim);
		b->ln1 = take(t, rows * dim), b->ln2 = take(t, rows * dim);
		b->mean1 = take(t, rows), b->rstd1 = take(t, rows);
		b->mean2 = take(t, rows), b->rstd2 = take(t, rows);
		b->qkv = take(t, rows * 3 * dim), b->mixed = take(t, rows * dim);
		b->odds = take(t, t->shape.heads * rows * rows);
		b->up = take(t, rows * 4 * dim), b->gelu = take(t, rows * 4 * dim);
	}
	t->stream = take(t, rows * dim), t->last = take(t, rows * dim);
	t->mean = take(t, rows), t->rstd = take(t, rows);
	t->logits = take(t, rows * TRANSFORMER_CLASSES);
	t->d_stream = take(t, rows * dim), t->d_row = take(t, rows * dim);
	t->d_wide = take(t, rows * 4 * dim), t->d_qkv = take(t, rows * 3 * dim);
	t->square = take(t, rows * rows);
	t->panel = take(
		t, matmul_panel(longest > TRANSFORMER_CLASSES ? longest : TRANSFORMER_CLASSES));
}

static const char *shape_invalid(const struct transformer_shape *s)
{
	if (s->layers < 1 || s->layers > 256)
		return "layers must be 1 to 256";
	if (s->dim < 1 || s->dim > 16384)
		return "dim must be 1 to 16384";
	if (s->heads < 1 || s->dim % s->heads)
		return "heads must divide dim";
	if (s->seq < 1 || s->seq > 65536)
		return "seq must be 1 to 65536";
	return NULL;
}

static enum shard_status no_memory(struct transformer *t, const struct transformer_shape *shape,
				   struct err *e)
{
	size_t bytes = t->memory_floats * sizeof(float);

	transformer_deinit(t);
	return err_set(e, SHARD_SYSTEM, "model of layers=%u dim=%u seq=%u: no memory for %zu MiB",
		       shape->layers, shape->dim, shape->seq, bytes >> 20);
}

enum shard_status transformer_describe(struct transformer *t, const struct transformer_shape *shape,
				       struct err *e)
{
	const char *why = shape_invalid(shape);

	memset(t, 0, sizeof(*t));
	if (why)
		return err_set(e, SHARD_BAD_ARG, "model of layers=%u dim=%u heads=%u seq=%u: %s",
			       shape->layers, shape->dim, shape->heads, shape->seq, why);
	t->shape = *shape;
	t->tensors_nr = block_tensor(shape->layers, 0) + 2;
	t->tensors = calloc(t->tensors_nr, sizeof(*t->tensors));
	t->w = calloc(t->tensors_nr, sizeof(*t->w));
	t->g = calloc(t->tensors_nr, sizeof(*t->g));
	t->blocks = calloc(shape->layers, sizeof(*t->blocks));
	if (!t->tensors || !t->w || !t->g || !t->blocks)
		return no_memory(t, shape, e);
	describe_all(t);
	lay_out(t);
	return SHARD_OK;
}

void transformer_place(struct transformer *t, float *memory)
{
	CHECK(t->tensors && !t->memory);
	t->memory = memory;
	lay_out(t);
}

enum shard_status transformer_init(struct transformer *t, const struct transformer_shape *shape,
				   struct err *e)
{
	enum shard_status st = transformer_describe(t, shape, e);

	if (st != SHARD_OK)
		return st;
	t->own = aligned_alloc(64, t->memory_floats * sizeof(float));
	if (!t->own)
		return no_memory(t, shape, e);
	transformer_place(t, t->own);
	memset(t->memory, 0, t->memory_floats * sizeof(float));
	return SHARD_OK;
}

void transformer_deinit(struct transformer *t)
{
	free(t->own);
	free(t->blocks);
	free(t->g);
	free(t->w);
	free(t->tensors);
	memset(t, 0, sizeof(*t));
}

/* --- values --- */

static bool ends_with(const char *name, const char *tail)
{
	size_t n = strlen(name), k = strlen(tail);

	return n >= k && strcmp(name + n - k, tail) == 0;
}

void transformer_initial(const struct transformer *t, uint32_t tensor, uint64_t seed, float *out)
{
	const struct transformer_tensor *d = &t->tensors[tensor];
	struct rng r = {seed};
	/* The values are uniform. Positions start small, because the bytes themselves say most.
	 * Weights that add to the residual stream start smaller in a deeper model. */
	double width = tensor == WTE ? 0.2 : 0.005;

	r.state = rng_next(&r) + tensor;
	if (d->ndim == 1) {
		for (uint64_t i = 0; i < d->numel; i++)
			out[i] = ends_with(d->name, "weight") ? 1.0f : 0.0f;
		return;
	}
	if (tensor >= FIRST_BLOCK) {
		double inputs = (double)d->shape[0];

		if (ends_with(d->name, "out.weight") || ends_with(d->name, "down.weight"))
			inputs *= 2.0 * t->shape.layers;
		width = 1 / sqrt(inputs);
	}
	for (uint64_t i = 0; i < d->numel; i++)
		out[i] = (float)((2 * rng_unit(&r) - 1) * width);
}

void transformer_load(struct transformer *t, uint32_t tensor, const void *image,
		      enum shard_dtype dtype)
{
	CHECK(tensor < t->tensors_nr);
	dtype_convert(t->w[tensor], SHARD_F32, image, dtype, t->tensors[tensor].numel);
}

void transformer_zero_grad(struct transformer *t)
{
	for (uint32_t i = 0; i < t->tensors_nr; i++)
		memset(t->g[i], 0, t->tensors[i].numel * sizeof(float));
}
