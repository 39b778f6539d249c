/* SPDX-License-Identifier: Apache-2.0 */
/* The bare loopback transfer of limit_tcp.h. The benchmarks call it in turn with what they measure,
 * so that both meet the machine in the same state. It fails only where the system does. */
#include "bench/limit_tcp.h"

#include "base/check.h"
#include "base/clock.h"
#include "wire/xxh.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int limit_tcp_pair(int fds[2])
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(at);
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (l < 0 || fds[0] < 0 || bind(l, (struct sockaddr *)&at, sizeof(at)) != 0 ||
	    listen(l, 1) != 0 || getsockname(l, (struct sockaddr *)&at, &bytes) != 0 ||
	    connect(fds[0], (struct sockaddr *)&at, sizeof(at)) != 0)
		return -1;
	fds[1] = accept4(l, NULL, NULL, SOCK_CLOEXEC);
	close(l);
	for (int i = 0; i < 2; i++)
		(void)setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fds[1] < 0 ? -1 : 0;
}

static unsigned char *buffer(size_t bytes)
{
	unsigned char *p =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p != MAP_FAILED)
		memset(p, 0x5a, bytes);
	return p == MAP_FAILED ? NULL : p;
}

static void receiver(int fd, size_t bytes)
{
	const struct xxh_row *x = xxh_best();
	unsigned char *p = buffer(bytes);
	uint64_t go;

	CHECK(p);
	while (recv(fd, &go, sizeof(go), MSG_WAITALL) == (ssize_t)sizeof(go)) {
		uint64_t sum = 0;

		for (size_t at = 0; at < bytes; at += LIMIT_TCP_BLOCK) {
			if (recv(fd, p + at, LIMIT_TCP_BLOCK, MSG_WAITALL) != LIMIT_TCP_BLOCK)
				_exit(1);
			sum ^= x->sum(p + at, LIMIT_TCP_BLOCK, 0);
		}
		if (send(fd, &sum, sizeof(sum), MSG_NOSIGNAL) != (ssize_t)sizeof(sum))
			_exit(1);
	}
	_exit(0);
}

int limit_tcp_begin(struct limit_tcp *l, size_t bytes)
{
	int fds[2];

	CHECK(bytes % LIMIT_TCP_BLOCK == 0);
	l->bytes = bytes;
	l->buffer = buffer(bytes);
	if (!l->buffer || limit_tcp_pair(fds) != 0)
		return -1;
	l->pid = fork();
	if (l->pid < 0)
		return -1;
	if (l->pid == 0) {
		close(fds[0]);
		receiver(fds[1], bytes);
	}
	close(fds[1]);
	l->fd = fds[0];
	return 0;
}

static void send_all(int fd, const void *p, size_t bytes)
{
	struct iovec iov = {(void *)(uintptr_t)p, bytes};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	/* A blocking socket takes all of it. */
	CHECK(sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)bytes);
}

double limit_tcp_round(struct limit_tcp *l)
{
	const struct xxh_row *x = xxh_best();
	uint64_t sum = 0, theirs = 0, start = clock_ns();

	send_all(l->fd, &start, sizeof(start));
	for (size_t at = 0; at < l->bytes; at += LIMIT_TCP_BLOCK) {
		sum ^= x->sum(l->buffer + at, LIMIT_TCP_BLOCK, 0);
		send_all(l->fd, l->buffer + at, LIMIT_TCP_BLOCK);
	}
	CHECK(recv(l->fd, &theirs, sizeof(theirs), MSG_WAITALL) == (ssize_t)sizeof(theirs));
	CHECK(sum == theirs);
	return (double)l->bytes / (double)(clock_ns() - start);
}

void limit_tcp_end(struct limit_tcp *l)
{
	int status;

	close(l->fd);
	CHECK(waitpid(l->pid, &status, 0) == l->pid);
	CHECK(munmap(l->buffer, l->bytes) == 0);
}

double limit_tcp_iperf3(void)
{
	char line[256];
	double bits = 0;
	FILE *f;

	if (system("command -v iperf3 >/dev/null 2>&1") != 0)
		return 0;
	f = popen("iperf3 -s -1 -p 29799 >/dev/null 2>&1 & for i in 1 2 3 4 5 6 7 8 9 10; do sleep "
		  "0.1; "
		  "iperf3 -c 127.0.0.1 -p 29799 -t 2 -l 256K -J 2>/dev/null >/tmp/iperf3.$$ && "
		  "break; done; "
		  "grep -A12 '\"sum_received\"' /tmp/iperf3.$$; rm -f /tmp/iperf3.$$; wait",
		  "r");
	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f)) {
		const char *at = strstr(line, "\"bits_per_second\":");

		if (at)
			bits = strtod(at + strlen("\"bits_per_second\":"), NULL);
	}
	(void)pclose(f);
	return bits / 8e9;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double limit_tcp_median(double *values, int nr)
{
	qsort(values, (size_t)nr, sizeof(values[0]), compare);
	return nr % 2 ? values[nr / 2] : (values[nr / 2 - 1] + values[nr / 2]) / 2;
}
