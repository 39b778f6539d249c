/* SPDX-License-Identifier: Apache-2.0 */
/* histogram.h: counts of durations by buckets. Adding allocates nothing and takes no lock, so it
 * may be done in every step. */
#ifndef SHARD_NODE_HISTOGRAM_H
#define SHARD_NODE_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BOUNDS 20

struct histogram {
	uint64_t bucket[HISTOGRAM_BOUNDS +
			1]; /* Not cumulative. The last one counts times beyond every bound. */
	uint64_t count, sum_ns;
};

void histogram_add(struct histogram *h, uint64_t ns); /* A time equal to a bound is within it. */
uint64_t histogram_bound_ns(uint32_t i);              /* i < HISTOGRAM_BOUNDS. Bounds ascend. */

#endif
