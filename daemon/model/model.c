/* SPDX-License-Identifier: Apache-2.0 */
/* Drives one model on this node: it gives the core events and carries out the core's actions.
 * dispatch.c brings frames of other nodes, data/ reports by data_events, and join.c, control/ and
 * ckpt/ raise events. The layers above get events by model/watch.h. Happy path of a step: ACT_BEGIN
 * sends the attempt to the trainers, chunks are staged, ACT_OPEN and a vote follow, then ACT_RESULT
 * and ACT_APPLY, and at last CORE_EV_APPLIED. Events reach the cores of all models one at a time.
 * An event that an action raises at once, as for a small chunk computed on the loop, waits until
 * the actions of the event before it are done. Such events carry no pointers. A frame that is wrong
 * is refused with SHARD_PROTOCOL, which closes the link. */
#include "model/model.h"
#include "model/writer.h"

#include "data/apply.h"
#include "data/images.h"
#include "data/catchup.h"
#include "base/check.h"
#include "base/clock.h"
#include "data/blobs.h"
#include "model/corewire.h"
#include "data/data.h"
#include "data/durable.h"
#include "data/events.h"
#include "model/lead.h"
#include "model/lost.h"
#include "model/note.h"
#include "model/odd.h"
#include "model/outgoing.h"
#include "model/rooms.h"
#include "model/tables.h"
#include "link/peer.h"
#include "model/view_file.h"
#include "link/session.h"
#include "model/join.h"
#include "model/watch.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model *model_find(struct server *s, uint32_t id)
{
	list_each(it, &s->models)
		if (list_of(it, struct model, link)->id == id)
			return list_of(it, struct model, link);
	return NULL;
}

struct model *model_making(struct server *s, uint32_t id)
{
	list_each(it, &s->makings)
		if (list_of(it, struct model, link)->id == id)
			return list_of(it, struct model, link);
	return NULL;
}

struct model *model_making_name(struct server *s, const char *name)
{
	list_each(it, &s->makings)
		if (strcmp(list_of(it, struct model, link)->name, name) == 0)
			return list_of(it, struct model, link);
	return NULL;
}

struct model *model_by_name(struct server *s, const char *name)
{
	list_each(it, &s->models)
		if (strcmp(list_of(it, struct model, link)->name, name) == 0)
			return list_of(it, struct model, link);
	return NULL;
}

void model_reply(struct session *t, uint16_t op, uint32_t tag, const struct model *m,
		 const ProtobufCMessage *msg)
{
	struct wire_head h = {.op = op, .flags = WIRE_REPLY, .attempt = tag};

	if (m != NULL) {
		h.model = m->id;
		h.generation = m->generation;
		h.step = m->step;
	}
	session_tell(t, &h, msg);
}

void model_tell(struct session *t, uint16_t op, const struct model *m, const struct core_id *id,
		const ProtobufCMessage *msg)
{
	struct wire_head h;

	data_head(m, &h, op, id);
	session_tell(t, &h, msg);
}

/* --- arenas of trainers that are gone --- */

/* Gives the arenas of trainers that are gone back, once nothing uses them. It is called wherever
 * one of its conditions may have become true, because a JOIN that waits has no other wake-up.
 */
static void reclaim(struct model *m)
{
	if (m->attempt.orphans == 0 || m->attempt.busy > 0 || m->img.applying || m->attempt.on ||
	    m->dropping)
		return;
	for (uint32_t slot = 0; slot < CONTRIB_LOCAL_MAX; slot++)
		if (m->attempt.orphans >> slot & 1)
			join_slot_closed(m, slot);
	m->attempt.orphans = 0;
	join_waiting(m);
}

void model_orphan(struct model *m, uint32_t slot)
{
	m->attempt.orphans |= 1ull << slot;
	reclaim(m);
}

/* --- events of data/ --- */

static void data_staged(struct model *m, uint32_t chunk)
{
	const struct contrib_chunk *c = &m->contrib.chunk[chunk];

	model_event(m, &(struct core_event){
			       .type = CORE_EV_STAGED,
			       .id = m->attempt.id,
			       .chunk = chunk,
			       .sumsq = c->sumsq,
			       .finite = c->finite,
			       .bad_tensor = c->bad_tensor,
			       .bad_rank = c->bad_rank,
			       .on = m->reduced.said[chunk].differs,
		       });
}

static void data_drained(struct model *m)
{
	if (m->dropping)
		server_wake(m->server, 1);
	if (m->attempt.drain_due) {
		m->attempt.drain_due = false;
		model_event(m, &(struct core_event){.type = CORE_EV_DRAINED,
						    .id = m->attempt.drain_id});
	}
	reclaim(m);
	WATCH_TELL(m->server, boundary, m);
}

static void data_damaged(struct model *m, uint16_t node, uint32_t chunk)
{
	model_event(m, &(struct core_event){.type = CORE_EV_DAMAGED,
					    .id = m->attempt.id,
					    .node = node,
					    .chunk = chunk});
}

static void data_differ(struct model *m, uint64_t session, const char *why)
{
	model_event(m, &(struct core_event){.type = CORE_EV_ABANDON,
					    .id = m->attempt.id,
					    .session = session,
					    .why = why,
					    .differ = true});
}

static void data_applied(struct model *m)
{
	WATCH_TELL(m->server, applied, m);
	WATCH_TELL(m->server, readable, m);
	WATCH_TELL(m->server, boundary, m);
	model_event(m, &(struct core_event){.type = CORE_EV_APPLIED,
					    .id = m->record.id,
					    .on = catchup_caught(m)});
	catchup_serve(m);
}

static void data_learned(struct model *m)
{
	model_event(m, &(struct core_event){.type = CORE_EV_LEARNED, .id = m->record.id});
}

static void data_late(struct model *m, bool late, uint32_t chunk, uint64_t step)
{
	model_event(m, &(struct core_event){
			       .type = CORE_EV_IMAGE, .on = late, .chunk = chunk, .step = step});
}

/* Not for trainers over TCP, which get the chunks themselves. */
static void data_published(struct model *m)
{
	struct core_id id = m->record.id;

	id.step = m->step;
	list_each(it, &m->server->conns.sessions) {
		struct trainer *t = list_of(it, struct session, link)->trainer;

		if (t->model == m && t->session->local)
			model_tell(t->session, OP_PUBLISHED, m, &id, NULL);
	}
}

static void data_readable(struct model *m)
{
	WATCH_TELL(m->server, readable, m);
}

static void data_whole(struct model *m)
{
	WATCH_TELL(m->server, whole, m);
}

const struct data_events model_data_events = {
	.staged = data_staged,
	.drained = data_drained,
	.left = apply_maybe_done,
	.damaged = data_damaged,
	.differ = data_differ,
	.applied = data_applied,
	.late = data_late,
	.published = data_published,
	.readable = data_readable,
	.whole = data_whole,
	.learned = data_learned,
};

/* --- events that actions raise --- */

void server_later_check(const struct server_later *l)
{
	CHECK(l->nr <= l->cap && l->room <= l->cap && (l->queue != NULL) == (l->cap > 0));
	CHECK(l->in_event || l->nr == 0);
}

enum shard_status server_later_room(struct server *s, uint32_t more, struct err *e)
{
	uint32_t room = s->later.room + more;
	struct later_event *l;

	if (room > s->later.cap) {
		if ((l = realloc(s->later.queue, room * sizeof(*l))) == NULL)
			return err_set(e, SHARD_SYSTEM, "no memory for %u events", room);
		s->later.queue = l;
		s->later.cap = room;
	}
	s->later.room = room;
	server_later_check(&s->later);
	return SHARD_OK;
}

void server_later_less(struct server *s, uint32_t less)
{
	CHECK(less <= s->later.room);
	s->later.room -= less;
}

void server_later(struct server *s, struct model *m, const struct core_event *ev)
{
	CHECK(s->later.nr < s->later.cap); /* Each model made room for its chunks. */
	s->later.queue[s->later.nr++] = (struct later_event){m, *ev};
}

void server_run_later(struct server *s)
{
	for (uint32_t i = 0; i < s->later.nr;
	     i++) { /* More events may be appended while this runs. */
		struct later_event l = s->later.queue[i];

		if (!l.m->memory.ends)
			model_run(l.m, &l.ev);
	}
	s->later.nr = 0;
}

/* --- core time --- */

void server_clock_check(const struct server_clock *c)
{
	CHECK(c->slept_ns <= c->ran_ns && c->core_seen_ns <= c->ran_ns - c->slept_ns);
}

/* The beat comes at least every beat_ns, so a longer gap is a time in which this process did not
 * run enough. Frames of others may wait unread since then, so core time leaves the gap out, and no
 * node counts as late because of it. The first call after the gap notices it, because a core must
 * never see the gap. busy= says how long this thread ran since the last beat: the daemon itself may
 * be what took so long. */
uint64_t server_core_ns(struct server *s)
{
	uint64_t now = clock_ns();

	if (now > s->clock.ran_ns + 2 * s->clock.beat_ns) {
		uint64_t gap = now - s->clock.ran_ns, cpu = clock_thread_ns();
		uint64_t busy = cpu > s->clock.beat_cpu_ns ? cpu - s->clock.beat_cpu_ns : 0;

		log_line(s->log, LOG_LEVEL_WARN, "event=slept seconds=%.1f busy=%.1f",
			 (double)gap / NS_PER_SEC, (double)(busy < gap ? busy : gap) / NS_PER_SEC);
		s->clock.slept_ns = now - s->clock.core_seen_ns;
	}
	s->clock.ran_ns = now;
	server_clock_check(&s->clock);
	return now - s->clock.slept_ns;
}

static void on_core_timer(uv_timer_t *timer)
{
	struct server *s = timer->data;
	uint64_t now = server_core_ns(s);

	s->clock.core_due = UINT64_MAX; /* The timer is not running. */
	list_each(it, &s->models)
		model_tick(list_of(it, struct model, link), now);
	server_deadline(s);
}

void server_deadline(struct server *s)
{
	uint64_t due = UINT64_MAX, now = server_core_ns(s);

	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		if (!m->defining && !m->memory.ends && core_deadline(m->core) < due)
			due = core_deadline(m->core);
	}
	if (due == s->clock.core_due || s->stop.all)
		return;
	s->clock.core_due = due;
	if (due == UINT64_MAX)
		uv_timer_stop(&s->clock.core_timer);
	else
		uv_timer_start(&s->clock.core_timer, on_core_timer,
			       due > now ? (due - now + NS_PER_MS - 1) / NS_PER_MS : 0, 0);
}

/* --- the core's actions --- */

static void act_persist(struct model *m, const struct core_action *a)
{
	persist_view(m, a->view, a->why);
}

void model_persisted(struct model *m)
{
	model_event(m, &(struct core_event){.type = CORE_EV_PERSISTED, .id = persist_id(m)});
}

static void act_resigned(struct model *m, const struct core_action *a)
{
	(void)a;
	persist_cancel(m);
	WATCH_TELL(m->server, resigned, m);
}

static void act_begin(struct model *m, const struct core_action *a)
{
	reclaim(m);
	m->attempt.epoch++;
	m->attempt.id = a->id;
	slowest_begin(&m->slowest, &a->id, clock_ns());
	note_world(m, a->world);
	note_change(m, a->world);
	m->attempt.world = *a->world;
	m->attempt.on = true;
	m->attempt.voted = false;
	m->img.staged_later_nr = 0;
	m->attempt.began_ns = clock_ns();
	list_each(it, &m->server->conns.sessions)
		if (list_of(it, struct session, link)->trainer->model == m)
			list_of(it, struct session, link)->trainer->rank = -1;
	contrib_begin(m);
	tier_ahead(m->tier);
	blobs_begin(m);
	log_line(m->server->log, LOG_LEVEL_DEBUG,
		 "event=begin model=%s step=%lu attempt=%u world=%u", m->name,
		 (unsigned long)a->id.step, a->id.attempt, a->world->size);
	list_each(it, &m->server->conns.sessions) {
		struct trainer *t = list_of(it, struct session, link)->trainer;
		Shard__Attempt body = SHARD__ATTEMPT__INIT;

		if (t->model != m)
			continue;
		if (t->rank < 0) {
			trainer_out_of_world(t);
			continue;
		}
		body.rank = (uint32_t)t->rank;
		body.world_size = m->attempt.world.size;
		body.local_rank = t->local_index;
		body.local_size = m->contrib.local_nr;
		body.loss_scale = m->record.scaler.scale;
		if (m->set.max_staleness > 0) {
			body.weights =
				m->step < m->set.staleness_after ? m->content_step : m->content_old;
			body.newest = m->content_step;
		}
		body.why = m->why;
		model_tell(t->session, OP_ATTEMPT, m, &a->id, &body.base);
		apply_trainer_image(m, t);
	}
}

void model_close_attempt(struct model *m)
{
	uint32_t outs = (uint32_t)m->memory.nodes_nr * m->server->conf->connections;

	m->attempt.on = false;
	m->img.staged_later_nr = 0;
	landing_end(&m->attempt.landing);
	for (uint32_t i = 0; i < outs; i++)
		send_queue_drop(&m->attempt.out[i]);
	grad_drop(m);
}

static void act_ended(struct model *m, const struct core_action *a)
{
	Shard__Why body = SHARD__WHY__INIT;
	bool was_on = m->attempt.on;

	model_close_attempt(m);
	if (m->attempt.voted) {
		m->attempt.voted = false;
		apply_landings(m);
		store_image_whole(m->store); /* It was opened and never written. */
	}
	m->attempts_ended += was_on;
	blobs_drop(m);
	snprintf(m->why, sizeof(m->why), "%s", a->why != NULL ? a->why : "");
	/* A trainer that leaves ends the step that others have in hand, and nothing is wrong. */
	log_line(m->server->log, note_left(m->why) ? LOG_LEVEL_INFO : LOG_LEVEL_WARN,
		 "event=attempt_ended model=%s step=%lu attempt=%u why=%s", m->name,
		 (unsigned long)a->id.step, a->id.attempt, m->why);
	body.why = m->why;
	body.status = a->status ? a->status : SHARD_WORLD_CHANGED;
	for (uint32_t i = 0; was_on && i < m->contrib.local_nr; i++) {
		struct trainer *t = m->contrib.local[i].trainer;

		if (t == NULL)
			continue;
		model_tell(t->session, OP_ENDED, m, &a->id, &body.base);
		trainer_out_of_world(t);
	}
	WATCH_TELL(m->server, ended, m);
	m->attempt.drain_id = a->id;
	m->attempt.drain_due = m->attempt.busy > 0;
	if (!m->attempt.drain_due)
		model_event(m, &(struct core_event){.type = CORE_EV_DRAINED, .id = a->id});
}

static void act_result(struct model *m, const struct core_action *a)
{
	const struct record *r = a->record;
	Shard__Result body = SHARD__RESULT__INIT;

	model_close_attempt(m);
	m->why[0] = m->waits[0] = 0;
	m->last_reduce_ns = m->contrib.reduce_ns;
	m->last_contrib_in = m->contrib_in;
	m->last_grad_in = m->reduced.in;
	blobs_decided(m, r->id.step, core_id_cmp(&r->id, &m->attempt.id) == 0);
	body.outcome = r->outcome;
	body.applied = r->applied;
	body.attempts = r->attempts;
	body.skipped_in_row = r->skipped_in_row;
	body.grad_norm = r->grad_norm;
	body.clip_factor = r->clip_factor;
	body.weight_sum = r->weight_sum;
	body.loss_scale = r->loss_scale;
	body.next_loss_scale = r->scaler.scale;
	body.lr = r->lr;
	body.bad_tensor = r->bad_tensor;
	body.bad_rank = r->bad_rank;
	body.reduce_ns = m->contrib.reduce_ns;
	body.apply_ns = m->img.apply_ns;
	body.world_size = r->world.size;
	body.slowest_rank = slowest_rank(&m->slowest, r);
	body.diverged = r->diverged;
	body.n_values = NR(r->values);
	body.values = (double *)(uintptr_t)r->values; /* protobuf-c has no const. */
	if (r->outcome != RECORD_APPLIED || r->diverged)
		log_line(m->server->log, LOG_LEVEL_WARN,
			 "event=step_skipped model=%s step=%lu outcome=%d diverged=%d rank=%d "
			 "tensor=%ld",
			 m->name, (unsigned long)r->id.step, r->outcome, r->diverged, r->bad_rank,
			 (long)r->bad_tensor);
	for (uint32_t i = 0; i < m->contrib.local_nr; i++) {
		struct trainer *t = m->contrib.local[i].trainer;

		if (t == NULL)
			continue;
		model_tell(t->session, OP_RESULT, m, &r->id, &body.base);
	}
}

static void act_expel(struct model *m, const struct core_action *a)
{
	struct trainer *t = trainer_find(m->server, a->session);

	if (t != NULL)
		session_close(t->session, SHARD_TIMEOUT, a->why != NULL ? a->why : "expelled");
}

static void act_left(struct model *m, const struct core_action *a)
{
	struct trainer *t = trainer_find(m->server, a->session);

	if (t != NULL)
		trainer_left(t);
}

static void act_open(struct model *m, const struct core_action *a)
{
	(void)a;
	/* While images are being made again after a warm start, apply_stage() holds back chunks, so
	 * no new vote is possible. Only a vote of the process before is repeated, and a node whose
	 * chunks are elsewhere now votes without any. */
	CHECK(!m->memory.settle.on || m->again || catchup_count(m) == 0);
	m->attempt.voted = true;
	m->attempt.voted_ns = clock_ns();
	m->image_in = (struct model_flow){.total = m->image_in.total};
	apply_open(m);
}

static void act_apply(struct model *m, const struct core_action *a)
{
	WATCH_TELL(m->server, decided, m, a->record);
	apply_start(m, a->record);
	if (!m->again)
		WATCH_TELL(m->server, applying, m, a->record);
}

static void act_seal(struct model *m, const struct core_action *a)
{
	if (m->again) { /* A warm start: only the images are made again. */
		if (m->memory.settle.on)
			apply_settle(m);
		WATCH_TELL(m->server, sealed, m);
		return;
	}
	log_line(m->server->log, LOG_LEVEL_INFO, "event=sealed model=%s generation=%u step=%lu",
		 m->name, a->record->id.generation, (unsigned long)a->record->id.step);
	m->sealed_without = watch_unsealable(m) ? m->layout->numel : 0;
	lost_sealed(m, a->record);
	apply_seal(m, a->record);
}

static void act_credit(struct model *m, const struct core_action *a)
{
	if (m->attempt.on && core_id_cmp(&a->id, &m->attempt.id) == 0)
		contrib_credit(m, a->node);
}

static void act_held(struct model *m, const struct core_action *a)
{
	WATCH_TELL(m->server, held, m, a->record);
}

static void act_placed(struct model *m, const struct core_action *a)
{
	rooms_placed(m, a->place);
}

static void act_moved(struct model *m, const struct core_action *a)
{
	(void)a;
	WATCH_TELL(m->server, moved, m);
}

static void act_learn(struct model *m, const struct core_action *a)
{
	lost_sealed(m, a->record);
	apply_learn(m, a->record);
}

static void act_tuned(struct model *m, const struct core_action *a)
{
	(void)a;
	WATCH_TELL(m->server, tuned, m);
}

static void (*const acts[])(struct model *, const struct core_action *) = {
	[CORE_ACT_PERSIST] = act_persist, [CORE_ACT_BEGIN] = act_begin,
	[CORE_ACT_CREDIT] = act_credit,   [CORE_ACT_OPEN] = act_open,
	[CORE_ACT_APPLY] = act_apply,     [CORE_ACT_RESULT] = act_result,
	[CORE_ACT_ENDED] = act_ended,     [CORE_ACT_SEAL] = act_seal,
	[CORE_ACT_LOST] = lost_act,       [CORE_ACT_EXPEL] = act_expel,
	[CORE_ACT_LEFT] = act_left,       [CORE_ACT_HELD] = act_held,
	[CORE_ACT_TUNED] = act_tuned,     [CORE_ACT_LEARN] = act_learn,
	[CORE_ACT_PLACED] = act_placed,   [CORE_ACT_RESIGNED] = act_resigned,
	[CORE_ACT_MOVED] = act_moved,     [CORE_ACT_DIFFER] = odd_differ,
	[CORE_ACT_ODD] = odd_act,         [CORE_ACT_CUT] = note_cut,
	[CORE_ACT_YIELD] = lead_yield,    [CORE_ACT_BACK] = odd_back,
	[CORE_ACT_AGAIN] = odd_again,
};

/* Saves what must outlive the process before any action is carried out: the promises, votes and
 * decisions of the core, and the tables that it names. Before a vote, contrib_keep() first saves
 * what is needed to apply its chunks. */
static void save_core(struct model *m, const struct core_out *out)
{
	for (uint32_t i = 0; i < out->nr && !m->again; i++)
		if (out->act[i].type == CORE_ACT_OPEN)
			contrib_keep(m, &out->act[i].id);
		else if (out->act[i].type == CORE_ACT_PLACED)
			meta_tables(&m->meta, out->act[i].place, m->tables.defined.sum);
	if (core_warm_save(m->core, meta_core_next(&m->meta)))
		meta_core_switch(&m->meta);
}

void model_reset(struct model *m)
{
	struct meta_mark mark = m->meta.mark;

	store_reset(m->store);
	blobs_reset(m);
	writer_reset(m);
	mark.load = META_LOAD_NONE;
	mark.cleared = m->generation;
	if (meta_persistent(&m->meta))
		meta_mark(&m->meta, &mark);
	WATCH_TELL(m->server, cleared, m);
}

void model_run(struct model *m, const struct core_event *ev)
{
	struct core_out *out = &m->server->later.out;

	out->nr = 0;
	m->server->clock.core_seen_ns = server_core_ns(m->server);
	core_handle(m->core, ev, m->server->clock.core_seen_ns, out);
	if (meta_persistent(&m->meta))
		save_core(m, out);
	if (ev->type == CORE_EV_APPLIED)
		durable_begin(m, apply_stage_again);
	for (uint32_t i = 0; i < out->nr;) {
		if (out->act[i].type == CORE_ACT_SEND) {
			i = outgoing_send(m, out, i);
			continue;
		}
		CHECK(out->act[i].type < NR(acts) && acts[out->act[i].type] != NULL);
		acts[out->act[i].type](m, &out->act[i]);
		i++;
	}
	WATCH_TELL(m->server, ran, m);
	reclaim(m); /* An attempt may have ended, and the world may be waiting for a JOIN that waits
		       for an arena. */
	model_attempt_check(m);
	if (!m->img.applying && !m->dropping)
		model_image_check(m);
}

void model_event(struct model *m, const struct core_event *ev)
{
	if (m->dropping || m->memory.ends)
		return;
	if (m->server->later.in_event) {
		CHECK(ev->msg == NULL && ev->why == NULL && ev->lr == NULL && ev->tune == NULL &&
		      ev->restored == NULL);
		server_later(m->server, m, ev);
		return;
	}
	m->server->later.in_event = true;
	model_run(m, ev);
	server_run_later(m->server);
	m->server->later.in_event = false;
	server_later_check(&m->server->later);
	server_deadline(m->server);
}

struct view_node model_node(const struct model *m, uint16_t node, uint64_t incarnation)
{
	const struct server *s = m->server;
	struct view_node who = {.incarnation = incarnation};

	_Static_assert(VIEW_UUID_BYTES == STATIC_UUID_BYTES, "a node has one uuid");
	memcpy(who.uuid, node == s->self ? static_uuid(s->dir) : s->peer[node]->uuid,
	       sizeof(who.uuid));
	return who;
}

void model_node_added(struct model *m, uint16_t node)
{
	m->node_names[node] = members_name(m->server, node);
	data_node_added(m, node);
}

void model_link_up(struct model *m, uint16_t node, uint64_t incarnation, const char *why)
{
	CHECK(incarnation > 0);
	m->memory.there[node] = incarnation;
	model_event(m, &(struct core_event){
			       .type = CORE_EV_LINK_UP,
			       .node = node,
			       .who = model_node(m, node, incarnation),
			       .why = why != NULL && why[0] != 0 ? why : NULL,
		       });
}

void model_link_down(struct model *m, const struct peer *p, const char *why)
{
	model_event(m, &(struct core_event){.type = CORE_EV_LINK_DOWN,
					    .node = p->node,
					    .why = why,
					    .on = p->leaves});
}

void model_tick(struct model *m, uint64_t now_ns)
{
	if (core_deadline(m->core) <= now_ns)
		model_event(m, &(struct core_event){.type = CORE_EV_TICK});
}

/* A decision about an attempt that this node has voted for will be applied in any case. So it must
 * be one that can follow the last record. */
static enum shard_status check_decision(const struct model *m, const struct core_msg *msg,
					struct err *e)
{
	const struct record *r =
		msg->view != NULL && msg->view->sealed ? &msg->view->record : msg->record;

	if (r == NULL || !m->attempt.voted || core_id_cmp(&r->id, &m->attempt.id) != 0 ||
	    core_id_cmp(&r->id, &m->record.id) == 0 || /* A repetition: the core has it. */
	    record_can_follow(r, &m->record, &m->attempt.world))
		return SHARD_OK;
	return err_set(e, SHARD_PROTOCOL,
		       "a decision about step %lu of \"%s\" (outcome %d, %lu applied, %u ranks) "
		       "that cannot follow step %lu (%lu applied)",
		       (unsigned long)r->id.step, m->name, r->outcome, (unsigned long)r->applied,
		       r->world.size, (unsigned long)m->record.id.step,
		       (unsigned long)m->record.applied);
}

/* A warm start may come after the others have voted this node out. It is a member if a coordinator
 * that leads now gives it a part in the view that it has. */
static void confirm(struct model *m, const struct core_msg *msg)
{
	struct core_state core;

	core_state(m->core, &core);
	if ((msg->op == CORE_VIEW || msg->op == CORE_BEGIN || msg->op == CORE_COMMIT) &&
	    msg->id.term == core.term && msg->id.seq == core.seq)
		m->memory.doubted = false;
}

enum shard_status model_core_frame(struct model *m, struct peer *p, const struct wire_head *h,
				   const Shard__Core *body, struct err *e)
{
	struct corewire_limits limits = {.chunks_nr = m->layout->chunks_nr,
					 .groups_nr = m->set.groups_nr,
					 .max_world = m->set.max_world,
					 .local_world = m->set.local_world,
					 .nodes_nr = m->server->nodes_nr,
					 .self = m->server->self,
					 .uuid = static_uuid(m->server->dir),
					 .place = m->tables.defined};
	struct core_event ev = {.type = CORE_EV_MSG, .node = p->node};
	struct core_msg msg;
	enum shard_status st = corewire_unpack(h, body, &limits, &m->server->scratch.rx, &msg, e);

	if (st == SHARD_OK)
		st = check_decision(m, &msg, e);
	if (st != SHARD_OK || m->memory.there[p->node] == 0)
		return st;
	/* The core keeps the view. Without memory for its tables it is as if it were lost. */
	if (msg.view != NULL && !rooms_view(m, p, msg.view))
		return SHARD_OK;
	if (msg.view != NULL && (msg.view = tables_view(m, msg.view, e)) == NULL)
		return SHARD_OK;
	if (msg.op == CORE_WAITING && msg.why != NULL) {
		snprintf(m->waits, sizeof(m->waits), "%s", msg.why);
		m->too_few = msg.too_few;
	}
	if (msg.op == CORE_VOTE || msg.op == CORE_COMMIT)
		slowest_heard(&m->slowest, &msg.id, body);
	msg.from = p->node;
	msg.to = m->server->self;
	msg.from_incarnation = m->memory.there[p->node];
	msg.trainer.node = p->node;
	ev.msg = &msg;
	model_event(m, &ev);
	if (m->memory.doubted)
		confirm(m, &msg);
	if (msg.op == CORE_VIEW)
		lost_follow(m);
	if (msg.view != NULL)
		tables_tidy(m);
	free((void *)(uintptr_t)msg.view);
	return SHARD_OK;
}

void model_beat(struct model *m, uint64_t now_ns)
{
	persist_beat(m);
	WATCH_TELL(m->server, beat, m, now_ns);
	images_beat(m, now_ns);
	catchup_beat(m, now_ns);
	rooms_beat(m, now_ns);
	if (m->memory.unled)
		lead_model(m);
}
