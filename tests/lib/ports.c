// SPDX-License-Identifier: Apache-2.0
/* Ports for tests. ports_take() is called for each daemon. A port that the kernel chose, and that
 * was closed again, may go to the next test or to any outgoing connection before the daemon listens
 * there. So a port is reserved: in one file the byte at the port's number is locked, by a lock that
 * belongs to the open file and ends with the process and its children. The port is also outside of
 * the range that the kernel gives to outgoing connections. The test fails if all ports are
 * taken. */
#include "lib/ports.h"

#include "base/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { FIRST = 10000, END = 29700 /* The daemon's own port. */ };

static struct {
	pthread_mutex_t lock;
	pid_t pid; /* The process that opened the file. A child takes ports of its own. */
	int fd;
	uint32_t next;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void open_file(void)
{
	char path[64];

	snprintf(path, sizeof(path), "/tmp/shard-test-ports-%u", (unsigned)geteuid());
	g.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (g.fd < 0)
		fail_msg("%s cannot be opened", path);
	g.pid = getpid();
	/* Two processes that start at the same time begin at different ports. */
	g.next = FIRST + (uint32_t)g.pid * 37 % (END - FIRST);
}

static bool reserve(uint32_t port)
{
	struct flock l = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)port, .l_len = 1};

	if (fcntl(g.fd, F_OFD_SETLK, &l) == 0)
		return true;
	CHECK(errno == EAGAIN || errno == EACCES);
	return false;
}

/* True: no other program listens there. SO_REUSEADDR ignores the old connections of a daemon that
 * has just ended. */
static bool free_at(uint32_t address, uint32_t port)
{
	struct sockaddr_in in = {.sin_family = AF_INET,
				 .sin_addr.s_addr = htonl(address),
				 .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	bool ok;

	CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	ok = bind(fd, (struct sockaddr *)&in, sizeof(in)) == 0 && listen(fd, 1) == 0;
	close(fd);
	return ok;
}

static bool outgoing(uint32_t port, const uint32_t range[2])
{
	return port >= range[0] && port <= range[1];
}

uint16_t ports_take(void)
{
	uint32_t range[2] = {32768, 60999}, port = 0;
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");

	if (f != NULL) {
		/* The range covers everything, so the port is only reserved among tests. */
		if (fscanf(f, "%u %u", &range[0], &range[1]) != 2 || range[0] <= FIRST)
			range[0] = range[1] = 0;
		fclose(f);
	}
	pthread_mutex_lock(&g.lock);
	if (g.pid != getpid())
		open_file();
	for (uint32_t tries = 0; tries < END - FIRST && port == 0; tries++) {
		uint32_t at = g.next;

		g.next = at + 1 < END ? at + 1 : FIRST;
		if (!outgoing(at, range) && reserve(at) && free_at(INADDR_LOOPBACK, at) &&
		    free_at(INADDR_LOOPBACK + 1, at))
			port = at;
	}
	pthread_mutex_unlock(&g.lock);
	if (port == 0)
		fail_msg("no port of %d to %d is free", FIRST, END);
	return (uint16_t)port;
}
