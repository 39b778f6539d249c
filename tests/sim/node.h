/* SPDX-License-Identifier: Apache-2.0 */
/* node.h: one simulated node: its process, what outlives the process, and what the checkers know of
 * it. */
#ifndef SIM_NODE_H
#define SIM_NODE_H

#include "sim/cluster.h"
#include "sim/elect.h"

struct sim_seen { /* The state of a core when it last saved. */
	enum core_part part;
	bool sealed, restoring;
	uint64_t term, committed;
	uint32_t seq, generation;
	uint64_t tune; /* orders_number() */
	uint32_t set[GROUPS];
	double hyper[GROUPS][HYPER_NR];
	struct core_id id, aborted;
	uint64_t promised, learns, moves, place;
	bool caught;
	struct view_members members;
};

struct shell { /* What the process of one node has of one model, and what outlives that process. */
	bool warming; /* The core handles CORE_EV_WARM. */
	/* cold: nothing outlived the process before. torn: what outlived it is damaged. */
	bool cold, torn;
	uint64_t lied;        /* The incarnation with which it last found a wrong sum. */
	bool odd;             /* It was told that it is odd. */
	uint64_t incarnation; /* The incarnation that the member names. */
	/* The incarnation that it has: the number of the start that began with nothing. */
	uint64_t member;
	uint64_t folder; /* The state folder of that start. */
	uint64_t tick_at;
	uint32_t late_nr; /* Times in a row that its core asked to be called at a time in the past.
			   */
	void *memory;
	struct core *core;
	void *parked[2];                  /* The two buffers to which the core saves in turn. */
	struct placement parked_place[2]; /* The tables of the view in each. */
	uint32_t parked_at;
	struct sim_seen seen;
	/* The disk. */
	bool has_disk, persisting;
	/* For a zombie: its write reached the disk before its successor read it. */
	bool landed;
	struct core_view disk, pending;
	/* The attempt in hand. */
	struct core_id id, open;
	struct core_world world;
	bool running, draining, drained_sent;
	uint32_t jobs, transfers;
	bool queued[CHUNKS];
	struct core_id credit[NODES], lent[NODES];
	bool sent[NODES][CHUNKS];
	struct cell slot[NODES][CHUNKS], sum[CHUNKS]; /* sum: this node's sum over its ranks. */
	/* Where the reduced gradient of each chunk lands, whichever primary sends it. */
	struct cell arrived[CHUNKS];
	/* The reduced gradient of each chunk: what the primary makes, or a copy of what landed. */
	struct cell reduced[CHUNKS];
	bool sent_reduced[NODES][CHUNKS];
	uint32_t fenced[NODES]; /* Nothing lands any more over a connection of this epoch. */
	/* The newest attempt that it began as a coordinator, and the world of that attempt. */
	struct core_id begun;
	struct core_world begun_world;
	uint32_t opened; /* The newest view that it opened as a coordinator. */
	/* How many stragglers it has put out as a coordinator, as far as the checkers have seen. */
	uint64_t stragglers;
	bool was_undecided; /* The coordinator's `undecided` before the event in hand. */
	/* Applying. */
	struct record record;
	uint32_t chunks_left;
	bool applying;    /* CORE_EV_APPLIED has not been given yet. */
	bool applied_due; /* It waits for transfers to a node that a recovery left out. */
	/* State. */
	uint32_t generation;
	struct placement place; /* As the core said last. */
	bool written[CHUNKS];   /* It has a copy of the chunk. */
	/* The number of the last CORE_ACT_LEARN. learning: not every copy is here yet. */
	uint32_t learn;
	bool learning;
	/* The restore or the definition that writes here, and how many chunks it still has to
	 * write. */
	uint32_t load, load_left;
	/* A mark in the memory: this restore was reading, and what it read may be thrown away
	 * unless it is confirmed. */
	uint32_t loading;
	bool confirmed; /* The node has said that all of it is there. */
	uint64_t version[CHUNKS], weights[CHUNKS], image[CHUNKS];
	struct core_id prepared; /* For the checkers. It survives restarts. */
	/* The highest term whose ASK this member answered. For the checkers. */
	uint64_t term_promised;
};

struct sim_node {                     /* A process, and what outlives it. */
	bool alive, paused, stopping; /* stopping: SIGTERM came, and it ends soon. */
	bool ends;                    /* It is odd, and ends soon. */
	/* The process is dead and its memory is kept, so that it comes back as the member that it
	 * was. */
	bool whole;
	/* Which node of the cluster it is. A zombie has the node of its successor. */
	uint16_t self;
	uint64_t starts; /* The number of its start. It only grows. */
	/* Its state folder. A node that starts without its memory may be another machine, with a
	 * folder of its own. */
	uint64_t folder;
	uint64_t resume_at;
	/* Its clock is so far ahead of virtual time, or behind it (modulo 2^64). Until
	 * .frozen_until it stands at .frozen_at. */
	uint64_t ahead, frozen_at, frozen_until;
	/* The coordinator has had no link to it since then, by its clock. 0: it has one. */
	uint64_t away_since;
	uint64_t died_at;
	/* The coordinator's process has had a link to it. */
	bool known;
	/* Links as this process sees them, by node: the epoch of the current connection (0: none),
	 * and the slot of the process at its end. */
	uint32_t link[NODES];
	uint16_t end[NODES];
	uint64_t knows; /* Nodes to which this process has had a link. */
	struct sim_lead lead;
	struct voter *voter;
	struct shell shell[MODELS];
};

#endif
