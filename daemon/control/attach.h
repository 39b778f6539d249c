/* SPDX-License-Identifier: Apache-2.0 */
/* attach.h: models that exist, told to who knows only a name. */
#ifndef SHARD_ATTACH_H
#define SHARD_ATTACH_H

#include "node/state.h"
#include "shard.pb-c.h"
#include "wire/frame.h"

enum shard_status attach_request(struct session *t, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
/* By name, or SHARD_NOT_FOUND with the names that there are; also where the link to the coordinator
 * is down, if it is. */
enum shard_status attach_find(struct model **out, struct server *s, const char *name,
			      struct err *e);

#endif
