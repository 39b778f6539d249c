/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles are runs of a chunk. Each has a word, the stamp of the record that it has. apply.c calls
 * tile_apply() on workers, and resume.c of model/ calls tile_finish() at a start. A thread notes
 * its chunk and stamp in an undo place. The kernel then keeps there each vector that it overwrites
 * (optim/undo.h), and at the end the tile gets its stamp. If the process is killed before the first
 * vector, nothing has changed. If it is killed later, the vector is put back, and the same kernel
 * goes on from there with the same record and gradients, so that the bits are the same. If it is
 * killed after the stamp, the tile is done. A second call applies the record to the tiles without
 * the stamp. */
#include "data/tile.h"

#include "base/check.h"
#include "data/model.h"

#include <string.h>

/* i = 0 is the master. NULL: the chunk has no such tensor. */
static float *tensor(const struct model *m, uint32_t chunk, uint32_t i)
{
	return i == 0 ? store_master(m->store, chunk) : store_state(m->store, chunk, i - 1);
}

static uint32_t tile_end(const struct model *m, uint32_t chunk, uint32_t first)
{
	uint32_t elems = layout_chunk_elems(m->layout, chunk);

	return elems - first < META_TILE_ELEMS ? elems : first + META_TILE_ELEMS;
}

static _Atomic uint64_t *version(const struct model *m, uint32_t chunk, uint32_t first)
{
	return &m->meta.version[m->meta.tile_at[chunk] + first / META_TILE_ELEMS];
}

/* Applies the record to the part of a segment that is in [from, to) of its chunk. */
static uint64_t run(const struct model *m, struct meta_undo *u, uint32_t slot, uint32_t s,
		    uint32_t from, uint32_t to)
{
	const struct segment *g = &m->layout->segment[s];
	const uint8_t *grad = m->contrib.zero[s] ? NULL : m->contrib.chunk[u->chunk].base;
	optim_apply_undo *kernel =
		optim_kernel_undo(m->set.optim, m->server->isa, m->grad, m->image);
	float *s1 = tensor(m, u->chunk, 1), *s2 = tensor(m, u->chunk, 2);
	uint8_t *image = store_image(m->store, slot, u->chunk);

	from = g->start > from ? g->start : from;
	to = g->start + g->n < to ? g->start + g->n : to;
	if (from >= to || layout_frozen(m->layout, s))
		return 0;
	u->undo.origin = from;
	return kernel(&m->record.args[g->group], to - from,
		      grad != NULL ? grad + (size_t)from * m->grad_bytes : NULL,
		      tensor(m, u->chunk, 0) + from, s1 != NULL ? s1 + from : NULL,
		      s2 != NULL ? s2 + from : NULL, image + (size_t)from * m->image_bytes,
		      &u->undo);
}

/* Finishes a tile, from `from` to its end. No segment before *s reaches into that. */
static uint64_t finish(const struct model *m, struct meta_undo *u, uint32_t slot, uint32_t *s,
		       uint32_t from)
{
	const struct layout *l = m->layout;
	uint32_t end = l->chunk_segment[u->chunk + 1],
		 to = tile_end(m, u->chunk, from / META_TILE_ELEMS * META_TILE_ELEMS);
	uint64_t kept = 0;

	while (*s < end && l->segment[*s].start + l->segment[*s].n <= from)
		++*s;
	for (uint32_t i = *s; i < end && l->segment[i].start < to; i++)
		kept += run(m, u, slot, i, from, to);
	UNDO_ORDER();
	atomic_store_explicit(version(m, u->chunk, from), u->stamp, memory_order_release);
	return kept;
}

uint64_t tile_apply(struct model *m, uint32_t chunk, uint32_t slot)
{
	uint32_t place = meta_undo_take(&m->meta), s = m->layout->chunk_segment[chunk];
	struct meta_undo *u = meta_undo(&m->meta, place);
	uint64_t kept = 0, stamp = m->meta.mark.stamp;

	CHECK(place_holds(&m->place, chunk, m->server->self) && slot < 2);
	atomic_store_explicit(&u->undo.at, 0, memory_order_relaxed);
	UNDO_ORDER();
	u->chunk = chunk;
	u->stamp = stamp;
	for (uint32_t first = 0; first < layout_chunk_elems(m->layout, chunk);
	     first = tile_end(m, chunk, first))
		if (atomic_load_explicit(version(m, chunk, first), memory_order_relaxed) != stamp)
			kept += finish(m, u, slot, &s, first);
	meta_undo_give(&m->meta, place);
	return kept;
}

/* --- at a start --- */

static enum shard_status put_back(struct model *m, const struct meta_undo *u, uint64_t at,
				  struct err *e)
{
	uint64_t position = undo_position(at);
	uint32_t lanes = undo_lanes(at), chunk = u->chunk;

	if (lanes == 0 || lanes > UNDO_LANES || chunk >= m->layout->chunks_nr ||
	    !store_holds(m->store, chunk) || position >= layout_chunk_elems(m->layout, chunk) ||
	    lanes > layout_chunk_elems(m->layout, chunk) - position)
		return err_set(
			e, SHARD_MISMATCH,
			"%u elements at %llu of chunk %u are to be put back, where there are none",
			lanes, (unsigned long long)position, chunk);
	if (atomic_load(version(m, chunk, (uint32_t)position)) == u->stamp)
		return SHARD_OK;
	for (uint32_t i = 0; i < 3; i++) {
		float *to = tensor(m, chunk, i);

		if (to != NULL)
			memcpy(to + position, u->undo.place[undo_place(at)][i],
			       lanes * sizeof(*to));
	}
	return SHARD_OK;
}

enum shard_status tile_finish(struct model *m, struct err *e)
{
	enum shard_status st;

	for (uint32_t i = 0; i < m->meta.undo_nr; i++) {
		struct meta_undo *u = meta_undo(&m->meta, i);
		uint64_t at = atomic_load(&u->undo.at);
		uint32_t s;

		if (at == 0 || u->stamp != m->meta.mark.stamp)
			continue;
		if ((st = put_back(m, u, at, e)) != SHARD_OK)
			return st;
		s = m->layout->chunk_segment[u->chunk];
		if (atomic_load(version(m, u->chunk, (uint32_t)undo_position(at))) == u->stamp)
			continue;
		if (!m->img.applying)
			return err_set(e, SHARD_MISMATCH, "chunk %u has not all of step %lu",
				       u->chunk, (unsigned long)m->meta.mark.step);
		m->img.kept += finish(m, u, m->img.slot, &s, (uint32_t)undo_position(at));
	}
	return SHARD_OK;
}
