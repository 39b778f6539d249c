/* SPDX-License-Identifier: Apache-2.0 */
/* A client of the daemons' HTTP on a plain socket, for tests that send what no library would. A
 * failure ends the test with what was answered. */
#include "lib/web.h"

#include "base/clock.h"
#include "lib/pace.h"
#include "lib/ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

void web_spawn(struct cluster *c, int node, uint16_t *port)
{
	char address[32];

	if (*port == 0)
		*port = ports_take();
	snprintf(address, sizeof(address), "127.0.0.1:%u", *port);
	setenv("SHARD_HTTP", address, 1); /* It overrides the file, where HTTP is off. */
	cluster_spawn(c, node);
	unsetenv("SHARD_HTTP");
}

void web_spawn_all(struct cluster *c, uint16_t *port)
{
	for (int n = 0; n < c->nodes_nr; n++) {
		port[n] = 0;
		web_spawn(c, n, &port[n]);
	}
	for (int n = 0; n < c->nodes_nr; n++)
		cluster_ready(c, n);
	cluster_voters(c);
}

void web_serve(struct web *s, int nodes)
{
	s->c = cluster_make(nodes, NULL, NULL);
	web_spawn_all(s->c, s->port);
}

/* --- a client on a plain socket --- */

int web_dial_from(const char *source, uint16_t port)
{
	struct sockaddr_in in = {.sin_family = AF_INET}, to = in;
	struct timeval limit = {.tv_sec = 10};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	to.sin_port = htons(port);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_true(fd >= 0);
	assert_int_equal(inet_pton(AF_INET, source, &in.sin_addr), 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0)
		fail_msg("port %u: %s", port, strerror(errno));
	return fd;
}

int web_dial(uint16_t port)
{
	return web_dial_from("127.0.0.1", port);
}

void web_say(int fd, const char *text)
{
	size_t bytes = strlen(text);

	assert_int_equal(send(fd, text, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
}

void web_ask(int fd, const char *method, const char *path)
{
	char text[200];

	snprintf(text, sizeof(text),
		 "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", method, path);
	web_say(fd, text);
}

/* Reads until the other side closes. The caller frees the text. */
char *web_hear(int fd)
{
	size_t used = 0, room = 1 << 20;
	char *text = malloc(room);
	ssize_t n;

	assert_non_null(text);
	while ((n = recv(fd, text + used, room - 1 - used, 0)) > 0)
		used += (size_t)n;
	if (n < 0 && errno != ECONNRESET)
		fail_msg("no answer: %s", strerror(errno));
	text[used] = 0;
	close(fd);
	return text;
}

char *web_fetch(uint16_t port, const char *method, const char *path)
{
	int fd = web_dial(port);

	web_ask(fd, method, path);
	return web_hear(fd);
}

void web_expect(uint16_t port, const char *method, const char *path, const char *const *parts)
{
	char *text = web_fetch(port, method, path);

	for (; *parts != NULL; parts++)
		if (strstr(text, *parts) == NULL)
			fail_msg("%s %s: no \"%s\" in\n%.3000s", method, path, *parts, text);
	free(text);
}

const char *web_body(const char *text)
{
	const char *at = strstr(text, "\r\n\r\n");

	assert_non_null(at);
	return at + 4;
}

/* Asks until the part is there, because snapshots may be a second old. */
void web_await(uint16_t port, const char *path, const char *part)
{
	uint64_t until = pace_by(10);

	for (;;) {
		char *text = web_fetch(port, "GET", path);
		bool found = strstr(text, part) != NULL;

		if (!found && clock_ns() > until)
			fail_msg("%s: no \"%s\" in\n%.6000s", path, part, text);
		free(text);
		if (found)
			return;
		/* This avoids thousands of requests. Nothing is synchronised by it. */
		(void)poll(NULL, 0, 50);
	}
}
