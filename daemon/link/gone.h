/* SPDX-License-Identifier: Apache-2.0 */
/* gone.h: nodes that were drained while they were away, because their machines are gone for good.
 * Nobody waits for such a node, and when it comes back it holds nothing until its drain is ended.
 * Every node keeps a count of each node: it is odd while the node is gone, each change counts one
 * up, and of two that differ the higher one holds. server_gone() asks. Loop thread only. */
#ifndef SHARD_GONE_H
#define SHARD_GONE_H

#include "node/state.h"

/* Reads the state folder. */
enum shard_status gone_init(struct server *s, struct err *e);
void gone_free(struct server *s);
/* Keeps on disk that the node is gone (on), or is not any more, and tells the other nodes. done
 * hears how it ended, later. SHARD_BUSY: another change is being written. */
typedef void gone_set_fn(struct server *s, void *arg, const struct err *e);
enum shard_status gone_set(struct server *s, uint16_t node, bool on, gone_set_fn *done, void *arg,
			   struct err *e);
/* The counts, as NODES has them. */
const uint32_t *gone_all(const struct server *s, size_t *nr);
/* Those of another node. SHARD_PROTOCOL: they are more than there can be nodes, or one is higher
 * than it can be. */
enum shard_status gone_heard(struct server *s, size_t nr, const uint32_t *count, uint16_t from,
			     struct err *e);
void gone_beat(struct server *s, uint64_t now_ns);

#endif
