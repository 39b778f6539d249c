/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.h: the bytes of each mapping of a store, which store.c maps and budget.c adds up. Private
 * to this folder. */
#ifndef SHARD_STORE_SIZES_H
#define SHARD_STORE_SIZES_H

#include "store/store.h"

struct store_sizes {
	uint64_t held_elems; /* The elements of the chunks that this node holds. */
	uint64_t here_elems; /* Of those that are not away. */
	/* The elements of those chunks in which not all is frozen. */
	uint64_t trained_elems;
	uint64_t held_image; /* The bytes of the image of those chunks. */
	/* In fp32. moment is one state tensor of the optimizer, for trained_elems. */
	uint64_t master, moment;
	/* Of the chunks that are away: how many there are, how many are in memory at a time, what
	 * one of them takes there and on the disk, and all that the region of the state has of
	 * them. */
	uint32_t away_nr, away_buffers;
	uint64_t away_slot, away;
	uint64_t slot;    /* The contribution of one other node to the chunks held here. */
	uint64_t reduced; /* The reduced gradients of the chunks held here. */
	/* The local sums of all other chunks. 0: there is at most one local trainer. */
	uint64_t sums;
	/* With max_staleness or an image_codec, and memory that outlives the process: copies of two
	 * images, of the chunks held here. Trainers do not see them. */
	uint64_t images;
	/* The codes of all chunks, of gradients and of images, and what the former lose, of which
	 * there are two. */
	uint64_t codes, image_codes, residual;
	/* One image, and one gradient. There are max_staleness more of each. */
	uint64_t image_half, arena_half;
	uint64_t image, arena;
};

/* In room.c: the address space that a region has for chunks that come, and what the budget counts
 * for one of them. */
uint64_t store_room_bytes(const struct store_conf *conf, enum store_region what);
uint64_t store_room_counted(const struct store_conf *conf, enum store_region what, uint32_t chunk);
/* The same for the slots, of nodes that came later, of a chunk that the store was made with. */
uint64_t store_room_later(const struct store_conf *conf, uint32_t chunk);
/* How many bytes of it are of chunks whose arrays are whole huge pages. */
uint64_t store_room_huge(const struct store_conf *conf, enum store_region what);
/* In store.c: is it in the first part? */
bool store_conf_first(const struct store_conf *conf, uint32_t chunk);
bool store_conf_away(const struct store_conf *conf, uint32_t first, uint32_t firsts);
uint32_t store_conf_firsts(const struct store_conf *conf); /* How many chunks are in it. */
/* All of the region of the state, of an optimizer with so many tensors. */
static inline uint64_t store_state_bytes(const struct store_sizes *s, uint32_t states)
{
	return s->master + s->moment * states + s->away;
}
/* All of the region of the sums: the codes and what they lose come behind them. */
static inline uint64_t store_sums_bytes(const struct store_sizes *s)
{
	return s->reduced + s->sums + s->codes + 2 * s->residual + s->image_codes;
}
/* Are copies of two images kept? */
static inline bool store_keeps_images(const struct store_conf *conf, bool parked)
{
	return parked && (conf->staleness > 0 || conf->image_codec.kind != QUANT_NONE);
}
void store_sizes(struct store_sizes *s, const struct store_conf *conf);

#endif
