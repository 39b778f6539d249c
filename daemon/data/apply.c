/* SPDX-License-Identifier: Apache-2.0 */
/* What happens after COMMIT: one pass of the optimizer over every chunk held here, then the way of
 * the image to trainers and other nodes. model.c starts it, workers run the passes, and dispatch.c
 * brings image parts from other nodes. Image frames are named by the last step that changed weights
 * (content_step) and judged by it, never by view. A part is taken if its step is the one decided
 * here. A PREPARED node takes a part of the attempt that it voted for, because its bytes prove the
 * commit, and none of the image that this attempt overwrites. Chunks that were missed (a link fell)
 * are asked for again, once a second. With max_staleness = 1 there are two images. Each applied
 * step is written to the one without the newest weights, and the version of a chunk is the step
 * that wrote it. */
#include "data/apply.h"

#include "base/check.h"
#include "base/clock.h"
#include "data/blobs.h"
#include "data/data.h"
#include "data/events.h"
#include "data/feed.h"
#include "data/catchup.h"
#include "data/deltas.h"
#include "data/device_images.h"
#include "data/durable.h"
#include "data/images.h"
#include "link/peer.h"
#include "data/mr.h"
#include "data/reduce.h"
#include "data/trainer.h"
#include "link/session.h"
#include "wire/ops.h"

#include <string.h>

uint32_t apply_slot(const struct model *m, const struct record *r)
{
	return m->set.max_staleness > 0 ? r->applied & 1 : 0;
}

bool apply_image_whole(const struct model *m)
{
	return m->sealed && m->img.apply_left == 0 && m->img.lacking == 0;
}

/* Chunks that become ready together are told together, because every frame wakes its trainer. */
void apply_tell(struct model *m)
{
	m->img.tell_due = m->img.tell_held || worker_in_turn(m->server->pool);
	if (m->img.tell_due)
		return;
	store_image_published(m->store);
	m->server->data->published(m);
}

/* A chunk has its new bytes. nodes: nodes that hold no copy of their own get it, if this node is
 * its primary. */
static void publish(struct model *m, uint32_t slot, uint32_t chunk, uint64_t version, bool nodes)
{
	uint32_t connections = m->server->conf->connections;

	CHECK(chunk < m->layout->chunks_nr && slot < 2);
	if (!catchup_has(m, chunk))
		deltas_fetched(m, slot, chunk, version);
	store_image_version(m->store, slot, chunk, version);
	device_images_publish(m, chunk, version);
	nodes &= place_primary(&m->place, chunk) == m->server->self;
	/* deltas_give() chooses a form of the newest image. */
	CHECK(!nodes || slot == m->img.slot);
	for (uint16_t n = 0; nodes && n < m->server->nodes_nr; n++) {
		struct send_queue *o = &m->img.out[n * connections + chunk % connections];

		if (o->lane != NULL && !place_holds(&m->place, chunk, n))
			send_queue_add(o, SEND_ENTRY(deltas_give(m, n, chunk, false), chunk));
	}
	list_each(it, &m->server->conns.sessions) {
		struct trainer *t = list_of(it, struct session, link)->trainer;

		if (t->model == m && t->has_image)
			send_queue_add(&t->image, SEND_ENTRY(slot, chunk));
	}
	if (apply_image_whole(m) &&
	    !m->attempt.voted) /* After a vote the verdict may overwrite it at any time. */
		store_image_whole(m->store);
	apply_tell(m);
	if (apply_image_whole(m))
		m->server->data->whole(m);
}

/* Learns what had to wait until no chunk is being published. */
static bool learn_later(struct model *m)
{
	const struct record *r = m->img.apply_left == 0 ? catchup_due(m) : NULL;

	if (r != NULL)
		apply_learn(m, r);
	return r != NULL;
}

void apply_maybe_done(struct model *m)
{
	if (!m->img.applying || m->memory.settle.on || m->img.apply_left > 0 || m->img.sends > 0 ||
	    m->attempt.leaving > 0)
		return;
	model_image_check(m);
	m->img.applying = false;
	m->img.apply_ns = clock_ns() - m->img.began_ns;
	images_applied(m);
	(void)learn_later(m); /* A decision that waited with it came first. */
	m->server->data->applied(m);
}

/* May a chunk be staged? A vote would allow the next commit to overwrite what is still being sent
 * or made, also by a seal. With weights that nobody wrote there is no vote. */
static bool may_stage(const struct model *m)
{
	return m->img.sends == 0 && !m->memory.durable.busy && !m->memory.settle.on &&
	       !m->img.sealing && m->sealed_without == 0 && !catchup_holds(m);
}

void apply_stage(struct model *m, uint32_t chunk)
{
	if (!m->attempt.on || !m->contrib.chunk[chunk].reduced)
		return;
	images_yield(m);
	if (may_stage(m)) {
		m->server->data->staged(m, chunk);
		return;
	}
	CHECK(m->img.staged_later_nr < m->layout->chunks_nr);
	m->img.staged_later[m->img.staged_later_nr++] = chunk;
}

static void stage_later(struct model *m)
{
	while (m->img.staged_later_nr > 0 && may_stage(m))
		apply_stage(m, m->img.staged_later[--m->img.staged_later_nr]);
}

void apply_stage_again(struct model *m)
{
	stage_later(m);
}

void apply_image_left(struct model *m)
{
	CHECK(m->img.sends > 0);
	if (--m->img.sends == 0) {
		if (m->dropping)
			server_wake(m->server, 1);
		apply_maybe_done(m);
		stage_later(m);
	}
	images_serve(m);
}

/* --- the image on its way out --- */

static uint64_t image_bytes(const struct model *m, uint32_t chunk)
{
	return data_bytes(m, chunk, layout_image_elem(m->layout, chunk));
}

static bool as_codes(const struct model *m, uint32_t which)
{
	return m->deltas != NULL && which == deltas_which(m);
}

static uint64_t sent_bytes(const struct model *m, uint32_t which, uint32_t chunk)
{
	return as_codes(m, which) ? deltas_codes(m)->bytes[chunk] : image_bytes(m, chunk);
}

static const uint8_t *image_at(const struct model *m, uint32_t which, uint32_t chunk)
{
	return as_codes(m, which) ? deltas_at(m, chunk) : store_image(m->store, which, chunk);
}

/* A skipped step may have moved the version on. Trainers wait for the version, and nodes for the
 * bytes. */
static void image_head(const struct send_queue *o, uint32_t which, struct wire_head *h)
{
	const struct model *m = o->model;
	bool codes = as_codes(m, which);
	uint32_t chunk = h->chunk, slot = codes ? m->img.slot : which;

	data_head(m, h, codes ? OP_IMAGE_CODES : OP_IMAGE_DATA, &m->record.id);
	h->step = o->peer == NULL ? store_image_chunk(m->store, slot, chunk)
				  : m->img.slot_content[slot];
	h->chunk = chunk;
}

static bool image_route(const struct send_queue *o, uint32_t which, uint32_t chunk,
			struct send_route *out)
{
	return as_codes(o->model, which) ? mr_codes(o->model, o->peer, chunk, out)
					 : mr_image(o->model, o->peer, which, chunk, out);
}

void apply_image_leaves(struct model *m)
{
	m->img.sends++;
}

const struct send_source apply_images = {
	.bytes = sent_bytes,
	.at = image_at,
	.head = image_head,
	.route = image_route,
	.out = apply_image_leaves,
	.back = apply_image_left,
	.waits = apply_image_leaves,
	.left = apply_image_left,
};

static void image_moved(struct model *m);

bool apply_makes_older(const struct model *m)
{
	return m->set.max_staleness > 0 && m->content_old != m->content_step;
}

/* While a step is being applied, some chunks of its image may be there and others not. All of them
 * are made again. A seal makes the image of the masters, and may not have come to its end. */
bool apply_has_kept(const struct model *m)
{
	return m->deltas != NULL && !m->memory.settle.apply && m->record.outcome != RECORD_SEAL;
}

/* Nodes that were not restarted have this image. A node that lacks it asks, and may have asked too
 * early for this chunk. While a vote is out, the verdict may overwrite the older image at any time,
 * so nobody is sent that one. */
static void settled(struct model *m);

static void settle_done(struct model *m, uint32_t chunk, uint64_t missing)
{
	if (apply_makes_older(m) && missing == 0)
		publish(m, m->img.slot ^ 1, chunk, m->content_old, false);
	if (missing == 0) {
		publish(m, m->img.slot, chunk, data_version(m), false);
		images_made(m, chunk);
	}
	if (m->img.apply_left == 0)
		settled(m);
}

/* No image is being made again any more. */
static void settled(struct model *m)
{
	struct core_state core;

	m->memory.settle.on =
		false; /* Not earlier, because a part that is sent at once must not end the step. */
	image_moved(m);
	if (m->img.seal_due) {
		m->img.seal_due = false;
		apply_seal(m, &m->img.seal_record);
		/* The decision that waited is of the step after it. */
		CHECK(m->img.apply_left == 0 || !m->img.applying);
	}
	if (!m->img.applying && learn_later(m))
		return;
	if (!m->img.applying)
		durable_begin(
			m, apply_stage_again); /* The process before may not have come to that. */
	stage_later(m);
	images_serve(m);
	if (!m->img.applying || m->dropping)
		return;
	core_state(m->core, &core); /* The decision that waited, see apply_later(). */
	m->img.applying = false;
	blobs_decided(m, core.record->id.step, false);
	apply_start(m, core.record);
}

/* --- chunks that the tier has done --- */

void apply_fed(struct model *m, enum feed_what what, uint32_t chunk, uint64_t missing)
{
	CHECK(m->img.apply_left > 0);
	m->img.apply_left--;
	if (m->img.apply_left == 0) {
		m->img.sealing = false;
		feed_end(m); /* The chunks that follow are held elsewhere. */
	}
	m->sealed_without += missing;
	if (what == FEED_SEAL && m->img.apply_left == 0 && m->sealed_without == 0)
		durable_begin(m, apply_stage_again); /* Before anybody hears of it. */
	if (what == FEED_SETTLE)
		settle_done(m, chunk, missing);
	else if (missing == 0)
		/* Otherwise nobody sees it, and seal.c tells the coordinator. */
		publish(m, m->img.slot, chunk, data_version(m), true);
	if (what == FEED_SETTLE || (what == FEED_SEAL && m->img.apply_left == 0))
		m->server->data->readable(m);
	if (what == FEED_SEAL && !learn_later(m))
		stage_later(m);
}

/* Begins to hand out every chunk that is held here. */
static void update(struct model *m, enum feed_what what)
{
	CHECK(m->img.apply_left == 0);
	m->img.apply_left = catchup_count(m);
	m->img.began_ns = clock_ns();
	m->img.tell_held = true;
	feed_begin(m, what);
	m->img.tell_held = false;
	if (m->img.tell_due)
		apply_tell(m);
}

void apply_turn(void *server)
{
	struct server *s = server;

	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		reduce_feed(m);
		m->img.tell_held = true;
		feed_go(m);
		m->img.tell_held = false;
		if (m->img.tell_due)
			apply_tell(m);
	}
}

static void count_lacking(struct model *m)
{
	m->img.lacking = m->img.others = 0;
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		m->img.others += !catchup_has(m, c);
		m->img.lacking += images_lacks(m, c);
	}
}

/* One of the lacking chunks has come, or other ones lack now. An image that is being made again
 * stays late until it is made. */
static void image_moved(struct model *m)
{
	images_moved(m);
	if (!m->memory.settle.on)
		images_late(m, false, 0, 0);
}

/* The slot gets the bytes of this step from now on, and what it had is gone. */
static void slot_takes(struct model *m, uint32_t slot, uint64_t content)
{
	CHECK(slot < 2);
	m->img.slot_content[slot] = content;
	if (slot != m->img.slot && content != m->content_old)
		m->img.old_lacking = 0;
}

/* From here on a start that finds this memory knows what is in it. It is called before the first
 * tile changes. */
static void keep_mark(struct model *m, bool moves)
{
	struct meta_mark mark = m->meta.mark;

	mark.id = m->record.id;
	mark.step = m->step;
	mark.content_step = m->content_step;
	mark.content_old = m->content_old;
	mark.stamp += moves;
	mark.load = META_LOAD_NONE;
	mark.cleared = m->generation;
	mark.residual = m->residual;
	if (meta_persistent(&m->meta))
		meta_mark(&m->meta, &mark);
}

/* No weight changes, but the version of every chunk that is here does. */
static void apply_skip(struct model *m, uint64_t before)
{
	m->content_old = m->content_step;
	m->content_step = m->record.content;
	m->img.old_lacking = 0;
	keep_mark(m, false);
	catchup_record(m, before, true);
	for (uint32_t c = 0; m->set.max_staleness == 0 && c < m->layout->chunks_nr; c++)
		if (store_image_chunk(m->store, 0, c) == before)
			store_image_version(m->store, 0, c, m->step);
	device_images_skip(m, before);
	count_lacking(m);
	if (apply_image_whole(m))
		store_image_whole(m->store);
	apply_tell(m);
	m->steps_skipped++;
	apply_maybe_done(m);
}

/* A decision came while the images are being made again after a restart. It waits for them, because
 * workers read what it changes, and because it writes the image of no frozen tensor. settle_done()
 * carries it out. Until then reads of weights wait, as for any step that is being applied. */
static void apply_later(struct model *m, const struct record *r)
{
	CHECK(!m->img.applying);
	m->img.applying = true;
	if (core_id_cmp(&m->meta.mark.id, &r->id) == 0)
		m->attempt.voted = false; /* It is the record in hand already. */
	if (m->img.apply_left == 0)
		apply_settle(m); /* The start found this decision. */
	else
		feed_go(m); /* A daemon that stops has handed out no more chunks so far. */
}

void apply_start(struct model *m, const struct record *r)
{
	uint64_t before = m->step, version = data_version(m);

	if (m->memory.settle.on) {
		apply_later(m, r);
		return;
	}
	m->record = *r;
	m->step = r->id.step;
	m->img.applying = true;
	m->attempt.voted = false;
	image_moved(m);
	if (r->outcome != RECORD_APPLIED) {
		apply_landings(m);
		apply_skip(m, before);
		return;
	}
	m->steps_applied++;
	if (core_id_cmp(&m->meta.mark.id, &r->id) == 0) { /* A warm start: the tiles have it. */
		count_lacking(m);
		if (apply_image_whole(m))
			store_image_whole(m->store);
		apply_tell(m);
		apply_maybe_done(m);
		return;
	}
	m->content_old = m->content_step;
	m->content_step = r->content;
	if (m->set.max_staleness > 0) {
		m->img.old_lacking = m->img.lacking;
		CHECK(m->img.slot != apply_slot(m, r));
		m->img.slot = apply_slot(m, r);
		store_image_newest(m->store, m->img.slot);
	}
	m->img.slot_content[m->img.slot] = m->content_step;
	m->img.coded = deltas_made(m, r);
	m->img.half = r->applied & 1;
	m->img.before = version;
	catchup_record(m, before, false);
	apply_landings(m);
	count_lacking(m);
	images_begin(m);
	if (core_id_cmp(&m->attempt.id, &r->id) == 0)
		contrib_lost(m, r, &m->residual);
	keep_mark(m, true);
	update(m, FEED_UPDATE);
	apply_maybe_done(m); /* If no chunk is held here, the record is applied already. */
}

void apply_settle(struct model *m)
{
	uint32_t chunk;
	uint64_t step;

	CHECK(m->sealed && m->memory.settle.on && m->attempt.busy == 0);
	update(m, FEED_SETTLE);
	if (images_awaited(m, &chunk, &step))
		images_late(m, true, chunk, step);
}

void apply_settled(const struct model *m, uint32_t *done, uint32_t *all)
{
	*all = m->memory.settle.on ? catchup_count(m) : 0;
	*done = *all > 0 ? *all - m->img.apply_left : 0;
}

/* The image of that record does not come from those that are here. Chunks of these that wait to
 * leave would be named as of the other one. */
static void other_image(struct model *m, const struct record *r)
{
	uint32_t outs = (uint32_t)m->memory.nodes_nr * m->server->conf->connections;

	images_reset(m); /* Before chunks leave the queues, so that no other ones come in. */
	for (uint32_t i = 0; i < outs; i++)
		send_queue_drop(&m->img.out[i]);
	m->img.slot = apply_slot(m, r);
	m->img.half = r->applied & 1;
	m->img.coded = false;
	store_image_newest(m->store, m->img.slot);
	m->img.slot_content[m->img.slot] = m->content_step;
	m->img.slot_content[m->img.slot ^ 1] = UINT64_MAX;
	store_image_generation(m->store, m->generation);
	device_images_void(m);
	deltas_reset(m);
}

void apply_seal(struct model *m, const struct record *r)
{
	CHECK(r->outcome == RECORD_SEAL || r->id.generation > 0);
	if (m->memory.settle.on) {
		/* It started with its memory, and a view has taken its chunks away before the
		 * images of the older step are made. settle_done() carries it out. */
		m->img.seal_due = true;
		m->img.seal_record = *r;
		return;
	}
	m->record = *r;
	m->sealed = true;
	m->img.sealing = catchup_count(m) > 0; /* Otherwise nothing ends it. */
	m->generation = r->id.generation;
	m->step = r->id.step;
	/* If r is a skipped step, this is an older one. A node that holds chunks makes only the
	 * newest image of them, but then r is the seal itself, which has one image. */
	m->content_step = r->content;
	m->content_old = m->img.sealing ? r->content : r->content_old;
	other_image(m, r);
	apply_landings(m);
	count_lacking(m);
	m->img.old_lacking = apply_makes_older(m) ? m->img.lacking : 0;
	image_moved(m);
	keep_mark(m, false);
	update(m, FEED_SEAL);
	images_ask(m);
	model_image_check(m);
}

void apply_learn(struct model *m, const struct record *r)
{
	if (m->memory.settle.on || m->img.sealing) {
		catchup_later(m, r);
		return;
	}
	CHECK(!m->img.applying && m->img.apply_left == 0);
	if (m->sealed && m->sealed_without == 0 && core_id_cmp(&m->record.id, &r->id) == 0) {
		catchup_start(m, false); /* The images are those of this record. */
		count_lacking(m);
		return;
	}
	m->record = *r;
	m->sealed = true;
	m->sealed_without = 0;
	m->generation = r->id.generation;
	m->step = r->id.step;
	m->content_step = r->content;
	m->content_old = r->content_old;
	other_image(m, r);
	catchup_start(m, true);
	apply_landings(m);
	count_lacking(m);
	m->img.old_lacking = apply_makes_older(m) ? m->img.lacking : 0;
	image_moved(m);
	keep_mark(m, false);
	images_ask(m);
	model_image_check(m);
}

/* --- image chunks of other nodes --- */

void apply_placed(struct model *m)
{
	if (m->sealed)
		count_lacking(m);
	images_placed(m);
	feed_placed(m);
	if (!m->again)
		apply_settle_none(m);
}

void apply_settle_none(struct model *m)
{
	if (!m->memory.settle.on || m->img.apply_left > 0)
		return;
	feed_end(m);
	settled(m);
}

/* From its vote on this node takes nothing but bytes of the attempt into the image that the attempt
 * overwrites. They may be there already, by RDMA or from another primary, when a part of an older
 * step arrives late over TCP. Codes land elsewhere, and deltas_fit() judges them. */
bool apply_image_wanted(const struct model *m, const struct wire_head *h, uint32_t *slot)
{
	bool two = m->set.max_staleness > 0, open = m->attempt.voted && h->op != OP_IMAGE_CODES;

	*slot = m->img.slot;
	if (h->generation != m->generation || catchup_has(m, h->chunk) || deltas_busy(m, h->chunk))
		return false;
	if (m->sealed && h->step == m->content_step)
		return (two || !open) && images_lacks(m, h->chunk);
	if (two)
		*slot ^= 1;
	if (m->sealed && !open && h->step == m->content_old && images_lacks_old(m, h->chunk))
		return true;
	/* With codes, this node makes the image of the chunk of the one before. */
	if (m->deltas != NULL && catchup_will(m, h->chunk))
		return false;
	/* What is still being made again of an older step must not get into it. */
	return m->attempt.voted && !m->memory.settle.on && h->step == m->attempt.id.step &&
	       h->attempt == m->attempt.id.attempt && h->term == m->attempt.id.term &&
	       h->seq == m->attempt.id.seq;
}

static bool still_wanted(const void *model, const struct wire_head *h)
{
	uint32_t slot;

	return apply_image_wanted(model, h, &slot) &&
	       (h->op != OP_IMAGE_CODES || deltas_fit(model, h->step, h->chunk));
}

void apply_landings(struct model *m)
{
	landing_judge(&m->img.landing, still_wanted, m);
}

void apply_open(struct model *m)
{
	CHECK(m->attempt.voted);
	store_image_open(m->store);
	apply_landings(m);
}

enum shard_status apply_image_head(struct model *m, const struct wire_head *h, void **to,
				   struct err *e)
{
	uint32_t part = WIRE_PART(h->flags), slot;

	*to = STREAM_DISCARD;
	if (h->chunk >= m->layout->chunks_nr || part >= data_parts(image_bytes(m, h->chunk)) ||
	    h->body_bytes != data_part_bytes(image_bytes(m, h->chunk), part))
		return err_set(e, SHARD_PROTOCOL,
			       "image part %u (%u bytes) of chunk %u of \"%s\": no such part", part,
			       h->body_bytes, h->chunk, m->name);
	if (!apply_image_wanted(m, h, &slot))
		return SHARD_OK;
	slot_takes(m, slot, h->step);
	if (part == 0 || m->img.coming[h->chunk] != h->step) {
		m->img.coming[h->chunk] = h->step;
		m->img.parts[h->chunk] = 0;
	}
	*to = (uint8_t *)store_image(m->store, slot, h->chunk) + (size_t)part * WIRE_PART_BYTES;
	data_flow_add(&m->image_in, 0);
	return SHARD_OK;
}

bool apply_image_lacks(const struct model *m, uint64_t step, uint32_t chunk, uint32_t *slot)
{
	*slot = m->img.slot;
	if (m->sealed && step == m->content_step)
		return images_lacks(m, chunk);
	if (m->set.max_staleness > 0)
		*slot ^= 1;
	return m->attempt.voted && !m->memory.settle.on && step == m->attempt.id.step &&
	       !catchup_has(m, chunk);
}

void apply_image_came(struct model *m, uint32_t slot, uint32_t chunk, uint64_t step)
{
	bool decided = m->sealed && step == m->content_step;

	if (decided)
		m->img.lacking--;
	else if (m->img.old_lacking > 0 && step == m->content_old)
		m->img.old_lacking--;
	image_moved(m);
	images_came(m, chunk);
	publish(m, slot, chunk, decided ? data_version(m) : step, true);
	m->server->data->readable(m);
	catchup_tell(m);
}

enum shard_status apply_image_part(struct model *m, const struct wire_head *h, struct err *e)
{
	uint32_t slot;

	(void)e;
	if (!apply_image_wanted(m, h, &slot) || m->img.coming[h->chunk] != h->step)
		return SHARD_OK;
	if (WIRE_PART(h->flags) != m->img.parts[h->chunk])
		return SHARD_OK; /* Its beginning was missed. The chunk is asked for again. */
	data_flow_add(&m->image_in, h->body_bytes);
	images_heard(m, h->chunk);
	if (++m->img.parts[h->chunk] < data_parts(image_bytes(m, h->chunk)))
		return SHARD_OK;
	apply_image_came(m, slot, h->chunk, h->step);
	return SHARD_OK;
}

void apply_trainer_image(struct model *m, struct trainer *t)
{
	CHECK(t->model == m);
	if (t->session->local || t->has_image)
		return;
	t->has_image = true;
	send_queue_attach(&t->image, &t->session->lane);
	for (uint32_t c = 0; m->content_old != m->content_step && c < m->layout->chunks_nr; c++)
		if (images_has_old(m, c))
			send_queue_add(&t->image, SEND_ENTRY(m->img.slot ^ 1, c));
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		if (store_image_chunk(m->store, m->img.slot, c) == data_version(m))
			send_queue_add(&t->image, SEND_ENTRY(m->img.slot, c));
}

void apply_node_gone(struct model *m, uint16_t node)
{
	uint32_t connections = m->server->conf->connections;

	CHECK(node < m->server->nodes_nr);
	for (uint32_t i = 0; i < connections; i++) {
		send_queue_detach(&m->attempt.out[node * connections + i]);
		send_queue_detach(&m->img.out[node * connections + i]);
	}
	images_node_gone(m, node);
	deltas_node_gone(m, node);
	grad_node_gone(m, node);
	catchup_node_gone(m, node);
}

void apply_node_back(struct model *m, uint16_t node)
{
	uint32_t connections = m->server->conf->connections;
	struct peer *p = m->server->peer[node];

	CHECK(p != NULL && p->up);
	for (uint32_t i = 0; i < connections; i++) {
		send_queue_attach(&m->attempt.out[node * connections + i], &p->conns[i].lane);
		send_queue_attach(&m->img.out[node * connections + i], &p->conns[i].lane);
	}
	grad_node_back(m, node);
	catchup_node_back(m, node);
	images_node_back(m, node);
}
