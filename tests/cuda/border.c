// SPDX-License-Identifier: Apache-2.0
/* Makes the cases of border.h and computes what x86 has for them. Factors are integers of 24 bits
 * times powers of two, so that a product is an integer of 48 bits times a power of two, and can be
 * aimed at. */
#include "cuda/border.h"

#include "base/rng.h"
#include "optim/ftz.h"

#include <math.h>

#define LOW  (1ull << 23)
#define HIGH (1ull << 24)

static float signed_as(struct rng *r, double x)
{
	return (float)(rng_below(r, 2) ? x : -x);
}

/* x * y is about product * 2^-173, product being about 2^47. */
static void factors(struct rng *r, uint64_t product, float *x, float *y)
{
	uint64_t a = LOW + rng_below(r, HIGH - LOW), b = (product + a / 2 + rng_below(r, 2)) / a;
	int e = -149 + (int)rng_below(r, 126);

	*x = signed_as(r, ldexp((double)a, e));
	*y = signed_as(r, ldexp((double)b, -173 - e));
}

static void make_mul(struct rng *r, float *x, float *y)
{
	static const uint32_t parts[][2] = {{31, 601 * 1801}, {601, 31 * 1801}, {1801, 31 * 601}};
	uint64_t near = rng_below(r, 3) ? rng_below(r, 2 * LOW) : rng_below(r, 64 * LOW);

	if (rng_below(r, 64) > 0) {
		factors(r, (1ull << 47) - near, x, y);
		return;
	}
	/* Their product is 2^25 - 1: a tie. */
	const uint32_t *p = parts[rng_below(r, 3)];
	*x = signed_as(r, ldexp(p[0], -100));
	*y = signed_as(r, ldexp(p[1], -51));
}

static void make_fma(struct rng *r, float *x, float *y, float *z)
{
	double product, mantissa = 1 + (double)rng_below(r, LOW) / (double)LOW;

	switch (rng_below(r, 3)) {
	case 0: /* A product alone. */
		make_mul(r, x, y);
		*z = signed_as(r, 0);
		return;
	case 1: /* What is taken off 2^-126 is less than a bit of it. */
		*z = 0x1p-126f;
		product = ldexp(mantissa, -149 - (int)rng_below(r, 8));
		break;
	default: /* They cancel for the most part. */
		*z = (float)(0x1p-126 * (1 + 4 * (double)rng_below(r, LOW) / (double)LOW));
		product = *z - 0x1p-126 * (1 - (double)rng_below(r, 4 * LOW) * 0x1p-48);
		break;
	}
	*x = (float)ldexp(2 - 1 / mantissa, -100 + (int)rng_below(r, 60));
	*y = (float)(-product / *x);
	if (rng_below(r, 2)) {
		*x = -*x;
		*z = -*z;
	}
}

/* A quotient of normal numbers is that near to 2^-126 only if one is a power of two. */
static void make_div(struct rng *r, float *x, float *y)
{
	int e = (int)rng_below(r, 100);
	uint64_t a = HIGH - 1 - rng_below(r, 3) * rng_below(r, 3),
		 b = LOW + rng_below(r, 2) * rng_below(r, 3);

	*x = signed_as(r, ldexp((double)a, -149 + e));
	*y = signed_as(r, ldexp((double)b, -23 + e + 1 - (int)rng_below(r, 2)));
}

void border_make(enum border_op op, uint64_t seed, uint32_t n, float *x, float *y, float *z)
{
	struct rng r = {seed * BORDER_OPS + op};

	for (uint32_t i = 0; i < n; i++) {
		z[i] = 0;
		if (op == BORDER_MUL)
			make_mul(&r, &x[i], &y[i]);
		else if (op == BORDER_FMA)
			make_fma(&r, &x[i], &y[i], &z[i]);
		else
			make_div(&r, &x[i], &y[i]);
	}
}

void border_expect(enum border_op op, uint32_t n, const float *x, const float *y, const float *z,
		   float *out)
{
	unsigned before = ftz_on();

	for (uint32_t i = 0; i < n; i++) {
		volatile float a = x[i], b = y[i], c = z[i];

		out[i] = op == BORDER_MUL ? a * b : op == BORDER_FMA ? fmaf(a, b, c) : a / b;
	}
	ftz_restore(before);
}
