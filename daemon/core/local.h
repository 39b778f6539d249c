/* SPDX-License-Identifier: Apache-2.0 */
/* local.h: the trainers of this node, as the coordinator is told of them. Private to daemon/core.
 */
#ifndef SHARD_CORE_LOCAL_H
#define SHARD_CORE_LOCAL_H

#include "core/ctx.h"

struct local_trainer { /* Kept until the coordinator has heard of its end. */
	struct core_trainer t;
	bool used, live;
	bool told; /* The coordinator has heard what is written here. */
	char why[48];
};

struct local {
	struct timer timer; /* Repeats what the coordinator has not heard. */
	struct local_trainer trainer[CORE_RANKS_MAX];
};

/* Events. */
void local_join(struct ctx *x, const struct core_event *e);
/* The trainer leaves or is gone: what the attempt in hand hears of it, or NULL if nothing is new.
 */
const char *local_gone(struct ctx *x, const struct core_event *e);

/* Messages, and calls of the coordinator on this node. */
void local_on_join(struct ctx *x, const struct core_msg *m); /* The coordinator has heard of it. */
void local_on_gone(struct ctx *x, const struct core_msg *m); /* It is out, or expelled. */

/* There is a new coordinator, or a new link to it: all is told again. */
void local_tell_again(struct ctx *x);
void local_on_tick(struct ctx *x);
/* NULL: every local rank of the world is here and stays. Otherwise a sentence, and the coordinator
 * is told who is not. */
const char *local_missing(struct ctx *x, const struct core_world *w);
void local_check(const struct core *c);

#endif
