/* SPDX-License-Identifier: Apache-2.0 */
/* step.h: the participant of the step transaction (FREE, STAGING, PREPARED, APPLYING: DESIGN
 * section 5), and the landing slots that it lends to other nodes. Private to daemon/core. */
#ifndef SHARD_CORE_STEP_H
#define SHARD_CORE_STEP_H

#include "core/ctx.h"

struct slots {     /* Landing slots, between this node and one other. */
	bool owes; /* Transfers of a dropped attempt may still be on their way from it to us. */
	struct core_id granted; /* The newest attempt for which it has our slots. */
	struct core_id credit;  /* The newest attempt for which we have its slots. */
};

struct step {
	enum core_part part;
	bool hold;              /* The coordinator on this node holds: nothing is voted for here. */
	struct core_id id;      /* The attempt in hand, or the last one. */
	struct core_id aborted; /* Nothing up to this one is begun any more. */
	struct core_id drained; /* Nothing up to this one leaves this node any more. */
	bool draining;   /* .id was dropped, and its transfers and workers have not finished. */
	bool dropped;    /* This node dropped .id by itself. The coordinator may not know. */
	uint32_t blamed; /* Of dropped: the rank of .world whose gradient arrived damaged, plus 1.
			    0: there is another reason. */
	bool has_record; /* .record counts. */
	bool has_next;   /* A BEGIN waits for APPLYING or draining to end. */
	bool kept;       /* The process before this one voted for .id: its trainers are gone, and it
			    sends nothing of .id any more. */
	bool skip;       /* A local rank voted to skip the step. */
	uint32_t chunks_staged;
	uint32_t ranks_ready, ranks_nr; /* Of the local ranks of .world. */
	int64_t bad_tensor;
	int32_t bad_rank;
	uint64_t ready[(CORE_RANKS_MAX + 63) / 64]; /* By rank. */
	struct timer timer;
	struct core_id next_id;
	struct core_world world, next_world;
	struct record record;     /* The last one decided here. In APPLYING it is being applied. */
	char why[CORE_WHY_BYTES]; /* Of dropped. */
	enum shard_status status; /* Of dropped. */
	double lr[CORE_GROUPS_MAX]; /* As the first ready rank gave it. The others must give the
				       same. */
	uint32_t lr_nr, lr_rank;
	uint32_t image_chunk; /* As in core_waits. */
	uint64_t image_step;
	struct slots slots[CORE_NODES_MAX];
};

/* Messages. The dispatcher in core.c has checked who sent them and that this role takes them. */
void step_on_begin(struct ctx *x, const struct core_msg *m);
void step_on_commit(struct ctx *x, const struct core_msg *m);
void step_on_abort(struct ctx *x, const struct core_msg *m);
void slots_on_grant(struct ctx *x, const struct core_msg *m);
void slots_on_drained(struct ctx *x, const struct core_msg *m);

/* Events. */
void step_on_staged(struct ctx *x, const struct core_event *e);
void step_on_ready(struct ctx *x, const struct core_event *e);
void step_on_image(struct ctx *x, const struct core_event *e);
void step_on_drained(struct ctx *x, const struct core_event *e);
void step_on_damaged(struct ctx *x, const struct core_event *e);
void step_on_gone(struct ctx *x, const struct core_event *e);
void step_on_abandon(struct ctx *x, const struct core_event *e);
void step_on_link_down(struct ctx *x, uint16_t node, const char *why);
void step_on_link_up(struct ctx *x, uint16_t node);
void step_on_tick(struct ctx *x);

/* For the parts above. */
bool step_undecided(const struct step *s); /* STAGING or PREPARED */
/* PREPARED for exactly this record: now it is being applied. */
bool step_took(struct ctx *x, const struct record *r);
void step_applied(struct ctx *x); /* CORE_EV_APPLIED; step_resume() has to follow. */
void step_resume(struct ctx *x);  /* A BEGIN that waited is entered once nothing is in its way. */
/* The attempt ends without effect. Does nothing in FREE and APPLYING. The status is what trainers
 * are told: SHARD_WORLD_CHANGED, except for their own mistakes. */
void step_drop(struct ctx *x, enum shard_status status, const char *why);
/* STAGING only. Dropped, and the coordinator is told until it acts. */
void step_abandon(struct ctx *x, enum shard_status status, const char *why);
/* A newer term asks for the state: what was not voted for is dropped. */
void step_asked(struct ctx *x);
/* A new view is adopted: no BEGIN of the old one waits, and nothing of it is repeated. */
void step_new_view(struct ctx *x);
void step_forget(struct ctx *x); /* A new generation: no record counts, and no BEGIN waits. */
/* The record of a view in which this node had no part: the seal, or a step at which it joins in. */
void step_take_record(struct ctx *x, const struct record *r);
/* The coordinator on this node holds still, or no longer. Then what is complete is voted for. */
void step_hold(struct ctx *x, bool on);
bool step_complete(const struct core *c); /* Everything that the vote waits for has come. */
void step_vote_fill(struct core *c, struct core_vote *v);
/* Do two ranks, or the ranks of two nodes, give the same learning rates? NULL, or a sentence. */
const char *step_lr_differs(struct core *c, const struct core_world *w, uint32_t rank,
			    const double *lr, uint32_t nr, uint32_t other_rank, const double *other,
			    uint32_t other_nr);
void step_check(const struct core *c);

#endif
