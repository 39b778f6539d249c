/* SPDX-License-Identifier: Apache-2.0 */
/* rdma_impl.h: what the files of rdma.h share. Nobody else includes it. A queue pair carries frames
 * in order. Each is a SEND of the 64-byte header and its control body, or an RDMA WRITE of a bulk
 * body and then the SEND of its header. The immediate of every SEND is the number of frames that
 * its sender has taken so far. The other side may use that many receives again. A SEND without
 * bytes carries only that count (a credit). */
#ifndef SHARD_NET_RDMA_IMPL_H
#define SHARD_NET_RDMA_IMPL_H

#include "base/list.h"
#include "net/rdma_place.h"

#include <stdatomic.h>

enum {
	/* Part of the protocol: frames on a queue pair whose receiver has not said that it took
	 * them. */
	RDMA_WINDOW = 64,
	/* Receives for credits. A side sends a credit at most once per half a window taken. While a
	 * side tells nothing back, the other may send it one window: two credits, and one that was
	 * due already. */
	RDMA_SPARE = 4,
	RDMA_RECVS = RDMA_WINDOW + RDMA_SPARE,
	RDMA_QUEUE = 64, /* Frames queued or posted here. */
	RDMA_COUNTS = 4, /* Credits that are posted at a time. */
	RDMA_SENDS = 2 * RDMA_QUEUE + RDMA_COUNTS,
	RDMA_CHAIN = 16, /* Frames of one ibv_post_send(). */
	RDMA_TURN = 64,  /* Completions of one turn. Other handles of the loop need theirs. */
	RDMA_SLOT = sizeof(struct wire_head) + RDMA_BODY_MAX,
};

/* What a completion is of. It is in the top byte of wr_id. */
enum rdma_work { WORK_BODY = 1, WORK_FRAME, WORK_COUNT, WORK_RECV };
#define WORK_ID(work, qp, n)                                                                       \
	((uint64_t)(work) << 56 | (uint64_t)(qp) << 48 | ((n)&0xffffffffffffull))

struct rdma {
	uv_loop_t *loop;
	struct rdma_conf conf;
	struct rdma_place at;
	struct ibv_comp_channel *channel;
	/* turn_next is the rail after the one whose turn it is. NULL: no turn is in progress. */
	struct list rails, *turn_next;
	atomic_uint domains;
	bool over, closing; /* over: the device is gone, and the owner was told. */
	struct err why;
	unsigned handles;
	int no_dma_buf; /* What it says to one that is none. 0: it was not asked. EBADF: it can. */
	uv_poll_t completions, events;
	/* Runs while a rail needs a turn without an event: it failed, has more to read, or polls
	 * busily. */
	uv_idle_t turns;
	uv_timer_t timer; /* The earliest deadline of a rail. */
	uint64_t due_ns;  /* When it fires. 0: not set. */
	uint64_t spin_ns; /* Poll busily until then. */
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
	atomic_uint posted; /* Frames whose bodies lie here. */
};

/* A frame to send. Its header, and a control body behind it, are in its slot. */
struct rdma_out {
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
	/* Sending. Frames are numbered. queued >= posted >= done, and posted >= taken_there. */
	uint64_t queued, posted, done, taken_there, progress_ns;
	uint32_t counts_out;
	bool completed; /* In this turn, so on_room() is due. */
	struct rdma_out out[RDMA_QUEUE];
	unsigned char *slots; /* RDMA_QUEUE slots of RDMA_SLOT bytes, then RDMA_RECVS. */
	uint64_t taken, told; /* Receiving: frames taken, and the count the peer was told. */
	struct ibv_recv_wr recv[RDMA_RECVS], *again, **again_end; /* again: to be posted anew. */
	struct ibv_sge recv_sge[RDMA_RECVS];
	uint32_t again_frames;
};

struct rdma_rail {
	struct rdma *rdma;
	struct rdma_domain *domain;
	struct rdma_rail_conf conf;
	struct list node; /* In rdma.rails. */
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	unsigned char *memory;
	size_t memory_bytes;
	bool connected, in_callback, failed_told, only_flushed;
	struct err dead; /* status != SHARD_OK: it has failed. */
	struct rdma_stats stats;
	char there[64]; /* The peer's address. */
	struct ibv_send_wr wr[2 * RDMA_CHAIN];
	struct ibv_sge sge[2 * RDMA_CHAIN];
	struct rdma_qp qp[];
};

void rdma_want_turn(struct rdma *r);                /* Rails get a turn in the loop's next round. */
void rdma_want_timer(struct rdma *r, uint64_t due); /* And at this time at the latest. */
enum shard_status rdma_no_memory(struct err *e, const struct rdma *r, int error, const char *what,
				 size_t bytes);
__attribute__((format(printf, 3, 4))) void rdma_rail_fail(struct rdma_rail *l, enum shard_status st,
							  const char *fmt, ...);
uint32_t rdma_rail_turn(
	struct rdma_rail *l,
	bool armed); /* Called at completions and deadlines. Returns the number of completions. */
void rdma_rail_died(struct rdma_rail *l, const struct rdma_qp *q, const struct ibv_wc *wc);
void rdma_send_post(struct rdma_qp *q);
void rdma_send_done(struct rdma_qp *q, const struct ibv_wc *wc);
void rdma_send_count(struct rdma_qp *q);
void rdma_send_close(struct rdma_qp *q);
bool rdma_recv_init(struct rdma_qp *q);
bool rdma_recv_again(struct rdma_qp *q);
void rdma_recv_came(struct rdma_qp *q, const struct ibv_wc *wc);

#endif
