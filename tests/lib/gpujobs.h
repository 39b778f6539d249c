/* SPDX-License-Identifier: Apache-2.0 */
/* gpujobs.h: devices of the daemon (gpu/device.h) on the driver library of tests/cuda, for tests: a
 * loop, jobs that are counted, and what is left with the driver. Failures end the test. */
#ifndef SHARD_TESTS_GPUJOBS_H
#define SHARD_TESTS_GPUJOBS_H

#include "base/rng.h"
#include "gpu/device.h"
#include "lib/fakegpu.h"

enum { MIB = 1 << 20, JOBS = 8, STATES = 1 + OPTIM_STATES_MAX };

extern struct gpujobs {
	struct fakegpu fake;
	uv_loop_t loop;
	/* Jobs that came back, those of them that had failed, and calls of after(). */
	uint32_t done_nr, lost_nr, after_nr;
	uint64_t kept; /* The sum of what was kept. */
} jobs;

/* Starts the program again with the library in its path. Two devices. First in main(). */
void gpujobs_init(char **argv);
void gpujobs_deinit(void);
struct gpu *gpujobs_open(int ordinal);
void gpujobs_close(struct gpu **g);
struct gpu_mem gpujobs_map(struct gpu *g, uint64_t bytes, bool exports);
/* A job without operands. */
struct gpu_job gpujobs_of(enum gpu_what what);
/* Submits it and waits for the end. */
void gpujobs_run(struct gpu *g, const struct gpu_job *j);
void gpujobs_copy(struct gpu *g, enum gpu_what what, void *host, uint64_t device, uint64_t bytes);
void gpujobs_nothing_left(const struct fake_cuda_left *before, const char *when);
/* Tensors of all sizes up to numel_max, with and without gaps, some of them frozen, in 2 groups. */
struct layout *gpujobs_layout(struct rng *r, uint32_t tensors_nr, uint64_t numel_max,
			      uint32_t chunk_elems);

#endif
