/* SPDX-License-Identifier: Apache-2.0 */
/* daemons.h: real shardd processes in a folder of their own, and trainers of a large model, for the
 * benchmarks. What fails ends the program with a sentence: a benchmark has nothing to recover. The
 * program's directory must be BUILD/tests/bench. */
#ifndef SHARD_TESTS_BENCH_DAEMONS_H
#define SHARD_TESTS_BENCH_DAEMONS_H

#include "shard.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

struct fdstore;

enum { DAEMONS_MAX = 2, FLEET_MAX = 2, FLEET_TENSORS_MAX = 256 };

struct daemons {
	char dir[64], build[512], address[DAEMONS_MAX][128];
	const char *warm;                   /* warm_restart; NULL: off */
	char warm_dir[64];                  /* empty: none was made */
	struct fdstore *store[DAEMONS_MAX]; /* service managers, if warm is "systemd" */
	pid_t pid[DAEMONS_MAX];
	int nr;
};

/* With two nodes, each has half of the processors, so that the scheduler cannot put them now on
 * one, now on two. */
void daemons_start(struct daemons *d, const char *argv0, int nr, uint32_t workers);
/* The same in steps. warm may be NULL. */
void daemons_make(struct daemons *d, const char *argv0, int nr, uint32_t workers, const char *warm);
void daemons_launch(struct daemons *d, int i);
void daemons_wait(const struct daemons *d, int i); /* until it answers */
void daemons_kill(struct daemons *d, int i);       /* -9, and gone */
void daemons_stop(struct daemons *d);              /* whoever runs */
/* A figure of the first model in a daemon's status, by path ("last_step.apply_s"); of the daemon
 * itself with a leading "/"
 * ("/nodes.1.rdma_in_bytes"). */
double daemons_figure(const struct daemons *d, int i, const char *path);

/* Trainers, each a thread of this process with a connection of its own, that go through steps
 * together. */
struct fleet_spec {
	const char *name, *settings;
	uint32_t tensors_nr;
	uint64_t numel;         /* of each tensor */
	enum shard_dtype dtype; /* of gradients and image */
	int trainers, node[FLEET_MAX];
	uint64_t first_hold_ns; /* trainer 0 pushes so much later than the others */
	bool write; /* each tensor's gradient is written anew just before its push, as a backward
		       pass does */
};

struct fleet;
struct fleet_times {    /* of one step, ns */
	uint64_t push;  /* from the first push of the burst to the last commit's return */
	uint64_t step;  /* from the last trainer's first push to the image complete at every trainer
			 */
	uint64_t after; /* from the last trainer's last push to the image complete at every trainer
			 */
};

struct fleet *fleet_begin(const struct daemons *d, const struct fleet_spec *spec);
void fleet_step(struct fleet *f, struct fleet_times *t);
void fleet_end(struct fleet **f);

/* The calling thread, and whom it makes: on the processors of node i of two; -1: on all. */
void bench_processors(int node);
double bench_median(double *values, int nr); /* sorts */
__attribute__((noreturn, format(printf, 1, 2))) void bench_fail(const char *fmt, ...);

#endif
