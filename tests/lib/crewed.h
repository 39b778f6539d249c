/* SPDX-License-Identifier: Apache-2.0 */
/* crewed.h: daemons as threads, with a crew that has one trainer on each. The crew trains until the
 * end, and then its result must be right. */
#ifndef SHARD_TESTS_CREWED_H
#define SHARD_TESTS_CREWED_H

#include "lib/crew.h"
#include "lib/inproc.h"

struct crewed {
	struct inproc cluster;
	struct crew crew;
};

struct crewed *crewed_begin(const struct inproc_conf *conf); /* Does not start the crew. */
void crewed_steps(struct crewed *r, uint64_t steps);         /* Waits for so many more steps. */
void crewed_end(struct crewed *r);                           /* Checks the bits of every node. */

#endif
