/* SPDX-License-Identifier: Apache-2.0 */
/* msg.h: what the cores of a model's nodes say to each other: votes, views, answers, and the
 * messages that carry them. */
#ifndef SHARD_CORE_MSG_H
#define SHARD_CORE_MSG_H

#include "core/record.h"
#include "core/view.h"

#include <stdbool.h>
#include <stdint.h>

/* What a node's vote says (DESIGN section 5): one (sum of squares, finite) per chunk it holds, in
 * ascending chunk order. */
struct core_vote {
	const double *sumsq;   /* [chunks_nr] */
	const uint8_t *finite; /* [chunks_nr], 0 or 1 */
	uint32_t chunks_nr;    /* chunks that the voter holds */
	const double *weights; /* [ranks_nr], local ranks of the attempt's world in rank order */
	uint32_t ranks_nr;
	const double *lr;   /* [lr_nr] of each group, as all local ranks gave it */
	uint32_t lr_nr;     /* 0: they gave none */
	bool skip;          /* a local rank voted to skip */
	int64_t bad_tensor; /* first non-finite gradient seen here, -1: none */
	int32_t bad_rank;
};

struct core_view { /* durable before any member hears of it */
	uint64_t term;
	uint32_t seq, generation;
	struct view_members members;
	/* By slot, of each member's memory of this model: a number that is drawn at random when the
	 * memory is made and that no other memory has. They have no order. 0: not known yet. */
	uint64_t incarnation[CORE_NODES_MAX];
	bool sealed;    /* record is valid: the model has weights as of record.step */
	bool restoring; /* not sealed: the coordinator brings the weights back from a checkpoint */
	bool lost;      /* not sealed, and it was: its weights are gone */
	struct record record; /* the last decided step, or the seal */
	struct core_tune tune;
};

struct core_answer { /* to ASK(term) */
	uint64_t incarnation;
	uint64_t term; /* The view that was adopted here is number (term, seq); 0: none was. */
	uint32_t seq;
	uint32_t generation; /* of the state held here; 0: nothing held */
	bool has_record, prepared;
	struct record record; /* last record applied or being applied here */
	struct core_id id;    /* of the prepared attempt */
	struct core_vote vote;
	struct core_world world; /* of the prepared attempt */
};

enum core_op { /* between nodes; CORE_MSG_NR bounds what a decoder accepts */
	       CORE_ASK =
		       1, /* coordinator -> all: heed nothing below .id.term; say what you hold   */
	       CORE_ANSWER,  /* -> coordinator */
	       CORE_VIEW,    /* coordinator -> all, after it is durable; resolves PREPARED by its
				record           */
	       CORE_VIEW_OK, /* -> coordinator */
	       CORE_BEGIN, /* coordinator -> all: attempt .id with .world, after record .record   */
	       CORE_GRANT, /* node -> node: my landing slots for .id are yours   */
	       CORE_VOTE,  /* -> coordinator: PREPARED    */
	       CORE_COMMIT,  /* coordinator -> all: .record  */
	       CORE_ABORT,   /* coordinator -> all: .id is over, .why   */
	       CORE_DONE,    /* -> coordinator: .id applied (or skipped) here    */
	       CORE_DRAINED, /* node -> node: nothing of .id or older is on its way from me to you
				any more        */
	       CORE_JOIN,    /* node -> coordinator: .trainer wants in; back: heard    */
	       CORE_GONE, /* node -> coordinator: .trainer left (.leave) or was lost, .why; back: it
			     is out     */
	       CORE_ABANDON, /* node -> coordinator: dropped .id before it voted (bad gradients, a
				lost link), .why */
	       CORE_WAITING, /* node -> coordinator: whom .id waits for here: .waits; coordinator ->
				all: .why     */
	       CORE_MSG_NR
};

struct core_trainer {
	uint64_t session; /* unique on its node for the node's incarnation */
	uint32_t pid;
	int32_t hint; /* rank it would like, -1: any */
	uint16_t node;
	bool leave; /* GONE: asked to leave, at a boundary */
};

struct core_waits { /* bit sets by rank in the attempt's world and by node */
	uint64_t ranks[(CORE_RANKS_MAX + 63) / 64];
	uint64_t nodes;
	uint32_t chunks_staged, chunks_nr;
	uint32_t image_chunk; /* its ranks need it to begin: chunk + 1; 0: they need none */
	uint64_t image_step;
};

struct core_msg {
	enum core_op op;
	uint16_t from, to; /* nodes; from is checked by the link, never taken from the body */
	uint64_t from_incarnation; /* of the sender's memory, as the link was told */
	struct core_id id;
	/* what an op does not name is zero */
	const struct core_world *world;
	const struct record *record;
	const struct core_view *view;
	const struct core_answer *answer;
	struct core_vote vote;
	struct core_trainer trainer;
	struct core_waits waits;
	const char *why; /* one sentence, may be NULL */
	enum shard_status
		status; /* of ABORT and ABANDON: what trainers are told; 0: SHARD_WORLD_CHANGED */
};

#endif
