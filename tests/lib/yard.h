/* SPDX-License-Identifier: Apache-2.0 */
/* yard.h: what a test of checkpoints has: a cluster or two, a folder to save to, a crew.
 * yard_setup() makes the folder, the test starts the clusters, and yard_teardown() puts away what a
 * failed test has left. */
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

/* Waits until every node says of every other that it is up. */
void yard_linked(const struct cluster *c);

struct yard_save { /* one that does not come to its end */
	pthread_t thread;
	const char *address, *dir, *tag;
	enum shard_status rc; /* both once yard_save_failed() is back */
	char text[512];
};

void yard_save_stuck(struct yard *y, const char *tag,
		     struct yard_save *s);  /* stops node b, asks node a from a thread, and returns
					       when the save has begun */
void yard_save_failed(struct yard_save *s); /* waits; the test fails if it did not */

#endif
