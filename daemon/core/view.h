/* SPDX-License-Identifier: Apache-2.0 */
/* view.h: which nodes are members, which one coordinates, and which node holds each chunk. Every
 * loop over nodes and every question about the holder of a chunk goes through these functions, in
 * the core and around it, so that the answers may differ from one view to the next. A node is named
 * by its slot, a small number that stays the same for as long as it is a member. Slots may have
 * gaps. Nothing here fails. */
#ifndef SHARD_CORE_VIEW_H
#define SHARD_CORE_VIEW_H

#include "core/record.h"

#include "base/check.h"

#include <stdbool.h>
#include <stdint.h>

struct view_members {
	uint64_t nodes; /* A bit for each slot that a member has. */
	/* The slot of the coordinator. It has 64 bits so that the struct has no padding. */
	uint64_t coordinator;
};

struct placement {
	/* [chunks_nr] The caller keeps this array for as long as it uses the placement. */
	const uint16_t *primary;
	uint32_t chunks_nr;
};

_Static_assert(CORE_NODES_MAX <= 64, "members are bits of a word");

/* The first nodes_nr slots are taken. */
static inline struct view_members view_first(uint16_t nodes_nr, uint16_t coordinator)
{
	CHECK(nodes_nr > 0 && nodes_nr <= CORE_NODES_MAX && coordinator < nodes_nr);
	return (struct view_members){.nodes = UINT64_MAX >> (64 - nodes_nr),
				     .coordinator = coordinator};
}

static inline bool view_is_member(const struct view_members *v, uint16_t node)
{
	return node < CORE_NODES_MAX && v->nodes >> node & 1;
}

static inline uint16_t view_members_nr(const struct view_members *v)
{
	return (uint16_t)__builtin_popcountll(v->nodes);
}

static inline uint16_t view_coordinator(const struct view_members *v)
{
	return (uint16_t)v->coordinator;
}

/* Can the members that a peer or a file names be those of a view? slots has a bit for each slot
 * that may exist. */
static inline bool view_members_ok(const struct view_members *v, uint64_t slots)
{
	return v->nodes && !(v->nodes & ~slots) && v->coordinator < CORE_NODES_MAX &&
	       v->nodes >> v->coordinator & 1;
}

/* The first member at this slot or after it. CORE_NODES_MAX: there is none. */
static inline uint16_t view_from(const struct view_members *v, uint16_t slot)
{
	while (slot < CORE_NODES_MAX && !view_is_member(v, slot))
		slot++;
	return slot;
}

/* All members, in the order of their slots. */
#define view_each(node, v)                                                                         \
	for (uint16_t node = view_from(v, 0); node < CORE_NODES_MAX;                               \
	     node = view_from(v, (uint16_t)(node + 1u)))

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

static inline uint32_t place_held_nr(const struct placement *p, uint16_t node)
{
	uint32_t nr = 0;

	for (uint32_t c = 0; c < p->chunks_nr; c++)
		nr += place_holds(p, c, node);
	return nr;
}

#endif
