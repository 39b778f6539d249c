/* SPDX-License-Identifier: Apache-2.0 */
/* rng.h: a seeded generator for tests, jitter and initial weights. It is splitmix64 (Steele, Lea,
 * Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). It must not be used for
 * secrets. */
#ifndef SHARD_BASE_RNG_H
#define SHARD_BASE_RNG_H

#include <stdint.h>

struct rng {
	uint64_t state;
};

static inline uint64_t rng_next(struct rng *r)
{
	uint64_t z = (r->state += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static inline uint64_t rng_below(
	struct rng *r, uint64_t n) /* n > 0. The bias of n / 2^64 does not matter to tests. */
{
	return rng_next(r) % n;
}

static inline double rng_unit(struct rng *r) /* In [0, 1). */
{
	return (double)(rng_next(r) >> 11) * 0x1p-53;
}

#endif
