/* SPDX-License-Identifier: Apache-2.0 */
/* The reduced gradient of a chunk from its primary to its followers, where a model has several
 * copies. Happy path: reduce.c has the last sum of a chunk at the primary, and each follower that
 * granted its landing slots gets the chunk in parts, straight from where it lies (send.c). GRAD
 * closes it, with what the primary found. At the follower it lands in the slot of the primary,
 * which no contribution uses there, because contributions go to the primary only. A worker then
 * copies it to memory that no other node can write, and takes the norm again. So the vote for this
 * copy is about the bytes that this node will apply. From there on it is a chunk as any other that
 * is held here: apply_stage() follows. A frame of an older attempt is read and dropped. A frame
 * from another node than the primary, or one that breaks the rules, ends the link. Bytes that
 * do not match their checksum end the attempt. A norm that is not the primary's goes to the
 * coordinator in place of the vote (core/odd.h). */
#include "data/grad.h"

#include "base/check.h"
#include "data/data.h"
#include "data/events.h"
#include "data/model.h"
#include "data/mr.h"
#include "link/peer.h"
#include "wire/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* No chunk has another copy, nor shall one have. */
static bool single(const struct model *m)
{
	return m->place.holders == NULL && m->place.to == NULL;
}

static uint32_t outs_nr(const struct model *m)
{
	return (uint32_t)m->memory.nodes_nr * m->server->conf->connections;
}

enum shard_status grad_init(struct model *m, struct err *e)
{
	struct grad *g = &m->reduced;
	uint32_t chunks = m->layout->chunks_nr;
	bool made;

	made = parts_init(&g->parts_in, chunks, data_parts_max(m));
	g->sent = calloc(chunks, sizeof(*g->sent));
	g->said = calloc(chunks, sizeof(*g->said));
	g->absent = calloc(m->layout->segments_nr, 1);
	if (made && g->sent != NULL && g->said != NULL && g->absent != NULL)
		return SHARD_OK;
	return err_set(e, SHARD_SYSTEM, "no memory to keep track of %u chunks of \"%s\"", chunks,
		       m->name); /* grad_free() frees what is there. */
}

void grad_free(struct model *m)
{
	struct grad *g = &m->reduced;

	CHECK(g->out == NULL); /* data_free_queues() comes first. */
	free(g->sent);
	free(g->said);
	free(g->absent);
	parts_free(&g->parts_in);
	memset(g, 0, sizeof(*g));
}

void grad_begin(struct model *m)
{
	struct grad *g = &m->reduced;
	uint32_t chunks = m->layout->chunks_nr;

	if (single(m))
		return;
	memset(g->sent, 0, chunks * sizeof(*g->sent));
	memset(g->said, 0, chunks * sizeof(*g->said));
	memset(g->absent, 0, m->layout->segments_nr);
	parts_clear(&g->parts_in, chunks);
	m->reduced.in = (struct model_flow){0};
}

void grad_drop(struct model *m)
{
	for (uint32_t i = 0; i < outs_nr(m); i++)
		send_queue_drop(&m->reduced.out[i]);
}

static struct send_queue *queue_of(const struct model *m, uint16_t node, uint32_t i)
{
	return &m->reduced.out[node * m->server->conf->connections + i];
}

void grad_node_drop(struct model *m, uint16_t node)
{
	for (uint32_t i = 0; i < m->server->conf->connections; i++)
		send_queue_drop(queue_of(m, node, i));
}

void grad_node_gone(struct model *m, uint16_t node)
{
	for (uint32_t i = 0; i < m->server->conf->connections; i++)
		send_queue_detach(queue_of(m, node, i));
}

void grad_node_back(struct model *m, uint16_t node)
{
	for (uint32_t i = 0; i < m->server->conf->connections; i++)
		send_queue_attach(queue_of(m, node, i), &m->server->peer[node]->conns[i].lane);
}

/* --- at the primary --- */

static bool part_absent(const struct model *m, uint32_t chunk, uint32_t part)
{
	return data_part_absent(m, chunk, m->reduced.absent, part);
}

/* Writes at most max tensors for which nobody has a gradient, and returns how many there are. */
static uint32_t absent_from(const struct model *m, uint32_t chunk, uint32_t *tensors, uint32_t max)
{
	const struct layout *l = m->layout;
	uint32_t nr = 0;

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++)
		if (m->contrib.zero[s] && nr++ < max)
			tensors[nr - 1] = l->segment_tensor[s];
	return nr;
}

static void close_with(const struct model *m, uint32_t chunk, struct send_closing *with,
		       uint32_t *tensors, uint32_t room)
{
	const struct contrib_chunk *c = &m->contrib.chunk[chunk];
	Shard__Grad *grad = &with->body.grad;

	with->op = OP_GRAD;
	shard__grad__init(grad);
	grad->n_absent = absent_from(m, chunk, tensors, room);
	grad->absent = tensors;
	grad->sumsq = c->sumsq;
	grad->finite = c->finite;
	if (c->finite)
		return;
	grad->bad_tensor = (uint32_t)(c->bad_tensor + 1);
	grad->bad_rank = (uint32_t)(c->bad_rank + 1);
}

static const uint8_t *grad_at(const struct model *m, uint32_t which, uint32_t chunk)
{
	(void)which;
	return m->contrib.chunk[chunk].base;
}

static void grad_head(const struct send_queue *o, uint32_t which, struct wire_head *h)
{
	uint32_t chunk = h->chunk;

	(void)which;
	data_head(o->model, h, OP_GRAD_DATA, &o->model->attempt.id);
	h->chunk = chunk;
}

static bool grad_route(const struct send_queue *o, uint32_t which, uint32_t chunk,
		       struct send_route *out)
{
	const struct model *m = o->model;

	return mr_contribution(m, o->peer, chunk, grad_at(m, which, chunk),
			       data_bytes(m, chunk, m->grad_bytes), absent_from(m, chunk, NULL, 0),
			       out);
}

static uint64_t grad_bytes(const struct model *m, uint32_t which, uint32_t chunk)
{
	(void)which;
	return data_bytes(m, chunk, m->grad_bytes);
}

const struct send_source grad_chunks = {
	.bytes = grad_bytes,
	.at = grad_at,
	.head = grad_head,
	.route = grad_route,
	.absent = part_absent,
	.close = close_with,
	.out = data_leaves,
	.back = data_left,
};

static void send_to(struct model *m, uint32_t chunk, uint16_t node)
{
	struct send_queue *o = queue_of(m, node, chunk % m->server->conf->connections);

	if (o->lane == NULL || m->reduced.sent[chunk] >> node & 1)
		return; /* The link is down, or the credit was repeated. */
	m->reduced.sent[chunk] |= 1ull << node;
	send_queue_add(o, chunk);
}

/* Where a tensor is frozen there is no gradient, although a trainer may have pushed one. */
static void mark_absent(struct model *m, uint32_t chunk)
{
	const struct layout *l = m->layout;

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++)
		m->reduced.absent[s] = m->contrib.zero[s] || layout_frozen(l, s);
}

void grad_reduced(struct model *m, uint32_t chunk)
{
	uint64_t to;

	if (single(m))
		return;
	CHECK(m->contrib.chunk[chunk].reduced);
	CHECK(place_primary(&m->place, chunk) == m->server->self);
	mark_absent(m, chunk);
	to = place_followers(&m->place, chunk) & m->contrib.credit;
	for (uint16_t n = 0; n < m->server->nodes_nr; n++)
		if (to >> n & 1)
			send_to(m, chunk, n);
}

void grad_credit(struct model *m, uint16_t node)
{
	/* In the order in which they are pushed: the last layer comes first. */
	for (uint32_t c = m->layout->chunks_nr; !single(m) && c-- > 0;)
		if (m->contrib.chunk[c].reduced && place_primary(&m->place, c) == m->server->self &&
		    place_followers(&m->place, c) >> node & 1)
			send_to(m, c, node);
}

/* --- at a follower --- */

/* This node has nothing more to send to the primary of the chunk, because it has no ranks or
 * because the last frame has left. */
static bool contributed(const struct model *m, uint32_t chunk)
{
	uint32_t connections = m->server->conf->connections,
		 i = place_primary(&m->place, chunk) * connections + chunk % connections;

	return m->contrib.local_nr == 0 ||
	       (m->contrib.chunk[chunk].sent && !send_queue_has(&m->attempt.out[i], chunk));
}

static enum shard_status attempt_of(const struct model *m, const struct peer *p,
				    const struct wire_head *h, struct err *e)
{
	enum shard_status st = data_attempt(m, h, e);
	uint16_t self = m->server->self;

	if (st != SHARD_OK)
		return st;
	if (single(m) || place_primary(&m->place, h->chunk) != p->node ||
	    !(place_followers(&m->place, h->chunk) >> self & 1))
		return err_set(e, SHARD_PROTOCOL,
			       "a reduced gradient of chunk %u of \"%s\", which this node does not "
			       "get from node %s",
			       h->chunk, m->name, members_name(m->server, p->node));
	if (m->reduced.said[h->chunk].whole || m->contrib.chunk[h->chunk].reduced)
		return SHARD_STALE; /* It was repeated. */
	/* A primary cannot have reduced the chunk before. Where the sum of the ranks here lies, the
	 * gradient will lie. */
	if (!contributed(m, h->chunk))
		return err_set(e, SHARD_PROTOCOL,
			       "a reduced gradient of chunk %u of \"%s\" without the part of this "
			       "node, which has not left",
			       h->chunk, m->name);
	return SHARD_OK;
}

enum shard_status grad_node_head(struct model *m, struct peer *p, const struct wire_head *h,
				 void **to, struct err *e)
{
	enum shard_status st = attempt_of(m, p, h, e);

	*to = STREAM_DISCARD;
	if (st == SHARD_OK)
		st = data_take_part(m, h, grad_bytes(m, 0, h->chunk), &m->reduced.parts_in, 0, e);
	if (st != SHARD_OK)
		return st == SHARD_STALE ? SHARD_OK : st;
	*to = (uint8_t *)store_slot(m->store, h->chunk, p->node) +
	      (size_t)WIRE_PART(h->flags) * WIRE_PART_BYTES;
	data_flow_add(&m->reduced.in, 0);
	return SHARD_OK;
}

enum shard_status grad_node_data(struct model *m, struct peer *p, const struct wire_head *h,
				 struct err *e)
{
	if (attempt_of(m, p, h, e) != SHARD_OK)
		return SHARD_OK; /* The attempt ended while the body came in. */
	data_part_came(m, h, &m->reduced.parts_in, 0);
	data_flow_add(&m->reduced.in, h->body_bytes);
	return SHARD_OK;
}

static void damaged(struct model *m, uint32_t chunk)
{
	uint16_t primary = place_primary(&m->place, chunk);

	log_line(m->server->log, LOG_LEVEL_WARN,
		 "event=gradient_damaged model=%s step=%lu attempt=%u chunk=%u node=%s "
		 "why=checksum",
		 m->name, (unsigned long)m->attempt.id.step, m->attempt.id.attempt, chunk,
		 members_name(m->server, primary));
	m->server->data->damaged(m, primary, chunk);
}

void grad_node_damaged(struct model *m, struct peer *p, const struct wire_head *h)
{
	struct err e;

	if (attempt_of(m, p, h, &e) == SHARD_OK) /* Else nobody waits for it any more. */
		damaged(m, h->chunk);
}

static enum shard_status take_said(const struct model *m, const Shard__Grad *body, uint32_t chunk,
				   struct grad_said *out, struct err *e)
{
	bool bad = body->bad_tensor > 0 || body->bad_rank > 0;

	if (body->finite ? bad || !isfinite(body->sumsq) || body->sumsq < 0
			 : body->bad_tensor == 0 || body->bad_tensor > m->layout->tensors_nr ||
				   body->bad_rank > m->attempt.world.size)
		return err_set(e, SHARD_PROTOCOL,
			       "a reduced gradient of chunk %u with a sum of squares of %g, finite "
			       "%d, tensor %u and rank %u: that cannot be",
			       chunk, body->sumsq, body->finite, body->bad_tensor, body->bad_rank);
	*out = (struct grad_said){.sumsq = body->sumsq,
				  .finite = body->finite,
				  .bad_tensor = (int64_t)body->bad_tensor - 1,
				  .bad_rank = (int32_t)body->bad_rank - 1};
	return SHARD_OK;
}

enum shard_status grad_node(struct model *m, struct peer *p, const struct wire_head *h,
			    const Shard__Grad *body, bool *whole, struct err *e)
{
	const struct layout *l = m->layout;
	struct grad *g = &m->reduced;
	struct grad_said said;
	enum shard_status st = attempt_of(m, p, h, e);

	if (st == SHARD_OK)
		st = take_said(m, body, h->chunk, &said, e);
	if (st == SHARD_OK)
		st = data_mark_absent(m, h->chunk, body->absent, body->n_absent, m->contrib.zero,
				      e);
	if (st == SHARD_OK) {
		mark_absent(m, h->chunk);
		st = data_check_whole(m, h->chunk, grad_bytes(m, 0, h->chunk), &g->parts_in, 0,
				      g->absent, e);
	}
	if (st != SHARD_OK)
		return st == SHARD_STALE ? SHARD_OK : st;
	for (uint32_t s = l->chunk_segment[h->chunk]; s < l->chunk_segment[h->chunk + 1]; s++)
		if (layout_frozen(l, s))
			m->contrib.zero[s] = 0; /* As the primary has it. */
	g->said[h->chunk] = said;
	g->said[h->chunk].whole = *whole = true;
	return SHARD_OK;
}

/* What this node found goes to the coordinator, which compares it with what the others did. */
static void differs(struct model *m, uint32_t chunk, const struct tier_result *r)
{
	struct grad_said *said = &m->reduced.said[chunk];

	log_line(m->server->log, LOG_LEVEL_ERROR,
		 "event=gradient_differs model=%s step=%lu attempt=%u chunk=%u node=%s said=%.17g "
		 "found=%.17g finite=%d,%d",
		 m->name, (unsigned long)m->attempt.id.step, m->attempt.id.attempt, chunk,
		 members_name(m->server, place_primary(&m->place, chunk)), said->sumsq, r->sumsq,
		 said->finite, r->finite);
	said->differs = true;
	m->reduced.differed++;
	said->sumsq = r->finite ? r->sumsq : 0;
	said->finite = r->finite;
	said->bad_tensor = -1;
	said->bad_rank = -1;
}

void grad_copied(struct model *m, uint32_t chunk, const struct tier_result *r)
{
	const struct grad_said *said = &m->reduced.said[chunk];
	struct contrib_chunk *c = &m->contrib.chunk[chunk];

	CHECK(said->whole && !c->reduced);
	if (r->finite != said->finite ||
	    (r->finite && memcmp(&r->sumsq, &said->sumsq, sizeof(r->sumsq)) != 0))
		differs(m, chunk, r);
	c->finite = said->finite;
	c->sumsq = said->sumsq; /* If it is not finite, nobody promises its bits. */
	c->bad_tensor = said->bad_tensor;
	c->bad_rank = said->bad_rank;
	c->base = store_sum(m->store, chunk);
	c->reduced = true;
}
