// SPDX-License-Identifier: Apache-2.0
/* Connects to a daemon at "unix:/path" or "tcp://host:port". shard_connect() calls it. "spawn:NAME"
 * is the unix socket of that name, and spawn.c starts the daemon. It fails with SHARD_BAD_ARG for
 * what is no address, and with SHARD_UNREACHABLE, the errno's name and what to do. Only resolving a
 * name can take longer than the deadline, because the resolver has its own timeout. */
#include "client.h"

#include "net/address.h"
#include "net/tcp.h"
#include "spawn/spawn.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum shard_status dial_check(const char *address, bool *tcp)
{
	struct conn_address a;
	struct spawn s;
	struct err e;

	*tcp = false;
	if (spawn_is(address))
		return spawn_find(&s, address, &e) == SHARD_OK ? SHARD_OK : text_fail_err(&e);
	if (conn_address_parse(&a, address, &e) != SHARD_OK)
		return text_fail_err(&e);
	*tcp = !a.unix_path;
	return SHARD_OK;
}

/* What to do where nothing listens at a unix socket depends on whose socket it is. */
static const char *hint_unix(const char *address, int error, char text[256])
{
	static const char service[] = "unix:/run/shardd/shardd.sock", end[] = "/shardd.sock";
	size_t n = strlen(address), name = n;
	char private[80];
	struct spawn s;

	if (strcmp(address, service) == 0)
		return "is the service running? systemctl status shardd; or give the address of "
		       "another daemon, or spawn:NAME for a private one";
	if (n > sizeof(end) && strcmp(address + n - (sizeof(end) - 1), end) == 0)
		for (name = n -= sizeof(end) - 1; name > 0 && address[name - 1] != '/';)
			name--;
	snprintf(private, sizeof(private), "spawn:%.*s", (int)(n - name), address + name);
	if (n - name < 70 && spawn_find(&s, private, NULL) == SHARD_OK &&
	    strcmp(s.address, address) == 0) {
		snprintf(text, 256,
			 "this is where %s has its private daemon, which has ended: the address %s "
			 "starts another one",
			 private, private);
		return text;
	}
	return error == ENOENT ? "there is no such socket: start the daemon whose [daemon] socket "
				 "this is, or correct the address"
			       : "the daemon whose [daemon] socket this is has ended: start it";
}

static enum shard_status unreachable(const char *address, int error, bool tcp)
{
	const char *name = strerrorname_np(error), *hint;
	char text[256];

	if (error == EACCES || error == EPERM)
		hint = "may this user train? add it to the group shardd";
	else if (error == ETIMEDOUT)
		hint = "no answer in time: is the address right, is there a firewall?";
	else
		hint = tcp ? "is it running there, and is `listen` set in its shardd.conf?"
			   : hint_unix(address, error, text);
	errno = error;
	return text_fail(SHARD_UNREACHABLE, "no shardd at %.200s (%s): %s", address,
			 name ? name : "?", hint);
}

/* Returns 0 or errno. */
static int finish_connect(int fd, uint64_t deadline_ns)
{
	for (;;) {
		uint64_t now = clock_ns(),
			 left_ms = now >= deadline_ns ? 0 : (deadline_ns - now) / NS_PER_MS + 1;
		struct pollfd p = {.fd = fd, .events = POLLOUT};
		int n = poll(&p, 1, left_ms > 60000 ? 60000 : (int)left_ms), error = 0;
		socklen_t bytes = sizeof(error);

		if (n < 0 && errno != EINTR)
			return errno;
		if (n > 0)
			return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) ? errno : error;
		if (clock_ns() >= deadline_ns)
			return ETIMEDOUT;
	}
}

/* Returns 0 or errno. */
static int dial_one(const struct sockaddr *sa, socklen_t bytes, uint64_t deadline_ns, int *fd)
{
	int error = 0, s = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (s < 0)
		return errno;
	while (connect(s, sa, bytes) != 0) {
		error = errno;
		if (error == EINPROGRESS || error == EINTR) {
			error = finish_connect(s, deadline_ns);
			break;
		}
		if (error != EAGAIN ||
		    clock_ns() >= deadline_ns) /* EAGAIN: the backlog of a unix socket is full. */
			break;
		error = 0;
		(void)poll(NULL, 0, 5);
	}
	/* A daemon whose machine went without a word is found by keep-alive. */
	if (error == 0 && sa->sa_family != AF_UNIX)
		tcp_tune(s);
	if (error != 0)
		close(s);
	else
		*fd = s;
	return error;
}

static enum shard_status dial_name(const char *address, const struct conn_address *a,
				   uint64_t deadline_ns, int *fd)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC,
				 .ai_socktype = SOCK_STREAM,
				 .ai_flags = AI_NUMERICSERV},
			*all = NULL;
	char port[8];
	int n, error = EADDRNOTAVAIL;

	snprintf(port, sizeof(port), "%u", a->port);
	if ((n = getaddrinfo(a->host, port, &hints, &all)) != 0)
		return text_fail(SHARD_UNREACHABLE,
				 "no shardd at %.200s: host \"%s\": %s: correct the address, or "
				 "see why `getent hosts %s` finds nothing",
				 address, a->host,
				 n == EAI_SYSTEM ? strerror(errno) : gai_strerror(n), a->host);
	for (struct addrinfo *i = all; i != NULL; i = i->ai_next)
		if ((error = dial_one(i->ai_addr, i->ai_addrlen, deadline_ns, fd)) == 0)
			break;
	freeaddrinfo(all);
	return error == 0 ? SHARD_OK : unreachable(address, error, true);
}

enum shard_status dial(const char *address, uint64_t deadline_ns, int *fd)
{
	const bool spawned = spawn_is(address);
	struct address_sock sock;
	struct conn_address a;
	struct spawn s;
	struct err e;
	int error;

	if (spawned && spawn_find(&s, address, &e) != SHARD_OK)
		return text_fail_err(&e);
	if (conn_address_parse(&a, spawned ? s.address : address, &e) != SHARD_OK)
		return text_fail_err(&e);
	if (!address_numeric(&a, &sock))
		return dial_name(address, &a, deadline_ns, fd);
	error = dial_one((const struct sockaddr *)&sock.sa, sock.bytes, deadline_ns, fd);
	if (error == 0 && spawned && spawn_peer(address, *fd, &e) != SHARD_OK) {
		close(*fd);
		return text_fail_err(&e);
	}
	return error == 0 ? SHARD_OK : unreachable(address, error, !a.unix_path);
}
