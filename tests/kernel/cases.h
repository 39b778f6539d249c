/* SPDX-License-Identifier: Apache-2.0 */
/* cases.h: what the kernel tests share: awkward numbers, optimizer states made of them, the four
 * settings of flush-to-zero and denormals-are-zero, and buffers for a kernel. There is no source
 * for it, and each test program includes it once. */
#ifndef TESTS_KERNEL_CASES_H
#define TESTS_KERNEL_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/rng.h"
#include "optim/ftz.h"
#include "optim/optim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATES = 64, MODES = 4 };

static const uint32_t awkward[] = {
	0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff,
	0x00400000, 0x00800000, 0x80800000, /* 0, denormals, smallest normal numbers. */
	0x3f800000, 0xbf800000, 0x33800000, 0x7f7fffff, 0xff7fffff,
	0x7f000000, 0x5f800000, 0x1f800000,                         /* 1, tiny, huge, 2^64. */
	0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001, /* Infinities and NaNs. */
};

struct state {
	float p, s1, s2;
};

/* The first 63 states have one awkward number in one place each. The last one is ordinary in all
 * three. */
static inline struct state state_make(unsigned i)
{
	float a = dtype_float(awkward[i % NR(awkward)]), x = 0.75f + 0.01f * (float)i;

	switch (i / NR(awkward)) {
	case 0:
		return (struct state){a, 1e-3f * x, 1e-5f * x};
	case 1:
		return (struct state){-x, a, 1e-4f * x};
	case 2:
		return (struct state){x, -1e-2f * x, a};
	default:
		return (struct state){x, 1e-3f, 1e-6f};
	}
}

/* Bit 0 is flush-to-zero, bit 1 denormals-are-zero. Returns what to restore. */
static inline unsigned mode_set(unsigned mode)
{
	unsigned before = _mm_getcsr(), clear = before & ~(unsigned)(FTZ_BIT | DAZ_BIT);

	_mm_setcsr(clear | (mode & 1 ? FTZ_BIT : 0) | (mode & 2 ? DAZ_BIT : 0));
	return before;
}

/* The buffers of one call of a kernel. `image` has 4 bytes per element, whatever its type. */
struct bufs {
	float *p, *s1, *s2;
	void *image;
};

/* The buffers are aligned to a cache line, so that a long image is written past the caches. */
static inline struct bufs bufs_make(size_t n)
{
	size_t bytes = (4 * n + 64) & ~(size_t)63;
	struct bufs b = {aligned_alloc(64, bytes), aligned_alloc(64, bytes),
			 aligned_alloc(64, bytes), aligned_alloc(64, bytes)};

	assert_true(b.p && b.s1 && b.s2 && b.image);
	return b;
}

static inline void bufs_free(struct bufs *b)
{
	free(b->p);
	free(b->s1);
	free(b->s2);
	free(b->image);
}

static inline void args_make(struct optim_args *a, const struct optim_row *row)
{
	double h[HYPER_NR];

	optim_defaults(row, h);
	h[HYPER_LR] = 0.01;
	h[HYPER_WEIGHT_DECAY] = 0.1;
	if (row->hyper[HYPER_MOMENTUM].name)
		h[HYPER_MOMENTUM] = 0.9;
	h[HYPER_NESTEROV] = row->hyper[HYPER_NESTEROV].name != NULL;
	assert_int_equal(optim_hyper_check(row, h, NULL), SHARD_OK);
	optim_args_set(a, row, h, 3, 0.37f);
}

static inline uint64_t bufs_run(const struct bufs *b, optim_apply *apply,
				const struct optim_row *row, const struct optim_args *a, size_t n,
				const void *grad)
{
	return apply(a, n, grad, b->p, row->states_nr > 0 ? b->s1 : NULL,
		     row->states_nr > 1 ? b->s2 : NULL, b->image);
}

static inline void same(const char *what, const void *want, const void *got, size_t n, size_t size)
{
	if (memcmp(want, got, n * size) == 0)
		return;
	for (size_t i = 0; i < n; i++) {
		uint32_t w = 0, g = 0;

		memcpy(&w, (const char *)want + i * size, size);
		memcpy(&g, (const char *)got + i * size, size);
		if (w != g)
			fail_msg("%s: element %zu is %#x, the reference has %#x", what, i, g, w);
	}
}

#endif
