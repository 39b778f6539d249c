/* SPDX-License-Identifier: Apache-2.0 */
/* rdma.h: bulk frames over RDMA (libibverbs), beside the TCP connections of a link between two
 * nodes. The TCP connections set this up and carry control. A body is written straight into the
 * peer's registered memory. Its header follows as a small message on the same queue pair, so that
 * it arrives after its body. There is one device for the server, one domain for each peer with the
 * memory that the peer may access, and one rail (the queue pairs) for each link. All calls are on
 * the loop thread unless said otherwise. In a build with RDMA=0 rdma_open() fails and says so, and
 * nothing else may be called. */
#ifndef SHARD_NET_RDMA_H
#define SHARD_NET_RDMA_H

#include "base/status.h"
#include "net/stream.h"

#include <uv.h>

struct rdma; /* An open device with its completion channel and asynchronous events in the loop. */
struct rdma_domain; /* Protection domain and registrations of one peer. */
struct rdma_region; /* Memory registered in a domain. */
struct rdma_rail;   /* Connected queue pairs. */

struct rdma_conf {
	/* NULL: the first device with an active port, where one that has `address` is preferred. */
	const char *device;
	/* -1: RoCE v2 with `address`, else RoCE v2 with any IPv4 address, else the first GID that
	 * is not zero. */
	int gid_index;
	/* The numeric address of this node's listener. NULL or 0.0.0.0: any. */
	const char *address;
	/* After a completion, poll for this long before sleeping. 0: never. */
	uint32_t busy_poll_us;
	/* The device was removed, or the port or device failed. Called once, from the loop. */
	void (*gone)(void *owner, const struct err *why);
	void *owner;
};

/* SHARD_NOT_FOUND: no device, no active port, no such GID, or built without RDMA. SHARD_DENIED:
 * memlock or rights. SHARD_SYSTEM: anything else. Texts say what to do. */
enum shard_status rdma_open(struct rdma **out, uv_loop_t *loop, const struct rdma_conf *conf,
			    struct err *e);
void rdma_close(struct rdma **r); /* CHECK: no domain is left. Its handles close later. */
const char *rdma_name(const struct rdma *r); /* "rxe0 port 1 gid 1 (10.9.0.1)". */

enum shard_status rdma_domain_new(struct rdma_domain **out, struct rdma *r, struct err *e);
void rdma_domain_free(struct rdma_domain **d); /* CHECK: no rail and no region is left. */

/* Pins and registers memory. It takes long. Any thread may call it, also several at a time. With
 * remote the peer may write the memory, otherwise this node only reads it. The memory is of shm.h,
 * which no child inherits. SHARD_DENIED: memlock is exhausted or registration was refused. The text
 * has the limit. */
enum shard_status rdma_register(struct rdma_region **out, struct rdma_domain *d, void *base,
				size_t bytes, bool remote, struct err *e);
/* The same of memory of another device, of which there is a dma-buf, for the peer to write. The
 * address is that of the other device, and remote addresses count from it. Nothing of it is read by
 * this processor, so bodies that go there cannot be summed. */
struct rdma_dma_buf {
	int fd; /* Of the caller, who may close it afterwards. */
	uint64_t offset, at;
	size_t bytes;
};
enum shard_status rdma_register_dma_buf(struct rdma_region **out, struct rdma_domain *d,
					const struct rdma_dma_buf *of, struct err *e);
/* Whether the device can do that at all. SHARD_UNSUPPORTED: it, or the kernel, cannot. */
enum shard_status rdma_takes_dma_buf(struct rdma *r, struct err *e);
void rdma_deregister(struct rdma_region **g);
uint32_t rdma_region_rkey(const struct rdma_region *g);
bool rdma_region_has(const struct rdma_region *g, const void *at, size_t bytes);

#define RDMA_QPS_MAX  16
#define RDMA_BODY_MAX 4096 /* Body of a control frame. */

struct rdma_ends { /* What each side tells the other over TCP. */
	uint32_t qps_nr, qpn[RDMA_QPS_MAX], psn[RDMA_QPS_MAX];
	uint8_t gid[16];
	uint32_t lid, mtu; /* mtu in bytes. */
};

struct rdma_handler {
	/* As in stream_handler, but a bulk body is already where its sender wrote it. on_head says
	 * where that must be, and only the sum shows that it is there. With STREAM_DISCARD the
	 * frame is dropped, whatever was written. */
	enum shard_status (*on_head)(void *owner, uint32_t qp, const struct wire_head *h, void **to,
				     struct err *e);
	enum shard_status (*on_frame)(void *owner, uint32_t qp, const struct wire_head *h,
				      const void *body, struct err *e);
	/* As in stream_handler. May be NULL. */
	bool (*on_damage)(void *owner, uint32_t qp, const struct wire_head *h);
	/* The rail has failed: an error completion, a refused frame, or a frame not completed
	 * within deadline_ns. Called once. The rail sends and delivers nothing any more. Free it,
	 * but not from here. */
	void (*on_fail)(void *owner, const struct err *why);
	/* Frames were completed, and more may be sent. May be NULL. */
	void (*on_room)(void *owner, uint32_t qp);
};

struct rdma_rail_conf {
	struct rdma_domain *domain;
	const struct rdma_handler *handler;
	void *owner;
	uint32_t qps_nr;
	bool checksum;        /* Bulk bodies are summed here and checked. Both ends must agree. */
	uint64_t deadline_ns; /* Of a frame that was posted. */
};

struct rdma_stats {
	uint64_t frames_in, frames_out, tensor_bytes_in, tensor_bytes_out, refused;
};

/* Makes all memory, queue pairs and receives. Nothing is allocated or registered later. */
enum shard_status rdma_rail_new(struct rdma_rail **out, const struct rdma_rail_conf *conf,
				struct err *e);
void rdma_rail_ends(const struct rdma_rail *l, struct rdma_ends *mine);
enum shard_status rdma_rail_connect(struct rdma_rail *l, const struct rdma_ends *theirs,
				    struct err *e); /* theirs comes from the peer and is checked. */
/* Destroys the queue pairs. When it returns, nothing reads or writes memory here any more. Every
 * queued body is given back with SHARD_CLOSED. Never call it from a callback of the rail. */
void rdma_rail_free(struct rdma_rail **l);

/* body lies in region. remote and rkey say where its place at the peer is, which the caller has
 * checked. sent() is as in stream.h. It is called once the bytes are there and acknowledged.
 * SHARD_AGAIN: no room or no credit now, and on_room follows. SHARD_CLOSED: the rail has failed. */
enum shard_status rdma_rail_send(struct rdma_rail *l, uint32_t qp, const struct wire_head *h,
				 const struct rdma_region *region, const void *body,
				 uint32_t body_bytes, uint64_t remote, uint32_t rkey,
				 stream_sent_fn sent, void *arg);
/* Sends a control frame in order with the bodies of its queue pair. SHARD_RANGE: its body is over
 * RDMA_BODY_MAX. */
enum shard_status rdma_rail_control(struct rdma_rail *l, uint32_t qp, const struct wire_head *h,
				    const ProtobufCMessage *msg);
/* Posts what was queued in chains, of which the last frame is signalled. */
void rdma_rail_kick(struct rdma_rail *l, uint32_t qp);
uint32_t rdma_rail_queued(const struct rdma_rail *l, uint32_t qp);
/* Whether on_room() or the end of the rail follows: frames are queued, or completions are being
 * handled. */
bool rdma_rail_room_comes(const struct rdma_rail *l, uint32_t qp);
const struct rdma_stats *rdma_rail_stats(const struct rdma_rail *l);

#endif
