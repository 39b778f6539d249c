/* SPDX-License-Identifier: Apache-2.0 */
/* yard.h: what a test of checkpoints has: a cluster or two, a folder to save to, a crew. yard_setup() makes the folder, the test starts
 * the clusters, and yard_teardown() puts away what a failed test has left. */
#ifndef SHARD_TESTS_YARD_H
#define SHARD_TESTS_YARD_H

#include "lib/crew.h"
#include "lib/keep.h"
#include "lib/proc.h"

struct yard {
	struct cluster *cluster, *other; /* NULL: none */
	struct keep keep;
	struct crew crew, next; /* next: a crew that goes on from where the first one was */
};

int yard_setup(void **state);
int yard_teardown(void **state);
/* per[n] trainers of node n, over its socket. */
void yard_add(struct crew *crew, const struct cluster *c, const int *per, bool reconnects);
/* The same from the first rank on, until they have trained step last. */
void yard_train(struct crew *crew, const struct cluster *c, const int *per, uint64_t last);

#endif
