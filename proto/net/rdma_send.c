/* SPDX-License-Identifier: Apache-2.0 */
/* The sending half of a rail. Its owner calls it, and the rail's turns do. Happy path: a frame
 * waits in its queue pair's ring. As many frames as the other side has receives for are sealed (the
 * sum is taken now) and posted as chains, of which the last frame is signalled. That completion
 * gives all bodies of the chain back. If the ring is full, sending answers SHARD_AGAIN. If the
 * device refuses a request, or completes it with an error, the rail has failed. What was queued
 * then comes back when the rail is freed. */
#include "net/rdma_impl.h"

#include "base/check.h"
#include "base/clock.h"
#include "wire/ops.h"

#include <arpa/inet.h>
#include <string.h>

/* Frames of a chain whose bodies are summed first. The device should not wait long for the next
 * chain. */
enum { CHAIN_SUMMED = 4 };

static unsigned char *slot(const struct rdma_qp *q, uint64_t n)
{
	return q->slots + n % RDMA_QUEUE * RDMA_SLOT;
}

static enum shard_status room(const struct rdma_rail *l, uint32_t qp)
{
	CHECK(qp < l->conf.qps_nr);
	if (l->dead.status != SHARD_OK)
		return SHARD_CLOSED;
	CHECK(l->connected);
	return l->qp[qp].queued - l->qp[qp].done < RDMA_QUEUE ? SHARD_OK : SHARD_AGAIN;
}

static struct rdma_out *push(struct rdma_qp *q, const struct wire_head *h, uint32_t body_bytes)
{
	struct rdma_out *o = &q->out[q->queued % RDMA_QUEUE];
	struct wire_head *at = (void *)slot(q, q->queued);

	memset(o, 0, sizeof(*o));
	*at = *h;
	at->body_bytes = o->body_bytes = body_bytes;
	o->slot_bytes = sizeof(*h);
	q->queued++;
	return o;
}

enum shard_status rdma_rail_send(struct rdma_rail *l, uint32_t qp, const struct wire_head *h,
				 const struct rdma_region *region, const void *body,
				 uint32_t body_bytes, uint64_t remote, uint32_t rkey,
				 stream_sent_fn sent, void *arg)
{
	enum shard_status rc = room(l, qp);
	struct rdma_out *o;

	if (rc != SHARD_OK)
		return rc;
	CHECK(wire_bulk(h) && body_bytes > 0 && region->domain == l->domain &&
	      rdma_region_has(region, body, body_bytes));
	if (body_bytes > wire_op(h->op)->body_max)
		return SHARD_RANGE;
	o = push(&l->qp[qp], h, body_bytes);
	o->region = region;
	o->body = body;
	o->remote = remote;
	o->rkey = rkey;
	o->sent = sent;
	o->arg = arg;
	atomic_fetch_add(&((struct rdma_region *)(uintptr_t)region)->posted, 1);
	return SHARD_OK;
}

enum shard_status rdma_rail_control(struct rdma_rail *l, uint32_t qp, const struct wire_head *h,
				    const ProtobufCMessage *msg)
{
	size_t bytes = msg ? protobuf_c_message_get_packed_size(msg) : 0;
	enum shard_status rc = room(l, qp);
	struct rdma_out *o;

	if (rc != SHARD_OK)
		return rc;
	CHECK(!wire_bulk(h));
	if (bytes > RDMA_BODY_MAX || bytes > wire_op(h->op)->body_max)
		return SHARD_RANGE;
	o = push(&l->qp[qp], h, (uint32_t)bytes);
	o->slot_bytes += (uint32_t)bytes;
	if (bytes > 0)
		protobuf_c_message_pack(msg, slot(&l->qp[qp], l->qp[qp].queued - 1) + sizeof(*h));
	return SHARD_OK;
}

/* Turns one frame into one or two requests and returns how many. Control bodies are always summed,
 * because they are short. */
static uint32_t fill(struct rdma_qp *q, uint64_t n, struct ibv_send_wr *wr, struct ibv_sge *sge,
		     uint64_t now)
{
	struct rdma_out *o = &q->out[n % RDMA_QUEUE];
	unsigned char *at = slot(q, n);
	struct rdma_rail *l = q->rail;
	uint32_t nr = 0;

	wire_seal((struct wire_head *)(void *)at,
		  o->region ? o->body : at + sizeof(struct wire_head), (uint64_t)q->index << 56 | n,
		  o->region ? l->conf.checksum : true);
	o->posted_ns = now;
	if (o->region) {
		sge[nr] = (struct ibv_sge){(uintptr_t)o->body, o->body_bytes, o->region->mr->lkey};
		wr[nr] = (struct ibv_send_wr){.wr_id = WORK_ID(WORK_BODY, q->index, n),
					      .opcode = IBV_WR_RDMA_WRITE};
		wr[nr].wr.rdma.remote_addr = o->remote;
		wr[nr].wr.rdma.rkey = o->rkey;
		nr++;
	}
	sge[nr] = (struct ibv_sge){(uintptr_t)at, o->slot_bytes, l->mr->lkey};
	wr[nr] = (struct ibv_send_wr){.wr_id = WORK_ID(WORK_FRAME, q->index, n),
				      .opcode = IBV_WR_SEND_WITH_IMM};
	wr[nr].imm_data = htonl((uint32_t)q->taken);
	wr[nr].send_flags = o->slot_bytes <= q->max_inline ? IBV_SEND_INLINE : 0;
	return nr + 1;
}

static void post(struct rdma_qp *q, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	int rc = ibv_post_send(q->qp, wr, &bad);

	if (rc == 0)
		return;
	rdma_rail_fail(q->rail, SHARD_SYSTEM, "RDMA queue pair %u to %s takes no requests: %s",
		       q->index, q->rail->there, strerror(rc > 0 ? rc : -rc));
	rdma_want_turn(q->rail->rdma);
}

static void post_chain(struct rdma_qp *q, uint64_t nr, uint64_t now)
{
	struct rdma_rail *l = q->rail;
	uint32_t used = 0;

	for (uint64_t i = 0; i < nr; i++) {
		uint32_t more = fill(q, q->posted + i, l->wr + used, l->sge + used, now);

		for (uint32_t k = used; k < used + more; k++) {
			l->wr[k].sg_list = &l->sge[k];
			l->wr[k].num_sge = 1;
			l->wr[k].next = &l->wr[k + 1];
		}
		used += more;
	}
	CHECK(used > 0 && used <= NR(l->wr));
	l->wr[used - 1].next = NULL;
	l->wr[used - 1].send_flags |= IBV_SEND_SIGNALED;
	if (q->posted == q->done)
		q->progress_ns = now;
	q->posted += nr;
	q->told = q->taken;
	post(q, l->wr);
}

void rdma_send_post(struct rdma_qp *q)
{
	uint64_t max = q->rail->conf.checksum ? CHAIN_SUMMED : RDMA_CHAIN, now;

	if (q->posted == q->queued || q->posted - q->taken_there >= RDMA_WINDOW)
		return;
	now = clock_ns();
	while (q->rail->dead.status == SHARD_OK && q->posted < q->queued &&
	       q->posted - q->taken_there < RDMA_WINDOW) {
		uint64_t nr = q->queued - q->posted,
			 credit = RDMA_WINDOW - (q->posted - q->taken_there);

		nr = nr < credit ? nr : credit;
		post_chain(q, nr < max ? nr : max, now);
	}
	rdma_want_timer(q->rail->rdma, now + q->rail->conf.deadline_ns);
}

void rdma_rail_kick(struct rdma_rail *l, uint32_t qp)
{
	CHECK(qp < l->conf.qps_nr);
	if (l->dead.status == SHARD_OK)
		rdma_send_post(&l->qp[qp]);
}

/* Sends a credit when no frame has carried the count for half a window. */
void rdma_send_count(struct rdma_qp *q)
{
	struct ibv_send_wr wr = {.wr_id = WORK_ID(WORK_COUNT, q->index, 0),
				 .opcode = IBV_WR_SEND_WITH_IMM};

	if (q->taken - q->told < RDMA_WINDOW / 2 || q->counts_out == RDMA_COUNTS ||
	    q->rail->dead.status != SHARD_OK)
		return;
	wr.imm_data = htonl((uint32_t)q->taken);
	wr.send_flags = IBV_SEND_SIGNALED;
	q->told = q->taken;
	q->counts_out++;
	post(q, &wr);
}

/* The first frame leaves the ring. Its place is free for a new one before sent() runs, because
 * sent() may queue one. */
static void pop(struct rdma_qp *q, enum shard_status st)
{
	struct rdma_out o = q->out[q->done % RDMA_QUEUE];

	CHECK(q->done < q->queued);
	q->done++;
	if (o.region) {
		CHECK(o.region->posted > 0);
		atomic_fetch_sub(&((struct rdma_region *)(uintptr_t)o.region)->posted, 1);
	}
	if (st == SHARD_OK) {
		q->rail->stats.frames_out++;
		q->rail->stats.tensor_bytes_out += o.region ? o.body_bytes : 0;
	}
	if (o.sent)
		o.sent(o.arg, st);
}

void rdma_send_done(struct rdma_qp *q, const struct ibv_wc *wc)
{
	uint64_t upto;

	if (wc->wr_id >> 56 == WORK_COUNT) {
		CHECK(q->counts_out > 0);
		q->counts_out--;
		return;
	}
	upto = q->done + ((wc->wr_id - q->done) & 0xffffffffffffull);
	CHECK(upto < q->posted);
	q->progress_ns = clock_ns();
	q->completed = true;
	while (q->done <= upto)
		pop(q, SHARD_OK);
}

void rdma_send_close(struct rdma_qp *q)
{
	while (q->done < q->queued)
		pop(q, SHARD_CLOSED);
}

uint32_t rdma_rail_queued(const struct rdma_rail *l, uint32_t qp)
{
	CHECK(qp < l->conf.qps_nr);
	return (uint32_t)(l->qp[qp].queued - l->qp[qp].done);
}

bool rdma_rail_room_comes(const struct rdma_rail *l, uint32_t qp)
{
	return rdma_rail_queued(l, qp) > 0 || l->qp[qp].completed || l->dead.status != SHARD_OK;
}
