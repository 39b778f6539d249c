/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h: which slot of its file each chunk that is away is in. One word of a chunk says so, in
 * memory that outlives the process where the store does (away.h). A chunk has a slot of its own as
 * long as the file is there, also while nothing of it counts. Loop thread only. */
#ifndef SHARD_STORE_SLOTS_H
#define SHARD_STORE_SLOTS_H

#include "store/store.h"

#define SLOT_NONE UINT32_MAX

struct slots {
	const struct store *store;
	uint32_t *of;   /* [chunks_nr] The slot that no other chunk gets. SLOT_NONE: none. */
	uint32_t *free; /* [nr] */
	uint32_t nr, free_nr;
	uint64_t seq; /* Of the last write. */
};

struct slot_at {
	uint32_t slot; /* SLOT_NONE: nothing of the chunk is in the file. */
	uint64_t seq;  /* Of the write that brought it there. */
};

/* SHARD_MISMATCH: what an earlier process left cannot be. On failure nothing is left. */
enum shard_status slots_open(struct slots *s, const struct store *st, uint32_t nr, struct err *e);
void slots_close(struct slots *s);
struct slot_at slots_at(const struct slots *s, uint32_t chunk);
/* For a write. There is always one if `nr` has room for the writes under way. */
struct slot_at slots_take(struct slots *s);
void slots_give(struct slots *s, uint32_t slot); /* What was written there counts no more. */
/* It is written: from now on the chunk is there, and the slot that it was in is free. */
void slots_put(struct slots *s, uint32_t chunk, const struct slot_at *at);

#endif
