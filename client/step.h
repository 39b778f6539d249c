/* SPDX-License-Identifier: Apache-2.0 */
/* step.h: the attempt in hand and its verdict. */
#ifndef SHARD_CLIENT_STEP_H
#define SHARD_CLIENT_STEP_H

#include "handle.h"

/* A RESULT came. */
void step_result(struct shard_model *m, const struct wire_head *h, const Shard__Result *r);

#endif
