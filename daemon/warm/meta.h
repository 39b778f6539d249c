/* SPDX-License-Identifier: Apache-2.0 */
/* meta.h: what must outlive the process of a model beside its tensors, in one region (warm.h): its
 * definition, its core twice, what is applied, where reduced gradients are that were voted for,
 * which tiles have which step, what is being overwritten, blobs. A kill keeps every store that was
 * executed, in order; each thing here is whole after a kill between any two of them. */
#ifndef SHARD_META_H
#define SHARD_META_H

#include "core/record.h"
#include "net/shm.h"
#include "optim/optim.h"
#include "store/store.h"

#include <stdbool.h>

#define META_TILE_ELEMS 8192u /* of which one word says whether they are updated */
#define META_UNDO_MAX   257   /* every worker, and the loop */

struct meta_conf {
	const struct layout *layout;
	struct placement place;
	uint16_t self;
	uint32_t undo_nr;
	uint64_t core_bytes, spec_bytes, blobs_bytes;
	uint64_t incarnation; /* of the memory: a name that no other has; meta_make() only */
};

/* of an unsealed model: what a restore brought here, see ckpt/loaded.c */
enum meta_load {
	META_LOAD_NONE,
	META_LOAD_READING, /* some of it */
	META_LOAD_READ,    /* all of it */
};

struct meta_mark {         /* what the weights here are */
	struct core_id id; /* of the last record that was begun to be applied */
	uint64_t step, content_step, content_old;
	uint64_t stamp; /* of that record's tiles: grows with each applied one, never used twice */
	uint32_t cleared; /* masters written before this generation are gone */
	uint32_t load;    /* enum meta_load */
};

struct meta_fact { /* of a chunk that is voted for */
	uint32_t region, reserved;
	uint64_t offset; /* bytes, in enum store_region */
};

struct meta_undo { /* of one thread: where it is in a chunk, with what it overwrites there */
	uint64_t stamp;
	uint32_t chunk;
	uint32_t spare[13];
	struct optim_undo undo; /* positions: elements of the chunk */
};

struct meta_found { /* what a start before this one left, before it is known whether it can be */
	struct shm shm;
	void *spec; /* a copy of the definition, packed; free() */
	size_t spec_bytes;
	uint64_t incarnation; /* the name that the memory got when it was made */
	uint32_t undo_nr;
	uint8_t from[16];
	const void *core; /* what its core saved last, in .shm; NULL: not where it can be */
	size_t core_bytes;
};

struct meta_head;
struct meta {
	struct shm shm; /* .base NULL: nothing outlives the process */
	struct meta_head *head;
	struct meta_mark mark;     /* as it counts */
	_Atomic uint64_t *version; /* [tiles_nr] stamp */
	uint32_t *tile_at; /* [chunks_nr] first tile of a chunk; those held elsewhere have none */
	struct core_id *facts_id; /* whose .fact and .zero are */
	struct meta_fact *fact;   /* [chunks_nr] */
	uint8_t *zero;            /* [segments_nr] */
	void *blobs;
	uint32_t tiles_nr, undo_nr;
	_Atomic uint8_t *undo_used; /* [undo_nr] by a job of this process */
};

/* What it has outlives the process. */
bool meta_persistent(const struct meta *m);
uint64_t meta_bytes(const struct meta_conf *c);
uint32_t meta_tiles(const struct layout *l, uint32_t chunk);
/* m->shm is mapped, zero. */
enum shard_status meta_make(struct meta *m, const struct meta_conf *c, uint32_t model,
			    const void *spec, struct err *e);
/* found->shm is mapped. Fills the rest: SHARD_MISMATCH says what is wrong. Then, with it in m->shm,
 * the same model again. */
enum shard_status meta_peek(struct meta_found *found, uint32_t model, struct err *e);
enum shard_status meta_again(struct meta *m, const struct meta_conf *c, struct err *e);
void meta_free(struct meta *m);                      /* unmaps */
void meta_from(struct meta *m, const uint8_t *uuid); /* of the coordinator that defined it */

void *meta_core_next(struct meta *m);        /* the buffer that does not count */
void meta_core_switch(struct meta *m);       /* it counts from now on */
const void *meta_core(const struct meta *m); /* the one that counts */
void meta_mark(struct meta *m,
	       const struct meta_mark *mark); /* counts when this returns; whole at any time */

struct meta_undo *meta_undo(const struct meta *m, uint32_t i);
uint32_t meta_undo_take(struct meta *m); /* waits for one that is free */
void meta_undo_give(struct meta *m, uint32_t i);

#endif
