/* SPDX-License-Identifier: Apache-2.0 */
/* tier_gpu.h: the tier of chunks whose state is in the memory of devices, where they are updated.
 * Who pins such a chunk gets it in a buffer of the host (away.h). The chunks of a store that are
 * not away are as in main memory. */
#ifndef SHARD_STORE_TIER_GPU_H
#define SHARD_STORE_TIER_GPU_H

#include "gpu/device.h"
#include "net/rdma.h"
#include "store/tier.h"

#define TIER_GPU_BUFFERS 8u /* For the memory of a store: its away_cache. */

struct tier_gpu_conf {
	/* Of each device tier_gpu_bytes(). The chunks that are away are cut into as many runs, in
	 * the order of the layout. It outlives the tier. The caller unmaps it, before the store. */
	const struct gpu_mem *mem;
	uint32_t devices_nr; /* 1 to GPU_DEVICES_MAX. */
	/* Of each device tier_gpu_direct_bytes(), by gpu_map_direct(). NULL: there is none. */
	const struct gpu_mem *direct;
	/* A device works for the tier from hold() to release(): the tier must stay. */
	void (*hold)(void *arg);
	void (*release)(void *arg);
	/* A device has failed. The state of its chunks is gone, and so is this node's copy of the
	 * model. Called once. */
	void (*lost)(void *arg, const char *why);
	void *arg;
};

/* SHARD_MISMATCH: what the memory of an earlier process says cannot be. */
enum shard_status tier_gpu_open(struct tier **out, const struct tier_conf *conf,
				const struct tier_gpu_conf *gpu, struct err *e);
/* What a store takes of each of so many devices. */
uint64_t tier_gpu_bytes(const struct store *st, uint32_t devices_nr);
/* The same of a store that is not made yet. */
uint64_t tier_gpu_will(const struct store_conf *conf, uint32_t devices_nr);

/* Another job of the model has found that a device does not answer: as when one of the tier does.
 * Harmless if the tier has nothing there. */
void tier_gpu_lose(struct tier *t, const struct gpu *g);

/* For the end of a model after lost(), so that whoever waits for the tier comes to an end: calls
 * that would never be done are done now, without an effect, and every pin is granted, now and
 * later, whatever is in memory then. The caller lets nothing count that comes of it. Harmless if it
 * is another tier. */
void tier_gpu_forsake(struct tier *t);

/* Direct slots: landing slots in the memory of devices, which other nodes write by RDMA. A sum of
 * such contributions is made on the device, and stays there for the update (struct tier_source).
 * Those of one node on one device lie behind one another. */
struct tier_direct {
	/* So many chunks, from that one on, of those that the store was made with. */
	uint32_t first, chunks;
	struct rdma_dma_buf memory; /* Its descriptor is the tier's. */
};
uint64_t tier_gpu_direct_bytes(const struct store *st, uint32_t devices_nr, uint32_t device);
/* False: there is no such device, or there are none for that node. Also of another tier. */
bool tier_gpu_direct(const struct tier *t, uint32_t device, uint16_t node, struct tier_direct *out);
/* Where on its device the node's slot for a chunk is. 0: it has none. */
uint64_t tier_gpu_direct_at(const struct tier *t, uint32_t chunk, uint16_t node);

/* Of the chunks with direct slots, those for which one of so many nodes has none, because it has
 * joined since they were made: if it contributes to a chunk, the sum is made in main memory. */
uint32_t tier_gpu_direct_short(const struct tier *t, uint16_t nodes_nr);

/* The device that the chunk is on. NULL: it is in main memory, or this is another tier. */
struct gpu *tier_gpu_of(const struct tier *t, uint32_t chunk);

struct tier_gpu_count {   /* Since it was opened. */
	uint64_t sums;    /* Of contributions, on a device. */
	uint64_t updates; /* Of chunks on a device. */
	/* Of chunks that were in a buffer just then, or have to be there for an update. */
	uint64_t host_updates;
	uint32_t dirty; /* Chunks whose newest state is in a buffer only. */
};
/* All 0 if it is another tier. */
struct tier_gpu_count tier_gpu_count(const struct tier *t);

#endif
