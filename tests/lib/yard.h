/* SPDX-License-Identifier: Apache-2.0 */
/* yard.h: what a test of checkpoints has: one or two clusters, a folder to save to, and a crew.
 * yard_setup() makes the folder, the test starts the clusters, and yard_teardown() removes what a
 * failed test has left. */
#ifndef SHARD_TESTS_YARD_H
#define SHARD_TESTS_YARD_H

#include "lib/crew.h"
#include "lib/keep.h"
#include "lib/proc.h"

struct yard {
	struct cluster *cluster, *other; /* NULL: none. */
	struct keep keep;
	const char *extra;      /* Settings of the crew, where a test says so. NULL: none. */
	struct crew crew, next; /* `next` is a crew that goes on where the first one ended. */
};

int yard_setup(void **state);
int yard_teardown(void **state);
/* Adds per[n] trainers of node n, over its socket. */
void yard_add(struct crew *crew, const struct cluster *c, const int *per, bool reconnects);
/* The same from the first rank on. Returns when they have trained step `last`. */
void yard_train(struct crew *crew, const struct cluster *c, const int *per, uint64_t last);

/* Waits until every node says of every other that it is up. */
void yard_linked(const struct cluster *c);

struct yard_save { /* A save that does not come to its end. */
	pthread_t thread;
	const char *address, *dir, *tag;
	enum shard_status rc; /* This and text are valid once yard_save_failed() has returned. */
	char text[512];
};

/* Stops node b, asks node a from a thread, and returns when the save has begun. */
void yard_save_stuck(struct yard *y, const char *tag, struct yard_save *s);
/* Waits for the save. The test fails if the save did not fail. */
void yard_save_failed(struct yard_save *s);

#endif
