/* SPDX-License-Identifier: Apache-2.0 */
/* recover.h: the views of the coordinator. It makes them for recovery, for the seal, for members
 * that start again, and to carry out orders. Private to daemon/core. */
#ifndef SHARD_CORE_RECOVER_H
#define SHARD_CORE_RECOVER_H

#include "core/ctx.h"

/* This node coordinates from now on, in this term. view is what is durable. NULL: nothing is. */
void recover_init(struct core *c, uint64_t term, const struct core_view *view);
/* Would a new view name two members by the same uuid? Then one of them has a copy of the other's
 * state folder, and there is no new view and no new attempt until an operator has ended that. */
bool recover_twins(const struct core *c, uint16_t *a, uint16_t *b);
bool recover_differ(const struct core *c); /* No two of them have the same uuid. */

/* Does a change of the view wait for the next boundary? No attempt begins then. */
bool recover_boundary(const struct core *c);

/* Messages to the coordinator. */
void recover_on_answer(struct ctx *x, const struct core_msg *m);
void recover_on_view_ok(struct ctx *x, const struct core_msg *m);

/* Events of the coordinator. */
void recover_on_persisted(struct ctx *x, const struct core_event *e);
void recover_on_written(struct ctx *x, const struct core_event *e);
void recover_on_tune(struct ctx *x, const struct core_event *e);
void recover_on_checkpoint(struct ctx *x, const struct core_event *e);
void recover_on_rollback(struct ctx *x, const struct core_event *e);

/* For coord.c. */
void recover_settle(struct ctx *x);     /* Takes every change of the view that is due. */
bool recover_due(const struct core *c); /* Would recover_settle() do more now? */
/* Sends ASK or VIEW if that node owes an answer. */
void recover_send(struct ctx *x, uint16_t node);
/* When the chunks of an absent node are given up. */
uint64_t recover_deadline(const struct core *c);
void recover_check(const struct core *c);

#endif
