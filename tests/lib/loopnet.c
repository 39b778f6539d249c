/* SPDX-License-Identifier: Apache-2.0 */
/* A listener on a loop, and what its connections and the dialled one tell their owner. Tests of
 * net/conn.h call it. Each end notes the callbacks that it gets, and on_head(), on_frame() and
 * on_close() check that none comes after on_close(). Every failure fails the test. */
#include "lib/loopnet.h"

#include "base/check.h"
#include "net/conn_impl.h"
#include "wire/ops.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static enum shard_status on_head(void *owner, struct stream *s, const struct wire_head *h,
				 void **to, struct err *e)
{
	struct loopend *n = owner;

	assert_int_equal(n->closed, 0);
	return frames_handler.on_head(&n->got, s, h, to, e);
}

static enum shard_status on_frame(void *owner, struct stream *s, const struct wire_head *h,
				  const void *body, struct err *e)
{
	struct loopend *n = owner;
	struct wire_head pong = {.op = OP_PONG};

	assert_int_equal(n->closed, 0);
	if (n->answer && h->op == OP_PING) {
		assert_int_equal(stream_send(s, &pong, NULL, 0, NULL, NULL), SHARD_OK);
		conn_kick(n->c);
	}
	if (n->close_on_frame)
		conn_close(n->c, NULL, 0);
	return frames_handler.on_frame(&n->got, s, h, body, e);
}

static void on_open(void *owner, struct conn *c)
{
	struct loopend *n = owner;

	n->opened++;
	if (n->close_on_open)
		conn_close(c, NULL, 0);
}

static void on_close(void *owner, struct conn *c, const struct err *why)
{
	struct loopend *n = owner;

	assert_int_equal(n->closed, 0);
	assert_ptr_equal(n->c, c);
	assert_int_not_equal(why->status, SHARD_OK);
	assert_true(strlen(conn_name(c)) > 0);
	n->stats = *conn_stats(c);
	n->closed++;
	n->why = *why;
}

static void on_room(void *owner, struct conn *c)
{
	struct loopend *n = owner;

	n->rooms++;
	if (n->refill)
		n->refill(n, c);
}

static const struct conn_handler handler = {
	{.on_head = on_head, .on_frame = on_frame}, on_open, on_close, on_room};

void loopnet_accepted(void *owner, int fd)
{
	struct loopnet *t = owner;
	struct loopend *n = &t->accepted[t->accepted_nr++];
	struct conn_conf conf = t->conf;
	int armed = t->fail_alloc_in ? *t->fail_alloc_in : 0; /* It is meant for the other end. */

	CHECK(t->accepted_nr <= LOOPNET_MAX);
	conf.owner = n;
	if (t->fail_alloc_in)
		*t->fail_alloc_in = 0;
	assert_int_equal(conn_accept(&n->c, &t->loop, fd, &conf, NULL), SHARD_OK);
	if (t->fail_alloc_in)
		*t->fail_alloc_in = armed;
}

int loopnet_up(void **state)
{
	struct loopnet *t = calloc(1, sizeof(*t));
	struct conn_address at;

	strcpy(t->dir, "/tmp/conn-XXXXXX");
	CHECK(mkdtemp(t->dir));
	snprintf(t->path, sizeof(t->path), "unix:%s/s", t->dir);
	CHECK(uv_loop_init(&t->loop) == 0);
	t->conf = (struct conn_conf){.handler = &handler,
				     .queue_max = 32,
				     .body_max = 65536,
				     .silence_ns = 60 * NS_PER_SEC};
	assert_int_equal(conn_address_parse(&at, t->path, NULL), SHARD_OK);
	assert_int_equal(conn_listen(&t->l, &t->loop, &at, 0600, loopnet_accepted, t, NULL),
			 SHARD_OK);
	*state = t;
	return 0;
}

int loopnet_down(void **state)
{
	struct loopnet *t = *state;

	conn_listener_close(&t->l);
	uv_run(&t->loop, UV_RUN_DEFAULT); /* This ends only when nothing is left open. */
	assert_int_equal(uv_loop_close(&t->loop), 0);
	assert_int_equal(access(t->path + 5, F_OK), -1);
	CHECK(rmdir(t->dir) == 0);
	free(t);
	return 0;
}

void loopnet_wait(const struct loopnet *t)
{
	struct pollfd p = {.fd = uv_backend_fd(&t->loop), .events = POLLIN};
	int ms = uv_backend_timeout(&t->loop);

	CHECK(poll(&p, 1, ms < 0 || ms > 10 ? 10 : ms) >= 0);
}

void loopnet_dial(struct loopnet *t, const char *where)
{
	struct conn_conf conf = t->conf;
	struct conn_address to;

	conf.owner = &t->dialled;
	assert_int_equal(conn_address_parse(&to, where, NULL), SHARD_OK);
	assert_int_equal(conn_connect(&t->dialled.c, &t->loop, &to, &conf, NULL), SHARD_OK);
	/* The callbacks never come from inside the call. */
	assert_int_equal(t->dialled.opened + t->dialled.closed, 0);
}

void loopnet_connected(struct loopnet *t, const char *where)
{
	loopnet_dial(t, where);
	RUN_UNTIL(t, t->dialled.opened && t->accepted_nr == 1);
}

void loopnet_ping(struct conn *c)
{
	struct wire_head h = {.op = OP_PING};

	assert_int_equal(stream_send(conn_stream(c), &h, NULL, 0, NULL, NULL), SHARD_OK);
	conn_kick(c);
}

int loopnet_raw(const struct loopnet *t)
{
	struct address_sock sock;
	struct conn_address to;
	int fd;

	assert_int_equal(conn_address_parse(&to, t->path, NULL), SHARD_OK);
	assert_true(address_numeric(&to, &sock));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&sock.sa, sock.bytes), 0);
	return fd;
}
