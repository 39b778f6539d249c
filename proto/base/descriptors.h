/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors.h: how many descriptors a daemon needs. The daemon looks at its start (limits.c), and
 * `shardctl doctor` says beforehand whether they are there. */
#ifndef SHARD_BASE_DESCRIPTORS_H
#define SHARD_BASE_DESCRIPTORS_H

#include <stdint.h>

enum {
	DESCRIPTORS_OWN = 20,   /* Of the loop, pipes, sockets, the state's folder. */
	DESCRIPTORS_FILES = 24, /* Of views, checkpoints, what a library opens in passing. */
	DESCRIPTORS_TOOLS =
		10,          /* Of connections that only tools, root and the daemon's user get. */
	DESCRIPTORS_FEW = 8, /* Connections with which a start makes sense. */
};

/* With less a daemon does not start. links: connections to other nodes. */
static inline uint64_t descriptors_least(uint64_t links)
{
	return DESCRIPTORS_OWN + DESCRIPTORS_FILES + DESCRIPTORS_TOOLS + DESCRIPTORS_FEW + links;
}

/* With these, all connections fit that [daemon] connections_max allows. */
static inline uint64_t descriptors_all(uint64_t links, uint64_t connections_max)
{
	return descriptors_least(links) - DESCRIPTORS_FEW + connections_max;
}

#endif
