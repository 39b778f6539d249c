// SPDX-License-Identifier: Apache-2.0
/* The pump between a model and its tier. apply.c begins an update, a seal, or the images of a warm
 * start, and each chunk that is held here is handed out in the order of the layout, until the tier
 * says AGAIN or the model has its share of the queue. done() makes room, and feed_go() goes on in
 * the same turn of the loop. A chunk that is done goes to apply.c. Nothing fails. If the weights
 * are lost meanwhile, the rest is not handed out. */
#include "data/feed.h"

#include "base/check.h"
#include "data/apply.h"
#include "data/data.h"
#include "data/catchup.h"
#include "data/deltas.h"
#include "data/device_images.h"
#include "data/model.h"
#include "data/reduce.h"

/* So many elements of small chunks may be computed on the loop in one turn. */
#define FEED_HERE_ELEMS (512u << 10)

bool feed_open(const struct model *m)
{
	return m->img.feed.what == FEED_UPDATE || m->img.feed.what == FEED_SEAL;
}

void feed_end(struct model *m)
{
	bool held = feed_open(m);

	m->img.feed.what = FEED_NONE;
	if (held)
		data_release(m);
}

/* A GPU has failed, and the model ends here. What its tier comes back with then was computed of
 * anything, or not at all (tier_gpu_forsake()). */
static bool forsaken(const struct model *m)
{
	return m->dropping && m->memory.tier_lost;
}

/* A tag has the generation, what is being done, and the chunk. What does not count leaves the image
 * open, because trainers that had it may still look: the step is not there. */
static void done(void *owner, uint64_t tag, const struct tier_result *r)
{
	struct model *m = owner;
	uint32_t what = tag >> 24 & 0xff, chunk = tag & 0xffffff;
	uint64_t missing = what == FEED_UPDATE ? 0 : r->unwritten;
	bool counts = tag >> 32 == m->generation && !forsaken(m);

	CHECK(m->img.feed.in_hand > 0);
	m->img.feed.in_hand--;
	m->img.kept += r->kept;
	if (what == FEED_SEAL)
		missing += r->nonfinite;
	if (counts && r->image_there)
		device_images_written(m, chunk);
	if (counts)
		apply_fed(m, (enum feed_what)what, chunk, missing);
	/* Before the end of the step is told: whoever hears it may wait for the buffers, too. */
	data_release(m);
	apply_maybe_done(m);
}

/* What the record in hand does to a chunk. */
static void operands(void *model, uint32_t chunk, struct tier_apply *a)
{
	const struct model *m = model;

	*a = (struct tier_apply){.chunk = chunk,
				 .slot = m->img.slot,
				 .half = m->img.half,
				 .codes = m->img.coded ? deltas_codes(m) : NULL,
				 .coded = m->img.coded ? deltas_at(m, chunk) : NULL,
				 .before = deltas_before(m, m->img.slot),
				 .stamp = m->meta.mark.stamp,
				 .args = m->record.args,
				 .zero = m->contrib.zero,
				 .grad = m->contrib.chunk[chunk].base,
				 .inside = m->contrib.chunk[chunk].base_inside};
}

enum shard_status feed_repair(struct model *m, bool applying, struct err *e)
{
	CHECK(!m->img.applying && m->img.feed.what == FEED_NONE);
	return m->tier->row->repair(m->tier, m->meta.mark.stamp, applying, operands, m,
				    &m->img.kept, e);
}

static enum shard_status hand_out(struct model *m, uint32_t chunk, bool here)
{
	struct model_feed *f = &m->img.feed;
	struct tier_call call = {.done = done, .owner = m, .here = here};
	bool settles = f->what == FEED_SETTLE;
	struct tier_make make = {.finish = settles && m->memory.settle.apply,
				 .kept = settles && apply_has_kept(m),
				 .older = settles && apply_makes_older(m)};
	enum shard_status st;

	static_assert(LAYOUT_CHUNKS_MAX <= 1u << 24, "a chunk fits its part of a tag");
	call.tag = (uint64_t)m->generation << 32 | (uint64_t)f->what << 24 | chunk;
	operands(m, chunk, &make.update);
	CHECK(f->what != FEED_UPDATE || !m->img.coded || deltas_based(m, chunk));
	if (f->what == FEED_UPDATE)
		make.update.device_image = device_images_at(m, chunk);
	f->in_hand++;
	m->attempt.busy++;
	st = f->what == FEED_UPDATE ? m->tier->row->apply(m->tier, &make.update, &call)
				    : m->tier->row->make(m->tier, &make, &call);
	if (st == SHARD_OK)
		return SHARD_OK;
	f->in_hand--;
	m->attempt.busy--;
	return st;
}

/* A model that settles gets few places, because most often no step waits for it. A daemon that
 * stops makes no images, but finishes what is decided. */
static uint32_t may_have(const struct model *m)
{
	if (m->img.feed.what != FEED_SETTLE)
		return data_jobs_max(m);
	if (m->dropping || (m->server->stop.on && !m->img.applying))
		return 0;
	return 2 * m->tier->row->lanes(m->tier);
}

void feed_go(struct model *m)
{
	struct model_feed *f = &m->img.feed;
	uint32_t room = may_have(m), elems, here = 0;

	if (f->what == FEED_NONE)
		return;
	if (f->generation != m->generation) {
		feed_end(m); /* The weights are lost, and a part of this step with them. */
		apply_maybe_done(m);
		return;
	}
	while (f->what != FEED_NONE && f->next < m->layout->chunks_nr && f->in_hand < room) {
		uint32_t chunk = f->next++; /* Before a small chunk is done at once. */
		bool small;

		if (store_holds(m->store, chunk) && catchup_has(m, chunk)) {
			elems = layout_chunk_elems(m->layout, chunk);
			small = elems <= SERVER_SMALL_ELEMS && f->what != FEED_SETTLE &&
				here + elems <= FEED_HERE_ELEMS;
			here += small ? elems : 0;
			f->left--;
			if (hand_out(m, chunk, small) != SHARD_OK) {
				f->next = chunk;
				f->left++;
				return;
			}
		}
	}
	if (f->next == m->layout->chunks_nr)
		feed_end(m);
}

static uint32_t count_left(const struct model *m)
{
	uint32_t nr = 0;

	for (uint32_t c = m->img.feed.next; c < m->layout->chunks_nr; c++)
		nr += store_holds(m->store, c) && catchup_has(m, c);
	return nr;
}

void feed_placed(struct model *m)
{
	struct model_feed *f = &m->img.feed;
	uint32_t before = f->left;

	if (f->what != FEED_SETTLE || f->generation != m->generation)
		return;
	f->left = count_left(m);
	CHECK(m->img.apply_left >= before);
	m->img.apply_left += f->left - before;
}

/* An update or a seal counts as one more reader of the attempt's buffers until all chunks are
 * handed out, so that a moment without a job in hand does not look like the end. */
void feed_begin(struct model *m, enum feed_what what)
{
	struct model_feed *f = &m->img.feed;

	if (f->what != FEED_NONE && f->generation != m->generation)
		feed_end(m);
	CHECK(f->what == FEED_NONE && what != FEED_NONE);
	f->what = what;
	f->next = 0;
	f->left = count_left(m);
	f->generation = m->generation;
	m->attempt.busy += feed_open(m);
	feed_go(m);
}

void feed_hold(void *model)
{
	struct model *m = model;

	m->memory.tier_jobs++;
}

/* It need not be in a turn of the workers, in which a model goes on that found no room. */
void feed_release(void *model)
{
	struct model *m = model;

	if (m->server->pool != NULL) { /* A daemon that stops has no workers any more. */
		reduce_feed(m);
		feed_go(m);
	}
	CHECK(m->memory.tier_jobs > 0);
	if (--m->memory.tier_jobs == 0 && m->dropping)
		server_wake(m->server, 1);
}
