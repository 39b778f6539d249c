/* SPDX-License-Identifier: Apache-2.0 */
/* tier_gpu_impl.h: what the tier on devices is made of. Private to tier_gpu.c, which grants pins
 * and carries out calls, and to tier_gpu_buffers.c, which moves chunks between devices and buffers.
 */
#ifndef SHARD_STORE_TIER_GPU_IMPL_H
#define SHARD_STORE_TIER_GPU_IMPL_H

#include "store/away_calls.h"
#include "store/slots.h"
#include "store/tier_gpu.h"

#define NONE        UINT32_MAX
#define UPDATES_MAX 8u           /* On one device at a time. Each needs a free slot. */
#define DIRTY       (1ull << 63) /* In the word of a buffer, beside its chunk + 1. */
#define SPARE       2u           /* Buffers that another chunk can have, now or soon. */
#define SLOTS_MORE  (UPDATES_MAX + TIER_GPU_BUFFERS)
#define ADDS_MAX    16u /* Sums at a time, on all devices. */

enum state {
	FREE,
	LOADING, /* From the device. */
	WARM,
	STORING, /* To the device. */
};

struct buffer {
	enum state state;
	bool dirty;
	uint32_t chunk; /* NONE: it is free. */
	struct away_users users;
	uint32_t voids;    /* store_away_voids() when the copy began. */
	struct slot_at to; /* Where it is being stored. */
	uint64_t used;     /* The larger, the later somebody used it. */
};

struct update {            /* Of a call, on its device. */
	struct list link;  /* In .updates, while it waits. */
	bool keeps;        /* It keeps the chunk for a save. */
	bool dead;         /* It came back from a device that is lost, and its call is not done. */
	uint32_t voids;    /* store_away_voids() when it began. */
	struct slot_at to; /* Where the new state is. */
};

struct device {
	const struct gpu_mem *mem;
	struct slots slots;
	uint32_t updates; /* Under way. */
	/* Owner: tier_gpu_direct.c. What each node has of the direct slots, and for which chunks.
	 * .chunks 0: there are none. */
	struct direct {
		uint64_t at, part, bytes; /* part: bytes, and what is left free behind them. */
		uint32_t first, chunks;
		uint16_t nodes_nr; /* Those it was mapped for. More may have joined since. */
		int dma_buf;
	} direct;
};

struct add { /* A sum on a device. Owner: tier_gpu_direct.c. */
	bool used;
	bool dead; /* It came back from a device that is lost, and its call is not done. */
	struct tier_sum sum;
	struct tier_call who;
	struct gpu_add add;
	uint32_t brought; /* Of a sum that is not finite: sources before it are in memory. */
};

struct gpus {
	struct away_tier away;
	const struct tiles *tiles;
	struct tier_gpu_conf conf;
	struct device device[GPU_DEVICES_MAX];
	struct buffer buffer[TIER_GPU_BUFFERS];
	uint32_t buffers_nr, chunks_nr;
	uint32_t *where;   /* [chunks_nr] The buffer that a chunk is in. */
	uint8_t *updating; /* [chunks_nr] It is being updated on its device. */
	uint64_t uses;     /* Of buffers, so far. */
	bool serving, again;
	bool lost, stopped; /* Nothing is begun any more. */
	bool forsaken;      /* tier_gpu_forsake(): pins are no longer counted. */
	struct tier_gpu_count count;
	struct list waiting;              /* Pins. */
	struct list updates;              /* Those that wait. */
	struct update update[AWAY_CALLS]; /* Of the call of that number. */
	struct add add[ADDS_MAX];
};

static inline bool gpus_over(const struct gpus *n)
{
	return n->lost || n->stopped;
}

/* In tier_gpu.c. */
void gpus_serve(struct gpus *n); /* After every change. */
bool tier_is_gpu(const struct tier *t);
/* The first of its chunks, by store_away_index(), that device i has. */
uint32_t gpus_first_of(uint32_t away_nr, uint32_t devices_nr, uint32_t i);

/* In tier_gpu_direct.c. */
void gpus_direct_init(struct gpus *n); /* When the slots of the devices are there. */
enum shard_status gpus_sum(struct tier *t, const struct tier_sum *s, const struct tier_call *c);
void gpus_sums_forsake(struct gpus *n); /* Of tier_gpu_forsake(). */
/* Where the sum of a chunk is. */
uint64_t gpus_sum_at(const struct gpus *n, const struct device *d, uint32_t chunk);

/* In tier_gpu_buffers.c. */
/* The chunk is away. */
struct device *gpus_device(struct gpus *n, uint32_t chunk);
uint64_t gpus_slot_at(const struct gpus *n, const struct device *d, uint32_t slot);
void gpus_lose(struct gpus *n, const struct device *d);
void gpus_submit(struct gpus *n, const struct device *d, const struct gpu_job *job);
/* The chunk, which is in none, comes into a buffer, or is there at once, because nothing of it is
 * on the device. False: each buffer is in use, or dirty. */
bool gpus_bring(struct gpus *n, uint32_t chunk);
void gpus_set_dirty(struct gpus *n, uint32_t buffer, bool dirty);
/* True: it is in no buffer now. False: it is used there, or its newest state is there alone. */
bool gpus_forget_chunk(struct gpus *n, uint32_t chunk);
/* If it is dirty and nobody uses it: its chunk goes back to the device. */
void gpus_store(struct gpus *n, uint32_t buffer);
void gpus_clean(struct gpus *n); /* Stores some, if there are few that another chunk could have. */
/* Before any call: the chunks that an earlier process left in buffers. What is also on a device is
 * not taken from there. */
enum shard_status gpus_take_buffers(struct gpus *n, struct err *e);

#endif
