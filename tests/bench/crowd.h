/* SPDX-License-Identifier: Apache-2.0 */
/* crowd.h: for bench_control: daemons as threads of this process, more than there are processors,
 * and what each sent and received by the kind of frame. fleet.c trains with them. */
#ifndef SHARD_TESTS_BENCH_CROWD_H
#define SHARD_TESTS_BENCH_CROWD_H

#include "bench/daemons.h"
#include "wire/ops.h"

#include <stdint.h>

struct crowd_count { /* Since the start, of one daemon and all of its connections. */
	uint64_t out_nr[OP_NR], out_bytes[OP_NR]; /* Frames, and their bodies. */
	uint64_t in_nr[OP_NR], in_bytes[OP_NR];
	uint64_t loop_ns; /* Processor time of the loop's thread. */
};

struct crowd;
/* The first node coordinates. The node `alone` has half of the processors, as on a machine of its
 * own: it is woken for each frame, and finds its own data in the caches. Fills the addresses of d
 * for fleet_begin(). */
struct crowd *crowd_begin(struct daemons *d, int nodes, int alone);
/* Exact only while nothing is on its way. */
void crowd_count(const struct crowd *c, int node, struct crowd_count *count);
void crowd_end(struct crowd **c);

#endif
