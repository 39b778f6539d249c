/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of images that come in. dispatch.c brings the frames. Happy path: the parts of the codes of
 * a chunk land in memory of their own. With the last one a worker makes the next bytes of the image
 * from those that are here, and apply_image_came() publishes them. Codes that do not go with the
 * bytes here are dropped. The chunk lacks then, who sent them is told so at once, and it comes as
 * it is. */
#include "data/patches.h"

#include "base/check.h"
#include "data/apply.h"
#include "data/data.h"
#include "data/deltas.h"
#include "data/images.h"
#include "data/model.h"
#include "data/mr.h"
#include "link/peer.h"
#include "wire/ops.h"

/* May codes come? */
static bool may_come(const struct model *m, const struct wire_head *h)
{
	uint32_t slot;

	return apply_image_wanted(m, h, &slot) &&
	       (h->step == m->content_step || h->step == m->attempt.id.step);
}

static bool wanted(const struct model *m, const struct wire_head *h)
{
	return may_come(m, h) && deltas_fit(m, h->step, h->chunk);
}

enum shard_status patches_head(struct model *m, const struct peer *p, const struct wire_head *h,
			       void **to, struct err *e)
{
	uint32_t part = WIRE_PART(h->flags);
	struct deltas *d = m->deltas;
	uint64_t bytes =
		d != NULL && h->chunk < m->layout->chunks_nr ? d->codes.bytes[h->chunk] : 0;

	*to = STREAM_DISCARD;
	if (part >= data_parts(bytes) || h->body_bytes != data_part_bytes(bytes, part))
		return err_set(e, SHARD_PROTOCOL,
			       "codes of part %u (%u bytes) of the image of chunk %u of \"%s\": no "
			       "such part",
			       part, h->body_bytes, h->chunk, m->name);
	if (!wanted(m, h)) {
		if (part == 0 && may_come(m, h))
			images_missed(m, p->node, h->chunk);
		return SHARD_OK;
	}
	if (part == 0 || d->step[h->chunk] != h->step) {
		d->step[h->chunk] = h->step;
		d->parts[h->chunk] = 0;
	}
	*to = deltas_at(m, h->chunk) + (size_t)part * WIRE_PART_BYTES;
	data_flow_add(&m->image_in, 0);
	return SHARD_OK;
}

/* The image of a chunk was made while this node voted for the next step. What codes it was made of
 * is not known, if the primary may have written those of the next step over them. */
static bool overwritten(const struct model *m, uint32_t chunk)
{
	return m->deltas->step[chunk] == m->content_step && mr_codes_overwritten(m, chunk);
}

/* All codes of the chunk were here, and it lacks all the same. */
static void missed(struct model *m, uint32_t chunk)
{
	uint16_t primary = place_primary(&m->place, chunk);

	if (primary < m->server->nodes_nr && primary != m->server->self)
		images_missed(m, primary, chunk);
}

/* No codes go with what is left of the image before. */
static void spoiled(struct model *m, uint32_t chunk)
{
	m->img.coming[chunk] = m->deltas->step[chunk];
	m->img.parts[chunk] = 0;
	missed(m, chunk);
}

/* A tag has the generation and the chunk. */
static void done(void *owner, uint64_t tag, const struct tier_result *r)
{
	struct model *m = owner;
	struct deltas *d = m->deltas;
	uint32_t chunk = (uint32_t)tag, slot;

	(void)r;
	CHECK(d->in_hand > 0 && d->busy[chunk]);
	d->in_hand--;
	d->busy[chunk] = 0;
	d->parts[chunk] = 0;
	if (tag >> 32 == m->generation && apply_image_lacks(m, d->step[chunk], chunk, &slot)) {
		if (overwritten(m, chunk))
			spoiled(m, chunk);
		else
			apply_image_came(m, slot, chunk, d->step[chunk]);
	}
	data_release(m);
}

static enum shard_status hand_out(struct model *m, uint32_t chunk)
{
	struct deltas *d = m->deltas;
	struct tier_patch p = {.chunk = chunk, .codes = &d->codes, .coded = deltas_at(m, chunk)};
	struct tier_call call = {
		.done = done, .owner = m, .tag = (uint64_t)m->generation << 32 | chunk};
	enum shard_status st;

	if (!apply_image_lacks(m, d->step[chunk], chunk, &p.slot) ||
	    !deltas_fit(m, d->step[chunk], chunk)) {
		d->busy[chunk] = 0; /* Another record, or a vote, came while it waited. */
		if (overwritten(m, chunk))
			missed(m, chunk);
		return SHARD_OK;
	}
	p.before = deltas_before(m, p.slot);
	if ((st = m->tier->row->patch(m->tier, &p, &call)) != SHARD_OK)
		return st;
	d->in_hand++;
	m->attempt.busy++;
	return SHARD_OK;
}

static void feed(struct model *m)
{
	struct deltas *d = m->deltas;

	while (d != NULL && d->nr > 0 && d->in_hand < data_jobs_max(m)) {
		uint32_t chunk = d->due[d->first];

		if (hand_out(m, chunk) != SHARD_OK)
			return;
		d->first = (d->first + 1) % m->layout->chunks_nr;
		d->nr--;
	}
}

enum shard_status patches_part(struct model *m, const struct wire_head *h, struct err *e)
{
	struct deltas *d = m->deltas;

	(void)e;
	if (!wanted(m, h) || d->step[h->chunk] != h->step ||
	    WIRE_PART(h->flags) != d->parts[h->chunk])
		return SHARD_OK; /* If it lacks, it is asked for. */
	data_flow_add(&m->image_in, h->body_bytes);
	images_heard(m, h->chunk);
	if (++d->parts[h->chunk] < data_parts(d->codes.bytes[h->chunk]))
		return SHARD_OK;
	CHECK(d->nr < m->layout->chunks_nr);
	d->busy[h->chunk] = 1;
	d->due[(d->first + d->nr++) % m->layout->chunks_nr] = h->chunk;
	feed(m);
	return SHARD_OK;
}

void patches_turn(struct server *s)
{
	list_each(it, &s->models)
		feed(list_of(it, struct model, link));
}
