/* SPDX-License-Identifier: Apache-2.0 */
/* store_impl.h: what a store is made of. Private to this folder. */
#ifndef SHARD_STORE_STORE_IMPL_H
#define SHARD_STORE_STORE_IMPL_H

#include "store/sizes.h"

/* Both are NaNs. STORE_UNWRITTEN in a weight: nobody has written it. STORE_VOID in the first weight
 * of a chunk: nobody has written any weight of the chunk. */
#define STORE_UNWRITTEN 0x7fb5eadeu
#define STORE_VOID      0x7fb5eadfu

#define NOT_HELD   UINT64_MAX
#define NO_VERSION UINT64_MAX

enum arena_use {
	ARENA_FRESH,   /* No other process has mapped it. */
	ARENA_USED,    /* A session has it. */
	ARENA_SPENT,   /* A session had it. */
	ARENA_RENEWING /* It was spent, and a thread makes new memory for it. */
};

struct arena_slot {
	enum arena_use use;
	struct shm shm;
};

struct store {
	struct store_conf conf;
	struct store_sizes sizes;
	struct shm region[STORE_REGIONS], image;
	uint64_t *held_at; /* [chunks_nr] The first element, among those held here, or NOT_HELD. */
	/* [chunks_nr] The first element of its moments. NOT_HELD: there are none, also because all
	 * of it is frozen. */
	uint64_t *moment_at;
	/* [chunks_nr] The first element, among those held elsewhere, or NOT_HELD. */
	uint64_t *else_at;
	/* owned: how many chunks are held here. newest: the newest image. */
	uint32_t owned, newest;
	struct arena_slot arena[];
};

#endif
