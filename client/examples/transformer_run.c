// SPDX-License-Identifier: Apache-2.0
/* transformer_run.c: runs one sequence through the example model, forward and backward. gpt.c and
 * the in-process reference call transformer_sequence(). Backward walks the tensors in reverse
 * layout order and hands each one to emit as soon as nothing more will be added to it, so that its
 * push overlaps the rest of backward. Nothing here can fail. emit may stop further calls. */
#include "base/check.h"
#include "examples/layer.h"
#include "examples/matmul.h"
#include "examples/transformer.h"
#include <string.h>

struct back { /* The state of one backward pass. */
	transformer_emit *emit;
	void *arg;
	bool stopped;
};

static struct layer_norm norm_of(const struct transformer *t, uint32_t weight, float *mean,
				 float *rstd)
{
	return (struct layer_norm){t->w[weight], t->w[weight + 1], mean, rstd};
}

static struct layer_attention attention_of(const struct transformer *t,
					   const struct transformer_block *b)
{
	return (struct layer_attention){t->shape.seq, t->shape.dim, t->shape.heads,
					b->odds,      t->square,    t->panel};
}

static void add(float *to, const float *what, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] += what[i];
}

/* --- forward --- */

static void embed(struct transformer *t, const uint8_t *text)
{
	const size_t dim = t->shape.dim;
	float *out = t->blocks[0].in;

	for (size_t i = 0; i < t->shape.seq; i++) {
		memcpy(out + i * dim, t->w[0] + text[i] * dim, dim * sizeof(float));
		add(out + i * dim, t->w[1] + i * dim, dim);
	}
}

static void block_forward(struct transformer *t, uint32_t l, float *out)
{
	const uint32_t first = 2 + l * BLOCK_TENSORS;
	float *const *w = t->w + first;
	struct transformer_block *b = &t->blocks[l];
	const size_t rows = t->shape.seq, dim = t->shape.dim;
	struct layer_norm n1 = norm_of(t, first + BLOCK_LN1_W, b->mean1, b->rstd1);
	struct layer_norm n2 = norm_of(t, first + BLOCK_LN2_W, b->mean2, b->rstd2);
	struct layer_attention a = attention_of(t, b);

	layer_norm(b->ln1, b->in, &n1, rows, dim);
	layer_linear(b->qkv, b->ln1, w[BLOCK_QKV_W], w[BLOCK_QKV_B], rows, dim, 3 * dim, t->panel);
	layer_attention(b->mixed, b->qkv, &a);
	layer_linear(b->mid, b->mixed, w[BLOCK_MIX_W], w[BLOCK_MIX_B], rows, dim, dim, t->panel);
	add(b->mid, b->in, rows * dim);
	layer_norm(b->ln2, b->mid, &n2, rows, dim);
	layer_linear(b->up, b->ln2, w[BLOCK_UP_W], w[BLOCK_UP_B], rows, dim, 4 * dim, t->panel);
	layer_gelu(b->gelu, b->up, rows * 4 * dim);
	layer_linear(out, b->gelu, w[BLOCK_DOWN_W], w[BLOCK_DOWN_B], rows, 4 * dim, dim, t->panel);
	add(out, b->mid, rows * dim);
}

/* --- backward --- */

static void emit(struct transformer *t, struct back *k, uint32_t tensor)
{
	if (k->emit && !k->stopped)
		k->stopped = !k->emit(k->arg, tensor, t->g[tensor]);
}

/* d_stream has the gradient of the block's output before the call and of its input after it. */
static void block_backward(struct transformer *t, uint32_t l, struct back *k)
{
	const uint32_t first = 2 + l * BLOCK_TENSORS;
	float *const *w = t->w + first, *const *g = t->g + first;
	struct transformer_block *b = &t->blocks[l];
	const size_t rows = t->shape.seq, dim = t->shape.dim;
	struct layer_norm n1 = norm_of(t, first + BLOCK_LN1_W, b->mean1, b->rstd1);
	struct layer_norm n2 = norm_of(t, first + BLOCK_LN2_W, b->mean2, b->rstd2);
	struct layer_attention a = attention_of(t, b);
	float *d = t->d_stream;

	layer_linear_backward(t->d_wide, g[BLOCK_DOWN_W], g[BLOCK_DOWN_B], d, b->gelu,
			      w[BLOCK_DOWN_W], rows, 4 * dim, dim, t->panel);
	emit(t, k, first + BLOCK_DOWN_B);
	emit(t, k, first + BLOCK_DOWN_W);
	layer_gelu_backward(t->d_wide, t->d_wide, b->up, rows * 4 * dim);
	layer_linear_backward(t->d_row, g[BLOCK_UP_W], g[BLOCK_UP_B], t->d_wide, b->ln2,
			      w[BLOCK_UP_W], rows, dim, 4 * dim, t->panel);
	emit(t, k, first + BLOCK_UP_B);
	emit(t, k, first + BLOCK_UP_W);
	layer_norm_backward(d, g[BLOCK_LN2_W], g[BLOCK_LN2_B], t->d_row, b->mid, &n2, rows, dim);
	emit(t, k, first + BLOCK_LN2_B);
	emit(t, k, first + BLOCK_LN2_W);
	layer_linear_backward(t->d_row, g[BLOCK_MIX_W], g[BLOCK_MIX_B], d, b->mixed, w[BLOCK_MIX_W],
			      rows, dim, dim, t->panel);
	emit(t, k, first + BLOCK_MIX_B);
	emit(t, k, first + BLOCK_MIX_W);
	layer_attention_backward(t->d_qkv, t->d_row, b->qkv, &a);
	layer_linear_backward(t->d_row, g[BLOCK_QKV_W], g[BLOCK_QKV_B], t->d_qkv, b->ln1,
			      w[BLOCK_QKV_W], rows, dim, 3 * dim, t->panel);
	emit(t, k, first + BLOCK_QKV_B);
	emit(t, k, first + BLOCK_QKV_W);
	layer_norm_backward(d, g[BLOCK_LN1_W], g[BLOCK_LN1_B], t->d_row, b->in, &n1, rows, dim);
	emit(t, k, first + BLOCK_LN1_B);
	emit(t, k, first + BLOCK_LN1_W);
}

/* logits hold the gradient of the loss. The head is wte, so its gradient comes from both ends and
 * leaves last. */
static void head_backward(struct transformer *t, struct back *k, const struct layer_norm *last)
{
	const size_t rows = t->shape.seq, dim = t->shape.dim, classes = TRANSFORMER_CLASSES;
	const uint32_t weight = t->tensors_nr - 2;

	matmul(t->g[0], dim, matmul_transposed(t->logits, classes), matmul_rows(t->last, dim),
	       classes, dim, rows, true, t->panel);
	matmul(t->d_row, dim, matmul_rows(t->logits, classes), matmul_rows(t->w[0], dim), rows, dim,
	       classes, false, t->panel);
	memset(t->d_stream, 0, rows * dim * sizeof(float));
	layer_norm_backward(t->d_stream, t->g[weight], t->g[weight + 1], t->d_row, t->stream, last,
			    rows, dim);
	emit(t, k, weight + 1);
	emit(t, k, weight);
}

double transformer_sequence(struct transformer *t, const uint8_t *text, float scale,
			    transformer_emit *emit_to, void *arg)
{
	const size_t rows = t->shape.seq, dim = t->shape.dim, classes = TRANSFORMER_CLASSES;
	const uint32_t layers = t->shape.layers;
	struct layer_norm last = norm_of(t, t->tensors_nr - 2, t->mean, t->rstd);
	struct back k = {emit_to, arg, false};
	double loss;

	CHECK(t->memory);
	embed(t, text);
	for (uint32_t l = 0; l < layers; l++)
		block_forward(t, l, l + 1 < layers ? t->blocks[l + 1].in : t->stream);
	layer_norm(t->last, t->stream, &last, rows, dim);
	matmul(t->logits, classes, matmul_rows(t->last, dim), matmul_transposed(t->w[0], dim), rows,
	       classes, dim, false, t->panel);
	loss = layer_cross_entropy(t->logits, text + 1, rows, classes, scale);

	head_backward(t, &k, &last);
	for (uint32_t l = layers; l-- > 0 && !k.stopped;)
		block_backward(t, l, &k);
	if (k.stopped)
		return loss;
	add(t->g[1], t->d_stream, rows * dim);
	emit(t, &k, 1);
	for (size_t i = 0; i < rows; i++)
		add(t->g[0] + text[i] * dim, t->d_stream + i * dim, dim);
	emit(t, &k, 0);
	return loss;
}
