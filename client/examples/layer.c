// SPDX-License-Identifier: Apache-2.0
/* layer.c: layer norm, linear, GELU, causal attention and cross-entropy, forward and backward.
 * transformer_run.c calls them for one sequence at a time. Each function works on the caller's
 * memory. Nothing here allocates or fails. A value that is not finite goes through all of it, and
 * the daemon notices it in the gradient. */
#include "examples/layer.h"
#include "examples/layer_row.h"
#include "examples/matmul.h"
#include <math.h>
#include <string.h>

/* --- layer norm --- */

void layer_norm(float *out, const float *in, const struct layer_norm *n, size_t rows, size_t dim)
{
	for (size_t t = 0; t < rows; t++, in += dim, out += dim)
		row_norm(out, in, n->weight, n->bias, &n->mean[t], &n->rstd[t], dim);
}

void layer_norm_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
			 const float *in, const struct layer_norm *n, size_t rows, size_t dim)
{
	for (size_t t = 0; t < rows; t++, in += dim, d_in += dim, d_out += dim) {
		for (size_t i = 0; i < dim; i++) {
			d_weight[i] += d_out[i] * ((in[i] - n->mean[t]) * n->rstd[t]);
			d_bias[i] += d_out[i];
		}
		row_norm_backward(d_in, d_out, in, n->weight, n->mean[t], n->rstd[t], dim);
	}
}

/* --- linear --- */

void layer_linear(float *out, const float *in, const float *weight, const float *bias, size_t rows,
		  size_t from, size_t to, float *panel)
{
	for (size_t t = 0; t < rows; t++)
		memcpy(out + t * to, bias, to * sizeof(float));
	matmul(out, to, matmul_rows(in, from), matmul_rows(weight, to), rows, to, from, true,
	       panel);
}

void layer_linear_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
			   const float *in, const float *weight, size_t rows, size_t from,
			   size_t to, float *panel)
{
	for (size_t t = 0; t < rows; t++) {
		for (size_t i = 0; i < to; i++)
			d_bias[i] += d_out[t * to + i];
	}
	matmul(d_weight, to, matmul_transposed(in, from), matmul_rows(d_out, to), from, to, rows,
	       true, panel);
	matmul(d_in, from, matmul_rows(d_out, to), matmul_transposed(weight, to), rows, from, to,
	       false, panel);
}

/* --- GELU --- */

void layer_gelu(float *restrict out, const float *restrict in, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = in[i] * row_gelu_gate(in[i]);
}

void layer_gelu_backward(float *d_in, const float *d_out, const float *in, size_t n)
{
	for (size_t i = 0; i < n; i++)
		d_in[i] = d_out[i] * row_gelu_slope(in[i]);
}

/* --- attention --- */

void layer_attention(float *out, const float *qkv, const struct layer_attention *a)
{
	size_t rows = a->rows, wide = 3 * a->dim, head = a->dim / a->heads;
	float scale = 1.0f / sqrtf((float)head);

	for (size_t h = 0; h < a->heads; h++) {
		const float *q = qkv + h * head, *k = q + a->dim, *v = k + a->dim;
		float *odds = a->odds + h * rows * rows;

		matmul(odds, rows, matmul_rows(q, wide), matmul_transposed(k, wide), rows, rows,
		       head, false, a->panel);
		for (size_t t = 0; t < rows; t++)
			row_softmax(odds + t * rows, t, rows, scale);
		matmul(out + h * head, a->dim, matmul_rows(odds, rows), matmul_rows(v, wide), rows,
		       head, rows, false, a->panel);
	}
}

void layer_attention_backward(float *d_qkv, const float *d_out, const float *qkv,
			      const struct layer_attention *a)
{
	size_t rows = a->rows, dim = a->dim, wide = 3 * dim, head = dim / a->heads;
	float scale = 1.0f / sqrtf((float)head), *ds = a->scratch;

	for (size_t h = 0; h < a->heads; h++) {
		const float *q = qkv + h * head, *k = q + dim, *v = k + dim, *dy = d_out + h * head;
		const float *odds = a->odds + h * rows * rows;
		float *dq = d_qkv + h * head;

		matmul(dq + 2 * dim, wide, matmul_transposed(odds, rows), matmul_rows(dy, dim),
		       rows, head, rows, false, a->panel);
		matmul(ds, rows, matmul_rows(dy, dim), matmul_transposed(v, wide), rows, rows, head,
		       false, a->panel);
		for (size_t t = 0; t < rows; t++)
			row_softmax_backward(ds + t * rows, odds + t * rows, t, rows, scale);
		matmul(dq, wide, matmul_rows(ds, rows), matmul_rows(k, wide), rows, head, rows,
		       false, a->panel);
		matmul(dq + dim, wide, matmul_transposed(ds, rows), matmul_rows(q, wide), rows,
		       head, rows, false, a->panel);
	}
}

/* --- loss --- */

/* The log() of the C library may differ. Only people read the loss, and no gradient depends on it.
 */
double layer_loss(const struct row_loss *l)
{
	return log((double)l->whole) - ((double)l->right - l->top);
}

double layer_cross_entropy(float *logits, const uint8_t *targets, size_t rows, size_t classes,
			   float scale)
{
	float each = scale / (float)rows;
	double loss = 0;

	for (size_t t = 0; t < rows; t++) {
		struct row_loss l = row_loss(logits + t * classes, targets[t], classes, each);

		loss += layer_loss(&l);
	}
	return loss / (double)rows;
}

float layer_exp(float x)
{
	return row_exp(x);
}
