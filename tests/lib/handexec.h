/* SPDX-License-Identifier: Apache-2.0 */
/* handexec.h: a row of exec.h whose jobs run when the test says so. */
#ifndef SHARD_TESTS_HANDEXEC_H
#define SHARD_TESTS_HANDEXEC_H

#include "node/exec.h"

#include <stdbool.h>
#include <stdint.h>

enum { HAND_JOBS = 128 };

struct hand {
	struct exec_job job[HAND_JOBS];
	uint32_t nr;
	bool full; /* It takes no more for now. */
};

extern const struct exec_row hand_row;     /* Its self is a struct hand. */
void hand_run(struct hand *h, uint32_t i); /* The i-th of those that wait. */

#endif
