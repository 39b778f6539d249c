/* SPDX-License-Identifier: Apache-2.0 */
/* admit.h: a node that is in no list of nodes asks to be taken in. Any node may be asked, and the
 * coordinator adds it to the list, durably, before any node opens a link to it. Loop thread only.
 */
#ifndef SHARD_CONTROL_ADMIT_H
#define SHARD_CONTROL_ADMIT_H

#include "link/peer.h"

/* It asks this node. SHARD_BUSY: it is being added, and is to ask again. */
enum shard_status admit_asked(struct server *s, const struct config_node *n, struct err *e);
/* NODE_ADD: another node was asked. The answer follows when the node is in the list. */
enum shard_status admit_node_request(struct peer *p, const struct wire_head *h,
				     const ProtobufCMessage *msg, struct err *e);
/* The models here get room for so many nodes: link_events.node_room. */
enum shard_status admit_room(struct server *s, uint16_t nodes_nr, struct err *e);

#endif
