/* SPDX-License-Identifier: Apache-2.0 */
/* coord.h: the coordinator. Its memory is one struct, because one event often touches all of it:
 * attempts and their verdicts (attempt.c), trainers and worlds (world.c), views (recover.c), and
 * what ties them together (coord.c). Private to daemon/core. */
#ifndef SHARD_CORE_COORD_H
#define SHARD_CORE_COORD_H

#include "core/ctx.h"

enum coord_state { COORD_OFF, COORD_RECOVER, COORD_PERSIST, COORD_VIEW, COORD_OPEN, COORD_NR };

struct coord_node {
	uint64_t absent_since; /* 0: it is linked. */
	uint64_t incarnation;  /* That answered. */
	uint32_t generation;   /* That it answered. */
	struct core_id prepared;
	bool answered, is_prepared, view_ok, voted, begun, done, reported;
	struct core_waits waits; /* Its last report about the attempt. */
};

struct coord {
	enum coord_state state;
	struct timer timer;
	struct coord_node node[CORE_NODES_MAX];

	/* The last decision, and the attempt that follows it: attempt.c. */
	bool has_last;
	bool undecided; /* .id is open. */
	bool skip;
	bool has_lr;        /* .lr counts. It is that of the first node with ranks that voted. */
	uint32_t attempt;   /* The highest number used for the next step. */
	struct record last; /* The last decision, or the seal. */
	struct core_id id;  /* The attempt in hand, or the last one. */
	uint64_t begun_ns;
	uint64_t behind_ns; /* When a node was last behind in it, or its beginning: from then on its
			       trainers have step_timeout. */
	struct core_world world; /* Of the attempt, with the weights as they were voted. */
	double lr[CORE_GROUPS_MAX];
	uint32_t lr_nr, lr_rank;
	int64_t bad_tensor;
	int32_t bad_rank;
	char aborted[CORE_WHY_BYTES]; /* Why the last attempt was aborted. */
	enum shard_status aborted_status;

	/* Trainers: world.c. */
	uint32_t trainers_nr, expelled_nr;
	struct core_trainer trainer[CORE_RANKS_MAX]; /* Joined: first the last world in rank order,
							then the others. */
	struct core_trainer
		expelled[CORE_RANKS_MAX]; /* Their nodes have not said that they heard. */
	char expelled_why[CORE_WHY_BYTES];

	/* Views: recover.c. */
	bool has_view;
	bool want_seal;        /* CORE_EV_WRITTEN came: the next view seals the model. */
	bool prepared_differs; /* RECOVER: the votes of .prepared differ in the learning rate. */
	bool older;            /* RECOVER: a member has a newer view than this disk. */
	bool tune_due;         /* .tune waits for a boundary. */
	bool tune_tell;        /* CORE_ACT_TUNED is due when all have adopted the view in hand. */
	bool resumes;          /* .tune resumes after .resumed_step, which diverged. */
	bool checkpoint;       /* There is one to come back to. */
	bool rollback;         /* CORE_EV_ROLLBACK waits until views may change. */
	bool weights_void; /* The rollback needs no checkpoint: the weights are no good anyway. */
	bool has_restored; /* .restored counts. It came with CORE_EV_WRITTEN. */
	struct core_view view; /* Durable, or in COORD_PERSIST on its way to disk. */
	/* What VIEW carries. In the same call .view may become the next one. */
	struct core_view durable;
	struct core_world prepared; /* RECOVER: of the newest prepared attempt. */
	uint64_t seal_step;
	struct core_tune tune; /* As the shell sent it. What it says of a resume does not count. */
	uint64_t resumed_step, resumed_skips;
	struct core_restored restored;
	char lost[CORE_WHY_BYTES], order_why[CORE_WHY_BYTES];

	/* Orders, and what ties the parts together: coord.c. */
	bool held; /* CORE_ACT_HELD was given. */
	uint64_t held_ns;
	struct core_rank damaged; /* Whose gradient of .damaged_step arrived damaged last. */
	uint64_t damaged_step;
};

/* Of the view in hand, which may be ahead of what this node has adopted. */
const struct view_members *coord_members(const struct core *c);

/* Messages to the coordinator. */
void coord_on_abandon(struct ctx *x, const struct core_msg *m);

/* Events. */
void coord_on_hold(struct ctx *x, const struct core_event *e);
void coord_on_kick(struct ctx *x, const struct core_event *e);
void coord_on_link_up(struct ctx *x, uint16_t node);
void coord_on_link_down(struct ctx *x, uint16_t node, const char *why);
void coord_on_tick(struct ctx *x);

void coord_settle(struct ctx *x);     /* At the end of every event. */
bool coord_due(const struct core *c); /* coord_settle() would do more now. */
uint64_t coord_deadline(const struct core *c);
/* Who is waited for, in words. The empty text: nobody is. */
void coord_waits(const struct core *c, char *text, size_t bytes);
bool coord_unheard(const struct core *c); /* A linked node has not said DONE of the last record. */
void coord_check(const struct core *c);

#endif
