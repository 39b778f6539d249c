/* SPDX-License-Identifier: Apache-2.0 */
/* Holds the names of element types and converts arrays. The client library calls it for pushes and
 * reads with a cast, the daemon when a model is sealed or read, and the tests. Between the two
 * 16-bit types an array goes through fp32 in blocks that stay in the first-level cache. Each
 * element is rounded once, because widening is exact. Arrays of fp16 use the processor's own
 * conversions where it has them. Those round the same way and ignore flush-to-zero and
 * denormals-are-zero. It cannot fail. A wrong type is a CHECK. */
#include "wire/dtype.h"

#include "base/check.h"
#include "base/isa.h"
#include "wire/dtype_isa.h"

enum { BLOCK = 1024 }; /* In elements. As fp32 these are 4 KiB. */

static const char *const dtype_names[DTYPE_NR + 1] = {
	[SHARD_F32] = "fp32",
	[SHARD_BF16] = "bf16",
	[SHARD_F16] = "fp16",
};

const char *dtype_name(enum shard_dtype dt)
{
	return dtype_ok(dt) ? dtype_names[dt] : "?";
}

bool dtype_parse(const char *text, enum shard_dtype *dt)
{
	for (int i = 1; i <= DTYPE_NR; i++) {
		if (strcmp(text, dtype_names[i]) == 0) {
			*dt = (enum shard_dtype)i;
			return true;
		}
	}
	return false;
}

static void widen(float *dst, const void *src, enum shard_dtype dt, size_t n, bool wide)
{
	const uint16_t *h = src;

	if (wide) {
		size_t done = dtype_widen_avx2(dst, src, dt, n);

		dst += done;
		h += done;
		n -= done;
	}
	if (dt == SHARD_BF16)
		for (size_t i = 0; i < n; i++)
			dst[i] = dtype_from_bf16(h[i]);
	else
		for (size_t i = 0; i < n; i++)
			dst[i] = dtype_from_f16(h[i]);
}

static void narrow(void *dst, const float *src, enum shard_dtype dt, size_t n, bool wide)
{
	uint16_t *h = dst;

	if (wide) {
		size_t done = dtype_narrow_avx2(dst, src, dt, n);

		src += done;
		h += done;
		n -= done;
	}
	if (dt == SHARD_BF16)
		for (size_t i = 0; i < n; i++)
			h[i] = dtype_to_bf16(src[i]);
	else
		for (size_t i = 0; i < n; i++)
			h[i] = dtype_to_f16(src[i]);
}

void dtype_convert(void *dst, enum shard_dtype dst_dt, const void *src, enum shard_dtype src_dt,
		   size_t n)
{
	float block[BLOCK];
	bool wide = n >= 8 && isa_has(ISA_AVX2);

	CHECK(dtype_ok(dst_dt) && dtype_ok(src_dt));
	CHECK(dst != src || dtype_bytes(dst_dt) == dtype_bytes(src_dt));
	if (dst_dt == src_dt) {
		if (dst != src && n > 0)
			memcpy(dst, src, n * dtype_bytes(dst_dt));
		return;
	}
	if (src_dt == SHARD_F32) {
		narrow(dst, src, dst_dt, n, wide);
		return;
	}
	if (dst_dt == SHARD_F32) {
		widen(dst, src, src_dt, n, wide);
		return;
	}
	for (size_t at = 0; at < n; at += BLOCK) {
		size_t nr = n - at < BLOCK ? n - at : BLOCK;

		widen(block, (const uint16_t *)src + at, src_dt, nr, wide);
		narrow((uint16_t *)dst + at, block, dst_dt, nr, wide);
	}
}
