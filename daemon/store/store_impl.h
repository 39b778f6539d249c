/* SPDX-License-Identifier: Apache-2.0 */
/* store_impl.h: what a store is made of. Private to this folder. */
#ifndef SHARD_STORE_STORE_IMPL_H
#define SHARD_STORE_STORE_IMPL_H

#include "store/sizes.h"

/* Both are NaNs. STORE_UNWRITTEN in a weight: nobody has written it. STORE_VOID in the first weight
 * of a chunk: nobody has written any weight of the chunk. */
#define STORE_UNWRITTEN 0x7fb5eadeu
#define STORE_VOID      0x7fb5eadfu

#define NOT_HELD   UINT64_MAX
#define NO_VERSION UINT64_MAX

enum arena_use {
	ARENA_FRESH,   /* No other process has mapped it. */
	ARENA_USED,    /* A session has it. */
	ARENA_SPENT,   /* A session had it. */
	ARENA_RENEWING /* It was spent, and a thread makes new memory for it. */
};

struct arena_slot {
	enum arena_use use;
	struct shm shm;
};

struct store {
	struct store_conf conf;
	struct store_sizes sizes;
	struct shm region[STORE_REGIONS], image;
	/* [chunks_nr] The first element, among the chunks that the store was made with, or
	 * NOT_HELD. here_at: among those of them that are not away. */
	uint64_t *held_at, *here_at;
	struct store_away *away; /* NULL: no chunk is. Owner: away.c. */
	struct hold *hold;       /* Owner: hold.c. */
	/* [chunks_nr] The first element of its moments. NOT_HELD: there are none in the first part,
	 * also because all of it is frozen. */
	uint64_t *moment_at;
	/* [chunks_nr] The first element, among the other chunks, or NOT_HELD. */
	uint64_t *else_at;
	/* [chunks_nr] The first byte of its image among those of the chunks that the store was made
	 * with. */
	uint64_t *image_at;
	/* [chunks_nr / 8] A bit for each chunk. held: it is held here now. first: the store was
	 * made with it. given: it gave its pages back (of those in first), or was given at all. */
	uint8_t *held, *first, *given;
	uint16_t first_nodes; /* Of how many nodes there are slots in the first part. */
	bool parked;          /* It outlives the process. */
	bool pinned;          /* The first part keeps its pages. */
	/* owned: how many chunks are held here. newest: the newest image. */
	uint32_t owned, newest;
	struct arena_slot arena[];
};

static inline uint32_t states_nr(const struct store *st, uint32_t chunk)
{
	return layout_trained(st->conf.layout, chunk) ? st->conf.optim->states_nr : 0;
}

/* In store.c, for room.c: where arrays of a chunk lie in the first part. NULL: not there. */
void *store_first_state(const struct store *st, uint32_t chunk, uint32_t i); /* 0: the master. */
void *store_first_slot(const struct store *st, uint32_t chunk, uint32_t i);
void *store_first_sum(const struct store *st, uint32_t chunk);
void *store_first_image(const struct store *st, uint32_t chunk, uint32_t half);
bool store_has_room(const struct store *st);
void store_void_set(struct store *st, uint32_t chunk);
/* In room.c, for store.c: an array of a chunk in the room, and whether a chunk that is held has all
 * of a range there. */
void *store_room_at(const struct store *st, enum store_region what, uint32_t chunk, uint32_t array);
bool store_room_has(const struct store *st, enum store_region what, uint64_t offset,
		    uint64_t bytes);
/* Touches what is held of memory of a start before. */
enum shard_status store_room_again(struct store *st, struct err *e);

#endif
