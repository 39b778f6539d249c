/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles. For each: master and moments are copied to an undo place, the place is marked, the kernel runs over the segments inside, the
 * tile gets the record's stamp, the mark goes. Killed before the mark: nothing has changed. Killed between mark and stamp: put back.
 * Killed after the stamp: done. Stores count in the order in which they are here, hence the fences; what is copied is about to be read by
 * the kernel anyway, and the copy stays in the cache. Who applies again takes what has no stamp yet, with the same kernel, record and
 * gradients, so that the bits are the same. */
#include "tile.h"

#include "base/check.h"
#include "model.h"

#include <string.h>

static float *tensor(const struct model *m, uint32_t chunk, uint32_t i) /* 0: master; NULL: none of this chunk */
{
	return i == 0 ? store_master(m->store, chunk) : store_state(m->store, chunk, i - 1);
}

static uint32_t tile_elems(const struct model *m, uint32_t chunk, uint32_t first)
{
	uint32_t left = layout_chunk_elems(m->layout, chunk) - first;

	return left < META_TILE_ELEMS ? left : META_TILE_ELEMS;
}

static void save(const struct model *m, struct meta_undo *u, uint32_t chunk, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i <= m->meta.states_nr; i++) {
		const float *from = tensor(m, chunk, i);

		if (from != NULL)
			memcpy(u->data + (size_t)i * n, from + first, n * sizeof(*from));
	}
	u->chunk = chunk;
	u->first = first;
	u->n = n;
	atomic_store(&u->tile, (uint64_t)m->meta.tile_at[chunk] + first / META_TILE_ELEMS + 1);
}

/* The part of a segment that is in [first, first + n) of its chunk. */
static uint64_t run(const struct model *m, uint32_t chunk, uint32_t slot, uint32_t s, uint32_t first, uint32_t n)
{
	const struct segment *g = &m->layout->segment[s];
	const struct gather_chunk *c = &m->gather.chunk[chunk];
	optim_apply *kernel = optim_kernel(m->set.optim, m->server->isa, m->grad, m->image);
	uint32_t from = g->start > first ? g->start : first, to = g->start + g->n < first + n ? g->start + g->n : first + n;
	float *s1 = tensor(m, chunk, 1), *s2 = m->meta.states_nr > 1 ? tensor(m, chunk, 2) : NULL;
	uint8_t *image = store_image(m->store, slot, chunk);

	if (from >= to || layout_frozen(m->layout, s))
		return 0;
	return kernel(&m->record.args[g->group], to - from, m->gather.zero[s] ? NULL : c->base + (size_t)from * m->grad_bytes,
		      tensor(m, chunk, 0) + from, s1 != NULL ? s1 + from : NULL, s2 != NULL ? s2 + from : NULL,
		      image + (size_t)from * m->image_bytes);
}

uint64_t tile_apply(struct model *m, uint32_t chunk, uint32_t slot)
{
	const struct layout *l = m->layout;
	uint32_t place = meta_undo_take(&m->meta), s = l->chunk_segment[chunk], end = l->chunk_segment[chunk + 1];
	struct meta_undo *u = meta_undo(&m->meta, place);
	_Atomic uint64_t *version = &m->meta.version[m->meta.tile_at[chunk]];
	uint64_t kept = 0, stamp = m->meta.mark.stamp;

	for (uint32_t first = 0, n; first < layout_chunk_elems(l, chunk); first += n, version++) {
		n = tile_elems(m, chunk, first);
		while (s < end && l->segment[s].start + l->segment[s].n <= first)
			s++;
		if (atomic_load(version) == stamp)
			continue;
		save(m, u, chunk, first, n);
		atomic_thread_fence(memory_order_seq_cst); /* the mark is there before the first store of the kernel */
		for (uint32_t i = s; i < end && l->segment[i].start < first + n; i++)
			kept += run(m, chunk, slot, i, first, n);
		atomic_thread_fence(memory_order_seq_cst);
		atomic_store_explicit(version, stamp, memory_order_release);
		atomic_store_explicit(&u->tile, 0, memory_order_release);
	}
	meta_undo_give(&m->meta, place);
	return kept;
}

static enum shard_status put_back(struct model *m, struct meta_undo *u, struct err *e)
{
	uint64_t tile = atomic_load(&u->tile) - 1;
	uint32_t chunk = u->chunk, first = u->first, n = u->n;

	if (tile >= m->meta.tiles_nr || chunk >= m->layout->chunks_nr || !store_holds(m->store, chunk) ||
	    first >= layout_chunk_elems(m->layout, chunk) || first % META_TILE_ELEMS != 0 || n != tile_elems(m, chunk, first) ||
	    tile != (uint64_t)m->meta.tile_at[chunk] + first / META_TILE_ELEMS)
		return err_set(e, SHARD_MISMATCH, "a tile of chunk %u is to be put back where there is none", chunk);
	for (uint32_t i = 0; m->meta.version[tile] != m->meta.mark.stamp && i <= m->meta.states_nr; i++) {
		float *to = tensor(m, chunk, i);

		if (to != NULL)
			memcpy(to + first, u->data + (size_t)i * n, n * sizeof(*to));
	}
	atomic_thread_fence(memory_order_seq_cst);
	atomic_store(&u->tile, 0);
	return SHARD_OK;
}

enum shard_status tile_put_back(struct model *m, struct err *e)
{
	enum shard_status st = SHARD_OK;

	for (uint32_t i = 0; i < m->meta.undo_nr && st == SHARD_OK; i++)
		if (atomic_load(&meta_undo(&m->meta, i)->tile) != 0)
			st = put_back(m, meta_undo(&m->meta, i), e);
	return st;
}
