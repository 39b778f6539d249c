/* SPDX-License-Identifier: Apache-2.0 */
/* xxh.h: XXH3-64, the checksum of the wire. Each call chooses the widest variant that the processor
 * has. All variants give the same numbers. Nothing here can fail or allocate. */
#ifndef SHARD_WIRE_XXH_H
#define SHARD_WIRE_XXH_H

#include "base/isa.h"

#include <stddef.h>
#include <stdint.h>

#define XXH_STATE_BYTES 576
struct xxh_state { /* An XXH3_state_t, whose type stays inside xxh_impl.h. */
	_Alignas(64) unsigned char bytes[XXH_STATE_BYTES];
};

/* One variant. Tests use it, and callers that hash so much that they choose the variant once. */
struct xxh_row {
	uint64_t (*sum)(const void *p, size_t bytes, uint64_t seed);
	void (*begin)(struct xxh_state *st);
	void (*add)(struct xxh_state *st, const void *p, size_t bytes);
	uint64_t (*end)(const struct xxh_state *st);
};
extern const struct xxh_row xxh_base, xxh_avx2, xxh_avx512;

const struct xxh_row *xxh_row(enum isa isa);
const struct xxh_row *xxh_best(
	void); /* Reads a word that the run-time library filled at start, so it is cheap. */

static inline uint64_t xxh_sum(const void *p, size_t bytes, uint64_t seed)
{
	return (bytes < 256 ? &xxh_base : xxh_best())
		->sum(p, bytes, seed); /* For short input all variants are the same code. */
}

#endif
