// SPDX-License-Identifier: Apache-2.0
/* Each tile has a word, the stamp of the record that it has. tier_ram.c calls tile_apply() on
 * workers, and tile_repair() at a start. A thread notes its chunk and stamp in an undo place. The
 * kernel then keeps there each vector that it overwrites (optim/undo.h), and at the end the tile
 * gets its stamp. If the process is killed before the first vector, nothing has changed. If it is
 * killed later, the vector is put back, and the same kernel goes on from there with the same record
 * and gradients, so that the bits are the same. If it is killed after the stamp, the tile is done.
 * A second call applies the record to the tiles without the stamp. */
#include "store/tile.h"

#include "base/check.h"

#include <sched.h>
#include <string.h>

uint32_t tile_count(const struct layout *l, uint32_t chunk)
{
	return (layout_chunk_elems(l, chunk) + TILE_ELEMS - 1) / TILE_ELEMS;
}

static uint32_t tile_end(const struct tile_update *u, uint32_t first)
{
	uint32_t elems = layout_chunk_elems(u->layout, u->chunk);

	return elems - first < TILE_ELEMS ? elems : first + TILE_ELEMS;
}

static _Atomic uint64_t *version(const struct tiles *t, uint32_t chunk, uint32_t first)
{
	return &t->version[t->first[chunk] + first / TILE_ELEMS];
}

/* Applies the record to the part of a segment that is in [from, to) of its chunk. */
static uint64_t run(struct tile_undo *n, const struct tile_update *u, uint32_t s, uint32_t from,
		    uint32_t to)
{
	const struct segment *g = &u->layout->segment[s];
	uint8_t nowhere[TILE_ELEMS * sizeof(float)]; /* The kernels write an image in any case. */

	from = g->start > from ? g->start : from;
	to = g->start + g->n < to ? g->start + g->n : to;
	if (from >= to || layout_frozen(u->layout, s))
		return 0;
	n->undo.origin = from;
	return u->kernel_undo(
		&u->args[g->group], to - from,
		u->zero[s] ? NULL : u->grad + (size_t)from * u->grad_bytes, u->tensor[0] + from,
		u->tensor[1] != NULL ? u->tensor[1] + from : NULL,
		u->tensor[2] != NULL ? u->tensor[2] + from : NULL,
		u->image != NULL ? u->image + (size_t)from * u->image_bytes : nowhere, &n->undo);
}

/* Finishes a tile, from `from` to its end. No segment before *s reaches into that. */
static uint64_t finish(const struct tiles *t, struct tile_undo *n, const struct tile_update *u,
		       uint32_t *s, uint32_t from)
{
	const struct layout *l = u->layout;
	uint32_t end = l->chunk_segment[u->chunk + 1],
		 to = tile_end(u, from / TILE_ELEMS * TILE_ELEMS);
	uint64_t kept = 0;

	while (*s < end && l->segment[*s].start + l->segment[*s].n <= from)
		++*s;
	for (uint32_t i = *s; i < end && l->segment[i].start < to; i++)
		kept += run(n, u, i, from, to);
	UNDO_ORDER();
	atomic_store_explicit(version(t, u->chunk, from), n->stamp, memory_order_release);
	return kept;
}

static struct tile_undo *undo_take(const struct tiles *t)
{
	for (;;) {
		/* There is one for each thread, unless more threads run now than the region was
		 * made for. */
		for (uint32_t i = 0; i < t->undo_nr; i++)
			if (!atomic_exchange(&t->used[i], 1))
				return &t->undo[i];
		sched_yield();
	}
}

static void undo_give(const struct tiles *t, const struct tile_undo *n)
{
	CHECK(n >= t->undo && n < t->undo + t->undo_nr);
	atomic_store(&t->used[n - t->undo], 0);
}

uint64_t tile_apply(const struct tiles *t, uint64_t stamp, const struct tile_update *u)
{
	struct tile_undo *n = undo_take(t);
	uint32_t s = u->layout->chunk_segment[u->chunk];
	uint64_t kept = 0;

	CHECK(u->kernel_undo != NULL && u->grad != NULL && u->tensor[0] != NULL);
	atomic_store_explicit(&n->undo.at, 0, memory_order_relaxed);
	UNDO_ORDER();
	n->chunk = u->chunk;
	n->stamp = stamp;
	for (uint32_t first = 0; first < layout_chunk_elems(u->layout, u->chunk);
	     first = tile_end(u, first))
		if (atomic_load_explicit(version(t, u->chunk, first), memory_order_relaxed) !=
		    stamp) {
			tile_keep(u, first, tile_end(u, first));
			kept += finish(t, n, u, &s, first);
		}
	undo_give(t, n);
	return kept;
}

bool tile_whole(const struct tiles *t, const struct layout *l, uint32_t chunk, uint64_t stamp)
{
	for (uint32_t i = 0; i < tile_count(l, chunk); i++)
		if (atomic_load(&t->version[t->first[chunk] + i]) != stamp)
			return false;
	return true;
}

/* --- at a start --- */

bool tile_noted(const struct tiles *t, uint32_t i, uint64_t stamp, uint32_t *chunk)
{
	CHECK(i < t->undo_nr);
	*chunk = t->undo[i].chunk;
	return atomic_load(&t->undo[i].undo.at) != 0 && t->undo[i].stamp == stamp;
}

enum shard_status tile_repair(const struct tiles *t, uint32_t i, const struct tile_update *u,
			      bool applying, uint64_t *kept, struct err *e)
{
	struct tile_undo *n = &t->undo[i];
	uint64_t at = atomic_load(&n->undo.at), position = undo_position(at);
	uint32_t lanes = undo_lanes(at), elems = layout_chunk_elems(u->layout, u->chunk),
		 s = u->layout->chunk_segment[u->chunk];

	CHECK(at != 0 && n->chunk == u->chunk);
	if (lanes == 0 || lanes > UNDO_LANES || position >= elems || lanes > elems - position)
		return err_set(
			e, SHARD_MISMATCH,
			"%u elements at %llu of chunk %u are to be put back, where there are none",
			lanes, (unsigned long long)position, u->chunk);
	if (atomic_load(version(t, u->chunk, (uint32_t)position)) == n->stamp)
		return SHARD_OK;
	for (uint32_t k = 0; k < NR(u->tensor); k++)
		if (u->tensor[k] != NULL)
			memcpy(u->tensor[k] + position, n->undo.place[undo_place(at)][k],
			       lanes * sizeof(float));
	if (!applying)
		return err_set(e, SHARD_MISMATCH, "chunk %u has not all of its step", u->chunk);
	*kept += finish(t, n, u, &s, (uint32_t)position);
	return SHARD_OK;
}
