// SPDX-License-Identifier: Apache-2.0
/* A process between two daemons. It listens at 127.0.0.1 in front of the daemon that listens at
 * 127.0.0.2. Tests call it through drill.h. It passes bytes on. When the test says so it stops
 * that, or closes every connection. Each command is answered once it is done. The process ends with
 * its test. */
#include "lib/drill.h"

#include "base/check.h"
#include "lib/pace.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { PAIRS_MAX = 32 };

struct proxy { /* The state of the proxy, in the child. */
	int command, listener;
	uint16_t port;
	bool deaf;
	int fd[2 * PAIRS_MAX]; /* 2i and 2i + 1 are one connection. -1: none. */
};

/* Returns 127.0.0.host. */
static struct sockaddr_in loopback(uint16_t port, int host)
{
	return (struct sockaddr_in){.sin_family = AF_INET,
				    .sin_port = htons(port),
				    .sin_addr.s_addr = htonl(0x7f000000u + (uint32_t)host)};
}

static void cut(struct proxy *p, int pair)
{
	for (int i = 2 * pair; i < 2 * pair + 2; i++) {
		if (p->fd[i] >= 0)
			close(p->fd[i]);
		p->fd[i] = -1;
	}
}

static void take(struct proxy *p)
{
	int in = accept(p->listener, NULL, NULL),
	    out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), pair = 0;
	struct sockaddr_in to = loopback(p->port, 2);
	int one = 1;

	while (pair < PAIRS_MAX && p->fd[2 * pair] >= 0)
		pair++;
	if (in < 0 || out < 0 || pair == PAIRS_MAX ||
	    connect(out, (struct sockaddr *)&to, sizeof(to)) != 0) {
		close(in);
		close(out);
		return;
	}
	/* Frames pass as they come. */
	(void)setsockopt(in, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	(void)setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	p->fd[2 * pair] = in;
	p->fd[2 * pair + 1] = out;
}

static void pass(struct proxy *p, int i)
{
	char bytes[65536];
	ssize_t n = recv(p->fd[i], bytes, sizeof(bytes), 0);

	for (ssize_t at = 0, m; n > 0 && at < n; at += m) {
		m = send(p->fd[i ^ 1], bytes + at, (size_t)(n - at), MSG_NOSIGNAL);
		if (m <= 0)
			n = -1;
	}
	if (n <= 0)
		cut(p, i / 2);
}

static bool obey(struct proxy *p)
{
	char c;

	if (read(p->command, &c, 1) != 1)
		return false;
	for (int i = 0; c == 'c' && i < PAIRS_MAX; i++)
		cut(p, i);
	if (c == 'd' || c == 'h')
		p->deaf = c == 'd';
	return write(p->command, &c, 1) == 1;
}

static int child(void *arg)
{
	struct proxy *p = arg;

	while (true) {
		struct pollfd fds[2 * PAIRS_MAX + 2];

		for (int i = 0; i < 2 * PAIRS_MAX; i++)
			fds[i] = (struct pollfd){.fd = p->deaf ? -1 : p->fd[i], .events = POLLIN};
		fds[2 * PAIRS_MAX] = (struct pollfd){.fd = p->command, .events = POLLIN};
		fds[2 * PAIRS_MAX + 1] =
			(struct pollfd){.fd = p->deaf ? -1 : p->listener, .events = POLLIN};
		if (poll(fds, 2 * PAIRS_MAX + 2, -1) < 0)
			return 1;
		if (fds[2 * PAIRS_MAX].revents) {
			if (!obey(p))
				return 0;
			continue;
		}
		if (fds[2 * PAIRS_MAX + 1].revents)
			take(p);
		for (int i = 0; i < 2 * PAIRS_MAX; i++)
			if (fds[i].revents && p->fd[i] >= 0)
				pass(p, i);
	}
}

void drill_proxy_start(struct drill_proxy *d, struct cluster *c)
{
	struct proxy p = {.port = c->node[0].port,
			  .listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
	struct sockaddr_in at = loopback(p.port, 1);
	int one = 1, fd[2];
	char lines[64];

	CHECK(setsockopt(p.listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(p.listener >= 0 && bind(p.listener, (struct sockaddr *)&at, sizeof(at)) == 0 &&
	      listen(p.listener, 16) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0);
	snprintf(lines, sizeof(lines), "[daemon]\nlisten = 127.0.0.2:%u\n", p.port);
	drill_conf(c, 0, lines);
	memset(p.fd, -1, sizeof(p.fd));
	p.command = fd[1];
	d->fd = fd[0];
	d->pid = proc_fork(child, &p);
	close(fd[1]);
	close(p.listener);
}

static void command(struct drill_proxy *d, char c)
{
	struct pollfd p = {.fd = d->fd, .events = POLLIN};
	char back = 0;

	CHECK(write(d->fd, &c, 1) == 1);
	if (poll(&p, 1, pace_ms(10000)) != 1 || read(d->fd, &back, 1) != 1 || back != c)
		fail_msg("the proxy has ended");
}

void drill_proxy_cut(struct drill_proxy *d)
{
	command(d, 'c');
}

void drill_proxy_deaf(struct drill_proxy *d, bool deaf)
{
	command(d, deaf ? 'd' : 'h');
}

void drill_proxy_stop(struct drill_proxy *d)
{
	CHECK(kill(d->pid, SIGKILL) == 0 && waitpid(d->pid, NULL, 0) == d->pid);
	close(d->fd);
}
