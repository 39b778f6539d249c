/* SPDX-License-Identifier: Apache-2.0 */
/* frames.h: for bench_control: what a control frame costs a daemon's loop below its message. There
 * are real connections of proto/net over loopback TCP on one loop, and their other ends on another
 * thread. */
#ifndef SHARD_TESTS_BENCH_FRAMES_H
#define SHARD_TESTS_BENCH_FRAMES_H

#include <stdint.h>

struct frames_cost {    /* Processor time of the loop's thread for one frame, in ns. */
	double send;    /* Queued and written at once: header, sums, and the system call. */
	double second;  /* A further frame in the same write. */
	double receive; /* Read, checked and given to its handler, with the loop's part. */
};

struct frames;
struct frames *frames_begin(uint32_t conns_nr);
/* The median of so many rounds. In a round a frame with a body of so many bytes goes out on each
 * connection, and one comes back on each. */
void frames_measure(struct frames *f, uint32_t bytes, uint32_t rounds, struct frames_cost *cost);
void frames_end(struct frames **f);

#endif
