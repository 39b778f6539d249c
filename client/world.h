/* SPDX-License-Identifier: Apache-2.0 */
/* world.h: the world of a trainer, and how ATTEMPT, ENDED and LOST frames change it. */
#ifndef SHARD_CLIENT_WORLD_H
#define SHARD_CLIENT_WORLD_H

#include "handle.h"

/* ATTEMPT came. */
void world_attempt(struct shard_model *m, const struct wire_head *h, const Shard__Attempt *a);
/* ENDED came. The caller gets this status if it was the attempt in hand. */
void world_ended(struct shard_model *m, const struct wire_head *h, enum shard_status status,
		 const char *why);
/* LOST came for a model that is restored already. h has the new generation and the restored
 * step. */
void world_rolled_back(struct shard_model *m, const struct wire_head *h, const char *why);
/* As handle_enter_one(). It also enters while the connection is broken and can be made again. */
enum shard_status handle_enter_broken(struct shard_model *m);
/* The model is there again, as t has it. A generation that changed is told as a rollback. */
void world_found(struct shard_model *m, const struct shard_model *t);
/* The connection is over. What its trainers write goes to memory of their own from now on. */
void world_over(struct shard_client *c);

/* max_staleness = 1: a step that is computed while the one before it is decided. It is begun
 * without an ATTEMPT. What is pushed waits until the ATTEMPT comes. It is void if that ATTEMPT, or
 * the end of the step before, brings another world or loss scale. */

/* True if the step after the committed one can be begun now. If not, *chunk is one that its weights
 * still lack, at which the next check begins. */
bool world_ahead_may(const struct shard_model *m, uint32_t *chunk);
/* That step becomes the one in hand, and the committed one is in flight. */
void world_ahead_begin(struct shard_model *m);

#endif
