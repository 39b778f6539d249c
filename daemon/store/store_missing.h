/* SPDX-License-Identifier: Apache-2.0 */
/* store_missing.h: which weights of a store nobody has written. Where the state of a chunk is not
 * always in memory, it is pinned (tier.h). */
#ifndef SHARD_STORE_MISSING_H
#define SHARD_STORE_MISSING_H

#include "store/store.h"

/* From now on each weight of this chunk, which is held here, counts as unwritten by itself, and the
 * moments are zero. Called before the first of its weights is written. */
void store_clear_chunk(struct store *st, uint32_t chunk);
/* Was it reset, and not cleared or filled since? */
bool store_void(struct store *st, uint32_t chunk);

struct store_missing {
	uint64_t unwritten, nonfinite; /* In elements of the master. */
	uint64_t first; /* The first such element of the element space. UINT64_MAX: none. */
};
/* Scans the chunk and adds to *m. A worker may run it. */
void store_missing(struct store *st, uint32_t chunk, struct store_missing *m);
/* As if nothing of the chunk were written. */
void store_missing_all(const struct store *st, uint32_t chunk, struct store_missing *m);
void store_missing_init(struct store_missing *m);
/* Weights of a chunk that was written, which lie at `at`, from this element on. */
void store_missing_in(const float *at, uint64_t element, uint64_t nr, struct store_missing *m);
#endif
