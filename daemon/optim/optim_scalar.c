/* SPDX-License-Identifier: Apache-2.0 */
/* The reference: each optimizer for one element, in the order of operations that wire/ARITHMETIC.md
 * lists. Tests compare all other kernels with it. Workers on a processor without AVX2 get it from
 * optim_kernel(), and the wide kernels call it for what is left over after their last whole vector.
 * fmaf and sqrtf round exactly once, so that they give the same bits everywhere. It cannot fail. An
 * element whose new values would not all be finite stays as it was, and is counted. */
#include "optim/kernels.h"

#include <math.h>

struct elem {
	float p, s1, s2; /* The master and the states. Unused states are 0. */
};
typedef struct elem rule_fn(const struct optim_args *a, float g, struct elem e);

#define INLINE static inline __attribute__((always_inline))

INLINE struct elem adam_update(const struct optim_args *a, float g, float p, struct elem e)
{
	float m = fmaf(a->one_minus_beta1, g - e.s1, e.s1);
	float v = fmaf(a->one_minus_beta2 * g, g, a->beta2 * e.s2);
	float denom = sqrtf(v) / a->bc2_sqrt + a->eps;

	return (struct elem){fmaf(-a->step_size, m / denom, p), m, v};
}

INLINE struct elem adamw(const struct optim_args *a, float g, struct elem e)
{
	return adam_update(a, g, e.p * a->decay, e);
}

INLINE struct elem adam(const struct optim_args *a, float g, struct elem e)
{
	return adam_update(a, fmaf(a->l2, e.p, g), e.p, e);
}

INLINE struct elem sgd(const struct optim_args *a, float g, struct elem e)
{
	float d = fmaf(a->l2, e.p, g);
	float buf = fmaf(a->beta1, e.s1, d);
	float dir = a->nesterov ? fmaf(a->beta1, buf, d) : buf;

	return (struct elem){fmaf(-a->lr, dir, e.p), buf, 0};
}

INLINE struct elem adagrad(const struct optim_args *a, float g, struct elem e)
{
	float d = fmaf(a->l2, e.p, g);
	float sum = fmaf(d, d, e.s1);
	float denom = sqrtf(sum) + a->eps;

	return (struct elem){fmaf(-a->lr, d / denom, e.p), sum, 0};
}

INLINE struct elem lion(const struct optim_args *a, float g, struct elem e)
{
	float c = fmaf(a->one_minus_beta1, g, a->beta1 * e.s1);
	float step = c > 0   ? a->lr
		     : c < 0 ? -a->lr
			     : 0; /* NaN: no step. The state below is then NaN, too. */
	float m = fmaf(a->one_minus_beta2, g, a->beta2 * e.s1);

	return (struct elem){e.p * a->decay - step, m, 0};
}

INLINE float load(const void *grad, enum shard_dtype dt, size_t i)
{
	if (!grad)
		return 0;
	if (dt == SHARD_F32)
		return ((const float *)grad)[i];
	uint16_t h = ((const uint16_t *)grad)[i];
	return dt == SHARD_BF16 ? dtype_from_bf16(h) : dtype_from_f16(h);
}

INLINE void store(void *image, enum shard_dtype dt, size_t i, float p)
{
	if (dt == SHARD_F32)
		((float *)image)[i] = p;
	else
		((uint16_t *)image)[i] = dt == SHARD_BF16 ? dtype_to_bf16(p) : dtype_to_f16(p);
}

static void keep(struct optim_undo *undo, uint64_t position, uint32_t place, struct elem old)
{
	undo->place[place][0][0] = old.p;
	undo->place[place][1][0] = old.s1;
	undo->place[place][2][0] = old.s2;
	undo_keep(undo, position, place, 1);
}

INLINE uint64_t run(rule_fn *rule, int states, enum optim_id id, enum shard_dtype gdt,
		    enum shard_dtype idt, KERNEL_ARGS, struct optim_undo *undo)
{
	uint32_t place = undo ? undo_place(undo->at) : 0;
	uint64_t kept = 0;

	(void)id; /* The wide kernels need it to find the scalar kernel. */
	for (size_t i = 0; i < n; i++) {
		float g = load(grad, gdt, i) * a->mult;
		struct elem old = {p[i], states > 0 ? s1[i] : 0, states > 1 ? s2[i] : 0};
		struct elem e = rule(a, g, old);

		if (!dtype_finite(e.p) || !dtype_finite(e.s1) || !dtype_finite(e.s2)) {
			e = old;
			kept++;
		}
		if (undo)
			keep(undo, undo->origin + i, place ^= 1, old);
		p[i] = e.p;
		if (states > 0)
			s1[i] = e.s1;
		if (states > 1)
			s2[i] = e.s2;
		store(image, idt, i, e.p);
	}
	return kept;
}

KERNELS_DEFINE(optim_scalar)
