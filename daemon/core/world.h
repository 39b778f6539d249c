/* SPDX-License-Identifier: Apache-2.0 */
/* world.h: the trainers that the coordinator knows, and the worlds made of them. Private to
 * daemon/core. */
#ifndef SHARD_CORE_WORLD_H
#define SHARD_CORE_WORLD_H

#include "core/ctx.h"

/* Messages to the coordinator. */
void world_on_join(struct ctx *x, const struct core_msg *m);
void world_on_gone(struct ctx *x, const struct core_msg *m);

/* For the parts above. */
void world_lost_node(struct ctx *x, uint16_t node, const char *why);
void world_repeat(
	struct ctx *x); /* Tells nodes that may not know that a trainer of theirs is out. */
void world_sweep(struct ctx *x); /* Between attempts: takes out the trainers that asked to leave. */
/* Takes a rank out and tells its node. False: it is not there. */
bool world_expel(struct ctx *x, const struct core_world *w, uint32_t rank, const char *why);
bool world_enough(const struct core *c);
bool world_make(struct core *c, struct core_world *w); /* False: there are fewer than min_world. */
void world_check(const struct core *c);

#endif
