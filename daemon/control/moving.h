/* SPDX-License-Identifier: Apache-2.0 */
/* moving.h: the coordinator has chunks moved between nodes, while training goes on. core/moves.h
 * says how a move goes. Here is why there is one: a node has come, one is drained or does not come
 * back, or an operator asks for it. Loop thread only. */
#ifndef SHARD_CONTROL_MOVING_H
#define SHARD_CONTROL_MOVING_H

#include "base/status.h"
#include "core/core.h"
#include "core/plan.h"

#include <stdbool.h>
#include <stdint.h>

struct model;
struct model_watch;

struct moving_plan {
	uint16_t *primary; /* [chunks_nr] */
	uint64_t *holders; /* [chunks_nr] */
	struct plan_cost cost;
	uint64_t bytes;    /* Masters and moments of the copies that have to be made. */
	char trouble[300]; /* Why it cannot be carried out now, or "". */
	/* [slot] How many chunks the node has memory for. */
	uint32_t now[CORE_NODES_MAX], then[CORE_NODES_MAX];
};

/* Says where the chunks should lie, by the capacities of the nodes that are up. The caller frees it
 * by moving_plan_free(), also after a failure. SHARD_BAD_STATE: too few nodes have capacity. */
enum shard_status moving_plan(const struct model *m, struct moving_plan *out, struct err *e);
void moving_plan_free(struct moving_plan *p);

/* How many chunks the node has copies of that count, and no other node that is up has. *alone: none
 * of them has a copy at a node that is down, either. */
uint32_t moving_only_at(const struct model *m, uint16_t node, bool *alone);

/* On the coordinator: brings the chunks to where they should lie. Otherwise it does so only if a
 * node has none or should have none. */
void moving_order(struct model *m);
/* Why the last order did not come to an end, or "". It is tried again. */
const char *moving_trouble(const struct model *m);
/* Is one being prepared, wanted, or under way? */
bool moving_on(const struct model *m);
/* Is one being prepared or under way? Room was made for it, or is about to be. */
bool moving_ordered(const struct model *m);
/* "planning", "room" (nodes make room), "moving", "refused" (moving_trouble() says why, and it is
 * tried again) or "none". Only the coordinator knows more than "moving" and "none". */
const char *moving_state(const struct model *m);
/* On the coordinator: since when chunks do not lie as they should, by clock_ns(). 0: they do. */
uint64_t moving_since(const struct model *m);
/* What the move under way has yet to copy to this node (here), or to all nodes as far as this node
 * knows: of another node it is known when all of its copies are there. */
struct moving_left {
	uint64_t copies, bytes; /* bytes: of masters and moments. */
};
struct moving_left moving_left(const struct model *m, bool here);

extern const struct model_watch moving_watch;

#endif
