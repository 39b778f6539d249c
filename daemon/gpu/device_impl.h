/* SPDX-License-Identifier: Apache-2.0 */
/* device_impl.h: one device, for the files of this room. A comment with a file's name begins the
 * fields that this file owns. Nothing of the first part changes while the device is open. */
#ifndef SHARD_GPU_DEVICE_IMPL_H
#define SHARD_GPU_DEVICE_IMPL_H

#include "gpu/device.h"

#include "base/fifo.h"
#include "base/list.h"
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

struct gpu_watch { /* Of who looks for calls that are late: those that were when it looked last. */
	uint64_t call_ns, ask_ns;
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
	struct fifo todo, done; /* From here to .loop_gone: with the lock. */
	/* Numbers of lanes: those that are under way, the one that began its piece first in front,
	 * and those that are not. */
	uint32_t busy[GPU_LANES], busy_nr, idle[GPU_LANES], idle_nr;
	uint32_t users; /* The loop, the thread, and each gpu_mem. The last one frees it. */
	bool stop, gone, loop_gone; /* The thread shall end; has ended. The loop has closed it. */
	struct gpu_watch watched;   /* By the loop. */
	struct gpu_lane lane[GPU_LANES]; /* The thread's alone. */
	_Atomic uint64_t to_device_bytes, to_host_bytes, updates, sums;

	/* calls.c. With the lock, but for .asker. */
	bool given_up;    /* A call has not come back in time: no other one is made. */
	uint64_t call_ns; /* Since when the thread is in a call of the driver. 0: it is not. */
	uint64_t ask_ns;  /* The same of the thread that is asked. */
	struct err why;   /* Written once, before .lost. */
	_Atomic bool lost;
	pthread_t asker;
	bool asker_runs;
	struct list asked; /* What is to be done, in order. */
	/* Those of device.c. The device was given up, so no job has results any more: with the
	 * lock. And nobody has it. */
	void (*on_given_up)(struct gpu *g);
	void (*on_unused)(struct gpu *g);
	pthread_cond_t ask, answered;
	bool asks_end, orphan; /* orphan: the thread frees the struct. */

	/* memory.c */
	cu_stream memory_stream;
	_Atomic uint64_t mapped_bytes;
	struct err direct;    /* Why network devices cannot write there. SHARD_OK: they can. */
	_Atomic bool flushes; /* What network devices have written has to be flushed. */
	pthread_mutex_t pins_lock;
	struct pin *pins;
	uint32_t pins_nr, pins_cap;
};

/* --- calls.c --- */

/* Every call of the driver may hang, so each is one of these two. Of the device's thread:
 * DRIVE(g, g->d.event_sync(event)). The loop looks after it. */
#define DRIVE(g, call) gpu_called(g, (gpu_calls(g), (call)))
void gpu_calls(struct gpu *g);
cu_result gpu_called(struct gpu *g, cu_result rc);
/* Of the thread that is asked. No call is made of a device that was given up. */
#define ASK(g, call) (gpu_asks(g) ? gpu_asked(g, (call)) : GPU_GIVEN_UP)
bool gpu_asks(struct gpu *g);
cu_result gpu_asked(struct gpu *g, cu_result rc);
/* With the lock. Gives the device up if a call is late. True: it did so just now. */
bool gpu_watch(struct gpu *g, struct gpu_watch *w);

enum shard_status gpu_start_thread(pthread_t *thread, void *(*run)(void *), struct gpu *g,
				   struct err *e);
enum shard_status gpu_calls_init(struct gpu *g, struct err *e); /* Starts the thread. */
/* Nobody uses the device any more: gives its context back, ends the thread and frees all. */
void gpu_calls_end(struct gpu *g);
/* Has the thread do that with a copy of arg, which is then what the thread has made of it. Any
 * other thread may call it, and waits. SHARD_SYSTEM: the device is given up, and the copy is left
 * to the thread, so what arg points to has to live as long as the device. */
enum shard_status gpu_ask(struct gpu *g, void (*run)(struct gpu *g, void *arg), void *arg,
			  size_t bytes, struct err *e);
/* The device is lost from now on. */
void gpu_lose(struct gpu *g, cu_result rc, const char *call);
/* As driver_fail(). An error that ends the context ends the device. */
enum shard_status gpu_fail(struct gpu *g, struct err *e, cu_result rc, const char *call,
			   const char *what);

/* --- device.c --- */

/* One who has it more, or less. The last one frees it. */
void gpu_more(struct gpu *g);
void gpu_less(struct gpu *g);

/* --- memory.c --- */

enum shard_status gpu_judge_direct(struct gpu *g, struct err *e); /* At the start. As asked. */

/* How many of the bytes from there on the driver copies at once, in pinned memory. 0: that byte is
 * in none. Any thread. */
uint64_t gpu_pinned(struct gpu *g, const void *at, uint64_t bytes);
void gpu_unpin_all(struct gpu *g);

#endif
