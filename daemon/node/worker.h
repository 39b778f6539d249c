/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h: a pool of threads that run jobs. A job holds all its operands by value. Jobs are
 * submitted and completed on the loop thread, and nothing is allocated after init. Each worker runs
 * with flush-to-zero on (optim/ftz.h) and blocks all signals. */
#ifndef SHARD_WORKER_H
#define SHARD_WORKER_H

#include "base/status.h"

#include <stdbool.h>
#include <uv.h>

#define WORKER_ARGS_BYTES 192
#define WORKER_MAX        256

struct worker_job {
	void (*run)(void *args); /* Called on a worker. May write its results into args. */
	void (*done)(void *owner, void *args); /* Called on the loop thread after that. args is
						  valid during the call. */
	void *owner;
	_Alignas(16) unsigned char args[WORKER_ARGS_BYTES];
};

struct worker_conf {
	uint32_t threads;  /* 1..WORKER_MAX */
	uint32_t jobs_max; /* Jobs submitted and not yet done. Beyond it: SHARD_AGAIN. */
	bool pin;          /* Pin each worker to one processor of the affinity mask, in order. */
	void (*turn)(void *arg); /* Called after the done() calls of one turn of the loop. May be
				    NULL. */
	void *turn_arg;
};

struct worker_pool;

enum shard_status worker_init(struct worker_pool **out, const struct worker_conf *conf,
			      uv_loop_t *loop, struct err *e);
/* Copies the job. SHARD_AGAIN: the pool is full. SHARD_CLOSED: it is closing. Loop thread only. */
enum shard_status worker_submit(struct worker_pool *p, const struct worker_job *job);
/* Runs the job on the calling thread instead, as for small chunks. run() and done() are both called
 * before it returns, with flush-to-zero on in run(). */
void worker_run_here(struct worker_pool *p, const struct worker_job *job);
bool worker_in_turn(
	const struct worker_pool *p); /* Inside a done() that turn() follows. NULL: false. */
uint32_t worker_pending(const struct worker_pool *p); /* Submitted, and done() not called yet. */
uint32_t worker_threads(const struct worker_pool *p);
/* Closes the pool: finishes the submitted jobs and calls done() for each, stops the threads, frees
 * the pool, and then calls closed(arg) from the loop. */
void worker_close(struct worker_pool **p, void (*closed)(void *arg), void *arg);

/* Number of processors in the calling thread's affinity mask, at least 1. */
uint32_t worker_processors(void);

#endif
