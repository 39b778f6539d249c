/* SPDX-License-Identifier: Apache-2.0 */
/* attach.h: finds models by their names. */
#ifndef SHARD_ATTACH_H
#define SHARD_ATTACH_H

#include "node/state.h"
#include "shard.pb-c.h"
#include "wire/frame.h"

/* Answers ATTACH. */
enum shard_status attach_request(struct session *t, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
/* SHARD_NOT_FOUND: the error lists the models that there are, says that the model is still being
 * made, or says that the link to the coordinator is down. */
enum shard_status attach_find(struct model **out, struct server *s, const char *name,
			      struct err *e);

#endif
