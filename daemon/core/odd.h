/* SPDX-License-Identifier: Apache-2.0 */
/* odd.h: what the coordinator finds when it compares the votes for the copies of a chunk. A vote
 * that differs is never part of a commit. Private to daemon/core.
 *
 * Who is wrong? A node is suspected if all votes agree without those of that node, on every chunk.
 * If there is one suspect, it is odd, and leaves: the next view is without it, then it is told
 * (CORE_ODD), and its process ends. With three copies the one that differs from the others is the
 * suspect. With two copies both are, unless copies on other nodes clear one of them. Nobody can say
 * then which one is wrong, so the attempt is repeated, and after ODD_TRIES_MAX attempts at one step
 * the model waits for an operator. */
#ifndef SHARD_CORE_ODD_H
#define SHARD_CORE_ODD_H

#include "core/ctx.h"

#define ODD_CHUNKS_MAX 4 /* Chunks that other nodes hold each, of which the votes are kept. */
#define ODD_TRIES_MAX  3

struct odd_chunk { /* The votes for a chunk on which two nodes differ. */
	uint32_t chunk;
	uint64_t copies, heard; /* The nodes that vote for it, and those that have. */
	double sumsq[CORE_NODES_MAX];
	uint8_t finite[CORE_NODES_MAX];
};

struct odd {
	/* Of the attempt in hand: nodes that gave their vote, and those of them whose vote does not
	 * count, because it differs or because the node itself says that it does. */
	uint64_t spoke, others;
	struct odd_chunk chunk[ODD_CHUNKS_MAX];
	uint32_t chunks_nr;
	/* Attempts at .step that ended because of damage that is no single node's. */
	uint64_t step;
	uint32_t tries;
	uint64_t differed_nr; /* Attempts in which votes differed, since this node coordinates. */
	char stuck[2 * CORE_WHY_BYTES]; /* Why .step is not tried any more. Empty: it is. */
	/* Nodes that were odd, with the memory that they had, and those of them that were told over
	 * the link that there is. */
	uint64_t nodes, told;
	uint64_t memory[CORE_NODES_MAX];
	struct core_id id; /* The attempt in which the last one was found. */
	char why[CORE_WHY_BYTES];
};

/* A new attempt: nobody has voted. */
void odd_begin(struct odd *o);
/* The node votes for a chunk for which others have voted. first: what the first of them voted. */
struct odd_vote {
	double sumsq;
	bool finite;
};
void odd_vote(struct odd *o, const struct placement *p, uint32_t chunk, uint16_t node,
	      const struct odd_vote *first, const struct odd_vote *vote);
/* A bit for each node that alone may be wrong. */
uint64_t odd_suspects(const struct odd *o);

bool odd_is(const struct core *c, uint16_t node); /* With the memory that it has now. */
/* The attempt in hand ends because of damage of which nobody can say which node is to blame. After
 * ODD_TRIES_MAX of them .stuck says so, and what an operator can do: the remedy, and to resume. */
void odd_tried(struct core *c, const char *why, const char *remedy);
/* Forgets that these nodes were odd, and what keeps the step from being tried. */
void odd_forgive(struct odd *o, uint64_t nodes);

#endif
