/* SPDX-License-Identifier: Apache-2.0 */
/* Parses and prints addresses. The configuration, the listeners and the code that dials call it. It
 * does no I/O. An address that an operator wrote wrongly is a status, whose text has the faulty
 * address and the valid forms. */
#include "net/address.h"

#include "base/check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

static enum shard_status bad(const char *text, const char *what, struct err *e)
{
	return err_set(
		e, SHARD_BAD_ARG,
		"address \"%.100s\": %s: write unix:/path, host:port, [v6]:port or tcp://host:port",
		text, what);
}

static const char *parse_port(const char *text, uint16_t *port)
{
	uint32_t n = 0;

	if (*text == '\0')
		return "no port";
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return "the port is not a number";
		n = n * 10 + (uint32_t)(*text - '0');
		if (n > 65535)
			return "the port is over 65535";
	}
	*port = (uint16_t)n;
	return NULL;
}

static const char *parse_tcp(struct conn_address *a, const char *text)
{
	const char *host = text, *end, *colon;

	if (*text == '[') {
		host = text + 1;
		end = strchr(text, ']');
		if (!end || end[1] != ':')
			return "a host in [ ] must end with ]:port";
		colon = end + 1;
	} else {
		colon = end = strrchr(text, ':');
		if (!colon)
			return "no port";
		if (strchr(text, ':') != colon)
			return "an IPv6 host needs [ ]";
	}
	if (end == host)
		return "no host";
	if ((size_t)(end - host) >= sizeof(a->host))
		return "the host is too long";
	memcpy(a->host, host, (size_t)(end - host));
	return parse_port(colon + 1, &a->port);
}

enum shard_status conn_address_parse(struct conn_address *a, const char *text, struct err *e)
{
	const char *what;

	CHECK(a && text);
	memset(a, 0, sizeof(*a));
	if (strlen(text) >= sizeof(a->text))
		return bad(text, "too long", e);
	strcpy(a->text, text);
	if (strncmp(text, "unix:", 5) == 0) {
		a->unix_path = true;
		if (text[5] == '\0')
			return bad(text, "no path", e);
		if (strlen(text + 5) >= sizeof(((struct sockaddr_un *)0)->sun_path))
			return bad(text, "the path is over 107 bytes", e);
		strcpy(a->host, text + 5);
		return SHARD_OK;
	}
	what = parse_tcp(a, strncmp(text, "tcp://", 6) == 0 ? text + 6 : text);
	return what ? bad(text, what, e) : SHARD_OK;
}

bool address_numeric(const struct conn_address *a, struct address_sock *out)
{
	struct sockaddr_un *un = (void *)&out->sa;
	struct sockaddr_in *v4 = (void *)&out->sa;
	struct sockaddr_in6 *v6 = (void *)&out->sa;

	memset(out, 0, sizeof(*out));
	if (a->unix_path) {
		un->sun_family = AF_UNIX;
		strcpy(un->sun_path, a->host); /* conn_address_parse() has checked the length. */
		out->bytes = sizeof(*un);
		return true;
	}
	if (inet_pton(AF_INET, a->host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(a->port);
		out->bytes = sizeof(*v4);
		return true;
	}
	if (inet_pton(AF_INET6, a->host, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(a->port);
		out->bytes = sizeof(*v6);
		return true;
	}
	return false;
}

bool conn_address_loopback(const struct conn_address *a)
{
	struct address_sock s;

	if (a->unix_path || strcmp(a->host, "localhost") == 0)
		return true;
	if (!address_numeric(a, &s))
		return false;
	if (s.sa.ss_family == AF_INET)
		return ntohl(((struct sockaddr_in *)(void *)&s.sa)->sin_addr.s_addr) >> 24 == 127;
	return IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)(void *)&s.sa)->sin6_addr);
}

/* The host as an IPv6 address. A loopback address becomes ::1. */
static struct in6_addr host_of(const struct address_sock *s)
{
	struct in6_addr h = {.s6_addr = {[10] = 0xff, [11] = 0xff}};

	if (s->sa.ss_family == AF_INET)
		memcpy(h.s6_addr + 12,
		       &((const struct sockaddr_in *)(const void *)&s->sa)->sin_addr, 4);
	else
		h = ((const struct sockaddr_in6 *)(const void *)&s->sa)->sin6_addr;
	return IN6_IS_ADDR_V4MAPPED(&h) && h.s6_addr[12] == 127
		       ? (struct in6_addr)IN6ADDR_LOOPBACK_INIT
		       : h;
}

bool address_same_host(const struct address_sock *a, const struct address_sock *b)
{
	struct in6_addr x, y;

	if (a->sa.ss_family == AF_UNIX || b->sa.ss_family == AF_UNIX)
		return false;
	x = host_of(a);
	y = host_of(b);
	return memcmp(&x, &y, sizeof(x)) == 0;
}

void address_text(const struct sockaddr *sa, char *text, uint32_t bytes)
{
	char host[INET6_ADDRSTRLEN] = "?";

	if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *v4 = (const void *)sa;

		inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
		snprintf(text, bytes, "%s:%u", host, ntohs(v4->sin_port));
	} else if (sa->sa_family == AF_INET6) {
		const struct sockaddr_in6 *v6 = (const void *)sa;

		inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
		snprintf(text, bytes, "[%s]:%u", host, ntohs(v6->sin6_port));
	} else {
		snprintf(text, bytes, "unix");
	}
}
