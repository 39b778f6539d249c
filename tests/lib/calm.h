/* SPDX-License-Identifier: Apache-2.0 */
/* calm.h: counts how many allocations CALM_STEPS steps take. Two daemons run in this process, the
 * main thread has a trainer of each, and the allocator counts the requests of every other thread. A
 * program that links this file gets that allocator. */
#ifndef SHARD_TESTS_CALM_H
#define SHARD_TESTS_CALM_H

#include "lib/inproc.h"

enum { CALM_WARM = 10, CALM_STEPS = 100 };

bool calm_can(void); /* False: a sanitizer has an allocator of its own. */
/* Calls before(c, arg) after the warm steps and after(c, arg) after the counted steps, both outside
 * of the count. Either may be NULL. Returns the number of allocations of the counted steps. */
uint64_t calm_steps(const char *net, void (*before)(struct inproc *c, void *arg),
		    void (*after)(struct inproc *c, void *arg), void *arg);

#endif
