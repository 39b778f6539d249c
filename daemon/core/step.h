/* SPDX-License-Identifier: Apache-2.0 */
/* step.h: the participant of the step transaction (FREE, STAGING, PREPARED, APPLYING: DESIGN
 * section 5). Private to daemon/core. */
#ifndef SHARD_CORE_STEP_H
#define SHARD_CORE_STEP_H

#include "core/ctx.h"

struct slots { /* Landing slots, between this node and another one. slots.c changes them. */
	/* Transfers of a dropped attempt may still be on their way from that node to us. */
	bool owes;
	/* .granted is for reduced gradients, too. They land where those of another primary do. */
	bool reduces;
	struct core_id granted; /* The newest attempt for which that node has our slots. */
	struct core_id credit;  /* The newest attempt for which we have the slots of that node. */
};

struct step {
	enum core_part part;
	bool hold;         /* The coordinator on this node holds, so this node does not vote. */
	struct core_id id; /* The attempt in hand, or the last one. */
	struct core_id aborted; /* No attempt up to this one is begun any more. */
	/* No transfer of an attempt up to this one leaves this node any more. */
	struct core_id drained;
	bool draining; /* .id was dropped, and its transfers and jobs have not finished. */
	bool dropped;  /* This node dropped .id by itself, and the coordinator may not know it. */
	/* If dropped: the rank of .world whose gradient arrived damaged, plus 1. 0: there is
	 * another reason. */
	uint32_t blamed;
	bool has_record; /* .record is set. */
	/* This node catches up, and its copies are those of .record. */
	bool caught;
	bool has_next; /* A BEGIN waits for APPLYING or draining to end. */
	/* The process before this one voted for .id. The trainers of that process are gone, and
	 * this node sends nothing of .id any more. */
	bool kept;
	/* The primary of a chunk said something else of its gradient than this node found. */
	bool differs;
	bool harmed; /* If dropped: a gradient arrived damaged, and no single rank is to blame. */
	bool skip;   /* A rank that is known to be ready voted to skip the step. */
	uint32_t chunks_staged;
	/* Counts of local ranks of .world: those that are ready, and all. */
	uint32_t ranks_ready, ranks_nr;
	int64_t bad_tensor;
	int32_t bad_rank;
	uint64_t ready[(CORE_RANKS_MAX + 63) / 64]; /* A bit for each rank of .world. */
	/* A bit for each node that has ranks in .world, and for each of them whose ranks are all
	 * ready, as far as this node knows. Their weights are in .world, and their
	 * values at core.at_values. */
	uint64_t ranked, told;
	struct timer timer;
	struct core_id next_id;
	struct core_world world, next_world;
	struct record record;     /* The last one decided here. In APPLYING it is being applied. */
	char why[CORE_WHY_BYTES]; /* If dropped: the reason. */
	enum shard_status status; /* If dropped: what trainers are told. */
	/* The learning rates and the clip that the first rank gave which is known to be ready,
	 * .lr_rank. The others must give the same. */
	bool has_lr, has_clip;
	double clip;
	double lr[CORE_GROUPS_MAX];
	uint32_t lr_nr, lr_rank;
	double values[CORE_VALUES_NR]; /* PREPARED: the sums of what all ranks gave. */
	uint32_t image_chunk;          /* As in core_waits. */
	uint64_t image_step;
	struct slots slots[CORE_NODES_MAX];
};

/* Messages. The dispatcher in core.c has checked the sender, and that this node has the role that
 * takes them. */
void step_on_begin(struct ctx *x, const struct core_msg *m);
void step_on_commit(struct ctx *x, const struct core_msg *m);
void step_on_abort(struct ctx *x, const struct core_msg *m);
void step_on_ranks(struct ctx *x, const struct core_msg *m);

/* Events. */
void step_on_staged(struct ctx *x, const struct core_event *e);
void step_on_ready(struct ctx *x, const struct core_event *e);
void step_on_image(struct ctx *x, const struct core_event *e);
void step_on_learned(struct ctx *x, const struct core_event *e);
void step_on_drained(struct ctx *x, const struct core_event *e);
void step_on_damaged(struct ctx *x, const struct core_event *e);
void step_on_gone(struct ctx *x, const struct core_event *e);
void step_on_abandon(struct ctx *x, const struct core_event *e);
void step_on_link_down(struct ctx *x, uint16_t node, const char *why);
void step_on_link_up(struct ctx *x, uint16_t node);
void step_on_tick(struct ctx *x);

/* For the other parts of the core. */
bool step_undecided(const struct step *s); /* Is the part STAGING or PREPARED? */
/* If this node is PREPARED for exactly this record, it now applies it. Returns whether it does. */
bool step_took(struct ctx *x, const struct record *r);
/* For CORE_EV_APPLIED, with what it says about copies. step_resume() has to follow. */
void step_applied(struct ctx *x, bool caught);
/* Enters the attempt of a BEGIN that waited, once nothing is in its way. */
void step_resume(struct ctx *x);
/* Ends the attempt without effect. Does nothing in FREE and APPLYING. Trainers are told the status.
 * It is SHARD_WORLD_CHANGED, except for their own mistakes. */
void step_drop(struct ctx *x, enum shard_status status, const char *why);
/* STAGING only. Drops the attempt, and tells the coordinator until it acts. */
void step_abandon(struct ctx *x, enum shard_status status, const char *why);
/* A coordinator of a newer term asks for the state. An attempt that was not voted for is
 * dropped. */
void step_asked(struct ctx *x);
/* A new view is adopted. No BEGIN of the old one waits any more, and nothing of it is repeated. */
void step_new_view(struct ctx *x);
/* A new generation begins. No record counts, and no BEGIN waits. */
void step_forget(struct ctx *x);
/* Takes the record of a view for which this node did not vote: the seal, or the step at which this
 * node joins. */
struct step_copies {
	/* There is a copy as of the last record here of each chunk that this node shall have. */
	bool complete;
	bool fetched; /* Those that do not count are the same as in the view before. */
};
void step_take_record(struct ctx *x, const struct record *r, const struct step_copies *copies);
/* The coordinator on this node begins or ends a hold. At the end this node votes for a step that is
 * complete. */
void step_hold(struct ctx *x, bool on);
bool step_complete(const struct core *c); /* Has everything come that the vote waits for? */
void step_vote_fill(struct core *c, struct core_vote *v);
void step_check(const struct core *c);

#endif
