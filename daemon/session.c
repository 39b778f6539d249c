/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's or tool's connection after HELLO: requests come in through a table of rows, answers and events go out. hello.c hands the
 * connection over; define.c, transfer.c and gather.c do the work. Happy path: DEFINE, JOIN, then per step ATTEMPT out, PUSH and
 * READY in, RESULT out. What a trainer gets wrong is an answer with a sentence; what a correct library never sends closes the
 * connection. A lost connection is a lost trainer: its rank leaves the world, its arena waits until nobody reads it. */
#include "session.h"

#include "attach.h"
#include "base/check.h"
#include "base/clock.h"
#include "blobs.h"
#include "define.h"
#include "manage.h"
#include "model.h"
#include "obs/status.h"
#include "peer.h"
#include "regions.h"
#include "transfer.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct session *session_find(struct server *s, uint64_t id)
{
	list_each(it, &s->sessions)
		if (list_of(it, struct session, link)->id == id)
			return list_of(it, struct session, link);
	return NULL;
}

struct session *session_trainer(struct server *s, uint64_t trainer)
{
	list_each(it, &s->sessions)
		if (list_of(it, struct session, link)->model != NULL && list_of(it, struct session, link)->trainer == trainer)
			return list_of(it, struct session, link);
	return NULL;
}

static void send_or_close(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg)
{
	enum shard_status st;

	if (t->leaves) /* what it was told is the last word */
		return;
	st = stream_send_control(conn_stream(t->conn), h, msg);
	if (st != SHARD_OK)
		session_close(t, SHARD_CLOSED, "does not read what it is sent");
	else
		conn_kick(t->conn);
}

void session_reply(struct session *t, uint16_t op, uint32_t tag, const struct model *m, const ProtobufCMessage *msg)
{
	struct wire_head h = {.op = op, .flags = WIRE_REPLY, .attempt = tag};

	if (m != NULL) {
		h.model = m->id;
		h.generation = m->generation;
		h.step = m->step;
	}
	send_or_close(t, &h, msg);
}

void session_refuse(struct session *t, uint32_t tag, const struct err *e)
{
	struct wire_head h = {.op = OP_ERROR, .flags = WIRE_REPLY, .attempt = tag};
	Shard__Error body = SHARD__ERROR__INIT;

	body.status = e->status;
	body.text = (char *)(uintptr_t)e->text;
	body.sys = (uint32_t)e->sys;
	send_or_close(t, &h, &body.base);
}

void session_event(struct session *t, uint16_t op, const struct model *m, const struct core_id *id, const ProtobufCMessage *msg)
{
	struct wire_head h;

	model_head(m, &h, op, id);
	send_or_close(t, &h, msg);
}

void session_close(struct session *t, enum shard_status st, const char *why)
{
	struct wire_head h = {.op = OP_ERROR};
	Shard__Error body = SHARD__ERROR__INIT;
	struct err e;

	err_set(&e, st, "%s", why);
	body.status = st;
	body.text = e.text;
	(void)stream_send_control(conn_stream(t->conn), &h, &body.base);
	conn_close(t->conn, &e, SERVER_LINGER_MS);
}

/* --- joining and leaving --- */

void session_detach(struct session *t)
{
	struct model *m = t->model;

	if (m == NULL)
		return;
	gather_session_gone(m, t);
	t->model = NULL;
	t->rank = -1;
	t->has_image = false;
	t->image.conn = NULL;
	outbox_drop(&t->image);
	model_orphan(m, t->slot);
}

void session_out_of_world(struct session *t)
{
	t->rank = -1;
	if (!t->has_image)
		return;
	t->has_image = false; /* the next image may be written while this one is still being sent */
	outbox_drop(&t->image);
}

void session_left(struct session *t)
{
	if (t->model == NULL || t->leave_tag == 0)
		return;
	session_reply(t, OP_LEAVE, t->leave_tag, t->model, NULL);
	t->leave_tag = 0;
	session_detach(t);
}

static enum shard_status join_image_room(struct session *t, struct model *m, struct err *e)
{
	if (t->local || (t->image.ring != NULL && t->image.model == m))
		return SHARD_OK;
	if (t->image.inflight > 0)
		return err_set(e, SHARD_BUSY, "the image of the model joined before is still on its way: try again");
	outbox_free(&t->image);
	return outbox_init(&t->image, m, OUTBOX_TRAINER, m->layout->chunks_nr * (m->set.max_staleness + 1), e);
}

static void join_now(struct session *t, struct model *m, uint32_t tag, int32_t hint)
{
	Shard__Joined body = SHARD__JOINED__INIT;
	struct wire_head h = {
		.op = OP_JOIN, .flags = WIRE_REPLY, .attempt = tag, .model = m->id, .generation = m->generation, .step = m->step};
	const struct shm *arena = store_arena_shm(m->store, t->slot), *image = store_image_shm(m->store);
	int fds[2] = {arena->fd, image->fd};
	enum shard_status st;

	t->model = m;
	t->trainer = ++t->server->next_session;
	t->rank = -1;
	body.arena_bytes = arena->bytes;
	body.image_bytes = image->bytes;
	body.image_data = image_data_offset((uint64_t)m->layout->chunks_nr * (m->set.max_staleness + 1));
	body.image_step = m->step;
	st = t->local ? stream_send_fds(conn_stream(t->conn), &h, &body.base, fds, 2)
		      : stream_send_control(conn_stream(t->conn), &h, &body.base);
	if (st != SHARD_OK) {
		session_close(t, SHARD_SYSTEM, "cannot pass it the arena");
		return;
	}
	conn_kick(t->conn);
	regions_arena_opened(m, t->slot);
	log_line(t->server->log, LOG_LEVEL_INFO, "event=join model=%s session=%lu pid=%u hint=%d", m->name, (unsigned long)t->id,
		 t->pid, hint);
	model_event(m, &(struct core_event){
			       .type = CORE_EV_JOIN,
			       .session = t->trainer,
			       .trainer = {.session = t->trainer, .pid = t->pid, .hint = hint, .node = t->server->self},
		       });
}

static enum shard_status on_join(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Join *body = (const Shard__Join *)msg;
	struct model *m = model_find(t->server, h->model);
	enum shard_status st;

	if (m == NULL || m->defining)
		return err_set(e, SHARD_NOT_FOUND, "no model %u on node %s: define it first", h->model,
			       server_node_name(t->server, t->server->self));
	if ((st = access_session(m, t, true, e)) != SHARD_OK)
		return st;
	if (t->model != NULL || t->join_model != NULL)
		return err_set(e, SHARD_BAD_STATE, "this connection has joined \"%s\" already",
			       (t->model ? t->model : t->join_model)->name);
	if ((st = join_image_room(t, m, e)) != SHARD_OK)
		return st;
	st = store_arena_open(m->store, &t->slot, e);
	if (st == SHARD_BUSY && m->orphans != 0) { /* the arena of a trainer that is gone comes free when its attempt is over */
		t->join_model = m;
		t->join_tag = h->attempt;
		t->join_hint = body->rank_hint;
		return SHARD_OK;
	}
	if (st == SHARD_OK)
		join_now(t, m, h->attempt, body->rank_hint);
	return st;
}

void session_join_waiting(struct model *m)
{
	list_each(it, &m->server->sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->join_model != m || store_arena_open(m->store, &t->slot, NULL) != SHARD_OK)
			continue;
		t->join_model = NULL;
		join_now(t, m, t->join_tag, t->join_hint);
	}
}

void session_gone(struct session *t, bool leave, const char *why)
{
	model_event(t->model, &(struct core_event){
				      .type = CORE_EV_GONE,
				      .session = t->trainer,
				      .trainer = {.session = t->trainer, .pid = t->pid, .node = t->server->self, .leave = leave},
				      .why = why,
			      });
}

static enum shard_status on_leave(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)msg;
	if (t->model == NULL || t->leave_tag != 0)
		return err_set(e, SHARD_BAD_STATE, t->model == NULL ? "leave without join" : "leave twice");
	t->leave_tag = h->attempt;
	session_gone(t, true, "left"); /* answered by CORE_ACT_LEFT */
	return SHARD_OK;
}

/* --- the step --- */

static bool in_attempt(const struct session *t, const struct wire_head *h)
{
	struct core_id id = {h->term, h->step, h->seq, h->generation, h->attempt};

	return t->model != NULL && t->model->id == h->model && t->rank >= 0 && t->model->attempt_on &&
	       core_id_cmp(&id, &t->model->id_now) == 0;
}

static enum shard_status on_push(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	return gather_push(t, h, (const Shard__Push *)msg, e);
}

static enum shard_status check_lr(const struct model *m, const Shard__Ready *body, struct err *e)
{
	if (body->n_lr != 0 && body->n_lr != m->set.groups_nr)
		return err_set(e, SHARD_BAD_ARG, "%zu learning rates: \"%s\" has %u groups", body->n_lr, m->name, m->set.groups_nr);
	if (body->n_lr != 0 && m->set.schedule.id != SCHEDULE_NONE)
		return err_set(e, SHARD_BAD_ARG, "a learning rate from the trainer, but schedule = %s sets it: choose one of them",
			       schedule_row(m->set.schedule.id)->name);
	for (size_t g = 0; g < body->n_lr; g++)
		if (!(body->lr[g] >= 0 && body->lr[g] <= 1e30))
			return err_set(e, SHARD_BAD_ARG, "lr of group %zu is %g: choose a number of at least 0", g, body->lr[g]);
	return SHARD_OK;
}

static enum shard_status on_ready(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Ready *body = (const Shard__Ready *)msg;
	struct model *m = t->model;
	enum shard_status st;

	if (!in_attempt(t, h))
		return SHARD_OK; /* it was told that the attempt is over, or will be */
	if (!(body->weight > 0) || body->weight > 1e300)
		return err_set(e, SHARD_BAD_ARG, "weight %g of step %lu: it must be positive and finite", body->weight,
			       (unsigned long)h->step);
	if (m->gather.local[t->local_index].chunks_pushed != m->layout->chunks_nr)
		return err_set(e, SHARD_MISSING, "commit of step %lu with %u of %u chunks pushed", (unsigned long)h->step,
			       m->gather.local[t->local_index].chunks_pushed, m->layout->chunks_nr);
	if ((st = check_lr(m, body, e)) != SHARD_OK || (st = blobs_check(body, e)) != SHARD_OK)
		return st;
	blobs_pending(m, t->local_index, body);
	m->gather.local[t->local_index].ready = true;
	model_event(m, &(struct core_event){.type = CORE_EV_READY,
					    .id = m->id_now,
					    .session = t->trainer,
					    .weight = body->weight,
					    .lr = body->lr,
					    .lr_nr = (uint32_t)body->n_lr,
					    .skip = body->skip});
	return SHARD_OK;
}

static enum shard_status on_abandon(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Why *body = (const Shard__Why *)msg;

	(void)e;
	if (in_attempt(t, h))
		model_event(t->model,
			    &(struct core_event){
				    .type = CORE_EV_ABANDON, .id = t->model->id_now, .session = t->trainer, .why = body->why});
	return SHARD_OK;
}

static enum shard_status on_image_ask(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)t, (void)h, (void)msg, (void)e;
	return SHARD_OK; /* the image goes out with the first attempt it is in: before that nothing keeps it still */
}

static enum shard_status on_status(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	Shard__Text body = SHARD__TEXT__INIT;

	(void)msg;
	body.text = status_json(t->server);
	if (body.text == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the status");
	session_reply(t, OP_STATUS, h->attempt, NULL, &body.base);
	free(body.text);
	return SHARD_OK;
}

static enum shard_status on_waits(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	struct model *m = model_find(t->server, h->model);
	Shard__Text body = SHARD__TEXT__INIT;
	char text[1024];

	(void)msg;
	if (m == NULL)
		return err_set(e, SHARD_NOT_FOUND, "no model %u", h->model);
	status_waits(m, text, sizeof(text));
	body.text = text;
	session_reply(t, OP_WAITS, h->attempt, m, &body.base);
	return SHARD_OK;
}

static enum shard_status on_ping(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	struct wire_head pong = {.op = OP_PONG};

	(void)h, (void)msg, (void)e;
	send_or_close(t, &pong, NULL);
	return SHARD_OK;
}

static enum shard_status on_pong(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)t, (void)h, (void)msg, (void)e;
	return SHARD_OK;
}

/* request: a failure is the answer to it; else it closes the connection */
static const struct session_op {
	enum shard_status (*run)(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
	const ProtobufCMessageDescriptor *body;
	bool request;
} ops[OP_NR] = {
	[OP_PING] = {on_ping, NULL, false},
	[OP_PONG] = {on_pong, NULL, false},
	[OP_DEFINE] = {define_request, &shard__define__descriptor, true},
	[OP_SEAL] = {define_seal_request, &shard__seal__descriptor, true},
	[OP_READ] = {transfer_read_request, &shard__read__descriptor, true},
	[OP_JOIN] = {on_join, &shard__join__descriptor, true},
	[OP_LEAVE] = {on_leave, NULL, true},
	[OP_STATUS] = {on_status, NULL, true},
	[OP_WAITS] = {on_waits, NULL, true},
	[OP_ATTACH] = {attach_request, &shard__attach__descriptor, true},
	[OP_MANAGE] = {manage_request, &shard__manage__descriptor, true},
	[OP_SAVE] = {ckpt_save_request, &shard__save__descriptor, true},
	[OP_RESTORE] = {ckpt_restore_request, &shard__restore__descriptor, true},
	[OP_BLOB] = {blobs_request, &shard__blob__descriptor, true},
	[OP_PUSH] = {on_push, &shard__push__descriptor, false},
	[OP_READY] = {on_ready, &shard__ready__descriptor, false},
	[OP_ABANDON] = {on_abandon, &shard__why__descriptor, false},
	[OP_IMAGE_ASK] = {on_image_ask, &shard__chunks__descriptor, false},
};

static enum shard_status session_head(void *owner, struct stream *s, const struct wire_head *h, void **to, struct err *e)
{
	struct session *t = owner;
	const struct wire_op_row *row = wire_op(h->op);

	(void)s;
	if (!(row->from & BIT(t->role)) || (h->flags & WIRE_REPLY))
		return err_set(e, SHARD_PROTOCOL, "frame %s%s from a %s", row->name, h->flags & WIRE_REPLY ? " (reply)" : "",
			       t->role == ROLE_CTL ? "tool" : "trainer");
	if (h->op == OP_PUSH_DATA)
		return gather_push_head(t, h, to, e);
	if (h->op == OP_WRITE)
		return transfer_write_head(t, h, to, e);
	return SHARD_OK;
}

static enum shard_status session_frame(void *owner, struct stream *s, const struct wire_head *h, const void *body, struct err *e)
{
	struct session *t = owner;
	const struct session_op *op = &ops[h->op];
	const ProtobufCMessage *msg;
	enum shard_status st;
	void *memory;

	(void)s;
	if (h->op == OP_PUSH_DATA)
		return gather_push_data(t, h, e);
	if (h->op == OP_WRITE)
		return transfer_write_frame(t, h, e);
	if (op->run == NULL)
		return err_set(e, SHARD_PROTOCOL, "frame %s is not for this connection", wire_op(h->op)->name);
	st = server_unpack(t->server, h, op->body, body, &msg, &memory, e);
	if (st == SHARD_OK) {
		st = op->run(t, h, msg, e);
		if (st != SHARD_OK && op->request) {
			session_refuse(t, h->attempt, e);
			st = SHARD_OK;
		}
	}
	arena_reset(&t->server->rx);
	free(memory);
	return st;
}

static void session_closed(void *owner, struct conn *c, const struct err *why)
{
	struct session *t = owner;
	struct server *s = t->server;

	log_line(s->log, LOG_LEVEL_INFO, "event=session_closed session=%lu pid=%u role=%s why=%s", (unsigned long)t->id, t->pid,
		 t->role == ROLE_CTL ? "tool" : "trainer", why->text);
	list_remove(&t->link);
	s->sessions_nr--;
	if (t->model != NULL) {
		gather_session_gone(t->model,
				    t); /* what ends the attempt is told to the others only: this one has no stream any more */
		session_gone(t, false, why->status == SHARD_CLOSED && !s->stopping ? "closed its socket" : why->text);
		session_detach(t);
	}
	if (t->defined)
		define_detached(s, s->self, t->id);
	transfer_session_gone(s, t->id);
	free(t->passing);
	free(t->seal_body);
	outbox_free(&t->image);
	server_forget_conn(s, c);
	free(t);
}

static const struct conn_handler session_handler = {
	.frames = {session_head, session_frame},
	.on_close = session_closed,
};

enum shard_status session_greeted(struct server *s, struct conn *c, const Shard__Hello *hello, struct err *e)
{
	struct session *t = calloc(1, sizeof(*t));

	if (t == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a session");
	t->server = s;
	t->conn = c;
	t->id = ++s->next_session;
	t->role = (uint8_t)hello->role;
	t->pid = hello->pid;
	t->local = conn_is_unix(c);
	t->rank = -1;
	(void)conn_peer(c, &t->pid, &(uint32_t){0}, &(uint32_t){0});
	access_greet(&t->who, c);
	list_push(&s->sessions, &t->link);
	s->sessions_nr++;
	conn_set_owner(c, &session_handler, t);
	stream_set_body_max(conn_stream(c), WIRE_CONTROL_MAX);
	if (!t->local && t->role == ROLE_TRAINER)
		conn_set_silence(c, s->conf->heartbeat_timeout_ns);
	log_line(s->log, LOG_LEVEL_INFO, "event=session session=%lu pid=%u role=%s from=%s", (unsigned long)t->id, t->pid,
		 t->role == ROLE_CTL ? "tool" : "trainer", conn_name(c));
	return SHARD_OK;
}
