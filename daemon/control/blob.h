/* SPDX-License-Identifier: Apache-2.0 */
/* blob.h: requests of trainers and of other nodes for blobs, the bytes that trainers commit with a
 * step (data/blobs.h). */
#ifndef SHARD_CONTROL_BLOB_H
#define SHARD_CONTROL_BLOB_H

#include "shard.pb-c.h"
#include "wire/frame.h"

#include <protobuf-c/protobuf-c.h>

struct model_watch;
struct peer;
struct session;

extern const struct model_watch blob_watch;

enum shard_status blob_request(struct session *t, const struct wire_head *h,
			       const ProtobufCMessage *msg, struct err *e);
enum shard_status blob_node_request(struct peer *p, const struct wire_head *h,
				    const Shard__Blob *body, struct err *e);

#endif
