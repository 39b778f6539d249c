/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving half of a rail. It is called from the rail's turns. Happy path: a receive is posted
 * for each frame that the other side may send, and some for credits. A header arrives ->
 * wire_invalid() -> on_head() names the place where its body already is -> the sum is checked ->
 * on_frame() -> the receive is posted again, and only then reported to the peer as free. A frame
 * that is not valid is the peer's mistake. It ends the rail with the frame's number and the
 * peer. */
#include "net/rdma_impl.h"

#include "base/check.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

static unsigned char *slot(const struct rdma_qp *q, uint64_t i)
{
	return q->slots + (RDMA_QUEUE + i) * RDMA_SLOT;
}

bool rdma_recv_init(struct rdma_qp *q)
{
	q->again = NULL;
	q->again_end = &q->again;
	for (uint32_t i = 0; i < RDMA_RECVS; i++) {
		q->recv_sge[i] =
			(struct ibv_sge){(uintptr_t)slot(q, i), RDMA_SLOT, q->rail->mr->lkey};
		q->recv[i] = (struct ibv_recv_wr){.wr_id = WORK_ID(WORK_RECV, q->index, i),
						  .sg_list = &q->recv_sge[i],
						  .num_sge = 1};
		*q->again_end = &q->recv[i];
		q->again_end = &q->recv[i].next;
	}
	return rdma_recv_again(q);
}

static void free_slot(struct rdma_qp *q, uint64_t i, bool frame)
{
	q->recv[i].next = NULL;
	*q->again_end = &q->recv[i];
	q->again_end = &q->recv[i].next;
	q->again_frames += frame;
}

bool rdma_recv_again(struct rdma_qp *q)
{
	struct ibv_recv_wr *bad = NULL;
	int rc;

	if (!q->again)
		return true;
	rc = ibv_post_recv(q->qp, q->again, &bad);
	if (rc != 0) {
		errno = rc > 0 ? rc : -rc;
		rdma_rail_fail(q->rail, SHARD_SYSTEM,
			       "RDMA queue pair %u to %s takes no receives: %s", q->index,
			       q->rail->there, strerror(errno));
		return false;
	}
	q->again = NULL;
	q->again_end = &q->again;
	q->taken += q->again_frames;
	q->again_frames = 0;
	return true;
}

static void refuse(struct rdma_qp *q, enum shard_status st, const struct wire_head *h,
		   const char *what)
{
	const struct wire_op_row *row = h ? wire_op(h->op) : NULL;
	bool known = row && h->magic == WIRE_MAGIC;

	q->rail->stats.refused++;
	rdma_rail_fail(q->rail, st, "frame %llu%s%s%s from %s over RDMA queue pair %u: %s",
		       (unsigned long long)(q->taken + q->again_frames), known ? " (" : "",
		       known ? row->name : "", known ? ")" : "", q->rail->there, q->index, what);
}

/* Returns the body once its sum is checked. NULL: the sum is wrong. */
static const void *body_of(struct rdma_qp *q, const struct wire_head *h, void *to,
			   const unsigned char *behind)
{
	bool bulk = wire_bulk(h), summed = bulk ? q->rail->conf.checksum : true;
	const void *body = bulk ? to : behind;

	CHECK(body); /* The handler always names the place of a bulk body. */
	if (summed && h->body_sum != xxh_sum(body, h->body_bytes, 0))
		return NULL;
	if (bulk)
		q->rail->stats.tensor_bytes_in += h->body_bytes;
	return bulk || !to ? body : memcpy(to, body, h->body_bytes);
}

static void frame(struct rdma_qp *q, uint64_t i, uint32_t bytes)
{
	const struct rdma_handler *handler = q->rail->conf.handler;
	struct wire_head h;
	const void *body = NULL;
	const char *why;
	struct err e = {0};
	enum shard_status rc;
	void *to = NULL;

	if (bytes < sizeof(h)) {
		refuse(q, SHARD_PROTOCOL, NULL, "shorter than a header");
		return;
	}
	memcpy(&h, slot(q, i), sizeof(h));
	why = wire_invalid(&h, (uint64_t)q->index << 56 | (q->taken + q->again_frames),
			   wire_bulk(&h) ? q->rail->conf.checksum : true);
	if (!why && bytes != sizeof(h) + (wire_bulk(&h) ? 0 : h.body_bytes))
		why = "its length is not what its header says";
	if (why) {
		refuse(q, SHARD_PROTOCOL, &h, why);
		return;
	}
	rc = handler->on_head(q->rail->conf.owner, q->index, &h, &to, &e);
	if (rc == SHARD_OK && to != STREAM_DISCARD) {
		if (h.body_bytes > 0)
			body = body_of(q, &h, to, slot(q, i) + sizeof(h));
		if (h.body_bytes == 0 || body)
			rc = handler->on_frame(q->rail->conf.owner, q->index, &h, body, &e);
		else if (handler->on_damage &&
			 handler->on_damage(q->rail->conf.owner, q->index, &h))
			q->rail->stats.refused++;
		else
			rc = err_set(&e, SHARD_PROTOCOL, "body checksum");
	}
	if (rc != SHARD_OK) {
		refuse(q, rc, &h, e.text);
		return;
	}
	q->rail->stats.frames_in++;
	free_slot(q, i, true);
}

/* A message arrived in its receive. */
void rdma_recv_came(struct rdma_qp *q, const struct ibv_wc *wc)
{
	uint64_t i = wc->wr_id & 0xffffffffffffull;
	uint32_t more;

	CHECK(i < RDMA_RECVS);
	if (wc->opcode != IBV_WC_RECV || !(wc->wc_flags & IBV_WC_WITH_IMM) ||
	    wc->byte_len > RDMA_SLOT) {
		refuse(q, SHARD_PROTOCOL, NULL, "a kind of message that there is none of");
		return;
	}
	more = ntohl(wc->imm_data) - (uint32_t)q->taken_there;
	if (more > q->posted - q->taken_there) {
		refuse(q, SHARD_PROTOCOL, NULL, "it took frames that were never sent");
		return;
	}
	q->taken_there += more;
	if (wc->byte_len == 0)
		free_slot(q, i, false);
	else
		frame(q, i, wc->byte_len);
}
