/* SPDX-License-Identifier: Apache-2.0 */
/* place.h: which nodes hold each chunk. Every question about the holders of a chunk goes through
 * these functions, in the core and around it, so that the answers may differ from one view to the
 * next. Nothing here fails.
 *
 * A placement has two parts. The tables say which nodes have memory for a chunk, and, while chunks
 * move, which shall have it. They belong to the shell and never change: another view may have other
 * tables (moves.h). The masks belong to a view. They say of a node whether its copies count. So a
 * node that is lost, or that comes back and has to learn its chunks again, changes a bit and moves
 * no memory. */
#ifndef SHARD_CORE_PLACE_H
#define SHARD_CORE_PLACE_H

#include "core/view.h"
#include "wire/xxh.h"

struct placement {
	/* [chunks_nr] The node whose copy counts as long as it has one. The caller keeps the arrays
	 * for as long as anybody uses the placement, a view that names it included. */
	const uint16_t *primary;
	/* [chunks_nr] A bit for each node that has memory for the chunk, the primary included.
	 * NULL: nobody but the primary has. */
	const uint64_t *holders;
	/* While chunks move: the same as it shall be. Both tables give memory. NULL: none moves. */
	const uint16_t *to_primary;
	const uint64_t *to;
	uint32_t chunks_nr;
	uint64_t sum;    /* Tells tables apart without looking at them. place_of() sets it. */
	uint64_t learns; /* Members that have memory but no copies, because they catch up. */
	uint64_t gone;   /* Nodes that are no members. What they may have does not count. */
	/* Members that have no copies yet of what only .to gives them. Their other copies count. */
	uint64_t moves;
};

/* Every node counts that the tables name. */
static inline struct placement place_of(const uint16_t *primary, const uint64_t *holders,
					uint32_t chunks_nr)
{
	uint64_t sum = xxh_sum(primary, chunks_nr * sizeof(*primary), chunks_nr);

	if (holders)
		sum = xxh_sum(holders, chunks_nr * sizeof(*holders), sum);
	return (struct placement){
		.primary = primary, .holders = holders, .chunks_nr = chunks_nr, .sum = sum};
}

static inline bool place_same(const struct placement *a, const struct placement *b)
{
	return a->chunks_nr == b->chunks_nr && a->sum == b->sum && a->learns == b->learns &&
	       a->gone == b->gone && a->moves == b->moves;
}

static inline bool place_is_member(const struct placement *p, uint16_t node)
{
	return !(p->gone >> node & 1);
}

/* A bit for each node that has memory for the chunk by the table that is to be left. */
static inline uint64_t place_base(const struct placement *p, uint32_t chunk)
{
	CHECK(chunk < p->chunks_nr);
	return p->holders ? p->holders[chunk] : 1ull << p->primary[chunk];
}

/* A bit for each node that has memory for the chunk, whether it has a copy or not. */
static inline uint64_t place_keepers(const struct placement *p, uint32_t chunk)
{
	return place_base(p, chunk) | (p->to ? p->to[chunk] : 0);
}

static inline bool place_keeps(const struct placement *p, uint32_t chunk, uint16_t node)
{
	return place_keepers(p, chunk) >> node & 1;
}

/* A bit for each node that has a copy that counts. All of these copies are identical. */
static inline uint64_t place_copies(const struct placement *p, uint32_t chunk)
{
	return place_keepers(p, chunk) &
	       ~(p->learns | p->gone | (p->moves & ~place_base(p, chunk)));
}

static inline bool place_holds(const struct placement *p, uint32_t chunk, uint16_t node)
{
	return place_copies(p, chunk) >> node & 1;
}

/* The holder that reduces the gradient of the chunk and sends its image to nodes without a copy. It
 * is the one that the table names, or else the next holder after it, in the order of the slots.
 * CORE_NODES_MAX: the chunk has no copy. */
static inline uint16_t place_primary(const struct placement *p, uint32_t chunk)
{
	uint64_t copies = place_copies(p, chunk), after;
	uint16_t first = p->primary[chunk];

	if (copies >> first & 1)
		return first;
	if (!copies)
		return CORE_NODES_MAX;
	after = copies >> first << first;
	return (uint16_t)__builtin_ctzll(after ? after : copies);
}

/* A bit for each node that needs the reduced gradient of the chunk from its primary: the other
 * holders, and the members that catch up. */
static inline uint64_t place_followers(const struct placement *p, uint32_t chunk)
{
	uint16_t primary = place_primary(p, chunk);

	if (primary >= CORE_NODES_MAX)
		return 0;
	return place_keepers(p, chunk) & ~p->gone & ~(1ull << primary);
}

/* Do tables and masks fit each other and these members, so that every chunk has a copy? */
static inline bool place_ok(const struct placement *p, const struct view_members *v)
{
	if (!p->primary || (p->learns | p->moves) & ~v->nodes || p->gone & v->nodes ||
	    !p->to != !p->to_primary || p->moves & p->learns || (p->moves && !p->to))
		return false;
	for (uint32_t c = 0; c < p->chunks_nr; c++)
		if (p->primary[c] >= CORE_NODES_MAX || !(place_copies(p, c) & v->nodes) ||
		    (p->to &&
		     (p->to_primary[c] >= CORE_NODES_MAX || !(p->to[c] >> p->to_primary[c] & 1))))
			return false;
	return true;
}

/* The blob of this rank lies where this chunk does, and counts where its copy counts. So a blob has
 * as many copies as a chunk, and who has caught up with its chunks has its blobs. With one copy a
 * blob stays on the node of its rank. */
static inline uint32_t place_blob_chunk(const struct placement *p, uint32_t rank)
{
	CHECK(p->chunks_nr > 0);
	return rank % p->chunks_nr;
}

/* How many copies count of the chunk that has fewest. */
static inline uint32_t place_least(const struct placement *p)
{
	uint32_t least = CORE_NODES_MAX;

	for (uint32_t c = 0; c < p->chunks_nr; c++)
		if (__builtin_popcountll(place_copies(p, c)) < (int)least)
			least = (uint32_t)__builtin_popcountll(place_copies(p, c));
	return least;
}

/* For how many chunks the node has memory. */
static inline uint32_t place_kept_nr(const struct placement *p, uint16_t node)
{
	uint32_t nr = 0;

	for (uint32_t c = 0; c < p->chunks_nr; c++)
		nr += place_keeps(p, c, node);
	return nr;
}

#endif
