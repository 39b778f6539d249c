/* SPDX-License-Identifier: Apache-2.0 */
/* calm.h: two daemons in this process, a trainer of each in the main thread, and an allocator that
 * counts what every other thread asks for: how many allocations a hundred steps take. Linking this
 * file is what puts the allocator in place. */
#ifndef SHARD_TESTS_CALM_H
#define SHARD_TESTS_CALM_H

#include "lib/inproc.h"

enum { CALM_WARM = 10, CALM_STEPS = 100 };

bool calm_can(void); /* false: a sanitizer has the allocator */
/* before: after the warm steps, and after: NULL, or called with arg, outside of the count. Returns
 * the allocations of the steps between. */
uint64_t calm_steps(const char *net, void (*before)(struct inproc *c, void *arg),
		    void (*after)(struct inproc *c, void *arg), void *arg);

#endif
