/* SPDX-License-Identifier: Apache-2.0 */
/* place.h: which node holds each chunk. Every question about the holder of a chunk goes through
 * these functions, in the core and around it, so that the answers may differ from one view to the
 * next. Nothing here fails. */
#ifndef SHARD_CORE_PLACE_H
#define SHARD_CORE_PLACE_H

#include "core/view.h"
#include "wire/xxh.h"

struct placement {
	/* [chunks_nr] The caller keeps this array for as long as anybody uses the placement, a view
	 * that names it included. */
	const uint16_t *primary;
	uint32_t chunks_nr;
	/* Tells placements apart without their tables. place_of() sets it. */
	uint64_t sum;
};

static inline struct placement place_of(const uint16_t *primary, uint32_t chunks_nr)
{
	return (struct placement){primary, chunks_nr,
				  xxh_sum(primary, chunks_nr * sizeof(*primary), chunks_nr)};
}

static inline bool place_same(const struct placement *a, const struct placement *b)
{
	return a->chunks_nr == b->chunks_nr && a->sum == b->sum;
}

/* The node whose copy of the chunk counts. */
static inline uint16_t place_primary(const struct placement *p, uint32_t chunk)
{
	CHECK(chunk < p->chunks_nr);
	return p->primary[chunk];
}

static inline bool place_holds(const struct placement *p, uint32_t chunk, uint16_t node)
{
	return place_primary(p, chunk) == node;
}

/* Is every chunk held by a member? */
static inline bool place_ok(const struct placement *p, const struct view_members *v)
{
	for (uint32_t c = 0; c < p->chunks_nr; c++)
		if (!view_is_member(v, p->primary[c]))
			return false;
	return p->primary != NULL;
}

static inline uint32_t place_held_nr(const struct placement *p, uint16_t node)
{
	uint32_t nr = 0;

	for (uint32_t c = 0; c < p->chunks_nr; c++)
		nr += place_holds(p, c, node);
	return nr;
}

#endif
