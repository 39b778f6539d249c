/* SPDX-License-Identifier: Apache-2.0 */
/* move.h: MOVE requests. An operator asks where chunks would lie, has them moved there, or drains a
 * node: it holds no chunks from then on, until the drain is ended. Only root and the daemon's own
 * user may, on the node that they ask. */
#ifndef SHARD_CONTROL_MOVE_H
#define SHARD_CONTROL_MOVE_H

#include "base/status.h"
#include "shard.pb-c.h"
#include "wire/frame.h"

struct peer;
struct server;
struct session;

enum move_action { MOVE_PLAN = 1, MOVE_REBALANCE, MOVE_DRAIN, MOVE_DRAIN_END, MOVE_NR };

enum shard_status move_request(struct session *t, const struct wire_head *h,
			       const ProtobufCMessage *msg, struct err *e);
enum shard_status move_node_request(struct peer *p, const struct wire_head *h,
				    const ProtobufCMessage *msg, struct err *e);
/* That node says that its capacity has changed. */
void move_capacity(struct peer *p, const Shard__Capacity *body);

#endif
