/* SPDX-License-Identifier: Apache-2.0 */
/* send.h: chunks that wait to leave for one receiver, in order. They are sent in parts, straight
 * from where they lie. Each chunk waits at most once. A queue that holds something waits on the
 * lane of its connection, or on that of the queue pair that its next chunk takes (link/lane.h). The
 * lane calls the queue when its turn has come. send_queue_check() states this. */
#ifndef SHARD_SEND_H
#define SHARD_SEND_H

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

/* An entry of a queue: the number of a chunk, and above it which of its forms goes. A gradient has
 * one form. An image has one for each image, and then the codes of the newest. */
#define SEND_ENTRY(which, chunk) ((uint32_t)(which) << 30 | (chunk))
#define SEND_WHICH(entry)        ((entry) >> 30)
#define SEND_CHUNK(entry)        ((entry) & ((1u << 30) - 1))

struct send_queue;

struct send_closing { /* The frame after the last part of a chunk. */
	uint16_t op;
	union {
		ProtobufCMessage base;
		Shard__Push push;
		Shard__Grad grad;
	} body;
};

/* What kind of chunk leaves: a contribution (contrib.c), a reduced gradient (grad.c) or a chunk of
 * an image (apply.c). */
struct send_source {
	/* which: of SEND_ENTRY(). */
	uint64_t (*bytes)(const struct model *m, uint32_t which, uint32_t chunk);
	const uint8_t *(*at)(const struct model *m, uint32_t which, uint32_t chunk);
	/* Fills the header of the frame of a part. h->chunk is set. */
	void (*head)(const struct send_queue *o, uint32_t which, struct wire_head *h);
	/* Can the chunk go by RDMA, and how? */
	bool (*route)(const struct send_queue *o, uint32_t which, uint32_t chunk,
		      struct send_route *out);
	/* Is nothing of this part sent? NULL: every part is sent. */
	bool (*absent)(const struct model *m, uint32_t chunk, uint32_t part);
	/* Fills the frame after the last part. tensors has room for all tensors of the chunk. NULL:
	 * no frame follows the last part. */
	void (*close)(const struct model *m, uint32_t chunk, struct send_closing *c,
		      uint32_t *tensors, uint32_t room);
	/* out(): a frame is on its way, and the memory that it is sent from is read until
	 * back(). */
	void (*out)(struct model *m);
	void (*back)(struct model *m);
	/* waits(): a chunk waits. left(): it has left, or is dropped. NULL: nobody counts them. */
	void (*waits)(struct model *m);
	void (*left)(struct model *m);
};

struct send_route { /* How a chunk goes by RDMA. */
	struct rdma_rail *queues;
	const struct rdma_region *from;
	uint64_t remote;
	uint32_t rkey, qp;
};

struct send_queue {
	struct lane_sender sender;
	struct model *model;
	/* The lane of the connection. NULL: there is nowhere to send to, and nothing is held. */
	struct lane *lane;
	struct peer *peer; /* NULL: the receiver is a trainer. */
	const struct send_source *source;
	uint32_t *ring; /* [cap] SEND_ENTRY() */
	/* [cap] A bit for each entry that is in the ring. Those of one form follow those of
	 * another. */
	uint8_t *held;
	uint32_t cap, head, nr;
	uint32_t part; /* The next part of the chunk at head. */
	/* Frames that were given to the connection, or to RDMA, and have not come back. */
	uint32_t inflight;
	/* Of the chunk at head. begun: a frame has left. by_rail: all of it goes by RDMA. */
	bool begun, by_rail;
	struct send_route route;
};

enum shard_status send_queue_init(struct send_queue *o, struct model *m,
				  const struct send_source *source, uint32_t cap, struct err *e);
void send_queue_free(struct send_queue *o);
void send_queue_attach(struct send_queue *o, struct lane *l); /* From now on it sends there. */
void send_queue_detach(struct send_queue *o); /* It sends nowhere, and what it holds is dropped. */
/* The chunk leaves as soon as its turn comes. Nothing happens if it waits already, or if there is
 * no lane. */
void send_queue_add(struct send_queue *o, uint32_t entry);
bool send_queue_has(const struct send_queue *o, uint32_t entry); /* It waits, or leaves in part. */
void send_queue_drop(
	struct send_queue *o); /* Drops what waits. Frames in flight come back by themselves. */
void send_queue_check(const struct send_queue *o);

#endif
