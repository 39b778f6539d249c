// SPDX-License-Identifier: Apache-2.0
/* layer.c: layer norm, linear, GELU, causal attention and cross-entropy, forward and backward.
 * transformer_run.c calls them for one sequence at a time. Each function works on the caller's
 * memory. Nothing here allocates or fails. A value that is not finite goes through all of it, and
 * the daemon notices it in the gradient. */
#include "examples/layer.h"
#include "examples/matmul.h"
#include <math.h>
#include <string.h>

#define LANES    8
#define NORM_EPS 1e-5f

/* --- elementwise and row sums --- */

/* Exact within 2 ulp from -87 to 88, and constant outside. */
static inline float exp_inline(float x)
{
	/* 1.5 x 2^23. To add it leaves the nearest integer in the low bits. */
	const float round = 12582912.0f;
	float t, n, r, p;
	int32_t bits;

	x = x > 88.0f ? 88.0f : x;
	x = x < -87.0f ? -87.0f : x;
	t = x * 1.44269504f + round;
	n = t - round;
	r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
	p = 1.0f / 720 * r + 1.0f / 120;
	p = p * r + 1.0f / 24;
	p = p * r + 1.0f / 6;
	p = p * r + 0.5f;
	p = p * r * r + r + 1.0f;
	memcpy(&bits, &t, sizeof(bits));
	bits = (int32_t)(((uint32_t)bits + 127u) << 23);
	memcpy(&r, &bits, sizeof(r));
	return p * r;
}

float layer_exp(float x)
{
	return exp_inline(x);
}

static float lanes_sum(const float lane[LANES])
{
	return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
	       ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static float sum(const float *a, size_t n)
{
	float lane[LANES] = {0};
	size_t i = 0;

	for (; i + LANES <= n; i += LANES) {
		for (size_t j = 0; j < LANES; j++)
			lane[j] += a[i + j];
	}
	for (size_t j = 0; i + j < n; j++)
		lane[j] += a[i + j];
	return lanes_sum(lane);
}

static float dot(const float *a, const float *b, size_t n)
{
	float lane[LANES] = {0};
	size_t i = 0;

	for (; i + LANES <= n; i += LANES) {
		for (size_t j = 0; j < LANES; j++)
			lane[j] += a[i + j] * b[i + j];
	}
	for (size_t j = 0; i + j < n; j++)
		lane[j] += a[i + j] * b[i + j];
	return lanes_sum(lane);
}

static float largest(const float *a, size_t n)
{
	float m = a[0];

	for (size_t i = 1; i < n; i++)
		m = a[i] > m ? a[i] : m;
	return m;
}

/* --- layer norm --- */

void layer_norm(float *out, const float *in, const struct layer_norm *n, size_t rows, size_t dim)
{
	for (size_t t = 0; t < rows; t++, in += dim, out += dim) {
		float mean = sum(in, dim) / (float)dim, rstd;

		for (size_t i = 0; i < dim; i++)
			out[i] = in[i] - mean;
		rstd = 1.0f / sqrtf(dot(out, out, dim) / (float)dim + NORM_EPS);
		for (size_t i = 0; i < dim; i++)
			out[i] = out[i] * rstd * n->weight[i] + n->bias[i];
		n->mean[t] = mean;
		n->rstd[t] = rstd;
	}
}

void layer_norm_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
			 const float *in, const struct layer_norm *n, size_t rows, size_t dim)
{
	for (size_t t = 0; t < rows; t++, in += dim, d_in += dim, d_out += dim) {
		float mean = n->mean[t], rstd = n->rstd[t];
		/* With h = (in - mean) rstd and e = d_out weight the result is d_in = rstd (e -
		 * mean(e) - h mean(e h)). */
		float mean_e = dot(d_out, n->weight, dim) / (float)dim, mean_eh = 0;
		float lane[LANES] = {0};

		for (size_t i = 0; i < dim; i++) {
			float h = (in[i] - mean) * rstd;

			lane[i % LANES] += d_out[i] * n->weight[i] * h;
			d_weight[i] += d_out[i] * h;
			d_bias[i] += d_out[i];
		}
		mean_eh = lanes_sum(lane) / (float)dim;
		for (size_t i = 0; i < dim; i++) {
			float h = (in[i] - mean) * rstd;

			d_in[i] += rstd * (d_out[i] * n->weight[i] - mean_e - h * mean_eh);
		}
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

/* --- GELU, by its tanh form: x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3) --- */

static inline float gelu_gate(float x)
{
	return 1.0f / (1.0f + exp_inline(-1.59576912f * (x + 0.044715f * x * x * x)));
}

void layer_gelu(float *restrict out, const float *restrict in, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = in[i] * gelu_gate(in[i]);
}

void layer_gelu_backward(float *d_in, const float *d_out, const float *in, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float x = in[i], s = gelu_gate(x);

		d_in[i] = d_out[i] *
			  (s + x * s * (1.0f - s) * 1.59576912f * (1.0f + 3 * 0.044715f * x * x));
	}
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
		for (size_t t = 0; t < rows; t++) {
			float *row = odds + t * rows, top = largest(row, t + 1), whole;

			for (size_t i = 0; i <= t; i++)
				row[i] = exp_inline((row[i] - top) * scale);
			whole = 1.0f / sum(row, t + 1);
			for (size_t i = 0; i <= t; i++)
				row[i] *= whole;
			/* Attention is causal: later positions have no weight. */
			memset(row + t + 1, 0, (rows - t - 1) * sizeof(float));
		}
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
		for (size_t t = 0; t < rows; t++) {
			const float *p = odds + t * rows;
			float *d = ds + t * rows, mean = dot(d, p, t + 1);

			for (size_t i = 0; i <= t; i++)
				d[i] = p[i] * (d[i] - mean) * scale;
			memset(d + t + 1, 0, (rows - t - 1) * sizeof(float));
		}
		matmul(dq, wide, matmul_rows(ds, rows), matmul_rows(k, wide), rows, head, rows,
		       false, a->panel);
		matmul(dq + dim, wide, matmul_transposed(ds, rows), matmul_rows(q, wide), rows,
		       head, rows, false, a->panel);
	}
}

/* --- loss --- */

double layer_cross_entropy(float *logits, const uint8_t *targets, size_t rows, size_t classes,
			   float scale)
{
	float each = scale / (float)rows;
	double loss = 0;

	for (size_t t = 0; t < rows; t++) {
		float *row = logits + t * classes, top = largest(row, classes), whole;
		double right = (double)row[targets[t]] - top;

		for (size_t i = 0; i < classes; i++)
			row[i] = exp_inline(row[i] - top);
		whole = sum(row, classes);
		/* The log() of the C library may differ. Only people read the loss, and no gradient
		 * depends on it. */
		loss += log((double)whole) - right;
		for (size_t i = 0; i < classes; i++)
			row[i] = row[i] / whole * each;
		row[targets[t]] -= each;
	}
	return loss / (double)rows;
}
