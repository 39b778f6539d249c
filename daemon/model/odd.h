/* SPDX-License-Identifier: Apache-2.0 */
/* odd.h: votes for copies that differ, seen from the daemon. core/odd.h decides who is wrong. */
#ifndef SHARD_MODEL_ODD_H
#define SHARD_MODEL_ODD_H

#include "core/action.h"

#include <stdint.h>

struct model;
struct server;

/* CORE_ACT_DIFFER: logs a line on the coordinator. */
void odd_differ(struct model *m, const struct core_action *a);
/* CORE_ACT_ODD: no later process takes the memory of this model over, and this process is to end.
 * It goes on if another model would lose weights by that. */
void odd_act(struct model *m, const struct core_action *a);

/* CORE_ACT_BACK, CORE_ACT_AGAIN: this process ends soon, so that the next one has the step that the
 * disks of all nodes have, or leads in a term of its own. Until then the model does nothing
 * (memory.ends), what it has told others leaves, and other models may come to the same. */
void odd_back(struct model *m, const struct core_action *a);
void odd_again(struct model *m, const struct core_action *a);

/* A disk or a GPU has not given back the state of a chunk (tier), so this node's copy is lost, as
 * if the node were. The process ends soon, as above, and not in order: calls in hand would never
 * be done. What the models have in memory that outlives it stays. event: of the log. what: "the
 * disk of this node is bad".
 */
void odd_lost(struct model *m, const char *event, const char *what, const char *why);

void odd_beat(struct server *s, uint64_t now_ns); /* Ends the process when it is time. */

#endif
