/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h: the three element types that gradients and images may have, and conversions between
 * them. Rounding is to nearest, ties to even. No rounding mode, flush-to-zero bit or instruction
 * set changes a result. A NaN stays a NaN with its sign and the payload bits that fit. It becomes
 * quiet, except that bf16 -> fp32 keeps all bits. A finite number that is too large for fp16 or
 * bf16 becomes infinite. */
#ifndef SHARD_WIRE_DTYPE_H
#define SHARD_WIRE_DTYPE_H

#include "shard.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Code of a device says first what makes a function one of the device. */
#ifndef DTYPE_FN
#define DTYPE_FN static inline
#endif

enum {
	DTYPE_NR = 3,        /* enum shard_dtype runs from 1 to DTYPE_NR. */
	DTYPE_BYTES_MAX = 4, /* The largest size of one element. */
};

DTYPE_FN bool dtype_ok(uint32_t dt) /* For numbers that come from outside. */
{
	return dt >= SHARD_F32 && dt <= DTYPE_NR;
}

DTYPE_FN size_t dtype_bytes(enum shard_dtype dt) /* The size of one element. */
{
	return dt == SHARD_F32 ? 4 : 2;
}

const char *dtype_name(enum shard_dtype dt); /* "?" for another number. */
/* Reads the names that dtype_name() gives. If it returns false, *dt is unchanged. */
bool dtype_parse(const char *text, enum shard_dtype *dt);

/* Converts n elements. The pointers are aligned to their elements. The buffers are either equal or
 * do not overlap. Equal buffers need elements of equal size. */
void dtype_convert(void *dst, enum shard_dtype dst_dt, const void *src, enum shard_dtype src_dt,
		   size_t n);

DTYPE_FN uint32_t dtype_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, 4);
	return u;
}

DTYPE_FN float dtype_float(uint32_t u)
{
	float f;

	memcpy(&f, &u, 4);
	return f;
}

DTYPE_FN bool dtype_finite(float f)
{
	return (dtype_bits(f) & 0x7f800000u) != 0x7f800000u;
}

DTYPE_FN float dtype_from_bf16(uint16_t h)
{
	return dtype_float((uint32_t)h << 16);
}

DTYPE_FN uint16_t dtype_to_bf16(float f)
{
	uint32_t u = dtype_bits(f), nan = (u & 0x7fffffffu) > 0x7f800000u;
	uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;

	return (uint16_t)(nan ? (u >> 16) | 0x40u : rounded);
}

DTYPE_FN float dtype_from_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 0x3ff;

	if (exp == 31)
		return dtype_float(sign | 0x7f800000u | man << 13 | (man ? 0x400000u : 0));
	if (exp == 0) {
		if (man == 0)
			return dtype_float(sign);
		uint32_t up =
			(uint32_t)__builtin_clz(man) - 21; /* Brings the leading one to bit 10. */
		return dtype_float(sign | (113 - up) << 23 | ((man << up) & 0x3ff) << 13);
	}
	return dtype_float(sign | (exp + 112) << 23 | man << 13);
}

DTYPE_FN uint16_t dtype_to_f16(float f)
{
	uint32_t u = dtype_bits(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffffu;

	if (a > 0x7f800000u)
		return (uint16_t)(sign | 0x7e00 | ((a >> 13) & 0x3ff));
	if (a >= 0x477ff000u) /* 65520 and more round to infinity. */
		return (uint16_t)(sign | 0x7c00);
	if (a >= 0x38800000u) /* From 2^-14 on it is a normal number. */
		return (uint16_t)(sign | (((a + 0xfff + ((a >> 13) & 1)) >> 13) - (112u << 10)));
	if (a < 0x33000000u) /* Below 2^-25, which is half of the smallest denormal. */
		return (uint16_t)sign;
	uint32_t drop = 126 - (a >> 23), man = (a & 0x7fffffu) | 0x800000u;
	uint32_t h = man >> drop, rest = man & ((1u << drop) - 1), half = 1u << (drop - 1);

	return (uint16_t)(sign | (h + (rest > half || (rest == half && (h & 1)))));
}

#endif
