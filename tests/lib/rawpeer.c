// SPDX-License-Identifier: Apache-2.0
/* A blocking socket that speaks frames. Tests call it. What a daemon may not do fails the test.
 * What the test itself sends may be wrong on purpose. Every wait ends after WAIT_MS. */
#include "lib/rawpeer.h"

#include "base/check.h"
#include "lib/pace.h"
#include "shard.pb-c.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define WAIT_MS 10000

static int dial_unix(const char *path)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%.100s", path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof(sa)) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static int dial_tcp(const char *at)
{
	struct sockaddr_in sa = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	char host[64];
	unsigned port;

	CHECK(sscanf(at, "%63[0-9.]:%u", host, &port) == 2 &&
	      inet_pton(AF_INET, host, &sa.sin_addr) == 1);
	sa.sin_port = htons((uint16_t)port);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof(sa)) != 0) {
		close(fd);
		return -1;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

bool raw_try_connect(struct raw *r, const char *address)
{
	memset(r, 0, sizeof(*r));
	r->fd = strncmp(address, "unix:", 5) == 0 ? dial_unix(address + 5)
						  : dial_tcp(address + strlen("tcp://"));
	return r->fd >= 0;
}

void raw_connect(struct raw *r, const char *address)
{
	if (!raw_try_connect(r, address))
		fail_msg("cannot connect to %s: %s", address, strerror(errno));
}

void raw_close(struct raw *r)
{
	while (r->fds_nr > 0)
		close(r->fds[--r->fds_nr]);
	if (r->fd >= 0)
		close(r->fd);
	r->fd = -1;
	free(r->body);
	r->body = NULL;
}

void raw_bytes(struct raw *r, const void *p, size_t bytes)
{
	const char *at = p;

	while (bytes > 0) {
		ssize_t n = send(r->fd, at, bytes, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return;
		at += n;
		bytes -= (size_t)n;
	}
}

void raw_head(struct raw *r, struct wire_head *h, const void *body, uint32_t body_bytes)
{
	h->body_bytes = body_bytes;
	wire_seal(h, body, r->sent++, true);
	raw_bytes(r, h, sizeof(*h));
	raw_bytes(r, body, body_bytes);
}

void raw_send(struct raw *r, const struct wire_head *h, const ProtobufCMessage *msg)
{
	size_t bytes = msg != NULL ? protobuf_c_message_get_packed_size(msg) : 0;
	unsigned char *body = malloc(bytes + 1);
	struct wire_head copy = *h;

	CHECK(body != NULL);
	if (msg != NULL)
		protobuf_c_message_pack(msg, body);
	raw_head(r, &copy, body, (uint32_t)bytes);
	free(body);
}

static bool get(struct raw *r, void *to, size_t bytes)
{
	char control[256];
	unsigned char *at = to;

	while (bytes > 0) {
		struct iovec iov = {at, bytes};
		struct msghdr m = {.msg_iov = &iov,
				   .msg_iovlen = 1,
				   .msg_control = control,
				   .msg_controllen = sizeof(control)};
		struct pollfd p = {.fd = r->fd, .events = POLLIN};
		ssize_t n;

		if (poll(&p, 1, pace_ms(WAIT_MS)) == 0)
			fail_msg("nothing came for %d ms", WAIT_MS);
		n = recvmsg(r->fd, &m, MSG_CMSG_CLOEXEC);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c != NULL; c = CMSG_NXTHDR(&m, c)) {
			size_t nr = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

			for (size_t i = 0; i < nr && r->fds_nr < 4; i++)
				memcpy(&r->fds[r->fds_nr++], CMSG_DATA(c) + i * sizeof(int),
				       sizeof(int));
		}
		at += n;
		bytes -= (size_t)n;
	}
	return true;
}

bool raw_recv(struct raw *r)
{
	const char *why;

	if (!get(r, &r->head, sizeof(r->head)))
		return false;
	why = wire_invalid(&r->head, r->got++, true);
	if (why != NULL)
		fail_msg("the daemon sent an invalid frame: %s", why);
	free(r->body);
	r->body = malloc(r->head.body_bytes + 1u);
	CHECK(r->body != NULL);
	r->body[r->head.body_bytes] = 0;
	return get(r, r->body, r->head.body_bytes);
}

bool raw_expect(struct raw *r, uint16_t op)
{
	while (raw_recv(r))
		if (r->head.op == op)
			return true;
	return false;
}

void raw_hello(struct raw *r, enum wire_role role)
{
	struct wire_head h = {.op = OP_HELLO};
	Shard__Hello hello = SHARD__HELLO__INIT;

	hello.wire_min = hello.wire_max = WIRE_VERSION;
	hello.features = FEATURE_BODY_SUM;
	hello.role = role;
	hello.release = (char *)(uintptr_t) "raw";
	hello.pid = (uint32_t)getpid();
	raw_send(r, &h, &hello.base);
	if (!raw_recv(r) || r->head.op != OP_HELLO)
		fail_msg("HELLO was answered by op %u", r->head.op);
}

char *raw_error(struct raw *r)
{
	Shard__Error *e;
	static _Thread_local char text[1024];

	if (!raw_expect(r, OP_ERROR))
		return NULL;
	e = shard__error__unpack(NULL, r->head.body_bytes, r->body);
	CHECK(e != NULL);
	snprintf(text, sizeof(text), "%s", e->text);
	shard__error__free_unpacked(e, NULL);
	return text;
}

char *raw_status(struct raw *r)
{
	struct wire_head h = {.op = OP_STATUS, .attempt = 7};
	Shard__Text *t;
	char *text;

	raw_send(r, &h, NULL);
	if (!raw_expect(r, OP_STATUS))
		fail_msg("the connection closed instead of a status");
	t = shard__text__unpack(NULL, r->head.body_bytes, r->body);
	CHECK(t != NULL);
	text = strdup(t->text);
	CHECK(text != NULL);
	shard__text__free_unpacked(t, NULL);
	return text;
}

void raw_expect_closed(struct raw *r)
{
	while (raw_recv(r))
		;
}
