/* SPDX-License-Identifier: Apache-2.0 */
/* limit_tcp.h: what this machine's loopback gives to a program that does nothing else. There are
 * two processes with blocking sendmsg() and recv(), cold buffers, and the same XXH3 of each block
 * at both ends. This is the limit of push_tcp and pull_tcp. */
#ifndef SHARD_TESTS_LIMIT_TCP_H
#define SHARD_TESTS_LIMIT_TCP_H

#include <stddef.h>
#include <stdint.h>

enum {
	LIMIT_TCP_BLOCK = 256 << 10
}; /* Bytes that are summed and sent at once, which is a part of a chunk. */

struct limit_tcp {
	int fd, pid;
	size_t bytes;
	unsigned char *buffer;
};

/* Forks the receiver. bytes is a multiple of the block, well above the caches. Returns 0, or -1
 * with errno. */
int limit_tcp_begin(struct limit_tcp *l, size_t bytes);
/* Returns GB/s of one pass over the buffer, until the receiver has summed the last byte. */
double limit_tcp_round(struct limit_tcp *l);
void limit_tcp_end(struct limit_tcp *l);
/* Returns GB/s of `iperf3` on loopback, for information. 0: it is not installed. */
double limit_tcp_iperf3(void);

double limit_tcp_median(double *values, int nr); /* Sorts values. */
/* Makes a connected pair over 127.0.0.1. Returns 0, or -1 with errno. */
int limit_tcp_pair(int fds[2]);

#endif
