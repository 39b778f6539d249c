/* SPDX-License-Identifier: Apache-2.0 */
/* The reference for codes and the tests of images call it. Each block is coded by itself: its scale
 * comes from its largest magnitude. Nothing can fail. */
#include "ref/refcode.h"

#include "wire/dtype.h"

#include <math.h>
#include <stddef.h>

static float code_scale(const float *x, uint64_t n, float most, float *inverse)
{
	uint32_t top = 0;

	for (uint64_t i = 0; i < n; i++) {
		uint32_t magnitude = dtype_bits(x[i]) & 0x7fffffffu;

		top = magnitude > top ? magnitude : top;
	}
	*inverse = 0;
	if (top >= 0x7f800000u)
		return dtype_float(0x7fc00000u);
	if (dtype_float(top) <= 0x1p-100f)
		return 0;
	*inverse = most / dtype_float(top);
	return dtype_float(top) / most;
}

static void code_block(float *x, uint16_t *lost, uint64_t n, float most)
{
	float inverse, scale = code_scale(x, n, most, &inverse);

	for (uint64_t i = 0; i < n; i++) {
		float code = scale != scale ? 0 : nearbyintf(x[i] * inverse), is = code * scale;

		if (lost != NULL)
			lost[i] = scale != scale ? 0 : dtype_to_bf16(x[i] - is);
		x[i] = is;
	}
}

void refcode(float *x, uint16_t *lost, uint64_t n, float most, uint64_t block)
{
	for (uint64_t at = 0; at < n; at += block)
		code_block(x + at, lost != NULL ? lost + at : NULL, n - at < block ? n - at : block,
			   most);
}
