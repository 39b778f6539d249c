/* SPDX-License-Identifier: Apache-2.0 */
/* join.h: the trainers of a model on this node: JOIN, the frames of a step, LEAVE, and lost
 * connections. */
#ifndef SHARD_JOIN_H
#define SHARD_JOIN_H

#include "data/trainer.h"
#include "node/state.h"

#include <protobuf-c/protobuf-c.h>

bool join_opened(struct session *who);                  /* False: no memory. */
void join_closed(struct session *who, const char *why); /* Its connection is closed. */
/* Tells the core that the trainer is gone. why must be NULL while a core event is being handled. */
void trainer_gone(struct trainer *t, bool leave, const char *why);
/* Its trainer is gone, and nothing uses its memory any more. */
void join_slot_closed(struct model *m, uint32_t slot);
void trainer_out_of_world(struct trainer *t); /* It is no longer in the world of an attempt. */
void trainer_left(struct trainer *t);         /* It is in no world any more: answers its LEAVE. */
void trainer_detach(struct trainer *t);       /* Takes it off its model and gives its arena back. */
void join_waiting(struct model *m); /* An arena is free or can be renewed: answers JOINs. */

/* Frames of a session. */
enum shard_status join_request(struct session *who, const struct wire_head *h,
			       const ProtobufCMessage *msg, struct err *e);
enum shard_status join_leave(struct session *who, const struct wire_head *h,
			     const ProtobufCMessage *msg, struct err *e);
enum shard_status join_device(struct session *who, const struct wire_head *h,
			      const ProtobufCMessage *msg, struct err *e);
enum shard_status join_push(struct session *who, const struct wire_head *h,
			    const ProtobufCMessage *msg, struct err *e);
enum shard_status join_ready(struct session *who, const struct wire_head *h,
			     const ProtobufCMessage *msg, struct err *e);
enum shard_status join_abandon(struct session *who, const struct wire_head *h,
			       const ProtobufCMessage *msg, struct err *e);

#endif
