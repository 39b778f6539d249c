/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h: WRITE and READ of weights and moments, a part of a chunk at a time. WRITE is allowed
 * before the seal, and READ is answered at a step boundary. A session asks its own node, which
 * passes the request on if another node holds the chunk. */
#ifndef SHARD_TRANSFER_H
#define SHARD_TRANSFER_H

#include "node/state.h"
#include "shard.pb-c.h"
#include "wire/frame.h"

enum shard_status transfer_write_head(struct session *t, const struct wire_head *h, void **to,
				      struct err *e);
void transfer_write_frame(struct session *t, const struct wire_head *h, const void *body);
enum shard_status transfer_read_request(struct session *t, const struct wire_head *h,
					const ProtobufCMessage *msg, struct err *e);

/* The same from another node. A WRITE is refused as soon as its header is here, and its body is
 * discarded. */
void transfer_node_write_head(struct peer *p, const struct wire_head *h, void **to);
void transfer_node_write_frame(struct peer *p, const struct wire_head *h, const void *body);
enum shard_status transfer_node_read(struct peer *p, const struct wire_head *h,
				     const Shard__Read *body, struct err *e);

extern const struct model_watch transfer_watch;
void transfer_fail(struct model *m, const struct err *e);
void transfer_session_gone(struct server *s, uint64_t session);

#endif
