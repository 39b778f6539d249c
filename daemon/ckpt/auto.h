/* SPDX-License-Identifier: Apache-2.0 */
/* auto.h: restores that nobody asked for, and which checkpoint they take. */
#ifndef SHARD_CKPT_AUTO_H
#define SHARD_CKPT_AUTO_H

#include "ckpt/op.h"

/* auto.c */
void ckpt_auto_pick(struct ckpt_op *op); /* the newest that is left in op->dirs */
void ckpt_auto_next(struct ckpt_op *op); /* that one was bad */
void ckpt_auto_dirs(struct ckpt_op *op, const struct model *m);
void ckpt_auto_return(struct model *m);
bool ckpt_auto_start(struct model *m, bool again); /* true: it answers the definers */
/* pick.c, in a job: the next one to try is op->tag of op->place, or op->st and .why say why not */
void ckpt_pick(struct ckpt_op *op);
bool ckpt_own(const struct ckpt_run *run, const struct manifest_run *is, uint64_t step);
/* The run that goes on from the checkpoint which op has read. */
void ckpt_run_from(struct ckpt_run *run, const struct ckpt_op *op);

#endif
