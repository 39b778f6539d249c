/* SPDX-License-Identifier: Apache-2.0 */
/* vector_avx512.h: sixteen fp32 lanes. Each operation means the same as in vector_avx2.h. Only the
 * *_avx512.c files include it. */
#ifndef SHARD_OPTIM_VECTOR_AVX512_H
#define SHARD_OPTIM_VECTOR_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

typedef __m512 vec;
typedef __mmask16 vmask;
typedef __m256i vec_half;
enum { VEC_LANES = 16 };

#define vec_all(x)        _mm512_set1_ps(x)
#define vec_load(p)       _mm512_loadu_ps(p)
#define vec_store(p, x)   _mm512_storeu_ps(p, x)
#define vec_stream(p, x)  _mm512_stream_ps(p, x)
#define vec_add(x, y)     _mm512_add_ps(x, y)
#define vec_sub(x, y)     _mm512_sub_ps(x, y)
#define vec_mul(x, y)     _mm512_mul_ps(x, y)
#define vec_div(x, y)     _mm512_div_ps(x, y)
#define vec_sqrt(x)       _mm512_sqrt_ps(x)
#define vec_fma(x, y, z)  _mm512_fmadd_ps(x, y, z)
#define vec_pick(m, x, y) _mm512_mask_mov_ps(y, m, x)
#define vmask_and(x, y)   ((vmask)((x) & (y)))
#define vmask_count(m)    ((unsigned)__builtin_popcount(m))

INLINE vmask vec_finite(vec x)
{
	return (vmask)~_mm512_fpclass_ps_mask(
		x, 0x99); /* The classes: quiet NaN, +infinity, -infinity, signalling NaN. */
}

INLINE vec vec_by_sign(vec c, vec above, vec below)
{
	vec zero = _mm512_setzero_ps();
	vec x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(c, zero, _CMP_GT_OQ), above);

	return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(c, zero, _CMP_LT_OQ), below);
}

INLINE vec vec_from_bf16(__m256i h)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* The indices that bring the upper halves of all lanes together. */
INLINE __m512i vec_upper_words(void)
{
	return _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x1f001d, 0x1b0019, 0x170015, 0x130011,
				0xf000d, 0xb0009, 0x70005, 0x30001);
}

/* Rounds to nearest even at bit 16. The lower half keeps what is left over. */
INLINE __m512i vec_round16(__m512i u)
{
	__m512i x = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));

	return _mm512_mask_add_epi32(x, _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000)), x,
				     _mm512_set1_epi32(1));
}

INLINE vec_half vec_to_bf16(vec x)
{
	__m512i u = _mm512_castps_si512(x);
	__m512i r = _mm512_mask_or_epi32(vec_round16(u), _mm512_fpclass_ps_mask(x, 0x81), u,
					 _mm512_set1_epi32(0x400000));

	return _mm512_castsi512_si256(_mm512_permutexvar_epi16(vec_upper_words(), r));
}

INLINE vec vec_round_bf16(vec x, vec_half *h)
{
	__m512i r = _mm512_and_si512(vec_round16(_mm512_castps_si512(x)),
				     _mm512_set1_epi32((int)0xffff0000));

	r = _mm512_mask_mov_epi32(r, _mm512_fpclass_ps_mask(x, 0x81),
				  _mm512_set1_epi32(0x7fc00000));
	*h = _mm512_castsi512_si256(_mm512_permutexvar_epi16(vec_upper_words(), r));
	return _mm512_castsi512_ps(r);
}

INLINE vec vec_plain_nan(vec x)
{
	return _mm512_mask_mov_ps(x, _mm512_fpclass_ps_mask(x, 0x81),
				  _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
}

struct vec_sq {
	__m512d lo, hi;
};

#define vec_sq_zero() ((struct vec_sq){_mm512_setzero_pd(), _mm512_setzero_pd()})

INLINE struct vec_sq vec_sq_add(struct vec_sq s, vec x)
{
	__m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256(x)),
		hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));

	return (struct vec_sq){_mm512_fmadd_pd(lo, lo, s.lo), _mm512_fmadd_pd(hi, hi, s.hi)};
}

INLINE void vec_sq_store(double *to, struct vec_sq s)
{
	_mm512_storeu_pd(to, s.lo);
	_mm512_storeu_pd(to + 8, s.hi);
}

typedef __m512i vec_bits;

#define vec_bits_zero()       _mm512_setzero_si512()
#define vec_bits_max(x, y)    _mm512_max_epi32(x, y)
#define vec_bits_top(i)       ((uint32_t)_mm512_reduce_max_epi32(i))
#define vec_nearest(x)        _mm512_cvtps_epi32(x)
#define vec_from_bits(i)      _mm512_cvtepi32_ps(i)
#define vec_load_bytes(p)     _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(p)))
#define vec_store_bytes(p, i) _mm_storeu_si128((void *)(p), _mm512_cvtepi32_epi8(i))

INLINE vec_bits vec_magnitude(vec x)
{
	return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

#define vec_from_f16(h)       _mm512_cvtph_ps(h)
#define vec_to_f16(x)         _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)
#define vec_load_half(p)      _mm256_loadu_si256((const void *)(p))
#define vec_load_bf16(p)      vec_from_bf16(vec_load_half(p))
#define vec_load_f16(p)       vec_from_f16(vec_load_half(p))
#define vec_store_half(p, h)  _mm256_storeu_si256((void *)(p), h)
#define vec_stream_half(p, h) _mm256_stream_si256((void *)(p), h)

#endif
