/* SPDX-License-Identifier: Apache-2.0 */
/* address.h: where a daemon listens, as text and as socket addresses. No I/O; the client library
 * uses it without libuv. */
#ifndef SHARD_NET_ADDRESS_H
#define SHARD_NET_ADDRESS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct conn_address { /* "unix:/path", "tcp://host:port", "host:port", "[v6]:port" */
	bool unix_path;
	char text[128]; /* as given */
	char host[108]; /* or path */
	uint16_t port;
};

struct address_sock {
	socklen_t bytes;
	struct sockaddr_storage sa;
};

enum shard_status conn_address_parse(struct conn_address *a, const char *text, struct err *e);
bool conn_address_loopback(const struct conn_address *a);
/* Unix paths and numeric hosts. False: the host is a name, which somebody has to resolve. */
bool address_numeric(const struct conn_address *a, struct address_sock *out);
/* The same host, whatever the ports; an IPv4 address within IPv6 is itself, and all loopback
 * addresses are one host. */
bool address_same_host(const struct address_sock *a, const struct address_sock *b);
void address_text(const struct sockaddr *sa, char *text,
		  uint32_t bytes); /* "127.0.0.1:29700", "[::1]:29700" */

#endif
