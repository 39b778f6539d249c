/* SPDX-License-Identifier: Apache-2.0 */
/* verdict.h: what became of the attempts that a handle remembers. */
#ifndef SHARD_CLIENT_VERDICT_H
#define SHARD_CLIENT_VERDICT_H

#include "handle.h"

/* True if both heads name the same attempt. */
bool verdict_same(const struct wire_head *a, const struct wire_head *b);
/* NULL if the attempt was never begun, or is no longer remembered. */
struct verdict *verdict_find(struct shard_model *m, uint64_t attempt_no);
/* The attempt begins. It takes the row of the oldest one, which is forgotten. */
void verdict_open(struct shard_model *m, uint64_t attempt_no);
/* The attempt ended without effect, with this status and reason. Does nothing if it was decided or
 * had ended before, or is no longer remembered. */
void verdict_end(struct shard_model *m, uint64_t attempt_no, enum shard_status status,
		 const char *why);

#endif
