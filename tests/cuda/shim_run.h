/* SPDX-License-Identifier: Apache-2.0 */
/* shim_run.h: runs a kernel that was compiled with shim.h. Blocks come one after the other, in an
 * order that comes from a seed, and so do the threads of a block. Threads that meet are fibres. One
 * kernel runs at a time in a process, on the calling thread. */
#ifndef SHARD_TESTS_SHIM_RUN_H
#define SHARD_TESTS_SHIM_RUN_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHIM_WARP = 32 };

/* Where the device looks for what it flushes: optim/ops.h. */
enum shim_ftz {
	SHIM_X86,    /* At the result, rounded as if the exponent had no bounds. */
	SHIM_KEEPS,  /* At the result that IEEE 754 has. */
	SHIM_BEFORE, /* At the exact result. */
	SHIM_FTZ_NR
};
enum shim_op { SHIM_MUL = 1, SHIM_FMA, SHIM_DIV };

struct shim_index {
	unsigned x;
};

extern struct shim {
	struct shim_index thread, block;
	enum shim_ftz ftz;
	uint64_t seed; /* Of the orders. Each launch changes it. */
} shim;

/* Calls kernel(arg) for each thread of each block. `meets` says whether threads may meet. What the
 * kernel does wrong with that ends the process with a sentence. */
void shim_launch(void (*kernel)(const void *arg), const void *arg, unsigned blocks,
		 unsigned threads, bool meets);

/* Of a thread: waits for those of its warp that have a bit. */
void shim_meet(unsigned lanes);
/* Returns the x of the thread `down` lanes above, or its own if that is in the next `width`. */
double shim_shuffle_down(unsigned lanes, double x, int down, int width);
/* Is the exact result below 2^-126 in magnitude? */
bool shim_below(int op, float x, float y, float z);

#ifdef __cplusplus
}
#endif

#endif
