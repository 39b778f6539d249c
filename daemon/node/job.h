/* SPDX-License-Identifier: Apache-2.0 */
/* job.h: work that would block the loop runs as jobs in threads of libuv's pool, a few at a time.
 * JOB_FILES touches folders and files of checkpoints. Users choose those folders, so a network file
 * system may never answer. JOB_MEMORY makes or frees gigabytes of memory. JOB_SMALL makes at most
 * JOB_SMALL_BYTES, so that small memory need not wait behind gigabytes. JOB_HISTORY reads and
 * writes the histories of models in the state folder. Each kind has a maximum number of the pool's
 * threads (LIMITS_THREADS), so that writing a view always finds a free one. The other jobs of a
 * kind wait in order. */
#ifndef SHARD_NODE_JOB_H
#define SHARD_NODE_JOB_H

#include "base/list.h"

#include <stdbool.h>
#include <uv.h>

struct server;

enum job_kind { JOB_FILES, JOB_MEMORY, JOB_SMALL, JOB_HISTORY, JOB_KINDS };
#define JOB_FILES_MAX   3
#define JOB_MEMORY_MAX  1 /* So memory that one job frees is there for the next. */
#define JOB_SMALL_MAX   1
#define JOB_HISTORY_MAX 1            /* So nobody reads a file that another job removes. */
#define JOB_SMALL_BYTES (1ull << 30) /* It takes less than a second to make. */

struct job_queue {
	struct list waiting; /* Jobs that wait for a thread. */
	unsigned running;
};

struct job {
	struct list link; /* In job_queue.waiting until a thread is free. */
	struct server *server;
	enum job_kind kind;
	uv_work_t work;
	void (*run)(struct job *j);  /* Called in a thread. */
	void (*done)(struct job *j); /* Called on the loop after that. May free j. */
};

void job_init(struct server *s);
void job_begin(struct job *j, struct server *s, enum job_kind kind, void (*run)(struct job *),
	       void (*done)(struct job *));
bool job_idle(const struct server *s, enum job_kind kind); /* None runs or waits. */

#endif
