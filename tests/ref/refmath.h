/* SPDX-License-Identifier: Apache-2.0 */
/* refmath.h: the arithmetic of one optimizer step as the specification says it
 * (wire/ARITHMETIC.md), written once more for the reference and as plainly as possible: sums over
 * ranks and nodes, norm, clip, loss scale, scalars of the optimizer. */
#ifndef REF_MATH_H
#define REF_MATH_H

#include "ref/refsettings.h"

/* out = the sum of nr gradients in order, each multiplied by `factor` before, rounded to dtype
 * once. A single gradient with factor 1 keeps its bits. out may be any of them. */
void refmath_sum(void *out, const void *const *grads, uint32_t nr, enum shard_dtype dt,
		 float factor, uint64_t n);

/* Returns the sum of squares of elements [first, first + n) of a gradient, which are one
 * segment. */
double refmath_square(const void *grad, enum shard_dtype dt, uint64_t first, uint64_t n);
bool refmath_finite(const void *grad, enum shard_dtype dt, uint64_t n);

/* DeepSpeed's dynamic loss scale. */
struct refscale {
	double scale;
	double hysteresis; /* How many more overflows lower the scale. */
	int64_t iter, last_overflow;
};

void refscale_start(struct refscale *s, const struct refsettings *c);
/* False: the scale would have to go below its floor. */
bool refscale_next(struct refscale *s, const struct refsettings *c, bool overflow);

double refmath_clip(const struct refsettings *c, double norm);
/* c->schedule changes lr and momentum. `applied` counts this step, too. */
struct optim_args refmath_words(const struct refsettings *c, uint64_t applied, double mult);

#endif
