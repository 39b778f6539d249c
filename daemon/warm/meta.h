/* SPDX-License-Identifier: Apache-2.0 */
/* meta.h: what must outlive the process beside a model's tensors, in one region (see warm.h). This
 * is the model's definition, two copies of its core, the tables of placement that they name, what
 * was applied, where the reduced gradients
 * are that were voted for, the step of each tile, what is being overwritten, and blobs. A kill
 * keeps all stores that were executed, in order. Everything here is whole after a kill between any
 * two stores. */
#ifndef SHARD_META_H
#define SHARD_META_H

#include "core/record.h"
#include "net/shm.h"
#include "optim/optim.h"
#include "store/store.h"
#include "store/superblock.h"
#include "store/tile.h"

#include <stdbool.h>

struct meta_conf {
	const struct layout *layout;
	struct placement place;
	uint16_t self, nodes_nr;
	uint32_t undo_nr;
	uint64_t core_bytes, spec_bytes, blobs_bytes;
	/* Of the memory: a name that no other memory has. For meta_make() only. */
	uint64_t incarnation;
};

/* What a restore has read here, while the model is unsealed. See ckpt/loaded.c. */
enum meta_load {
	META_LOAD_NONE,
	META_LOAD_READING, /* In part. */
	META_LOAD_READ,    /* Completely. */
	/* Of sealed weights: no later process takes them over, because the file goes back to the
	 * step before the core's record (core/back.h). */
	META_LOAD_BACK,
	META_LOAD_HERE, /* The same, but to the step of that record. */
};

struct meta_residual { /* What the codes of the last applied step have lost here. */
	/* That step. It is void in another generation, and after another step: then nothing was
	 * lost here. */
	uint64_t step;
	uint32_t generation;
	uint32_t half; /* Where it is: store_residual(). */
	double scale;  /* The loss scale that it has in it. */
};

struct meta_mark {         /* What the weights here are. */
	struct core_id id; /* Of the last record whose applying has begun. */
	uint64_t step, content_step, content_old;
	/* Stamp of that record's tiles. It grows with each applied one and is never used twice. */
	uint64_t stamp;
	uint32_t cleared; /* Masters written before this generation were reset. */
	uint32_t load;    /* enum meta_load */
	struct meta_residual residual;
};

struct meta_fact { /* Where the gradient of a chunk is that was voted for. */
	uint32_t region, reserved;
	uint64_t offset; /* In bytes, within that enum store_region. */
};

struct meta_found { /* What the start before left, before it is known whether it can be used. */
	struct shm shm;
	void *spec; /* A copy of the packed definition; the caller frees it. */
	size_t spec_bytes;
	uint64_t incarnation; /* The name that the memory got when it was made. */
	uint32_t undo_nr;
	bool odd;       /* meta_void() was called for it. */
	bool goes_back; /* META_LOAD_BACK: to .back_step. */
	uint64_t back_step;
	uint8_t from[16];
	const void *core; /* What the core saved last, inside shm. NULL: it lies outside. */
	size_t core_bytes;
	/* After a loss of power: what a file kept of it. All memory is new, and .shm is from there.
	 * NULL: the memory is that of the start before. */
	const struct super_found *super;
};

struct meta_head;
struct arena;
struct meta {
	struct shm shm; /* .base NULL: the memory does not outlive the process. */
	struct meta_head *head;
	struct meta_mark mark;    /* A copy of the one that counts. */
	struct tiles tiles;       /* The state of each tile. */
	struct core_id *facts_id; /* The attempt that fact and zero are of. */
	struct meta_fact *fact;   /* [chunks_nr] */
	uint8_t *zero;            /* [segments_nr] */
	void *blobs;
};

/* True: this memory outlives the process. */
bool meta_persistent(const struct meta *m);
uint64_t meta_bytes(const struct meta_conf *c);
/* How many places so many threads need, which never change a chunk together. */
uint32_t meta_undo_nr(const struct layout *l, uint32_t threads);
/* m->shm has to be mapped and zero. */
enum shard_status meta_make(struct meta *m, const struct meta_conf *c, uint32_t model,
			    const void *spec, struct err *e);
/* meta_peek() needs found->shm mapped and fills the rest. meta_again() then takes up the same
 * model, with that memory in m->shm. SHARD_MISMATCH says what is wrong. */
enum shard_status meta_peek(struct meta_found *found, uint32_t model, struct err *e);
enum shard_status meta_again(struct meta *m, const struct meta_conf *c, struct err *e);
/* What of the region has to outlive a loss of power, beside chunks that all have one step: all but
 * what says which tiles of them have it. meta_pack() copies that at such a moment. For a start,
 * meta_packed_region() says how large the region was, and meta_unpack() fills a new one with zeros
 * in it. 0 and SHARD_MISMATCH: it cannot be. */
uint64_t meta_packed_bytes(const struct meta_conf *c);
void meta_pack(const struct meta *m, void *to);
uint64_t meta_packed_region(const void *packed, uint64_t bytes);
enum shard_status meta_unpack(const struct shm *region, const void *packed, uint64_t bytes,
			      struct err *e);
bool meta_packed_mark(const void *packed, uint64_t bytes, struct meta_mark *mark); /* As below. */
/* The mark that counts. False: what says which one that is cannot be. */
bool meta_found_mark(const struct meta_found *found, struct meta_mark *mark);
/* Which chunks the memory was made with, a bit for each, and for how many nodes (store_conf.first).
 * NULL: what says so lies outside. */
const uint8_t *meta_first(const struct meta_found *found, uint32_t chunks_nr, uint16_t *nodes_nr);
void meta_free(struct meta *m); /* Also unmaps m->shm. */
/* No later process takes this memory over: meta_peek() refuses it. */
void meta_void(struct meta *m);
bool meta_voided(const struct meta *m);
void meta_from(struct meta *m, const uint8_t *uuid); /* UUID of the coordinator that defined it. */

/* Keeps the tables of a placement that the next core names. Call it before meta_core_switch(). The
 * tables of the core that counts stay. defined: the sum of those of the definition, which need no
 * room here. */
void meta_tables(struct meta *m, const struct placement *p, uint64_t defined);
/* Reads the tables of this sum, of so many chunks and nodes, into the arena, which needs
 * meta_tables_bytes(). SHARD_MISMATCH: they are not there, or not whole. */
enum shard_status meta_found_tables(const struct meta_found *found, uint64_t sum,
				    uint32_t chunks_nr, uint16_t nodes_nr, struct arena *a,
				    struct placement *p, struct err *e);
size_t meta_tables_bytes(uint32_t chunks_nr);

void *meta_core_next(struct meta *m);        /* The copy that does not count. */
void meta_core_switch(struct meta *m);       /* That copy counts from now on. */
const void *meta_core(const struct meta *m); /* The copy that counts. */
/* Counts when this returns. A kill leaves the old mark or the new one. */
void meta_mark(struct meta *m, const struct meta_mark *mark);

#endif
