/* SPDX-License-Identifier: Apache-2.0 */
/* vector_scalar.h: one fp32 lane in plain C, for vector_quant.h. Each operation means the same as
 * in vector_avx2.h. */
#ifndef SHARD_OPTIM_VECTOR_SCALAR_H
#define SHARD_OPTIM_VECTOR_SCALAR_H

#include "wire/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

typedef float vec;
typedef bool vmask;
typedef uint16_t vec_half;
typedef int32_t vec_bits;
enum { VEC_LANES = 1 };

#define vec_all(x)            ((float)(x))
#define vec_load(p)           (*(p))
#define vec_store(p, x)       (*(p) = (x))
#define vec_stream(p, x)      (*(p) = (x))
#define vec_add(x, y)         ((x) + (y))
#define vec_sub(x, y)         ((x) - (y))
#define vec_mul(x, y)         ((x) * (y))
#define vmask_and(x, y)       ((x) && (y))
#define vmask_count(m)        ((unsigned)(m))
#define vec_finite(x)         dtype_finite(x)
#define vec_load_bf16(p)      dtype_from_bf16(*(p))
#define vec_load_f16(p)       dtype_from_f16(*(p))
#define vec_from_f16(h)       dtype_from_f16(h)
#define vec_to_f16(x)         dtype_to_f16(x)
#define vec_store_half(p, h)  (*(p) = (h))
#define vec_stream_half(p, h) (*(p) = (h))

INLINE vec vec_plain_nan(vec x)
{
	return (dtype_bits(x) & 0x7fffffffu) > 0x7f800000u ? dtype_float(0x7fc00000u) : x;
}

INLINE vec vec_round_bf16(vec x, vec_half *h)
{
	*h = dtype_to_bf16(vec_plain_nan(x));
	return dtype_from_bf16(*h);
}

struct vec_sq {
	double sum;
};

#define vec_sq_zero()       ((struct vec_sq){0})
#define vec_sq_store(to, s) (*(to) = (s).sum)

INLINE struct vec_sq vec_sq_add(struct vec_sq s, vec x)
{
	return (struct vec_sq){s.sum + (double)x * (double)x};
}

#define vec_bits_zero()       0
#define vec_bits_max(x, y)    ((x) > (y) ? (x) : (y))
#define vec_bits_top(i)       ((uint32_t)(i))
#define vec_magnitude(x)      ((int32_t)(dtype_bits(x) & 0x7fffffffu))
#define vec_from_bits(i)      ((float)(i))
#define vec_load_bytes(p)     ((int32_t) * (p))
#define vec_store_bytes(p, i) (*(p) = (int8_t)(i))

/* Below 2^22 in magnitude. Then the sum has units of 1, and is rounded to them, ties to even. */
INLINE vec_bits vec_nearest(vec x)
{
	return (int32_t)(dtype_bits(x + 0x1.8p23f) - 0x4b400000u);
}

#endif
