/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h: what `shardctl bench` measures: steps of a model of its own, trained with made-up
 * gradients by threads of this process, and how fast this machine's memory is. */
#ifndef SHARD_CTL_BENCH_H
#define SHARD_CTL_BENCH_H

#include "shard.h"
#include "base/status.h"

#include <stdbool.h>

enum {
	BENCH_RANKS_MAX = 64,
	BENCH_STEPS_MAX = 100000,
	BENCH_WARM = 2 /* steps that are not counted */
};

struct bench_conf {
	const char *address, *secret, *optimizer, *what; /* what: for the progress line */
	int64_t timeout_ms;                              /* of connecting */
	uint64_t params;
	uint32_t ranks, steps;
	enum shard_dtype image, grad;
	bool progress;
};

struct bench_result {
	double median_s, min_s,
		max_s; /* one step, as rank 0 sees it: begin to result, all of the image there */
	uint64_t pushed, pulled; /* bytes per rank and step */
};

/* Defines a model under a name that nobody has, trains it, drops it; that also after a failure, and
 * after SIGINT, SIGTERM or SIGHUP (SHARD_INTERRUPTED). */
enum shard_status bench_train(const struct bench_conf *b, struct bench_result *r, struct err *e);
/* The most bytes/s that the processors of the affinity mask read and wrote together; 0: there is no
 * memory to try it with. SHARD_SYSTEM: there is no thread for one of the processors. */
enum shard_status bench_memory(double *rate, struct err *e);

#endif
