/* SPDX-License-Identifier: Apache-2.0 */
/* attempt.h: the step in hand as a handle keeps it: the attempt, what became of its commit, and tickets. */
#ifndef SHARD_CLIENT_ATTEMPT_H
#define SHARD_CLIENT_ATTEMPT_H

#include "wire/frame.h"

#include "shard.h"

#include <stdbool.h>

enum {
	MODEL_WHY_BYTES = 256,
	MODEL_VERDICTS = 4,   /* how many commits shard_result() remembers */
	MODEL_TICKETS = 1024, /* not done at one time */
	MODEL_SAVES = 160,    /* under way, and ended but remembered */
	MODEL_IMAGES = 2,     /* most that there are: max_staleness + 1 */
};

enum phase {                  /* of the attempt in hand */
	     PHASE_NONE,      /* nothing begun yet */
	     PHASE_OPEN,      /* shard_begin() returned it: pushes are welcome */
	     PHASE_COMMITTED, /* committed or voted to skip: waits for the verdict */
	     PHASE_ABANDONED, /* this trainer gave it up: waits for its end */
	     PHASE_DECIDED,   /* RESULT came */
	     PHASE_ENDED,     /* ENDED came: without effect */
};

struct attempt {             /* an ATTEMPT frame */
	uint64_t no;         /* counts them; 0: none came */
	struct wire_head id; /* term, seq, step, attempt, generation, model */
	uint32_t rank, world_size, local_rank, local_size;
	double loss_scale;
	uint64_t weights, newest; /* max_staleness = 1: steps that wrote the weights to compute on, and those of the step before */
};

struct verdict {
	uint64_t no;         /* of the attempt */
	shard_ticket ticket; /* of its commit */
	bool decided, ended, diverged;
	enum shard_status ended_as; /* SHARD_WORLD_CHANGED, or what all ranks are told: SHARD_MISMATCH */
	struct shard_result result;
	char why[MODEL_WHY_BYTES];
};

enum ticket_kind { TICKET_PULL, TICKET_COMMIT };
struct ticket {
	shard_ticket no;
	enum ticket_kind kind;
	bool done; /* before those in front of it */
	uint32_t tensor;
	uint64_t first, count, step; /* pull */
	void *dst;
	enum shard_dtype dtype;
	uint64_t attempt; /* commit */
};

#endif
