/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h: which slot each chunk that is away is in: of its file, or of the memory of a device. One
 * word of a chunk says so, in memory that outlives the process where the store does (away.h). A
 * chunk has a slot of its own as long as the slots are there, also while nothing of it counts. Loop
 * thread only. */
#ifndef SHARD_STORE_SLOTS_H
#define SHARD_STORE_SLOTS_H

#include "store/store.h"
#include "store/superblock.h"

#define SLOT_NONE     UINT32_MAX
#define SLOT_SEQ_BITS 40 /* Of the word of a chunk, below the slot + 1. */
/* What a start may find. Whoever counts on from there does not come to the end. */
#define SLOT_SEQ_FOUND_MAX (1ull << (SLOT_SEQ_BITS - 1))

struct slots {
	const struct store *store;
	/* Of which chunks, by their number among those that are away. */
	uint32_t from, to;
	uint32_t *of;   /* [chunks_nr] The slot that no other chunk gets. SLOT_NONE: none. */
	uint32_t *free; /* [nr] */
	uint32_t nr, free_nr;
	uint64_t seq; /* Of the last write. */
	/* [chunks_nr] Slots that do not become free, because a superblock names them: of the one
	 * that counts, and of the one that is being written. NULL: there are none. */
	uint32_t *kept, *next;
};

struct slot_at {
	uint32_t slot; /* SLOT_NONE: nothing of the chunk is in the file. */
	uint64_t seq;  /* Of the write that brought it there. */
};

/* What a word says. */
static inline struct slot_at slot_at_of(uint64_t word)
{
	return (struct slot_at){(uint32_t)(word >> SLOT_SEQ_BITS) - 1,
				word & ((1ull << SLOT_SEQ_BITS) - 1)};
}

/* nr slots for the chunks that are the from-th to the last before `to` of those that are away.
 * SHARD_MISMATCH: what an earlier process left cannot be. On failure nothing is left. */
enum shard_status slots_open(struct slots *s, const struct store *st, uint32_t from, uint32_t to,
			     uint32_t nr, struct err *e);
/* From now on superblocks name slots: that which counts has these cells. NULL: there is none. */
enum shard_status slots_keep(struct slots *s, const struct super_cell *cell, uint32_t cells_nr,
			     struct err *e);
/* Fills a cell for each chunk that is away. slots_kept() follows when that superblock counts: what
 * only the one before has named is free then. */
void slots_name(struct slots *s, struct super_cell *cell);
void slots_kept(struct slots *s);
void slots_close(struct slots *s);
struct slot_at slots_at(const struct slots *s, uint32_t chunk);
/* For a write. There is always one if `nr` has room for the writes under way. */
struct slot_at slots_take(struct slots *s);
void slots_give(struct slots *s, uint32_t slot); /* What was written there counts no more. */
/* It is written: from now on the chunk is there, and the slot that it was in is free. */
void slots_put(struct slots *s, uint32_t chunk, const struct slot_at *at);

#endif
