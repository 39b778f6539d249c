/* SPDX-License-Identifier: Apache-2.0 */
/* skipper.h: two trainers of a small model of which every third step is skipped. They check the
 * weights that they read and the outcome of each step. A wrong value fails the test. */
#ifndef SHARD_TESTS_SKIPPER_H
#define SHARD_TESTS_SKIPPER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum { SKIPPERS = 2 };

struct skipper {
	pthread_t thread;
	const char *address;
	int rank;
	_Atomic uint64_t step, last; /* The step in hand, and the step after which it ends. */
};

/* Fills of[SKIPPERS] and starts one trainer at each of these addresses. */
void skipper_start(struct skipper *of, const char *const *address);
void skipper_more(struct skipper *of, uint64_t steps); /* Waits for so many more steps. */
void skipper_end(struct skipper *of);

#endif
