/* SPDX-License-Identifier: Apache-2.0 */
/* local.h: the trainers of this node, and what the coordinator knows of them. Private to
 * daemon/core. */
#ifndef SHARD_CORE_LOCAL_H
#define SHARD_CORE_LOCAL_H

#include "core/ctx.h"

/* An entry is kept until the coordinator has confirmed the end of its trainer. */
struct local_trainer {
	struct core_trainer t;
	bool used, live;
	bool told; /* The coordinator has confirmed this entry. */
	char why[48];
};

struct local {
	struct timer timer; /* Repeats what the coordinator has not confirmed. */
	struct local_trainer trainer[CORE_RANKS_MAX];
};

/* Events. */
void local_join(struct ctx *x, const struct core_event *e);
/* The trainer leaves or is gone. Returns the reason to give for dropping the attempt in hand, or
 * NULL if nothing is new. */
const char *local_gone(struct ctx *x, const struct core_event *e);

/* Messages of the coordinator. The coordinator on this node calls these directly. */
/* The coordinator has confirmed the JOIN. */
void local_on_join(struct ctx *x, const struct core_msg *m);
/* The coordinator has confirmed the GONE, or expels the trainer. */
void local_on_gone(struct ctx *x, const struct core_msg *m);

/* There is a new coordinator, or a new link to it. It is told of all trainers again. */
void local_tell_again(struct ctx *x);
void local_on_tick(struct ctx *x);
/* Returns NULL if every local rank of the world is here and stays. Otherwise tells the coordinator
 * which ones do not, and returns a sentence. */
const char *local_missing(struct ctx *x, const struct core_world *w);
void local_check(const struct core *c);

#endif
