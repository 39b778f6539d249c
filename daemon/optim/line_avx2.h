/* SPDX-License-Identifier: Apache-2.0 */
/* line_avx2.h: a line of sixteen elements for vector_quant.h, which is two vectors of
 * vector_avx2.h. The first one has elements 0 to 3 and 8 to 11, the second one the others. So
 * 16-bit elements become fp32 and back without anything that crosses the halves of a register. On
 * Zen 3 that takes a cycle of the one unit that can do it, where four other operations fit. */
#ifndef SHARD_OPTIM_LINE_AVX2_H
#define SHARD_OPTIM_LINE_AVX2_H

#include "optim/vector_avx2.h"

#include <stdbool.h>

#define VEC_LINE

INLINE void line_load_f32(const float *p, vec x[2])
{
	x[0] = _mm256_loadu2_m128(p + 8, p);
	x[1] = _mm256_loadu2_m128(p + 12, p + 4);
}

INLINE void line_store_f32(float *p, const vec x[2])
{
	_mm256_storeu2_m128(p + 8, p, x[0]);
	_mm256_storeu2_m128(p + 12, p + 4, x[1]);
}

INLINE void line_load_bf16(const uint16_t *p, vec x[2])
{
	__m256i h = _mm256_loadu_si256((const void *)p), zero = _mm256_setzero_si256();

	x[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, h));
	x[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, h));
}

INLINE void line_store_bf16(uint16_t *p, const vec x[2]) /* The upper halves. */
{
	__m256i h = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(x[0]), 16),
					_mm256_srli_epi32(_mm256_castps_si256(x[1]), 16));

	_mm256_storeu_si256((void *)p, h);
}

INLINE void line_load_f16(const uint16_t *p, vec x[2])
{
	__m128i lo = _mm_loadu_si128((const void *)p), hi = _mm_loadu_si128((const void *)(p + 8));

	x[0] = _mm256_cvtph_ps(_mm_unpacklo_epi64(lo, hi));
	x[1] = _mm256_cvtph_ps(_mm_unpackhi_epi64(lo, hi));
}

INLINE void line_store_f16(uint16_t *p, const vec x[2])
{
	__m128i a = vec_to_f16(x[0]), b = vec_to_f16(x[1]);

	_mm_storeu_si128((void *)p, _mm_unpacklo_epi64(a, b));
	_mm_storeu_si128((void *)(p + 8), _mm_unpackhi_epi64(a, b));
}

INLINE vec vec_round_bf16_quiet(vec x, bool number) /* As vec_round_bf16(). number: it is no NaN. */
{
	const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
	__m256i u = _mm256_castps_si256(x), r = _mm256_and_si256(vec_round16(u), upper);

	if (!number)
		r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc00000),
				       _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
	return _mm256_castsi256_ps(r);
}

/* Rounds what is from 2^-120 to 2^110 in magnitude, or +0, and leaves zeros below. Next to 2^16
 * times the power of two that is below it, an fp32 has as many digits left as a bf16. */
INLINE vec vec_round_tame(vec x)
{
	vec power = _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xff800000)));
	vec far = _mm256_set1_ps(0x1p16f);

	return _mm256_fnmadd_ps(power, far, _mm256_fmadd_ps(power, far, x));
}

/* Sixteen codes of a byte each, times 2^24. */
#define CODE_UNIT 0x1p24f
INLINE void line_load_codes(const int8_t *p, vec_bits c[2])
{
	const __m256i first =
		_mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1,
				 -1, 8, -1, -1, -1, 9, -1, -1, -1, 10, -1, -1, -1, 11);
	const __m256i second =
		_mm256_setr_epi8(-1, -1, -1, 4, -1, -1, -1, 5, -1, -1, -1, 6, -1, -1, -1, 7, -1, -1,
				 -1, 12, -1, -1, -1, 13, -1, -1, -1, 14, -1, -1, -1, 15);
	__m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)p));

	c[0] = _mm256_shuffle_epi8(both, first);
	c[1] = _mm256_shuffle_epi8(both, second);
}

#define vec_code(i) _mm256_srai_epi32(i, 24) /* What the code is, not times 2^24. */

INLINE void line_store_codes(int8_t *p, const vec_bits c[2]) /* From -128 to 127. */
{
	__m256i h = _mm256_packs_epi32(c[0], c[1]);

	_mm_storeu_si128((void *)p, _mm_packs_epi16(_mm256_castsi256_si128(h),
						    _mm256_extracti128_si256(h, 1)));
}

/* The codes in the lower and in the upper halves of 32 bytes, one to a byte. */
INLINE void halves_load(const uint8_t *p, int8_t *lower, int8_t *upper)
{
	const __m256i code = _mm256_broadcastsi128_si256(
		_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
	__m256i x = _mm256_loadu_si256((const void *)p), low = _mm256_set1_epi8(15);

	_mm256_storeu_si256((void *)lower, _mm256_shuffle_epi8(code, _mm256_and_si256(x, low)));
	_mm256_storeu_si256(
		(void *)upper,
		_mm256_shuffle_epi8(code, _mm256_and_si256(_mm256_srli_epi16(x, 4), low)));
}

INLINE void halves_store(uint8_t *p, const int8_t *lower, const int8_t *upper)
{
	__m256i l = _mm256_loadu_si256((const void *)lower),
		u = _mm256_loadu_si256((const void *)upper), low = _mm256_set1_epi8(15);

	u = _mm256_slli_epi16(_mm256_and_si256(u, low), 4);
	_mm256_storeu_si256((void *)p, _mm256_or_si256(_mm256_and_si256(l, low), u));
}

/* Adds the squares of a line, which comes from memory, because only from there four floats become
 * doubles without a move across the register. The empty assembler line keeps the compiler from
 * knowing them. */
INLINE void line_sq_add(struct vec_sq sq[2], float *x)
{
	__m256d part[4];

	__asm__("" : "+m"(*(float(*)[16])x));
	for (int i = 0; i < 4; i++)
		part[i] = _mm256_cvtps_pd(_mm_loadu_ps(x + 4 * i));
	sq[0].lo = _mm256_fmadd_pd(part[0], part[0], sq[0].lo);
	sq[1].lo = _mm256_fmadd_pd(part[1], part[1], sq[1].lo);
	sq[0].hi = _mm256_fmadd_pd(part[2], part[2], sq[0].hi);
	sq[1].hi = _mm256_fmadd_pd(part[3], part[3], sq[1].hi);
}

#endif
