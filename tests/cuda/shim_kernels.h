/* SPDX-License-Identifier: Apache-2.0 */
/* shim_kernels.h: the kernels of gpu/kernels.cu and cuda/border.cu, compiled with shim.h for this
 * processor, by their names. shim_call() is what a launch is on a GPU. */
#ifndef SHARD_TESTS_SHIM_KERNELS_H
#define SHARD_TESTS_SHIM_KERNELS_H

#include "cuda/border.h"
#include "cuda/shim_run.h"
#include "gpu/kernels.h"

#include <stddef.h>

struct shim_kernel {
	const char *name;
	void (*call)(const void *job); /* Of one thread. The job has the type of the kernel. */
	size_t job_bytes;
	bool meets; /* Its threads meet. */
};

const struct shim_kernel *shim_kernel(const char *name); /* NULL: there is no such kernel. */
void shim_call(const struct shim_kernel *k, const void *job, unsigned blocks, unsigned threads);

#endif
