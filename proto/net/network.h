/* SPDX-License-Identifier: Apache-2.0 */
/* network.h: lists of networks as an operator writes them, and whether an address is in one of
 * them. No I/O. */
#ifndef SHARD_NET_NETWORK_H
#define SHARD_NET_NETWORK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define NETWORK_MAX 32 /* In one list. */

struct network {
	unsigned char prefix[16]; /* Of IPv6. An IPv4 address is one that is mapped into it. */
	uint32_t bits;
};

struct network_list {
	uint32_t nr;
	struct network net[NETWORK_MAX];
};

/* Takes "10.0.0.0/8, fd00::/8, 10.1.2.3": networks, or single addresses, with a comma between them.
 * False: one of them is no network, or has bits behind its mask, or there are too many. */
bool network_parse(struct network_list *l, const char *text);
/* An IPv4 address that is mapped into IPv6 counts as the IPv4 address. */
bool network_has(const struct network_list *l, const struct sockaddr *sa);

#endif
