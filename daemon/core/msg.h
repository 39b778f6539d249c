/* SPDX-License-Identifier: Apache-2.0 */
/* msg.h: what the cores of a model's nodes say to each other. It has votes, views and answers, and
 * the messages that carry them. */
#ifndef SHARD_CORE_MSG_H
#define SHARD_CORE_MSG_H

#include "core/record.h"
#include "core/place.h"

#include <stdbool.h>
#include <stdint.h>

/* The vote of a node (DESIGN section 5). It has a sum of squares and a finite flag for each chunk
 * that the node holds, in ascending chunk order. */
struct core_vote {
	const double *sumsq;   /* [chunks_nr] */
	const uint8_t *finite; /* [chunks_nr] 0 or 1. */
	uint32_t chunks_nr;    /* How many chunks the voter holds. */
	/* [ranks_nr] Of all ranks of the attempt's world, in rank order, so that the votes of any
	 * nodes that hold every chunk are enough to decide the step. RANKS has those of the
	 * sender's ranks only, and neither sums nor a bad tensor. */
	const double *weights;
	uint32_t ranks_nr;
	const double *lr; /* [lr_nr] One for each group, as all these ranks gave it. */
	uint32_t lr_nr;   /* 0: they gave none. */
	bool has_clip;    /* All these ranks gave .clip. Otherwise none did, and it is 0. */
	double clip;      /* The largest norm, for this step alone. 0: it is not clipped. */
	/* [values_nr] The sums of what all ranks gave with the step (record_values). RANKS has
	 * what each rank gave, one after the other. */
	const double *values;
	uint32_t values_nr; /* A multiple of CORE_VALUES_NR. 0: all are zeros. */
	bool skip;          /* A rank of the world voted to skip the step. */
	int64_t bad_tensor; /* The tensor of the first non-finite gradient here. -1: none. */
	int32_t bad_rank;
};

struct core_view { /* It is durable before any member hears of it. */
	uint64_t term;
	uint32_t seq, generation;
	/* The uuid of each is known. */
	struct view_members members;
	/* Which nodes hold each chunk. Its tables belong to the shell, which keeps them for as long
	 * as a core may have a view that names them. Its .gone are all slots without a member. */
	struct placement place;
	bool sealed;    /* The record is valid, and the model has the weights of record.step. */
	bool restoring; /* Not sealed: the coordinator restores the weights from a checkpoint. */
	bool lost;      /* Not sealed any more: the weights are gone. */
	struct record record; /* The last decided step, or the seal. */
	struct core_tune tune;
};

struct core_answer { /* The answer to ASK. */
	uint64_t incarnation;
	uint64_t term; /* (term, seq) is the view that is adopted here. Term 0: none is. */
	uint32_t seq;
	/* The generation of the state that is held here. 0: nothing is held. */
	uint32_t generation;
	bool has_record, prepared;
	struct record record; /* The last record that is applied, or is being applied, here. */
	struct core_id id;    /* The prepared attempt. */
	struct core_vote vote;
	struct core_world world; /* The world of the prepared attempt. */
};

/* Messages between nodes. A decoder accepts numbers below CORE_MSG_NR only. */
enum core_op {
	/* Coordinator to all: ignore every term below .id.term, and say what you hold. */
	CORE_ASK = 1,
	CORE_ANSWER, /* To the coordinator: .answer. */
	/* Coordinator to all, once .view is durable. Its record is the verdict on a PREPARED
	 * attempt. */
	CORE_VIEW,
	CORE_VIEW_OK, /* To the coordinator: the view is adopted, .caught. */
	/* Coordinator to all: attempt .id with .world begins, after record .record. */
	CORE_BEGIN,
	/* Node to node: I am STAGING .id. If I hold chunks, you may use my landing slots for it.
	 * Tell me of your ranks. */
	CORE_GRANT,
	CORE_VOTE,   /* To the coordinator: this node is PREPARED, with .vote. */
	CORE_COMMIT, /* Coordinator to all: .record is decided. */
	CORE_ABORT,  /* Coordinator to all: .id is over without effect, because of .why. */
	CORE_DONE,   /* To the coordinator: .id is applied (or skipped) here, .caught. */
	/* Node to node: nothing of .id or of an older attempt is on its way from me to you
	 * any more. */
	CORE_DRAINED,
	/* Node to coordinator: .trainer wants to join. Back: that is confirmed. */
	CORE_JOIN,
	/* Node to coordinator: .trainer wants to leave (.leave) or was lost, because of
	 * .why. Back: it is out of the world. */
	CORE_GONE,
	/* Node to coordinator: this node dropped .id before it voted, because of .why (bad
	 * gradients, a lost link). */
	CORE_ABANDON,
	/* Node to coordinator: .waits says what .id waits for here. Coordinator to all: .why
	 * says it. */
	CORE_WAITING,
	/* Node to node, the answer to GRANT: all ranks of this node are ready, with .vote. */
	CORE_RANKS,
	/* Coordinator to all: answer now. .id.step is the number of the question. */
	CORE_HEAR,
	/* To the coordinator, with the .id of the question and the .seq of the view here: .misses.
	 * Also unasked, when a link to another node goes down or comes up. */
	CORE_HEARD,
	/* Coordinator to a node: in attempt .id your votes for copies were not those of others, as
	 * .why says. No view needs your copies any more. Give them up and end. */
	CORE_ODD,
	/* To the coordinator: what I have is of my disk, with record .id. To a node: go back to
	 * that record (back.h). */
	CORE_BACK,
	CORE_MSG_NR
};

struct core_trainer {
	uint64_t session; /* Unique on its node for the node's incarnation. */
	uint32_t pid;
	int32_t hint; /* The rank that it would like. -1: any. */
	uint16_t node;
	bool leave; /* GONE: it asked to leave at a boundary. */
};

/* What an attempt waits for. The bits are ranks of its world, and nodes. */
struct core_waits {
	uint64_t ranks[(CORE_RANKS_MAX + 63) / 64];
	uint64_t nodes;
	uint32_t chunks_staged, chunks_nr;
	/* The chunk that its ranks need to begin, plus 1. 0: they need none. */
	uint32_t image_chunk;
	uint64_t image_step;
};

struct core_msg {
	enum core_op op;
	uint16_t from, to; /* Nodes. The shell sets .from, which is never taken from the body. */
	/* Names the sender's memory of this model. The shell sets it, and it is never taken from
	 * the body. */
	uint64_t from_incarnation;
	struct core_id id;
	/* HEARD, VIEW_OK and ANSWER: bits of the nodes to which the sender has no link. */
	uint64_t misses;
	/* The sender catches up, and all of its copies are those of its last record. */
	bool caught;
	/* VOTE: it does not count, and the sender is not PREPARED: the gradient of a chunk has
	 * another sum of squares there than its primary said. The sums are what the sender found.
	 * ABANDON: a gradient arrived damaged, by no single rank. ANSWER: it is of a disk. */
	bool differs;
	/* A field that an op does not use is zero. */
	const struct core_world *world;
	const struct record *record;
	const struct core_view *view;
	const struct core_answer *answer;
	struct core_vote vote;
	struct core_trainer trainer;
	struct core_waits waits;
	bool too_few; /* WAITING of the coordinator: fewer than min_world trainers have joined. */
	const char *why; /* One sentence, or NULL. */
	enum shard_status
		status; /* ABORT and ABANDON: what trainers are told. 0: SHARD_WORLD_CHANGED. */
};

#endif
