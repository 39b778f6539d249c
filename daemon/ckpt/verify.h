/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h: the comparison of all copies of a model's chunks. verify.c does it on the coordinator,
 * and part.c makes the digests of one node. */
#ifndef SHARD_CKPT_VERIFY_H
#define SHARD_CKPT_VERIFY_H

#include "base/status.h"

#include <protobuf-c/protobuf-c.h>

struct peer;
struct session;
struct wire_head;

/* Requests of a session here, and of a node for one of its sessions. */
enum shard_status verify_request(struct session *t, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
enum shard_status verify_node(struct peer *p, const struct wire_head *h,
			      const ProtobufCMessage *msg, struct err *e);
/* PART_CANCEL: the session at that node whose request had the tag in h is gone. */
void verify_unwanted(struct peer *p, const struct wire_head *h);

#endif
