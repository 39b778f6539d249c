/* SPDX-License-Identifier: Apache-2.0 */
/* ftz.h: flush-to-zero and denormals-are-zero for the calling thread. Every thread that runs a
 * reduce or an optimizer kernel turns both on first. A denormal operand costs ten times as much as
 * a normal one. Results depend on the mode, so it is part of the arithmetic (wire/ARITHMETIC.md). A
 * worker thread turns the mode on once. A thread that has other work to do restores the old mode
 * afterwards. */
#ifndef SHARD_OPTIM_FTZ_H
#define SHARD_OPTIM_FTZ_H

#include <stdint.h>

#ifdef __x86_64__
#include <immintrin.h>

enum { FTZ_BIT = 0x8000, DAZ_BIT = 0x0040 }; /* Bits of MXCSR. */

static inline unsigned ftz_get(void)
{
	return _mm_getcsr();
}

static inline void ftz_set(unsigned mode)
{
	_mm_setcsr(mode);
}
#else
/* The FZ bit of FPCR flushes operands and results. */
enum { FTZ_BIT = 1 << 24, DAZ_BIT = 1 << 24 };

static inline unsigned ftz_get(void)
{
	uint64_t mode;

	__asm__ volatile("mrs %0, fpcr" : "=r"(mode));
	return (unsigned)mode;
}

static inline void ftz_set(unsigned mode)
{
	__asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
}
#endif

static inline unsigned ftz_on(void) /* Returns the mode for ftz_restore(). */
{
	unsigned before = ftz_get();

	ftz_set(before | FTZ_BIT | DAZ_BIT);
	return before;
}

static inline void ftz_restore(unsigned before)
{
	unsigned bits = FTZ_BIT | DAZ_BIT;

	ftz_set((ftz_get() & ~bits) | (before & bits));
}

#endif
