/* SPDX-License-Identifier: Apache-2.0 */
/* outbox.h: chunks waiting to leave over one connection, in order, in parts, straight from where they lie. Bounded: a
 * chunk can wait once. The connection's queue is kept short, so that control frames do not wait behind a whole model. */
#ifndef SHARD_OUTBOX_H
#define SHARD_OUTBOX_H

#include "net/conn.h"

#include <stdbool.h>
#include <stdint.h>

struct model;
struct peer;
struct rdma_rail;
struct rdma_region;
struct outbox;

enum outbox_kind { OUTBOX_CONTRIB, OUTBOX_IMAGE, OUTBOX_TRAINER }; /* image: to a node; trainer: an image too */
#define OUTBOX_SLOT (1u << 31) /* beside the number of an image's chunk: it is in the second image */

struct outbox_route { /* of a chunk by RDMA */
	struct rdma_rail *rail;
	const struct rdma_region *from;
	uint64_t remote;
	uint32_t rkey, qp;
};

struct outbox {
	struct model *model;
	struct conn *conn; /* NULL: nowhere to send */
	struct peer *peer; /* NULL: a trainer is there */
	enum outbox_kind kind;
	uint32_t *ring; /* [cap] chunks, or chunk | OUTBOX_SLOT */
	uint32_t cap, head, nr;
	uint32_t part;        /* next part of the chunk at head */
	uint32_t inflight;    /* frames given to the connection, or to RDMA, and not yet sent() */
	bool chosen, by_rail; /* how the chunk at head goes, all of it */
	struct outbox_route route;
};

enum shard_status outbox_init(struct outbox *o, struct model *m, enum outbox_kind kind, uint32_t cap, struct err *e);
void outbox_free(struct outbox *o);
void outbox_push(struct outbox *o, uint32_t chunk); /* CHECKs room */
void outbox_pump(struct outbox *o);
void outbox_drop(struct outbox *o); /* what waits; frames in flight come back by themselves */

#endif
