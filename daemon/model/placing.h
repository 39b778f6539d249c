/* SPDX-License-Identifier: Apache-2.0 */
/* placing.h: which nodes hold the chunks of a model. The shares follow the capacities of the nodes
 * ([daemon] capacity, as each node's HELLO says). The coordinator makes the table with a
 * definition, and every other node reads it from there. */
#ifndef SHARD_MODEL_PLACING_H
#define SHARD_MODEL_PLACING_H

#include "model/model.h"

/* Fills capacity[CORE_NODES_MAX], as in core/plan.h. A node that was never linked counts as 1. */
void placing_capacity(const struct server *s, uint64_t *capacity);
/* The nodes that a new model begins with, one bit each: all but those that have been away for
 * lost_timeout. Those become members of it, without chunks, when they are back. */
uint64_t placing_members(const struct server *s);
/* One of them that is down. NULL: there is none. */
const struct peer *placing_lacks(const struct server *s);
/* SHARD_UNREACHABLE: a new model needs this node, or is defined by it, and it is down. */
enum shard_status placing_refuse(const struct peer *p, const char *model, struct err *e);
/* As placing_capacity(), with 0 for a node that is not among these. */
void placing_capacity_of(const struct server *s, uint64_t members, uint64_t *capacity);
/* How many of them have capacity. */
uint32_t placing_nodes(const struct server *s, uint64_t members);

/* Fills primary[chunks_nr] and, with several copies, holders[chunks_nr]. `copies` nodes or more
 * have capacity. Each node gets its share, rounded up or down, and its share of the primaries. The
 * copies beside those of a node are spread over all others. Returns false if there is no memory. */
bool placing_fill(uint16_t *primary, uint64_t *holders, uint32_t chunks_nr, uint32_t copies,
		  const uint64_t *capacity);
/* Puts such a table into a definition. The caller frees out->place_runs and out->holder_runs, also
 * after a failure. */
enum shard_status placing_new(Shard__Model *out, uint32_t chunks_nr, uint32_t copies,
			      const uint64_t *capacity, struct err *e);
/* Reads the placement of a whole definition, which comes from the coordinator or from memory of an
 * earlier start. SHARD_PROTOCOL: it is not one of so many chunks, nodes and copies. The caller
 * frees it, also after a failure. */
enum shard_status placing_read(struct placement *out, const Shard__Model *is, uint32_t chunks_nr,
			       uint16_t nodes_nr, uint32_t copies, struct err *e);
void placing_free(struct placement *p);

#endif
