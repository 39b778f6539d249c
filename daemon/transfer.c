/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and moments in and out. session.c and peer.c call. WRITE: the body is received straight into the master or moment it is for,
 * or, held elsewhere, into a buffer that goes on to its holder. READ: copied at a step boundary (nothing is being applied) into
 * a buffer of its own, because the next step may begin before the socket has taken it; a READ that comes while a step is applied,
 * or asks for a step not yet decided here, waits for the boundary. Not on the step path, so buffers come from malloc. */
#include "transfer.h"

#include "apply.h"

#include "base/check.h"
#include "model.h"
#include "peer.h"
#include "relay.h"
#include "session.h"
#include "wire/ops.h"

#include <stdlib.h>

#define READS_MAX 64 /* that one trainer has waiting, and answers of which it has taken nothing */

struct reading { /* a READ in hand or waiting */
	struct list link;
	uint16_t node; /* who asked: self and a session, or a node's relay */
	uint64_t session;
	uint32_t tag, kind, count;
	uint64_t first, step;
};

static enum shard_status writable(const struct model *m, const struct wire_head *h, struct err *e)
{
	if (m == NULL || m->defining)
		return err_set(e, SHARD_NOT_FOUND, "no model %u here", h->model);
	if (m->sealed)
		return err_set(e, SHARD_BAD_STATE, "\"%s\" is sealed at step %lu: weights are written before the seal", m->name,
			       (unsigned long)m->step);
	if (m->ckpt.reset_due || ckpt_restoring(m) || !ckpt_quiet(m))
		return err_set(e, SHARD_BUSY, "\"%s\" is being restored", m->name);
	if (h->generation != m->generation)
		return err_set(e, SHARD_STALE, "generation %u of \"%s\" is over, this is %u: define it again", h->generation,
			       m->name, m->generation);
	if (h->body_bytes == 0 || h->body_bytes % sizeof(float) != 0)
		return err_set(e, SHARD_RANGE, "%u bytes are no whole number of fp32 elements", h->body_bytes);
	if (h->step >= m->layout->elems)
		return err_set(e, SHARD_RANGE, "element %lu of \"%s\", which ends at %lu", (unsigned long)h->step, m->name,
			       (unsigned long)m->layout->elems);
	return SHARD_OK;
}

static uint16_t holder(const struct model *m, uint64_t element)
{
	return m->owner[element / m->layout->chunk_elems];
}

static enum shard_status write_place(struct model *m, const struct wire_head *h, void **to, struct err *e)
{
	enum shard_status st = writable(m, h, e);

	if (st != SHARD_OK)
		return st;
	return store_range(m->store, (enum shard_kind)h->chunk, h->step, h->body_bytes / (uint32_t)sizeof(float), (float **)to, e);
}

enum shard_status transfer_write_head(struct session *t, const struct wire_head *h, void **to, struct err *e)
{
	struct model *m = model_find(t->server, h->model);
	struct err why;
	enum shard_status st = writable(m, h, &why);

	(void)e;
	if (st == SHARD_OK)
		st = access_session(m, t, true, &why);
	if (st == SHARD_OK && holder(m, h->step) == t->server->self)
		st = write_place(m, h, to, &why);
	else if (st == SHARD_OK && (*to = malloc(h->body_bytes)) == NULL)
		st = err_set(&why, SHARD_SYSTEM, "no memory to pass %u bytes on", h->body_bytes);
	else if (st == SHARD_OK)
		t->passing = *to;
	if (st == SHARD_OK)
		return st;
	session_refuse(t, h->attempt, &why);
	*to = STREAM_DISCARD;
	return SHARD_OK;
}

static void pass_write(struct session *t, const struct model *m, const struct wire_head *h)
{
	struct wire_head out = *h;
	uint16_t node = holder(m, h->step);
	struct peer *p = t->server->peer[node];
	struct conn *c = p != NULL ? peer_control(p) : NULL;
	struct relay *r;
	struct err e;
	enum shard_status st = SHARD_OK;

	if (c == NULL)
		st = err_set(&e, SHARD_UNREACHABLE, "node %s holds element %lu and is down: %s", server_node_name(t->server, node),
			     (unsigned long)h->step, p != NULL ? p->why : "");
	if (st == SHARD_OK)
		st = relay_new(&r, t->server, OP_WRITE, node, m->id, &e);
	if (st != SHARD_OK) {
		free(t->passing);
		session_refuse(t, h->attempt, &e);
	} else {
		r->session = t->id;
		r->session_tag = h->attempt;
		out.attempt = r->tag;
		relay_send_owned(c, &out, t->passing, h->body_bytes);
	}
	t->passing = NULL;
}

enum shard_status transfer_write_frame(struct session *t, const struct wire_head *h, struct err *e)
{
	struct model *m = model_find(t->server, h->model);
	struct err why;

	(void)e;
	if (t->passing != NULL && m != NULL) {
		pass_write(t, m, h);
		return SHARD_OK;
	}
	free(t->passing); /* it was dropped while the body came in */
	t->passing = NULL;
	if (writable(m, h, &why) != SHARD_OK) /* sealed or lost while the body came in */
		session_refuse(t, h->attempt, &why);
	else
		session_reply(t, OP_WRITE, h->attempt, m, NULL);
	return SHARD_OK;
}

enum shard_status transfer_node_write_head(struct peer *p, const struct wire_head *h, void **to, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	struct err why;

	(void)e;
	if (write_place(m, h, to, &why) == SHARD_OK)
		return SHARD_OK;
	*to = STREAM_DISCARD;
	peer_refuse(p, h->attempt, &why);
	return SHARD_OK;
}

void transfer_node_write_frame(struct peer *p, const struct wire_head *h)
{
	struct wire_head out = {.op = OP_WRITE, .flags = WIRE_REPLY, .model = h->model, .attempt = h->attempt};

	(void)peer_send(p->server, p->node, &out, NULL, NULL);
}

/* --- reading --- */

static void read_refuse(struct server *s, const struct reading *r, const struct err *e)
{
	if (r->node != s->self) {
		peer_refuse(s->peer[r->node], r->tag, e);
	} else {
		struct session *t = session_find(s, r->session);

		if (t != NULL)
			session_refuse(t, r->tag, e);
	}
}

static enum shard_status read_now(struct model *m, const struct reading *r, struct err *e)
{
	struct server *s = m->server;
	struct wire_head h = {.op = OP_READ,
			      .flags = WIRE_REPLY,
			      .model = m->id,
			      .generation = m->generation,
			      .step = m->step,
			      .attempt = r->tag};
	struct session *t = r->node == s->self ? session_find(s, r->session) : NULL;
	struct conn *c = r->node != s->self ? peer_control(s->peer[r->node]) : t != NULL ? t->conn : NULL;
	uint32_t bytes = r->count * (uint32_t)sizeof(float);
	float *buffer;
	enum shard_status st;

	if (t != NULL && stream_queued(conn_stream(c)) >= READS_MAX)
		return err_set(e, SHARD_BUSY, "%d answers are on their way to this connection: take them first", READS_MAX);
	buffer = malloc(bytes);
	if (buffer == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to read %u bytes", bytes);
	st = store_read(m->store, (enum shard_kind)r->kind, r->first, r->count, buffer, e);
	if (st != SHARD_OK || c == NULL)
		free(buffer);
	else
		relay_send_owned(c, &h, buffer, bytes);
	return st;
}

/* SHARD_AGAIN: wait for the boundary. */
static enum shard_status read_may(const struct model *m, const struct reading *r, struct err *e)
{
	uint64_t chunk = r->first / m->layout->chunk_elems;

	if (!m->sealed)
		return err_set(e, SHARD_BAD_STATE, "\"%s\" has no weights yet: it was %s", m->name,
			       m->lost[0] != 0 ? m->lost : "not sealed");
	if (m->applying || m->sealing || r->step > m->step)
		return SHARD_AGAIN;
	if (r->kind == SHARD_IMAGE && store_image_chunk(m->store, m->slot, (uint32_t)chunk) != apply_version(m))
		return SHARD_AGAIN;
	if (r->step != 0 && r->step < m->step)
		return err_set(e, SHARD_STALE, "step %lu of \"%s\" is gone: this is step %lu", (unsigned long)r->step, m->name,
			       (unsigned long)m->step);
	return SHARD_OK;
}

static enum shard_status read_start(struct model *m, const struct reading *r, struct err *e)
{
	enum shard_status st = read_may(m, r, e);
	struct reading *later;
	uint32_t nr = 0;

	if (st == SHARD_OK)
		return read_now(m, r, e);
	if (st != SHARD_AGAIN)
		return st;
	list_each(it, &m->reads)
		nr += list_of(it, struct reading, link)->node == r->node &&
		      list_of(it, struct reading, link)->session == r->session;
	if (nr >= (r->session != 0 ? READS_MAX : SERVER_RELAYS_MAX))
		return err_set(e, SHARD_BUSY, "%u reads of \"%s\" wait for a step already: wait for their answers", nr, m->name);
	later = malloc(sizeof(*later));
	if (later == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a read");
	*later = *r;
	list_push(&m->reads, &later->link);
	return SHARD_OK;
}

static enum shard_status read_check(const struct model *m, const struct wire_head *h, const Shard__Read *body, struct err *e)
{
	if (m == NULL || m->defining)
		return err_set(e, SHARD_NOT_FOUND, "no model %u here", h->model);
	if (body->first >= m->layout->elems || body->count == 0 || body->count > WIRE_PART_BYTES / sizeof(float))
		return err_set(e, SHARD_RANGE, "read of %u elements at %lu of \"%s\": 1 to %zu inside %lu", body->count,
			       (unsigned long)body->first, m->name, WIRE_PART_BYTES / sizeof(float),
			       (unsigned long)m->layout->elems);
	return SHARD_OK;
}

enum shard_status transfer_read_request(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Read *body = (const Shard__Read *)msg;
	struct model *m = model_find(t->server, h->model);
	struct reading r = {.node = t->server->self,
			    .session = t->id,
			    .tag = h->attempt,
			    .kind = body->kind,
			    .count = body->count,
			    .first = body->first,
			    .step = body->step};
	enum shard_status st = read_check(m, h, body, e);

	if (st != SHARD_OK || (st = access_session(m, t, false, e)) != SHARD_OK)
		return st;
	if (body->kind != SHARD_IMAGE && holder(m, body->first) != t->server->self)
		return relay_request(t, holder(m, body->first), h, msg, e);
	return read_start(m, &r, e);
}

enum shard_status transfer_node_read(struct peer *p, const struct wire_head *h, const Shard__Read *body, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	struct reading r = {.node = p->node,
			    .tag = h->attempt,
			    .kind = body->kind,
			    .count = body->count,
			    .first = body->first,
			    .step = body->step};
	enum shard_status st = read_check(m, h, body, e);

	return st != SHARD_OK ? st : read_start(m, &r, e);
}

void transfer_retry(struct model *m)
{
	list_each(it, &m->reads) {
		struct reading *r = list_of(it, struct reading, link);
		struct err e;
		enum shard_status st = read_may(m, r, &e);

		if (st == SHARD_AGAIN)
			continue;
		if (st == SHARD_OK)
			st = read_now(m, r, &e);
		if (st != SHARD_OK)
			read_refuse(m->server, r, &e);
		list_remove(&r->link);
		free(r);
	}
}

void transfer_fail(struct model *m, const struct err *e)
{
	list_each(it, &m->reads) {
		struct reading *r = list_of(it, struct reading, link);

		read_refuse(m->server, r, e);
		list_remove(&r->link);
		free(r);
	}
}

void transfer_session_gone(struct server *s, uint64_t session)
{
	list_each(mit, &s->models) {
		struct model *m = list_of(mit, struct model, link);

		list_each(it, &m->reads) {
			struct reading *r = list_of(it, struct reading, link);

			if (r->node != s->self || r->session != session)
				continue;
			list_remove(&r->link);
			free(r);
		}
	}
}
