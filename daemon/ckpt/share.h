/* SPDX-License-Identifier: Apache-2.0 */
/* share.h: one node's share of a save or restore, as its coordinator counts it (shares.c) and as
 * the node does it (part.c). */
#ifndef SHARD_CKPT_SHARE_H
#define SHARD_CKPT_SHARE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct caller;
struct manifest_blob;
struct model;
struct part_file;

struct ckpt_share {
	bool asked;
	uint32_t tag;  /* of the request that is out, or was the last one */
	uint32_t part; /* of its SAVE_PART or LOAD_PART */
	uint64_t done, total;
};

/* part.c: on this node */
void ckpt_part_begin(struct model *m, const struct caller *who, uint16_t wire_op,
		     uint32_t generation, const char *path, uint64_t step_or_sum, bool anywhere);
void ckpt_part_end(struct model *m, uint16_t requester, uint32_t tag); /* cancel; UINT16_MAX: all */
/* loaded.c: what a load has brought here */
void ckpt_load_begins(struct model *m, uint16_t requester, uint32_t tag);
void ckpt_load_superseded(struct model *m, uint16_t requester,
			  uint32_t tag); /* by a load that has not begun yet */
void ckpt_load_read(struct model *m, uint16_t requester, uint32_t tag);
void ckpt_load_over(struct model *m); /* sealed, or reset */
void ckpt_clear(struct model *m);     /* model_reset(), now or when nobody uses the memory */
/* A checkpoint that is no good: is there another one? Appended to why. In a job. */
void ckpt_offer(const char *path, const char *name, struct err *why);
/* shares.c: what this node has written in its own share with that tag; takes blobs over, and what
 * of file it sets to zero. Of a share that was given up: nothing. */
void ckpt_share_file(struct model *m, uint32_t tag, struct part_file *file,
		     struct manifest_blob *blobs, uint32_t blobs_nr);
/* The same: it is over. */
void ckpt_share_done(struct model *m, uint32_t tag, bool bad, const struct err *e);

#endif
