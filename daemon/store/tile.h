/* SPDX-License-Identifier: Apache-2.0 */
/* tile.h: the optimizer over one chunk, so that a kill at any instruction leaves memory that can be
 * repaired. Tiles are runs of a chunk. Each is as it was, or as it will be, or is being changed by
 * a thread that notes how far it came. The memory of struct tiles outlives the process: its owner
 * (warm/meta.c) maps it. */
#ifndef SHARD_TILE_H
#define SHARD_TILE_H

#include "base/status.h"
#include "optim/optim.h"
#include "wire/layout.h"

#define TILE_ELEMS    8192u /* One word says whether all of them are updated. */
#define TILE_UNDO_MAX 257   /* All workers and the loop. */

struct tile_undo { /* What one thread is overwriting in a chunk. */
	uint64_t stamp;
	uint32_t chunk;
	uint32_t spare[13];
	struct optim_undo undo; /* Its positions are elements of the chunk. */
};

struct tiles {
	_Atomic uint64_t *version; /* The stamp of each tile. */
	/* [chunks_nr] The first tile of each chunk, also of those that are held elsewhere now. */
	uint32_t *first;
	struct tile_undo *undo; /* [undo_nr] */
	_Atomic uint8_t *used;  /* [undo_nr] Set while a thread of this process uses it. */
	uint32_t undo_nr;
};

/* What a step does to one chunk. Pointers are to the first element of the chunk. */
struct tile_update {
	const struct layout *layout;
	uint32_t chunk;
	uint32_t grad_bytes, image_bytes; /* Per element. */
	const struct optim_args *args;    /* [groups] */
	const uint8_t *zero;              /* [segments_nr] Nobody has a gradient for it. */
	const uint8_t *grad;
	float *tensor[3]; /* Master and moments. NULL: the chunk has no such tensor. */
	float *keep[3];   /* Where they are kept as they were, for a save. All NULL: nowhere. */
	uint8_t *image;   /* NULL: it is made from the master later. */
	optim_apply *kernel;
	optim_apply_undo *kernel_undo;
};

/* Any thread. Copies the elements [from, to) of the chunk to where they are kept. from: where a
 * tile begins. */
void tile_keep(const struct tile_update *u, uint32_t from, uint32_t to);

/* How many tiles a chunk has. */
uint32_t tile_count(const struct layout *l, uint32_t chunk);
/* Updates each tile of the chunk that does not have the stamp yet. Returns how many elements were
 * kept as they were. Any thread may call it. */
uint64_t tile_apply(const struct tiles *t, uint64_t stamp, const struct tile_update *u);

/* Has every tile of the chunk the stamp? */
bool tile_whole(const struct tiles *t, const struct layout *l, uint32_t chunk, uint64_t stamp);

/* At a start, before tile_apply(). tile_noted() says whether a thread of the process before noted
 * place i while it gave tiles the stamp, and in which chunk. The chunk is not checked.
 * tile_repair() then puts back what was being changed there and, if the record is being applied,
 * finishes the tile and adds to *kept. SHARD_MISMATCH: what is noted is impossible. */
bool tile_noted(const struct tiles *t, uint32_t i, uint64_t stamp, uint32_t *chunk);
enum shard_status tile_repair(const struct tiles *t, uint32_t i, const struct tile_update *u,
			      bool applying, uint64_t *kept, struct err *e);

#endif
