/* SPDX-License-Identifier: Apache-2.0 */
/* device.h: GPUs of this node. Two threads call the driver for each: one for its jobs, and one for
 * all else. Jobs are given and come back on the loop thread. A call that fails in a job ends the
 * device, and so does any that does not come back in time, but not the daemon: gpu_lost(). Who
 * waits for such a call gets SHARD_SYSTEM. */
#ifndef SHARD_GPU_DEVICE_H
#define SHARD_GPU_DEVICE_H

#include "base/status.h"
#include "gpu/uuid.h"
#include "optim/optim.h"
#include "wire/layout.h"

#include <stdbool.h>
#include <uv.h>

#define GPU_COPIES_MAX   8
#define GPU_OPERANDS_MAX 64

struct gpu; /* One device. */

struct gpu_conf {
	const uint8_t *uuid; /* [GPU_UUID_BYTES] Which one. NULL: that of .ordinal. */
	int ordinal;
	uint64_t bytes;       /* So much of its memory at most. 0: nine tenths of what is free. */
	uint32_t jobs_max;    /* Given and not done. Beyond it: SHARD_AGAIN. */
	uint64_t deadline_ns; /* Of one call of the driver. 0: a minute. */
};

/* SHARD_NOT_FOUND: the driver shows no such device. SHARD_UNSUPPORTED: there is no driver, no
 * kernels were built in, or the device is too old: the text says which. Takes the primary context,
 * loads the kernels, and starts the thread. For tests the variable SHARDD_GPU_KERNELS names a file
 * with kernels in place of those that were built in, and SHARDD_GPU_DEADLINE_MS a deadline. */
enum shard_status gpu_open(struct gpu **out, const struct gpu_conf *conf, uv_loop_t *loop,
			   struct err *e);
/* Finishes the jobs, calls done() for each, ends the thread, and calls closed(arg) from the loop.
 * Memory that is mapped stays so, and gpu_unmap() takes it later, also when the loop has ended: as
 * long as there is any, gpu_unpin() is harmless. */
void gpu_close(struct gpu **g, void (*closed)(void *arg), void *arg);

/* How many the driver shows to this process. SHARD_UNSUPPORTED: there is no driver. */
enum shard_status gpu_count(uint32_t *nr, struct err *e);

struct gpu_about {
	uint8_t uuid[GPU_UUID_BYTES];
	int ordinal;
	char name[96];
	uint64_t total_bytes, limit_bytes; /* Of its memory; and what it may be used for here. */
	uint64_t mapped_bytes;             /* Of models now. */
	uint64_t host_bytes;               /* Pinned memory of the host for its buffers. */
	uint64_t to_device_bytes, to_host_bytes, updates, sums; /* Since it was opened. */
};
void gpu_tell(const struct gpu *g, struct gpu_about *about); /* Any thread. */
/* Every job since then was and is answered with SHARD_SYSTEM. *why lives as long as the device. */
bool gpu_lost(const struct gpu *g, const char **why);
bool gpu_hangs(struct gpu *g); /* It is lost because a call has not come back. Any thread. */

/* Memory of the device. All three may be called by any thread, when no job uses it. */
struct gpu_mem {
	struct gpu *gpu;
	uint64_t at, bytes; /* bytes: what was asked for, rounded up. */
	/* As the descriptor of a driver's handle: whoever has it keeps the memory, also when this
	 * process has died. -1: it was not asked for. The caller closes it, or hands it on. */
	int fd;
	uint64_t handle;
};
/* All bytes are 0. SHARD_BUDGET: beyond the limit, or the device has no more, with figures. */
enum shard_status gpu_map(struct gpu *g, uint64_t bytes, bool exports, struct gpu_mem *m,
			  struct err *e);
/* That of an earlier process: m->fd is a copy of fd, which may be any descriptor. SHARD_MISMATCH:
 * it is no such memory of this device, or not of so many bytes. It is there already, so that it
 * counts, but is taken beyond the limit, too. */
enum shard_status gpu_again(struct gpu *g, int fd, uint64_t bytes, struct gpu_mem *m,
			    struct err *e);
void gpu_unmap(struct gpu_mem *m); /* Closes .fd. Harmless twice, and of zeros. */
/* Memory that a network device may write: m->fd is a dma-buf of all of it. What such a device has
 * written is seen by each GPU_ADD that is given later, and by each copy that says so.
 * SHARD_UNSUPPORTED: device or driver lack something. gpu_direct() looks for that alone. */
enum shard_status gpu_map_direct(struct gpu *g, uint64_t bytes, struct gpu_mem *m, struct err *e);
enum shard_status gpu_direct(struct gpu *g, struct err *e);

/* Copies to and from this range of the host are fast from now on. It may be used without, also
 * after a failure: then they go through pinned buffers of the device. Any thread. Not while a job
 * uses it. What another device has pinned is pinned for this one, too, and it is unpinned of all of
 * them together. */
enum shard_status gpu_pin(struct gpu *g, void *at, uint64_t bytes, struct err *e);
/* What gpu_pin() was given. Harmless otherwise. False: the driver of a device that is lost has not
 * let go of it. The memory must stay as it is, because nothing else may come to its address, and a
 * call that hangs may still use it. */
bool gpu_unpin(struct gpu *g, void *at);

struct gpu_copy {
	void *host;
	uint64_t device, bytes;
};

/* What a step does to one chunk (optim/optim.h). Addresses of the device are of the first element
 * of each array; arrays begin on borders of 4096 bytes. */
struct gpu_update {
	const struct layout *layout;
	uint32_t chunk;
	const struct optim_row *optim;
	enum shard_dtype grad_dtype, image_dtype;
	const struct optim_args *args; /* [groups] At most SETTINGS_GROUPS_MAX. */
	const uint8_t *zero; /* [segments_nr] of the layout. Nobody has a gradient for it. */
	const uint8_t *grad; /* Of the host. Not read if .grad_at is not 0. */
	uint64_t grad_at;    /* Of the device. */
	/* Of the host: elements of segments that are not frozen are written, and no others. */
	uint8_t *image;
	/* Of the device: there the same elements are written, too. 0: nowhere. */
	uint64_t image_at;
	/* Master and moments, before and after. 0: the chunk has no such array. All bytes of the
	 * arrays after are as before where no element is updated, also between segments. */
	uint64_t from[3], to[3];
	float *keep[3]; /* Of the host. The arrays as they were go there, too. All NULL: nowhere. */
};

/* The sum of gradients of one chunk, each times pre, in this order, rounded once (optim/reduce.h).
 * All are in memory of the device, where chunks begin on borders of 16 bytes. */
struct gpu_add {
	const struct layout *layout;
	uint32_t chunk, operands_nr, up_nr;
	enum shard_dtype dtype;
	float pre;
	struct gpu_copy up[GPU_OPERANDS_MAX]; /* Operands that have to get there first. */
	struct gpu_operand {
		uint64_t at;
		const uint8_t *absent; /* [segments_nr] of the layout. */
	} operand[GPU_OPERANDS_MAX];
	uint64_t to; /* May be that of an operand. Nothing is written where all are absent. */
	/* Of the host: gets the whole chunk as it is at .to then, if the sum is finite. */
	void *copy;
	double sumsq; /* Of the sum. This and the next are set by the job. */
	bool finite;
};

struct gpu_job {
	/* On the loop thread. kept: of an update, elements that stayed as they were.
	 * SHARD_SYSTEM: the device is lost, and what was to be written has any bytes. A device that
	 * hangs may even write there later, if it goes on. */
	void (*done)(void *owner, uint64_t tag, enum shard_status st, uint64_t kept);
	/* On the thread of the device, when all of it has come, with flush-to-zero on. NULL:
	 * nothing. Not called of a job that failed. */
	void (*after)(void *owner, uint64_t tag);
	void *owner;
	uint64_t tag;
	enum gpu_what { GPU_TO_DEVICE, GPU_TO_HOST, GPU_UPDATE, GPU_ADD } what;
	struct gpu_copy copy[GPU_COPIES_MAX]; /* GPU_TO_*. */
	uint32_t copies_nr;
	bool written; /* GPU_TO_HOST: of what network devices have written. */
	struct gpu_update update;
	struct gpu_add *add;
};
/* Copied. What it points to stays as it is until done(). SHARD_AGAIN: it is full, and a done()
 * makes room. Jobs begin in the order in which they are given, and several are under way at a time:
 * two that use the same memory must not be. SHARD_OK also of a device that is lost. */
enum shard_status gpu_submit(struct gpu *g, const struct gpu_job *job);
uint32_t gpu_lanes(const struct gpu *g); /* How many updates are under way at a time. */

#endif
