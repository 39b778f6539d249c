/* SPDX-License-Identifier: Apache-2.0 */
/* fault.h: makes the N-th allocation of the calling thread fail, so that a test can walk through
 * every way to run out of memory. A test writes: for (fault_begin(&f); fault_next(&f);) { st =
 * thing_init(&t); if (fault_end(&f)) assert(st != OK); else thing_free(&t); } The loop ends after
 * the first round in which nothing failed. A sanitizer has an allocator of its own, and there is
 * only that round then. */
#ifndef SHARD_TESTS_FAULT_H
#define SHARD_TESTS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

struct fault {
	uint32_t round;
	bool over;
};

void fault_begin(struct fault *f);
bool fault_next(struct fault *f); /* Arms the next round. False: everything has been tried. */
bool fault_end(struct fault *f);  /* Disarms. True: an allocation failed in this round. */

#endif
