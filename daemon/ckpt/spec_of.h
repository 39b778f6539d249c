/* SPDX-License-Identifier: Apache-2.0 */
/* spec_of.h: turns a manifest into a definition, and checks a checkpoint before it is read. */
#ifndef SHARD_CKPT_SPEC_OF_H
#define SHARD_CKPT_SPEC_OF_H

#include "ckpt/op.h"
#include "control/define.h"

/* Makes the model of the manifest on every node and sets op->m to it. ckpt_defined() or
 * ckpt_refused() follows, perhaps before this returns. */
enum shard_status ckpt_spec_define(struct ckpt_op *op, define_made_fn *made, struct err *e);
/* The checkpoint_dir that the configuration gives to a model that is not defined. Empty: none. */
void ckpt_spec_dir(struct server *s, const char *name, char *dir, size_t bytes);
/* Compares the model's layout with the manifest's. SHARD_MISMATCH names the first difference. */
enum shard_status ckpt_restore_compare(const struct model *m, const struct manifest *c,
				       struct err *e);
/* May this user read the checkpoint, by the owner and mode in its manifest? SHARD_DENIED names its
 * owner. who NULL: somebody over TCP. */
enum shard_status ckpt_may_read(const struct manifest *c, const Shard__Cred *who, const char *path,
				struct err *e);
/* May the owner of the model in `by` replace the checkpoint in `there`, that is, change the model
 * that was saved there? SHARD_DENIED names both owners. */
enum shard_status ckpt_may_replace(const struct manifest *there, const struct manifest *by,
				   const char *path, struct err *e);
/* May the model be restored from this checkpoint without a request, that is, may the owner of the
 * weights change the model? SHARD_DENIED names that owner. */
enum shard_status ckpt_may_fill(const struct model *m, const struct manifest *c, const char *path,
				struct err *e);
/* Checks that a model can go on from the counters in the manifest. */
enum shard_status ckpt_counters_check(const struct manifest *c, const char *path, struct err *e);
/* Reads the blobs of a checkpoint and compares them with their sums. Blocks. */
enum shard_status ckpt_read_blobs(const char *path, const struct manifest *c,
				  struct ckpt_blob **blobs, uint32_t *blobs_nr, struct err *e);
/* look.c. Both run in a job. */
/* Of op->tag in op->place, which is open. */
void ckpt_read_manifest(struct ckpt_op *op, const char *name);
/* Reads and compares every byte, before weights are given up. */
void ckpt_check_files(struct ckpt_op *op);

#endif
