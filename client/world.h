/* SPDX-License-Identifier: Apache-2.0 */
/* world.h: who trains: what an ATTEMPT and an ENDED frame change, and SHARD_WORLD_CHANGED. */
#ifndef SHARD_CLIENT_WORLD_H
#define SHARD_CLIENT_WORLD_H

#include "handle.h"

void world_attempt(struct shard_model *m, const struct wire_head *h, const Shard__Attempt *a);
void world_ended(struct shard_model *m, const struct wire_head *h, enum shard_status status, const char *why);
enum shard_status world_changed(struct shard_model *m); /* SHARD_WORLD_CHANGED with its text */

#endif
