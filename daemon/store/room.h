/* SPDX-License-Identifier: Apache-2.0 */
/* room.h: more and less memory for chunks of a store, while its model trains. A chunk that comes
 * gets pages in the room behind the memory that the store was made with, or where it was before. */
#ifndef SHARD_STORE_ROOM_H
#define SHARD_STORE_ROOM_H

#include "store/store.h"

struct store_bytes { /* As the budget counts them. */
	uint64_t of[STORE_REGIONS], all;
	uint64_t parked; /* The part of all that outlives the process. */
};

struct store_room {
	const struct store *store;
	const uint32_t *chunk; /* Not held yet. The caller keeps the array. */
	uint32_t chunks_nr;
	struct store_bytes need; /* store_room_plan() fills it. */
	struct err e;            /* store_room_make(): SHARD_OK (status 0): there is memory. */
};

/* Counts what the chunks take. No page is made, and no CHECK forbids to plan without making. */
void store_room_plan(struct store_room *r, const struct store *st, const uint32_t *chunk,
		     uint32_t nr);
/* Makes and touches the pages. Any thread may run it, while the loop uses other chunks. A failure
 * leaves no page. SHARD_BUDGET: there is no memory, or no address space for it. */
void store_room_make(struct store_room *r);
/* The loop gives back what was made and is not taken, because the model or the move ended. */
void store_room_drop(struct store_room *r);
/* The chunks are held from now on, and void (store_void()). Images and their versions stay. */
void store_room_take(struct store *st, const struct store_room *r);
/* The chunk is not held any more, and no thread uses it. Adds the bytes that the budget gets back
 * to *back. They are those of the plan. A chunk that the store was made with gives back the whole
 * pages that no other chunk lies in, none of reserved huge pages, and none after store_room_pin().
 */
void store_room_give(struct store *st, uint32_t chunk, struct store_bytes *back);
/* Slots for the gradients of nodes that come: each chunk that is held here, or keeps its pages
 * meanwhile, gets as many more. No other room may be under way. The rest is as above. */
struct store_nodes {
	const struct store *store;
	uint16_t nodes_nr; /* There is more than the store was last made for. */
	struct store_bytes need;
	struct err e;
};
void store_nodes_plan(struct store_nodes *r, const struct store *st, uint16_t nodes_nr);
void store_nodes_make(struct store_nodes *r);
void store_nodes_drop(struct store_nodes *r);
void store_nodes_take(struct store *st, const struct store_nodes *r);
uint16_t store_nodes(const struct store *st); /* How many nodes have slots, this one included. */
/* The memory that the store was made with is registered with a device. It keeps its pages. */
void store_room_pin(struct store *st);
/* Was the store made with this chunk? Then it lies where every node can compute it. */
bool store_room_first(const struct store *st, uint32_t chunk);
/* What a device registers of the first part: the slots of a node, or the sums of the chunks that
 * the store was not made with. NULL: there are none. */
void *store_first_slots(const struct store *st, uint16_t node, uint64_t *bytes);
void *store_first_sums(const struct store *st, uint64_t *bytes);

#endif
