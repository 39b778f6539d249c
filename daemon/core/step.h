/* SPDX-License-Identifier: Apache-2.0 */
/* step.h: the participant of the step transaction: FREE, STAGING, PREPARED, APPLYING (DESIGN section 5), and the landing slots
 * that it lends to other nodes. Private to daemon/core. */
#ifndef SHARD_CORE_STEP_H
#define SHARD_CORE_STEP_H

#include "core/core.h"

struct ctx;

#define CORE_WHY_BYTES 192

struct timer {       /* repeats that back off to one a second */
	uint64_t at; /* UINT64_MAX: off */
	uint32_t count;
};

struct step {
	enum core_part part;
	struct core_id id;         /* attempt in hand, or the last */
	struct core_id aborted;    /* nothing up to this is begun any more */
	struct core_id drained;    /* nothing up to this leaves this node any more */
	bool draining;             /* .id was dropped and its transfers and workers have not finished */
	bool dropped;              /* this node dropped .id by itself; the coordinator may not know */
	bool has_record, has_next; /* has_next: a BEGIN that waits for APPLYING or draining to end */
	bool kept; /* PREPARED by the process before this one: its trainers are gone, and it sends nothing of .id any more */
	bool skip;
	uint32_t chunks_staged, ranks_ready, ranks_nr; /* ranks: local ones of .world */
	int64_t bad_tensor;
	int32_t bad_rank;
	uint64_t ready[(CORE_RANKS_MAX + 63) / 64]; /* by rank */
	struct timer timer;
	struct core_id next_id;
	struct core_world world, next_world;
	struct record record;     /* last decided here; being applied in APPLYING */
	char why[CORE_WHY_BYTES]; /* of dropped */
	enum shard_status status;
	double lr[CORE_GROUPS_MAX]; /* as the first ready rank gave it; all others must give the same */
	uint32_t lr_nr, lr_rank;
};

/* Messages; the dispatcher in core.c has checked sender and role. */
void step_on_begin(struct ctx *x, const struct core_msg *m);
void step_on_commit(struct ctx *x, const struct core_msg *m);
void step_on_abort(struct ctx *x, const struct core_msg *m);
void slots_on_grant(struct ctx *x, const struct core_msg *m);
void slots_on_drained(struct ctx *x, const struct core_msg *m);

/* Events. */
void step_on_staged(struct ctx *x, const struct core_event *e);
void step_on_ready(struct ctx *x, const struct core_event *e);
void step_on_applied(struct ctx *x, const struct core_event *e);
void step_on_drained(struct ctx *x, const struct core_event *e);
void step_on_link_down(struct ctx *x, uint16_t node, const char *why);
void step_on_link_up(struct ctx *x, uint16_t node);
void step_on_tick(struct ctx *x);

/* For member.c, local.c and coord.c. */
bool step_undecided(const struct step *s);             /* STAGING or PREPARED */
bool step_took(struct ctx *x, const struct record *r); /* PREPARED for exactly this record: now APPLYING it */
/* status: what trainers are told; SHARD_WORLD_CHANGED but for their own mistakes */
void step_drop(struct ctx *x, enum shard_status status, const char *why); /* without effect; does nothing in FREE and APPLYING */
void step_abandon(struct ctx *x, enum shard_status status,
		  const char *why); /* STAGING only: dropped, and the coordinator is told until it acts */
/* Do two ranks, or the ranks of two nodes, give the same learning rates? else a sentence. */
const char *step_lr_differs(struct core *c, const struct core_world *w, uint32_t rank, const double *lr, uint32_t nr,
			    uint32_t other_rank, const double *other, uint32_t other_nr);
void step_forget(struct ctx *x);          /* a new generation: no record, no waiting BEGIN */
void step_vote(struct ctx *x);            /* if it is STAGING, complete, and not held */
bool step_complete(const struct core *c); /* everything that the vote waits for has come */
void step_vote_fill(struct core *c, struct core_vote *v);
int32_t step_rank(const struct core_world *w, uint16_t node, uint64_t session); /* -1: not in it */
void step_check(const struct core *c);

/* slots.c, for step.c */
void slots_begin(struct ctx *x);   /* STAGING begins: lend ours, take up what is lent */
void slots_dropped(struct ctx *x); /* the attempt in hand ends without effect */
void slots_drained(struct ctx *x); /* tell the lenders */
void slots_repeat(struct ctx *x);  /* ask lenders that have not lent */
void slots_link_down(struct ctx *x, uint16_t node);
void slots_link_up(struct ctx *x, uint16_t node);

#endif
