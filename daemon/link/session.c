/* SPDX-License-Identifier: Apache-2.0 */
/* The connection of a trainer or tool after its handshake. accept.c hands the connection over with
 * session_greeted(). The rooms above get its frames by link_events and send answers and events with
 * session_tell() and its like. Happy path: the session is listed, its frames are passed up, and
 * when it closes the layers above are told before it is freed. A connection whose queue does not
 * take a frame is closed. The layers above keep their state in session.trainer, which this file
 * never looks into. */
#include "link/session.h"

#include "base/check.h"
#include "base/clock.h"
#include "link/events.h"
#include "link/places.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <unistd.h>
#include <string.h>

uint64_t session_number(struct server *s)
{
	return ++s->conns.next_session;
}

void session_numbers_after(struct server *s, uint64_t first)
{
	s->conns.next_session = s->conns.first_session = first;
	server_conns_check(&s->conns);
}

struct session *session_find(struct server *s, uint64_t id)
{
	list_each(it, &s->conns.sessions)
		if (list_of(it, struct session, link)->id == id)
			return list_of(it, struct session, link);
	return NULL;
}

void session_tell(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg)
{
	enum shard_status st;

	if (t->leaves) /* It was told the reason already, and nothing may follow. */
		return;
	st = stream_send_control(conn_stream(t->conn), h, msg);
	if (st != SHARD_OK)
		session_close(t, SHARD_CLOSED, "does not read what it is sent");
	else
		conn_kick(t->conn);
}

void session_reply_owned(struct session *t, const struct wire_head *h, void *body)
{
	CHECK(body != NULL || h->body_bytes == 0);
	if (t->leaves)
		free(body);
	else if (stream_send_owned(conn_stream(t->conn), h, body, h->body_bytes) != SHARD_OK)
		session_close(t, SHARD_CLOSED, "does not read what it is sent");
	else
		conn_kick(t->conn);
}

void session_refuse(struct session *t, uint32_t tag, const struct err *e)
{
	struct wire_head h = {.op = OP_ERROR, .flags = WIRE_REPLY, .attempt = tag};
	Shard__Error body = SHARD__ERROR__INIT;

	CHECK(e->status != SHARD_OK);
	body.status = e->status;
	body.text = (char *)(uintptr_t)e->text;
	body.sys = (uint32_t)e->sys;
	session_tell(t, &h, &body.base);
}

void session_close(struct session *t, enum shard_status st, const char *why)
{
	struct wire_head h = {.op = OP_ERROR};
	Shard__Error body = SHARD__ERROR__INIT;
	struct err e;

	CHECK(st != SHARD_OK && why != NULL);
	err_set(&e, st, "%s", why);
	body.status = st;
	body.text = e.text;
	(void)stream_send_control(conn_stream(t->conn), &h, &body.base);
	conn_close(t->conn, &e, SERVER_LINGER_MS);
}

static enum shard_status session_head(void *owner, struct stream *s, const struct wire_head *h,
				      void **to, struct err *e)
{
	struct session *t = owner;
	const struct wire_op_row *row = wire_op(h->op);
	struct landing *l = NULL;
	enum shard_status st;

	if (!(row->from & BIT(t->role)) || (h->flags & WIRE_REPLY))
		return err_set(e, SHARD_PROTOCOL, "frame %s%s from a %s", row->name,
			       h->flags & WIRE_REPLY ? " (reply)" : "",
			       t->role == ROLE_CTL ? "tool" : "trainer");
	if (row->body != BODY_BULK)
		return SHARD_OK;
	st = t->server->events->session_body(t, h, to, &l, e);
	if (st == SHARD_OK && l != NULL)
		stream_land(s, l);
	return st;
}

static enum shard_status session_frame(void *owner, struct stream *s, const struct wire_head *h,
				       const void *body, struct err *e)
{
	struct session *t = owner;

	(void)s;
	return t->server->events->session_frame(t, h, body, e);
}

/* Tools come and go all the time, and what they change has lines of its own. */
static enum log_level level_of(const struct session *t)
{
	return t->role == ROLE_CTL ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO;
}

static void session_closed(void *owner, struct conn *c, const struct err *why)
{
	struct session *t = owner;
	struct server *s = t->server;

	log_line(s->log, level_of(t), "event=session_closed session=%lu pid=%u role=%s why=%s",
		 (unsigned long)t->id, t->pid, t->role == ROLE_CTL ? "tool" : "trainer", why->text);
	list_remove(&t->link);
	if (!t->unseated) {
		s->conns.sessions_nr--;
		t->guest->sessions_nr--;
	}
	server_conns_check(&s->conns);
	places_leave(t->guest);
	lane_close(&t->lane);
	s->events->session_gone(t, why->status == SHARD_CLOSED && !s->stop.on ? "closed its socket"
									      : why->text);
	server_forget_conn(s, c);
	free(t);
}

static void session_room(void *owner, struct conn *c)
{
	struct session *t = owner;

	(void)c;
	lane_serve(&t->lane);
}

static void lane_failed(void *owner, const struct err *why)
{
	struct session *t = owner;

	conn_close(t->conn, why, 0);
}

static const struct conn_handler session_handler = {
	.frames = {.on_head = session_head, .on_frame = session_frame},
	.on_close = session_closed,
	.on_room = session_room,
};

static void learn_who(struct session_who *w, const struct conn *c, const char *node)
{
	uint32_t pid;

	*w = (struct session_who){.node = node};
	w->known = conn_peer(c, &pid, &w->uid, &w->gid);
	if (!w->known)
		return;
	w->groups_nr = conn_peer_groups(c, w->groups, NR(w->groups));
	w->root = w->uid == 0 || w->uid == geteuid();
}

enum shard_status session_greeted(struct server *s, struct conn *c, struct guest *guest,
				  const Shard__Hello *hello, struct err *e)
{
	struct session *t = calloc(1, sizeof(*t));

	CHECK(guest != NULL && !s->stop.on);
	if (t == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a session");
	t->server = s;
	t->conn = c;
	t->guest = guest;
	t->since_ns = clock_ns();
	t->id = session_number(s);
	t->role = (uint8_t)hello->role;
	t->pid = hello->pid;
	t->local = conn_is_unix(c);
	(void)conn_peer(c, &t->pid, &(uint32_t){0}, &(uint32_t){0});
	if (!s->events->session_opened(t)) {
		free(t);
		return err_set(e, SHARD_SYSTEM, "no memory for a session");
	}
	lane_init(&t->lane, lane_failed, t);
	lane_open(&t->lane, c);
	learn_who(&t->who, c, members_name(s, s->self));
	list_push(&s->conns.sessions, &t->link);
	s->conns.sessions_nr++;
	server_conns_check(&s->conns);
	guest->sessions_nr++;
	guest->refs++;
	conn_set_owner(c, &session_handler, t);
	stream_set_body_max(conn_stream(c), WIRE_CONTROL_MAX);
	conn_set_limit(c, SESSION_QUEUED_MAX);
	if (!t->local) /* A tool answers PINGs as a trainer does, so one whose machine is gone loses
			  its place. */
		conn_set_silence(c, s->conf->heartbeat_timeout_ns);
	log_line(s->log, level_of(t), "event=session session=%lu pid=%u role=%s from=%s",
		 (unsigned long)t->id, t->pid, t->role == ROLE_CTL ? "tool" : "trainer",
		 conn_name(c));
	return SHARD_OK;
}
