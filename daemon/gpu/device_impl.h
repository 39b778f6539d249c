/* SPDX-License-Identifier: Apache-2.0 */
/* device_impl.h: one device, for the files of this room. A comment with a file's name begins the
 * fields that this file owns. Nothing of the first part changes while the device is open. */
#ifndef SHARD_GPU_DEVICE_IMPL_H
#define SHARD_GPU_DEVICE_IMPL_H

#include "gpu/device.h"

#include "base/fifo.h"
#include "cuda/driver.h"
#include "gpu/lanes.h"

#include <pthread.h>
#include <stdatomic.h>

/* What a call returns that came back after the device was given up. No error of the driver is. */
#define GPU_GIVEN_UP (-1)

struct slot { /* A job, from gpu_submit() until done(). */
	struct gpu_job job;
	enum shard_status status;
	uint64_t kept;
};

struct pin { /* Of memory of the host that the driver has pinned. A range may be several. */
	uint8_t *at, *of; /* of: where the range begins that gpu_pin() was given. */
	uint64_t bytes;
	bool borrowed; /* Another device has pinned it. */
};

struct gpu {
	struct driver d;
	cu_device device;
	cu_context ctx;
	uint8_t uuid[GPU_UUID_BYTES];
	char uuid_text[GPU_UUID_TEXT], name[96];
	uint64_t total_bytes, limit_bytes;
	uint64_t granularity; /* All of gpu_map() is a multiple of it. */
	cu_module module;
	cu_function apply[OPTIM_NR][DTYPE_NR + 1][DTYPE_NR + 1], sum[DTYPE_NR + 1];
	uint32_t jobs_max;
	uint64_t deadline_ns;

	/* device.c, on the loop thread */
	uv_poll_t wake; /* Polls wake_fd. Not a uv_async_t: node/worker.c. */
	uv_timer_t watch;
	int wake_fd;
	uint32_t handles_nr; /* Of the loop, that are not closed yet. */
	bool closing;
	void (*closed)(void *arg);
	void *closed_arg;
	uint32_t pending; /* Submitted, and done() not called yet. */
	uint32_t *unused, unused_nr, *batch;
	/* device.c. Who took a slot's number out of a ring owns the slot. */
	struct slot *slot;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct fifo todo, done; /* From here to call_ns: with the lock. */
	/* Numbers of lanes: those that are under way, the one that began its piece first in front,
	 * and those that are not. */
	uint32_t busy[GPU_LANES], busy_nr, idle[GPU_LANES], idle_nr;
	uint32_t users; /* The loop, the thread, and each gpu_mem. The last one frees it. */
	bool stop, gone, loop_gone; /* The thread shall end; has ended. The loop has closed it. */
	bool given_up;    /* The thread came back from no call in time, and touches nothing more. */
	uint64_t call_ns; /* Since when the thread is in a call of the driver. 0: it is not. */
	uint64_t late_ns; /* That of a call that was late when the loop looked last. */
	struct err why;   /* Written once, before .lost. */
	_Atomic bool lost;
	struct gpu_lane lane[GPU_LANES]; /* The thread's alone. */
	_Atomic uint64_t to_device_bytes, to_host_bytes, updates, sums;

	/* memory.c */
	pthread_mutex_t memory_lock; /* One range is mapped at a time, and the limit holds. */
	cu_stream memory_stream;
	_Atomic uint64_t mapped_bytes;
	_Atomic bool flushes; /* What network devices have written has to be flushed. */
	pthread_mutex_t pins_lock;
	struct pin *pins;
	uint32_t pins_nr, pins_cap;
};

/* --- device.c --- */

/* Of calls of the device's thread, which may hang: DRIVE(g, g->d.event_sync(event)). */
#define DRIVE(g, call) gpu_called(g, (gpu_calls(g), (call)))
void gpu_calls(struct gpu *g);
cu_result gpu_called(struct gpu *g, cu_result rc);
/* The device is lost from now on. */
void gpu_lose(struct gpu *g, cu_result rc, const char *call);
/* As driver_fail(). An error that ends the context ends the device. */
enum shard_status gpu_fail(struct gpu *g, struct err *e, cu_result rc, const char *call,
			   const char *what);

/* One who has it more, or less. The last one frees it. */
void gpu_more(struct gpu *g);
void gpu_less(struct gpu *g);

/* --- memory.c --- */

/* How many of the bytes from there on the driver copies at once, in pinned memory. 0: that byte is
 * in none. Any thread. */
uint64_t gpu_pinned(struct gpu *g, const void *at, uint64_t bytes);
void gpu_unpin_all(struct gpu *g); /* With the context current. */

#endif
