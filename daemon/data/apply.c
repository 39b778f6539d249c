/* SPDX-License-Identifier: Apache-2.0 */
/* What happens after COMMIT: one pass of the optimizer over every chunk held here, then the way of
 * the image to trainers and other nodes. model.c starts it, workers run the passes, and dispatch.c
 * brings image parts from other nodes. Image frames are named by the last step that changed weights
 * (content_step) and judged by it, never by view. A part is taken if its step is the one decided
 * here. A PREPARED node also takes a part of the attempt that it voted for, because its bytes prove
 * the commit. Chunks that were missed (a link fell) are asked for again, once a second. With
 * max_staleness = 1 there are two images. Each applied step is written to the one without the
 * newest weights, and the version of a chunk is the step that wrote it. */
#include "data/apply.h"

#include "base/check.h"
#include "base/clock.h"
#include "data/blobs.h"
#include "data/data.h"
#include "data/events.h"
#include "data/feed.h"
#include "data/catchup.h"
#include "link/peer.h"
#include "data/mr.h"
#include "data/reduce.h"
#include "data/trainer.h"
#include "link/session.h"
#include "wire/ops.h"

#include <string.h>

#define APPLY_ASK_NS    NS_PER_SEC
#define APPLY_ASKS_LATE 2 /* From then on the coordinator and the trainers hear of it. */
#define APPLY_ASKS_LOG  5 /* At this count it is logged, and again after every 60. */
#define APPLY_RUNS_MAX  1024

uint32_t apply_slot(const struct model *m, const struct record *r)
{
	return m->set.max_staleness > 0 ? r->applied & 1 : 0;
}

bool apply_image_whole(const struct model *m)
{
	return m->sealed && m->img.apply_left == 0 && m->img.lacking == 0;
}

/* Chunks that become ready together are told together, because every frame wakes its trainer. */
static void tell_trainers(struct model *m)
{
	m->img.tell_due = m->img.tell_held || worker_in_turn(m->server->pool);
	if (m->img.tell_due)
		return;
	store_image_published(m->store);
	m->server->data->published(m);
}

static void send_to(struct send_queue *o, uint32_t slot, uint32_t chunk)
{
	send_queue_add(o, slot ? chunk | SEND_SLOT : chunk);
}

/* A chunk has its new bytes. nodes: the nodes that get it, if this node is its primary and they
 * hold no copy of their own. */
static void publish(struct model *m, uint32_t slot, uint32_t chunk, uint64_t version,
		    uint64_t nodes)
{
	uint32_t connections = m->server->conf->connections;

	CHECK(chunk < m->layout->chunks_nr && slot < 2);
	store_image_version(m->store, slot, chunk, version);
	for (uint16_t n = 0;
	     place_primary(&m->place, chunk) == m->server->self && n < m->server->nodes_nr; n++)
		if (nodes >> n & 1 && !place_holds(&m->place, chunk, n))
			send_to(&m->img.out[n * connections + chunk % connections], slot, chunk);
	list_each(it, &m->server->conns.sessions) {
		struct trainer *t = list_of(it, struct session, link)->trainer;

		if (t->model == m && t->has_image)
			send_to(&t->image, slot, chunk);
	}
	if (apply_image_whole(m) &&
	    !m->attempt.voted) /* After a vote the verdict may overwrite it at any time. */
		store_image_whole(m->store);
	tell_trainers(m);
	if (apply_image_whole(m))
		m->server->data->whole(m);
}

/* Whoever adopts a view before this node does may ask it as the primary that it becomes. */
static void answer_early(struct model *m)
{
	uint32_t connections = m->server->conf->connections;

	for (uint64_t left = m->img.asked_early; left != 0; left &= left - 1) {
		uint32_t n = (uint32_t)__builtin_ctzll(left);

		for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
			if (place_holds(&m->place, c, m->server->self) &&
			    place_primary(&m->place, c) != m->server->self &&
			    !place_holds(&m->place, c, n) &&
			    store_image_chunk(m->store, m->img.slot, c) == data_version(m))
				send_to(&m->img.out[n * connections + c % connections], m->img.slot,
					c);
	}
	m->img.asked_early = 0;
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
	answer_early(m);
	(void)learn_later(m); /* A decision that waited with it came first. */
	m->server->data->applied(m);
}

/* May a chunk be staged? A vote would allow the next commit to overwrite what is still being sent
 * or made, also by a seal. With weights that nobody wrote there is no vote. */
static bool may_stage(const struct model *m)
{
	return m->img.sends == 0 && !m->memory.settle.on && !m->img.sealing &&
	       m->sealed_without == 0 && !catchup_holds(m);
}

void apply_stage(struct model *m, uint32_t chunk)
{
	if (!m->attempt.on || !m->contrib.chunk[chunk].reduced)
		return;
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

static void image_sent(struct model *m)
{
	CHECK(m->img.sends > 0);
	if (--m->img.sends > 0)
		return;
	if (m->dropping)
		server_wake(m->server, 1);
	apply_maybe_done(m);
	stage_later(m);
}

/* --- the image on its way out --- */

static uint32_t image_bytes(const struct model *m)
{
	return m->image_bytes;
}

static const uint8_t *image_at(const struct model *m, uint32_t slot, uint32_t chunk)
{
	return store_image(m->store, slot, chunk);
}

/* A skipped step may have moved the version on. Trainers wait for the version, and nodes for the
 * bytes. */
static void image_head(const struct send_queue *o, uint32_t slot, struct wire_head *h)
{
	const struct model *m = o->model;
	uint32_t chunk = h->chunk;

	data_head(m, h, OP_IMAGE_DATA, &m->record.id);
	h->step = o->peer == NULL ? store_image_chunk(m->store, slot, chunk)
				  : m->img.slot_content[slot];
	h->chunk = chunk;
}

static bool image_route(const struct send_queue *o, uint32_t slot, uint32_t chunk,
			struct send_route *out)
{
	return mr_image(o->model, o->peer, slot, chunk, out);
}

static void image_out(struct model *m)
{
	m->img.sends++;
}

const struct send_source apply_images = {
	.elem_bytes = image_bytes,
	.at = image_at,
	.head = image_head,
	.route = image_route,
	.out = image_out,
	.back = image_sent,
	.waits = image_out,
	.left = image_sent,
};

static void image_moved(struct model *m);

bool apply_makes_older(const struct model *m)
{
	return m->set.max_staleness > 0 && m->content_old != m->content_step;
}

/* Nodes that were not restarted have this image. A node that lacks it asks, and may have asked too
 * early for this chunk. While a vote is out, the verdict may overwrite the older image at any time,
 * so nobody is sent that one. */
static void settle_done(struct model *m, uint32_t chunk, uint64_t missing)
{
	struct model_settle *s = &m->memory.settle;
	struct core_state core;

	if (apply_makes_older(m) && missing == 0)
		publish(m, m->img.slot ^ 1, chunk, m->content_old, m->attempt.voted ? 0 : s->asked);
	if (missing == 0)
		publish(m, m->img.slot, chunk, data_version(m), s->asked);
	if (m->img.apply_left > 0)
		return;
	s->on = false; /* Not earlier, because a part that is sent at once must not end the step. */
	image_moved(m);
	if (!m->img.applying && learn_later(m))
		return;
	stage_later(m);
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
	if (what == FEED_SETTLE)
		settle_done(m, chunk, missing);
	else if (missing == 0)
		/* Otherwise nobody sees it, and seal.c tells the coordinator. */
		publish(m, m->img.slot, chunk, data_version(m), UINT64_MAX);
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
		tell_trainers(m);
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
			tell_trainers(m);
	}
}

static bool stale(const struct model *m, uint32_t chunk)
{
	return store_image_chunk(m->store, m->img.slot, chunk) != data_version(m);
}

static bool lacks(const struct model *m, uint32_t chunk)
{
	return !catchup_has(m, chunk) && stale(m, chunk);
}

/* Is this chunk missing in the image of the step before, on which trainers may still compute? */
static bool lacks_old(const struct model *m, uint32_t chunk)
{
	return m->img.old_lacking > 0 && !catchup_has(m, chunk) &&
	       store_image_chunk(m->store, m->img.slot ^ 1, chunk) != m->content_old;
}

static void count_lacking(struct model *m)
{
	m->img.lacking = 0;
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		m->img.lacking += lacks(m, c);
}

static void image_late(struct model *m, bool late, uint32_t chunk, uint64_t step)
{
	if (!late && !m->img.late)
		return;
	m->img.late = late;
	m->server->data->late(m, late, chunk, step);
}

/* One of the lacking chunks has come, or other ones lack now. An image that is being made again
 * stays late until it is made. */
static void image_moved(struct model *m)
{
	m->img.asks = 0;
	if (!m->memory.settle.on)
		image_late(m, false, 0, 0);
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
	count_lacking(m);
	if (apply_image_whole(m))
		store_image_whole(m->store);
	tell_trainers(m);
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
	uint64_t before = m->step;

	if (m->memory.settle.on) {
		apply_later(m, r);
		return;
	}
	m->record = *r;
	m->step = r->id.step;
	m->img.applying = true;
	m->img.asked_early = 0;
	m->attempt.voted = false;
	image_moved(m);
	if (r->outcome != RECORD_APPLIED) {
		apply_landings(m);
		apply_skip(m, before);
		return;
	}
	m->steps_applied++;
	if (core_id_cmp(&m->meta.mark.id, &r->id) == 0) { /* A warm start: the tiles have it. */
		m->img.asked_ns = clock_ns();
		count_lacking(m);
		if (apply_image_whole(m))
			store_image_whole(m->store);
		tell_trainers(m);
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
	m->img.asked_ns = clock_ns();
	catchup_record(m, before, false);
	apply_landings(m);
	count_lacking(m);
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
	if (apply_image_awaited(m, &chunk, &step))
		image_late(m, true, chunk, step);
}

void apply_settled(const struct model *m, uint32_t *done, uint32_t *all)
{
	*all = m->memory.settle.on ? catchup_count(m) : 0;
	*done = *all > 0 ? *all - m->img.apply_left : 0;
}

void apply_seal(struct model *m, const struct record *r)
{
	CHECK(r->outcome == RECORD_SEAL || r->id.generation > 0);
	m->record = *r;
	m->sealed = true;
	m->img.sealing = catchup_count(m) > 0; /* Otherwise nothing ends it. */
	m->generation = r->id.generation;
	m->step = r->id.step;
	/* If r is a skipped step, this is an older one. */
	m->content_step = m->content_old = r->content;
	m->img.slot = apply_slot(m, r);
	store_image_newest(m->store, m->img.slot);
	m->img.slot_content[m->img.slot] = m->content_step;
	m->img.slot_content[m->img.slot ^ 1] = UINT64_MAX;
	m->img.old_lacking = 0;
	store_image_generation(m->store, m->generation);
	apply_landings(m);
	count_lacking(m);
	image_moved(m);
	keep_mark(m, false);
	update(m, FEED_SEAL);
	apply_image_ask(m, clock_ns());
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
	m->content_step = m->content_old = r->content;
	m->img.slot = apply_slot(m, r);
	store_image_newest(m->store, m->img.slot);
	m->img.slot_content[m->img.slot] = m->content_step;
	m->img.slot_content[m->img.slot ^ 1] = UINT64_MAX;
	m->img.old_lacking = 0;
	store_image_generation(m->store, m->generation);
	catchup_start(m, true);
	apply_landings(m);
	count_lacking(m);
	image_moved(m);
	keep_mark(m, false);
	apply_image_ask(m, clock_ns());
	model_image_check(m);
}

/* --- image chunks of other nodes --- */

void apply_image_ask(struct model *m, uint64_t now_ns)
{
	uint32_t *runs = arena_take(&m->server->scratch.tx, 2 * APPLY_RUNS_MAX * sizeof(*runs));
	struct wire_head h;

	CHECK(runs != NULL);
	m->img.asked_ns = now_ns;
	for (uint16_t n = 0; n < m->server->nodes_nr; n++) {
		Shard__Chunks want = SHARD__CHUNKS__INIT;
		bool open = false;

		want.runs = runs;
		for (uint32_t c = 0; c < m->layout->chunks_nr && want.n_runs < 2 * APPLY_RUNS_MAX;
		     c++) {
			bool want_it = place_primary(&m->place, c) == n &&
				       (lacks(m, c) || lacks_old(m, c));

			if (want_it && open)
				runs[want.n_runs - 1]++;
			else if (want_it)
				runs[want.n_runs++] = c, runs[want.n_runs++] = 1;
			open = want_it;
		}
		if (n == m->server->self || want.n_runs == 0)
			continue;
		data_head(m, &h, OP_IMAGE_ASK, &m->record.id);
		/* If the link is down, it is asked again when the link is up. */
		(void)peer_send(m->server, n, &h, &want.base, NULL);
	}
	arena_reset(&m->server->scratch.tx);
}

void apply_placed(struct model *m)
{
	if (m->sealed)
		count_lacking(m);
	if (m->sealed && (m->img.lacking > 0 || m->img.old_lacking > 0))
		apply_image_ask(m, clock_ns());
}

/* After a warm start this is a chunk that is held here, otherwise one of another node. With two
 * images trainers compute on the older one, if there is one. */
bool apply_image_awaited(const struct model *m, uint32_t *chunk, uint64_t *step)
{
	bool old = m->set.max_staleness > 0 && m->content_old != m->content_step;

	*step = old ? m->content_old : m->content_step;
	for (*chunk = 0; m->memory.settle.on && *chunk < m->layout->chunks_nr; ++*chunk)
		if (place_holds(&m->place, *chunk, m->server->self) && stale(m, *chunk))
			return true;
	if (!m->sealed || (old ? m->img.old_lacking : m->img.lacking) == 0)
		return false;
	for (*chunk = 0; *chunk < m->layout->chunks_nr; ++*chunk)
		if (old ? lacks_old(m, *chunk) : lacks(m, *chunk))
			return true;
	return false;
}

void apply_image_beat(struct model *m, uint64_t now_ns)
{
	uint32_t chunk, first = 0, lack = m->img.lacking + m->img.old_lacking;
	const char *holder;
	uint64_t step;

	if (m->memory.settle.on && apply_image_awaited(m, &chunk, &step))
		image_late(m, true, chunk, step);
	if (!m->sealed || lack == 0 || now_ns - m->img.asked_ns <= APPLY_ASK_NS)
		return;
	m->img.asks++;
	while (first + 1 < m->layout->chunks_nr && !lacks(m, first) && !lacks_old(m, first))
		first++;
	holder = members_name(m->server, place_primary(&m->place, first));
	if (m->img.asks % 60 == APPLY_ASKS_LOG)
		log_line(m->server->log, LOG_LEVEL_WARN,
			 "event=image_late model=%s step=%lu chunk=%u node=%s lack=%u asks=%u",
			 m->name, (unsigned long)m->content_step, first, holder, lack, m->img.asks);
	if (m->img.asks >= APPLY_ASKS_LATE && apply_image_awaited(m, &chunk, &step))
		image_late(m, true, chunk, step);
	apply_image_ask(m, now_ns);
}

static bool has_old(const struct model *m, uint32_t chunk)
{
	return m->set.max_staleness > 0 && m->img.slot_content[m->img.slot ^ 1] == m->content_old &&
	       store_image_chunk(m->store, m->img.slot ^ 1, chunk) == m->content_old;
}

/* Does it ask for a chunk of which this node is not the primary, as far as it knows yet? */
static bool asks_follower(const struct model *m, const Shard__Chunks *want)
{
	uint32_t chunks = m->layout->chunks_nr, looked = 0;

	for (size_t i = 0; i + 1 < want->n_runs; i += 2)
		for (uint64_t c = want->runs[i], end = c + want->runs[i + 1];
		     c < end && c < chunks && looked < chunks; c++, looked++)
			if (place_primary(&m->place, (uint32_t)c) != m->server->self)
				return true;
	return false;
}

void apply_image_asked(struct model *m, uint16_t node, const Shard__Chunks *want)
{
	uint32_t connections = m->server->conf->connections;
	uint64_t asked = 0; /* Limits the work, whatever the runs say. */

	CHECK(node < m->server->nodes_nr);
	if (m->img.applying && !m->memory.settle.on && asks_follower(m, want))
		m->img.asked_early |= 1ull << node;
	if (!m->sealed || (m->set.max_staleness == 0 && (m->attempt.voted || m->img.applying)))
		return; /* It would be overwritten while it is sent. The node asks again in a
			   second. Of two images the newest is not the next to be overwritten. */
	if (m->memory.settle.on)
		m->memory.settle.asked |= 1ull << node;
	for (size_t i = 0; i + 1 < want->n_runs; i += 2) {
		for (uint32_t k = 0; k < want->runs[i + 1] && asked < 2ull * m->layout->chunks_nr;
		     k++, asked++) {
			uint64_t c = (uint64_t)want->runs[i] + k;
			struct send_queue *o;

			if (c >= m->layout->chunks_nr ||
			    !place_holds(&m->place, c, m->server->self))
				continue;
			o = &m->img.out[node * connections + c % connections];
			if (m->content_old != m->content_step && !m->attempt.voted &&
			    has_old(m, (uint32_t)c))
				send_to(o, m->img.slot ^ 1, (uint32_t)c);
			if (store_image_chunk(m->store, m->img.slot, (uint32_t)c) ==
			    data_version(m))
				send_to(o, m->img.slot, (uint32_t)c);
		}
	}
}

/* Is this a part to take now, and into which image? */
static bool image_wanted(const struct model *m, const struct wire_head *h, uint32_t *slot)
{
	*slot = m->img.slot;
	if (h->generation != m->generation || catchup_has(m, h->chunk))
		return false;
	if (m->sealed && h->step == m->content_step)
		return lacks(m, h->chunk);
	if (m->set.max_staleness > 0)
		*slot ^= 1;
	if (m->sealed && h->step == m->content_old && lacks_old(m, h->chunk))
		return true;
	return m->attempt.voted && h->step == m->attempt.id.step &&
	       h->attempt == m->attempt.id.attempt && h->term == m->attempt.id.term &&
	       h->seq == m->attempt.id.seq;
}

static bool still_wanted(const void *model, const struct wire_head *h)
{
	uint32_t slot;

	return image_wanted(model, h, &slot);
}

void apply_landings(struct model *m)
{
	landing_judge(&m->img.landing, still_wanted, m);
}

enum shard_status apply_image_head(struct model *m, const struct wire_head *h, void **to,
				   struct err *e)
{
	uint32_t part = WIRE_PART(h->flags), slot;

	*to = STREAM_DISCARD;
	if (h->chunk >= m->layout->chunks_nr || part >= data_parts(m, h->chunk, m->image_bytes) ||
	    h->body_bytes != data_part_bytes(m, h->chunk, m->image_bytes, part))
		return err_set(e, SHARD_PROTOCOL,
			       "image part %u (%u bytes) of chunk %u of \"%s\": no such part", part,
			       h->body_bytes, h->chunk, m->name);
	if (!image_wanted(m, h, &slot))
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

enum shard_status apply_image_part(struct model *m, const struct wire_head *h, struct err *e)
{
	bool decided = m->sealed && h->step == m->content_step,
	     old = m->img.old_lacking > 0 && h->step == m->content_old;
	uint32_t slot;

	(void)e;
	if (!image_wanted(m, h, &slot) || m->img.coming[h->chunk] != h->step)
		return SHARD_OK;
	if (WIRE_PART(h->flags) != m->img.parts[h->chunk])
		return SHARD_OK; /* Its beginning was missed. The chunk is asked for again. */
	data_flow_add(&m->image_in, h->body_bytes);
	if (++m->img.parts[h->chunk] < data_parts(m, h->chunk, m->image_bytes))
		return SHARD_OK;
	if (decided)
		m->img.lacking--;
	else if (old)
		m->img.old_lacking--;
	image_moved(m);
	publish(m, slot, h->chunk, decided ? data_version(m) : h->step, UINT64_MAX);
	m->server->data->readable(m);
	catchup_tell(m);
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
		if (has_old(m, c))
			send_to(&t->image, m->img.slot ^ 1, c);
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		if (store_image_chunk(m->store, m->img.slot, c) == data_version(m))
			send_to(&t->image, m->img.slot, c);
}

void apply_node_gone(struct model *m, uint16_t node)
{
	uint32_t connections = m->server->conf->connections;

	CHECK(node < m->server->nodes_nr);
	for (uint32_t i = 0; i < connections; i++) {
		send_queue_detach(&m->attempt.out[node * connections + i]);
		send_queue_detach(&m->img.out[node * connections + i]);
	}
	m->img.asked_early &= ~(1ull << node);
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
	if (m->sealed && (m->img.lacking > 0 || m->img.old_lacking > 0))
		apply_image_ask(m, clock_ns());
}
