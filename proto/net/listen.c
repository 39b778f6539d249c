/* SPDX-License-Identifier: Apache-2.0 */
/* Listeners on a libuv loop. daemon/server.c calls it, and each accepted descriptor goes to its
 * owner. At the start it fails if an address is in use (tcp.c says so), or if the kernel does not
 * let the loop watch the socket. Later the process may run out of descriptors. Then the listener
 * closes a spare descriptor, accepts the connection with it and hangs up, so that the loop does not
 * spin on a socket that stays readable. */
#include "base/check.h"
#include "net/conn.h"
#include "net/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	ACCEPT_MAX = 16, /* Connections of one turn. */
	PAUSE_MS = 1000, /* How long it pauses when even the spare descriptor is missing. */
};

struct conn_listener {
	uv_poll_t poll;
	uv_timer_t timer;
	int fd, spare, handles;
	conn_accepted_fn accepted;
	void *owner;
	uint16_t port;
	bool closing;
	dev_t dev; /* Of the unix socket file, so that only our own is removed. */
	ino_t ino;
	char path[108];
};

static void on_ready(uv_poll_t *p, int status, int events);

static void on_pause_over(uv_timer_t *t)
{
	struct conn_listener *l = t->data;

	if (l->spare < 0)
		l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	CHECK(uv_poll_start(&l->poll, UV_READABLE, on_ready) == 0);
}

static void out_of_descriptors(struct conn_listener *l)
{
	int fd;

	if (l->spare >= 0) {
		close(l->spare);
		fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0)
			close(fd);
		l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	}
	if (l->spare < 0) {
		uv_poll_stop(&l->poll);
		uv_timer_start(&l->timer, on_pause_over, PAUSE_MS, 0);
	}
}

static void on_ready(uv_poll_t *p, int status, int events)
{
	struct conn_listener *l = p->data;

	(void)status;
	(void)events;
	for (int i = 0; i < ACCEPT_MAX && !l->closing; i++) {
		int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), error = errno;

		if (fd >= 0) {
			l->accepted(l->owner, fd);
			continue;
		}
		if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM)
			out_of_descriptors(l);
		if (error != ECONNABORTED && error != EINTR)
			return;
	}
}

static void on_listener_closed(uv_handle_t *h)
{
	struct conn_listener *l = h->data;

	if (--l->handles == 0)
		free(l);
}

static void bound(struct conn_listener *l, const struct conn_address *at)
{
	struct sockaddr_storage sa = {0};
	socklen_t bytes = sizeof(sa);
	struct stat st;

	if (at->unix_path) {
		if (stat(at->host, &st) == 0) {
			strcpy(l->path, at->host);
			l->dev = st.st_dev;
			l->ino = st.st_ino;
		}
		return;
	}
	CHECK(getsockname(l->fd, (struct sockaddr *)&sa, &bytes) == 0);
	if (sa.ss_family == AF_INET)
		l->port = ntohs(((struct sockaddr_in *)(void *)&sa)->sin_port);
	else
		l->port = ntohs(((struct sockaddr_in6 *)(void *)&sa)->sin6_port);
}

/* Names are resolved while the daemon starts, when nothing else waits for the loop. */
static enum shard_status resolve(const struct conn_address *at, struct address_sock *sock,
				 struct err *e)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
	int rc = getaddrinfo(at->host, NULL, &hints, &list);

	if (rc != 0)
		return err_set(e, SHARD_BAD_ARG, "cannot listen on %s: %s", at->text,
			       gai_strerror(rc));
	CHECK(list->ai_addrlen <= sizeof(sock->sa));
	memcpy(&sock->sa, list->ai_addr, list->ai_addrlen);
	sock->bytes = list->ai_addrlen;
	freeaddrinfo(list);
	if (sock->sa.ss_family == AF_INET)
		((struct sockaddr_in *)(void *)&sock->sa)->sin_port = htons(at->port);
	else if (sock->sa.ss_family == AF_INET6)
		((struct sockaddr_in6 *)(void *)&sock->sa)->sin6_port = htons(at->port);
	return SHARD_OK;
}

static void unlink_ours(const struct conn_listener *l)
{
	struct stat st;

	if (l->path[0] && stat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
		(void)unlink(l->path);
}

/* Puts the socket into the loop, which asks the kernel whether it can watch it. A failure leaves
 * nothing in the loop. */
static enum shard_status watch(struct conn_listener *l, uv_loop_t *loop,
			       const struct conn_address *at, struct err *e)
{
	int rc = uv_poll_init(loop, &l->poll, l->fd);

	if (rc != 0)
		return err_set(e, SHARD_SYSTEM, "the loop cannot watch %s: %s%s", at->text,
			       uv_strerror(rc),
			       rc == UV_ENOSPC ? ": raise the sysctl fs.epoll.max_user_watches"
					       : "");
	CHECK(uv_timer_init(loop, &l->timer) == 0);
	l->handles = 2;
	l->poll.data = l->timer.data = l;
	CHECK(uv_poll_start(&l->poll, UV_READABLE, on_ready) == 0);
	return SHARD_OK;
}

enum shard_status conn_listen(struct conn_listener **out, uv_loop_t *loop,
			      const struct conn_address *at, uint32_t mode,
			      conn_accepted_fn accepted, void *owner, struct err *e)
{
	struct conn_listener *l = calloc(1, sizeof(*l));
	struct address_sock sock;
	enum shard_status rc = SHARD_OK;

	*out = NULL;
	if (!l)
		return err_set(e, SHARD_SYSTEM, "no memory to listen on %s", at->text);
	l->accepted = accepted;
	l->owner = owner;
	if (!address_numeric(at, &sock))
		rc = resolve(at, &sock, e);
	if (rc == SHARD_OK)
		rc = tcp_listen(&l->fd, at, &sock, mode, e);
	if (rc != SHARD_OK)
		goto err_listener;
	bound(l, at);
	rc = watch(l, loop, at, e);
	if (rc != SHARD_OK)
		goto err_socket;
	l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	*out = l;
	return SHARD_OK;
err_socket:
	unlink_ours(l);
	close(l->fd);
err_listener:
	free(l);
	return rc;
}

uint16_t conn_listener_port(const struct conn_listener *l)
{
	return l->port;
}

void conn_listener_close(struct conn_listener **lp)
{
	struct conn_listener *l = *lp;

	if (!l)
		return;
	*lp = NULL;
	l->closing = true;
	unlink_ours(l);
	uv_close((uv_handle_t *)&l->poll, on_listener_closed);
	uv_close((uv_handle_t *)&l->timer, on_listener_closed);
	close(l->fd);
	if (l->spare >= 0)
		close(l->spare);
}
