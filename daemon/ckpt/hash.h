/* SPDX-License-Identifier: Apache-2.0 */
/* hash.h: the digests of all chunks whose copies count on this node, made by the workers. The
 * caller keeps the memory while a job flies (.flying). If the weights change meanwhile, the digests
 * say nothing, and the caller drops them. Loop thread only. */
#ifndef SHARD_CKPT_HASH_H
#define SHARD_CKPT_HASH_H

#include "base/status.h"
#include "store/tier.h"

#include <stdbool.h>
#include <stdint.h>

struct model;

struct hash {
	struct model *m;
	/* Called when a job is back. It calls hash_go() for more, or ends when none flies. */
	void (*back)(struct hash *h);
	uint32_t *chunk;   /* [nr] The chunks, ascending. */
	uint64_t *digest;  /* [nr] Valid up to the end. */
	uint32_t nr, next; /* next: the first chunk that is in no job yet. */
	uint32_t flying;   /* Jobs that are not back. */
	/* [nr] Each chunk is pinned from before its job until the job is back. */
	struct tier_pin *pin;
	uint64_t bytes, total; /* Bytes whose digests are made, and all. */
};

/* Lists the chunks. On failure nothing is left to free. */
enum shard_status hash_init(struct hash *h, struct model *m, void (*back)(struct hash *),
			    struct err *e);
/* While the model is still there, and no job flies: back() is not called any more. */
void hash_stop(struct hash *h);
void hash_deinit(struct hash *h);
/* Gives the workers as many jobs as they have threads. A queue that is full takes them with a later
 * call. */
void hash_go(struct hash *h);
bool hash_whole(const struct hash *h); /* All digests are there. */

#endif
