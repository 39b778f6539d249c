/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h: the two measurements of `shardctl bench`. One trains a model of its own with made-up
 * gradients, in threads of this process. The other finds out how fast this machine's memory is. */
#ifndef SHARD_CTL_BENCH_H
#define SHARD_CTL_BENCH_H

#include "shard.h"
#include "base/status.h"

#include <stdbool.h>

enum {
	BENCH_RANKS_MAX = 64,
	BENCH_STEPS_MAX = 100000,
	BENCH_WARM = 2 /* Steps at the beginning that are not counted. */
};

struct bench_conf {
	const char *address, *secret, *tls, *optimizer,
		*what;      /* `what` is for the progress line. */
	int64_t timeout_ms; /* For connecting to the daemon. */
	uint64_t params;
	uint32_t ranks, steps;
	enum shard_dtype image, grad;
	bool progress;
};

struct bench_result {
	/* One step as rank 0 sees it, from begin until it has pulled the whole image. */
	double median_s, min_s, max_s;
	uint64_t pushed, pulled; /* Bytes per rank and step. */
};

/* Defines a model under a name that no other model has, trains it and drops it. The model is
 * dropped also after a failure, and after SIGINT, SIGTERM or SIGHUP (SHARD_INTERRUPTED). */
enum shard_status bench_train(const struct bench_conf *b, struct bench_result *r, struct err *e);
/* Sets *rate to the most bytes/s that the processors of the affinity mask read and wrote together,
 * in memory beyond most caches, and in as many bytes as an update touches if these are fewer,
 * because they may stay in a cache. It is 0 where there is no memory to try it with. SHARD_SYSTEM:
 * a thread cannot be made. */
enum shard_status bench_memory(uint64_t bytes, double *rate, struct err *e);

#endif
