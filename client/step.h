/* SPDX-License-Identifier: Apache-2.0 */
/* step.h: the attempt in hand and its verdict. */
#ifndef SHARD_CLIENT_STEP_H
#define SHARD_CLIENT_STEP_H

#include "handle.h"

void step_result(struct shard_model *m, const struct wire_head *h, const Shard__Result *r);
struct verdict *step_verdict(struct shard_model *m, uint64_t attempt_no);
bool step_same(const struct wire_head *a, const struct wire_head *b); /* the same attempt */

#endif
