/* SPDX-License-Identifier: Apache-2.0 */
/* cluster.h: the links and trainers of a simulated cluster. Its nodes are in node.h, and what
 * happens to them in event.h. */
#ifndef SIM_CLUSTER_H
#define SIM_CLUSTER_H

#include "core/core.h"
#include "sim/event.h"

/* A slot holds a process. There is one slot for each node and one for a zombie. */
enum { NODES = 9, ZOMBIE = NODES, SLOTS, NOWHERE, MODELS = 3 };
enum {
	GROUPS = 3,
	TRAINERS = 32,    /* Of all models. */
	FEW_TRAINERS = 6, /* Of one model, in most seeds. */
	CHUNKS = 6,
	COPIES = 3, /* Of a chunk, at most. */
	SESSIONS = 4096,
	TRANSFERS = 512,
	GENERATIONS = 64,
	VIEWS = 64,
	TABLES = 48, /* That an operator gives, at most. */
	DIFFERS = 512,
	GAVE = 8, /* Attempts that the checkers remember of each trainer. */
	HEALED_COMMITS = 6
};
#define MS      1000000ull
#define SEC     1000000000ull
#define AWAY_NS (2 * SEC) /* A node that is away for so long is given up. */
/* A link that is silent for so long ends, and a new coordinator waits so long for a member. */
#define SILENT_NS (300 * MS)
#define STEP_NS   (4 * SEC) /* The deadline of an attempt. */
/* Longer than it takes to make a link anew. */
#define RECONNECT_NS (900 * MS)

struct conn { /* A connection between two slots, i < j. */
	/* The epoch of the newest connection. No two connections of the cluster have the same
	 * one. */
	uint32_t epoch;
	bool up, connecting, cut; /* cut: a partition, which allows no new connection. */
	bool deaf[2];             /* Nothing gets through in that direction (oneway.c). */
	uint64_t last_at[2];      /* Keeps the order within a direction. */
};

struct sim_cut { /* These two nodes lose their link (cuts.c). */
	uint32_t phase;
	uint16_t a, b;
};

struct transfer {
	bool used;
	uint16_t src, dst;
	uint64_t src_start;
	uint32_t chunk, epoch;
	struct core_id id;
	bool nan, flushed; /* flushed: the source's end of the connection is gone. */
	bool reduced;      /* It is the reduced gradient, and not a contribution. */
	bool damaged;      /* It arrives with a wrong checksum. */
	double said;       /* The sum of squares that the primary says. */
};

struct sim_tables { /* Where an operator wanted the chunks. Never changed once given. */
	uint16_t primary[CHUNKS];
	uint64_t holders[CHUNKS], room[CHUNKS];
};

struct cell { /* A gradient in an arena or a landing slot. */
	struct core_id id;
	uint64_t hash;
	bool nan;
	double said; /* A reduced gradient: the sum of squares that its primary said. */
};

struct sim_liar { /* This node finds another sum of one chunk than there is. */
	bool on;
	bool says; /* A primary tells it to others, and a follower says that the sums differ. */
	uint16_t node;
	uint32_t chunk;
	struct core_id id; /* The last attempt in which it did. */
};

enum trainer_state { TR_DEAD, TR_IDLE, TR_READING, TR_COMPUTING, TR_READY };

struct sim_trainer {
	enum trainer_state state;
	bool stopped;
	/* Since the faults ceased: it had a part in a committed step, and the time that has counted
	 * since the last one (lively.c). */
	bool committed;
	uint64_t owed_ns;
	uint16_t node;
	uint64_t session;
	struct core_id id;
	uint32_t pushed;
	struct cell arena[CHUNKS];
	bool nan, skip;
	double lr[GROUPS], clip;
	uint32_t lr_nr;
};

#endif
