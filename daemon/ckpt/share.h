/* SPDX-License-Identifier: Apache-2.0 */
/* share.h: one node's share of a save or restore. shares.c counts shares on the coordinator, and
 * part.c does the share of this node. */
#ifndef SHARD_CKPT_SHARE_H
#define SHARD_CKPT_SHARE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct caller;
struct manifest_blob;
struct model;
struct part_file;

/* The view by which a node holds what it saves. Zeros: its release does not say it. */
struct ckpt_view {
	uint64_t term;
	uint32_t seq;
};

struct ckpt_share {
	bool asked;
	uint32_t tag;  /* Tag of the last request, answered or not. */
	uint32_t part; /* Tag of its SAVE_PART, LOAD_PART or VERIFY_PART. */
	uint64_t done, total, shared;
	bool covered; /* Steps may go on: it keeps what it has to write. */
};

/* part.c: the shares of this node. */
void ckpt_part_begin(struct model *m, const struct caller *who, uint16_t wire_op,
		     uint32_t generation, const char *path, uint64_t step_or_sum, bool anywhere);
/* Cancels. UINT16_MAX: all. */
void ckpt_part_end(struct model *m, uint16_t requester, uint32_t tag);
/* That node has lost its copy of the model: as ckpt_node_gone(), of this model alone. */
void ckpt_memory_gone(struct model *m, uint16_t node);
/* loaded.c: what a load has read into this node's memory. */
void ckpt_load_begins(struct model *m, uint16_t requester, uint32_t tag);
/* Another load is to follow, which has not begun yet. */
void ckpt_load_superseded(struct model *m, uint16_t requester, uint32_t tag);
void ckpt_load_read(struct model *m, uint16_t requester, uint32_t tag);
void ckpt_load_over(struct model *m); /* The model was sealed or reset. */
void ckpt_clear(struct model *m);     /* model_reset(), now or when nobody uses the memory. */
/* The checkpoint at path is bad. Appends the newest other complete one to why, if there is any.
 * Blocks, so it runs in a job. */
void ckpt_offer(const char *path, const char *name, struct err *why);
struct ckpt_view ckpt_view(const struct model *m); /* The newest that this node has adopted. */
/* shares.c: the file that this node has written in its own share with that tag. Takes ownership of
 * blobs, and of what it sets to NULL in file. If the share was given up, nothing but blobs is
 * taken. */
void ckpt_share_file(struct model *m, uint32_t tag, const struct ckpt_view *by,
		     struct part_file *file, struct manifest_blob *blobs, uint32_t blobs_nr);
/* The digests that this node has made in its own share with that tag: verify.h. */
void ckpt_share_digests(struct model *m, uint32_t tag, uint64_t term, uint32_t seq,
			const uint64_t *digest, uint64_t nr);
/* The own share with that tag has ended. e NULL: it succeeded. bad: a file was at fault. */
void ckpt_share_done(struct model *m, uint32_t tag, bool bad, const struct err *e);

#endif
