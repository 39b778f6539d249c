/* SPDX-License-Identifier: Apache-2.0 */
/* crewed.h: daemons as threads with a crew of one trainer on each, which trains until the end and
 * is right. */
#ifndef SHARD_TESTS_CREWED_H
#define SHARD_TESTS_CREWED_H

#include "lib/crew.h"
#include "lib/inproc.h"

struct crewed {
	struct inproc cluster;
	struct crew crew;
};

struct crewed *crewed_begin(const struct inproc_conf *conf); /* the crew has not started */
void crewed_steps(struct crewed *r, uint64_t steps);         /* waits for so many more */
void crewed_end(struct crewed *r);                           /* every node has the right bits */

#endif
