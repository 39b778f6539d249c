/* SPDX-License-Identifier: Apache-2.0 */
/* rdma_impl.h: what the files of rdma.h share; nobody else includes it. A queue pair carries frames
 * in order: each is a SEND of 64 bytes of header and its control body, or an RDMA WRITE of a bulk
 * body and then the SEND of its header. The immediate of every SEND is how many frames its sender
 * has taken from the other side so far: so many receives are free again. A SEND without bytes is
 * that count alone. */
#ifndef SHARD_NET_RDMA_IMPL_H
#define SHARD_NET_RDMA_IMPL_H

#include "base/list.h"
#include "net/rdma_place.h"

#include <stdatomic.h>

enum {
	RDMA_WINDOW =
		64, /* of the wire: frames on a queue pair that its receiver has not said it took */
	/* Counts alone come at most once in half a window that was taken; who has told nothing back
	 * since lets the other side send one window: two of them, and one that was due already. */
	RDMA_SPARE = 4,
	RDMA_RECVS = RDMA_WINDOW + RDMA_SPARE,
	RDMA_QUEUE = 64, /* frames queued or posted here */
	RDMA_COUNTS = 4, /* counts alone that are posted at a time */
	RDMA_SENDS = 2 * RDMA_QUEUE + RDMA_COUNTS,
	RDMA_CHAIN = 16, /* frames of one ibv_post_send */
	RDMA_TURN = 64,  /* completions of one turn: others on the loop want theirs */
	RDMA_SLOT = sizeof(struct wire_head) + RDMA_BODY_MAX,
};

enum rdma_work {
	WORK_BODY = 1,
	WORK_FRAME,
	WORK_COUNT,
	WORK_RECV
}; /* what a completion is of: the top of its wr_id */
#define WORK_ID(work, qp, n)                                                                       \
	((uint64_t)(work) << 56 | (uint64_t)(qp) << 48 | ((n)&0xffffffffffffull))

struct rdma {
	uv_loop_t *loop;
	struct rdma_conf conf;
	struct rdma_place at;
	struct ibv_comp_channel *channel;
	struct list rails, *turn_next; /* turn_next: the rail after the one whose turn it is; NULL:
					  no turn is on */
	atomic_uint domains;
	bool over, closing; /* over: the device is gone, and it was said */
	struct err why;
	unsigned handles;
	uv_poll_t completions, events;
	uv_idle_t turns;  /* runs while a rail wants a turn without an event: it fails, has more to
			     read, or polls busily */
	uv_timer_t timer; /* the earliest deadline of a rail */
	uint64_t due_ns;  /* when it rings; 0: not set */
	uint64_t spin_ns; /* poll busily until then */
	bool turning;
};

struct rdma_domain {
	struct rdma *rdma;
	struct ibv_pd *pd;
	atomic_uint regions, rails;
};

struct rdma_region {
	struct rdma_domain *domain;
	struct ibv_mr *mr;
	unsigned char *base;
	size_t bytes;
	atomic_uint posted; /* frames whose bodies lie here */
};

struct rdma_out { /* a frame to send; its header, and a control body behind it, are in its slot */
	const struct rdma_region *region;
	const void *body;
	uint64_t remote, posted_ns;
	uint32_t rkey, body_bytes, slot_bytes;
	stream_sent_fn sent;
	void *arg;
};

struct rdma_qp {
	struct rdma_rail *rail;
	struct ibv_qp *qp;
	uint32_t index, psn, their_qpn, max_inline;
	/* sending: frames by number; queued >= posted >= done, posted >= taken_there */
	uint64_t queued, posted, done, taken_there, progress_ns;
	uint32_t counts_out;
	bool completed; /* in this turn: on_room() is due */
	struct rdma_out out[RDMA_QUEUE];
	unsigned char *slots; /* RDMA_QUEUE of RDMA_SLOT bytes, then RDMA_RECVS */
	uint64_t taken, told; /* receiving: frames taken; what the other side was told of it */
	struct ibv_recv_wr recv[RDMA_RECVS], *again, **again_end; /* again: to post anew */
	struct ibv_sge recv_sge[RDMA_RECVS];
	uint32_t again_frames;
};

struct rdma_rail {
	struct rdma *rdma;
	struct rdma_domain *domain;
	struct rdma_rail_conf conf;
	struct list node; /* in rdma.rails */
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	unsigned char *memory;
	size_t memory_bytes;
	bool connected, in_callback, failed_told, only_flushed;
	struct err dead; /* status != SHARD_OK: over */
	struct rdma_stats stats;
	char there[64]; /* the peer's place */
	struct ibv_send_wr wr[2 * RDMA_CHAIN];
	struct ibv_sge sge[2 * RDMA_CHAIN];
	struct rdma_qp qp[];
};

void rdma_want_turn(struct rdma *r); /* rails are looked at in the loop's next round */
void rdma_want_timer(struct rdma *r, uint64_t due); /* and at this time at the latest */
enum shard_status rdma_no_memory(struct err *e, const struct rdma *r, int error, const char *what,
				 size_t bytes);
__attribute__((format(printf, 3, 4))) void rdma_rail_fail(struct rdma_rail *l, enum shard_status st,
							  const char *fmt, ...);
uint32_t rdma_rail_turn(
	struct rdma_rail *l,
	bool armed); /* at completions and deadlines; returns how many completions */
void rdma_rail_died(struct rdma_rail *l, const struct rdma_qp *q, const struct ibv_wc *wc);
void rdma_send_post(struct rdma_qp *q);
void rdma_send_done(struct rdma_qp *q, const struct ibv_wc *wc);
void rdma_send_count(struct rdma_qp *q);
void rdma_send_close(struct rdma_qp *q);
bool rdma_recv_init(struct rdma_qp *q);
bool rdma_recv_again(struct rdma_qp *q);
void rdma_recv_came(struct rdma_qp *q, const struct ibv_wc *wc);

#endif
