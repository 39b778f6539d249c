/* SPDX-License-Identifier: Apache-2.0 */
/* event.h: what the shell tells a core, and what the core wants done. Pointers in an event live for
 * the call; pointers in an action until the next call. */
#ifndef SHARD_CORE_EVENT_H
#define SHARD_CORE_EVENT_H

#include "core/msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum core_event_type {
	/* .msg from another node, or from self: delivered by the core itself, never by the caller
	 */
	CORE_EV_MSG = 1,
	CORE_EV_TICK, /* time has passed core_deadline() */
	/* .node was reached over a fresh connection; the memory of this model there is
	 * .incarnation; .why says what became of the memory before it, or is NULL */
	CORE_EV_LINK_UP,
	/* .node .why; .on: the node said that it leaves, and .why is the whole sentence */
	CORE_EV_LINK_DOWN,
	CORE_EV_PERSISTED, /* the view of the last CORE_ACT_PERSIST is on disk */
	CORE_EV_STAGED,  /* .chunk .sumsq .finite .bad_tensor .bad_rank: reduced gradient of a chunk
			    held here       */
	CORE_EV_READY,   /* .session .weight .skip .lr: a local rank called commit or vote_skip   */
	CORE_EV_DRAINED, /* no transfer out of this node of an attempt <= .id is outstanding */
	CORE_EV_APPLIED, /* every chunk here is updated and its image writes completed */
	CORE_EV_JOIN,    /* .trainer, local    */
	CORE_EV_GONE,    /* .trainer .why, local    */
	CORE_EV_ABANDON, /* .session .why, local */
	CORE_EV_DAMAGED, /* .node .chunk .id: its contribution to a chunk held here arrived with a
			    wrong checksum          */
	CORE_EV_STOP, /* this process is about to end, .why: what is undecided and not voted for is
		       * dropped, what this node coordinates aborted, nothing is begun any more */
	/* .on: local ranks cannot begin before .chunk of the image of .step is here, and it is
	 * late. Else: it is here. */
	CORE_EV_IMAGE,
	CORE_EV_WARM, /* the first one after core_init() with what outlived the process: goes on
			 where that stopped, see warm.h */
	/* coordinator only: */
	CORE_EV_WRITTEN, /* all nodes hold all weights of generation .id.generation (0: the one
			  * adopted here); seal as .step, with the counters of .restored if there
			  * are any                                               */
	CORE_EV_HOLD, /* .on: decide nothing until .on is false, so that all weights stay as of one
			 step; CORE_ACT_HELD says which */
	/* .tune from the next step on, which waits for it; CORE_ACT_TUNED when all nodes have
	 * adopted it. .on: a resume, which goes on after the last record here even if that
	 * diverged. The core fills in the step and the skips of a resume, whatever .tune says. */
	CORE_EV_TUNE,
	CORE_EV_KICK,       /* .rank of the world in hand is out of it, .why       */
	CORE_EV_CHECKPOINT, /* .on: there is a checkpoint to come back to if the model is LOST;
			     * after core_init() before anything else. Off while restoring: none was
			     * good, .why: LOST for good, in a generation of its own */
	CORE_EV_ROLLBACK, /* give up the weights as if they were LOST, .why; nothing happens if the
			   * model is not sealed, or if there is no checkpoint, unless .on says that
			   * the weights are void anyway              */
};

struct core_event {
	enum core_event_type type;
	const struct core_msg *msg;
	uint16_t node;
	uint64_t incarnation, session, step;
	uint32_t chunk;
	double sumsq, weight;
	const double *lr; /* [lr_nr] of each group; lr_nr 0: the settings' */
	uint32_t lr_nr;
	bool finite, skip;
	int64_t bad_tensor;
	int32_t bad_rank;
	struct core_id id;
	struct core_trainer trainer;
	const char *why;
	bool on;
	uint32_t rank;
	const struct core_tune *tune;
	const struct core_restored *restored;
};

struct core_restored { /* what a checkpoint knows beside the weights; what a seal without it starts
			  anew */
	uint64_t applied, skipped_in_row;
	struct scaler scaler;
	struct core_tune tune; /* A seal without it keeps the tune. No resume outlives a seal. */
};

enum core_action_type {
	CORE_ACT_SEND = 1, /* .msg to .msg.to; lost messages are the core's business (it repeats),
			      order per link is kept  */
	CORE_ACT_PERSIST,  /* .view to disk, synced; then CORE_EV_PERSISTED. .why: why its weights
			      are gone, or NULL    */
	CORE_ACT_BEGIN,    /* participant is STAGING .id with .world: tell local ranks; their arenas
			      are theirs          */
	CORE_ACT_CREDIT,   /* .node granted slots for .id: contributions of .id may go there   */
	CORE_ACT_OPEN,     /* about to vote: mark the image open before anything that follows     */
	CORE_ACT_APPLY,    /* .record: run the optimizer (or, skipped: only versions move); later
			      CORE_EV_APPLIED        */
	CORE_ACT_RESULT,   /* .record: tell the local ranks of its world   */
	CORE_ACT_ENDED, /* attempt .id is over without effect, .why .status: tell local ranks, take
			   no more pushes    */
	CORE_ACT_SEAL,  /* .record: publish the written master weights as image of .record.step  */
	CORE_ACT_LOST,  /* generation .id.generation begins, nothing older counts, .why: tell all
			 * trainers. .status SHARD_LOST: they  join anew; SHARD_ROLLED_BACK: they
			 * stay, and hear the step with the CORE_ACT_SEAL that follows; the
			 * coordinator's shell brings the weights (CORE_EV_WRITTEN, or
			 * CORE_EV_CHECKPOINT off), anew with each  of these: a coordinator that
			 * starts again while restoring makes one more generation        */
	CORE_ACT_EXPEL, /* .session (local) is out of the world, .why: close it */
	CORE_ACT_LEFT,  /* .session (local), which asked to leave, is out of every world from now on
			 */
	CORE_ACT_HELD,  /* coordinator: nothing after .record is decided until CORE_EV_HOLD is off,
			 * or CORE_ACT_LOST. Nodes may  still apply it  */
	CORE_ACT_TUNED, /* coordinator: the last CORE_EV_TUNE holds on every node */
};

struct core_action {
	enum core_action_type type;
	struct core_msg msg;
	uint16_t node;
	uint64_t session;
	struct core_id id;
	const struct core_world *world;
	const struct record *record;
	const struct core_view *view;
	const char *why;
	enum shard_status status; /* 0: SHARD_WORLD_CHANGED */
};

#define CORE_ACTIONS_MAX (8 * CORE_NODES_MAX + 64)
struct core_out {
	uint32_t nr;
	struct core_action act[CORE_ACTIONS_MAX];
};

#endif
