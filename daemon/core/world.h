/* SPDX-License-Identifier: Apache-2.0 */
/* world.h: the trainers that the coordinator knows, and the worlds made of them. Private to
 * daemon/core. */
#ifndef SHARD_CORE_WORLD_H
#define SHARD_CORE_WORLD_H

#include "core/ctx.h"

/* Messages to the coordinator. */
void world_on_join(struct ctx *x, const struct core_msg *m);
void world_on_gone(struct ctx *x, const struct core_msg *m);

/* For coord.c. */
void world_lost_node(struct ctx *x, uint16_t node, const char *why);
void world_repeat(
	struct ctx *x); /* Tells again each node that has not confirmed that a trainer is out. */
void world_sweep(struct ctx *x); /* Between attempts: takes out the trainers that asked to leave. */
/* Takes a rank out and tells its node. Returns false if the trainer of that rank has not joined. */
bool world_expel(struct ctx *x, const struct core_world *w, uint32_t rank, const char *why);
/* The same for each trainer of this process of that node, in the world or not. */
void world_expel_process(struct ctx *x, uint16_t node, uint32_t pid, const char *why);
/* Has this trainer joined, and has somebody who joined asked for this rank? */
bool world_joined(const struct core *c, uint16_t node, uint64_t session);
bool world_asked(const struct core *c, uint32_t rank);
bool world_hinted(const struct core *c); /* Has each one asked for another rank < min_world? */
bool world_enough(const struct core *c);
/* Does the first step wait for trainers that may still join? world_look() has to come before, at
 * the end of every event. */
bool world_gathers(const struct core *c);
void world_look(struct ctx *x);
uint64_t world_deadline(const struct core *c); /* When that is over. UINT64_MAX: it is. */
/* Returns false if fewer than min_world trainers have joined. */
bool world_make(struct core *c, struct core_world *w);
void world_check(const struct core *c);

#endif
