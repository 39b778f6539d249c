/* SPDX-License-Identifier: Apache-2.0 */
/* node.h: one simulated node: its process, what outlives it, and what the checkers know of it. */
#ifndef SIM_NODE_H
#define SIM_NODE_H

#include "sim/cluster.h"

struct sim_seen { /* of a core, when it last saved */
	enum core_part part;
	bool sealed, restoring;
	uint64_t term, committed;
	uint32_t seq, generation;
	struct core_tune tune;
	struct core_id id, aborted;
	uint64_t promised;
};

struct sim_node {
	bool alive, paused, stopping; /* stopping: SIGTERM came, it ends soon */
	bool whole;                   /* not alive: its memory is, so that it comes back as the member that it was */
	bool warming;                 /* in CORE_EV_WARM */
	uint64_t incarnation;         /* of the member, as it says */
	uint64_t member;              /* and as it is: the start that began with nothing */
	uint64_t starts;              /* of processes: ever more */
	uint64_t resume_at, tick_at;
	void *memory;
	struct core *core;
	void *parked[2]; /* what the core saves, in turns */
	uint32_t parked_at;
	struct sim_seen seen;
	/* disk */
	bool has_disk, persisting;
	struct core_view disk, pending;
	/* links as this node sees them: epoch of the current connection, 0: none */
	uint32_t link[NODES];
	/* the attempt in hand */
	struct core_id id, open;
	struct core_world world;
	bool running, draining, drained_sent;
	uint32_t jobs, transfers;
	bool queued[CHUNKS];
	struct core_id credit[NODES], lent[NODES];
	bool sent[NODES][CHUNKS];
	struct cell slot[NODES][CHUNKS], sum[CHUNKS]; /* sum: this node's own, over its ranks */
	/* applying */
	struct record record;
	uint32_t chunks_left;
	/* state */
	uint32_t generation;
	bool written[CHUNKS];
	uint64_t version[CHUNKS], weights[CHUNKS], image[CHUNKS];
	struct core_id prepared; /* survives restarts: what the checkers know */
	uint64_t away_since;     /* the coordinator has no link to it since then; 0: it has one */
};

#endif
