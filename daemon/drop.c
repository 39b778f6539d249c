/* SPDX-License-Identifier: Apache-2.0 */
/* Dropping a model. manage.c asks on the coordinator; peer_ops.c brings the coordinator's word on the other nodes. Happy path: the file goes
 * first, so that no restart brings the model back; then, on each node, the model leaves the list that frames find it by, its
 * trainers hear LOST with SHARD_NOT_FOUND, and jobs and frames in flight come home; then its memory goes back to the budget
 * and the node answers. A node that was away keeps the model, without effect, until it names it to the coordinator (a PING with its
 * number) and is told. Fails before anything happens, or not at all; a node that falls meanwhile is named in the answer. */
#include "drop.h"

#include "apply.h"
#include "base/check.h"
#include "base/clock.h"
#include "define.h"
#include "manage.h"
#include "peer.h"
#include "persist.h"
#include "regions.h"
#include "relay.h"
#include "session.h"
#include "transfer.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct drop {
	struct list link; /* in server.drops */
	struct model *m;  /* NULL: its memory is free here */
	uint32_t id;
	char name[72];
	bool asked, manage,
		force; /* asked: somebody wants to hear; manage: a MANAGE of asker, else MODEL_DROP of the coordinator */
	struct model_asker asker;
	uint64_t nodes_asked, since_ns;
	bool file_due;
	struct err e; /* of a node that fell, or of the disk */
};

/* --- here --- */

static void refuse_landing(struct session *t, struct peer *p, const struct wire_head *h, const struct err *e)
{
	if (h->op != OP_WRITE)
		return;
	if (t != NULL)
		session_refuse(t, h->attempt, e);
	else
		peer_refuse(p, h->attempt, e);
}

/* Bodies that are being received into its memory go nowhere from now on. */
static void stop_landings(struct model *m, const struct err *e)
{
	struct server *s = m->server;
	struct wire_head h;

	list_each(it, &s->sessions) {
		struct session *t = list_of(it, struct session, link);
		struct stream *stream = conn_stream(t->conn);

		if (stream != NULL && t->passing == NULL && stream_discard(stream, m->id, &h))
			refuse_landing(t, NULL, &h, e);
	}
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		for (uint32_t i = 0; s->peer[n] != NULL && i < s->peer[n]->conns_nr; i++) {
			struct conn *c = s->peer[n]->conns[i].conn;

			if (c != NULL && conn_stream(c) != NULL && stream_discard(conn_stream(c), m->id, &h))
				refuse_landing(NULL, s->peer[n], &h, e);
		}
}

static void put_out(struct model *m, struct session *t, const struct err *e)
{
	struct core_id over = {.generation = m->generation + 1};
	Shard__Why body = SHARD__WHY__INIT;

	body.why = (char *)(uintptr_t)e->text;
	body.status = e->status;
	if (t->role == ROLE_TRAINER && t->defined)
		session_event(t, OP_LOST, m, &over, &body.base);
	if (t->model != m)
		return;
	session_left(t); /* it wanted to go, and is gone */
	session_detach(t);
}

static void close_outboxes(struct model *m)
{
	for (uint16_t n = 0; n < m->server->nodes_nr; n++)
		apply_node_gone(m, n);
}

/* From here on no frame, event or name finds it. */
static void drop_start(struct drop *d, struct model *m, const char *why)
{
	struct server *s = m->server;
	struct err e;

	CHECK(!m->dropping && !s->in_event);
	err_set(&e, SHARD_NOT_FOUND, "%s", why);
	m->dropping = true;
	list_remove(&m->link);
	d->m = m;
	d->id = m->id;
	d->since_ns = clock_ns();
	snprintf(d->name, sizeof(d->name), "%s", m->name);
	list_push(&s->drops, &d->link);
	stop_landings(m, &e);
	model_close_attempt(m);
	ckpt_cancel(m, &e);
	define_fail(m, &e);
	manage_fail(m, &e);
	list_each(it, &s->sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->join_model == m) {
			session_refuse(t, t->join_tag, &e);
			t->join_model = NULL;
		}
	}
	list_each(it, &s->sessions)
		put_out(m, list_of(it, struct session, link), &e);
	close_outboxes(m);
	regions_drop(m);
	log_line(s->log, LOG_LEVEL_WARN, "event=drop model=%s id=%u generation=%u step=%lu why=%s", m->name, m->id, m->generation,
		 (unsigned long)m->step, why);
	server_deadline(s);
	server_wake(s, 1);
}

static void give_memory_back(struct drop *d)
{
	struct server *s = d->m->server;

	list_each(it, &s->sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->image.model == d->m) /* nothing of it is in flight */
			outbox_free(&t->image);
	}
	list_init(&d->m->link); /* it is on no list */
	model_free(&d->m);
	log_line(s->log, LOG_LEVEL_INFO, "event=dropped model=%s id=%u seconds=%.1f", d->name, d->id,
		 (double)(clock_ns() - d->since_ns) / NS_PER_SEC);
}

/* --- to and from other nodes --- */

static void answer(struct server *s, struct drop *d)
{
	struct wire_head h = {.op = OP_MODEL_DROP, .flags = WIRE_REPLY, .model = d->id, .attempt = d->asker.tag};

	if (!d->asked)
		return;
	d->asked = false;
	if (d->manage)
		manage_answer(s, &d->asker, d->e.status != SHARD_OK ? &d->e : NULL);
	else
		(void)peer_send(s, d->asker.node, &h, NULL, NULL);
}

static void finish(struct server *s, struct drop *d)
{
	if (d->m != NULL || d->nodes_asked != 0)
		return;
	answer(s, d);
	list_remove(&d->link);
	free(d);
}

static void tell(struct server *s, struct drop *d, uint16_t node, Shard__Why *why)
{
	struct wire_head h = {.op = OP_MODEL_DROP, .model = d->id};
	struct relay *r;
	enum shard_status st = relay_new(&r, s, OP_MODEL_DROP, node, d->id, &d->e);

	if (st != SHARD_OK)
		return;
	h.attempt = r->tag;
	if ((st = peer_send(s, node, &h, &why->base, &d->e)) != SHARD_OK)
		relay_drop(s, r);
	else
		d->nodes_asked |= 1ull << node;
	if (d->force) /* it is told when it is back */
		d->e.status = SHARD_OK;
}

enum shard_status drop_everywhere(struct model *m, const struct model_asker *asker, bool force, const char *why, struct err *e)
{
	struct server *s = m->server;
	Shard__Why body = SHARD__WHY__INIT;
	struct drop *d;
	enum shard_status st;

	if (s->relays_nr + s->nodes_nr > SERVER_RELAYS_MAX)
		return err_set(e, SHARD_BUSY, "%u requests to other nodes are open already: try again", s->relays_nr);
	if ((d = calloc(1, sizeof(*d))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	d->file_due = persist_busy(m); /* else its thread would make it again */
	if (!d->file_due && (st = static_drop(s->dir, m->id, e)) != SHARD_OK) {
		free(d);
		return st;
	}
	d->asked = d->manage = true;
	d->force = force;
	d->asker = *asker;
	drop_start(d, m, why);
	body.why = (char *)(uintptr_t)why;
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (n != s->self)
			tell(s, d, n, &body);
	return SHARD_OK;
}

void drop_told(struct peer *p, const struct wire_head *h, const Shard__Why *body)
{
	struct server *s = p->server;
	struct wire_head reply = {.op = OP_MODEL_DROP, .flags = WIRE_REPLY, .model = h->model, .attempt = h->attempt};
	struct model *m = model_find(s, h->model);
	struct drop *d;

	if (m != NULL && (p->node != s->coordinator || memcmp(m->from, p->uuid, sizeof(m->from)) != 0)) {
		log_line(s->log, LOG_LEVEL_ERROR, "event=drop_refused model=%s why=%s", m->name,
			 "the coordinator that defined it had another state directory");
		return;
	}
	d = m != NULL ? calloc(1, sizeof(*d)) : NULL;
	if (d == NULL) {
		if (m == NULL && h->attempt != 0)
			(void)peer_send(s, p->node, &reply, NULL, NULL);
		return; /* without memory: it is told again after the next link-up */
	}
	d->asked = h->attempt != 0;
	d->asker = (struct model_asker){.node = p->node, .tag = h->attempt};
	drop_start(d, m, body != NULL && body->why[0] != 0 ? body->why : "dropped while this node was away");
}

void drop_answered(struct server *s, const struct relay *r, const struct err *e)
{
	list_each(it, &s->drops) {
		struct drop *d = list_of(it, struct drop, link);

		if (d->id != r->model || !(d->nodes_asked >> r->node & 1))
			continue;
		d->nodes_asked &= ~(1ull << r->node);
		if (e != NULL && !d->force)
			err_set(&d->e, SHARD_UNREACHABLE,
				"\"%s\" is dropped, but node %s fell before it gave its memory back: %.300s; it does when it is "
				"back",
				d->name, server_node_name(s, r->node), e->text);
	}
	server_wake(s, 1); /* finishes */
}

bool drop_in_hand(const struct server *s, const char *name)
{
	list_each(it, (struct list *)(uintptr_t)&s->drops)
		if (strcmp(list_of(it, struct drop, link)->name, name) == 0)
			return true;
	return false;
}

void drop_compare(struct server *s)
{
	list_each(it, &s->models) {
		struct wire_head h = {.op = OP_PING, .model = list_of(it, struct model, link)->id};

		(void)peer_send(s, s->coordinator, &h, NULL, NULL);
	}
}

void drop_unknown(struct peer *p, uint32_t model)
{
	struct wire_head h = {.op = OP_MODEL_DROP, .model = model};

	if (p->server->self == p->server->coordinator && model_find(p->server, model) == NULL)
		(void)peer_send(p->server, p->node, &h, NULL, NULL);
}

/* --- time --- */

static bool idle(const struct model *m)
{
	return m->busy == 0 && m->image_sends == 0 && !persist_busy(m) && ckpt_quiet(m) && regions_quiet(m, clock_ns());
}

void drop_beat(struct server *s, uint64_t now_ns)
{
	list_each(it, &s->drops) {
		struct drop *d = list_of(it, struct drop, link);

		if (d->file_due && !persist_busy(d->m)) {
			d->file_due = false;
			if (static_drop(s->dir, d->id, &d->e) != SHARD_OK)
				log_line(s->log, LOG_LEVEL_ERROR, "event=drop_file model=%s why=%s", d->name, d->e.text);
		}
		if (d->m != NULL && idle(d->m))
			give_memory_back(d);
		if (d->asked && d->manage && now_ns - d->since_ns > s->conf->heartbeat_timeout_ns &&
		    (d->m != NULL || d->nodes_asked != 0)) {
			uint16_t n = s->self;

			for (uint16_t i = 0; i < s->nodes_nr; i++)
				if (d->nodes_asked >> i & 1)
					n = i;
			err_set(&d->e, SHARD_TIMEOUT, "\"%s\" is dropped, but node %s has not given its memory back for %.1f s",
				d->name, server_node_name(s, n), (double)(now_ns - d->since_ns) / NS_PER_SEC);
			answer(s, d);
		}
		finish(s, d);
	}
}

void drop_free(struct server *s)
{
	list_each(it, &s->drops) {
		struct drop *d = list_of(it, struct drop, link);

		if (d->m != NULL)
			give_memory_back(d);
		list_remove(&d->link);
		free(d);
	}
}
