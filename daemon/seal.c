/* SPDX-License-Identifier: Apache-2.0 */
/* Sealing. A trainer's SEAL reaches the coordinator; it counts what is not written (or not finite) in its own chunks, asks every other
 * node for the same (WRITTEN), and gives the core CORE_EV_WRITTEN when nothing is missing. The trainer's own node answers it
 * when the image is whole there. Each counts in slices, one per turn of the loop. One seal of a model at a time. A node that
 * falls, or a tensor that lacks weights, refuses it. */
#include "seal.h"

#include "base/check.h"
#include "corewire.h"
#include "define.h"
#include "peer.h"
#include "session.h"
#include "transfer.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

#define COUNT_ELEMS (4u << 20) /* looked at in one turn of the loop: a few milliseconds */

struct count { /* of what is not written here: for a seal of this coordinator, or for a WRITTEN of another */
	struct model *m;
	struct model_asker asker; /* of the seal; of WRITTEN: its node and tag */
	bool written;
	uint32_t generation, chunk; /* chunk: the next one */
	struct store_missing missing;
};

static void counted(struct count *c);

static bool count_void(const struct count *c) /* nobody waits for it any more */
{
	const struct model *m = c->m;

	if (m->dropping || m->generation != c->generation || m->server->stopping)
		return true;
	return !c->written && (m->sealer == NULL || m->sealer->tag != c->asker.tag || m->sealer->node != c->asker.node ||
			       m->sealer->session != c->asker.session);
}

static void count_turn(void *args)
{
	(void)args; /* the loop has had its turn: that is all */
}

/* A slice per turn of the loop: gigabytes of weights may not cost a heartbeat. On the loop, since trainers still write. */
static void count_go(void *owner, void *args)
{
	struct worker_job next = {.run = count_turn, .done = count_go, .owner = owner};
	struct count *c = owner;
	struct model *m = c->m;
	uint64_t elems = 0;

	(void)args;
	for (; !count_void(c) && c->chunk < m->layout->chunks_nr; c->chunk++) {
		if (m->owner[c->chunk] != m->server->self)
			continue;
		if (elems > 0 && elems + layout_chunk_elems(m->layout, c->chunk) > COUNT_ELEMS &&
		    worker_submit(m->server->pool, &next) == SHARD_OK)
			return;
		elems += layout_chunk_elems(m->layout, c->chunk);
		store_missing(m->store, c->chunk, &c->missing);
	}
	if (!count_void(c))
		counted(c);
	free(c);
	model_release(m);
}

static enum shard_status count_start(struct model *m, const struct model_asker *asker, bool written, struct err *e)
{
	struct count *c = calloc(1, sizeof(*c));

	if (c == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	c->m = m;
	c->asker = *asker;
	c->written = written;
	c->generation = m->generation;
	store_missing_init(&c->missing);
	m->busy++;
	count_go(c, NULL);
	return SHARD_OK;
}

static void done(struct model *m, const struct err *e)
{
	struct server *s = m->server;
	struct model_asker *a = m->sealer;
	struct wire_head h = {
		.op = OP_SEAL, .flags = WIRE_REPLY, .model = m->id, .generation = m->generation, .step = m->seal_step};
	struct session *t = a->node == s->self ? session_find(s, a->session) : NULL;

	m->sealer = NULL;
	m->nodes_asked = 0;
	h.attempt = a->tag;
	if (e != NULL && a->node != s->self)
		peer_refuse(s->peer[a->node], a->tag, e);
	else if (e != NULL && t != NULL)
		session_refuse(t, a->tag, e);
	else if (e == NULL && a->node != s->self)
		(void)peer_send(s, a->node, &h, NULL, NULL);
	else if (e == NULL && t != NULL)
		define_seal_accepted(t, m->id, a->tag, m->seal_step);
	free(a);
}

static void decide(struct model *m)
{
	const struct store_missing *w = &m->missing;
	uint64_t nr = w->unwritten + w->nonfinite;
	uint32_t tensor = nr > 0 ? layout_tensor_at(m->layout, w->first) : UINT32_MAX;
	struct err e;

	if (nr == 0) {
		model_event(m, &(struct core_event){.type = CORE_EV_WRITTEN, .step = m->seal_step, .id.generation = m->generation});
		done(m, NULL);
		return;
	}
	err_set(&e, SHARD_MISSING,
		"\"%s\" cannot be sealed: %lu elements are not written and %lu are not finite, the first in tensor \"%s\" at %lu",
		m->name, (unsigned long)w->unwritten, (unsigned long)w->nonfinite,
		tensor != UINT32_MAX ? m->layout->tensor[tensor].name : "?",
		(unsigned long)(tensor != UINT32_MAX ? w->first - m->layout->tensor[tensor].offset : w->first));
	done(m, &e);
}

static void seal_add(struct model *m, uint16_t node, const struct store_missing *w)
{
	m->missing.unwritten += w->unwritten;
	m->missing.nonfinite += w->nonfinite;
	if (w->unwritten + w->nonfinite > 0 && w->first < m->missing.first)
		m->missing.first = w->first;
	m->nodes_asked &= ~(1ull << node);
	if (m->nodes_asked == 0)
		decide(m);
}

static void counted(struct count *c)
{
	struct model *m = c->m;
	struct wire_head reply = {
		.op = OP_WRITTEN, .flags = WIRE_REPLY, .model = m->id, .generation = m->generation, .attempt = c->asker.tag};
	Shard__Written body = SHARD__WRITTEN__INIT;

	if (!c->written) {
		seal_add(m, m->server->self, &c->missing);
		return;
	}
	body.missing = c->missing.unwritten;
	body.nonfinite = c->missing.nonfinite;
	body.element = c->missing.first;
	(void)peer_send(m->server, c->asker.node, &reply, &body.base, NULL); /* without a link nobody waits */
}

static enum shard_status seal_here(struct model *m, const struct model_asker *from, uint64_t step, struct err *e)
{
	struct server *s = m->server;
	struct model_asker *a;
	enum shard_status st = SHARD_OK;

	if (ckpt_restoring(m))
		return err_set(e, SHARD_BUSY, "\"%s\" is being restored", m->name);
	if (m->sealed)
		return err_set(e, SHARD_BAD_STATE, "\"%s\" is sealed already, at step %lu", m->name, (unsigned long)m->step);
	if (m->sealer != NULL)
		return err_set(e, SHARD_BUSY, "\"%s\" is being sealed", m->name);
	if ((a = malloc(sizeof(*a))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	*a = *from;
	m->sealer = a;
	m->seal_step = step;
	store_missing_init(&m->missing);
	m->nodes_asked = 1ull << s->self;
	for (uint16_t n = 0; n < s->nodes_nr && st == SHARD_OK; n++) {
		struct wire_head h = {.op = OP_WRITTEN, .model = m->id, .generation = m->generation};
		struct relay *r;

		if (n == s->self || (st = relay_new(&r, s, OP_WRITTEN, n, m->id, e)) != SHARD_OK)
			continue;
		h.attempt = r->tag;
		m->nodes_asked |= 1ull << n;
		if ((st = peer_send(s, n, &h, NULL, e)) != SHARD_OK)
			relay_drop(s, r);
	}
	if (st == SHARD_OK)
		st = count_start(m, a, false, e);
	if (st != SHARD_OK)
		done(m, e);
	return SHARD_OK;
}

enum shard_status define_seal_request(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Seal *body = (const Shard__Seal *)msg;
	struct server *s = t->server;
	struct model *m = model_find(s, h->model);
	struct model_asker a = {.node = s->self, .session = t->id, .tag = h->attempt, .pid = t->pid};

	if (m == NULL || m->defining)
		return err_set(e, SHARD_NOT_FOUND, "no model %u here", h->model);
	if (access_session(m, t, true, e) != SHARD_OK)
		return e->status;
	if (t->seal_model != NULL)
		return err_set(e, SHARD_BUSY, "this connection is sealing \"%s\"", t->seal_model->name);
	if (s->self == s->coordinator)
		return seal_here(m, &a, body->step, e);
	return relay_request(t, s->coordinator, h, msg, e);
}

enum shard_status define_node_seal(struct peer *p, const struct wire_head *h, const Shard__Seal *body, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	struct model_asker a = {.node = p->node, .tag = h->attempt};

	if (m == NULL || m->defining || p->server->self != p->server->coordinator)
		return err_set(e, SHARD_NOT_FOUND, "no model %u on the coordinator", h->model);
	return seal_here(m, &a, body->step, e);
}

/* Decided; the answer follows when the image is whole here. */
void define_seal_accepted(struct session *t, uint32_t model, uint32_t tag, uint64_t step)
{
	struct model *m = model_find(t->server, model);

	if (m == NULL)
		return;
	t->seal_model = m;
	t->seal_tag = tag;
	t->seal_step = step;
	model_seal_progress(m);
}

void define_restore_accepted(struct session *t, uint32_t tag, const struct wire_head *h, const void *body)
{
	struct model *m = model_find(t->server, h->model);
	struct err e;

	if (m == NULL || t->seal_model != NULL || (t->seal_body = malloc(h->body_bytes + 1)) == NULL) {
		err_set(&e, m == NULL ? SHARD_NOT_FOUND : SHARD_BUSY,
			"the restored model is gone, or this connection seals another one");
		session_refuse(t, tag, &e);
		return;
	}
	memcpy(t->seal_body, body, h->body_bytes);
	t->seal_head = *h;
	t->seal_head.attempt = tag;
	define_seal_accepted(t, h->model, tag, h->step);
}

void define_seal_answer(struct session *t, struct model *m)
{
	t->seal_model = NULL;
	if (t->seal_body != NULL)
		relay_send_owned(t->conn, &t->seal_head, t->seal_body, t->seal_head.body_bytes);
	else
		session_reply(t, OP_SEAL, t->seal_tag, m, NULL);
	t->seal_body = NULL;
}

enum shard_status define_written(struct peer *p, const struct wire_head *h, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	struct model_asker asker = {.node = p->node, .tag = h->attempt};

	if (m == NULL || m->generation != h->generation)
		return err_set(e, SHARD_STALE, "node %s has no generation %u of model %u",
			       server_node_name(p->server, p->server->self), h->generation, h->model);
	return count_start(m, &asker, true, e);
}

void seal_answered(struct model *m, uint16_t node, const struct wire_head *h, const void *body, const struct err *e)
{
	const Shard__Written *w;
	struct store_missing missing;
	struct err why;

	if (m->sealer == NULL || !(m->nodes_asked >> node & 1))
		return;
	if (e != NULL) {
		done(m, e);
		return;
	}
	if (control_unpack((const ProtobufCMessage **)&w, &shard__written__descriptor, body, h->body_bytes, &m->server->tx, &why) !=
	    SHARD_OK) {
		arena_reset(&m->server->tx);
		done(m, &why);
		return;
	}
	missing = (struct store_missing){.unwritten = w->missing, .nonfinite = w->nonfinite, .first = w->element};
	arena_reset(&m->server->tx);
	seal_add(m, node, &missing);
}

void define_lost(struct model *m, enum shard_status st)
{
	struct err e;

	err_set(&e, st, "%s", m->lost);
	define_fail(m, &e);
}

void define_fail(struct model *m, const struct err *e)
{
	if (m->sealer != NULL)
		done(m, e);
	list_each(it, &m->server->sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->seal_model != m)
			continue;
		t->seal_model = NULL;
		free(t->seal_body);
		t->seal_body = NULL;
		session_refuse(t, t->seal_tag, e);
	}
	transfer_fail(m, e);
}
