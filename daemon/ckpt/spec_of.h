/* SPDX-License-Identifier: Apache-2.0 */
/* spec_of.h: what a manifest says, as a definition; and what is looked at in a checkpoint before it
 * is read. */
#ifndef SHARD_CKPT_SPEC_OF_H
#define SHARD_CKPT_SPEC_OF_H

#include "ckpt/op.h"
#include "control/define.h"

/* Makes op's model on every node as its manifest says; op->m is it. ckpt_defined() or
 * ckpt_refused() follows, perhaps before this returns. */
enum shard_status ckpt_spec_define(struct ckpt_op *op, define_made_fn *made, struct err *e);
/* checkpoint_dir for a model that is not defined, of the configuration; empty: none. */
void ckpt_spec_dir(struct server *s, const char *name, char *dir, size_t bytes);
/* Is the model laid out as the manifest has it? SHARD_MISMATCH names the first difference. */
enum shard_status ckpt_restore_compare(const struct model *m, const struct manifest *c,
				       struct err *e);
/* By the owner and mode that the manifest has. SHARD_DENIED says whose it is; who NULL: as over
 * TCP. */
enum shard_status ckpt_may_read(const struct manifest *c, const Shard__Cred *who, const char *path,
				struct err *e);
/* May the model that `by` describes put a checkpoint where `there` is: may its owner change the
 * model that was saved there? SHARD_DENIED says whose both are. */
enum shard_status ckpt_may_replace(const struct manifest *there, const struct manifest *by,
				   const char *path, struct err *e);
/* May the model take these weights by itself: may their owner change it? SHARD_DENIED says whose
 * they are. */
enum shard_status ckpt_may_fill(const struct model *m, const struct manifest *c, const char *path,
				struct err *e);
/* Are its numbers ones that a model can go on from? */
enum shard_status ckpt_counters_check(const struct manifest *c, const char *path, struct err *e);
/* The blobs of a checkpoint, compared with their sums. Blocks. */
enum shard_status ckpt_read_blobs(const char *path, const struct manifest *c,
				  struct ckpt_blob **blobs, uint32_t *blobs_nr, struct err *e);
/* look.c, in a job */
void ckpt_read_manifest(struct ckpt_op *op, const char *name); /* of op->dir, op->tag */
void ckpt_check_files(struct ckpt_op *op); /* every byte, before weights are given up for it */

#endif
