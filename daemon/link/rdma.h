/* SPDX-License-Identifier: Apache-2.0 */
/* rdma.h: RDMA beside the TCP connections of a link that is up: the device of this node, and the
 * protection domain and queue pairs of each peer. The node with the higher index offers queue
 * pairs. Tensors go by TCP until the queue pairs are up, after they failed, and where RDMA is not
 * available. data/mr.h registers the memory regions. */
#ifndef SHARD_RAIL_H
#define SHARD_RAIL_H

#include "net/rdma.h"
#include "link/lane.h"
#include "node/state.h"
#include "shard.pb-c.h"

struct peer;

#define RDMA_LOCAL_BACKOFF_MAX_NS (60 * NS_PER_SEC)

struct rdma_local { /* One per server. */
	struct rdma *device;
	bool gone; /* The device is gone. It is closed when nothing of it is in use. */
	char why[ERR_TEXT_BYTES]; /* Why there is no device. */
	uint64_t again_ns, backoff_ns;
	unsigned jobs; /* Jobs that register memory in threads. */
};

enum rdma_link_state { RDMA_LINK_OFF, RDMA_LINK_OFFERED, RDMA_LINK_UP };

struct rdma_link { /* One per peer. */
	enum rdma_link_state state;
	bool failed; /* The queue pairs failed, and the link is being closed for that. */
	struct rdma_domain *domain;
	struct rdma_rail *queues; /* NULL in RDMA_LINK_OFF. */
	uint32_t offer, qps_nr;
	struct lane lane[RDMA_QPS_MAX]; /* One for each queue pair. */
	uint64_t since_ns, again_ns, backoff_ns;
	uint64_t failures, past_in_bytes, past_out_bytes;
	char why[ERR_TEXT_BYTES], said[ERR_TEXT_BYTES]; /* why: the reason that RDMA is not up.
							   said: the reason that was logged last. */
};

/* Opens the device. Where that fails, rdma_local.why says why, and the status is SHARD_OK unless
 * transport = rdma. */
enum shard_status rdma_local_open(struct server *s, struct err *e);
void rdma_local_beat(struct server *s, uint64_t now_ns);
bool rdma_local_here(const struct server *s);    /* There is a device, and it works. */
uint64_t rdma_local_longer(uint64_t backoff_ns); /* The next back-off: from 1 s on, doubled. */
/* For a server that stops, once every link is closed: frees domains and device. True when nothing
 * is left. */
bool rdma_local_closed(struct server *s);
void rdma_local_free(
	struct server *s); /* Also for a start that failed. Its handles end with the loop. */
/* Fill in what HELLO says of RDMA, and check whether this node may be linked with the sender of
 * theirs. */
void rdma_local_hello(const struct server *s, Shard__Hello *mine);
enum shard_status rdma_local_check(const struct server *s, const Shard__Hello *theirs,
				   struct err *e);

void rdma_link_link_up(struct peer *p);
/* Called before the cores hear that the link fell. Destroys the queue pairs, so that the peer's
 * writes no longer reach memory of this node. */
void rdma_link_link_down(struct peer *p);
void rdma_link_beat(struct peer *p, uint64_t now_ns);
enum shard_status rdma_link_told(struct peer *p, const Shard__Rail *body,
				 struct err *e);          /* Takes a RAIL frame. */
struct rdma_rail *rdma_link_queues(const struct peer *p); /* NULL: not up. */
struct rdma_domain *rdma_link_domain(
	const struct peer *p); /* Memory may be registered in it now. NULL: there is none. */
/* True: tensors go by RDMA. Otherwise *why is the reason, valid until the next call into this
 * module. */
bool rdma_link_carries(const struct peer *p, const char **why);
bool rdma_link_sums(const struct peer *p); /* Bodies are summed: rdma_checksum. */
void rdma_link_bytes(const struct peer *p, uint64_t *in, uint64_t *out); /* Tensors by RDMA. */

#endif
