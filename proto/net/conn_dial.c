/* SPDX-License-Identifier: Apache-2.0 */
/* Dials an outgoing connection, and answers small questions about a conn. Happy path: resolve the
 * host if it is a name, try its addresses one after the other, then hand the descriptor to conn.c.
 * It fails if there is no such host, if nobody listens, and if no answer comes within connect_ns.
 * The last reason reaches on_close. What fails at once, as a unix path that does not exist, fails
 * conn_connect() itself. */
#include "base/check.h"
#include "base/clock.h"
#include "net/conn_impl.h"
#include "net/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_NS_DEFAULT (10 * NS_PER_SEC)

static enum shard_status on_head(void *owner, struct stream *s, const struct wire_head *h,
				 void **to, struct err *e)
{
	struct conn *c = owner;

	return c->handler->frames.on_head(c->owner, s, h, to, e);
}

static enum shard_status on_frame(void *owner, struct stream *s, const struct wire_head *h,
				  const void *body, struct err *e)
{
	struct conn *c = owner;

	return c->handler->frames.on_frame(c->owner, s, h, body, e);
}

static bool on_damage(void *owner, struct stream *s, const struct wire_head *h)
{
	struct conn *c = owner;

	return c->handler->frames.on_damage && c->handler->frames.on_damage(c->owner, s, h);
}

const struct stream_handler conn_frames = {on_head, on_frame, on_damage};

static void give_up(struct conn *c, struct err *e)
{
	if (c->state == CONN_DIALLING)
		conn_close(c, e, 0);
}

static void on_connected(uv_poll_t *p, int status, int events);

static enum shard_status try_next(struct conn *c, struct err *e)
{
	struct conn_dial *d = &c->dial;
	enum shard_status rc = SHARD_UNREACHABLE;

	CHECK(!c->polling && d->fd < 0);
	while (d->at < d->targets_nr) {
		rc = tcp_dial(&d->fd, &d->target[d->at++], c->name, e);
		if (rc == SHARD_OK)
			break;
	}
	if (rc != SHARD_OK)
		return rc;
	rc = conn_poll_init(c, d->fd, e);
	if (rc != SHARD_OK) {
		close(d->fd);
		d->fd = -1;
		return rc;
	}
	c->events = UV_WRITABLE;
	CHECK(uv_poll_start(&c->poll, UV_WRITABLE, on_connected) == 0);
	return SHARD_OK;
}

/* The address before this one failed, and libuv has closed the handle of its descriptor. */
static void on_retry(uv_handle_t *h)
{
	struct conn *c = h->data;
	struct err e = {0};

	if (c->state == CONN_DIALLING && try_next(c, &e) != SHARD_OK)
		give_up(c, &e);
	conn_handle_closed(c);
}

static void on_connected(uv_poll_t *p, int status, int events)
{
	struct conn *c = p->data;
	struct err e = {0};
	int fd = c->dial.fd;

	(void)status; /* An error that status tells is in the socket too. */
	(void)events;
	if (tcp_dialled(fd, c->name, &e) != SHARD_OK) {
		if (c->dial.at >= c->dial.targets_nr) {
			give_up(c, &e);
			return;
		}
		c->polling = false;
		uv_close((uv_handle_t *)&c->poll, on_retry);
		close(fd);
		c->dial.fd = -1;
		return;
	}
	if (conn_begin(c, fd, TLS_DIALLER, &e) != SHARD_OK) {
		give_up(c, &e);
		return;
	}
	c->dial.fd = -1; /* It belongs to the stream now. */
	if (c->handler->on_open)
		c->handler->on_open(c->owner, c);
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
	struct conn *c = req->data;
	struct conn_dial *d = &c->dial;
	struct err e = {0};

	d->resolving = false;
	for (const struct addrinfo *ai = list; ai && d->targets_nr < CONN_TARGETS_MAX;
	     ai = ai->ai_next) {
		struct address_sock *t = &d->target[d->targets_nr++];

		CHECK(ai->ai_addrlen <= sizeof(t->sa));
		memcpy(&t->sa, ai->ai_addr, ai->ai_addrlen);
		t->bytes = ai->ai_addrlen;
	}
	uv_freeaddrinfo(list);
	err_set(&e, SHARD_UNREACHABLE, "cannot resolve %s: %s", c->name,
		status ? uv_strerror(status) : "no address");
	if (c->state == CONN_DIALLING && (d->targets_nr == 0 || try_next(c, &e) != SHARD_OK))
		give_up(c, &e);
	conn_handle_closed(c);
}

static enum shard_status resolve(struct conn *c, const struct conn_address *to, struct err *e)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	char port[8];
	int rc;

	snprintf(port, sizeof(port), "%u", to->port);
	c->dial.req.data = c;
	rc = uv_getaddrinfo(c->loop, &c->dial.req, on_resolved, to->host, port, &hints);
	if (rc != 0)
		return err_set(e, SHARD_UNREACHABLE, "cannot resolve %s: %s", c->name,
			       uv_strerror(rc));
	c->dial.resolving = true;
	c->handles++;
	return SHARD_OK;
}

void conn_dial_cancel(struct conn *c)
{
	if (c->dial.resolving)
		(void)uv_cancel((uv_req_t *)&c->dial.req); /* on_resolved() comes in any case. */
	if (c->dial.fd >= 0)
		close(c->dial.fd);
	c->dial.fd = -1;
}

enum shard_status conn_connect(struct conn **out, uv_loop_t *loop, const struct conn_address *to,
			       const struct conn_conf *conf, struct err *e)
{
	enum shard_status rc = conn_new(out, loop, conf, e);
	struct conn *c = *out;

	if (rc != SHARD_OK)
		return rc;
	snprintf(c->name, sizeof(c->name), "%s",
		 strncmp(to->text, "tcp://", 6) == 0 ? to->text + 6 : to->text);
	if (conf->tls_peer)
		snprintf(c->tls_peer, sizeof(c->tls_peer), "%s", conf->tls_peer);
	if (c->conf.connect_ns == 0)
		c->conf.connect_ns = CONNECT_NS_DEFAULT;
	c->until_ns = clock_ns() + c->conf.connect_ns;
	if (address_numeric(to, &c->dial.target[0])) {
		c->dial.targets_nr = 1;
		rc = try_next(c, e);
	} else {
		rc = resolve(c, to, e);
	}
	if (rc != SHARD_OK) {
		conn_undo(c);
		*out = NULL;
		return rc;
	}
	conn_arm(c);
	return SHARD_OK;
}

bool conn_is_unix(const struct conn *c)
{
	return c->stream ? stream_is_unix(c->stream) : c->dial.target[0].sa.ss_family == AF_UNIX;
}

bool conn_peer(const struct conn *c, uint32_t *pid, uint32_t *uid, uint32_t *gid)
{
	struct ucred cred = {0};
	socklen_t bytes = sizeof(cred);

	if (!c->stream || !conn_is_unix(c) ||
	    getsockopt(stream_fd(c->stream), SOL_SOCKET, SO_PEERCRED, &cred, &bytes) != 0)
		return false;
	*pid = (uint32_t)cred.pid;
	*uid = cred.uid;
	*gid = cred.gid;
	return true;
}

enum conn_pulse conn_pulse(const struct conn *c)
{
	char byte;
	ssize_t n = c->stream ? recv(stream_fd(c->stream), &byte, 1, MSG_PEEK | MSG_DONTWAIT) : 0;

	if (n > 0)
		return CONN_TALKS;
	return n < 0 && (errno == EAGAIN || errno == EINTR) ? CONN_QUIET : CONN_GONE;
}

bool conn_from(const struct conn *c, const struct conn_address *a)
{
	struct address_sock peer = {.bytes = sizeof(peer.sa)}, at;

	if (!c->stream || conn_is_unix(c) ||
	    getpeername(stream_fd(c->stream), (struct sockaddr *)&peer.sa, &peer.bytes) != 0)
		return false;
	return !address_numeric(a, &at) || address_same_host(&peer, &at);
}

uint32_t conn_peer_groups(const struct conn *c, uint32_t *groups, uint32_t max)
{
	socklen_t bytes = max * (socklen_t)sizeof(*groups);
	gid_t *all;
	uint32_t nr = 0;

	if (!c->stream || !conn_is_unix(c))
		return 0;
	if (getsockopt(stream_fd(c->stream), SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) == 0)
		return bytes / (uint32_t)sizeof(*groups);
	/* An old kernel cannot say. Then the peer is in no group. */
	if (errno != ERANGE || (all = malloc(bytes)) == NULL)
		return 0;
	if (getsockopt(stream_fd(c->stream), SOL_SOCKET, SO_PEERGROUPS, all, &bytes) == 0)
		nr = max; /* The first of them. */
	memcpy(groups, all, nr * sizeof(*groups));
	free(all);
	return nr;
}

struct stream *conn_stream(struct conn *c)
{
	return c->stream;
}

const char *conn_name(const struct conn *c)
{
	return c->stream ? stream_name(c->stream) : c->name;
}

const struct stream_stats *conn_stats(const struct conn *c)
{
	return c->stream ? stream_stats(c->stream) : &c->last;
}
