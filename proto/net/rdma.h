/* SPDX-License-Identifier: Apache-2.0 */
/* rdma.h: bulk frames over RDMA (libibverbs), beside the TCP connections of a link between two
 * nodes, which carry what sets this up and stay for control. A body is written straight into the
 * peer's registered memory; the frame's header follows it as a small message on the same queue
 * pair, so that it arrives after its body. Three lives: the device, one for the server; a domain
 * for each peer, with what that peer may touch; a rail, the queue pairs of one link. All calls on
 * the loop thread unless said otherwise. Built with RDMA=0, rdma_open() fails and says so, and
 * nothing else is ever called. */
#ifndef SHARD_NET_RDMA_H
#define SHARD_NET_RDMA_H

#include "base/status.h"
#include "net/stream.h"

#include <uv.h>

struct rdma; /* an open device with its completion channel and asynchronous events in the loop */
struct rdma_domain; /* protection domain and registrations of one peer */
struct rdma_region; /* memory registered in a domain */
struct rdma_rail;   /* connected queue pairs */

struct rdma_conf {
	const char *device; /* NULL: the first with an active port, one that has `address` before
			       others */
	int gid_index; /* -1: RoCE v2 with `address`, else RoCE v2 with any IPv4, else the first
			  that is not zero */
	const char *address;   /* numeric, of this node's listener; NULL or 0.0.0.0: any */
	uint32_t busy_poll_us; /* after a completion, poll so long before sleeping; 0: never */
	void (*gone)(void *owner,
		     const struct err
			     *why); /* device removed, port or device fatal; once; from the loop */
	void *owner;
};

/* SHARD_NOT_FOUND: no device, no active port, no such GID, built without RDMA; SHARD_DENIED:
 * memlock or rights; SHARD_SYSTEM. Texts say what to do. */
enum shard_status rdma_open(struct rdma **out, uv_loop_t *loop, const struct rdma_conf *conf,
			    struct err *e);
void rdma_close(struct rdma **r); /* CHECK: no domain is left. Its handles end with the loop */
const char *rdma_name(const struct rdma *r); /* "rxe0 port 1 gid 1 (10.9.0.1)" */

enum shard_status rdma_domain_new(struct rdma_domain **out, struct rdma *r, struct err *e);
void rdma_domain_free(struct rdma_domain **d); /* CHECK: no rail, no region is left */

/* Pins and registers; takes long, any thread may call it, also several at a time. remote: the peer
 * may write it, else only read here. Memory of shm.h (never forked). SHARD_DENIED: memlock is
 * exhausted or registration refused, with the limit. */
enum shard_status rdma_register(struct rdma_region **out, struct rdma_domain *d, void *base,
				size_t bytes, bool remote, struct err *e);
void rdma_deregister(struct rdma_region **g);
uint32_t rdma_region_rkey(const struct rdma_region *g);
bool rdma_region_has(const struct rdma_region *g, const void *at, size_t bytes);

#define RDMA_QPS_MAX  16
#define RDMA_BODY_MAX 4096 /* of a control frame */

struct rdma_ends { /* what each side tells the other, over TCP */
	uint32_t qps_nr, qpn[RDMA_QPS_MAX], psn[RDMA_QPS_MAX];
	uint8_t gid[16];
	uint32_t lid, mtu; /* mtu in bytes */
};

struct rdma_handler {
	/* As stream_handler's, but a bulk body is already where its sender wrote it: on_head says
	 * where that must be, and nothing but the sum tells that it is there. STREAM_DISCARD: the
	 * frame is dropped, whatever was written. */
	enum shard_status (*on_head)(void *owner, uint32_t qp, const struct wire_head *h, void **to,
				     struct err *e);
	enum shard_status (*on_frame)(void *owner, uint32_t qp, const struct wire_head *h,
				      const void *body, struct err *e);
	bool (*on_damage)(void *owner, uint32_t qp,
			  const struct wire_head *h); /* as stream_handler's; may be NULL */
	/* The rail is over: an error completion, a refused frame, a frame not completed within
	 * deadline_ns. Once; it sends and delivers nothing any more; free it, not from here. */
	void (*on_fail)(void *owner, const struct err *why);
	void (*on_room)(void *owner,
			uint32_t qp); /* frames were completed: more may be sent; may be NULL */
};

struct rdma_rail_conf {
	struct rdma_domain *domain;
	const struct rdma_handler *handler;
	void *owner;
	uint32_t qps_nr;
	bool checksum; /* sums of bulk bodies are made here and checked; both ends must agree */
	uint64_t deadline_ns; /* of a frame that was posted */
};

struct rdma_stats {
	uint64_t frames_in, frames_out, tensor_bytes_in, tensor_bytes_out, refused;
};

/* All memory, queue pairs and receives are made here; nothing is allocated or registered after. */
enum shard_status rdma_rail_new(struct rdma_rail **out, const struct rdma_rail_conf *conf,
				struct err *e);
void rdma_rail_ends(const struct rdma_rail *l, struct rdma_ends *mine);
enum shard_status rdma_rail_connect(struct rdma_rail *l, const struct rdma_ends *theirs,
				    struct err *e); /* hostile until checked */
/* Destroys the queue pairs: when it returns nothing reads or writes memory here any more. Every
 * queued body is given back with SHARD_CLOSED. Never from a callback of it. */
void rdma_rail_free(struct rdma_rail **l);

/* body lies in region; remote and rkey: where the peer has its place (checked by the caller).
 * sent() as in stream.h, once the bytes are there and acknowledged. SHARD_AGAIN: no room or no
 * credit now, on_room comes; SHARD_CLOSED: the rail is over. */
enum shard_status rdma_rail_send(struct rdma_rail *l, uint32_t qp, const struct wire_head *h,
				 const struct rdma_region *region, const void *body,
				 uint32_t body_bytes, uint64_t remote, uint32_t rkey,
				 stream_sent_fn sent, void *arg);
/* A control frame in order with the bodies of its queue pair; SHARD_RANGE: its body is over
 * RDMA_BODY_MAX. */
enum shard_status rdma_rail_control(struct rdma_rail *l, uint32_t qp, const struct wire_head *h,
				    const ProtobufCMessage *msg);
void rdma_rail_kick(struct rdma_rail *l,
		    uint32_t qp); /* posts what was queued as one chain, the last of it signalled */
uint32_t rdma_rail_queued(const struct rdma_rail *l, uint32_t qp);
const struct rdma_stats *rdma_rail_stats(const struct rdma_rail *l);

#endif
