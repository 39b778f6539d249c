/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks on their way out. contrib.c, grad.c and apply.c add them, and the lane of a connection or
 * queue pair (link/lane.h) says whose turn it is. Happy path: a chunk is added, and its queue waits
 * on its lane. At each turn the queue sends one part, straight from where the chunk lies. When the
 * last part is queued the chunk leaves the queue. A queue fails with its connection. The frames in
 * flight are then given back, and what waits is dropped. */
#include "data/send.h"

#include "base/check.h"
#include "data/data.h"
#include "data/model.h"
#include "link/peer.h"
#include "data/mr.h"
#include "link/session.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct lane_sender_ops sender_ops; /* It is defined below. */

static uint32_t held_at(const struct send_queue *o, uint32_t entry)
{
	uint32_t at = SEND_WHICH(entry) * o->model->layout->chunks_nr + SEND_CHUNK(entry);

	CHECK(at < o->cap);
	return at;
}

static bool held(const struct send_queue *o, uint32_t entry)
{
	return o->held[held_at(o, entry) / 8] >> held_at(o, entry) % 8 & 1;
}

static uint32_t which_of(const struct send_queue *o)
{
	return SEND_WHICH(o->ring[o->head]);
}

static uint32_t chunk_of(const struct send_queue *o)
{
	return SEND_CHUNK(o->ring[o->head]);
}

static struct lane *lane_now(const struct send_queue *o)
{
	return o->by_rail ? &o->peer->rdma.lane[o->route.qp] : o->lane;
}

void send_queue_check(const struct send_queue *o)
{
	CHECK(o->nr <= o->cap && (o->nr > 0 || (o->part == 0 && !o->begun && !o->by_rail)));
	CHECK((o->nr > 0) == !list_empty(&o->sender.link));
	CHECK(o->nr == 0 || (o->lane != NULL && held(o, o->ring[o->head])));
	if (o->nr > 0)
		lane_check(lane_now(o));
}

enum shard_status send_queue_init(struct send_queue *o, struct model *m,
				  const struct send_source *source, uint32_t cap, struct err *e)
{
	*o = (struct send_queue){
		.sender = {.ops = &sender_ops}, .model = m, .source = source, .cap = cap};
	list_init(&o->sender.link);
	o->ring = calloc(cap, sizeof(*o->ring));
	o->held = calloc((cap + 7) / 8, 1);
	if (o->ring != NULL && o->held != NULL)
		return SHARD_OK;
	send_queue_free(o);
	return err_set(e, SHARD_SYSTEM, "no memory for a list of %u chunks", cap);
}

void send_queue_free(struct send_queue *o)
{
	CHECK(o->inflight == 0 && o->nr == 0);
	free(o->ring);
	free(o->held);
	memset(o, 0, sizeof(*o));
}

static void send_queue_pop(struct send_queue *o)
{
	uint32_t at = held_at(o, o->ring[o->head]);

	o->held[at / 8] &= (uint8_t) ~(1u << at % 8);
	o->head = (o->head + 1) % o->cap;
	o->nr--;
	o->part = 0;
	o->begun = o->by_rail = false;
	if (o->source->left)
		o->source->left(o->model);
}

void send_queue_drop(struct send_queue *o)
{
	if (o->nr > 0)
		list_remove(&o->sender.link);
	/* Only what waits now is dropped. The last one may allow a vote, and new chunks come in. */
	for (uint32_t nr = o->nr; nr > 0; nr--)
		send_queue_pop(o);
}

void send_queue_attach(struct send_queue *o, struct lane *l)
{
	CHECK(o->nr == 0);
	o->lane = l;
}

void send_queue_detach(struct send_queue *o)
{
	o->lane = NULL;
	if (o->ring != NULL)
		send_queue_drop(o);
}

static void came_back(struct send_queue *o)
{
	CHECK(o->inflight > 0);
	o->inflight--;
	o->source->back(o->model);
}

static void send_queue_sent(void *arg, enum shard_status st)
{
	struct send_queue *o = arg;

	came_back(o);
	if (st == SHARD_OK && o->lane != NULL)
		lane_serve(o->lane); /* The write that took this frame takes the next one, too. */
}

/* The queue pair is served when the batch of completions is handled, by on_room() of rdma.c. */
static void send_queue_arrived(void *arg, enum shard_status st)
{
	struct send_queue *o = arg;

	(void)st;
	mr_sent(o->model, o->peer->node);
	came_back(o);
}

static enum shard_status send_part(struct send_queue *o, uint32_t chunk)
{
	struct model *m = o->model;
	uint32_t which = which_of(o);
	uint32_t bytes = data_part_bytes(o->source->bytes(m, which, chunk), o->part);
	const uint8_t *base = o->source->at(m, which, chunk);
	struct wire_head h = {.chunk = chunk};
	enum shard_status st;

	o->source->head(o, which, &h);
	h.flags = WIRE_PART_FLAG(o->part);
	base += (size_t)o->part * WIRE_PART_BYTES;
	if (o->by_rail)
		st = rdma_rail_send(o->route.queues, o->route.qp, &h, o->route.from, base, bytes,
				    o->route.remote + (uint64_t)o->part * WIRE_PART_BYTES,
				    o->route.rkey, send_queue_arrived, o);
	else
		st = stream_send(conn_stream(o->lane->conn), &h, base, bytes, send_queue_sent, o);
	if (st != SHARD_OK)
		return st;
	if (o->by_rail)
		mr_posted(m, o->peer->node);
	o->inflight++;
	o->source->out(m);
	return SHARD_OK;
}

/* Says which tensors are absent, and that this was all of the chunk. */
static enum shard_status send_close(struct send_queue *o, uint32_t chunk)
{
	struct model *m = o->model;
	uint32_t segments = m->layout->chunk_segment[chunk + 1] - m->layout->chunk_segment[chunk];
	uint32_t *tensors =
		arena_take(&m->server->scratch.tx, (size_t)(segments + 1) * sizeof(*tensors));
	struct send_closing c;
	struct wire_head h;
	enum shard_status st;

	CHECK(tensors != NULL); /* The scratch memory has room for every segment. */
	o->source->close(m, chunk, &c, tensors, segments);
	data_head(m, &h, c.op, &m->attempt.id);
	h.chunk = chunk;
	if (o->by_rail)
		st = rdma_rail_control(o->route.queues, o->route.qp, &h, &c.body.base);
	else
		st = stream_send_control(conn_stream(o->lane->conn), &h, &c.body.base);
	arena_reset(&m->server->scratch.tx);
	return st;
}

/* A chunk goes either by RDMA or over the connection, as a whole, because its frames must arrive in
 * order. */
static void choose(struct send_queue *o)
{
	CHECK(!o->begun && o->nr > 0);
	o->by_rail = o->peer != NULL && o->source->route(o, which_of(o), chunk_of(o), &o->route);
}

/* Sends one frame of the chunk at head. SHARD_AGAIN: the send queue of the connection or queue pair
 * is full. */
static enum shard_status send_next(struct send_queue *o)
{
	struct model *m = o->model;
	uint32_t chunk = chunk_of(o);
	const struct send_source *from = o->source;
	uint32_t parts = data_parts(from->bytes(m, which_of(o), chunk));
	enum shard_status st;

	while (from->absent && o->part < parts && from->absent(m, chunk, o->part))
		o->part++;
	st = o->part < parts ? send_part(o, chunk) : send_close(o, chunk);
	if (st != SHARD_OK)
		return st;
	o->begun = true;
	if (o->part < parts && (++o->part < parts || from->close))
		return SHARD_OK;
	send_queue_pop(o);
	return SHARD_OK;
}

static struct send_queue *send_queue_of(const struct lane_sender *s)
{
	return list_of(s, struct send_queue, sender);
}

static enum shard_status sender_send(struct lane_sender *s, struct lane *l)
{
	struct send_queue *o = send_queue_of(s);

	if (!o->begun)
		choose(o); /* The peer may have told or taken back memory since the chunk began to
			      wait. */
	return lane_now(o) == l ? send_next(o) : SHARD_OK;
}

static struct lane *sender_where(struct lane_sender *s)
{
	struct send_queue *o = send_queue_of(s);

	if (o->nr == 0)
		return NULL;
	if (!o->begun)
		choose(o);
	return lane_now(o);
}

static void sender_describe(const struct lane_sender *s, char *text, size_t bytes)
{
	const struct send_queue *o = send_queue_of(s);

	snprintf(text, bytes, "chunk %u of \"%s\"", chunk_of(o), o->model->name);
}

static const struct lane_sender_ops sender_ops = {
	.send = sender_send,
	.where = sender_where,
	.describe = sender_describe,
};

bool send_queue_has(const struct send_queue *o, uint32_t entry)
{
	return held(o, entry);
}

void send_queue_add(struct send_queue *o, uint32_t entry)
{
	if (o->lane == NULL || held(o, entry))
		return;
	CHECK(o->nr < o->cap);
	o->ring[(o->head + o->nr++) % o->cap] = entry;
	o->held[held_at(o, entry) / 8] |= (uint8_t)(1u << held_at(o, entry) % 8);
	if (o->source->waits)
		o->source->waits(o->model);
	if (o->nr == 1)
		lane_wait(&o->sender);
	send_queue_check(o);
}
