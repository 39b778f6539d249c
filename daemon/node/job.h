/* SPDX-License-Identifier: Apache-2.0 */
/* job.h: what would keep the loop from answering, in threads of libuv's pool, a few at a time.
 * Three kinds: what touches folders and files of checkpoints, which others may choose, so that a
 * file system behind a network may not answer for ever; what makes or gives back gigabytes of
 * memory; and what makes at most JOB_SMALL_BYTES, for which nobody should wait behind gigabytes.
 * Each kind has so many threads of the pool (LIMITS_THREADS) at most, so that a view that is to be
 * durable always finds one. The other jobs of the kind wait for a turn, in order. */
#ifndef SHARD_NODE_JOB_H
#define SHARD_NODE_JOB_H

#include "base/list.h"

#include <stdbool.h>
#include <uv.h>

struct server;

enum job_kind { JOB_FILES, JOB_MEMORY, JOB_SMALL, JOB_KINDS };
#define JOB_FILES_MAX   3
#define JOB_MEMORY_MAX  1 /* Memory that goes is free before the next job takes any. */
#define JOB_SMALL_MAX   1
#define JOB_SMALL_BYTES (1ull << 30) /* It takes less than a second to make. */

struct job_queue {
	struct list waiting; /* for a thread */
	unsigned running;
};

struct job {
	struct list link; /* in job_queue.waiting until a thread is free */
	struct server *server;
	enum job_kind kind;
	uv_work_t work;
	void (*run)(struct job *j);  /* in a thread */
	void (*done)(struct job *j); /* on the loop; may free j */
};

void job_init(struct server *s);
void job_begin(struct job *j, struct server *s, enum job_kind kind, void (*run)(struct job *),
	       void (*done)(struct job *));
bool job_idle(const struct server *s, enum job_kind kind); /* none runs, and none waits */

#endif
