/* SPDX-License-Identifier: Apache-2.0 */
/* store.h: the memory of one model on one node, all of it made at definition. It has the state
 * (master and moments) of the chunks held here, landing slots for the contributions of other nodes,
 * sums, the image, and one arena per trainer. The step transaction decides who may touch which
 * buffer when, not this file. */
#ifndef SHARD_STORE_STORE_H
#define SHARD_STORE_STORE_H

#include "core/place.h"
#include "net/shm.h"
#include "optim/optim.h"
#include "optim/quant.h"
#include "wire/layout.h"

/* Each has a first part, which the store is made with, and room for more (room.h). */
enum store_region { STORE_STATE, STORE_SUMS, STORE_SLOTS, STORE_IMAGES, STORE_REGIONS };

struct store_park { /* Where regions are that outlive the process. */
	enum shard_status (*map)(void *arg, enum store_region what, uint64_t bytes, uint64_t room,
				 struct shm *m, struct err *e);
	void *arg;
	bool there;    /* They are of an earlier process, with what it wrote. */
	uint64_t meta; /* For the budget: the bytes of a further region, of the model itself. */
};

struct store_conf {
	const char *name;            /* The name of the model, for texts. */
	const struct layout *layout; /* It outlives the store. */
	const struct optim_row *optim;
	enum shard_dtype grad; /* The layout knows the dtypes of the image. */
	struct quant grad_codec, image_codec;
	bool feedback;          /* What the codes of gradients lose is kept. */
	struct placement place; /* Its table outlives the store. */
	uint16_t self, nodes_nr;
	/* Which chunks, a bit for each, and how many nodes the memory was made for, if that was an
	 * earlier start. NULL, 0: what .place keeps here, and nodes_nr. */
	const uint8_t *first;
	uint16_t first_nodes;
	uint32_t local_world; /* How many arenas there are. */
	/* So many percent of the chunks that it is made with, the last ones, are away: their state
	 * is in memory for a time only (away.h), of so many chunks at once. */
	uint32_t away_share, away_cache;
	/* What their file keeps of the model for a start after a loss of power. 0: it keeps nothing
	 * for that. */
	uint64_t durable_bytes;
	uint32_t staleness; /* 0 or 1: so many more images, and more halves of each arena. */
	uint32_t max_world; /* How many ranks may keep a blob. Only the budget uses it. */
	enum shm_huge huge;
	const struct store_park *warm; /* NULL: private memory. Used until store_init() returns. */
	/* True: the model is given up. It is read until store_init() returns. NULL: never. */
	const _Atomic bool *given_up;
};

struct store; /* Opaque. */

/* Both take longer the larger the memory is. Any thread may run them. */
enum shard_status store_init(struct store **out, const struct store_conf *conf, struct err *e);
void store_free(struct store **st);
enum shm_pages store_pages(const struct store *st); /* The worst that any memory got. */
uint64_t store_bytes(const struct store *st);       /* All bytes that are mapped. */
uint32_t store_owned(const struct store *st);       /* How many chunks are held here. */
bool store_holds(const struct store *st, uint32_t chunk);

/* Pointers to the first element of a chunk. segment.start and n apply to all of them. CHECKs that
 * the chunk exists, and that it is held here where that is needed. */
float *store_master(struct store *st, uint32_t chunk);
/* The i-th of optim->states. NULL: there are fewer, or all is frozen. */
float *store_state(struct store *st, uint32_t chunk, uint32_t i);
uint32_t store_states(const struct store *st, uint32_t chunk); /* How many there are. */
/* Where the contribution of another node lands, to a chunk held here. */
void *store_slot(struct store *st, uint32_t chunk, uint16_t node);
/* The reduced gradient of a chunk held here. Of another chunk it is the sum over the local
 * ranks, or NULL if there is at most one local rank. */
void *store_sum(struct store *st, uint32_t chunk);
/* Room for codes of all chunks (codes.h). What those of a gradient lose, bf16, or NULL. */
uint8_t *store_codes(struct store *st);
uint8_t *store_image_codes(struct store *st);
uint16_t *store_residual(struct store *st, uint32_t half, uint32_t chunk);
void *store_image(struct store *st, uint32_t slot, uint32_t chunk); /* slot: 0 to staleness. */

/* Says whether a pointer is into the sums or the slots, and where in them. Returns false if it is
 * elsewhere. store_at() goes the other way. It returns NULL if the range is not all inside. */
bool store_where(const struct store *st, const void *at, enum store_region *region,
		 uint64_t *offset);
void *store_at(const struct store *st, uint32_t region, uint64_t offset, uint64_t bytes);
const struct shm *store_region(const struct store *st, enum store_region what);

/* An older image (max_staleness = 1), and one of an image_codec, is not made of the masters alone.
 * These copy a chunk held here from its image to one of two halves of memory that outlives the
 * process, if there is any, and back. Nothing happens without either setting. */
void store_image_keep(struct store *st, uint32_t slot, uint32_t half, uint32_t chunk);
void store_image_again(struct store *st, uint32_t slot, uint32_t half, uint32_t chunk);

/* Image versions (net/shm.h). The counter `open` is odd from the vote until everything is
 * published. */
const struct shm *store_image_shm(const struct store *st);
void store_image_open(struct store *st);  /* Harmless if called twice. */
void store_image_whole(struct store *st); /* Harmless if called twice. */
void store_image_version(struct store *st, uint32_t slot, uint32_t chunk,
			 uint64_t step);      /* A release store, after the bytes. */
void store_image_published(struct store *st); /* Wakes the processes that watch the counter. */
void store_image_generation(struct store *st, uint32_t generation); /* Also clears all versions. */
/* The version of a chunk in an image. */
uint64_t store_image_chunk(const struct store *st, uint32_t slot, uint32_t chunk);
/* The image that SHARD_IMAGE is read from. */
void store_image_newest(struct store *st, uint32_t slot);

/* Arenas, one per local trainer. Each session gets memory that no other process has ever mapped.
 * store_arena_open() gives SHARD_BUSY if none is free. */
enum shard_status store_arena_open(struct store *st, uint32_t *slot, struct err *e);
/* Not before workers and sockets are done with it. */
void store_arena_close(struct store *st, uint32_t slot);
/* An arena that had a session gets new memory, in a thread. store_renewal_run() runs there and does
 * not touch the store. store_renewal_end() then gives the memory to the arena. */
struct store_renewal {
	uint32_t slot;
	char name[128];
	size_t bytes;
	enum shm_huge huge;
	struct shm shm; /* The old memory, then the new one. */
	struct err e;   /* SHARD_OK: there is new memory. */
};
/* Returns false if no arena needs it. */
bool store_renewal_begin(struct store *st, struct store_renewal *r);
void store_renewal_run(struct store_renewal *r);
void store_renewal_end(struct store *st, const struct store_renewal *r);
uint32_t store_renewals(const struct store *st); /* How many have begun and not ended. */
/* Is there an arena that had a session and has none now? */
bool store_renewable(const struct store *st);
const struct shm *store_arena_shm(const struct store *st, uint32_t slot);
/* The half that the gradients of the step go to. */
void *store_arena(struct store *st, uint32_t slot, uint64_t step, uint32_t chunk);

/* Weights before a seal. A range is in elements of the element space, and lies inside one tensor
 * and one chunk. kind is SHARD_MASTER or one of optim->states. SHARD_NOT_FOUND: another node holds
 * the chunk, or the optimizer has no such state. SHARD_RANGE: as layout_range(). */
enum shard_status store_range(struct store *st, enum shard_kind kind, uint64_t first,
			      uint32_t count, float **at, struct err *e);
/* The same checks, of a range that is not touched now. */
enum shard_status store_has_range(const struct store *st, enum shard_kind kind, uint64_t first,
				  uint32_t count, struct err *e);
/* Reads as fp32. kind may also be SHARD_IMAGE, of any chunk. dst must not point into the store. */
enum shard_status store_read(struct store *st, enum shard_kind kind, uint64_t first, uint32_t count,
			     float *dst, struct err *e);
/* Before the weights come (again): from now on no weight of a chunk held here counts as written,
 * and no image has a version. One word of each chunk says so. The other bytes stay as they were
 * until store_clear_chunk(), or until all of them are written. */
void store_reset(struct store *st);
/* A number made of the weights and moments of a chunk held here. Copies with the same bits have the
 * same number. */
uint64_t store_digest(struct store *st, uint32_t chunk);
/* image = master, rounded. A worker may run it. */
void store_seal_chunk(struct store *st, uint32_t slot, uint32_t chunk);

#endif
