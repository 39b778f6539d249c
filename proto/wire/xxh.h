/* SPDX-License-Identifier: Apache-2.0 */
/* xxh.h: XXH3-64, the checksum of the wire. The widest variant that the processor has is chosen at
 * each call; all give the same numbers. Nothing here can fail or allocate. */
#ifndef SHARD_WIRE_XXH_H
#define SHARD_WIRE_XXH_H

#include "base/isa.h"

#include <stddef.h>
#include <stdint.h>

#define XXH_STATE_BYTES 576
struct xxh_state { /* XXH3_state_t, whose type stays inside xxh_impl.h */
	_Alignas(64) unsigned char bytes[XXH_STATE_BYTES];
};

struct xxh_row { /* one variant; for tests, and for who hashes so much that the choice should be
		    made once */
	uint64_t (*sum)(const void *p, size_t bytes, uint64_t seed);
	void (*begin)(struct xxh_state *st);
	void (*add)(struct xxh_state *st, const void *p, size_t bytes);
	uint64_t (*end)(const struct xxh_state *st);
};
extern const struct xxh_row xxh_base, xxh_avx2, xxh_avx512;

const struct xxh_row *xxh_row(enum isa isa);
const struct xxh_row *xxh_best(
	void); /* reads a word that the run-time library filled at start: cheap enough per call */

static inline uint64_t xxh_sum(const void *p, size_t bytes, uint64_t seed)
{
	return (bytes < 256 ? &xxh_base : xxh_best())
		->sum(p, bytes, seed); /* short input has one path only */
}

#endif
