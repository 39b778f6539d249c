/* SPDX-License-Identifier: Apache-2.0 */
/* rdma.h: RDMA beside the TCP connections of a link that is up: the device, what one peer may
 * touch, and the queue pairs to it. The node with the higher index offers them; until they are up,
 * after they failed, and where they cannot be, tensors go by TCP. What memory they reach is
 * mr.h's. */
#ifndef SHARD_RAIL_H
#define SHARD_RAIL_H

#include "net/rdma.h"
#include "link/lane.h"
#include "node/state.h"
#include "shard.pb-c.h"

struct peer;

#define RDMA_LOCAL_BACKOFF_MAX_NS (60 * NS_PER_SEC)

struct rdma_local { /* of the server */
	struct rdma *device;
	bool gone;                /* it is, and is closed when nothing of it is left */
	char why[ERR_TEXT_BYTES]; /* there is no device */
	uint64_t again_ns, backoff_ns;
	unsigned jobs; /* threads that register memory */
};

enum rdma_link_state { RDMA_LINK_OFF, RDMA_LINK_OFFERED, RDMA_LINK_UP };

struct rdma_link { /* of a peer */
	enum rdma_link_state state;
	bool failed; /* its link is being closed for it */
	struct rdma_domain *domain;
	struct rdma_rail *queues; /* NULL: RDMA_LINK_OFF */
	uint32_t offer, qps_nr;
	struct lane lane[RDMA_QPS_MAX]; /* of each queue pair */
	uint64_t since_ns, again_ns, backoff_ns;
	uint64_t failures, past_in_bytes, past_out_bytes;
	char why[ERR_TEXT_BYTES], said[ERR_TEXT_BYTES]; /* not up; what the log has */
};

/* Opens the device. Without one SHARD_OK, and rails.why says why, unless transport = rdma. */
enum shard_status rdma_local_open(struct server *s, struct err *e);
void rdma_local_beat(struct server *s, uint64_t now_ns);
bool rdma_local_here(const struct server *s);    /* there is a device that works */
uint64_t rdma_local_longer(uint64_t backoff_ns); /* from 1 s on, doubled */
/* Stopping, every link is closed: gives all of it back; true when nothing is left. */
bool rdma_local_closed(struct server *s);
void rdma_local_free(
	struct server *s); /* also of a start that failed; its handles end with the loop */
/* What HELLO says of it, and whether this node may be linked with who said theirs. */
void rdma_local_hello(const struct server *s, Shard__Hello *mine);
enum shard_status rdma_local_check(const struct server *s, const Shard__Hello *theirs,
				   struct err *e);

void rdma_link_link_up(struct peer *p);
/* Before the cores hear of it: destroys the queue pairs, so that nothing of the peer's reaches
 * memory here any more. */
void rdma_link_link_down(struct peer *p);
void rdma_link_beat(struct peer *p, uint64_t now_ns);
enum shard_status rdma_link_told(struct peer *p, const Shard__Rail *body,
				 struct err *e);          /* a RAIL frame */
struct rdma_rail *rdma_link_queues(const struct peer *p); /* NULL: not up */
struct rdma_domain *rdma_link_domain(
	const struct peer *p); /* that memory may be registered in; NULL: none now */
/* Tensors go by RDMA; else *why is the reason, which lasts until the next call into this file. */
bool rdma_link_carries(const struct peer *p, const char **why);
void rdma_link_bytes(const struct peer *p, uint64_t *in, uint64_t *out); /* of tensors, over RDMA */

#endif
