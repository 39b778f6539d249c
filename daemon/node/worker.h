/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h: a pool of threads that compute on buffers handed to them by value. Submitted and
 * completed on the loop thread; nothing is allocated after init. Each worker runs with
 * flush-to-zero on (optim/ftz.h) and blocks all signals. */
#ifndef SHARD_WORKER_H
#define SHARD_WORKER_H

#include "base/status.h"

#include <stdbool.h>
#include <uv.h>

#define WORKER_ARGS_BYTES 192
#define WORKER_MAX        256

struct worker_job {
	void (*run)(void *args); /* on a worker; may write its results into args */
	void (*done)(void *owner,
		     void *args); /* on the loop thread, later; args live for the call */
	void *owner;
	_Alignas(16) unsigned char args[WORKER_ARGS_BYTES];
};

struct worker_conf {
	uint32_t threads;        /* 1..WORKER_MAX */
	uint32_t jobs_max;       /* submitted and not yet done; more: SHARD_AGAIN */
	bool pin;                /* one processor of the affinity mask each, in order */
	void (*turn)(void *arg); /* after the done() calls of one turn of the loop; may be NULL */
	void *turn_arg;
};

struct worker_pool; /* opaque */

enum shard_status worker_init(struct worker_pool **out, const struct worker_conf *conf,
			      uv_loop_t *loop, struct err *e);
/* job is copied. SHARD_AGAIN: full, nothing was taken. [loop thread] */
enum shard_status worker_submit(struct worker_pool *p, const struct worker_job *job);
/* Runs the job here and now instead (small chunks): run, then done, both before it returns. FTZ is
 * on for run. */
void worker_run_here(struct worker_pool *p, const struct worker_job *job);
bool worker_in_turn(
	const struct worker_pool *p); /* inside a done() that turn() follows; NULL: false */
uint32_t worker_pending(const struct worker_pool *p); /* submitted, done not yet called */
uint32_t worker_threads(const struct worker_pool *p);
/* Finishes what was submitted (done is called for each), stops the threads, then closed(arg), from
 * the loop; frees the pool. */
void worker_close(struct worker_pool **p, void (*closed)(void *arg), void *arg);

/* Number of processors in the calling thread's affinity mask, at least 1. */
uint32_t worker_processors(void);

#endif
