/* SPDX-License-Identifier: Apache-2.0 */
/* vector_avx2.h: eight fp32 lanes, and the operations that vector_rules.h and vector_reduce.h use.
 * A mask has all bits of a chosen lane set. vec_finite and the conversions to and from bf16 are
 * integer arithmetic, so that no MXCSR bit changes them. */
#ifndef SHARD_OPTIM_VECTOR_AVX2_H
#define SHARD_OPTIM_VECTOR_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

typedef __m256 vec;
typedef __m256 vmask;
typedef __m128i vec_half; /* VEC_LANES 16-bit elements */
enum { VEC_LANES = 8 };

#define vec_all(x)        _mm256_set1_ps(x)
#define vec_load(p)       _mm256_loadu_ps(p)
#define vec_store(p, x)   _mm256_storeu_ps(p, x)
#define vec_stream(p, x)  _mm256_stream_ps(p, x)
#define vec_add(x, y)     _mm256_add_ps(x, y)
#define vec_sub(x, y)     _mm256_sub_ps(x, y)
#define vec_mul(x, y)     _mm256_mul_ps(x, y)
#define vec_div(x, y)     _mm256_div_ps(x, y)
#define vec_sqrt(x)       _mm256_sqrt_ps(x)
#define vec_fma(x, y, z)  _mm256_fmadd_ps(x, y, z)  /* x * y + z, rounded once. */
#define vec_pick(m, x, y) _mm256_blendv_ps(y, x, m) /* x where m is set, else y. */
#define vmask_and(x, y)   _mm256_and_ps(x, y)
#define vmask_count(m)    ((unsigned)__builtin_popcount((unsigned)_mm256_movemask_ps(m)))

INLINE vmask vec_finite(vec x)
{
	__m256i inf = _mm256_set1_epi32(0x7f800000);

	return _mm256_castsi256_ps(
		_mm256_cmpgt_epi32(inf, _mm256_and_si256(_mm256_castps_si256(x), inf)));
}

INLINE vec vec_by_sign(vec c, vec above, vec below) /* 0 where c is 0 or NaN. */
{
	vec zero = _mm256_setzero_ps();

	return _mm256_or_ps(_mm256_and_ps(_mm256_cmp_ps(c, zero, _CMP_GT_OQ), above),
			    _mm256_and_ps(_mm256_cmp_ps(c, zero, _CMP_LT_OQ), below));
}

INLINE vec vec_from_bf16(__m128i h)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE __m256i vec_nan(vec x)
{
	__m256i mag = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));

	return _mm256_cmpgt_epi32(mag, _mm256_set1_epi32(0x7f800000));
}

/* Rounds to nearest even at bit 16. The lower half keeps what is left over. */
INLINE __m256i vec_round16(__m256i u)
{
	__m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));

	return _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

INLINE vec_half vec_upper_half(__m256i u)
{
	__m256i top = _mm256_srli_epi32(u, 16);

	return _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
}

/* As dtype_to_bf16(): a NaN keeps its payload. */
INLINE vec_half vec_to_bf16(vec x)
{
	__m256i u = _mm256_castps_si256(x), quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));

	return vec_upper_half(_mm256_blendv_epi8(vec_round16(u), quiet, vec_nan(x)));
}

/* Every NaN becomes 0x7fc00000, because it is not defined which operand's payload a sum keeps. */
INLINE vec vec_plain_nan(vec x)
{
	__m256i plain = _mm256_set1_epi32(0x7fc00000);

	return _mm256_castsi256_ps(_mm256_blendv_epi8(_mm256_castps_si256(x), plain, vec_nan(x)));
}

INLINE vec vec_round_bf16(vec x,
			  vec_half *h) /* *h is the packed result. Returns its value as fp32. */
{
	__m256i r = _mm256_and_si256(vec_round16(_mm256_castps_si256(x)),
				     _mm256_set1_epi32((int)0xffff0000));

	r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc00000), vec_nan(x));
	*h = vec_upper_half(r);
	return _mm256_castsi256_ps(r);
}

/* One sum of squares for each lane of a vec. The product of two floats is exact in double, so that
 * fma gives the same as mul and add. */
struct vec_sq {
	__m256d lo, hi;
};

#define vec_sq_zero() ((struct vec_sq){_mm256_setzero_pd(), _mm256_setzero_pd()})

INLINE struct vec_sq vec_sq_add(struct vec_sq s, vec x)
{
	__m256d lo = _mm256_cvtps_pd(_mm256_castps256_ps128(x)),
		hi = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));

	return (struct vec_sq){_mm256_fmadd_pd(lo, lo, s.lo), _mm256_fmadd_pd(hi, hi, s.hi)};
}

INLINE void vec_sq_store(double *to, struct vec_sq s)
{
	_mm256_storeu_pd(to, s.lo);
	_mm256_storeu_pd(to + 4, s.hi);
}

/* Lanes of 32 bits as integers. */
typedef __m256i vec_bits;

#define vec_bits_zero()    _mm256_setzero_si256()
#define vec_bits_max(x, y) _mm256_max_epi32(x, y)
#define vec_nearest(x)     _mm256_cvtps_epi32(x) /* To an integer, ties to even. */
#define vec_from_bits(i)   _mm256_cvtepi32_ps(i) /* The value, not the bits. */
#define vec_load_bytes(p)  _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p)))

INLINE void vec_store_bytes(int8_t *p, vec_bits i) /* From -128 to 127. */
{
	__m128i h = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));

	_mm_storel_epi64((void *)p, _mm_packs_epi16(h, h));
}

INLINE uint32_t vec_bits_top(vec_bits i) /* The largest lane. */
{
	__m128i x = _mm_max_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));

	x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
	x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1));
	return (uint32_t)_mm_cvtsi128_si32(x);
}

INLINE vec_bits vec_magnitude(vec x)
{
	return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

#define vec_from_f16(h)       _mm256_cvtph_ps(h)
#define vec_to_f16(x)         _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)
#define vec_load_half(p)      _mm_loadu_si128((const void *)(p))
#define vec_load_bf16(p)      vec_from_bf16(vec_load_half(p))
#define vec_load_f16(p)       vec_from_f16(vec_load_half(p))
#define vec_store_half(p, h)  _mm_storeu_si128((void *)(p), h)
#define vec_stream_half(p, h) _mm_stream_si128((void *)(p), h)

#endif
