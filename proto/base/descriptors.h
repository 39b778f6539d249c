/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors.h: how many file descriptors a daemon needs. The daemon checks its limit when it
 * starts (limits.c). `shardctl doctor` checks the limit before a daemon is started. */
#ifndef SHARD_BASE_DESCRIPTORS_H
#define SHARD_BASE_DESCRIPTORS_H

#include <stdint.h>

enum {
	DESCRIPTORS_OWN = 20,   /* The loop, pipes, sockets and the state folder. */
	DESCRIPTORS_FILES = 24, /* Views, checkpoints and files that libraries open. */
	/* Connections kept free for tools, for root and for the daemon's own user. */
	DESCRIPTORS_TOOLS = 10,
	DESCRIPTORS_FEW = 8, /* With fewer connections a daemon is of no use. */
};

/* A daemon does not start with fewer descriptors. links counts the connections to other nodes. */
static inline uint64_t descriptors_least(uint64_t links)
{
	return DESCRIPTORS_OWN + DESCRIPTORS_FILES + DESCRIPTORS_TOOLS + DESCRIPTORS_FEW + links;
}

/* With this many descriptors there is room for every connection that [daemon] connections_max
 * allows. */
static inline uint64_t descriptors_all(uint64_t links, uint64_t connections_max)
{
	return descriptors_least(links) - DESCRIPTORS_FEW + connections_max;
}

#endif
