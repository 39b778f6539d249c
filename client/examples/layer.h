/* SPDX-License-Identifier: Apache-2.0 */
/* layer.h: the parts of the example model, forward and backward, over `rows` rows of fp32. Backward
 * adds to the gradients of parameters and, where it says so, to the gradient of its input. Sums run
 * in a fixed order and exp is our own, so that the result depends neither on the C library nor on
 * the processor. */
#ifndef EXAMPLES_LAYER_H
#define EXAMPLES_LAYER_H

#include <stddef.h>
#include <stdint.h>

struct layer_norm {
	const float *weight, *bias;
	float *mean, *rstd; /* one per row, written forward, read backward */
};

void layer_norm(float *out, const float *in, const struct layer_norm *n, size_t rows, size_t dim);
/* d_in += */
void layer_norm_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
			 const float *in, const struct layer_norm *n, size_t rows, size_t dim);

/* out[rows][to] = in[rows][from] weight[from][to] + bias */
void layer_linear(float *out, const float *in, const float *weight, const float *bias, size_t rows,
		  size_t from, size_t to, float *panel);
/* d_in = */
void layer_linear_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
			   const float *in, const float *weight, size_t rows, size_t from,
			   size_t to, float *panel);

void layer_gelu(float *out, const float *in, size_t n);
void layer_gelu_backward(float *d_in, const float *d_out, const float *in,
			 size_t n); /* d_in =; may be d_out */

/* Causal attention. qkv[rows][3 dim]: queries, keys, values; odds[heads][rows][rows] is kept for
 * the way back. */
struct layer_attention {
	size_t rows, dim, heads;
	float *odds, *scratch /* rows x rows */, *panel;
};

void layer_attention(float *out, const float *qkv, const struct layer_attention *a);
void layer_attention_backward(float *d_qkv, const float *d_out, const float *qkv,
			      const struct layer_attention *a); /* d_qkv = */

/* Mean cross-entropy over the rows in nats. logits become the gradient of scale x loss. */
double layer_cross_entropy(float *logits, const uint8_t *targets, size_t rows, size_t classes,
			   float scale);

float layer_exp(float x); /* for the tests */

#endif
