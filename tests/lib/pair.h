/* SPDX-License-Identifier: Apache-2.0 */
/* pair.h: two real nodes with a drilled trainer on each and a connection of the test's own to each:
 * for tests of what operators do. */
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
		const char *extra);                   /* extra: lines of configuration */
void pair_join(struct pair *p, const char *settings); /* "m": rank 0 on node a, rank 1 on node b */
void pair_both(struct pair *p, struct drill_cmd cmd);
void pair_rest_of_step(struct pair *p); /* after DRILL_BEGIN */
void pair_finish(struct pair *p);
#define BOTH(p, ...) pair_both((p), (struct drill_cmd){__VA_ARGS__})

long long pair_used(struct pair *p, int node); /* bytes of its budget, by models */
int pair_files(struct pair *p);                /* models that the coordinator keeps on disk */
void pair_await_log(struct pair *p, int node,
		    const char *part); /* what a test waits for that no call reports */
char *pair_model(struct pair *p, char words[256],
		 const char *what); /* for shardctl, at node b; returns words */
/* shardctl model WHAT in a process of its own, after the coordinator's log has `heard`: the step in
 * hand is decided first. */
pid_t pair_change(struct pair *p, char words[256], const char *what, const char *heard);
void pair_fails(enum shard_status got, enum shard_status want,
		const char *part); /* of shard_error() */

#endif
