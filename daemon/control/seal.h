/* SPDX-License-Identifier: Apache-2.0 */
/* seal.h: from written weights to a model that can be trained: the coordinator asks every node
 * whether it lacks any, then lets the core seal; and the coordinator's models after a restart. */
#ifndef SHARD_SEAL_H
#define SHARD_SEAL_H

#include "model/model.h"

/* What a restore has brought here is counted; e NULL: w is the count. */
typedef void seal_counted_fn(struct model *m, uint32_t load, const struct store_missing *w,
			     const struct err *e);
/* This node's own count for a restore whose load here had this tag: counted() follows, perhaps
 * before this returns. */
enum shard_status seal_count_restored(struct model *m, uint32_t load, seal_counted_fn *counted,
				      struct err *e);
/* A seal that it accepted, and that no view has told of yet, may be lost with it: who waits hears
 * that now, and seals again. */
void seal_coordinator_gone(struct model *m, const struct err *e);
void seal_writer_gone(struct model *m); /* who wrote the weights has ended: so has its seal */
extern const struct model_watch seal_watch;

#endif
