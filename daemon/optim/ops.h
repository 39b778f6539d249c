/* SPDX-License-Identifier: Apache-2.0 */
/* ops.h: the floating-point operations that rules.h is made of. Each rounds once, and no compiler
 * may join two of them. On a processor they are those of C, without contraction, in a thread that
 * has flush-to-zero on (ftz.h). Code of a device defines OPS_DEVICE first and gets CUDA's
 * functions, which are never joined.
 *
 * A device flushes by itself, too. But what x86 flushes is the result that, rounded to 24 bits as
 * if the exponent had no bounds, is below 2^-126 (wire/ARITHMETIC.md), and CUDA's manual does not
 * say where a device looks. If it rounds as IEEE 754 does and flushes what is denormal then, 2^-126
 * remains where x86 has 0. If it looks before it rounds, 0 remains where x86 has 2^-126. The two
 * differ for exact results between (1 - 2^-24) and 1 times 2^-126, which a second moment passes as
 * it decays. OPS_REPAIR says which of the two is looked for: 1 the first one, 2 the second one, 3
 * both, 0 neither. No device has been asked yet (tests/gpu), so it is 3, and the bits are right
 * either way. Sums and differences need no repair, because those below 2^-126 are exact, and a root
 * is never so small.
 *
 * To repair each result where it is made takes twice the registers. So there are two ways: a quick
 * one that only says that a result was doubtful, and a careful one that computes such a result
 * exactly. Hardly any element needs the second one. */
#ifndef SHARD_OPTIM_OPS_H
#define SHARD_OPTIM_OPS_H

#include "wire/dtype.h"

#ifdef OPS_DEVICE

#ifndef OPS_REPAIR
#define OPS_REPAIR 3
#endif
#define OP_FN     static __device__ __forceinline__
#define OP_LEAST  0x1p-126f
#define OP_BORDER 0x1.ffffffp-127 /* (1 - 2^-25) * 2^-126 */

#define op_add(x, y)    __fadd_rn(x, y)
#define op_sub(x, y)    __fsub_rn(x, y)
#define op_sqrt(x)      __fsqrt_rn(x)
#define op_add_d(x, y)  __dadd_rn(x, y)
#define op_square(s, x) __fma_rn(x, x, s)

struct ops {
	bool careful; /* Doubtful results are computed exactly. */
	bool doubt;   /* There was one. */
};

/* May the device have flushed r, or not, in another way than x86? */
OP_FN bool op_doubtful(float r)
{
	switch (OPS_REPAIR) {
	case 0:
		return false;
	case 1:
		return fabsf(r) == OP_LEAST;
	case 2:
		return r == 0;
	default:
		return fabsf(r) <= OP_LEAST;
	}
}

OP_FN double op_exact(float x) /* A denormal operand counts as 0. */
{
	return (dtype_bits(x) & 0x7f800000u) == 0 ? 0.0 : (double)x;
}

/* r, which is 0 or 2^-126 in magnitude, as x86 has it: `large` says that the exact result is at
 * least OP_BORDER. That rounds to 2^-126, and so does the tie. */
OP_FN float op_settle(float r, bool large, bool negative)
{
	if (!large)
		return dtype_float(dtype_bits(r) & 0x80000000u);
	return negative ? -OP_LEAST : OP_LEAST;
}

OP_FN float op_mul(struct ops *o, float x, float y)
{
	float r = __fmul_rn(x, y);

	if (!op_doubtful(r) || x == 0 || y == 0)
		return r;
	o->doubt = true;
	if (!o->careful)
		return r;
	double exact = __dmul_rn(op_exact(x), op_exact(y)); /* It has 48 bits. */

	return op_settle(r, fabs(exact) >= OP_BORDER, exact < 0);
}

OP_FN float op_fma(struct ops *o, float x, float y, float z)
{
	float r = __fmaf_rn(x, y, z);

	if (!op_doubtful(r) || x == 0 || y == 0)
		return r;
	o->doubt = true;
	if (!o->careful)
		return r;
	/* near is the double next to the sum, and near + rest is the sum. */
	double product = __dmul_rn(op_exact(x), op_exact(y)), to = op_exact(z);
	double near = __dadd_rn(product, to), part = __dsub_rn(near, product);
	double rest = __dadd_rn(__dsub_rn(product, __dsub_rn(near, part)), __dsub_rn(to, part));
	double size = fabs(near), more = near < 0 ? -rest : rest;

	return op_settle(r, size > OP_BORDER || (size == OP_BORDER && more >= 0), near < 0);
}

OP_FN float op_div(struct ops *o, float x, float y)
{
	float r = __fdiv_rn(x, y);

	if (!op_doubtful(r) || x == 0)
		return r;
	o->doubt = true;
	if (!o->careful)
		return r;
	double over = op_exact(x), under = op_exact(y);

	/* OP_BORDER has 25 bits, so that the product is exact. */
	return op_settle(r, fabs(over) >= __dmul_rn(fabs(under), OP_BORDER),
			 (over < 0) != (under < 0));
}

#else

#include <math.h>

#define OP_FN static inline __attribute__((always_inline))

struct ops; /* Of devices only. */

#define op_add(x, y)       ((x) + (y))
#define op_sub(x, y)       ((x) - (y))
#define op_mul(o, x, y)    ((void)(o), (x) * (y))
#define op_fma(o, x, y, z) ((void)(o), fmaf(x, y, z))
#define op_div(o, x, y)    ((void)(o), (x) / (y))
#define op_sqrt(x)         sqrtf(x)
#define op_add_d(x, y)     ((x) + (y))
/* The square of an fp32 number is exact in double, so that it does not matter whether it is rounded
 * before it is added. */
#define op_square(s, x)    ((s) + (x) * (x))

#endif

#endif
