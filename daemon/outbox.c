/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks on their way out of one connection. gather.c and apply.c push chunks, the connection's sent() pulls the next parts: few
 * frames wait in the connection at a time. A connection that closes gives its frames back, then the outbox is dropped. */
#include "outbox.h"

#include "apply.h"
#include "base/check.h"
#include "model.h"
#include "peer.h"
#include "regions.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

#define OUTBOX_QUEUED_MAX 8 /* parts in the connection's queue: 2 MiB */

enum shard_status outbox_init(struct outbox *o, struct model *m, enum outbox_kind kind, uint32_t cap, struct err *e)
{
	*o = (struct outbox){.model = m, .kind = kind, .cap = cap};
	o->ring = calloc(cap, sizeof(*o->ring));
	if (o->ring == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a list of %u chunks", cap);
	return SHARD_OK;
}

void outbox_free(struct outbox *o)
{
	CHECK(o->inflight == 0);
	free(o->ring);
	memset(o, 0, sizeof(*o));
}

void outbox_push(struct outbox *o, uint32_t chunk)
{
	CHECK(o->nr < o->cap);
	o->ring[(o->head + o->nr++) % o->cap] = chunk;
	if (o->kind != OUTBOX_CONTRIB)
		o->model->image_sends++;
}

static void outbox_pop(struct outbox *o)
{
	o->head = (o->head + 1) % o->cap;
	o->nr--;
	o->part = 0;
	o->chosen = false;
	if (o->kind != OUTBOX_CONTRIB)
		apply_image_sent(o->model);
}

void outbox_drop(struct outbox *o)
{
	while (o->nr > 0)
		outbox_pop(o);
}

static void outbox_sent(void *arg, enum shard_status st)
{
	struct outbox *o = arg;

	o->inflight--;
	if (o->kind != OUTBOX_CONTRIB)
		apply_image_sent(o->model);
	else
		model_release(o->model);
	if (st == SHARD_OK)
		outbox_pump(o);
}

static void outbox_arrived(void *arg, enum shard_status st)
{
	struct outbox *o = arg;

	regions_sent(o->model, o->peer->node);
	outbox_sent(o, st);
}

static enum shard_status send_part(struct outbox *o, uint32_t chunk)
{
	struct model *m = o->model;
	bool image = o->kind != OUTBOX_CONTRIB;
	uint32_t bytes = model_part_bytes(m, chunk, image ? m->image_bytes : m->grad_bytes, o->part);
	uint32_t slot = o->ring[o->head] & OUTBOX_SLOT ? 1 : 0;
	const uint8_t *base = image ? store_image(m->store, slot, chunk) : gather_contribution(m, chunk);
	struct wire_head h;
	enum shard_status st;

	model_head(m, &h, image ? OP_IMAGE_DATA : OP_CONTRIB_DATA, image ? &m->record.id : &m->id_now);
	if (image) /* a skipped step may have moved the version on: trainers wait for it, nodes for the bytes */
		h.step = o->kind == OUTBOX_TRAINER ? store_image_chunk(m->store, slot, chunk) : m->slot_content[slot];
	h.chunk = chunk;
	h.flags = WIRE_PART_FLAG(o->part);
	base += (size_t)o->part * WIRE_PART_BYTES;
	if (o->by_rail)
		st = rdma_rail_send(o->route.rail, o->route.qp, &h, o->route.from, base, bytes,
				    o->route.remote + (uint64_t)o->part * WIRE_PART_BYTES, o->route.rkey, outbox_arrived, o);
	else
		st = stream_send(conn_stream(o->conn), &h, base, bytes, outbox_sent, o);
	if (st != SHARD_OK)
		return st;
	if (o->by_rail)
		regions_posted(m, o->peer->node);
	o->inflight++;
	if (image)
		m->image_sends++;
	else
		m->busy++;
	return SHARD_OK;
}

/* Which tensors are absent, and that this was all. */
static enum shard_status send_close(struct outbox *o, uint32_t chunk)
{
	struct model *m = o->model;
	uint32_t segments = m->layout->chunk_segment[chunk + 1] - m->layout->chunk_segment[chunk];
	uint32_t *tensors = arena_take(&m->server->tx, (size_t)(segments + 1) * sizeof(*tensors));
	Shard__Push push = SHARD__PUSH__INIT;
	struct wire_head h;
	enum shard_status st;

	CHECK(tensors != NULL); /* the scratch was made to hold every segment */
	push.n_absent = gather_absent(m, chunk, tensors, segments);
	push.absent = tensors;
	if (m->gather.chunk[chunk].summed && !m->gather.chunk[chunk].finite && m->gather.local_nr > 1 &&
	    m->gather.chunk[chunk].bad_rank >= 0) {
		push.bad_rank = (uint32_t)m->gather.chunk[chunk].bad_rank + 1;
		push.bad_tensor = m->gather.chunk[chunk].bad_tensor;
	}
	model_head(m, &h, OP_CONTRIB, &m->id_now);
	h.chunk = chunk;
	if (o->by_rail)
		st = rdma_rail_control(o->route.rail, o->route.qp, &h, &push.base);
	else
		st = stream_send_control(conn_stream(o->conn), &h, &push.base);
	arena_reset(&m->server->tx);
	return st;
}

/* By RDMA whole, or over the connection whole: its frames must arrive in order. */
static void choose(struct outbox *o, uint32_t chunk)
{
	uint32_t slot = o->ring[o->head] & OUTBOX_SLOT ? 1 : 0;

	if (o->chosen)
		return;
	o->chosen = true;
	if (o->peer == NULL)
		o->by_rail = false;
	else if (o->kind == OUTBOX_CONTRIB)
		o->by_rail = regions_contribution(o->model, o->peer, chunk, &o->route);
	else
		o->by_rail = regions_image(o->model, o->peer, slot, chunk, &o->route);
}

/* One frame of the chunk at head; SHARD_AGAIN: the connection is full. */
static enum shard_status send_next(struct outbox *o)
{
	struct model *m = o->model;
	uint32_t chunk = o->ring[o->head] & ~OUTBOX_SLOT;
	bool image = o->kind != OUTBOX_CONTRIB;
	uint32_t parts = model_parts(m, chunk, image ? m->image_bytes : m->grad_bytes);
	enum shard_status st = SHARD_OK;

	while (!image && o->part < parts && gather_part_absent(m, chunk, o->part))
		o->part++;
	if (o->part < parts) {
		if ((st = send_part(o, chunk)) == SHARD_OK)
			o->part++;
		if (st != SHARD_OK || o->part < parts || !image)
			return st;
	} else {
		st = send_close(o, chunk);
	}
	if (st == SHARD_OK)
		outbox_pop(o);
	return st;
}

void outbox_pump(struct outbox *o)
{
	uint32_t qps = 0;
	bool any = false;

	while (o->conn != NULL && o->nr > 0) {
		choose(o, o->ring[o->head] & ~OUTBOX_SLOT);
		if (!o->by_rail && stream_queued(conn_stream(o->conn)) >= OUTBOX_QUEUED_MAX)
			break;
		any |= !o->by_rail;
		qps |= o->by_rail ? BIT(o->route.qp) : 0;
		if (send_next(o) != SHARD_OK)
			break; /* parts in flight pull again, and room; a full queue without any of ours is a link about to fall */
	}
	for (uint32_t qp = 0; qps != 0; qp++, qps >>= 1)
		if (qps & 1 && rail_queues(o->peer) != NULL)
			rdma_rail_kick(rail_queues(o->peer), qp);
	if (any)
		conn_kick(o->conn);
}
