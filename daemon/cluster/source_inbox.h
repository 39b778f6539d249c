/* SPDX-License-Identifier: Apache-2.0 */
/* source_inbox.h: what has come from other nodes and waits until the register can take it: changes
 * of links, and messages. Room is bounded. A change of a link is never lost, but several of one
 * link become one or two. A message that finds no room is dropped. */
#ifndef SHARD_CLUSTER_SOURCE_INBOX_H
#define SHARD_CLUSTER_SOURCE_INBOX_H

#include "cluster/source.h"
#include "cluster/source_wire.h"

#define INBOX_BYTES (8 * SOURCE_MSG_MAX) /* Of messages, each with its length before it. */

struct inbox_link {
	uint8_t uuid[MEMBER_UUID_BYTES];
	bool used, up;
	bool known;   /* The register knows it as up. */
	bool renewed; /* It went down and may be up again. The register has to hear of both. */
};

struct inbox {
	struct inbox_link link[MEMBER_LINKS_MAX];
	unsigned char *bytes; /* [INBOX_BYTES] */
	size_t begin, end;
};

/* False: no memory. */
bool inbox_init(struct inbox *b);
void inbox_deinit(struct inbox *b);
void inbox_link(struct inbox *b, const uint8_t uuid[MEMBER_UUID_BYTES], bool up);
bool inbox_is_up(const struct inbox *b, const uint8_t uuid[MEMBER_UUID_BYTES]);
void inbox_put(struct inbox *b, const void *msg, uint32_t nr);
/* Takes one change of a link: *type is QUORUM_EV_UP or QUORUM_EV_DOWN. False: there is none. */
bool inbox_take_link(struct inbox *b, enum quorum_event_type *type,
		     uint8_t uuid[MEMBER_UUID_BYTES]);
/* Takes the oldest message; the bytes are valid until the next call. NULL: there is none. */
const void *inbox_take_msg(struct inbox *b, uint32_t *nr);

#endif
