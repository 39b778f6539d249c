/* SPDX-License-Identifier: Apache-2.0 */
/* store_impl.h: what a store is made of. Private to this folder. */
#ifndef SHARD_STORE_STORE_IMPL_H
#define SHARD_STORE_STORE_IMPL_H

#include "store/sizes.h"

/* NaNs. In a weight: nobody has written it. In the first weight of a chunk: nor any other there. */
#define STORE_UNWRITTEN 0x7fb5eadeu
#define STORE_VOID      0x7fb5eadfu

#define NOT_HELD   UINT64_MAX
#define NO_VERSION UINT64_MAX

enum arena_use {
	ARENA_FRESH,   /* Never mapped elsewhere. */
	ARENA_USED,    /* A session has it. */
	ARENA_SPENT,   /* A session had it. */
	ARENA_RENEWING /* Spent; a thread gets other memory for it. */
};

struct arena_slot {
	enum arena_use use;
	struct shm shm;
};

struct store {
	struct store_conf conf;
	struct store_sizes sizes;
	struct shm region[STORE_REGIONS], image;
	uint64_t *held_at;      /* [chunks_nr] first element among those held here; NOT_HELD */
	uint64_t *moment_at;    /* [chunks_nr] first element of its moments; NOT_HELD: none, also
				   because all of it is frozen */
	uint64_t *else_at;      /* [chunks_nr] the same among those held elsewhere */
	uint32_t owned, newest; /* newest: image */
	struct arena_slot arena[];
};

#endif
