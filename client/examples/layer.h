/* SPDX-License-Identifier: Apache-2.0 */
/* layer.h: the parts of the example model, forward and backward, over `rows` rows of fp32. Backward
 * adds to the gradients of parameters and, where its comment says so, to the gradient of its input.
 * Sums run in a fixed order and exp() is a function of this file, so that the result depends
 * neither on the C library nor on the processor. */
#ifndef EXAMPLES_LAYER_H
#define EXAMPLES_LAYER_H

#include <stddef.h>
#include <stdint.h>

struct layer_norm {
	const float *weight, *bias;
	float *mean, *rstd; /* One per row. Forward writes them and backward reads them. */
};

void layer_norm(float *out, const float *in, const struct layer_norm *n, size_t rows, size_t dim);
/* Adds to d_in. */
void layer_norm_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
			 const float *in, const struct layer_norm *n, size_t rows, size_t dim);

/* out[rows][to] = in[rows][from] weight[from][to] + bias */
void layer_linear(float *out, const float *in, const float *weight, const float *bias, size_t rows,
		  size_t from, size_t to, float *panel);
/* Overwrites d_in. */
void layer_linear_backward(float *d_in, float *d_weight, float *d_bias, const float *d_out,
			   const float *in, const float *weight, size_t rows, size_t from,
			   size_t to, float *panel);

void layer_gelu(float *out, const float *in, size_t n);
/* Overwrites d_in, which may be the same memory as d_out. */
void layer_gelu_backward(float *d_in, const float *d_out, const float *in, size_t n);

/* Causal attention. qkv[rows][3 dim] has queries, keys and values. Forward leaves the weights in
 * odds[heads][rows][rows] for backward. */
struct layer_attention {
	size_t rows, dim, heads;
	float *odds, *scratch /* rows x rows */, *panel;
};

void layer_attention(float *out, const float *qkv, const struct layer_attention *a);
/* Overwrites d_qkv. */
void layer_attention_backward(float *d_qkv, const float *d_out, const float *qkv,
			      const struct layer_attention *a);

struct row_loss;
double layer_loss(const struct row_loss *l); /* The cross-entropy of one row in nats. */
/* Returns the mean cross-entropy over the rows in nats. logits become the gradient of scale x loss.
 */
double layer_cross_entropy(float *logits, const uint8_t *targets, size_t rows, size_t classes,
			   float scale);

float layer_exp(float x); /* For the tests. */

#endif
