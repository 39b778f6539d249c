/* SPDX-License-Identifier: Apache-2.0 */
/* tier_nvme.h: the tier of chunks whose state is on a disk, and in memory for a time (away.h). The
 * chunks of a store that are not away are as in main memory. */
#ifndef SHARD_STORE_TIER_NVME_H
#define SHARD_STORE_TIER_NVME_H

#include "store/ring.h"
#include "store/superblock.h"
#include "store/tier.h"

/* What a start found in the file, and memory for the next superblock. */
struct tier_nvme_super {
	uint8_t *at;                   /* tier_nvme_super_bytes(), the last buffer of the ring. */
	uint64_t seq;                  /* Of the superblock that counts. 0: there is none. */
	const struct super_cell *cell; /* Its cells. Used while the tier is opened. */
	uint32_t cells_nr;
};

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
	struct tier_nvme_super super; /* With store_conf.durable_bytes. */
};

/* SHARD_MISMATCH: what the memory of an earlier process says cannot be. */
enum shard_status tier_nvme_open(struct tier **out, const struct tier_conf *conf,
				 const struct tier_nvme_conf *nvme, struct err *e);
/* What the file takes. 0: no chunk of the store is away. */
uint64_t tier_nvme_bytes(const struct store *st);
/* What a step writes to it, if all chunks have a gradient: those that take turns in memory. */
uint64_t tier_nvme_step_bytes(const struct store *st);

/* After a loss of power: the memory of the store, which is new, gets the words of that superblock.
 * Before the tier is opened. SHARD_MISMATCH: it is not one of such a store. */
enum shard_status tier_nvme_recall(struct store *st, const struct super_found *f, struct err *e);
/* How many requests its ring has to take, beside one for each buffer. */
#define TIER_NVME_REQUESTS 2u
/* Memory for a superblock. 0: there is none. */
uint64_t tier_nvme_super_bytes(const struct store *st);
/* Where the caller puts the durable_bytes that go with the next tier_nvme_commit(). NULL: nothing
 * outlives a loss of power. Not while one is in hand. */
uint8_t *tier_nvme_payload(struct tier *t);
/* True: it outlives a loss of power. False: a chunk became void meanwhile, and what is in the file
 * counts as before. */
typedef void tier_nvme_committed(void *arg, bool whole);
/* Makes all chunks as they are now, and the payload, outlive a loss of power. Until done() nobody
 * changes them, except by making them void, and no call begins. done() may come before this
 * returns. */
void tier_nvme_commit(struct tier *t, uint64_t step, tier_nvme_committed *done, void *arg);

struct tier_nvme_count { /* Since it was opened. */
	uint64_t read_bytes, written_bytes;
	uint32_t dirty; /* Chunks whose newest state is in memory only. */
};
/* All 0 if it is another tier. */
struct tier_nvme_count tier_nvme_count(const struct tier *t);

#endif
