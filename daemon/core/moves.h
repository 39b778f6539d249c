/* SPDX-License-Identifier: Apache-2.0 */
/* moves.h: chunks that move between nodes while training goes on. A node that joins, one that is
 * drained and one that shall have more or less of a model are the same thing: another table of who
 * holds each chunk. Private to daemon/core, but for place_moving() and
 * place_names().
 *
 * A move takes two views of its own, and no step waits for it but at their boundaries.
 * - The first one has both tables, the old one and .to. Whoever has a chunk by either has memory
 *   for it, and gets its reduced gradients. The nodes to which .to gives more are in .moves. They
 *   fetch what is new to them (CORE_ACT_LEARN), and their copies of it do not count yet.
 * - A node that has them all says so, and the next view does not have it in .moves. Its copies
 *   count from then on.
 * - When .moves is empty and a step was committed since, by the vote of every node that .to names
 *   for a chunk which somebody gives up, the last view has the table .to alone. Nodes may give
 *   memory back when they have adopted it.
 * So a view that takes a copy away never adds one of the same chunk, and as many others as .to
 * names have voted for that chunk. A view says all that the next coordinator needs to go on. While
 * the weights are written anew, everybody writes who has memory by either table. A save holds a
 * move, too. An idle model ends its move with its next step. */
#ifndef SHARD_CORE_MOVES_H
#define SHARD_CORE_MOVES_H

#include "core/ctx.h"

/* Every node counts that the first table names. A shell that gets a view makes its placement. */
struct placement place_moving(const uint16_t *primary, const uint64_t *holders,
			      const uint16_t *to_primary, const uint64_t *to, uint32_t chunks_nr);

/* Is this table one of the placement? */
static inline bool place_names(const struct placement *p, const void *table)
{
	return p->primary == table || p->holders == table || p->to_primary == table ||
	       p->to == table;
}

void moves_on_place(struct ctx *x, const struct core_event *e); /* CORE_EV_PLACE. */
/* Does a view that begins or ends a move wait for the next boundary? No attempt begins then. */
bool moves_boundary(const struct core *c);
bool moves_due(const struct core *c); /* The same, and the boundary is reached. */
/* p is the placement of the next view, as far as its members change it. Has the view begin or end
 * the move that is due. */
void moves_change(const struct core *c, struct placement *p);
/* Takes the placement of the next view for that of the newest one. */
void moves_take(struct core *c, const struct placement *p);
void moves_opened(struct ctx *x); /* All members have adopted the newest view. */
/* Writes what the move waits for. The text is empty if no chunk moves. */
void moves_waits(const struct core *c, char *text, size_t bytes);

#endif
