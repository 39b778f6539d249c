/* SPDX-License-Identifier: Apache-2.0 */
/* hold.h: some threads of a child stand still while its others go on, so that a test finds a daemon in the middle of what its workers do.
 * As a debugger does it: the program under test has nothing for this. Held and released by one and the same thread. */
#ifndef SHARD_TESTS_HOLD_H
#define SHARD_TESTS_HOLD_H

#include <stdint.h>
#include <sys/types.h>

enum { HOLD_MAX = 64 };

struct hold {
	pid_t tid[HOLD_MAX];
	uint32_t nr;
};

/* All whose name begins with it ("shardd-w"), and at least one, else the test fails; none of them runs when this returns. */
void hold_threads(struct hold *h, pid_t pid, const char *name);
void hold_release(struct hold *h);

#endif
