/* SPDX-License-Identifier: Apache-2.0 */
/* store_impl.h: what a store is made of. Private to this folder. */
#ifndef SHARD_STORE_STORE_IMPL_H
#define SHARD_STORE_STORE_IMPL_H

#include "store/sizes.h"

#define STORE_UNWRITTEN 0x7fb5eadeu
#define NOT_HELD        UINT64_MAX
#define NO_VERSION      UINT64_MAX

enum arena_use { ARENA_FRESH, ARENA_USED, ARENA_SPENT }; /* never mapped elsewhere, with a session, had one */

struct arena_slot {
	enum arena_use use;
	struct shm shm;
};

struct store {
	struct store_conf conf;
	struct store_sizes sizes;
	struct shm region[STORE_REGIONS], image;
	uint64_t *held_at;      /* [chunks_nr] first element among those held here; NOT_HELD */
	uint64_t *moment_at;    /* [chunks_nr] first element of its moments; NOT_HELD: none, also because all of it is frozen */
	uint64_t *else_at;      /* [chunks_nr] the same among those held elsewhere */
	uint32_t owned, newest; /* newest: image */
	struct arena_slot arena[];
};

#endif
