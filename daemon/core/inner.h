/* SPDX-License-Identifier: Apache-2.0 */
/* inner.h: the memory of one core. Each part owns one field of it and alone writes that field. A
 * part does not look at the fields of the parts above it. There are two exceptions, which ctx.c
 * reads for all parts: the links, and the view that this node has adopted. The memory is flat and
 * has no pointer into itself, so that a copy of the bytes is a copy of the state. Nothing outside
 * daemon/core includes this file, except the simulator and the tests. */
#ifndef SHARD_CORE_INNER_H
#define SHARD_CORE_INNER_H

#include "core/attempt.h"
#include "core/coord.h"
#include "core/core.h"
#include "core/ctx.h"
#include "core/local.h"
#include "core/member.h"
#include "core/recover.h"
#include "core/step.h"
#include "core/world.h"

#include "base/check.h"

/* If two states that must outlive the process differ, at least one of these numbers does
 * (warm.c). */
#define WARM_WORDS 13

struct core {
	struct core_conf conf;
	/* How many chunks each node has memory for, and of how many it is the primary. */
	uint32_t held_nr[CORE_NODES_MAX], primary_nr[CORE_NODES_MAX];
	uint32_t votes_nr; /* How many chunks this node votes for: its copies of them count. */
	/* Nodes to which this one sends reduced gradients, and those from which it gets some. */
	uint64_t grads_to, grads_from;
	/* The offsets of the arrays that follow this struct. */
	size_t at_index, at_staged, at_sumsq, at_finite, at_all_sumsq, at_all_finite, at_voted,
		at_weights, at_ranks, at_values, at_ranks_values;
	uint64_t linked; /* Bits of the nodes with a link, and of this one. core.c sets it. */
	struct link link[CORE_NODES_MAX];
	struct local local;
	struct step step;
	struct member member;
	struct coord coord;
	bool odd; /* CORE_ODD came. The process ends. */
	/* CORE_ACT_BACK or CORE_ACT_AGAIN was given in this generation. The process ends, or stays
	 * because it would take another model along. */
	bool backs;
	bool stopping; /* CORE_EV_STOP came. It is not saved for the next process. */
	bool warm_due; /* The next event has to be CORE_EV_WARM. */
	uint64_t warm_word[WARM_WORDS]; /* The numbers of the state that was saved last. */
	size_t texts_used;
	char texts[CORE_TEXTS_BYTES];
};

static inline void *core_at(struct core *c, size_t at)
{
	return (char *)c + at;
}

#endif
