/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy of etcd_proxy.h. Each connection of a node has one to etcd. Bytes wait in two buffers,
 * and what the mode does not let through stays there or is dropped. A connection whose node has
 * gone is kept while requests of it wait, because that is what a network does. What should be
 * impossible ends the process by CHECK. */
#include "lib/etcd_proxy.h"

#include "base/check.h"
#include "lib/ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAIRS_MAX = 64, ROOM = 1 << 18, TURN_MS = 5, LONG_LIE = 1 << 20 };

struct pair {
	int node, etcd; /* -1: closed. */
	bool late;
	bool full; /* The answer to what was passed on is FULL. */
	size_t nr; /* Of the requests that wait. */
	unsigned char *bytes;
};

#define LIE(body)                                                                                  \
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" body
#define HEAD "\"header\":{\"cluster_id\":\"1\",\"revision\":\"9\"}"
#define RANGES(leader, view)                                                                       \
	LIE("{" HEAD ",\"responses\":[{\"response_range\":{" leader                                \
	    "}},{\"response_range\":{" view "}}]}\n")

/* None of them may name a cluster and be right in all else. */
static const char *const lies[] = {
	"",
	"\r\n\r\n",
	"SSH-2.0-OpenSSH\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 999999999999999999999\r\n\r\n{",
	"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n{}",
	"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 999 Never\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.1 500 Error\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n{\"error\":",
	LIE(""),
	LIE("null\n"),
	LIE("[]\n"),
	LIE("{}\n"),
	LIE("{\"error\":{\"message\":\"no\"}}\n"),
	LIE("{\"header\":[],\"responses\":{}}\n"),
	LIE("{\"header\":{\"cluster_id\":1,\"revision\":\"9\"}}\n"),
	LIE("{\"header\":{\"cluster_id\":\"-1\",\"revision\":\"9\"}}\n"),
	LIE("{\"header\":{\"cluster_id\":\"99999999999999999999\",\"revision\":\"9\"}}\n"),
	LIE("{\"header\":{\"cluster_id\":\"0\",\"revision\":\"9\"},\"ID\":\"7\",\"TTL\":\"2\"}\n"),
	LIE("{" HEAD ",\"ID\":\"-7\",\"TTL\":\"2\"}\n"),
	LIE("{" HEAD ",\"ID\":\"7\",\"TTL\":\"9223372036854775807\"}\n"),
	LIE("{" HEAD ",\"succeeded\":true}\n"),
	LIE("{" HEAD ",\"responses\":[null,null]}\n"),
	RANGES("\"kvs\":7", ""),
	RANGES("\"kvs\":[7]", ""),
	RANGES("\"kvs\":[{},{}]", ""),
	RANGES("\"kvs\":[{\"create_revision\":\"10\",\"lease\":\"1\",\"value\":\"AAAA\"}]", ""),
	RANGES("", "\"kvs\":[{\"version\":\"0\",\"value\":\"AAAA\"}]"),
	RANGES("", "\"kvs\":[{\"version\":\"18446744073709551616\",\"value\":\"A\"}]"),
};

/* What etcd 3.4 says of a change that took the last room, after it was written. */
#define FULL                                                                                       \
	"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\n"                     \
	"Connection: close\r\n\r\n"                                                                \
	"{\"error\":\"etcdserver: mvcc: database space exceeded\",\"code\":8}"

uint32_t etcd_proxy_lies(void)
{
	return (uint32_t)NR(lies) + 1;
}

static void write_all(int fd, const void *from, size_t nr)
{
	const char *at = from;

	while (nr > 0 && fd >= 0) {
		ssize_t n = send(fd, at, nr, MSG_NOSIGNAL);

		if (n <= 0)
			return;
		at += n;
		nr -= (size_t)n;
	}
}

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Tells the next lie. The last one does not end. */
static void lie(struct etcd_proxy *p, struct pair *q)
{
	uint32_t i = atomic_fetch_add(&p->lies_nr, 1) % etcd_proxy_lies();

	if (i < NR(lies)) {
		write_all(q->node, lies[i], strlen(lies[i]));
	} else {
		char *many = malloc(LONG_LIE);

		CHECK(many != NULL);
		memset(many, '[', LONG_LIE);
		write_all(q->node, LIE(""), strlen(LIE("")));
		write_all(q->node, many, LONG_LIE);
		free(many);
	}
	q->nr = 0;
	shut(&q->node);
	shut(&q->etcd);
}

static int connect_to(uint16_t port)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0)
		shut(&fd);
	return fd;
}

static void from_node(struct etcd_proxy *p, struct pair *q, int mode)
{
	ssize_t n = recv(q->node, q->bytes + q->nr, ROOM - q->nr, MSG_DONTWAIT);

	if (n <= 0) {
		shut(&q->node);
		return;
	}
	q->nr += (size_t)n;
	if (mode == ETCD_PROXY_SILENT)
		q->nr = 0;
	else if (mode == ETCD_PROXY_LIES)
		lie(p, q);
	else if (mode == ETCD_PROXY_LATE)
		q->late = true;
}

static bool passes(int mode)
{
	return mode == ETCD_PROXY_PASS || mode == ETCD_PROXY_LATE || mode == ETCD_PROXY_FULL;
}

static void from_etcd(struct pair *q, int mode)
{
	unsigned char bytes[16384];
	ssize_t n = recv(q->etcd, bytes, sizeof(bytes), MSG_DONTWAIT);

	if (n <= 0) {
		shut(&q->etcd);
	} else if (q->full) {
		write_all(q->node, FULL, strlen(FULL));
		q->full = false;
		shut(&q->node);
	} else if (passes(mode)) {
		write_all(q->node, bytes, (size_t)n);
	}
	if (q->etcd < 0 && passes(mode))
		shut(&q->node);
}

static void serve(struct etcd_proxy *p, struct pair *q, int mode)
{
	struct pollfd fds[2] = {{.fd = q->node, .events = POLLIN},
				{.fd = q->etcd, .events = POLLIN}};

	(void)poll(fds, 2, 0);
	if (fds[0].revents != 0 && q->nr < ROOM)
		from_node(p, q, mode);
	if (fds[1].revents != 0)
		from_etcd(q, mode);
	if (q->nr > 0 &&
	    (mode == ETCD_PROXY_PASS || mode == ETCD_PROXY_NO_ANSWERS || mode == ETCD_PROXY_FULL)) {
		if (mode == ETCD_PROXY_FULL && memmem(q->bytes, q->nr, "request_put", 11) != NULL)
			q->full = true;
		if (q->late)
			atomic_fetch_add(&p->late_nr, 1);
		q->late = false;
		write_all(q->etcd, q->bytes, q->nr);
		q->nr = 0;
	}
	if (q->node < 0 && q->nr == 0)
		shut(&q->etcd);
}

static void take_new(struct etcd_proxy *p, struct pair *pairs)
{
	int fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC);

	for (int i = 0; i < PAIRS_MAX && fd >= 0; i++) {
		if (pairs[i].node >= 0 || pairs[i].etcd >= 0 || pairs[i].nr > 0)
			continue;
		pairs[i].node = fd;
		pairs[i].etcd = connect_to(p->target);
		if (pairs[i].etcd < 0 && atomic_load(&p->mode) == ETCD_PROXY_PASS)
			shut(&pairs[i].node);
		return;
	}
	shut(&fd);
}

static void *run(void *arg)
{
	struct etcd_proxy *p = arg;
	struct pair *pairs = calloc(PAIRS_MAX, sizeof(*pairs));

	CHECK(pairs != NULL);
	for (int i = 0; i < PAIRS_MAX; i++) {
		pairs[i].node = pairs[i].etcd = -1;
		pairs[i].bytes = malloc(ROOM);
		CHECK(pairs[i].bytes != NULL);
	}
	while (!atomic_load(&p->stop)) {
		struct pollfd fds[2 * PAIRS_MAX + 1];
		nfds_t nr = 0;

		fds[nr++] = (struct pollfd){.fd = p->listen_fd, .events = POLLIN};
		for (int i = 0; i < PAIRS_MAX; i++) {
			fds[nr++] = (struct pollfd){.fd = pairs[i].node, .events = POLLIN};
			fds[nr++] = (struct pollfd){.fd = pairs[i].etcd, .events = POLLIN};
		}
		(void)poll(fds, nr, TURN_MS);
		if (fds[0].revents != 0)
			take_new(p, pairs);
		for (int i = 0; i < PAIRS_MAX; i++)
			serve(p, &pairs[i], atomic_load(&p->mode));
	}
	for (int i = 0; i < PAIRS_MAX; i++) {
		shut(&pairs[i].node);
		shut(&pairs[i].etcd);
		free(pairs[i].bytes);
	}
	free(pairs);
	return NULL;
}

void etcd_proxy_start(struct etcd_proxy *p, uint16_t target)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int one = 1;

	memset(p, 0, sizeof(*p));
	p->port = ports_take();
	p->target = target;
	at.sin_port = htons(p->port);
	p->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(p->listen_fd >= 0);
	setsockopt(p->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	CHECK(bind(p->listen_fd, (struct sockaddr *)&at, sizeof(at)) == 0);
	CHECK(listen(p->listen_fd, PAIRS_MAX) == 0);
	CHECK(pthread_create(&p->thread, NULL, run, p) == 0);
}

void etcd_proxy_stop(struct etcd_proxy *p)
{
	atomic_store(&p->stop, 1);
	CHECK(pthread_join(p->thread, NULL) == 0);
	close(p->listen_fd);
}
