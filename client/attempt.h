/* SPDX-License-Identifier: Apache-2.0 */
/* attempt.h: the step in hand as a handle keeps it: the attempt, the verdict on its commit, and
 * tickets. */
#ifndef SHARD_CLIENT_ATTEMPT_H
#define SHARD_CLIENT_ATTEMPT_H

#include "wire/frame.h"

#include "shard.h"

#include <stdatomic.h>
#include <stdbool.h>

enum {
	MODEL_WHY_BYTES = 256,
	MODEL_VERDICTS = 4,   /* Attempts that shard_result() remembers. */
	MODEL_TICKETS = 1024, /* Tickets that may wait at one time. */
	MODEL_SAVES = 160,    /* Saves that are under way, or ended and remembered. */
	MODEL_VOIDS = 16,     /* Ranges of void tickets that are told apart. */
	MODEL_IMAGES = 2,     /* Most images of a model: max_staleness + 1. */
};

/* Of the attempt in hand. */
enum phase {
	PHASE_NONE,      /* Nothing was begun yet. */
	PHASE_OPEN,      /* shard_begin() returned it. Pushes are allowed. */
	PHASE_COMMITTED, /* Committed, or voted to skip. It waits for the verdict. */
	PHASE_ABANDONED, /* This trainer gave it up. It waits for its end. */
	PHASE_DECIDED,   /* RESULT came. */
	PHASE_ENDED,     /* ENDED came. The attempt had no effect. */
};

/* The content of an ATTEMPT frame. */
struct attempt {
	uint64_t no;         /* Number of the attempt on this handle. 0: none came. */
	struct wire_head id; /* term, seq, step, attempt, generation and model. */
	uint32_t rank, world_size, local_rank, local_size;
	double loss_scale;
	uint64_t weights; /* max_staleness = 1: the step that wrote the weights to compute on. */
	/* max_staleness = 1: the step that wrote the weights of the step before. */
	uint64_t newest;
};

/* What became of an attempt. */
struct verdict {
	uint64_t no;                /* Number of the attempt. */
	shard_ticket ticket;        /* Ticket of its commit. 0: it has none. */
	bool decided;               /* RESULT came. */
	bool ended;                 /* It had no effect. */
	bool diverged;              /* The model is paused now. */
	enum shard_status ended_as; /* SHARD_WORLD_CHANGED, SHARD_ROLLED_BACK or SHARD_MISMATCH. */
	struct shard_result result;
	char why[MODEL_WHY_BYTES];
};

/* How a trainer stands to the daemon, over connections that break. */
enum {
	PRESENCE_HERE, /* In the model. */
	PRESENCE_AWAY, /* The connection broke. Memory and pointers stay as they were. */
	PRESENCE_BACK, /* Joined again, and waits for its first ATTEMPT. */
};
struct presence {
	int is;         /* One of these. */
	int rank_hint;  /* Of shard_join(), for each JOIN. */
	uint64_t step;  /* The daemon's, when it took this trainer. */
	uint64_t guess; /* What shard_world_get() said without an ATTEMPT. 0: it had one. */
	_Atomic uint64_t mapped; /* How often arena and image were mapped. */
};

struct shard_model;
struct ticket;
/* Returns whether the ticket is done. If not, and a pull waits for a chunk, *chunk is that chunk.
 * chunk may be NULL. */
typedef bool (*ticket_ready_fn)(struct shard_model *m, const struct ticket *t, uint32_t *chunk);

/* Tickets that waited when the model was rolled back, or when the connection broke. */
struct void_range {
	shard_ticket first, last;
	enum shard_status status; /* What they end as. */
};

enum ticket_kind { TICKET_PULL, TICKET_COMMIT };
struct ticket {
	shard_ticket no;
	enum ticket_kind kind;
	ticket_ready_fn ready;
	bool done; /* Found done while older ones still wait. */
	/* A pull. */
	uint32_t tensor;
	uint64_t first, count; /* Elements of the tensor. */
	uint64_t step;         /* The weights of this step are wanted. */
	void *dst;             /* NULL: they are read in place. */
	enum shard_dtype dtype;
	/* A commit. */
	uint64_t attempt; /* Its number. */
};

#endif
