/* SPDX-License-Identifier: Apache-2.0 */
/* daemons.h: for the benchmarks: real shardd processes in a folder of their own, and trainers of a
 * large model. What fails ends the program with a sentence, because a benchmark has nothing to
 * recover. The program's directory must be BUILD/tests/bench. */
#ifndef SHARD_TESTS_BENCH_DAEMONS_H
#define SHARD_TESTS_BENCH_DAEMONS_H

#include "shard.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

struct fdstore;

enum { DAEMONS_MAX = 64, FLEET_MAX = 64, FLEET_TENSORS_MAX = 256 };

struct daemons {
	char dir[64], build[512], address[DAEMONS_MAX][128];
	const char *warm;                   /* The value of warm_restart. NULL: off. */
	char warm_dir[64];                  /* Has a folder for each. Empty if none was made. */
	struct fdstore *store[DAEMONS_MAX]; /* Service managers, if warm is "systemd". */
	pid_t pid[DAEMONS_MAX];
	uint16_t port[DAEMONS_MAX];
	uint32_t workers;
	int nr;
};

/* Node a coordinates. With two nodes each has half of the processors, so that the scheduler does
 * not sometimes put both on the same ones. */
void daemons_start(struct daemons *d, const char *argv0, int nr, uint32_t workers);
/* The same in separate calls, with the default of membership. warm may be NULL. */
void daemons_make(struct daemons *d, const char *argv0, int nr, uint32_t workers, const char *warm);
/* Adds lines to the configuration of each, before it is launched. */
void daemons_configure(const struct daemons *d, const char *lines);
/* One more node, which is in no list and joins by node a once it is launched. Returns its number.
 */
int daemons_joiner(struct daemons *d);
void daemons_launch(struct daemons *d, int i);
void daemons_wait(const struct daemons *d, int i); /* Waits until it answers. */
void daemons_kill(struct daemons *d, int i);       /* Sends SIGKILL and waits for the end. */
/* Takes the memory of a daemon that does not run and whose memory is on a tmpfs. */
void daemons_forget(const struct daemons *d, int i);
void daemons_stop(struct daemons *d); /* Stops the daemons that run. */
/* Returns a figure from a daemon's status. path names a field of the first model
 * ("last_step.apply_s"), or with a leading "/" a field of the daemon itself
 * ("/nodes.1.rdma_in_bytes"). Of a list it is the number of entries, and of a truth value 0 or 1.
 */
double daemons_figure(const struct daemons *d, int i, const char *path);
bool daemons_has(const struct daemons *d, int i, const char *path); /* Is it there? */

/* Trainers that go through steps together. Each is a thread of this process with a connection of
 * its own. */
struct fleet_spec {
	const char *name, *settings;
	uint32_t tensors_nr;
	uint64_t numel;         /* Of each tensor. */
	enum shard_dtype dtype; /* Of gradients and image. */
	int trainers, node[FLEET_MAX];
	uint64_t first_hold_ns; /* Trainer 0 pushes so much later than the others. */
	/* Each tensor's gradient is written anew just before its push, as a backward pass does. */
	bool write;
};

struct fleet;
struct fleet_times {   /* Of one step, in ns. */
	uint64_t push; /* From the first push of any trainer to the return of the last commit. */
	/* From the first push of the trainer that began last to the image complete at every
	 * trainer. */
	uint64_t step;
	/* From the last push of any trainer to the image complete at every trainer. */
	uint64_t after;
};

struct fleet *fleet_begin(const struct daemons *d, const struct fleet_spec *spec);
void fleet_step(struct fleet *f, struct fleet_times *t);
void fleet_end(struct fleet **f);

/* Puts the calling thread, and the threads and processes that it makes later, on the processors of
 * node i of two. -1: on all. */
void bench_processors(int node);
/* The optimizer's bare kernel over as many parameters (bf16, AdamW) in this process, with as many
 * threads, which take chunks from one counter, and the same kinds of pages as a daemon. */
struct bare;
struct bare *bare_begin(uint32_t chunks_nr, uint32_t threads_nr);
double bare_round(struct bare *b); /* Milliseconds. */
void bare_end(struct bare **b);
enum { BARE_CHUNK = 1 << 20 };
double bench_median(double *values, int nr); /* Sorts values. */
__attribute__((noreturn, format(printf, 1, 2))) void bench_fail(const char *fmt, ...);

#endif
