/* SPDX-License-Identifier: Apache-2.0 */
/* odd.h: votes for copies that differ, seen from the daemon. core/odd.h decides who is wrong. */
#ifndef SHARD_MODEL_ODD_H
#define SHARD_MODEL_ODD_H

#include "core/action.h"

struct model;
struct server;

/* CORE_ACT_DIFFER: logs a line on the coordinator. */
void odd_differ(struct model *m, const struct core_action *a);
/* CORE_ACT_ODD: no later process takes the memory of this model over, and this process is to end.
 * It goes on if another model would lose weights by that. */
void odd_act(struct model *m, const struct core_action *a);

/* CORE_ACT_BACK, CORE_ACT_AGAIN: this process ends at once, so that the next one has the step that
 * the disks of all nodes have, or leads in a term of its own. */
void odd_back(struct model *m, const struct core_action *a);
void odd_again(struct model *m, const struct core_action *a);

/* A disk or a GPU has not given back the state of a chunk (tier), so this node's copy is lost, as
 * if the node were. The process ends at once: calls in hand would never be done. What the models
 * have in memory that outlives it stays. event: of the log. what: "the disk of this node is bad".
 */
void odd_lost(struct model *m, const char *event, const char *what, const char *why);

#endif
