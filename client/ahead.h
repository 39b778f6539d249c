/* SPDX-License-Identifier: Apache-2.0 */
/* ahead.h: the step that is computed while the one before it is decided (max_staleness = 1). It is begun without an ATTEMPT; what is
 * pushed waits until the ATTEMPT comes, and is over if that, or the end of the step before, brings another world or loss scale. */
#ifndef SHARD_CLIENT_AHEAD_H
#define SHARD_CLIENT_AHEAD_H

#include "handle.h"

bool ahead_may(const struct shard_model *m, uint32_t *chunk); /* the step after the committed one can be begun now */
void ahead_begin(struct shard_model *m);                      /* it is in hand, the committed one in flight */
/* An ATTEMPT: true: it is that of the step ahead, which is now like any other; false: if one was in hand it is over. */
bool ahead_attempt(struct shard_model *m, const struct attempt *a, const char *why);
/* The step in flight ended without effect, and so did the one ahead: the former is the one in hand again. */
void ahead_back(struct shard_model *m, enum shard_status status, const char *why);

#endif
