/* SPDX-License-Identifier: Apache-2.0 */
/* attempt.h: the step in hand as a handle keeps it: the attempt, what became of its commit, and
 * tickets. */
#ifndef SHARD_CLIENT_ATTEMPT_H
#define SHARD_CLIENT_ATTEMPT_H

#include "wire/frame.h"

#include "shard.h"

#include <stdbool.h>

enum {
	MODEL_WHY_BYTES = 256,
	MODEL_VERDICTS = 4,   /* how many attempts shard_result() remembers */
	MODEL_TICKETS = 1024, /* how many may wait at one time */
	MODEL_SAVES = 160,    /* how many are under way, or ended and remembered */
	MODEL_VOIDS = 16,     /* rollbacks whose tickets are told apart */
	MODEL_IMAGES = 2,     /* most that there are: max_staleness + 1 */
};

enum phase {                  /* of the attempt in hand */
	     PHASE_NONE,      /* Nothing was begun yet. */
	     PHASE_OPEN,      /* shard_begin() returned it: pushes are welcome. */
	     PHASE_COMMITTED, /* Committed, or voted to skip: it waits for the verdict. */
	     PHASE_ABANDONED, /* This trainer gave it up: it waits for its end. */
	     PHASE_DECIDED,   /* RESULT came. */
	     PHASE_ENDED,     /* ENDED came: it had no effect. */
};

struct attempt {             /* what an ATTEMPT frame said */
	uint64_t no;         /* counts them; 0: none came */
	struct wire_head id; /* term, seq, step, attempt, generation, model */
	uint32_t rank, world_size, local_rank, local_size;
	double loss_scale;
	uint64_t weights; /* max_staleness = 1: the step that wrote the weights to compute on */
	uint64_t newest;  /* max_staleness = 1: the step that wrote those of the step before */
};

struct verdict {                    /* what became of an attempt */
	uint64_t no;                /* of the attempt */
	shard_ticket ticket;        /* of its commit; 0: it has none */
	bool decided;               /* RESULT came. */
	bool ended;                 /* It had no effect. */
	bool diverged;              /* The model is paused now. */
	enum shard_status ended_as; /* SHARD_WORLD_CHANGED, SHARD_ROLLED_BACK or SHARD_MISMATCH */
	struct shard_result result;
	char why[MODEL_WHY_BYTES];
};

struct shard_model;
struct ticket;
/* Is it done? If not, *chunk is the chunk that a pull lacks, if it lacks one. chunk may be NULL. */
typedef bool (*ticket_ready_fn)(struct shard_model *m, const struct ticket *t, uint32_t *chunk);

struct void_range { /* Tickets that waited when the model was rolled back. */
	shard_ticket first, last;
};

enum ticket_kind { TICKET_PULL, TICKET_COMMIT };
struct ticket {
	shard_ticket no;
	enum ticket_kind kind;
	ticket_ready_fn ready;
	bool done; /* Found done while others stand before it. */
	/* A pull. */
	uint32_t tensor;
	uint64_t first, count; /* elements of the tensor */
	uint64_t step;         /* The weights of this step are wanted. */
	void *dst;             /* NULL: they are read in place. */
	enum shard_dtype dtype;
	/* A commit. */
	uint64_t attempt; /* its number */
};

#endif
