/* SPDX-License-Identifier: Apache-2.0 */
/* everywhere.h: the status of the whole cluster, from any of its nodes. */
#ifndef SHARD_OBS_EVERYWHERE_H
#define SHARD_OBS_EVERYWHERE_H

#include "base/status.h"

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

struct peer;
struct server;
struct session;
struct wire_head;

/* STATUS of a session. With `all` of its Look every node that is up is asked, and the answer comes
 * when all have answered or their links fell. What a node says of its own ranks is put into the
 * world of each model, and "everywhere" has of each node its memory, process and connections, or
 * why it did not answer. SHARD_SYSTEM: no memory. */
enum shard_status everywhere_request(struct session *t, const struct wire_head *h,
				     const ProtobufCMessage *msg, struct err *e);
/* STATUS of another node, for one of its users. */
enum shard_status everywhere_node_request(struct peer *p, const struct wire_head *h,
					  const ProtobufCMessage *msg, struct err *e);

/* For the page (cluster.h). root is a status with an object "everywhere", into which goes what the
 * node said, or why it said nothing. */
void everywhere_merge(json_t *root, const char *node, const json_t *theirs);
void everywhere_no_answer(json_t *root, const char *node, const char *why);
/* False: the node, which is another one, cannot be asked, and why says it. It is empty for a node
 * that is gone for good. */
bool everywhere_askable(const struct server *s, uint16_t node, char *why, size_t bytes);
/* The JSON in an answer to STATUS, or NULL. */
json_t *everywhere_said(const struct wire_head *h, const void *body);

#endif
