/* SPDX-License-Identifier: Apache-2.0 */
/* ftz.h: flush-to-zero and denormals-are-zero for the calling thread. Every thread that runs a reduce or an optimizer kernel turns
 * both on first: a denormal operand costs ten times a normal one, and results depend on the mode, so it is part of the
 * arithmetic (wire/ARITHMETIC.md). A worker thread does it once; who has other work to do restores afterwards. */
#ifndef SHARD_OPTIM_FTZ_H
#define SHARD_OPTIM_FTZ_H

#include <immintrin.h>

enum { FTZ_BIT = 0x8000, DAZ_BIT = 0x0040 }; /* of MXCSR */

static inline unsigned ftz_on(void) /* returns what ftz_restore() wants */
{
	unsigned before = _mm_getcsr();

	_mm_setcsr(before | FTZ_BIT | DAZ_BIT);
	return before;
}

static inline void ftz_restore(unsigned before)
{
	_mm_setcsr((_mm_getcsr() & ~(unsigned)(FTZ_BIT | DAZ_BIT)) | (before & (FTZ_BIT | DAZ_BIT)));
}

#endif
