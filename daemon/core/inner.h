/* SPDX-License-Identifier: Apache-2.0 */
/* inner.h: the memory of one core. Each part owns one field of it and is the only one that writes
 * it; the parts below may not look at it, with two exceptions that ctx.c reads for all: the links,
 * and which view this node has adopted. The memory is flat and has no pointer into itself, so that
 * a copy of the bytes is a copy of the state. Nothing outside daemon/core includes this file,
 * except the simulator and the tests. */
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

#define WARM_WORDS 13 /* Numbers that tell one state which must survive from the next: warm.c. */

struct core {
	struct core_conf conf;
	uint32_t held_nr[CORE_NODES_MAX]; /* The chunks of each node. */
	/* Where the arrays behind this struct begin. */
	size_t at_index, at_staged, at_sumsq, at_finite, at_all_sumsq, at_all_finite, at_weights;
	struct link link[CORE_NODES_MAX];
	struct local local;
	struct step step;
	struct member member;
	struct coord coord;
	bool stopping; /* CORE_EV_STOP came. It ends with this process, whatever the memory does. */
	bool warm_due; /* CORE_EV_WARM has to come first. */
	uint64_t warm_word[WARM_WORDS]; /* Of what was saved last. */
	size_t texts_used;
	char texts[CORE_TEXTS_BYTES];
};

static inline void *core_at(struct core *c, size_t at)
{
	return (char *)c + at;
}

#endif
