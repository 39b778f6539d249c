/* SPDX-License-Identifier: Apache-2.0 */
/* send.h: chunks waiting to leave for one receiver, in order, in parts, straight from where they
 * lie. Each chunk waits at most once. A queue that holds something waits on the lane of its
 * connection, or of the queue pair that its next chunk goes by (link/lane.h), which calls it when
 * its turn has come. send_queue_check() states it. */
#ifndef SHARD_OUTBOX_H
#define SHARD_OUTBOX_H

#include "link/lane.h"

#include "shard.pb-c.h"
#include "wire/frame.h"

#include <stdbool.h>
#include <stdint.h>

struct model;
struct send_route;
struct peer;
struct rdma_rail;
struct rdma_region;

#define SEND_SLOT                                                                                  \
	(1u << 31) /* beside the number of an image's chunk: it is in the second image             \
		    */

struct send_queue;

/* What kind of chunk leaves: a contribution (contrib.c), an image (apply.c). */
struct send_source {
	uint32_t (*elem_bytes)(const struct model *m);
	/* Where a chunk lies. slot: of two images. */
	const uint8_t *(*at)(const struct model *m, uint32_t slot, uint32_t chunk);
	/* Names the frame of a part: h->chunk is set. */
	void (*head)(const struct send_queue *o, uint32_t slot, struct wire_head *h);
	/* Can the chunk go by RDMA, and how? */
	bool (*route)(const struct send_queue *o, uint32_t slot, uint32_t chunk,
		      struct send_route *out);
	/* Nothing of this part goes. NULL: every part does. */
	bool (*absent)(const struct model *m, uint32_t chunk, uint32_t part);
	/* The body of the frame behind the last part; tensors: room for all of the chunk's. NULL:
	 * the last part is the end. */
	void (*close)(const struct model *m, uint32_t chunk, Shard__Push *push, uint32_t *tensors,
		      uint32_t room);
	/* A frame is on its way, and reads what it was made of until back(). */
	void (*out)(struct model *m);
	void (*back)(struct model *m);
	/* A chunk waits; it has left, or is dropped. NULL: nobody counts. */
	void (*waits)(struct model *m);
	void (*left)(struct model *m);
};

struct send_route { /* of a chunk by RDMA */
	struct rdma_rail *queues;
	const struct rdma_region *from;
	uint64_t remote;
	uint32_t rkey, qp;
};

struct send_queue {
	struct lane_sender sender;
	struct model *model;
	struct lane *lane; /* of the connection; NULL: nowhere to send, nothing is held */
	struct peer *peer; /* NULL: a trainer is there */
	const struct send_source *source;
	uint32_t *ring; /* [cap] chunks, or chunk | SEND_SLOT */
	uint8_t *held;  /* [cap] bits: is in the ring; by chunk, the second image's behind them */
	uint32_t cap, head, nr;
	uint32_t part;       /* next part of the chunk at head */
	uint32_t inflight;   /* frames given to the connection, or to RDMA, and not yet sent() */
	bool begun, by_rail; /* of the chunk at head: a frame has left; how it goes, all of it */
	struct send_route route;
};

enum shard_status send_queue_init(struct send_queue *o, struct model *m,
				  const struct send_source *source, uint32_t cap, struct err *e);
void send_queue_free(struct send_queue *o);
void send_queue_attach(struct send_queue *o, struct lane *l); /* from now on it sends there */
void send_queue_detach(struct send_queue *o); /* nowhere: what it holds is dropped */
/* The chunk leaves as soon as its turn comes. One that waits already goes once; without a lane
 * nothing happens. */
void send_queue_add(struct send_queue *o, uint32_t entry);
void send_queue_drop(
	struct send_queue *o); /* what waits; frames in flight come back by themselves */
void send_queue_check(const struct send_queue *o);

#endif
