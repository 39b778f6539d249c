/* SPDX-License-Identifier: Apache-2.0 */
/* hold.h: the state of chunks as of one step, for a save, while later steps change them. A chunk is
 * copied to spare memory before its first change, unless the save has read all of it. Each store
 * has one hold, which is off most of the time. It never makes anybody wait for a disk: where a
 * change finds no spare memory, the hold is broken, and the save learns that it is not whole. */
#ifndef SHARD_STORE_HOLD_H
#define SHARD_STORE_HOLD_H

#include "store/store.h"

struct hold;

/* As parts of store_init() and store_free(). */
enum shard_status hold_init(struct store *st, struct err *e);
void hold_deinit(struct store *st);

/* Loop thread. A place has room for one chunk. They stay between two holds. */
uint64_t hold_place_bytes(const struct store *st);
uint32_t hold_places(const struct store *st); /* How many there are. */
/* bytes: as of hold_begin(). How many chunks may need a place: steps change them. */
uint32_t hold_wants(const struct store *st, const uint64_t *bytes);
/* Loop thread, while no hold is on: there are no places any more. The caller unmaps so many bytes,
 * which may be 0. */
uint64_t hold_detach(struct store *st, void **at);
/* Loop thread, while nobody changes the chunks. bytes: [chunks_nr] how many of each are to be read
 * by hold_read(), 0: none. more: so many places are added, or none if there is no memory. */
void hold_begin(struct store *st, const uint64_t *bytes, uint32_t more);
bool hold_on(const struct store *st); /* Between hold_begin() and hold_end(). */
/* Any thread. Each chunk that was not read has a place. From then on every change may come. */
bool hold_covered(const struct store *st);
/* Any thread. Nothing is read any more. False: the hold was broken, or not all was read. */
bool hold_end(struct store *st);

/* Loop thread. Something else than a step is to change the chunk, so it is not held any more. */
void hold_break(struct store *st, uint32_t chunk);
/* Any thread, before it changes the chunk, which is in memory. True: it copies its master and
 * moments to place[] piece by piece, each piece before it changes, and then calls hold_kept().
 * Until then nobody reads the chunk. */
bool hold_keep(struct store *st, uint32_t chunk, float *place[3]);
void hold_kept(struct store *st, uint32_t chunk);
void hold_lost(struct store *st, uint32_t chunk); /* Or so: it could not be copied. */

/* Reads from a chunk as it was. Several threads at a time may do that, not the loop. */
struct hold_read {
	uint32_t chunk, array; /* array: 0 for the master. */
	uint64_t bytes;        /* So many of it are read. */
	/* Gets where the array begins. It is not called if the hold is broken. */
	void (*with)(void *ctx, float *at);
	void *ctx;
};
/* Is it in a place? If it is away, it need not be brought then. */
bool hold_copied(const struct store *st, uint32_t chunk);
/* at: where the array is, if it was not copied. */
void hold_read(struct store *st, const struct hold_read *r, float *at);

#endif
