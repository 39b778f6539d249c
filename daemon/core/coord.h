/* SPDX-License-Identifier: Apache-2.0 */
/* coord.h: the coordinator. Its memory is one struct, because one event often changes much of it.
 * attempt.c has the attempts and their verdicts, world.c the trainers and worlds, recover.c the
 * views, moves.c those that move chunks, hear.c who hears whom, and coord.c ties them together.
 * Private to daemon/core. */
#ifndef SHARD_CORE_COORD_H
#define SHARD_CORE_COORD_H

#include "core/back.h"
#include "core/copies.h"
#include "core/hear.h"
#include "core/odd.h"

enum coord_state { COORD_OFF, COORD_RECOVER, COORD_PERSIST, COORD_VIEW, COORD_OPEN, COORD_NR };

struct coord_node {
	uint64_t absent_since; /* When its link went down. 0: it is linked. */
	struct view_node who;  /* Who answered ASK. */
	uint32_t generation;   /* The generation that it answered. */
	struct core_id prepared;
	bool answered, is_prepared, view_ok, voted, begun, done, reported;
	/* It catches up, and said with DONE or VIEW_OK that its copies are those of the last
	 * record, in this view. .catches: it said so of some record, so the next attempt waits for
	 * it. */
	bool caught, catches;
	uint32_t heard;          /* The last question .hear that it answered. */
	struct core_waits waits; /* Its last WAITING about the attempt. */
};

struct coord {
	enum coord_state state; /* COORD_OFF: this node does not coordinate. */
	uint64_t term;          /* The term in which it does. */
	struct timer timer;
	struct coord_node node[CORE_NODES_MAX];

	/* attempt.c: the last decision, and the attempt that follows it. */
	bool has_last;
	bool undecided; /* The attempt .id is open. */
	/* A vote has come, so the weights in .world, .skip, .lr, .clip and .values are set. Every
	 * other vote has to say the same. */
	bool has_ranks;
	bool skip;
	uint32_t attempt;   /* The highest number used for the next step. */
	struct record last; /* The last decision, or the seal. */
	struct core_id id;  /* The attempt in hand, or the last one. */
	uint64_t begun_ns;
	/* When a node was last behind in the attempt, or else when the attempt began. From then on
	 * its trainers have step_timeout. */
	uint64_t behind_ns;
	/* How many ranks of the attempt are ready, as far as their nodes have said, and since when
	 * it has been so many. Both count only with straggler_timeout. */
	uint32_t ready_nr;
	uint64_t ready_ns;
	uint64_t stragglers_nr;  /* The trainers that were put out because they were slow. */
	struct core_world world; /* The world of the attempt, with the weights that were voted. */
	double lr[CORE_GROUPS_MAX];
	uint32_t lr_nr;
	bool has_clip;
	double clip, values[CORE_VALUES_NR];
	int64_t bad_tensor;
	int32_t bad_rank;
	struct core_id aborted_id;    /* The last attempt that was aborted. */
	char aborted[CORE_WHY_BYTES]; /* Why it was. */
	enum shard_status aborted_status;

	struct odd odd; /* odd.c: votes that differ. */

	struct reports reports; /* hear.c: links between others. */

	/* world.c: trainers. */
	uint32_t trainers_nr, expelled_nr;
	/* Those that have joined. Those of the last world come first, in rank order. */
	struct core_trainer trainer[CORE_RANKS_MAX];
	/* Those that are put out, until their nodes confirm it. */
	struct core_trainer expelled[CORE_RANKS_MAX];
	char expelled_why[CORE_WHY_BYTES];
	/* When min_world had joined and the first step after a seal could begin. 0: it cannot. */
	uint64_t enough_ns;

	/* hear.c: counts how often a member was missed. Whoever has not answered HEAR with this
	 * number may be gone, too, and its copies are no reason to go on without the one that is
	 * missed. */
	uint32_t hear;

	/* recover.c: views. */
	uint64_t seen_ns; /* What time made due up to here has been taken into account. */
	bool has_view;
	bool want_seal;        /* CORE_EV_WRITTEN came, so the next view seals the model. */
	bool prepared_differs; /* RECOVER: the votes of .prepared differ in what the ranks gave. */
	bool older;            /* RECOVER: a member has a newer view than the disk of this node. */
	bool tune_due;         /* .tune waits for a boundary. */
	bool tune_tell;        /* CORE_ACT_TUNED is due when all have adopted the current view. */
	bool resumes;          /* .tune resumes training after .resumed_step, which diverged. */
	bool checkpoint;       /* There is a checkpoint from which the model can be restored. */
	bool rollback;         /* CORE_EV_ROLLBACK waits until views may change. */
	bool weights_void; /* The rollback needs no checkpoint, because the weights are no good. */
	bool has_restored; /* .restored is set. It came with CORE_EV_WRITTEN. */
	/* The newest view. It is durable, or in COORD_PERSIST on its way to disk. */
	struct core_view view;
	/* How many copies count, in that view, of the chunk that has fewest. */
	uint32_t least;
	/* For how many chunks each node has memory by its placement, and for how many it votes. */
	uint32_t held_nr[CORE_NODES_MAX], votes_nr[CORE_NODES_MAX];
	/* The first chunk that each node votes for. Those of a node mostly lie together, and
	 * whoever looked at all chunks for each vote would spend most of a step's time on that. */
	uint32_t votes_first[CORE_NODES_MAX];
	/* What VIEW carries. A copy, because .view may change within the same call. */
	struct core_view durable;
	struct core_world prepared; /* RECOVER: the world of the newest prepared attempt. */
	struct back back;
	uint64_t seal_step;
	/* The tune that the shell sent. What it says about a resume is ignored. */
	struct core_tune tune;
	uint64_t resumed_step, resumed_skips;
	struct core_restored restored;
	char lost[CORE_WHY_BYTES], order_why[CORE_WHY_BYTES];

	/* moves.c: the last CORE_EV_PLACE. */
	struct placement to;
	uint64_t *to_room;
	bool to_due; /* No view was made of it yet. */
	bool moved;  /* CORE_ACT_MOVED is due when all have adopted the current view. */

	/* coord.c: orders. */
	bool held;       /* CORE_ACT_HELD is in effect. */
	bool keeps_view; /* As CORE_EV_KEEP_VIEW said. */
	uint64_t held_ns;
	/* The rank whose gradient of .damaged_step arrived damaged last. */
	struct core_rank damaged;
	uint64_t damaged_step;
};

/* Messages to the coordinator. */
void coord_on_abandon(struct ctx *x, const struct core_msg *m);

/* Events. */
void coord_on_keep_view(struct ctx *x, const struct core_event *e); /* CORE_EV_KEEP_VIEW. */
void coord_on_hold(struct ctx *x, const struct core_event *e);
void coord_on_kick(struct ctx *x, const struct core_event *e);
void coord_on_link_up(struct ctx *x, uint16_t node);
void coord_on_link_down(struct ctx *x, uint16_t node, const char *why);
void coord_on_tick(struct ctx *x);

void coord_on_lead(struct ctx *x, const struct core_event *e);
void coord_on_resign(struct ctx *x, const struct core_event *e);
/* This node does not coordinate any more. Nothing that it decided is taken back. */
void coord_end(struct ctx *x);

void coord_settle(struct ctx *x);     /* Called at the end of every event. */
bool coord_due(const struct core *c); /* Would coord_settle() do more now? */
uint64_t coord_deadline(const struct core *c);
/* Writes who is waited for. The text is empty if nobody is. */
void coord_waits(const struct core *c, char *text, size_t bytes);
/* Does the next step wait for min_world trainers? */
bool coord_too_few(const struct core *c);
/* Has a linked node not yet said DONE of the last record? */
bool coord_unheard(const struct core *c);
void coord_check(const struct core *c);

#endif
