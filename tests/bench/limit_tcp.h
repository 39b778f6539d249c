/* SPDX-License-Identifier: Apache-2.0 */
/* limit_tcp.h: what this machine's loopback gives to a program that does nothing else: two
 * processes, blocking sendmsg() and recv(), cold buffers, the same XXH3 of each block at both ends.
 * The limit that push_tcp and pull_tcp are measured against. */
#ifndef SHARD_TESTS_LIMIT_TCP_H
#define SHARD_TESTS_LIMIT_TCP_H

#include <stddef.h>
#include <stdint.h>

enum {
	LIMIT_TCP_BLOCK = 256 << 10
}; /* bytes that are summed and sent at once: a part of a chunk */

struct limit_tcp {
	int fd, pid;
	size_t bytes;
	unsigned char *buffer;
};

/* Forks the receiver. bytes: a multiple of the block, well above the caches. 0, or -1 with errno.
 */
int limit_tcp_begin(struct limit_tcp *l, size_t bytes);
double limit_tcp_round(struct limit_tcp *l); /* GB/s of one pass over the buffer, until the receiver
						has summed the last byte */
void limit_tcp_end(struct limit_tcp *l);
double limit_tcp_iperf3(void); /* GB/s of `iperf3` on loopback, for information; 0: not installed */

double limit_tcp_median(double *values, int nr); /* sorts */
/* A connected pair over 127.0.0.1. 0, or -1 with errno. */
int limit_tcp_pair(int fds[2]);

#endif
