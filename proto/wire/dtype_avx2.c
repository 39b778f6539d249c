/* SPDX-License-Identifier: Apache-2.0 */
/* dtype_convert() for eight elements at a time. It is called only where isa_has(ISA_AVX2). Its
 * results equal those of the scalar conversions bit for bit. */
#include "wire/dtype_isa.h"

#include <immintrin.h>

static __m128i narrow_bf16(__m256i u)
{
	__m256i mag = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
	__m256i nan = _mm256_cmpgt_epi32(mag, _mm256_set1_epi32(0x7f800000));
	__m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
	__m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
	__m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
	__m256i top = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);

	return _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
}

size_t dtype_widen_avx2(float *dst, const void *src, enum shard_dtype dt, size_t n)
{
	const uint16_t *h = src;
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
		__m128i x = _mm_loadu_si128((const void *)(h + i));

		if (dt == SHARD_BF16)
			_mm256_storeu_si256((void *)(dst + i),
					    _mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
		else
			_mm256_storeu_ps(dst + i, _mm256_cvtph_ps(x));
	}
	return i;
}

size_t dtype_narrow_avx2(void *dst, const float *src, enum shard_dtype dt, size_t n)
{
	uint16_t *h = dst;
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
		if (dt == SHARD_BF16)
			_mm_storeu_si128((void *)(h + i),
					 narrow_bf16(_mm256_loadu_si256((const void *)(src + i))));
		else
			_mm_storeu_si128((void *)(h + i),
					 _mm256_cvtps_ph(_mm256_loadu_ps(src + i),
							 _MM_FROUND_TO_NEAREST_INT));
	}
	return i;
}
