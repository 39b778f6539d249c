/* SPDX-License-Identifier: Apache-2.0 */
/* vector_rules.h: the optimizers for one vector of elements, and the loop over vectors. The
 * including file has defined the vector (vec, vmask, VEC_LANES and the vec_* operations of
 * vector_avx2.h or vector_avx512.h). The rules repeat optim_scalar.c operation by operation. What
 * is left over after the last whole vector goes to the scalar kernel itself. */
#ifndef SHARD_OPTIM_VECTOR_RULES_H
#define SHARD_OPTIM_VECTOR_RULES_H

#include "optim/kernels.h"

enum {
	AHEAD = 512, /* How far the loop prefetches, in elements. */
	/* In elements. A shorter image is likely to be read from a cache soon. */
	STREAM_MIN = 8192,
};

struct velem {
	vec p, s1, s2;
};
struct vargs {
	vec mult, lr, minus_lr, decay, l2, beta1, one_minus_beta1, beta2, one_minus_beta2, eps,
		minus_step, bc2_sqrt;
	bool nesterov;
};
typedef struct velem rule_fn(const struct vargs *a, vec g, struct velem e);

INLINE struct vargs vargs_make(const struct optim_args *a)
{
	return (struct vargs){
		.mult = vec_all(a->mult),
		.lr = vec_all(a->lr),
		.minus_lr = vec_all(-a->lr),
		.decay = vec_all(a->decay),
		.l2 = vec_all(a->l2),
		.beta1 = vec_all(a->beta1),
		.one_minus_beta1 = vec_all(a->one_minus_beta1),
		.beta2 = vec_all(a->beta2),
		.one_minus_beta2 = vec_all(a->one_minus_beta2),
		.eps = vec_all(a->eps),
		.minus_step = vec_all(-a->step_size),
		.bc2_sqrt = vec_all(a->bc2_sqrt),
		.nesterov = a->nesterov != 0,
	};
}

INLINE struct velem adam_update(const struct vargs *a, vec g, vec p, struct velem e)
{
	vec m = vec_fma(a->one_minus_beta1, vec_sub(g, e.s1), e.s1);
	vec v = vec_fma(vec_mul(a->one_minus_beta2, g), g, vec_mul(a->beta2, e.s2));
	vec denom = vec_add(vec_div(vec_sqrt(v), a->bc2_sqrt), a->eps);

	return (struct velem){vec_fma(a->minus_step, vec_div(m, denom), p), m, v};
}

INLINE struct velem adamw(const struct vargs *a, vec g, struct velem e)
{
	return adam_update(a, g, vec_mul(e.p, a->decay), e);
}

INLINE struct velem adam(const struct vargs *a, vec g, struct velem e)
{
	return adam_update(a, vec_fma(a->l2, e.p, g), e.p, e);
}

INLINE struct velem sgd(const struct vargs *a, vec g, struct velem e)
{
	vec d = vec_fma(a->l2, e.p, g);
	vec buf = vec_fma(a->beta1, e.s1, d);
	vec dir = a->nesterov ? vec_fma(a->beta1, buf, d) : buf;

	return (struct velem){vec_fma(a->minus_lr, dir, e.p), buf, e.s2};
}

INLINE struct velem adagrad(const struct vargs *a, vec g, struct velem e)
{
	vec d = vec_fma(a->l2, e.p, g);
	vec sum = vec_fma(d, d, e.s1);
	vec denom = vec_add(vec_sqrt(sum), a->eps);

	return (struct velem){vec_fma(a->minus_lr, vec_div(d, denom), e.p), sum, e.s2};
}

INLINE struct velem lion(const struct vargs *a, vec g, struct velem e)
{
	vec c = vec_fma(a->one_minus_beta1, g, vec_mul(a->beta1, e.s1));
	vec step = vec_by_sign(c, a->lr, a->minus_lr);
	vec m = vec_fma(a->one_minus_beta2, g, vec_mul(a->beta2, e.s1));

	return (struct velem){vec_sub(vec_mul(e.p, a->decay), step), m, e.s2};
}

INLINE vec load(const void *grad, enum shard_dtype dt, size_t i)
{
	if (!grad)
		return vec_all(0);
	if (dt == SHARD_F32)
		return vec_load((const float *)grad + i);
	return dt == SHARD_BF16 ? vec_load_bf16((const uint16_t *)grad + i)
				: vec_load_f16((const uint16_t *)grad + i);
}

/* `stream` writes past the caches. The image is then aligned to the vector. */
INLINE void store(void *image, enum shard_dtype dt, size_t i, vec p, bool stream)
{
	float *f = image;
	uint16_t *h = image;

	if (dt == SHARD_F32 && stream)
		vec_stream(f + i, p);
	else if (dt == SHARD_F32)
		vec_store(f + i, p);
	else if (stream)
		vec_stream_half(h + i, dt == SHARD_BF16 ? vec_to_bf16(p) : vec_to_f16(p));
	else
		vec_store_half(h + i, dt == SHARD_BF16 ? vec_to_bf16(p) : vec_to_f16(p));
}

/* A prefetch never faults, so it may reach past the end. */
INLINE void prefetch(const void *grad, enum shard_dtype dt, const float *p, const float *s1,
		     const float *s2, int states)
{
	if (grad)
		_mm_prefetch((const char *)grad + AHEAD * dtype_bytes(dt), _MM_HINT_T0);
	_mm_prefetch((const char *)(p + AHEAD), _MM_HINT_T0);
	if (states > 0)
		_mm_prefetch((const char *)(s1 + AHEAD), _MM_HINT_T0);
	if (states > 1)
		_mm_prefetch((const char *)(s2 + AHEAD), _MM_HINT_T0);
}

INLINE uint64_t left_over(enum optim_id id, enum shard_dtype gdt, enum shard_dtype idt, size_t i,
			  KERNEL_ARGS, struct optim_undo *undo)
{
	const char *from = grad ? (const char *)grad + i * dtype_bytes(gdt) : NULL;
	char *to = (char *)image + i * dtype_bytes(idt);

	if (undo) {
		undo->origin += i;
		return optim_scalar.undo[id][gdt - 1][idt - 1](
			a, n - i, from, p + i, s1 ? s1 + i : NULL, s2 ? s2 + i : NULL, to, undo);
	}
	return optim_scalar.apply[id][gdt - 1][idt - 1](a, n - i, from, p + i, s1 ? s1 + i : NULL,
							s2 ? s2 + i : NULL, to);
}

INLINE void keep(struct optim_undo *undo, uint64_t position, uint32_t place, struct velem old,
		 int states)
{
	vec_store(undo->place[place][0], old.p);
	if (states > 0)
		vec_store(undo->place[place][1], old.s1);
	if (states > 1)
		vec_store(undo->place[place][2], old.s2);
	undo_keep(undo, position, place, VEC_LANES);
}

/* One pass, bound by memory. These are figures in GB/s, at 28 bytes per parameter, for 64 Mi
 * parameters on an EPYC (Zen 5). On two cores, streaming the image gave 68.7 and ordinary stores
 * gave 66.0, because they read each line before they overwrite it. One thread alone gave 61.7 and
 * 56.0, and 67.0 with prefetching. Streaming the state as well gained nothing, because its lines
 * are read anyway. */
INLINE uint64_t run(rule_fn *rule, int states, enum optim_id id, enum shard_dtype gdt,
		    enum shard_dtype idt, KERNEL_ARGS, struct optim_undo *undo)
{
	const struct vargs va = vargs_make(a);
	const vec none = vec_all(0);
	const bool stream = n >= STREAM_MIN && (uintptr_t)image % 64 == 0;
	const uint64_t origin = undo ? undo->origin : 0;
	uint32_t place = undo ? undo_place(undo->at) : 0;
	uint64_t kept = 0;
	size_t i = 0;

	for (; i + VEC_LANES <= n; i += VEC_LANES) {
		vec g = vec_mul(load(grad, gdt, i), va.mult);
		struct velem old = {vec_load(p + i), states > 0 ? vec_load(s1 + i) : none,
				    states > 1 ? vec_load(s2 + i) : none};
		struct velem e = rule(&va, g, old);
		vmask ok = vec_finite(e.p);

		prefetch(grad ? (const char *)grad + i * dtype_bytes(gdt) : NULL, gdt, p + i,
			 states > 0 ? s1 + i : p, states > 1 ? s2 + i : p, states);
		if (states > 0)
			ok = vmask_and(ok, vec_finite(e.s1));
		if (states > 1)
			ok = vmask_and(ok, vec_finite(e.s2));
		kept += VEC_LANES - vmask_count(ok);
		e.p = vec_pick(ok, e.p, old.p);
		if (undo)
			keep(undo, origin + i, place ^= 1, old, states);
		vec_store(p + i, e.p);
		if (states > 0)
			vec_store(s1 + i, vec_pick(ok, e.s1, old.s1));
		if (states > 1)
			vec_store(s2 + i, vec_pick(ok, e.s2, old.s2));
		store(image, idt, i, e.p, stream);
	}
	if (stream)
		_mm_sfence(); /* The image is complete in memory before anybody is told of it. */
	if (i < n)
		kept += left_over(id, gdt, idt, i, a, n, grad, p, s1, s2, image, undo);
	return kept;
}

#endif
