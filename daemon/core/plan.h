/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h: which nodes should hold the copies of each chunk when the members of a view change. The
 * plan is a pure function of the members' capacities and of the table before, so that every node
 * makes the same one. It allocates nothing and reads no clock. Its time grows with the chunks and,
 * tens of times as fast, with the copies that move: a large one is a job for a worker. */
#ifndef SHARD_CORE_PLAN_H
#define SHARD_CORE_PLAN_H

#include "core/record.h"

#include <stdbool.h>
#include <stdint.h>

#define PLAN_NOBODY UINT16_MAX

struct plan_conf {
	uint32_t chunks_nr;
	uint32_t copies; /* How many nodes shall hold each chunk, if there are so many. */
	/* [slot] In any unit. 0: holds nothing (no member, a witness, or a node that is drained).
	 * At least one node has capacity. */
	uint64_t capacity[CORE_NODES_MAX];
};

struct plan_table {
	uint64_t *holders; /* [chunks_nr] A bit for each slot that holds a copy. */
	/* [chunks_nr] The slot of the holder whose copy counts. PLAN_NOBODY: there is none. */
	uint16_t *primary;
};

struct plan_cost {
	uint64_t copies;    /* How many copies have to be made anew. */
	uint64_t primaries; /* How many chunks have another primary than before. */
};

struct plan; /* Scratch. The caller gives plan_bytes() of 16-byte aligned memory. */
size_t plan_bytes(void);

/* Fills to, whose arrays must not be those of from. from may name nodes that are gone, more copies
 * than are wanted, fewer, or none.
 *
 * Each chunk gets conf->copies holders, or as many as have capacity, whichever is less. The number
 * of copies that a node holds is its share by capacity, rounded up or down. A share is never more
 * than all chunks, and what a small cluster cannot give to a large node the others share. Among
 * all tables like that, to is one that makes the fewest copies anew. Of what it holds each node is
 * primary of one part in as many as there are copies, rounded up or down, with the fewest changes.
 * The copies beside those of a node are spread over all others. */
void plan_make(struct plan *p, const struct plan_conf *conf, const struct plan_table *from,
	       struct plan_table *to, struct plan_cost *cost);

#endif
