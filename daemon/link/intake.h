/* SPDX-License-Identifier: Apache-2.0 */
/* intake.h: how a node that joins becomes one of the nodes (nodes.h). Loop thread only. */
#ifndef SHARD_INTAKE_H
#define SHARD_INTAKE_H

#include "link/peer.h"

/* Adds a node at the end of the list, if that can be kept on disk here. done hears how it ended,
 * later. SHARD_BUSY: another one is being added, or taken in. */
typedef void intake_added_fn(struct server *s, void *arg, const struct err *e);
enum shard_status intake_add(struct server *s, const struct config_node *n, intake_added_fn *done,
			     void *arg, struct err *e);
/* A node that is in no list yet has sent HELLO. SHARD_OK: it is in the list, and is to be answered
 * with it. SHARD_BUSY: it is being added, and is to ask again. */
enum shard_status intake_joins(struct server *s, const Shard__Hello *hello, struct err *e);
void intake_node_up(struct server *s, uint16_t node);
/* Tells all linked nodes the list, and who is gone, once more. */
void intake_tell(struct server *s);
/* What is wrong with this node. Tells the others if that is new. */
void intake_ill(struct server *s, const char *ill);
/* NODES. */
enum shard_status intake_told(struct peer *p, const Shard__Nodes *body, struct err *e);
void intake_beat(struct server *s, uint64_t now_ns);

#endif
