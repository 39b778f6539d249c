/* SPDX-License-Identifier: Apache-2.0 */
/* rules.h: each optimizer for one element, and the sum of gradients, in the order of operations
 * that wire/ARITHMETIC.md lists. The scalar kernels of processors (optim_scalar.c, reduce.c) and
 * the kernels of devices (gpu/kernels.cu) are made of these functions, and the kernels for wide
 * registers repeat them. It is plain enough for C, C++ and CUDA. */
#ifndef SHARD_OPTIM_RULES_H
#define SHARD_OPTIM_RULES_H

#include "optim/kinds.h"
#include "optim/ops.h"

struct elem {
	float p, s1, s2; /* The master and the states. Unused states are 0. */
};
typedef struct elem rule_fn(struct ops *o, const struct optim_args *a, float g, struct elem e);

OP_FN struct elem adam_update(struct ops *o, const struct optim_args *a, float g, float p,
			      struct elem e)
{
	float m = op_fma(o, a->one_minus_beta1, op_sub(g, e.s1), e.s1);
	float v = op_fma(o, op_mul(o, a->one_minus_beta2, g), g, op_mul(o, a->beta2, e.s2));
	float denom = op_add(op_div(o, op_sqrt(v), a->bc2_sqrt), a->eps);
	struct elem r = {op_fma(o, -a->step_size, op_div(o, m, denom), p), m, v};

	return r;
}

OP_FN struct elem adamw(struct ops *o, const struct optim_args *a, float g, struct elem e)
{
	return adam_update(o, a, g, op_mul(o, e.p, a->decay), e);
}

OP_FN struct elem adam(struct ops *o, const struct optim_args *a, float g, struct elem e)
{
	return adam_update(o, a, op_fma(o, a->l2, e.p, g), e.p, e);
}

OP_FN struct elem sgd(struct ops *o, const struct optim_args *a, float g, struct elem e)
{
	float d = op_fma(o, a->l2, e.p, g);
	float buf = op_fma(o, a->beta1, e.s1, d);
	float dir = a->nesterov ? op_fma(o, a->beta1, buf, d) : buf;
	struct elem r = {op_fma(o, -a->lr, dir, e.p), buf, 0};

	return r;
}

OP_FN struct elem adagrad(struct ops *o, const struct optim_args *a, float g, struct elem e)
{
	float d = op_fma(o, a->l2, e.p, g);
	float sum = op_fma(o, d, d, e.s1);
	float denom = op_add(op_sqrt(sum), a->eps);
	struct elem r = {op_fma(o, -a->lr, op_div(o, d, denom), e.p), sum, 0};

	return r;
}

OP_FN struct elem lion(struct ops *o, const struct optim_args *a, float g, struct elem e)
{
	float c = op_fma(o, a->one_minus_beta1, g, op_mul(o, a->beta1, e.s1));
	float step = c > 0   ? a->lr
		     : c < 0 ? -a->lr
			     : 0; /* NaN: no step. The state below is then NaN, too. */
	float m = op_fma(o, a->one_minus_beta2, g, op_mul(o, a->beta2, e.s1));
	struct elem r = {op_sub(op_mul(o, e.p, a->decay), step), m, 0};

	return r;
}

/* One element of a step: w is the reduced gradient. An element whose new values would not all be
 * finite stays as it was, and *kept counts it. */
OP_FN struct elem rule_apply(rule_fn *rule, struct ops *o, const struct optim_args *a, float w,
			     struct elem old, uint64_t *kept)
{
	struct elem e = rule(o, a, op_mul(o, w, a->mult), old);

	if (dtype_finite(e.p) && dtype_finite(e.s1) && dtype_finite(e.s2))
		return e;
	(*kept)++;
	return old;
}

/* --- elements of the three types --- */

OP_FN float rule_from16(enum shard_dtype dt, uint16_t h)
{
	return dt == SHARD_BF16 ? dtype_from_bf16(h) : dtype_from_f16(h);
}

OP_FN uint16_t rule_to16(enum shard_dtype dt, float x)
{
	return dt == SHARD_BF16 ? dtype_to_bf16(x) : dtype_to_f16(x);
}

OP_FN float rule_load(enum shard_dtype dt, const void *from, size_t i)
{
	return dt == SHARD_F32 ? ((const float *)from)[i]
			       : rule_from16(dt, ((const uint16_t *)from)[i]);
}

OP_FN void rule_store(enum shard_dtype dt, void *to, size_t i, float x)
{
	if (dt == SHARD_F32)
		((float *)to)[i] = x;
	else
		((uint16_t *)to)[i] = rule_to16(dt, x);
}

/* --- a sum of gradients --- */

/* An operand. `scaled` is a constant where denormals are not flushed, because a compiler may take
 * "x * pre or x" for x * (pre or 1), and that flushes an x that is denormal. */
OP_FN float rule_operand(struct ops *o, float x, float pre, bool scaled)
{
	return scaled ? op_mul(o, x, pre) : x;
}

/* Every NaN of a sum becomes the plain one, because it is not defined which operand's payload it
 * keeps. */
OP_FN float rule_plain_nan(float x)
{
	return (dtype_bits(x) & 0x7fffffffu) > 0x7f800000u ? dtype_float(0x7fc00000u) : x;
}

#endif
