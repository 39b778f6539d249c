/* SPDX-License-Identifier: Apache-2.0 */
/* seal.h: sealing, which makes a model with written weights ready for training. The coordinator
 * asks every node whether weights are missing, and then lets the core seal. The SEAL requests are
 * declared in define.h. */
#ifndef SHARD_SEAL_H
#define SHARD_SEAL_H

#include "model/model.h"

struct store_missing;

/* The count of a restore's weights is done. e NULL: w is the count. Otherwise e says why there is
 * none. */
typedef void seal_counted_fn(struct model *m, uint32_t load, const struct store_missing *w,
			     const struct err *e);
/* Counts the weights that a restore loaded here, in the load of that tag. counted() is called then,
 * perhaps before this returns. */
enum shard_status seal_count_restored(struct model *m, uint32_t load, seal_counted_fn *counted,
				      struct err *e);
/* The link to the coordinator fell. A seal that it accepted may be lost if no view told of it yet,
 * so the sessions that wait for one are refused, and may seal again. */
void seal_coordinator_gone(struct model *m, const struct err *e);
void seal_writer_gone(struct model *m); /* Its writer's session has ended: refuses the seal. */
/* Does a count of weights wait until a chunk is in memory? At a stop it ends then. */
bool seal_waits(const struct model *m);
extern const struct model_watch seal_watch;

#endif
