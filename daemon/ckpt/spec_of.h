/* SPDX-License-Identifier: Apache-2.0 */
/* spec_of.h: what a manifest says, as a definition. */
#ifndef SHARD_CKPT_SPEC_OF_H
#define SHARD_CKPT_SPEC_OF_H

#include "ckpt/op.h"

/* Makes op's model on every node as its manifest says; op->m is it. ckpt_defined() or ckpt_refused() follows, perhaps before this returns. */
enum shard_status ckpt_spec_define(struct ckpt_op *op, struct err *e);
/* checkpoint_dir for a model that is not defined, of the configuration; empty: none. */
void ckpt_spec_dir(struct server *s, const char *name, char *dir, size_t bytes);
/* Are its numbers ones that a model can go on from? */
enum shard_status ckpt_counters_check(const struct manifest *c, const char *path, struct err *e);
/* The blobs of a checkpoint, compared with their sums. Blocks. */
enum shard_status ckpt_read_blobs(const char *path, const struct manifest *c, struct ckpt_blob **blobs, uint32_t *blobs_nr,
				  struct err *e);

#endif
