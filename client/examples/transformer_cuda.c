// SPDX-License-Identifier: Apache-2.0
/* transformer_cuda.c: runs sequences through the example model on a GPU, as transformer_run.c does
 * on a processor: the same layers in the same order, each as one or a few kernels on one stream.
 * gpt_cuda.c calls it. Everything is queued, so that the pushes that emit queues overlap the rest
 * of backward. Only transformer_cuda_losses() waits. What fails is in device->err, and everything
 * after it does nothing. */
#include "examples/transformer_cuda.h"
#include "base/check.h"
#include "examples/layer.h"
#include "examples/layer_row.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct back { /* The state of one backward pass. */
	transformer_emit *emit;
	void *arg;
	bool stopped;
};

/* --- memory --- */

enum shard_status transformer_cuda_init(struct transformer_cuda *t, struct device *d,
					const struct transformer_shape *shape, const uint8_t *text,
					uint64_t text_bytes, uint64_t sequences)
{
	const size_t rows = shape->seq;

	memset(t, 0, sizeof(*t));
	t->device = d;
	t->sequences = sequences;
	if (transformer_describe(&t->net, shape, &d->err) != SHARD_OK)
		return d->err.status;
	transformer_place(&t->net, device_alloc(d, t->net.memory_floats * sizeof(float)));
	t->square = device_alloc(d, shape->heads * rows * rows * sizeof(float));
	t->text = device_alloc(d, text_bytes);
	t->said = device_alloc(d, sequences * rows * sizeof(*t->said));
	device_put(d, t->text, text, text_bytes);
	if (d->err.status != SHARD_OK)
		transformer_cuda_deinit(t);
	return d->err.status;
}

void transformer_cuda_deinit(struct transformer_cuda *t)
{
	if (!t->device)
		return;
	device_free(t->device, t->net.memory);
	device_free(t->device, t->square);
	device_free(t->device, t->text);
	device_free(t->device, t->said);
	transformer_deinit(&t->net);
	memset(t, 0, sizeof(*t));
}

void transformer_cuda_load(struct transformer_cuda *t, uint32_t tensor, const void *image,
			   enum shard_dtype dtype)
{
	CHECK(tensor < t->net.tensors_nr);
	DEVICE_RUN(t->device, gpt_load, t->net.w[tensor], image, dtype,
		   t->net.tensors[tensor].numel);
}

void transformer_cuda_zero_grad(struct transformer_cuda *t)
{
	for (uint32_t i = 0; i < t->net.tensors_nr; i++)
		DEVICE_RUN(t->device, gpt_zero, t->net.g[i], t->net.tensors[i].numel);
}

/* --- layers --- */

static void add(struct transformer_cuda *t, float *to, const float *what, size_t n)
{
	DEVICE_RUN(t->device, gpt_add, to, what, n);
}

struct norm { /* Layer norm of the tensor `weight` and the one after it. */
	uint32_t weight;
	float *mean, *rstd;
};

static void norm(struct transformer_cuda *t, float *out, const float *in, const struct norm *n)
{
	DEVICE_RUN(t->device, gpt_norm, out, in, t->net.w[n->weight], t->net.w[n->weight + 1],
		   n->mean, n->rstd, t->net.shape.dim, t->net.shape.seq);
}

/* Adds to d_in. */
static void norm_backward(struct transformer_cuda *t, float *d_in, const float *d_out,
			  const float *in, const struct norm *n)
{
	const uint64_t rows = t->net.shape.seq, dim = t->net.shape.dim;

	DEVICE_RUN(t->device, gpt_norm_sums, t->net.g[n->weight], t->net.g[n->weight + 1], d_out,
		   in, n->mean, n->rstd, rows, dim);
	DEVICE_RUN(t->device, gpt_norm_backward, d_in, d_out, in, t->net.w[n->weight], n->mean,
		   n->rstd, dim, rows);
}

struct view {
	const float *p;
	size_t row, col; /* Strides in elements. */
	size_t next;     /* From one matrix to the next one. */
};

/* count matrices c[m][n] = start + a[m][k] b[k][n]. */
struct product {
	float *c;
	size_t row, next;
	const float *start; /* As in gpt_matmul_job. */
	size_t start_row;
	size_t m, n, k, count;
};

static void matmul(struct transformer_cuda *t, struct product p, struct view a, struct view b)
{
	DEVICE_RUN(t->device, gpt_matmul, .c = p.c, .start = p.start, .a = a.p, .b = b.p,
		   .c_row = p.row, .c_next = p.next, .start_row = p.start_row, .a_row = a.row,
		   .a_col = a.col, .a_next = a.next, .b_row = b.row, .b_col = b.col,
		   .b_next = b.next, .m = p.m, .n = p.n, .k = p.k, .nr = p.count * p.m * p.n);
}

/* out[rows][to] = in[rows][from] weight[from][to] + bias */
static void linear(struct transformer_cuda *t, float *out, const float *in, uint32_t weight,
		   size_t from, size_t to)
{
	matmul(t,
	       (struct product){out, to, 0, t->net.w[weight + 1], 0, t->net.shape.seq, to, from, 1},
	       (struct view){in, from, 1, 0}, (struct view){t->net.w[weight], to, 1, 0});
}

/* Overwrites d_in. */
static void linear_backward(struct transformer_cuda *t, float *d_in, const float *d_out,
			    const float *in, uint32_t weight, size_t from, size_t to)
{
	const size_t rows = t->net.shape.seq;
	float *d_weight = t->net.g[weight];

	DEVICE_RUN(t->device, gpt_rows_sum, t->net.g[weight + 1], d_out, rows, to);
	matmul(t, (struct product){d_weight, to, 0, d_weight, to, from, to, rows, 1},
	       (struct view){in, 1, from, 0}, (struct view){d_out, to, 1, 0});
	matmul(t, (struct product){d_in, from, 0, NULL, 0, rows, from, to, 1},
	       (struct view){d_out, to, 1, 0}, (struct view){t->net.w[weight], 1, to, 0});
}

/* All heads at once: queries, keys and values of head h begin h x (dim / heads) further. */
static void attention(struct transformer_cuda *t, float *out, const float *qkv, float *odds)
{
	const size_t rows = t->net.shape.seq, dim = t->net.shape.dim, heads = t->net.shape.heads;
	const size_t wide = 3 * dim, head = dim / heads, square = rows * rows;
	const float *k = qkv + dim, *v = k + dim;

	matmul(t, (struct product){odds, rows, square, NULL, 0, rows, rows, head, heads},
	       (struct view){qkv, wide, 1, head}, (struct view){k, 1, wide, head});
	DEVICE_RUN(t->device, gpt_softmax, odds, rows, heads * rows, 1.0f / sqrtf((float)head));
	matmul(t, (struct product){out, dim, head, NULL, 0, rows, head, rows, heads},
	       (struct view){odds, rows, 1, square}, (struct view){v, wide, 1, head});
}

/* Overwrites d_qkv. */
static void attention_backward(struct transformer_cuda *t, float *dq, const float *dy,
			       const float *qkv, const float *odds)
{
	const size_t rows = t->net.shape.seq, dim = t->net.shape.dim, heads = t->net.shape.heads;
	const size_t wide = 3 * dim, head = dim / heads, square = rows * rows;
	const float *k = qkv + dim, *v = k + dim;
	float *dk = dq + dim, *dv = dk + dim, *ds = t->square;

	matmul(t, (struct product){dv, wide, head, NULL, 0, rows, head, rows, heads},
	       (struct view){odds, 1, rows, square}, (struct view){dy, dim, 1, head});
	matmul(t, (struct product){ds, rows, square, NULL, 0, rows, rows, head, heads},
	       (struct view){dy, dim, 1, head}, (struct view){v, 1, wide, head});
	DEVICE_RUN(t->device, gpt_softmax_backward, ds, odds, rows, heads * rows,
		   1.0f / sqrtf((float)head));
	matmul(t, (struct product){dq, wide, head, NULL, 0, rows, head, rows, heads},
	       (struct view){ds, rows, 1, square}, (struct view){k, wide, 1, head});
	matmul(t, (struct product){dk, wide, head, NULL, 0, rows, head, rows, heads},
	       (struct view){ds, 1, rows, square}, (struct view){qkv, wide, 1, head});
}

/* --- forward --- */

static void block_forward(struct transformer_cuda *t, uint32_t l, float *out)
{
	const uint32_t first = 2 + l * BLOCK_TENSORS;
	const struct transformer_block *b = &t->net.blocks[l];
	const size_t rows = t->net.shape.seq, dim = t->net.shape.dim;
	const struct norm n1 = {first + BLOCK_LN1_W, b->mean1, b->rstd1};
	const struct norm n2 = {first + BLOCK_LN2_W, b->mean2, b->rstd2};

	norm(t, b->ln1, b->in, &n1);
	linear(t, b->qkv, b->ln1, first + BLOCK_QKV_W, dim, 3 * dim);
	attention(t, b->mixed, b->qkv, b->odds);
	linear(t, b->mid, b->mixed, first + BLOCK_MIX_W, dim, dim);
	add(t, b->mid, b->in, rows * dim);
	norm(t, b->ln2, b->mid, &n2);
	linear(t, b->up, b->ln2, first + BLOCK_UP_W, dim, 4 * dim);
	DEVICE_RUN(t->device, gpt_gelu, b->gelu, b->up, rows * 4 * dim);
	linear(t, out, b->gelu, first + BLOCK_DOWN_W, 4 * dim, dim);
	add(t, out, b->mid, rows * dim);
}

static void forward(struct transformer_cuda *t, const uint8_t *text, const struct norm *last)
{
	const size_t rows = t->net.shape.seq, dim = t->net.shape.dim, classes = TRANSFORMER_CLASSES;
	const uint32_t layers = t->net.shape.layers;

	DEVICE_RUN(t->device, gpt_embed, t->net.blocks[0].in, t->net.w[0], t->net.w[1], text, dim,
		   rows * dim);
	for (uint32_t l = 0; l < layers; l++)
		block_forward(t, l, l + 1 < layers ? t->net.blocks[l + 1].in : t->net.stream);
	norm(t, t->net.last, t->net.stream, last);
	matmul(t, (struct product){t->net.logits, classes, 0, NULL, 0, rows, classes, dim, 1},
	       (struct view){t->net.last, dim, 1, 0}, (struct view){t->net.w[0], 1, dim, 0});
}

/* --- backward --- */

static void emit(struct transformer_cuda *t, struct back *k, uint32_t tensor)
{
	if (k->emit && !k->stopped)
		k->stopped = !k->emit(k->arg, tensor, t->net.g[tensor]);
}

/* A weight, or a norm's, comes in layout order before its bias, and leaves after it. */
static void emit_both(struct transformer_cuda *t, struct back *k, uint32_t weight)
{
	emit(t, k, weight + 1);
	emit(t, k, weight);
}

/* d_stream has the gradient of the block's output before the call and of its input after it. */
static void block_backward(struct transformer_cuda *t, uint32_t l, struct back *k)
{
	const uint32_t first = 2 + l * BLOCK_TENSORS;
	const struct transformer_block *b = &t->net.blocks[l];
	const size_t rows = t->net.shape.seq, dim = t->net.shape.dim;
	const struct norm n1 = {first + BLOCK_LN1_W, b->mean1, b->rstd1};
	const struct norm n2 = {first + BLOCK_LN2_W, b->mean2, b->rstd2};
	float *d = t->net.d_stream, *row = t->net.d_row, *wide = t->net.d_wide;

	linear_backward(t, wide, d, b->gelu, first + BLOCK_DOWN_W, 4 * dim, dim);
	emit_both(t, k, first + BLOCK_DOWN_W);
	DEVICE_RUN(t->device, gpt_gelu_backward, wide, b->up, rows * 4 * dim);
	linear_backward(t, row, wide, b->ln2, first + BLOCK_UP_W, dim, 4 * dim);
	emit_both(t, k, first + BLOCK_UP_W);
	norm_backward(t, d, row, b->mid, &n2);
	emit_both(t, k, first + BLOCK_LN2_W);
	linear_backward(t, row, d, b->mixed, first + BLOCK_MIX_W, dim, dim);
	emit_both(t, k, first + BLOCK_MIX_W);
	attention_backward(t, t->net.d_qkv, row, b->qkv, b->odds);
	linear_backward(t, row, t->net.d_qkv, b->ln1, first + BLOCK_QKV_W, dim, 3 * dim);
	emit_both(t, k, first + BLOCK_QKV_W);
	norm_backward(t, d, row, b->in, &n1);
	emit_both(t, k, first + BLOCK_LN1_W);
}

/* logits hold the gradient of the loss. The head is wte, so its gradient comes from both ends and
 * leaves last. */
static void head_backward(struct transformer_cuda *t, struct back *k, const struct norm *last)
{
	const size_t rows = t->net.shape.seq, dim = t->net.shape.dim, classes = TRANSFORMER_CLASSES;
	float *d_wte = t->net.g[0];

	matmul(t, (struct product){d_wte, dim, 0, d_wte, dim, classes, dim, rows, 1},
	       (struct view){t->net.logits, 1, classes, 0}, (struct view){t->net.last, dim, 1, 0});
	matmul(t, (struct product){t->net.d_row, dim, 0, NULL, 0, rows, dim, classes, 1},
	       (struct view){t->net.logits, classes, 1, 0}, (struct view){t->net.w[0], dim, 1, 0});
	DEVICE_RUN(t->device, gpt_zero, t->net.d_stream, rows * dim);
	norm_backward(t, t->net.d_stream, t->net.d_row, t->net.stream, last);
	emit_both(t, k, last->weight);
}

void transformer_cuda_sequence(struct transformer_cuda *t, uint64_t at, uint64_t i, float scale,
			       transformer_emit *emit_to, void *arg)
{
	const uint64_t rows = t->net.shape.seq, dim = t->net.shape.dim;
	const struct norm last = {t->net.tensors_nr - 2, t->net.mean, t->net.rstd};
	const uint8_t *text = t->text + at;
	struct back k = {emit_to, arg, false};

	CHECK(t->net.memory && i < t->sequences);
	forward(t, text, &last);
	DEVICE_RUN(t->device, gpt_loss, t->net.logits, text + 1, t->said + i * rows,
		   TRANSFORMER_CLASSES, rows, scale / (float)rows);
	head_backward(t, &k, &last);
	for (uint32_t l = t->net.shape.layers; l-- > 0 && !k.stopped;)
		block_backward(t, l, &k);
	if (k.stopped)
		return;
	add(t, t->net.g[1], t->net.d_stream, rows * dim);
	emit(t, &k, 1);
	DEVICE_RUN(t->device, gpt_embed_backward, t->net.g[0], t->net.d_stream, text, rows, dim);
	emit(t, &k, 0);
}

enum shard_status transformer_cuda_losses(struct transformer_cuda *t, uint64_t nr, double *loss)
{
	const size_t rows = t->net.shape.seq;
	struct row_loss *said = calloc(nr * rows + 1, sizeof(*said));

	if (!said)
		return err_set(&t->device->err, SHARD_SYSTEM, "no memory for the losses of a step");
	device_get(t->device, said, t->said, nr * rows * sizeof(*said));
	for (uint64_t i = 0; i < nr; i++) {
		loss[i] = 0;
		for (size_t row = 0; row < rows; row++)
			loss[i] += layer_loss(&said[i * rows + row]);
		loss[i] /= (double)rows;
	}
	free(said);
	return t->device->err.status;
}
