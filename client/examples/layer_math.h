/* SPDX-License-Identifier: Apache-2.0 */
/* layer_math.h: exp(), GELU and sums of the example model, for a processor and a GPU: see
 * layer_row.h. */
#ifndef EXAMPLES_LAYER_MATH_H
#define EXAMPLES_LAYER_MATH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Code of a device says first what makes a function one of the device. */
#ifndef ROW_FN
#define ROW_FN static inline
#endif

#define ROW_LANES 8

/* --- elements --- */

/* Exact within 2 ulp from -87 to 88, and constant outside. */
ROW_FN float row_exp(float x)
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

/* GELU by its tanh form: x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3). This is the sigmoid.
 */
ROW_FN float row_gelu_gate(float x)
{
	return 1.0f / (1.0f + row_exp(-1.59576912f * (x + 0.044715f * x * x * x)));
}

ROW_FN float row_gelu_slope(float x)
{
	float s = row_gelu_gate(x);

	return s + x * s * (1.0f - s) * 1.59576912f * (1.0f + 3 * 0.044715f * x * x);
}

/* --- sums --- */

ROW_FN float row_lanes_sum(const float lane[ROW_LANES])
{
	return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
	       ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

ROW_FN float row_sum(const float *a, size_t n)
{
	float lane[ROW_LANES] = {0};
	size_t i = 0;

	for (; i + ROW_LANES <= n; i += ROW_LANES) {
		for (size_t j = 0; j < ROW_LANES; j++)
			lane[j] += a[i + j];
	}
	for (size_t j = 0; i + j < n; j++)
		lane[j] += a[i + j];
	return row_lanes_sum(lane);
}

ROW_FN float row_dot(const float *a, const float *b, size_t n)
{
	float lane[ROW_LANES] = {0};
	size_t i = 0;

	for (; i + ROW_LANES <= n; i += ROW_LANES) {
		for (size_t j = 0; j < ROW_LANES; j++)
			lane[j] += a[i + j] * b[i + j];
	}
	for (size_t j = 0; i + j < n; j++)
		lane[j] += a[i + j] * b[i + j];
	return row_lanes_sum(lane);
}

ROW_FN float row_largest(const float *a, size_t n)
{
	float m = a[0];

	for (size_t i = 1; i < n; i++)
		m = a[i] > m ? a[i] : m;
	return m;
}

#endif
