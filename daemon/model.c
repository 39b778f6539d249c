/* SPDX-License-Identifier: Apache-2.0 */
/* One model on this node: feeds its core, carries out what the core decides. define.c has it made (model_make.c), session.c and
 * peer_ops.c bring frames, gather.c and apply.c move the numbers. Happy path of a step: ACT_BEGIN (arenas go to the trainers)
 * → chunks staged → ACT_OPEN and a vote → ACT_RESULT and ACT_APPLY → CORE_EV_APPLIED. Events that actions raise at once (a small
 * chunk computed on the loop) wait until the actions in hand are done; they carry no pointers. */
#include "model.h"

#include "apply.h"
#include "base/check.h"
#include "base/clock.h"
#include "blobs.h"
#include "corewire.h"
#include "define.h"
#include "lost.h"
#include "manage.h"
#include "note.h"
#include "obs/scrape.h"
#include "peer.h"
#include "persist.h"
#include "regions.h"
#include "session.h"
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

struct model *model_by_name(struct server *s, const char *name)
{
	list_each(it, &s->models)
		if (strcmp(list_of(it, struct model, link)->name, name) == 0)
			return list_of(it, struct model, link);
	return NULL;
}

uint32_t model_parts(const struct model *m, uint32_t chunk, uint32_t elem_bytes)
{
	uint64_t bytes = (uint64_t)layout_chunk_elems(m->layout, chunk) * elem_bytes;

	return (uint32_t)((bytes + WIRE_PART_BYTES - 1) / WIRE_PART_BYTES);
}

uint32_t model_part_bytes(const struct model *m, uint32_t chunk, uint32_t elem_bytes, uint32_t part)
{
	uint64_t bytes = (uint64_t)layout_chunk_elems(m->layout, chunk) * elem_bytes, at = (uint64_t)part * WIRE_PART_BYTES;

	return at >= bytes ? 0 : (uint32_t)(bytes - at < WIRE_PART_BYTES ? bytes - at : WIRE_PART_BYTES);
}

void model_flow_add(struct model_flow *f, uint32_t bytes)
{
	f->ended_ns = clock_ns();
	f->bytes += bytes;
	if (f->began_ns == 0)
		f->began_ns = f->ended_ns;
}

void model_head(const struct model *m, struct wire_head *h, uint16_t op, const struct core_id *id)
{
	*h = (struct wire_head){.op = op, .model = m->id, .generation = m->generation};
	if (id == NULL)
		return;
	h->generation = id->generation;
	h->term = id->term;
	h->seq = id->seq;
	h->step = id->step;
	h->attempt = id->attempt;
}

/* --- arenas of trainers that are gone --- */

static void reclaim(struct model *m)
{
	if (m->orphans == 0 || m->busy > 0 || m->applying || m->attempt_on || m->dropping)
		return;
	for (uint32_t slot = 0; slot < GATHER_LOCAL_MAX; slot++)
		if (m->orphans >> slot & 1)
			regions_arena_closed(m, slot), store_arena_close(m->store, slot);
	m->orphans = 0;
	session_join_waiting(m);
}

void model_orphan(struct model *m, uint32_t slot)
{
	m->orphans |= 1ull << slot;
	reclaim(m);
}

void model_release(struct model *m)
{
	CHECK(m->busy > 0);
	if (--m->busy > 0)
		return;
	if (m->dropping)
		server_wake(m->server, 1);
	if (m->drain_due) {
		m->drain_due = false;
		model_event(m, &(struct core_event){.type = CORE_EV_DRAINED, .id = m->drain_id});
	}
	reclaim(m);
	ckpt_boundary(m);
}

void model_stage(struct model *m, uint32_t chunk)
{
	const struct gather_chunk *c = &m->gather.chunk[chunk];

	if (!m->attempt_on || !c->reduced)
		return;
	if (m->image_sends > 0) { /* a vote would allow the next commit to overwrite what is still being sent */
		m->staged_later[m->staged_later_nr++] = chunk;
		return;
	}
	model_event(m, &(struct core_event){
			       .type = CORE_EV_STAGED,
			       .id = m->id_now,
			       .chunk = chunk,
			       .sumsq = c->sumsq,
			       .finite = c->finite,
			       .bad_tensor = c->bad_tensor,
			       .bad_rank = c->bad_rank,
		       });
}

/* --- the core's actions --- */

static void act_send(struct model *m, const struct core_action *a)
{
	struct server *s = m->server;
	Shard__Core body;
	struct wire_head h;
	struct err e;

	if (corewire_pack(&a->msg, &s->tx, &h, &body) != SHARD_OK) {
		log_line(s->log, LOG_LEVEL_ERROR, "event=control_too_large model=%s op=%d", m->name, a->msg.op);
	} else {
		h.model = m->id;
		if (peer_send(s, a->msg.to, &h, &body.base, &e) != SHARD_OK)
			log_line(s->log, LOG_LEVEL_DEBUG, "event=control_dropped model=%s op=%d why=%s", m->name, a->msg.op,
				 e.text);
	}
	arena_reset(&s->tx);
}

static void act_persist(struct model *m, const struct core_action *a)
{
	persist_view(m, a->view);
}

static void act_begin(struct model *m, const struct core_action *a)
{
	reclaim(m);
	m->epoch++;
	m->id_now = a->id;
	note_world(m, a->world);
	m->world = *a->world;
	m->attempt_on = true;
	m->voted = false;
	m->staged_later_nr = 0;
	m->began_ns = clock_ns();
	list_each(it, &m->server->sessions)
		if (list_of(it, struct session, link)->model == m)
			list_of(it, struct session, link)->rank = -1;
	gather_begin(m);
	blobs_begin(m);
	log_line(m->server->log, LOG_LEVEL_DEBUG, "event=begin model=%s step=%lu attempt=%u world=%u", m->name,
		 (unsigned long)a->id.step, a->id.attempt, a->world->size);
	list_each(it, &m->server->sessions) {
		struct session *t = list_of(it, struct session, link);
		Shard__Attempt body = SHARD__ATTEMPT__INIT;

		if (t->model != m)
			continue;
		if (t->rank < 0) {
			session_out_of_world(t);
			continue;
		}
		body.rank = (uint32_t)t->rank;
		body.world_size = m->world.size;
		body.local_rank = t->local_index;
		body.local_size = m->gather.local_nr;
		body.loss_scale = m->record.scaler.scale;
		if (m->set.max_staleness > 0) {
			body.weights = m->content_old;
			body.newest = m->content_step;
		}
		body.why = m->why;
		session_event(t, OP_ATTEMPT, m, &a->id, &body.base);
		apply_session_image(m, t);
	}
}

void model_close_attempt(struct model *m)
{
	uint32_t outs = (uint32_t)m->server->nodes_nr * m->server->conf->connections;

	m->attempt_on = false;
	m->staged_later_nr = 0;
	for (uint32_t i = 0; i < outs; i++)
		outbox_drop(&m->contrib_out[i]);
}

static void act_ended(struct model *m, const struct core_action *a)
{
	Shard__Why body = SHARD__WHY__INIT;
	bool was_on = m->attempt_on;

	model_close_attempt(m);
	if (m->voted) {
		m->voted = false;
		store_image_whole(m->store); /* opened, never written */
	}
	m->attempts_ended += was_on;
	blobs_drop(m);
	snprintf(m->why, sizeof(m->why), "%s", a->why != NULL ? a->why : "");
	log_line(m->server->log, LOG_LEVEL_WARN, "event=attempt_ended model=%s step=%lu attempt=%u why=%s", m->name,
		 (unsigned long)a->id.step, a->id.attempt, m->why);
	body.why = m->why;
	body.status = a->status ? a->status : SHARD_WORLD_CHANGED;
	for (uint32_t i = 0; was_on && i < m->gather.local_nr; i++) {
		struct session *t = m->gather.local[i].session;

		if (t == NULL)
			continue;
		session_event(t, OP_ENDED, m, &a->id, &body.base);
		session_out_of_world(t);
	}
	m->drain_id = a->id;
	m->drain_due = m->busy > 0;
	if (!m->drain_due)
		model_event(m, &(struct core_event){.type = CORE_EV_DRAINED, .id = a->id});
}

static void act_result(struct model *m, const struct core_action *a)
{
	const struct record *r = a->record;
	Shard__Result body = SHARD__RESULT__INIT;

	model_close_attempt(m);
	m->why[0] = m->waits[0] = 0;
	m->last_reduce_ns = m->gather.reduce_ns;
	m->last_contrib_in = m->contrib_in;
	blobs_decided(m, r->id.step, core_id_cmp(&r->id, &m->id_now) == 0);
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
	body.reduce_ns = m->gather.reduce_ns;
	body.apply_ns = m->apply_ns;
	body.world_size = r->world.size;
	body.diverged = r->diverged;
	if (r->outcome != RECORD_APPLIED || r->diverged)
		log_line(m->server->log, LOG_LEVEL_WARN,
			 "event=step_skipped model=%s step=%lu outcome=%d diverged=%d rank=%d tensor=%ld", m->name,
			 (unsigned long)r->id.step, r->outcome, r->diverged, r->bad_rank, (long)r->bad_tensor);
	for (uint32_t i = 0; i < m->gather.local_nr; i++) {
		struct session *t = m->gather.local[i].session;

		if (t == NULL)
			continue;
		session_event(t, OP_RESULT, m, &r->id, &body.base);
	}
}

static void act_expel(struct model *m, const struct core_action *a)
{
	struct session *t = session_trainer(m->server, a->session);

	if (t != NULL)
		session_close(t, SHARD_TIMEOUT, a->why != NULL ? a->why : "expelled");
}

static void act_left(struct model *m, const struct core_action *a)
{
	struct session *t = session_trainer(m->server, a->session);

	if (t != NULL)
		session_left(t);
}

static void act_open(struct model *m, const struct core_action *a)
{
	(void)a;
	m->voted = true;
	m->voted_ns = clock_ns();
	m->metrics.image_in_bytes += m->image_in.bytes;
	m->image_in = (struct model_flow){0};
	store_image_open(m->store);
}

static void act_apply(struct model *m, const struct core_action *a)
{
	scrape_decided(m, a->record);
	apply_start(m, a->record);
	if (!m->again)
		ckpt_decided(m, a->record);
}

static void act_seal(struct model *m, const struct core_action *a)
{
	if (m->again) { /* resume.c has done so */
		ckpt_sealed(m);
		return;
	}
	log_line(m->server->log, LOG_LEVEL_INFO, "event=sealed model=%s generation=%u step=%lu", m->name, a->record->id.generation,
		 (unsigned long)a->record->id.step);
	lost_sealed(m, a->record);
	apply_seal(m, a->record);
}

static void act_credit(struct model *m, const struct core_action *a)
{
	if (m->attempt_on && core_id_cmp(&a->id, &m->id_now) == 0)
		gather_credit(m, a->node);
}

static void act_held(struct model *m, const struct core_action *a)
{
	ckpt_held(m, a->record);
}

static void act_tuned(struct model *m, const struct core_action *a)
{
	(void)a;
	manage_tuned(m);
}

static void (*const acts[])(struct model *, const struct core_action *) = {
	[CORE_ACT_SEND] = act_send,     [CORE_ACT_PERSIST] = act_persist, [CORE_ACT_BEGIN] = act_begin,
	[CORE_ACT_CREDIT] = act_credit, [CORE_ACT_OPEN] = act_open,       [CORE_ACT_APPLY] = act_apply,
	[CORE_ACT_RESULT] = act_result, [CORE_ACT_ENDED] = act_ended,     [CORE_ACT_SEAL] = act_seal,
	[CORE_ACT_LOST] = lost_act,     [CORE_ACT_EXPEL] = act_expel,     [CORE_ACT_LEFT] = act_left,
	[CORE_ACT_HELD] = act_held,     [CORE_ACT_TUNED] = act_tuned,
};

bool model_parked(const struct model *m)
{
	return m->meta.shm.base != NULL;
}

/* Before anything of it leaves: what was promised, voted or decided, and first what a vote says is here. */
static void save_core(struct model *m, const struct core_out *out)
{
	for (uint32_t i = 0; i < out->nr && !m->again; i++)
		if (out->act[i].type == CORE_ACT_OPEN)
			gather_keep(m);
	if (core_warm_save(m->core, meta_core_next(&m->meta)))
		meta_core_switch(&m->meta);
}

void model_reset(struct model *m)
{
	struct meta_mark mark = m->meta.mark;

	store_reset(m->store);
	mark.cleared = m->generation;
	if (model_parked(m))
		meta_mark(&m->meta, &mark);
}

void model_run(struct model *m, const struct core_event *ev)
{
	struct core_out *out = &m->server->out;

	out->nr = 0;
	m->server->core_seen_ns = server_core_ns(m->server);
	core_event(m->core, ev, m->server->core_seen_ns, out);
	if (model_parked(m))
		save_core(m, out);
	for (uint32_t i = 0; i < out->nr; i++) {
		CHECK(out->act[i].type < NR(acts) && acts[out->act[i].type] != NULL);
		acts[out->act[i].type](m, &out->act[i]);
	}
}

void model_event(struct model *m, const struct core_event *ev)
{
	if (m->dropping)
		return;
	if (m->server->in_event) {
		CHECK(ev->msg == NULL && ev->why == NULL && ev->lr == NULL && ev->tune == NULL && ev->restored == NULL);
		server_later(m->server, m, ev);
		return;
	}
	m->server->in_event = true;
	model_run(m, ev);
	server_run_later(m->server);
	m->server->in_event = false;
	server_deadline(m->server);
}

void model_link_down(struct model *m, const struct peer *p, const char *why)
{
	model_event(m, &(struct core_event){.type = CORE_EV_LINK_DOWN, .node = p->node, .why = why, .on = p->leaves});
}

void model_tick(struct model *m, uint64_t now_ns)
{
	if (core_deadline(m->core) <= now_ns)
		model_event(m, &(struct core_event){.type = CORE_EV_TICK});
}

enum shard_status model_core_frame(struct model *m, struct peer *p, const struct wire_head *h, const Shard__Core *body,
				   struct err *e)
{
	struct corewire_limits limits = {m->layout->chunks_nr, m->set.groups_nr, m->server->nodes_nr};
	struct core_event ev = {.type = CORE_EV_MSG, .node = p->node, .incarnation = p->incarnation};
	struct core_msg msg;
	enum shard_status st = corewire_unpack(h, body, &limits, &m->server->rx, &msg, e);

	if (st != SHARD_OK)
		return st;
	if (msg.op == CORE_WAITING && msg.why != NULL)
		snprintf(m->waits, sizeof(m->waits), "%s", msg.why);
	msg.from = p->node;
	msg.to = m->server->self;
	msg.from_incarnation = p->incarnation;
	msg.trainer.node = p->node;
	ev.msg = &msg;
	model_event(m, &ev);
	return SHARD_OK;
}

void model_beat(struct model *m, uint64_t now_ns)
{
	persist_beat(m);
	if (m->sealed && (m->image_lacking > 0 || m->old_lacking > 0) && now_ns - m->image_asked_ns > NS_PER_SEC)
		apply_image_ask(m, now_ns);
}

void model_seal_progress(struct model *m)
{
	if (!apply_image_whole(m))
		return;
	ckpt_whole(m);
	list_each(it, &m->server->sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->seal_model != m || m->step < t->seal_step)
			continue;
		define_seal_answer(t, m);
	}
}
