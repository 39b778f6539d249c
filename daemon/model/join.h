/* SPDX-License-Identifier: Apache-2.0 */
/* join.h: trainers of a model on this node: how they come, what they say in a step, how they go. */
#ifndef SHARD_JOIN_H
#define SHARD_JOIN_H

#include "data/trainer.h"
#include "node/state.h"

#include <protobuf-c/protobuf-c.h>

bool join_opened(struct session *who);                  /* false: no memory */
void join_closed(struct session *who, const char *why); /* its connection is */
/* Tells the core. why: NULL while an event is in hand. */
void trainer_gone(struct trainer *t, bool leave, const char *why);
void trainer_out_of_world(struct trainer *t); /* it is not in the world of an attempt any more */
void trainer_left(struct trainer *t);   /* out of every world, as it asked: LEAVE is answered */
void trainer_detach(struct trainer *t); /* from its model: the arena goes back */
void join_waiting(struct model *m);     /* an arena is free, or can be renewed */

/* Frames of a session. */
enum shard_status join_request(struct session *who, const struct wire_head *h,
			       const ProtobufCMessage *msg, struct err *e);
enum shard_status join_leave(struct session *who, const struct wire_head *h,
			     const ProtobufCMessage *msg, struct err *e);
enum shard_status join_push(struct session *who, const struct wire_head *h,
			    const ProtobufCMessage *msg, struct err *e);
enum shard_status join_ready(struct session *who, const struct wire_head *h,
			     const ProtobufCMessage *msg, struct err *e);
enum shard_status join_abandon(struct session *who, const struct wire_head *h,
			       const ProtobufCMessage *msg, struct err *e);

#endif
