/* SPDX-License-Identifier: Apache-2.0 */
/* devices.h: the memory of devices that a model has whose state is on GPUs (tier = gpu). It belongs
 * to this node alone, and goes with the model's memory: where that outlives the process, it does,
 * too, in systemd's descriptor store. */
#ifndef SHARD_MODEL_DEVICES_H
#define SHARD_MODEL_DEVICES_H

#include "config/settings.h"
#include "store/tier_gpu.h"

struct model;
struct server;
struct warm;

/* As long as the model's memory. The thread that makes or frees that uses it, and meanwhile the
 * loop does not. */
struct devices {
	struct warm *place; /* NULL: the memory ends with the process. */
	uint32_t model, nr;
	struct gpu *gpu[GPU_DEVICES_MAX]; /* [nr], in the order of their UUIDs. */
	bool there;                       /* An earlier process made the memory. */
	bool left_out; /* A GPU of this node could not be opened at this start. */
	struct gpu_mem mem[GPU_DEVICES_MAX]; /* [nr] */
	void *pinned[8];                     /* Of the host. */
	uint32_t pinned_nr;
	bool held;  /* By a driver that does not let go of it. */
	bool hangs; /* One that is in a call that has not come back. */
	/* [direct_nr] Direct slots (tier_gpu.h), of all devices or of none. They end with the
	 * process. */
	struct gpu_mem direct[GPU_DEVICES_MAX];
	uint32_t direct_nr;
	bool direct_wanted;    /* Other nodes may write to the devices. */
	struct err not_direct; /* Why there are none. */
};

/* Can other nodes write into the memory of that GPU by RDMA? If not, *e says why. */
enum shard_status devices_direct(const struct server *s, struct gpu *g, struct err *e);
/* there: an earlier process made it. .nr is 0 where the state is in main memory: of another tier,
 * or because this node had a copy and lost it with a GPU. SHARD_UNSUPPORTED: this node has no GPU,
 * and needs one. SHARD_MISMATCH: what an earlier process left was on GPUs that are gone. */
enum shard_status devices_plan(struct devices *d, const struct model *m, bool there, struct err *e);
/* Before the account of its memory. A node that has lost its copy with a GPU takes it to main
 * memory where the GPUs that are left have no room. conf gets what follows of that. */
void devices_settle(struct devices *d, const struct model *m, struct store_conf *conf);
/* True: where memory outlives a process here, that of devices does not. *e says why. */
bool devices_end_with_process(const struct devices *d, const struct model *m, struct err *e);
/* In a thread. place: NULL, or where the model's memory is that outlives the process.
 * SHARD_BUDGET: a device has no room, with figures. SHARD_MISMATCH: what an earlier process left is
 * not what it was. */
enum shard_status devices_open(struct devices *d, struct store *st, struct warm *place,
			       struct err *e);
/* Fills m->tier. To be called if .nr > 0. */
enum shard_status devices_tier(struct devices *d, struct model *m, const struct tier_conf *conf,
			       struct err *e);
/* In a thread, before the store is freed. Harmless twice. False: the driver of a device that is
 * lost has not let go of memory of the store, which has to stay where it is until the process ends.
 */
bool devices_close(struct devices *d);

#endif
