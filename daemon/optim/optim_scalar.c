/* SPDX-License-Identifier: Apache-2.0 */
/* The reference: the rules of rules.h, one element after the other. Tests compare all other kernels
 * with it. Workers on a processor without AVX2 get it from
 * optim_kernel(), and the wide kernels call it for what is left over after their last whole vector.
 * fmaf and sqrtf round exactly once, so that they give the same bits everywhere. It cannot fail. An
 * element whose new values would not all be finite stays as it was, and is counted. */
#include "optim/kernels.h"
#include "optim/rules.h"

static void keep(struct optim_undo *undo, uint64_t position, uint32_t place, struct elem old)
{
	undo->place[place][0][0] = old.p;
	undo->place[place][1][0] = old.s1;
	undo->place[place][2][0] = old.s2;
	undo_keep(undo, position, place, 1);
}

OP_FN uint64_t run(rule_fn *rule, int states, enum optim_id id, enum shard_dtype gdt,
		   enum shard_dtype idt, KERNEL_ARGS, struct optim_undo *undo)
{
	uint32_t place = undo ? undo_place(undo->at) : 0;
	uint64_t kept = 0;

	(void)id; /* The wide kernels need it to find the scalar kernel. */
	for (size_t i = 0; i < n; i++) {
		struct elem old = {p[i], states > 0 ? s1[i] : 0, states > 1 ? s2[i] : 0};
		struct elem e =
			rule_apply(rule, NULL, a, grad ? rule_load(gdt, grad, i) : 0, old, &kept);

		if (undo)
			keep(undo, undo->origin + i, place ^= 1, old);
		p[i] = e.p;
		if (states > 0)
			s1[i] = e.s1;
		if (states > 1)
			s2[i] = e.s2;
		rule_store(idt, image, i, e.p);
	}
	return kept;
}

KERNELS_DEFINE(optim_scalar)
