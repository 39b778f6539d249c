/* SPDX-License-Identifier: Apache-2.0 */
/* cover.h: which elements of which tensor a step's pushes have covered, and which chunks that
 * completes. It only decides, without I/O, lock or clock. A push claims its range, so that a second
 * one is refused, copies, and then fills it. A chunk is complete when every element of its
 * trainable tensors is filled. For whole tensors only their chunks are counted. Parts are kept as
 * sorted spans. */
#ifndef SHARD_COVER_H
#define SHARD_COVER_H

#include "wire/layout.h"

struct span {
	uint64_t first, end;
};

enum lies { LIES_NOWHERE, LIES_HERE, LIES_ON_DEVICE };

struct cover_tensor {
	enum lies lies;   /* Where what was pushed of it is. Owner: device.c, but for the reset. */
	uint64_t claimed; /* Elements. */
	bool absent;      /* shard_push_none() was called for it. */
	bool shared;      /* It has a share, and the other ranks of the node have the rest. */
	struct span share;
	struct span *spans;
	uint32_t spans_nr, spans_room;
};

struct cover {
	const struct layout *layout;
	struct cover_tensor *tensors;
	uint32_t *left;      /* [chunks_nr] elements not filled yet. */
	uint32_t *left_full; /* [chunks_nr] the value that left starts from. */
	uint32_t complete;   /* Chunks with nothing left. */
};

typedef void (*cover_complete_fn)(void *arg, uint32_t chunk);

enum shard_status cover_init(struct cover *c, const struct layout *l, struct err *e);
void cover_deinit(struct cover *c);
/* Forgets everything. Calls complete for chunks that have no trainable element. */
void cover_reset(struct cover *c, cover_complete_fn complete, void *arg);
/* SHARD_OK, SHARD_DUPLICATE with names and numbers, or SHARD_SYSTEM. The range must be inside the
 * tensor. */
enum shard_status cover_claim(struct cover *c, uint32_t tensor, uint64_t first, uint64_t count,
			      struct err *e);
enum shard_status cover_claim_absent(struct cover *c, uint32_t tensor, struct err *e);
/* This rank's share of the tensor, which may be empty. The rest counts as claimed, and the share
 * too unless `later`: then cover_claim() of its parts follows. SHARD_DUPLICATE: something was
 * claimed before. */
enum shard_status cover_claim_share(struct cover *c, uint32_t tensor, uint64_t first,
				    uint64_t count, bool later, struct err *e);
/* The elements of a claimed range are in the arena. */
void cover_fill(struct cover *c, uint32_t tensor, uint64_t first, uint64_t count,
		cover_complete_fn complete, void *arg);
void cover_rest(struct cover *c, cover_complete_fn complete,
		void *arg);                                /* Completes all chunks that are not. */
bool cover_absent(const struct cover *c, uint32_t tensor); /* No bytes: absent or frozen. */
/* SHARD_OK, or SHARD_MISSING with "3 of 40 tensors: wte, h.0.ln_1.weight, ...". */
enum shard_status cover_missing(const struct cover *c, struct err *e);

#endif
