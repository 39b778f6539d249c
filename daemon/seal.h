/* SPDX-License-Identifier: Apache-2.0 */
/* seal.h: from written weights to a model that can be trained: the coordinator asks every node whether it lacks any, then
 * lets the core seal; and the coordinator's models after a restart. */
#ifndef SHARD_SEAL_H
#define SHARD_SEAL_H

#include "model.h"

void seal_answered(struct model *m, uint16_t node, const struct wire_head *h, const void *body, const struct err *e);
void seal_fail(struct model *m, const struct err *e);

#endif
