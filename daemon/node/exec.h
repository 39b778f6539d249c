/* SPDX-License-Identifier: Apache-2.0 */
/* exec.h: where jobs run. A job holds all its operands by value. It sees no model and no server, so
 * that it may outlive whatever ordered it. The pool of worker.h is the row that there is.
 * Everything is called on the loop thread. */
#ifndef SHARD_EXEC_H
#define SHARD_EXEC_H

#include "base/status.h"

#include <stdbool.h>

#define EXEC_ARGS_BYTES 1344

struct exec_job {
	void (*run)(void *args); /* Called on a thread of the row. May write its results into
				    args. */
	void (*done)(void *owner, void *args); /* Called on the loop thread after that. args is
						  valid during the call. */
	void *owner;
	_Alignas(16) unsigned char args[EXEC_ARGS_BYTES];
};

struct exec_row {
	const char *name;
	/* Copies the job. SHARD_AGAIN: the queue is full. SHARD_CLOSED: no job begins any more. */
	enum shard_status (*submit)(void *self, const struct exec_job *job);
	/* Runs the job on the calling thread instead, as for small chunks. run() and done() are
	 * both called before it returns. */
	void (*here)(void *self, const struct exec_job *job);
	uint32_t (*lanes)(const void *self); /* How many jobs run at the same time. */
};

struct exec {
	const struct exec_row *row;
	void *self;
};

static inline enum shard_status exec_submit(const struct exec *x, const struct exec_job *job)
{
	return x->row->submit(x->self, job);
}

static inline void exec_here(const struct exec *x, const struct exec_job *job)
{
	x->row->here(x->self, job);
}

static inline uint32_t exec_lanes(const struct exec *x)
{
	return x->row->lanes(x->self);
}

#endif
