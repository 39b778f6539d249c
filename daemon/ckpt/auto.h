/* SPDX-License-Identifier: Apache-2.0 */
/* auto.h: saves and restores that nobody asked for, how a checkpoint is chosen, and how a save and
 * a restore are begun. */
#ifndef SHARD_CKPT_AUTO_H
#define SHARD_CKPT_AUTO_H

#include "ckpt/op.h"

/* restore.c */
void ckpt_restore_load(struct ckpt_op *op); /* Needs a checked manifest and an unsealed model. */
void ckpt_restore_end(struct ckpt_op *op, const struct err *e); /* e NULL: it succeeded. */
extern const struct ckpt_doing ckpt_restores;
/* auto.c */
/* An operation that reads the weights has ended. If they were LOST meanwhile, this begins the
 * restore, or else the save that was due, if any. */
void ckpt_auto_late(struct model *m);
void ckpt_auto_pick(struct ckpt_op *op); /* Tries the newest checkpoint left in op->dirs. */
void ckpt_auto_next(struct ckpt_op *op); /* The last one tried was bad: tries the next one. */
void ckpt_auto_dirs(struct ckpt_op *op, const struct model *m);
void ckpt_auto_return(struct model *m);
bool ckpt_auto_start(struct model *m, bool again); /* True: it answers the definers later. */
/* pick.c. ckpt_pick() runs in a job. The checkpoint to try next is op->tag in op->place. If there
 * is none, op->st and op->why say why. */
void ckpt_pick(struct ckpt_op *op);
bool ckpt_own(const struct ckpt_run *run, const struct manifest_run *is, uint64_t step);
/* Sets run to the one that goes on from the checkpoint that op has read. */
void ckpt_run_from(struct ckpt_run *run, const struct ckpt_op *op);

/* A model whose coordinator this node has become: led() before its core hears so, leads() after. */
void ckpt_led(struct model *m, const Shard__ModelFile *file, struct core_view *view);
void ckpt_leads(struct model *m);
void ckpt_resigned(struct model *m); /* This node does not coordinate any more. */
/* A start has read the file of the model, or the model was made of it again: there may be a
 * checkpoint for it. */
void ckpt_started(struct model *m);

#endif
