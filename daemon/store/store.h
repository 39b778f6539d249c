/* SPDX-License-Identifier: Apache-2.0 */
/* store.h: the memory of one model on one node, all of it made at definition: state (master and moments) of the chunks held here,
 * landing slots for other nodes' contributions, sums, the image and one arena per trainer. Who may touch which buffer when is
 * the step transaction's business, not this file's. */
#ifndef SHARD_STORE_STORE_H
#define SHARD_STORE_STORE_H

#include "net/shm.h"
#include "optim/optim.h"
#include "store/layout.h"

enum store_region { STORE_STATE, STORE_SUMS, STORE_SLOTS, STORE_IMAGES, STORE_REGIONS };

struct store_park { /* where regions are that outlive the process */
	enum shard_status (*map)(void *arg, enum store_region what, uint64_t bytes, struct shm *m, struct err *e);
	void *arg;
	bool there;    /* they are of a process before this one, with what it wrote */
	bool copy;     /* arenas do not outlive it: a chunk's only operand is copied to where sums are */
	uint64_t meta; /* bytes of a region that is the model's own: for the budget */
};

struct store_conf {
	const char *name;            /* of the model, for texts */
	const struct layout *layout; /* outlives the store */
	const struct optim_row *optim;
	enum shard_dtype image, grad;
	const uint16_t *owner; /* [chunks_nr], outlives the store */
	uint16_t self, nodes_nr;
	uint32_t local_world; /* arenas */
	uint32_t staleness;   /* 0 or 1: so many more images, and halves of each arena */
	uint32_t max_world;   /* of the budget: ranks that may keep a blob */
	enum shm_huge huge;
	const struct store_park *park; /* NULL: private memory. Until store_init() returns */
};

struct store; /* opaque */

enum shard_status store_init(struct store **out, const struct store_conf *conf, struct err *e);
void store_free(struct store **st);
enum shm_pages store_pages(const struct store *st); /* the worst that any of its memory got */
uint64_t store_bytes(const struct store *st);       /* mapped, all items */
uint32_t store_owned(const struct store *st);       /* chunks held here */
bool store_holds(const struct store *st, uint32_t chunk);

/* Pointers to a chunk's first element; segment.start and n apply to all of them. CHECK: chunk exists, and is held here where
 * that is needed. */
float *store_master(struct store *st, uint32_t chunk);
float *store_state(struct store *st, uint32_t chunk, uint32_t i); /* i-th of optim->states; NULL: fewer, or all frozen */
void *store_slot(struct store *st, uint32_t chunk,
		 uint16_t node);                   /* where that node's contribution lands; held here, node != self */
void *store_sum(struct store *st, uint32_t chunk); /* any chunk: local sum if not held here, reduced gradient if it is; NULL: never
						    * more than one operand in this configuration, so it has no place */
void *store_image(struct store *st, uint32_t slot, uint32_t chunk); /* slot: which image, at most staleness */

/* Of a pointer into sums or slots: which, and where in it; false: it is elsewhere. And back: NULL if it is not all inside. */
bool store_where(const struct store *st, const void *at, enum store_region *region, uint64_t *offset);
void *store_at(const struct store *st, uint32_t region, uint64_t offset, uint64_t bytes);
const struct shm *store_region(const struct store *st, enum store_region what);

/* max_staleness = 1: the image before the newest cannot be made again from the masters. A chunk held here, from its image to what outlives
 * the process, and back; nothing happens where there is one image, or nothing outlives. */
void store_image_keep(struct store *st, uint32_t slot, uint32_t chunk);
void store_image_again(struct store *st, uint32_t slot, uint32_t chunk);

/* Image versions (net/shm.h). open: odd from the vote until everything is published. */
const struct shm *store_image_shm(const struct store *st);
void store_image_open(struct store *st);                                                  /* harmless twice */
void store_image_whole(struct store *st);                                                 /* harmless twice */
void store_image_version(struct store *st, uint32_t slot, uint32_t chunk, uint64_t step); /* release order: after the bytes */
void store_image_published(struct store *st);                                             /* wakes who watches the counter */
void store_image_generation(struct store *st, uint32_t generation);                       /* all versions: none */
uint64_t store_image_chunk(const struct store *st, uint32_t slot, uint32_t chunk);        /* its version */
void store_image_newest(struct store *st, uint32_t slot); /* the one that SHARD_IMAGE is read from */

/* Arenas: one per local trainer. Each session gets memory that no other process has ever mapped. */
enum shard_status store_arena_open(struct store *st, uint32_t *slot, struct err *e); /* SHARD_BUSY: all local_world in use */
void store_arena_close(struct store *st, uint32_t slot); /* not before workers and sockets have done with it */
const struct shm *store_arena_shm(const struct store *st, uint32_t slot);
void *store_arena(struct store *st, uint32_t slot, uint64_t step, uint32_t chunk); /* the half that the step's gradients go to */

/* Weights before a seal. Ranges are elements of the element space, inside one tensor and one chunk. kind: SHARD_MASTER or one of
 * optim->states. SHARD_NOT_FOUND: the chunk is held elsewhere or the optimizer has no such state; SHARD_RANGE as layout_range. */
enum shard_status store_range(struct store *st, enum shard_kind kind, uint64_t first, uint32_t count, float **at, struct err *e);
/* As fp32; SHARD_IMAGE too, from any chunk. dst must not be a pointer into the store. */
enum shard_status store_read(struct store *st, enum shard_kind kind, uint64_t first, uint32_t count, float *dst, struct err *e);
void store_reset(struct store *st); /* no master written, moments zero, image without versions: before the weights come (again) */

struct store_missing {
	uint64_t unwritten, nonfinite; /* elements of master */
	uint64_t first;                /* first such element of the element space; UINT64_MAX: none */
};
void store_missing(struct store *st, uint32_t chunk, struct store_missing *m); /* scans; a worker may run it. Adds to *m */
void store_missing_init(struct store_missing *m);
void store_seal_chunk(struct store *st, uint32_t slot, uint32_t chunk); /* image = master, rounded; a worker may run it */

#endif
