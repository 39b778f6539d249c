/* SPDX-License-Identifier: Apache-2.0 */
/* event.h: the events that the shell gives to a core. A pointer in an event lives for the call. */
#ifndef SHARD_CORE_EVENT_H
#define SHARD_CORE_EVENT_H

#include "core/msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum core_event_type {
	/* .msg came from another node. The core itself delivers messages from this node. */
	CORE_EV_MSG = 1,
	CORE_EV_TICK, /* The time that core_deadline() named has come. */
	/* A new connection to .node is up. .who is the node there, with its memory of this model.
	 * .why says what became of the memory before it, or is NULL. */
	CORE_EV_LINK_UP,
	/* The link to .node is down, and .why is the reason. .on: the node said that it stops, and
	 * .why is the whole sentence. */
	CORE_EV_LINK_DOWN,
	/* The view of the last CORE_ACT_PERSIST is durable. If coordinators are elected, .id has
	 * its term and seq. A view that does not become durable is for the shell to deal with. It
	 * resigns. */
	CORE_EV_PERSISTED,
	/* The gradient of .chunk, which this node holds, is reduced. .sumsq, .finite, .bad_tensor
	 * and .bad_rank describe it. .on: its primary said something else of it. This node then
	 * does not vote for the attempt, but says what it found. */
	CORE_EV_STAGED,
	/* The local rank of .session called commit or vote_skip, with .weight, .skip, .lr,
	 * .clip and .values. */
	CORE_EV_READY,
	CORE_EV_DRAINED, /* No transfer of an attempt up to .id is leaving this node any more. */
	/* Every chunk that this node has is updated, as far as it has a copy, its image writes are
	 * complete, and no transfer of the attempt is leaving this node any more. A recovery may
	 * have decided the step without a node to which one still was on its way. .on: this node
	 * catches up, and has a copy of every chunk now. */
	CORE_EV_APPLIED,
	/* The copies that CORE_ACT_LEARN asked for are complete, at record .id. */
	CORE_EV_LEARNED,
	CORE_EV_JOIN, /* The local .trainer wants to join. */
	CORE_EV_GONE, /* The local .trainer leaves (.trainer.leave) or is lost, because of .why. */
	/* The local rank of .session gives the attempt up, because of .why. .differ: it does so for
	 * all local ranks, because what they pushed does not fit together. */
	CORE_EV_ABANDON,
	/* The contribution of .node to .chunk, or its reduced gradient if that node is the primary,
	 * arrived with a wrong checksum in attempt .id. */
	CORE_EV_DAMAGED,
	/* This process is about to end, because of .why. The core drops the attempt in hand if this
	 * node has not voted, aborts it if this node coordinates it, and begins no further one. */
	CORE_EV_STOP,
	/* .on: local ranks cannot begin until .chunk of the image of .step is here, and it is late.
	 * Off: they wait for no chunk any more. */
	CORE_EV_IMAGE,
	/* The first event after core_init() was given saved state. The core resumes from that state
	 * (warm.h). */
	CORE_EV_WARM,
	/* This node was elected, in term .id.term, which no other node ever has, and .view is what
	 * it read as durable when it began to lead. NULL: there was none. From now on it
	 * coordinates. CORE_ACT_RESIGNED follows at once if a higher term is known here. */
	CORE_EV_LEAD,
	CORE_EV_RESIGN, /* This node does not lead any more. CORE_ACT_RESIGNED follows. */
	/* The events below are for the coordinator only. */
	/* All nodes hold all weights of generation .id.generation (0: the one that is adopted
	 * here). The core seals them as .step, with the counters of .restored unless that is
	 * NULL. */
	CORE_EV_WRITTEN,
	/* .on: decide nothing until the same event comes with .on false, so that all weights stay
	 * as of one step. CORE_ACT_HELD says which step. */
	CORE_EV_HOLD,
	/* .tune holds from the next step on, and that step waits for it. CORE_ACT_TUNED follows
	 * when all nodes have adopted it. .on: it is a resume, so training goes on even if the last
	 * record here diverged. The core ignores what .tune says about the step and the skips of a
	 * resume and fills them in itself. */
	CORE_EV_TUNE,
	/* .on: no view can be made durable now, so training goes on in the one that there is. What
	 * can wait waits until the same event comes with .on false: copies that count again, nodes
	 * that join, moves and a tune. */
	CORE_EV_KEEP_VIEW,
	/* Put .rank out of the world in hand, because of .why. .on: every trainer that has joined
	 * with the .pid and .node of .trainer instead, whether or not it is in the world. */
	CORE_EV_KICK,
	/* .on: there is a checkpoint from which the model can be restored if it is LOST. The shell
	 * says so right after core_init() and after CORE_EV_LEAD. Off while restoring: no
	 * checkpoint was good, because of .why. The model is then LOST for good, in a generation of
	 * its own. */
	CORE_EV_CHECKPOINT,
	/* Give the weights up as if they were LOST, because of .why. Nothing happens if the model
	 * is not sealed. Nothing happens without a checkpoint either, unless .on says that the
	 * weights are void anyway. */
	CORE_EV_ROLLBACK,
	/* Move the chunks so that they lie as .to says, which has .primary and .holders. Each node
	 * that gets a chunk has memory for it already. It comes at any time, also while chunks
	 * move: the last one counts. To stop a move, give the table from which it began. .room has
	 * a word for each chunk, which the core may fill. All of these arrays stay as they are for
	 * as long as a view may name them. CORE_ACT_MOVED follows (moves.h). */
	CORE_EV_PLACE,
};

struct core_event {
	enum core_event_type type;
	const struct core_msg *msg;
	uint16_t node;
	struct view_node who;
	uint64_t session, step;
	uint32_t chunk;
	double sumsq, weight;
	/* [lr_nr] One learning rate for each group. lr_nr 0: those of the settings count. */
	const double *lr;
	uint32_t lr_nr;
	const double *clip;   /* READY: the largest norm that it gave, or NULL. */
	const double *values; /* [CORE_VALUES_NR] READY: what it gives with the step, or NULL. */
	bool finite, skip, differ;
	int64_t bad_tensor;
	int32_t bad_rank;
	struct core_id id;
	struct core_trainer trainer;
	const char *why;
	bool on;
	uint32_t rank;
	const struct core_tune *tune;
	const struct core_restored *restored;
	const struct core_view *view;
	const struct placement *to;
	uint64_t *room;
};

/* What a checkpoint knows beside the weights. A seal without it starts these values anew. */
struct core_restored {
	uint64_t applied, skipped_in_row;
	struct scaler scaler;
	struct core_tune tune; /* A seal without it keeps the tune. No resume outlives a seal. */
};

#endif
