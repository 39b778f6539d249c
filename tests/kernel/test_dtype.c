/* SPDX-License-Identifier: Apache-2.0 */
/* Tests element types: conversions against an independent search for the nearest representable
 * number, round trips, arrays against single elements, and names. */
#include "kernel/cases.h"

#include <math.h>

/* A 16-bit type, for an independent computation of a pattern's value. */
struct format {
	enum shard_dtype dt;
	int man_bits, bias;
	uint32_t inf; /* The pattern of infinity. */
};
static const struct format formats[] = {{SHARD_BF16, 7, 127, 0x7f80}, {SHARD_F16, 10, 15, 0x7c00}};

/* Returns the value of a pattern without sign. Infinity counts as the next power of two. */
static double value(const struct format *f, uint32_t h)
{
	int exp = (int)(h >> f->man_bits), man = (int)(h & ((1u << f->man_bits) - 1));

	return exp == 0 ? ldexp(man, 1 - f->bias - f->man_bits)
			: ldexp(man + (1 << f->man_bits), exp - f->bias - f->man_bits);
}

/* x is not NaN. */
static uint16_t nearest(const struct format *f, float x)
{
	uint32_t lo = 0, hi = f->inf, sign = signbit(x) ? 0x8000 : 0;
	double v = fabs((double)x);

	if (v >= value(f, f->inf))
		return (uint16_t)(sign | f->inf);
	while (hi - lo > 1) { /* value(lo) <= v < value(hi). */
		uint32_t mid = (lo + hi) / 2;

		if (value(f, mid) <= v)
			lo = mid;
		else
			hi = mid;
	}
	double below = v - value(f, lo), above = value(f, hi) - v;

	return (uint16_t)(sign | (below < above ? lo : above < below ? hi : lo & 1 ? hi : lo));
}

static uint16_t to16(enum shard_dtype dt, float x)
{
	return dt == SHARD_BF16 ? dtype_to_bf16(x) : dtype_to_f16(x);
}

static float from16(enum shard_dtype dt, uint16_t h)
{
	return dt == SHARD_BF16 ? dtype_from_bf16(h) : dtype_from_f16(h);
}

static void check_one(const struct format *f, uint32_t bits)
{
	float x = dtype_float(bits);

	if (to16(f->dt, x) != nearest(f, x))
		fail_msg("%s of %#x is %#x, nearest is %#x", dtype_name(f->dt), bits,
			 to16(f->dt, x), nearest(f, x));
}

static void nearest_even(void **state)
{
	struct rng r = {1};

	(void)state;
	for (size_t k = 0; k < NR(formats); k++) {
		const struct format *f = &formats[k];

		for (uint32_t h = 0; h < f->inf; h++) { /* Around each tie and each exact value. */
			uint32_t mid = dtype_bits((float)((value(f, h) + value(f, h + 1)) / 2)),
				 at = dtype_bits((float)value(f, h));

			for (uint32_t d = 0; d < 3; d++) {
				check_one(f, mid + d - 1);
				check_one(f, (mid + d - 1) | 0x80000000u);
				check_one(f, at + (h ? d - 1 : d));
			}
		}
		for (int i = 0; i < 300000; i++) {
			uint32_t u = (uint32_t)rng_next(&r);

			if ((u & 0x7fffffff) <= 0x7f800000)
				check_one(f, u);
		}
	}
}

static void round_trip(void **state)
{
	(void)state;
	for (size_t k = 0; k < NR(formats); k++) {
		const struct format *f = &formats[k];

		for (uint32_t h = 0; h < 65536; h++) {
			float x = from16(f->dt, (uint16_t)h);
			bool nan = (h & 0x7fff) > f->inf;

			assert_int_equal(to16(f->dt, x), nan ? h | 1u << (f->man_bits - 1) : h);
			assert_int_equal(isnan(x) != 0, nan);
			if ((h & 0x7fff) < f->inf)
				assert_true(fabs((double)x) == value(f, h & 0x7fff) &&
					    (signbit(x) != 0) == (h >> 15));
			if ((h & 0x7fff) == f->inf)
				assert_true(isinf(x) && (signbit(x) != 0) == (h >> 15));
		}
	}
}

static void nan_stays_nan(void **state)
{
	struct rng r = {3};

	(void)state;
	for (int i = 0; i < 100000; i++) {
		uint32_t u = (i % 2 ? 0x7f800000u : 0xff800000u) |
			     (i < 23 ? 1u << i : 1 + (uint32_t)rng_below(&r, 0x7fffff));

		for (size_t k = 0; k < NR(formats); k++) {
			uint32_t h = to16(formats[k].dt, dtype_float(u));

			assert_true((h & 0x7fff) > formats[k].inf);       /* It is still a NaN. */
			assert_true(h & 1u << (formats[k].man_bits - 1)); /* It is a quiet one. */
			assert_int_equal(h >> 15, u >> 31); /* It has the same sign. */
		}
	}
}

static void convert_scalar(void *dst, enum shard_dtype to, const void *src, enum shard_dtype from,
			   size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float x = from == SHARD_F32 ? ((const float *)src)[i]
					    : from16(from, ((const uint16_t *)src)[i]);

		if (from == to)
			memcpy((char *)dst + i * dtype_bytes(to),
			       (const char *)src + i * dtype_bytes(to), dtype_bytes(to));
		else if (to == SHARD_F32)
			memcpy((char *)dst + i * 4, &x, 4);
		else
			((uint16_t *)dst)[i] = to16(to, x);
	}
}

static void arrays(void **state)
{
	enum { N = 65536 };
	static char src[N * 4], want[N * 4 + 64], got[N * 4 + 64];

	(void)state;
	for (int from = 1; from <= DTYPE_NR; from++) {
		for (uint32_t i = 0; i < N; i++) {
			/* As 16 bits this has each pattern once. */
			uint32_t u = i < NR(awkward) ? awkward[i] : i * 65537u;

			if (from == SHARD_F32)
				memcpy(src + 4 * i, &u, 4);
			else
				memcpy(src + 2 * i, &(uint16_t){(uint16_t)i}, 2);
		}
		for (int to = 1; to <= DTYPE_NR; to++) {
			for (unsigned mode = 0; mode < MODES; mode++) {
				unsigned before = mode_set(mode);

				dtype_convert(got, (enum shard_dtype)to, src,
					      (enum shard_dtype)from, N);
				_mm_setcsr(before);
				convert_scalar(want, (enum shard_dtype)to, src,
					       (enum shard_dtype)from, N);
				same(dtype_name((enum shard_dtype)to), want, got, N,
				     dtype_bytes((enum shard_dtype)to));
			}
			/* Odd lengths start at odd places. What is behind the end must not
			 * change. */
			for (size_t n = 0; n < 70; n++) {
				size_t step = dtype_bytes((enum shard_dtype)to),
				       at = n * dtype_bytes((enum shard_dtype)from);

				memset(want, 0x5a, sizeof(want));
				memset(got, 0x5a, sizeof(got));
				convert_scalar(want + step, (enum shard_dtype)to, src + at,
					       (enum shard_dtype)from, n);
				dtype_convert(got + step, (enum shard_dtype)to, src + at,
					      (enum shard_dtype)from, n);
				assert_memory_equal(want, got, 512);
			}
		}
	}
}

static void names(void **state)
{
	enum shard_dtype dt = SHARD_F16;

	(void)state;
	for (int i = 1; i <= DTYPE_NR; i++) {
		assert_true(dtype_parse(dtype_name((enum shard_dtype)i), &dt));
		assert_int_equal(dt, i);
	}
	assert_false(dtype_parse("int8", &dt) || dtype_parse("", &dt) || dtype_parse("?", &dt));
	assert_int_equal(dt, DTYPE_NR);
	assert_false(dtype_ok(0) || dtype_ok(4) || dtype_ok(UINT32_MAX));
	assert_string_equal(dtype_name((enum shard_dtype)77), "?");
	assert_int_equal(dtype_bytes(SHARD_F32) + dtype_bytes(SHARD_BF16) + dtype_bytes(SHARD_F16),
			 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nearest_even), cmocka_unit_test(round_trip),
		cmocka_unit_test(nan_stays_nan), cmocka_unit_test(arrays), cmocka_unit_test(names)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
