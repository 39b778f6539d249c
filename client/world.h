/* SPDX-License-Identifier: Apache-2.0 */
/* world.h: who trains: what an ATTEMPT, an ENDED and a LOST frame change, SHARD_WORLD_CHANGED and SHARD_ROLLED_BACK. */
#ifndef SHARD_CLIENT_WORLD_H
#define SHARD_CLIENT_WORLD_H

#include "handle.h"

void world_attempt(struct shard_model *m, const struct wire_head *h, const Shard__Attempt *a);
void world_ended(struct shard_model *m, const struct wire_head *h, enum shard_status status, const char *why);
void world_rolled_back(struct shard_model *m, const struct wire_head *h, const char *why); /* h: new generation, step restored */
void world_over(struct shard_client *c);                /* the connection is: its trainers write into nobody's arena any more */
enum shard_status world_changed(struct shard_model *m); /* SHARD_WORLD_CHANGED, or SHARD_ROLLED_BACK, with its text */

#endif
