/* SPDX-License-Identifier: Apache-2.0 */
/* WRITE and READ of weights and moments. dispatch.c calls. The connection keeps the body of a WRITE
 * until it is whole and its checksum is right. Then the WRITE is checked again and copied in one
 * piece into the master or moment, on this node and on every other that has memory for the chunk,
 * and answered when all of them have it. So a body that was on its way when the model was sealed,
 * lost or restored changes nothing. A READ is copied at a step boundary, when nothing is being
 * applied, into a buffer of its own, because the next step may begin before the socket has taken
 * it. A READ that comes while a step is applied, or for a step that is not decided here, waits for
 * the boundary. A request that cannot be carried out is refused with an error. None of this is on
 * the step path, so buffers come from malloc. */
#include "control/transfer.h"
#include "model/writer.h"
#include "control/control.h"

#include "data/apply.h"
#include "data/data.h"

#include "base/check.h"
#include "data/trainer.h"
#include "model/watch.h"
#include "model/lost.h"
#include "model/model.h"
#include "link/peer.h"
#include "link/call.h"
#include "link/session.h"
#include "wire/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define READS_MAX 64 /* READs of one connection, of all models, that may wait for a step. */

struct reading { /* A READ. */
	struct list link;
	struct model *m;
	struct tier_pin pin; /* Of a master or moment. */
	struct caller who;
	uint32_t kind, count;
	uint64_t first, step;
};

static enum shard_status writable(const struct model *m, const struct wire_head *h, struct err *e)
{
	if (m == NULL || m->defining)
		return err_set(e, SHARD_NOT_FOUND, "no model %u here", h->model);
	if (m->sealed)
		return err_set(e, SHARD_BAD_STATE,
			       "\"%s\" is sealed at step %lu: weights are written before the seal",
			       m->name, (unsigned long)m->step);
	if (lost_check(m, e) != SHARD_OK)
		return SHARD_LOST;
	if (m->reset_due || watch_restoring(m) || !watch_quiet(m) || watch_filled(m))
		return err_set(e, SHARD_BUSY, "\"%s\" is being restored", m->name);
	if (h->generation != m->generation)
		return err_set(e, SHARD_STALE,
			       "generation %u of \"%s\" is over, this is %u: define it again",
			       h->generation, m->name, m->generation);
	if (h->body_bytes == 0 || h->body_bytes % sizeof(float) != 0)
		return err_set(e, SHARD_RANGE, "%u bytes are no whole number of fp32 elements",
			       h->body_bytes);
	if (h->step >= m->layout->elems)
		return err_set(e, SHARD_RANGE, "element %lu of \"%s\", which ends at %lu",
			       (unsigned long)h->step, m->name, (unsigned long)m->layout->elems);
	return SHARD_OK;
}

static uint32_t chunk_of(const struct model *m, uint64_t element)
{
	return (uint32_t)(element / m->layout->chunk_elems);
}

/* The nodes that a WRITE goes to: also those whose copy does not count yet. */
static uint64_t keepers(const struct model *m, uint64_t element)
{
	return place_keepers(&m->place, chunk_of(m, element)) & ~m->place.gone;
}

static enum shard_status write_check(struct model *m, const struct wire_head *h, struct err *e)
{
	enum shard_status st = writable(m, h, e);

	if (st == SHARD_OK)
		st = writer_check(m, h, e);
	if (st != SHARD_OK)
		return st;
	return store_has_range(m->store, (enum shard_kind)h->chunk, h->step,
			       h->body_bytes / (uint32_t)sizeof(float), e);
}

/* BUSY or UNREACHABLE with EAGAIN tells the library to send the same WRITE again a little later. */
static enum shard_status soon(enum shard_status st, struct err *e)
{
	return st == SHARD_BUSY ? err_passes(e, st) : st;
}

static enum shard_status write_now(struct model *m, const struct wire_head *h, const void *body,
				   struct err *e)
{
	enum shard_status st = write_check(m, h, e);
	struct tier_pin pin = {.chunk = chunk_of(m, h->step), .writes = true};
	float *at;

	CHECK(h->body_bytes == 0 || body != NULL);
	if (st != SHARD_OK)
		return st;
	if (!tier_pin_now(m->tier, &pin))
		return soon(err_set(e, SHARD_BUSY, "node %s has no room yet for chunk %u of \"%s\"",
				    members_name(m->server, m->server->self), pin.chunk, m->name),
			    e);
	writer_touch(m, pin.chunk);
	st = store_range(m->store, (enum shard_kind)h->chunk, h->step,
			 h->body_bytes / (uint32_t)sizeof(float), &at, e);
	CHECK(st == SHARD_OK); /* As it was checked. */
	memcpy(at, body, h->body_bytes);
	tier_unpin(m->tier, &pin);
	return SHARD_OK;
}

/* True: the link has too many queued bytes, or any at all when all connections together have too
 * many. */
static bool link_full(const struct server *s, const struct stream *link)
{
	uint64_t held = stream_held(link);

	return held > PEER_QUEUED_MAX || (held > 0 && s->conns.queued.bytes > s->conns.queued.most);
}

/* Can the node be sent a WRITE now? */
static enum shard_status reachable(const struct server *s, uint16_t node, uint64_t element,
				   struct err *e)
{
	const struct peer *p = s->peer[node];
	struct conn *c = p != NULL ? peer_control(s->peer[node]) : NULL;

	if (c == NULL) {
		err_set(e, SHARD_UNREACHABLE, "node %s holds element %lu and is down: %s",
			members_name(s, node), (unsigned long)element, p != NULL ? p->why : "");
		return p != NULL && peer_blinks(p, clock_ns()) ? err_passes(e, e->status)
							       : e->status;
	}
	if (stream_held(conn_stream(c)) > SERVER_QUEUED_MAX)
		return soon(err_set(e, SHARD_BUSY,
				    "too much waits to be sent to node %s already: try again",
				    members_name(s, node)),
			    e);
	if (!stream_roomy(conn_stream(c))) /* Half of the queue is for frames that cannot wait. */
		return soon(err_set(e, SHARD_BUSY, "%u frames wait for node %s: try again",
				    stream_queued(conn_stream(c)), members_name(s, node)),
			    e);
	return SHARD_OK;
}

/* Checks that a trainer's WRITE may be carried out here and be passed on to the other nodes that
 * hold the chunk. All of them are looked at before any of them gets it. h gets the trainer's
 * grant. */
static enum shard_status write_may(struct session *t, struct model *m, struct wire_head *h,
				   struct err *e)
{
	enum shard_status st = writable(m, h, e);
	uint16_t self = t->server->self;
	uint64_t to;

	if (st != SHARD_OK)
		return st;
	if (!writer_stamp(m, t, h))
		return writer_check(m, h, e);
	to = keepers(m, h->step);
	if (to >> self & 1)
		st = write_check(m, h, e);
	for (uint16_t n = 0; n < t->server->nodes_nr && st == SHARD_OK; n++)
		if (n != self && to >> n & 1)
			st = reachable(t->server, n, h->step, e);
	return st;
}

/* The coordinator refuses a trainer that may not write, because it knows the writer. It gets the
 * header with one zero instead of the weights. */
static enum shard_status who_writes(struct session *t, const struct wire_head *h, struct err *e)
{
	uint16_t c = server_coordinator(t->server);
	struct wire_head asks = *h;
	void *none;

	if (peer_control(t->server->peer[c]) == NULL)
		return err_set(e, SHARD_UNREACHABLE,
			       "somebody else writes these weights, and node %s, which knows who, "
			       "is down: %s",
			       members_name(t->server, c), t->server->peer[c]->why);
	if ((none = calloc(1, sizeof(float))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	asks.body_bytes = sizeof(float);
	return call_pass_bulk(t, c, &asks, none, e);
}

enum shard_status transfer_write_head(struct session *t, const struct wire_head *h, void **to,
				      struct err *e)
{
	struct model *m = model_find(t->server, h->model);
	struct wire_head by = *h;
	struct err why;
	enum shard_status st = writable(m, h, &why);

	(void)e;
	if (st == SHARD_OK && !writer_stamp(m, t, &by) && !server_leads(t->server)) {
		*to = STREAM_DISCARD;
		st = who_writes(t, &by, &why); /* The coordinator answers. */
	} else if (st == SHARD_OK) {
		st = write_may(t, m, &by, &why);
	}
	if (st == SHARD_OK)
		return SHARD_OK;
	session_refuse(t, h->attempt, &why);
	*to = STREAM_DISCARD;
	return SHARD_OK;
}

void transfer_write_frame(struct session *t, const struct wire_head *h, const void *body)
{
	struct model *m = model_find(t->server, h->model);
	struct wire_head by = *h;
	struct err why;
	/* Checked again, because the model may have been sealed or lost while the body came in. */
	enum shard_status st = write_may(t, m, &by, &why);
	uint64_t self = 1ull << t->server->self, others = 0;

	if (st == SHARD_OK) {
		others = keepers(m, h->step) & ~self;
		if (keepers(m, h->step) & self)
			st = write_now(m, &by, body, &why);
	}
	/* If it does not reach all of them, the copies differ until it is sent again. A seal finds
	 * that. */
	if (st == SHARD_OK && others != 0)
		st = soon(call_pass_bulk_all(t, others, &by, body, &why), &why);
	if (st != SHARD_OK)
		session_refuse(t, h->attempt, &why);
	else if (others == 0)
		model_reply(t, OP_WRITE, h->attempt, m, NULL);
}

void transfer_node_write_head(struct peer *p, const struct wire_head *h, void **to)
{
	struct err why;

	if (write_check(model_find(p->server, h->model), h, &why) == SHARD_OK)
		return;
	*to = STREAM_DISCARD;
	peer_refuse(p, h->attempt, &why);
}

void transfer_node_write_frame(struct peer *p, const struct wire_head *h, const void *body)
{
	struct wire_head out = {
		.op = OP_WRITE, .flags = WIRE_REPLY, .model = h->model, .attempt = h->attempt};
	struct err why;

	if (write_now(model_find(p->server, h->model), h, body, &why) == SHARD_OK)
		peer_tell(p->server, p->node, &out, NULL);
	else
		peer_refuse(p, h->attempt, &why);
}

/* --- reading --- */

static void reading_free(struct reading *r)
{
	list_remove(&r->link);
	tier_unpin(r->m->tier, &r->pin); /* This may grant the pin of another one, and end it. */
	free(r);
}

/* It was counted as one that waits. */
static void reading_end(struct reading *r)
{
	struct session *t = caller_here(r->m->server, &r->who);

	if (t != NULL) /* Otherwise the session has ended. */
		t->trainer->reads_nr--;
	reading_free(r);
}

static bool all_finite(const float *w, uint32_t nr)
{
	uint32_t good = 0;

	while (good < nr && isfinite(w[good]))
		good++;
	return good == nr;
}

static void reading_pinned(struct tier_pin *p);

/* The state of the chunk must be in memory. Until it is, and until it has been read, it stays. */
static bool read_pins(struct reading *r)
{
	if (r->kind == SHARD_IMAGE || r->pin.at == TIER_PINNED)
		return true;
	r->pin.chunk = (uint32_t)(r->first / r->m->layout->chunk_elems);
	r->pin.done = reading_pinned;
	return r->pin.at == TIER_UNPINNED && tier_pin(r->m->tier, &r->pin);
}

/* Sends the answer. SHARD_AGAIN: after a warm start the images are still being made. Only then is
 * it known which weights are missing here, so a READ of elements that may be missing waits. Or the
 * state has to be brought into memory. */
static enum shard_status read_now(struct reading *r, struct err *e)
{
	struct model *m = r->m;
	struct server *s = m->server;
	struct wire_head h = {.op = OP_READ,
			      .flags = WIRE_REPLY,
			      .model = m->id,
			      .generation = m->generation,
			      .step = m->step,
			      .attempt = r->who.tag};
	struct session *t = caller_here(s, &r->who);
	struct conn *c = !caller_waits(s, &r->who) ? NULL
			 : t != NULL               ? t->conn
						   : peer_control(s->peer[r->who.node]);
	uint32_t bytes = r->count * (uint32_t)sizeof(float);
	float *buffer;
	enum shard_status st;

	CHECK(r->count > 0);
	if (c != NULL && (t != NULL ? stream_full(conn_stream(c)) : link_full(s, conn_stream(c))))
		return err_set(
			e, SHARD_BUSY,
			"%lu bytes of answers are on their way to this connection: take them first",
			(unsigned long)stream_held(conn_stream(c)));
	if (c != NULL && !stream_roomy(conn_stream(c)))
		return err_set(e, SHARD_BUSY, "%u frames wait for who asks: try again",
			       stream_queued(conn_stream(c)));
	if (r->kind != SHARD_IMAGE && (st = store_has_range(m->store, (enum shard_kind)r->kind,
							    r->first, r->count, e)) != SHARD_OK)
		return st;
	if (!read_pins(r))
		return SHARD_AGAIN;
	buffer = malloc(bytes);
	if (buffer == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to read %u bytes", bytes);
	st = store_read(m->store, (enum shard_kind)r->kind, r->first, r->count, buffer, e);
	if (st == SHARD_OK && m->memory.settle.on && !all_finite(buffer, r->count))
		st = SHARD_AGAIN;
	if (st != SHARD_OK || c == NULL)
		free(buffer);
	else if ((st = stream_send_owned(conn_stream(c), &h, buffer, bytes)) != SHARD_OK)
		return err_set(e, SHARD_BUSY, "the answer does not fit: try again");
	else
		conn_kick(c);
	return st;
}

/* SHARD_AGAIN: the READ has to wait for a boundary or for its image chunk. */
static enum shard_status read_may(const struct model *m, const struct reading *r, struct err *e)
{
	uint64_t chunk = r->first / m->layout->chunk_elems;

	if (lost_check(m, e) != SHARD_OK)
		return SHARD_LOST;
	if (!m->sealed)
		return err_set(e, SHARD_BAD_STATE, "\"%s\" has no weights yet: it was %s", m->name,
			       m->lost[0] != 0 ? m->lost : "not sealed");
	if (m->sealed_without > 0)
		return err_set(e, SHARD_MISSING,
			       "node %s has no weights for %lu elements of \"%s\", though it was "
			       "sealed: it is being given up, and comes back from a checkpoint",
			       members_name(m->server, m->server->self),
			       (unsigned long)m->sealed_without, m->name);
	if (m->img.applying || m->img.sealing || r->step > m->step)
		return SHARD_AGAIN;
	if (r->kind == SHARD_IMAGE &&
	    store_image_chunk(m->store, m->img.slot, (uint32_t)chunk) != data_version(m))
		return SHARD_AGAIN;
	if (r->step != 0 && r->step < m->step)
		return err_set(e, SHARD_STALE, "step %lu of \"%s\" is gone: this is step %lu",
			       (unsigned long)r->step, m->name, (unsigned long)m->step);
	return SHARD_OK;
}

static enum shard_status read_try(struct reading *r, struct err *e)
{
	enum shard_status st = read_may(r->m, r, e);

	return st == SHARD_OK ? read_now(r, e) : st;
}

/* t: the session of the READ. NULL: another node sent it. */
static enum shard_status may_wait(const struct model *m, const struct session *t,
				  const struct reading *r, struct err *e)
{
	uint32_t nr = 0;

	if (t != NULL && t->trainer->reads_nr >= READS_MAX)
		return err_set(e, SHARD_BUSY,
			       "%u reads of this connection wait for a step already: wait for "
			       "their answers",
			       t->trainer->reads_nr);
	list_each(it, &m->control->reads)
		nr += list_of(it, struct reading, link)->who.node == r->who.node;
	if (t == NULL && nr >= SERVER_CALLS_MAX)
		return err_set(e, SHARD_BUSY,
			       "%u reads of \"%s\" wait for a step already: wait for their answers",
			       nr, m->name);
	return SHARD_OK;
}

static enum shard_status read_start(struct session *t, const struct reading *as, struct err *e)
{
	struct reading *r = malloc(sizeof(*r));
	enum shard_status st;

	if (r == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a read");
	*r = *as;
	list_init(&r->link);
	if ((st = read_try(r, e)) == SHARD_AGAIN && (st = may_wait(r->m, t, r, e)) == SHARD_OK) {
		list_push(&r->m->control->reads, &r->link);
		if (t != NULL)
			t->trainer->reads_nr++;
		return SHARD_OK;
	}
	reading_free(r);
	return st;
}

static enum shard_status read_check(const struct model *m, const struct wire_head *h,
				    const Shard__Read *body, struct err *e)
{
	if (m == NULL || m->defining)
		return err_set(e, SHARD_NOT_FOUND, "no model %u here", h->model);
	if (body->first >= m->layout->elems || body->count == 0 ||
	    body->count > WIRE_PART_BYTES / sizeof(float))
		return err_set(e, SHARD_RANGE,
			       "read of %u elements at %lu of \"%s\": 1 to %zu inside %lu",
			       body->count, (unsigned long)body->first, m->name,
			       WIRE_PART_BYTES / sizeof(float), (unsigned long)m->layout->elems);
	return SHARD_OK;
}

enum shard_status transfer_read_request(struct session *t, const struct wire_head *h,
					const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Read *body = (const Shard__Read *)msg;
	struct model *m = model_find(t->server, h->model);
	struct reading r = {.m = m,
			    .who = caller_session(t, h->attempt),
			    .kind = body->kind,
			    .count = body->count,
			    .first = body->first,
			    .step = body->step};
	enum shard_status st = read_check(m, h, body, e);
	uint32_t chunk;

	if (st != SHARD_OK)
		return st;
	chunk = chunk_of(m, body->first);
	if (body->kind != SHARD_IMAGE && !place_holds(&m->place, chunk, t->server->self))
		return call_pass(t, place_primary(&m->place, chunk), h, msg, NULL, e);
	return read_start(t, &r, e);
}

enum shard_status transfer_node_read(struct peer *p, const struct wire_head *h,
				     const Shard__Read *body, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	struct reading r = {.m = m,
			    .who = caller_node(p, h->attempt),
			    .kind = body->kind,
			    .count = body->count,
			    .first = body->first,
			    .step = body->step};
	enum shard_status st = read_check(m, h, body, e);

	return st != SHARD_OK ? st : read_start(NULL, &r, e);
}

static void retry(struct reading *r)
{
	struct err e;
	enum shard_status st = read_try(r, &e);

	if (st == SHARD_AGAIN)
		return;
	if (st != SHARD_OK)
		caller_refuse(r->m->server, &r->who, &e);
	reading_end(r);
}

static void reading_pinned(struct tier_pin *p)
{
	retry(list_of(p, struct reading, pin));
}

static void transfer_retry(struct model *m)
{
	struct list now;

	list_init(&now);
	while (!list_empty(&m->control->reads)) {
		struct list *it = m->control->reads.next;

		list_remove(it);
		list_push(&now, it);
	}
	while (!list_empty(&now)) { /* One that ends may end others, in either list. */
		struct list *it = now.next;

		list_remove(it);
		list_push(&m->control->reads, it);
		retry(list_of(it, struct reading, link));
	}
}

void transfer_fail(struct model *m, const struct err *e)
{
	CHECK(e->status != SHARD_OK);
	while (!list_empty(&m->control->reads)) {
		struct reading *r = list_of(m->control->reads.next, struct reading, link);

		caller_refuse(m->server, &r->who, e);
		reading_end(r);
	}
}

static struct reading *reading_of(const struct model *m, uint64_t session)
{
	list_each(it, &m->control->reads) {
		struct reading *r = list_of(it, struct reading, link);

		if (r->who.node == m->server->self && r->who.session == session)
			return r;
	}
	return NULL;
}

void transfer_session_gone(struct server *s, uint64_t session)
{
	list_each(mit, &s->models) {
		const struct model *m = list_of(mit, struct model, link);
		struct reading *r;

		while ((r = reading_of(m, session)) != NULL)
			reading_free(r);
	}
}

static void transfer_going(struct model *m)
{
	if (m->control == NULL)
		return;
	transfer_fail(m, &(struct err){.status = SHARD_NOT_FOUND, .text = "the model is gone"});
}

const struct model_watch transfer_watch = {
	.readable = transfer_retry,
	.going = transfer_going,
};
