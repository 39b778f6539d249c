/* SPDX-License-Identifier: Apache-2.0 */
/* layer_row.h: what the layers of the example model do with one row. layer.c and the kernels of
 * gpt_kernels.cu both run this code: each operation rounds once, sums run in a fixed order, and
 * exp() is a function of layer_math.h. So a processor and a GPU have the same bits, except where
 * they disagree about what is flushed to zero. */
#ifndef EXAMPLES_LAYER_ROW_H
#define EXAMPLES_LAYER_ROW_H

#include "examples/layer_math.h"

#include <math.h>

#define ROW_EPS 1e-5f

ROW_FN void row_norm(float *out, const float *in, const float *weight, const float *bias,
		     float *mean, float *rstd, size_t dim)
{
	float m = row_sum(in, dim) / (float)dim, r;

	for (size_t i = 0; i < dim; i++)
		out[i] = in[i] - m;
	r = 1.0f / sqrtf(row_dot(out, out, dim) / (float)dim + ROW_EPS);
	for (size_t i = 0; i < dim; i++)
		out[i] = out[i] * r * weight[i] + bias[i];
	*mean = m;
	*rstd = r;
}

/* Adds to d_in. With h = (in - mean) rstd and e = d_out weight it is rstd (e - mean(e) - h mean(e
 * h)). */
ROW_FN void row_norm_backward(float *d_in, const float *d_out, const float *in, const float *weight,
			      float mean, float rstd, size_t dim)
{
	float mean_e = row_dot(d_out, weight, dim) / (float)dim, mean_eh;
	float lane[ROW_LANES] = {0};

	for (size_t i = 0; i < dim; i++)
		lane[i % ROW_LANES] += d_out[i] * weight[i] * ((in[i] - mean) * rstd);
	mean_eh = row_lanes_sum(lane) / (float)dim;
	for (size_t i = 0; i < dim; i++) {
		float h = (in[i] - mean) * rstd;

		d_in[i] += rstd * (d_out[i] * weight[i] - mean_e - h * mean_eh);
	}
}

/* The weights of row t of a causal attention: later positions have none. */
ROW_FN void row_softmax(float *row, size_t t, size_t rows, float scale)
{
	float top = row_largest(row, t + 1), whole;

	for (size_t i = 0; i <= t; i++)
		row[i] = row_exp((row[i] - top) * scale);
	whole = 1.0f / row_sum(row, t + 1);
	for (size_t i = 0; i <= t; i++)
		row[i] *= whole;
	for (size_t i = t + 1; i < rows; i++)
		row[i] = 0;
}

/* d becomes the gradient of what the weights p were made of. */
ROW_FN void row_softmax_backward(float *d, const float *p, size_t t, size_t rows, float scale)
{
	float mean = row_dot(d, p, t + 1);

	for (size_t i = 0; i <= t; i++)
		d[i] = p[i] * (d[i] - mean) * scale;
	for (size_t i = t + 1; i < rows; i++)
		d[i] = 0;
}

/* What the cross-entropy of a row is made of: log(whole) - (right - top). */
struct row_loss {
	float right, top, whole;
};

/* The logits become the gradient of each x loss. */
ROW_FN struct row_loss row_loss(float *row, uint8_t target, size_t classes, float each)
{
	struct row_loss l;

	l.right = row[target];
	l.top = row_largest(row, classes);
	for (size_t i = 0; i < classes; i++)
		row[i] = row_exp(row[i] - l.top);
	l.whole = row_sum(row, classes);
	for (size_t i = 0; i < classes; i++)
		row[i] = row[i] / l.whole * each;
	row[target] -= each;
	return l;
}

#endif
