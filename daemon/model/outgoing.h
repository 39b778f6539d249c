/* SPDX-License-Identifier: Apache-2.0 */
/* outgoing.h: sends what a model's core says to other nodes. For model.c. */
#ifndef SHARD_OUTGOING_H
#define SHARD_OUTGOING_H

#include "core/action.h"
#include "node/state.h"

/* Sends the message of this action and all that directly follow it in the list. Returns the first
 * action that is not done then. Messages may be lost, because the core repeats them. */
uint32_t outgoing_send(struct model *m, struct core_out *out, uint32_t first);

#endif
