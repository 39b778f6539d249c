/* SPDX-License-Identifier: Apache-2.0 */
/* tier_nvme.h: the tier of chunks whose state is on a disk, and in memory for a time (away.h). The
 * chunks of a store that are not away are as in main memory. */
#ifndef SHARD_STORE_TIER_NVME_H
#define SHARD_STORE_TIER_NVME_H

#include "store/ring.h"
#include "store/tier.h"

struct tier_nvme_conf {
	/* Started, over the buffers of the store and a file of tier_nvme_bytes(). The tier stops
	 * it. The caller closes it, before the store. */
	struct ring *ring;
	uint64_t id; /* No other memory, and so no other file, has it. */
	bool there;  /* Memory and file are of an earlier process. */
	/* A thread works on a buffer from hold() to release(): the tier must stay. */
	void (*hold)(void *arg);
	void (*release)(void *arg);
	/* The disk has failed, or does not give back what was written. The state of a chunk is
	 * gone, and so is this node's copy of the model. Called once. */
	void (*lost)(void *arg, const char *why);
	void *arg;
};

/* SHARD_MISMATCH: what the memory of an earlier process says cannot be. */
enum shard_status tier_nvme_open(struct tier **out, const struct tier_conf *conf,
				 const struct tier_nvme_conf *nvme, struct err *e);
/* What the file takes. 0: no chunk of the store is away. */
uint64_t tier_nvme_bytes(const struct store *st);
/* What a step writes to it, if all chunks have a gradient: those that take turns in memory. */
uint64_t tier_nvme_step_bytes(const struct store *st);

struct tier_nvme_count { /* Since it was opened. */
	uint64_t read_bytes, written_bytes;
	uint32_t dirty; /* Chunks whose newest state is in memory only. */
};
/* All 0 if it is another tier. */
struct tier_nvme_count tier_nvme_count(const struct tier *t);

#endif
