/* SPDX-License-Identifier: Apache-2.0 */
/* peer_ops.h: frames of another node, once its link is up: where a bulk body goes, and what a whole frame does. */
#ifndef SHARD_PEER_OPS_H
#define SHARD_PEER_OPS_H

#include "peer.h"

enum shard_status peer_ops_bulk_head(struct peer *p, const struct wire_head *h, void **to, struct err *e);
enum shard_status peer_ops_frame(struct peer *p, const struct wire_head *h, const void *body, struct err *e);

#endif
