/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h: a pool of threads, the row of exec.h that there is. Jobs are submitted and completed on
 * the loop thread, and nothing is allocated after init. Each worker runs with flush-to-zero on
 * (optim/ftz.h) and blocks all signals. */
#ifndef SHARD_WORKER_H
#define SHARD_WORKER_H

#include "node/exec.h"

#include <uv.h>

#define WORKER_MAX 256

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
/* Its jobs. They run in the order in which they were submitted, and run() has flush-to-zero on. The
 * pool must be open when a job is submitted, or at least not have called closed(). */
struct exec worker_exec(struct worker_pool *p);
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
