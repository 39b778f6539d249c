/* SPDX-License-Identifier: Apache-2.0 */
/* attempt.h: the attempts of the coordinator and their verdicts. Private to daemon/core. */
#ifndef SHARD_CORE_ATTEMPT_H
#define SHARD_CORE_ATTEMPT_H

#include "core/ctx.h"

/* Messages to the coordinator. */
void attempt_on_vote(struct ctx *x, const struct core_msg *m);
void attempt_on_done(struct ctx *x, const struct core_msg *m);
void attempt_on_waiting(struct ctx *x, const struct core_msg *m);

/* For core.c, coord.c, world.c and recover.c. */
void attempt_begin(struct ctx *x);
/* Ends an undecided attempt without effect. */
void attempt_abort(struct ctx *x, enum shard_status status, const char *why);
void attempt_send_begin(struct ctx *x, uint16_t node);
void attempt_send_commit(struct ctx *x, uint16_t node);
/* Is the message about the attempt in hand, and from a member of the open view? If it is about an
 * attempt that is over, the sender is told how that one ended. */
bool attempt_is_of(struct ctx *x, const struct core_msg *m);
void attempt_no_votes(struct core *c); /* None is merged yet. */
/* Adds the vote of a node to the merged votes, and the weights of the first one to w. Returns false
 * if the vote is malformed. *differs becomes a sentence if the node says otherwise than the nodes
 * before it what the ranks gave or what the gradient of a chunk is, else NULL. */
bool attempt_scatter(struct core *c, uint16_t node, const struct core_vote *v, struct core_world *w,
		     const char **differs);
/* Makes the record after the last one from the votes that attempt_scatter() merged. */
void attempt_decide(struct core *c, const struct core_id *id, const struct core_world *w);
bool attempt_all_linked(const struct core *c);
bool attempt_all_done(const struct core *c);
/* Has each member given a vote, whether it counts or not? */
bool attempt_all_spoke(const struct core *c);
void attempt_check(const struct core *c);

#endif
