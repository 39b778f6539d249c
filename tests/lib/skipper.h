/* SPDX-License-Identifier: Apache-2.0 */
/* skipper.h: two trainers of a small model of which every third step is skipped. They check what
 * they read and what comes of each step; a wrong value fails the test. */
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
	_Atomic uint64_t step, last; /* In hand; and after which it ends. */
};

/* of: [SKIPPERS], one at each of these addresses. */
void skipper_start(struct skipper *of, const char *const *address);
void skipper_more(struct skipper *of, uint64_t steps); /* So many from now on. */
void skipper_end(struct skipper *of);

#endif
