/* SPDX-License-Identifier: Apache-2.0 */
/* share.h: one node's share of a save or restore, as its coordinator counts it (shares.c) and as the node does it (part.c). */
#ifndef SHARD_CKPT_SHARE_H
#define SHARD_CKPT_SHARE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct model;

struct ckpt_share {
	bool asked, out; /* out: not answered yet */
	uint32_t tag;
	uint64_t done, total;
};

/* part.c: on this node */
void ckpt_part_begin(struct model *m, uint16_t asker, uint32_t tag, uint16_t wire_op, uint32_t generation, const char *path,
		     uint64_t step_or_sum);
void ckpt_part_end(struct model *m, uint16_t asker, uint32_t tag); /* cancel; UINT16_MAX: all */
/* A checkpoint that is no good: is there another one? Appended to why. In a job. */
void ckpt_offer(const char *path, const char *name, struct err *why);
/* op.c: this node's own share is over */
void ckpt_share_done(struct model *m, uint16_t node, uint32_t tag, bool bad, const struct err *e);

#endif
