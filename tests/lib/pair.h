/* SPDX-License-Identifier: Apache-2.0 */
/* pair.h: for tests of what operators do. It has two real nodes, a trainer on each that makes one
 * call at a time (drill.h), and a connection of the test to each node. */
#ifndef SHARD_TESTS_PAIR_H
#define SHARD_TESTS_PAIR_H

#include "lib/drill.h"

#define PAIR_SGD "optimizer=sgd lr=1 chunk_elems=1024 timeout=20s "
#define PAIR_TWO PAIR_SGD "min_world=2 max_world=2"

struct pair {
	struct drill_yard *y;
	struct drill *t[2];
	shard_client *c[2];
};

void pair_start(struct pair *p, void **state,
		const char *extra); /* extra has lines of configuration. */
/* Joins the model "m" with rank 0 on node a and rank 1 on node b. */
void pair_join(struct pair *p, const char *settings);
void pair_both(struct pair *p, struct drill_cmd cmd);
void pair_rest_of_step(struct pair *p); /* Called after DRILL_BEGIN. */
void pair_finish(struct pair *p);
#define BOTH(p, ...) pair_both((p), (struct drill_cmd){__VA_ARGS__})

long long pair_used(struct pair *p, int node); /* Bytes of its budget that models use. */
int pair_files(struct pair *p);                /* Models that the coordinator has on disk. */
/* Waits for what no call reports. */
void pair_await_log(struct pair *p, int node, const char *part);
/* Writes the arguments for shardctl at node b into words, and returns it. */
char *pair_model(struct pair *p, char words[256], const char *what);
/* Runs shardctl model WHAT in a process of its own, and returns once the coordinator has logged
 * `heard`. The step in hand is decided before the change. */
pid_t pair_change(struct pair *p, char words[256], const char *what, const char *heard);
/* shard_error() must contain `part`. */
void pair_fails(enum shard_status got, enum shard_status want, const char *part);

#endif
