/* SPDX-License-Identifier: Apache-2.0 */
/* shim.h: as much of CUDA C++ as our kernels use, for a C++ compiler that includes it before a .cu
 * file. A kernel becomes an ordinary function, and shim_run.h starts it. The operations flush as
 * shim.ftz says, and make the NaN that devices make. */
#ifndef SHARD_TESTS_SHIM_H
#define SHARD_TESTS_SHIM_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cuda/shim_run.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static /* There is one block at a time. */
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))

#define threadIdx shim.thread
#define blockIdx  shim.block

struct alignas(16) float4 {
	float x, y, z, w;
};
struct alignas(16) uint4 {
	uint32_t x, y, z, w;
};
struct alignas(8) ushort4 {
	uint16_t x, y, z, w;
};

static inline float4 make_float4(float x, float y, float z, float w)
{
	return {x, y, z, w};
}

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return {x, y, z, w};
}

static inline ushort4 make_ushort4(uint16_t x, uint16_t y, uint16_t z, uint16_t w)
{
	return {x, y, z, w};
}

static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long n)
{
	unsigned long long before = *at;

	*at += n;
	return before;
}

static inline void __syncwarp(unsigned lanes)
{
	shim_meet(lanes);
}

static inline double __shfl_down_sync(unsigned lanes, double x, int down, int width)
{
	return shim_shuffle_down(lanes, x, down, width);
}

/* What a device makes of the result that IEEE 754 has. op 0: it is exact if it is small. */
static inline float shim_result(float r, int op, float x, float y, float z)
{
	uint32_t bits, size;

	memcpy(&bits, &r, 4);
	size = bits & 0x7fffffffu;
	if (size > 0x7f800000u)
		bits = 0x7fffffffu;
	else if (size < 0x00800000u || (size == 0x00800000u && op != 0 && shim.ftz == SHIM_BEFORE &&
					shim_below(op, x, y, z)))
		bits &= 0x80000000u;
	memcpy(&r, &bits, 4);
	return r;
}

static inline float __fadd_rn(float x, float y)
{
	return shim_result(x + y, 0, x, y, 0);
}

static inline float __fsub_rn(float x, float y)
{
	return shim_result(x - y, 0, x, y, 0);
}

static inline float __fmul_rn(float x, float y)
{
	return shim_result(x * y, SHIM_MUL, x, y, 0);
}

static inline float __fmaf_rn(float x, float y, float z)
{
	return shim_result(fmaf(x, y, z), SHIM_FMA, x, y, z);
}

static inline float __fdiv_rn(float x, float y)
{
	return shim_result(x / y, SHIM_DIV, x, y, 0);
}

static inline float __fsqrt_rn(float x)
{
	return shim_result(sqrtf(x), 0, x, 0, 0);
}

static inline double __dmul_rn(double x, double y)
{
	return x * y;
}

static inline double __dadd_rn(double x, double y)
{
	return x + y;
}

static inline double __dsub_rn(double x, double y)
{
	return x - y;
}

static inline double __fma_rn(double x, double y, double z)
{
	return fma(x, y, z);
}

#endif
