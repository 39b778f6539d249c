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

struct sim;

/* elect.c: elections, as a daemon sees them. */
bool elect_acts(struct sim *s); /* The node that was elected last coordinates the model. */
/* Does this node coordinate beside its successor, if it does at all? */
bool elect_former(struct sim *s, uint16_t n);
struct sim_value *elect_value(struct sim *s, uint16_t n); /* An empty one, of this process. */
struct sim_value *elect_read(struct sim *s, uint16_t n);  /* The current one. */
void elect_persist(struct sim *s, uint16_t n, const struct core_view *view);
/* A node becomes a voter, or ceases to be one. */
void elect_change(struct sim *s, uint16_t n, uint16_t voter);
void elect_beat(struct sim *s, const struct sim_event *e);
void elect_answer(struct sim *s, const struct sim_value *v);
void elect_is(struct sim *s, uint16_t n, uint64_t term);
void elect_lands(struct sim *s, const struct sim_value *v);
void elect_leading(struct sim *s, const struct sim_value *v);
void elect_lost(struct sim *s, uint16_t n, uint64_t term);
void elect_started(struct sim *s, uint16_t n);
void elect_crashed(struct sim *s, uint16_t n);

/* registers.c: a register that is only a model. */
void register_started(struct sim *s);
void register_propose(struct sim *s, struct sim_value *v); /* v is the register's now. */
void register_resign(struct sim *s, uint16_t n);
void register_look(struct sim *s, const struct sim_event *e);
void register_land(struct sim *s, const struct sim_event *e);
void register_late(struct sim *s, const struct sim_event *e);
void register_answered(struct sim *s, const struct sim_event *e);
void register_leading(struct sim *s, const struct sim_event *e);
void register_lost(struct sim *s, const struct sim_event *e);

/* voters.c: the register of core/quorum.h. */
void voters_begin(struct sim *s);
void voters_timer(struct sim *s, uint16_t n); /* Its next deadline may have changed. */
void voters_started(struct sim *s, uint16_t n);
void voters_crashed(struct sim *s, uint16_t n);
void voters_link(struct sim *s, uint16_t n, uint16_t peer, bool up);
void voters_resign(struct sim *s, uint16_t n);
void voters_propose(struct sim *s, struct sim_value *v);
void voters_resigns(struct sim *s, const struct sim_event *e);
void voters_free(struct sim *s);
void voters_tick(struct sim *s, const struct sim_event *e);
void voters_message(struct sim *s, const struct sim_event *e);
void voters_synced(struct sim *s, const struct sim_event *e);
void voters_look(struct sim *s, const struct sim_event *e);

#endif
