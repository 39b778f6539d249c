/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of images as codes. apply.c asks when it publishes chunks, and patches.c when codes
 * come. Happy path: the tier makes the image of a chunk of the one before, and the codes with it.
 * For each node it is asked what to send, and the chunk leaves as codes for a node that got the
 * chunk of the image before over a link that has not fallen since. Only memory can lack. */
#include "data/deltas.h"

#include "base/check.h"
#include "data/data.h"
#include "data/mr.h"

#include <stdlib.h>
#include <string.h>

enum shard_status deltas_init(struct model *m, struct err *e)
{
	const struct quant quant = {m->set.image_codec, m->set.grad_codec.block};
	uint32_t chunks = m->layout->chunks_nr;
	struct deltas *d;

	if (quant.kind == QUANT_NONE)
		return SHARD_OK;
	if ((d = m->deltas = calloc(1, sizeof(*d))) == NULL)
		goto none;
	d->got = calloc(chunks, sizeof(*d->got));
	d->step = calloc(chunks, sizeof(*d->step));
	d->parts = calloc(chunks, sizeof(*d->parts));
	d->busy = calloc(chunks, sizeof(*d->busy));
	d->due = calloc(chunks, sizeof(*d->due));
	if (d->got != NULL && d->step != NULL && d->parts != NULL && d->busy != NULL &&
	    d->due != NULL)
		return codes_init(&d->codes, m->layout, &quant, SHARD_BF16, e);
none:
	deltas_free(m);
	return err_set(e, SHARD_SYSTEM, "no memory for the codes of the images of \"%s\"", m->name);
}

void deltas_free(struct model *m)
{
	struct deltas *d = m->deltas;

	m->deltas = NULL;
	if (d == NULL)
		return;
	CHECK(d->in_hand == 0);
	free(d->got);
	free(d->step);
	free(d->parts);
	free(d->busy);
	free(d->due);
	codes_free(&d->codes);
	free(d);
}

bool deltas_made(const struct model *m, const struct record *r)
{
	if (m->deltas == NULL || r->outcome != RECORD_APPLIED)
		return false;
	for (uint32_t i = 1; i < r->world.size; i++)
		if (r->world.rank[i].node != r->world.rank[0].node)
			return true;
	return false;
}

uint32_t deltas_before(const struct model *m, uint32_t slot)
{
	return m->set.max_staleness > 0 ? slot ^ 1 : slot;
}

bool deltas_based(const struct model *m, uint32_t chunk)
{
	return store_image_chunk(m->store, deltas_before(m, m->img.slot), chunk) == m->img.before;
}

/* --- the primary --- */

uint32_t deltas_which(const struct model *m)
{
	return m->set.max_staleness + 1;
}

uint32_t deltas_give(struct model *m, uint16_t node, uint32_t chunk, bool whole)
{
	struct deltas *d = m->deltas;
	bool got;

	if (d == NULL)
		return m->img.slot;
	got = d->got[chunk] >> node & 1;
	d->got[chunk] |= 1ull << node;
	/* A frozen chunk has no codes. */
	return got && !whole && m->img.coded && d->codes.bytes[chunk] > 0 ? deltas_which(m)
									  : m->img.slot;
}

void deltas_lost(struct model *m, uint16_t node, uint32_t chunk)
{
	if (m->deltas != NULL)
		m->deltas->got[chunk] &= ~(1ull << node);
}

void deltas_node_gone(struct model *m, uint16_t node)
{
	for (uint32_t c = 0; m->deltas != NULL && c < m->layout->chunks_nr; c++)
		deltas_lost(m, node, c);
}

void deltas_reset(struct model *m)
{
	struct deltas *d = m->deltas;
	uint32_t chunks = m->layout->chunks_nr;

	if (d == NULL)
		return;
	memset(d->got, 0, chunks * sizeof(*d->got));
	memset(d->parts, 0, chunks * sizeof(*d->parts));
	for (; d->nr > 0; d->nr--, d->first = (d->first + 1) % chunks)
		d->busy[d->due[d->first]] = 0;
}

/* --- a receiver --- */

bool deltas_busy(const struct model *m, uint32_t chunk)
{
	return m->deltas != NULL && m->deltas->busy[chunk];
}

/* Do codes of that step go with the bytes of the chunk that are here? They may come before the
 * record does. Parts of a chunk that came as it is may have spoiled the image before. */
bool deltas_fit(const struct model *m, uint64_t step, uint32_t chunk)
{
	bool two = m->set.max_staleness > 0;

	if (!two && m->img.coming[chunk] == step)
		return false;
	if (m->sealed && step == m->content_step)
		return m->img.coded && !mr_codes_overwritten(m, chunk) && deltas_based(m, chunk);
	return store_image_chunk(m->store, m->img.slot, chunk) == data_version(m);
}

void deltas_fetched(struct model *m, uint32_t slot, uint32_t chunk, uint64_t version)
{
	bool newest = version == data_version(m);
	uint32_t half = m->set.max_staleness > 0 ? slot : m->img.half ^ !newest;

	if (store_holds(m->store, chunk))
		store_image_keep(m->store, slot, half, chunk);
}
