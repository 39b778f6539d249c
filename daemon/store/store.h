/* SPDX-License-Identifier: Apache-2.0 */
/* store.h: the memory of one model on one node, all of it made at definition: state (master and
 * moments) of the chunks held here, landing slots for other nodes' contributions, sums, the image
 * and one arena per trainer. Who may touch which buffer when is the step transaction's business,
 * not this file's. */
#ifndef SHARD_STORE_STORE_H
#define SHARD_STORE_STORE_H

#include "core/view.h"
#include "net/shm.h"
#include "optim/optim.h"
#include "wire/layout.h"

enum store_region { STORE_STATE, STORE_SUMS, STORE_SLOTS, STORE_IMAGES, STORE_REGIONS };

struct store_park { /* where regions are that outlive the process */
	enum shard_status (*map)(void *arg, enum store_region what, uint64_t bytes, struct shm *m,
				 struct err *e);
	void *arg;
	bool there;    /* they are of a process before this one, with what it wrote */
	uint64_t meta; /* bytes of a region that is the model's own: for the budget */
};

struct store_conf {
	const char *name;            /* of the model, for texts */
	const struct layout *layout; /* outlives the store */
	const struct optim_row *optim;
	enum shard_dtype image, grad;
	struct placement place; /* its table outlives the store */
	uint16_t self, nodes_nr;
	uint32_t local_world; /* arenas */
	uint32_t staleness;   /* 0 or 1: so many more images, and halves of each arena */
	uint32_t max_world;   /* of the budget: ranks that may keep a blob */
	enum shm_huge huge;
	const struct store_park *warm; /* NULL: private memory. Until store_init() returns */
	const _Atomic bool *given_up; /* Nobody wants it any more. Likewise; NULL: nobody says so */
};

struct store; /* opaque */

/* Both take as long as the memory is large, and any thread may run them. */
enum shard_status store_init(struct store **out, const struct store_conf *conf, struct err *e);
void store_free(struct store **st);
enum shm_pages store_pages(const struct store *st); /* the worst that any of its memory got */
uint64_t store_bytes(const struct store *st);       /* mapped, all items */
uint32_t store_owned(const struct store *st);       /* chunks held here */
bool store_holds(const struct store *st, uint32_t chunk);

/* Pointers to a chunk's first element; segment.start and n apply to all of them. CHECK: chunk
 * exists, and is held here where that is needed. */
float *store_master(struct store *st, uint32_t chunk);
float *store_state(struct store *st, uint32_t chunk,
		   uint32_t i); /* i-th of optim->states; NULL: fewer, or all frozen */
void *store_slot(struct store *st, uint32_t chunk,
		 uint16_t node); /* where that node's contribution lands; held here, node != self */
void *store_sum(struct store *st,
		uint32_t chunk); /* reduced gradient of a chunk held here, else the local ranks'
				  * sum; NULL: held elsewhere, and never more than one local rank */
void *store_image(struct store *st, uint32_t slot,
		  uint32_t chunk); /* slot: which image, at most staleness */

/* Of a pointer into sums or slots: which, and where in it; false: it is elsewhere. And back: NULL
 * if it is not all inside. */
bool store_where(const struct store *st, const void *at, enum store_region *region,
		 uint64_t *offset);
void *store_at(const struct store *st, uint32_t region, uint64_t offset, uint64_t bytes);
const struct shm *store_region(const struct store *st, enum store_region what);

/* max_staleness = 1: the image before the newest cannot be made again from the masters. A chunk
 * held here, from its image to what outlives the process, and back; nothing happens where there is
 * one image, or nothing outlives. */
void store_image_keep(struct store *st, uint32_t slot, uint32_t chunk);
void store_image_again(struct store *st, uint32_t slot, uint32_t chunk);

/* Image versions (net/shm.h). open: odd from the vote until everything is published. */
const struct shm *store_image_shm(const struct store *st);
void store_image_open(struct store *st);  /* harmless twice */
void store_image_whole(struct store *st); /* harmless twice */
void store_image_version(struct store *st, uint32_t slot, uint32_t chunk,
			 uint64_t step);      /* release order: after the bytes */
void store_image_published(struct store *st); /* wakes who watches the counter */
void store_image_generation(struct store *st, uint32_t generation); /* all versions: none */
uint64_t store_image_chunk(const struct store *st, uint32_t slot, uint32_t chunk); /* its version */
void store_image_newest(struct store *st,
			uint32_t slot); /* the one that SHARD_IMAGE is read from */

/* Arenas: one per local trainer. Each session gets memory that no other process has ever mapped. */
enum shard_status store_arena_open(struct store *st, uint32_t *slot,
				   struct err *e); /* SHARD_BUSY: none is free */
void store_arena_close(struct store *st,
		       uint32_t slot); /* not before workers and sockets have done with it */
/* An arena that had a session gets new memory, in a thread: it is given to store_renewal_run(),
 * which sees nothing of the store, and then comes back. */
struct store_renewal {
	uint32_t slot;
	char name[128];
	size_t bytes;
	enum shm_huge huge;
	struct shm shm; /* The memory that goes; then that which came. */
	struct err e;   /* SHARD_OK: some came. */
};
bool store_renewal_begin(struct store *st, struct store_renewal *r); /* false: there is none */
void store_renewal_run(struct store_renewal *r);
void store_renewal_end(struct store *st, const struct store_renewal *r);
uint32_t store_renewals(const struct store *st); /* begun, and not back */
bool store_renewable(const struct store *st);    /* an arena had a session, and has none now */
const struct shm *store_arena_shm(const struct store *st, uint32_t slot);
void *store_arena(struct store *st, uint32_t slot, uint64_t step,
		  uint32_t chunk); /* the half that the step's gradients go to */

/* Weights before a seal. Ranges are elements of the element space, inside one tensor and one chunk.
 * kind: SHARD_MASTER or one of optim->states. SHARD_NOT_FOUND: the chunk is held elsewhere or the
 * optimizer has no such state; SHARD_RANGE as layout_range. */
enum shard_status store_range(struct store *st, enum shard_kind kind, uint64_t first,
			      uint32_t count, float **at, struct err *e);
/* As fp32; SHARD_IMAGE too, from any chunk. dst must not be a pointer into the store. */
enum shard_status store_read(struct store *st, enum shard_kind kind, uint64_t first, uint32_t count,
			     float *dst, struct err *e);
/* No weight of a chunk held here is written, and no image has a version: before the weights come
 * (again). One word of each chunk says so; the rest of its bytes stay as they were until
 * store_clear_chunk(), or until all of them are written. */
void store_reset(struct store *st);
/* Of a chunk held here: each weight counts as unwritten by itself from now on, moments are zero.
 * Before the first of its weights is written. */
void store_clear_chunk(struct store *st, uint32_t chunk);
bool store_void(struct store *st, uint32_t chunk); /* Reset, and not cleared or filled since. */

struct store_missing {
	uint64_t unwritten, nonfinite; /* elements of master */
	uint64_t first; /* first such element of the element space; UINT64_MAX: none */
};
void store_missing(struct store *st, uint32_t chunk,
		   struct store_missing *m); /* scans; a worker may run it. Adds to *m */
void store_missing_all(const struct store *st, uint32_t chunk,
		       struct store_missing *m); /* as if nothing of the chunk were written */
void store_missing_init(struct store_missing *m);
void store_seal_chunk(struct store *st, uint32_t slot,
		      uint32_t chunk); /* image = master, rounded; a worker may run it */

#endif
