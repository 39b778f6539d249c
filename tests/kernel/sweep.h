/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.h: runs each optimizer over many gradient patterns times the 64 states of cases.h, with
 * each image type and each setting of flush-to-zero, and compares one instruction set with the
 * scalar kernel bit by bit. test_sweep_*.c each fix one gradient type. */
#ifndef TESTS_KERNEL_SWEEP_H
#define TESTS_KERNEL_SWEEP_H

#include "kernel/cases.h"

struct sweep {
	enum shard_dtype gdt;
	size_t n;         /* The number of patterns. */
	const void *grad; /* n patterns. */
};

static inline void sweep_fill(const struct bufs *b, size_t n, unsigned turn)
{
	/* Neighbours differ, so that a value that gets into another lane shows. */
	for (size_t i = 0; i < n; i++) {
		struct state s = state_make((unsigned)(i + turn) % STATES);

		b->p[i] = s.p;
		b->s1[i] = s.s1;
		b->s2[i] = s.s2;
	}
	memset(b->image, 0xee, 4 * n);
}

/* Checks rule 6 by itself: whatever the input is, an element is finite in all its parts or
 * unchanged. */
static inline void sweep_check_kept(const struct optim_row *row, const struct bufs *b,
				    const struct bufs *old, size_t n, uint64_t kept)
{
	uint64_t unchanged_nr = 0;

	for (size_t i = 0; i < n; i++) {
		bool finite = dtype_finite(b->p[i]),
		     unchanged = memcmp(&b->p[i], &old->p[i], 4) == 0;

		if (row->states_nr > 0) {
			finite = finite && dtype_finite(b->s1[i]);
			unchanged = unchanged && memcmp(&b->s1[i], &old->s1[i], 4) == 0;
		}
		if (row->states_nr > 1) {
			finite = finite && dtype_finite(b->s2[i]);
			unchanged = unchanged && memcmp(&b->s2[i], &old->s2[i], 4) == 0;
		}
		if (!finite && !unchanged)
			fail_msg("%s: element %zu became non-finite", row->name, i);
		unchanged_nr += unchanged;
	}
	assert_true(kept > 0 && kept <= unchanged_nr);
}

static inline void sweep_row(const struct sweep *s, const struct optim_row *row, enum isa isa,
			     enum shard_dtype idt)
{
	struct bufs old = bufs_make(s->n), want = bufs_make(s->n), got = bufs_make(s->n);
	optim_apply *scalar = optim_kernel(row, ISA_SCALAR, s->gdt, idt),
		    *wide = optim_kernel(row, isa, s->gdt, idt);
	struct optim_args a;

	args_make(&a, row);
	for (unsigned turn = 0; turn < STATES * MODES; turn++) {
		sweep_fill(&old, s->n, turn / MODES);
		sweep_fill(&want, s->n, turn / MODES);
		sweep_fill(&got, s->n, turn / MODES);
		unsigned before = mode_set(turn % MODES);
		uint64_t kept_want = bufs_run(&want, scalar, row, &a, s->n, s->grad);
		uint64_t kept_got = bufs_run(&got, wide, row, &a, s->n, s->grad);
		_mm_setcsr(before);

		same("master", want.p, got.p, s->n, 4);
		same("first state", want.s1, got.s1, s->n, 4);
		same("second state", want.s2, got.s2, s->n, 4);
		same("image", want.image, got.image, s->n, dtype_bytes(idt));
		assert_int_equal(kept_want, kept_got);
		if (turn % 16 == 0)
			sweep_check_kept(row, &want, &old, s->n, kept_want);
	}
	bufs_free(&old);
	bufs_free(&want);
	bufs_free(&got);
}

static inline void sweep_isa(const struct sweep *s, enum isa isa)
{
	if (!isa_has(isa))
		skip();
	for (int id = 0; id < OPTIM_NR; id++)
		for (int idt = 1; idt <= DTYPE_NR; idt++)
			sweep_row(s, optim_row((enum optim_id)id), isa, (enum shard_dtype)idt);
}

#endif
