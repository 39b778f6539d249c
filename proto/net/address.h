/* SPDX-License-Identifier: Apache-2.0 */
/* address.h: addresses to listen on or to dial, as text and as socket addresses. No I/O. The client
 * library uses it without libuv. */
#ifndef SHARD_NET_ADDRESS_H
#define SHARD_NET_ADDRESS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct conn_address { /* "unix:/path", "tcp://host:port", "host:port" or "[v6]:port". */
	bool unix_path;
	char text[128]; /* As given. */
	char host[108]; /* Or the path. */
	uint16_t port;
};

struct address_sock {
	socklen_t bytes;
	struct sockaddr_storage sa;
};

enum shard_status conn_address_parse(struct conn_address *a, const char *text, struct err *e);
bool conn_address_loopback(const struct conn_address *a);
/* Works for unix paths and numeric hosts. False means that the host is a name, which the caller has
 * to resolve. */
bool address_numeric(const struct conn_address *a, struct address_sock *out);
/* True for the same host, whatever the ports. An IPv4 address mapped into IPv6 equals the IPv4
 * address, and all loopback addresses are one host. */
bool address_same_host(const struct address_sock *a, const struct address_sock *b);
void address_text(const struct sockaddr *sa, char *text,
		  uint32_t bytes); /* "127.0.0.1:29700", "[::1]:29700". */

#endif
