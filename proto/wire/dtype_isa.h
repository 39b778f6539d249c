/* SPDX-License-Identifier: Apache-2.0 */
/* dtype_isa.h: the wide variants behind dtype_convert(), which alone calls them. Each converts as
 * many whole vectors as n holds and returns the number of elements that it converted. dt is
 * SHARD_BF16 or SHARD_F16. */
#ifndef SHARD_WIRE_DTYPE_ISA_H
#define SHARD_WIRE_DTYPE_ISA_H

#include "wire/dtype.h"

#ifdef __x86_64__
size_t dtype_widen_avx2(float *dst, const void *src, enum shard_dtype dt, size_t n);
size_t dtype_narrow_avx2(void *dst, const float *src, enum shard_dtype dt, size_t n);
#else
static inline size_t dtype_widen_avx2(float *dst, const void *src, enum shard_dtype dt, size_t n)
{
	(void)dst, (void)src, (void)dt, (void)n;
	return 0;
}

static inline size_t dtype_narrow_avx2(void *dst, const float *src, enum shard_dtype dt, size_t n)
{
	(void)dst, (void)src, (void)dt, (void)n;
	return 0;
}
#endif

#endif
