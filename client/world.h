/* SPDX-License-Identifier: Apache-2.0 */
/* world.h: who trains: what an ATTEMPT, an ENDED and a LOST frame change. */
#ifndef SHARD_CLIENT_WORLD_H
#define SHARD_CLIENT_WORLD_H

#include "handle.h"

/* ATTEMPT came. */
void world_attempt(struct shard_model *m, const struct wire_head *h, const Shard__Attempt *a);
/* ENDED came. The status is what the caller is told if it was the attempt in hand. */
void world_ended(struct shard_model *m, const struct wire_head *h, enum shard_status status,
		 const char *why);
/* LOST came for a model that is back already. h has the new generation and the restored step. */
void world_rolled_back(struct shard_model *m, const struct wire_head *h, const char *why);
/* The connection is over: what its trainers write goes to memory of their own from now on. */
void world_over(struct shard_client *c);

/* max_staleness = 1: the step that is computed while the one before it is decided. It is begun
 * without an ATTEMPT. What is pushed waits until the ATTEMPT comes, and is over if that, or the end
 * of the step before, brings another world or loss scale. */

/* The step after the committed one can be begun now. If not, *chunk is one that its weights still
 * lack, and where the next look begins. */
bool world_ahead_may(const struct shard_model *m, uint32_t *chunk);
/* It is in hand, and the committed one in flight. */
void world_ahead_begin(struct shard_model *m);

#endif
