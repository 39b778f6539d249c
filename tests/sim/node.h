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

struct shell { /* what the process of one node has of one model, and what outlives that process */
	bool warming;         /* in CORE_EV_WARM */
	bool cold, torn;      /* nothing of it outlived the process before; what did is no good */
	uint64_t incarnation; /* of the member, as it says */
	uint64_t member;      /* and as it is: the start that began with nothing */
	uint64_t tick_at;
	void *memory;
	struct core *core;
	void *parked[2]; /* what the core saves, in turns */
	uint32_t parked_at;
	struct sim_seen seen;
	/* disk */
	bool has_disk, persisting;
	bool landed; /* of a zombie: what it was writing reached the disk before its successor read
			it */
	struct core_view disk, pending;
	/* the attempt in hand */
	struct core_id id, open;
	struct core_world world;
	bool running, draining, drained_sent;
	uint32_t jobs, transfers;
	bool queued[CHUNKS];
	struct core_id credit[NODES], lent[NODES];
	bool sent[NODES][CHUNKS];
	struct cell slot[NODES][CHUNKS], sum[CHUNKS]; /* sum: this node's own, over its ranks */
	struct core_id begun; /* the newest attempt that it began as a coordinator, and whose world
				 that was */
	struct core_world begun_world;
	uint32_t opened;    /* the newest view that it opened as a coordinator */
	bool was_undecided; /* before the event in hand */
	/* applying */
	struct record record;
	uint32_t chunks_left;
	/* state */
	uint32_t generation;
	bool written[CHUNKS];
	uint32_t load, load_left; /* the restore or the definition that writes here, and how many
				     chunks it still has to */
	uint32_t loading; /* of the memory: this restore was reading, what it read may be thrown
			     away, */
	bool confirmed;   /* unless it has said that it is all there */
	uint64_t version[CHUNKS], weights[CHUNKS], image[CHUNKS];
	struct core_id prepared; /* survives restarts: what the checkers know */
	uint64_t term_promised;  /* the highest term whose ASK this member answered: what the
				    checkers know */
};

struct sim_node {                     /* a process, and what outlives it */
	bool alive, paused, stopping; /* stopping: SIGTERM came, it ends soon */
	bool whole; /* not alive: its memory is, so that it comes back as the member that it was */
	uint16_t self;   /* which node of the cluster it is: a zombie is the one that has its
			    successor */
	uint64_t starts; /* of processes: ever more */
	uint64_t resume_at;
	uint64_t away_since; /* the coordinator has no link to it since then; 0: it has one */
	/* links as this process sees them, by node: epoch of the current connection, 0: none; the
	 * slot of the process at its end */
	uint32_t link[NODES];
	uint16_t end[NODES];
	struct shell shell[MODELS];
};

#endif
