/* SPDX-License-Identifier: Apache-2.0 */
/* elect.h: coordinators that are elected. Half of these seeds have a register that is only a model
 * (registers.c), the others that of core/quorum.h (voters.c). elect.c stands between it and the
 * cores, as the daemon does. */
#ifndef SIM_ELECT_H
#define SIM_ELECT_H

#include "sim/cluster.h"

/* From this seed on coordinators are elected. Its rest is the seed of everything else. */
#define ELECTED_SEEDS 1000000000ull
#define LEASE_NS      (600 * MS) /* Nobody else is elected for at most so long. */
#define PROPOSE_NS    (400 * MS) /* After this time a proposal is answered in any case. */

enum sim_answer { ANSWER_OK, ANSWER_CONFLICT, ANSWER_FENCED, ANSWER_UNKNOWN, ANSWER_NOSPACE };

/* What is to be the next value of the register, or was read from it. The value has a view of each
 * model. A proposal changes some of them. */
struct sim_value {
	uint16_t node;       /* Who proposes, or who leads and reads it. */
	uint64_t start;      /* Its process. */
	uint64_t term, seq;  /* The seq that the value has, or will have. */
	uint32_t models;     /* A bit for each model of which there is a view. */
	enum sim_answer how; /* The answer to the proposal. */
	/* This node becomes a voter, or ceases to be one. NOWHERE: the voters stay. */
	uint16_t voter;
	uint32_t base;           /* voters.c: the number of the value that it replaces. */
	struct core_view view[]; /* [models_nr] */
};

struct sim_lead {      /* What the process of a node knows of elections, as model/lead.c does. */
	uint64_t term; /* It leads in this term. 0: it does not. */
	uint64_t seq;  /* Of the value that it knows. */
	uint64_t next_term;         /* Of the proposal that is not answered yet. */
	bool flying;                /* There is one. */
	uint32_t waiting, proposed; /* Bits of models whose views wait, or are in the proposal. */
};

struct sim_register {        /* The truth about the register, which no node knows as a whole. */
	uint64_t term, seq;  /* Of the last node that was elected, and of the value. */
	uint64_t start;      /* The process of that node. */
	uint64_t since;      /* When it was elected. */
	uint64_t told_at;    /* When it hears so. */
	uint64_t gone_since; /* When it was seen not to lead. 0: it leads. */
	bool resigned;
};

#endif
