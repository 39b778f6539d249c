/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what goes over an open connection: everything that was queued before a close, deadlines for
 * frames and silence, refusals that the peer is told, pauses, and the message that everything is
 * sent. How a connection opens and closes is in test_conn.c. */
#include "base/check.h"
#include "lib/loopnet.h"
#include "lib/pace.h"
#include "wire/ops.h"

#include "shard.pb-c.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Everything that was queued before a conn_close() with a linger time arrives, even if the peer's
 * own bytes are never read. */
static void test_linger(void **state)
{
	struct loopnet *t = *state;
	struct wire_head h = {.op = OP_PUSH_DATA};
	char *body = calloc(1, WIRE_PART_BYTES);
	uint64_t start = clock_ns();

	loopnet_connected(t, t->path);
	t->dialled.got.to = malloc(FRAMES_BODY_MAX);
	for (int i = 0; i < 16; i++)
		assert_int_equal(stream_send(conn_stream(t->accepted[0].c), &h, body,
					     WIRE_PART_BYTES, NULL, NULL),
				 SHARD_OK);
	loopnet_ping(t->dialled.c);
	conn_close(t->accepted[0].c, NULL, 5000);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	/* It closes when the peer has everything, and not at the end of the linger time. */
	assert_true(clock_ns() - start < pace_ns(4 * NS_PER_SEC));
	assert_int_equal(t->dialled.got.nr, 16);
	assert_int_equal(t->accepted[0].got.nr, 0);
	free(t->dialled.got.to);
	free(body);
}

/* If the peer does not read, the connection closes at the end of the linger time. */
static void test_linger_ends(void **state)
{
	struct loopnet *t = *state;
	struct wire_head h = {.op = OP_PUSH_DATA};
	char *body = calloc(1, WIRE_PART_BYTES);

	loopnet_connected(t, t->path);
	conn_pause(t->dialled.c, true); /* This end reads nothing. */
	for (int i = 0; i < 16; i++)
		assert_int_equal(stream_send(conn_stream(t->accepted[0].c), &h, body,
					     WIRE_PART_BYTES, NULL, NULL),
				 SHARD_OK);
	conn_close(t->accepted[0].c, NULL, 30);
	RUN_UNTIL(t, t->accepted[0].closed);
	conn_pause(t->dialled.c, false);
	RUN_UNTIL(t, t->dialled.closed);
	free(body);
}

/* A send fails because the peer has closed, before the frames that it sent earlier were read. They
 * are still delivered. */
static void test_last_words(void **state)
{
	struct loopnet *t = *state;
	unsigned char bytes[128];
	size_t n = frames_make(bytes, OP_PUSH, 0, 0, "\x0a\x01\x05", 3, 0);
	int fd = loopnet_raw(t);

	RUN_UNTIL(t, t->accepted_nr == 1);
	assert_int_equal(send(fd, bytes, n, 0), (ssize_t)n);
	close(fd);
	loopnet_ping(t->accepted[0].c);
	assert_int_equal(t->accepted[0].got.nr, 0); /* Not inside the call that sends. */
	RUN_UNTIL(t, t->accepted[0].closed);
	assert_int_equal(t->accepted[0].got.nr, 1);
	assert_int_equal(t->accepted[0].why.status, SHARD_CLOSED);
}

/* A peer that stops in the middle of a frame, or says nothing, is closed after its deadline. */
static void test_stall_and_silence(void **state)
{
	struct loopnet *t = *state;
	unsigned char bytes[128];
	size_t n = frames_make(bytes, OP_PUSH, 0, 0, "\x0a\x01\x05", 3, 0);
	int fd;

	t->conf.frame_ns = 40 * NS_PER_MS;
	for (int i = 0; i < 3; i++) {
		size_t cut = i == 0 ? 1 : i == 1 ? 63 : 65;
		uint64_t start = clock_ns();

		assert_true(cut < n);
		fd = loopnet_raw(t);
		assert_int_equal(send(fd, bytes, cut, 0), (ssize_t)cut);
		RUN_UNTIL(t, t->accepted_nr == i + 1 && t->accepted[i].closed);
		assert_int_equal(t->accepted[i].why.status, SHARD_TIMEOUT);
		assert_non_null(strstr(t->accepted[i].why.text, "stalled in mid-frame for 0.0 s"));
		assert_true(clock_ns() - start >= 40 * NS_PER_MS);
		close(fd);
	}
	t->conf.silence_ns = 30 * NS_PER_MS;
	fd = loopnet_raw(t);
	RUN_UNTIL(t, t->accepted_nr == 4 && t->accepted[3].closed);
	assert_int_equal(t->accepted[3].why.status, SHARD_TIMEOUT);
	assert_non_null(strstr(t->accepted[3].why.text, "silent for"));
	close(fd);
}

/* A peer that sends frames but never reads is closed after the deadline, too. */
static void test_takes_nothing(void **state)
{
	struct loopnet *t = *state;
	struct wire_head h = {.op = OP_PUSH_DATA};
	char *body = calloc(1, WIRE_PART_BYTES);
	unsigned char ping[64];
	uint64_t said = 0, start;
	uint32_t ordinal = 0;
	int fd;

	assert_non_null(body);
	t->conf.silence_ns = 300 * NS_PER_MS;
	fd = loopnet_raw(t);
	RUN_UNTIL(t, t->accepted_nr == 1);
	start = clock_ns();
	while (stream_send(conn_stream(t->accepted[0].c), &h, body, WIRE_PART_BYTES, NULL, NULL) ==
	       SHARD_OK)
		;
	conn_kick(t->accepted[0].c);
	while (!t->accepted[0].closed && clock_ns() - start < pace_ns(20 * NS_PER_SEC)) {
		if (clock_ns() - said > 20 * NS_PER_MS) {
			frames_make(ping, OP_PING, 0, 0, NULL, 0, ordinal++);
			(void)send(fd, ping, sizeof(ping), MSG_NOSIGNAL);
			said = clock_ns();
		}
		uv_run(&t->loop, UV_RUN_NOWAIT);
	}
	assert_int_equal(t->accepted[0].closed, 1);
	assert_int_equal(t->accepted[0].why.status, SHARD_TIMEOUT);
	assert_non_null(
		strstr(t->accepted[0].why.text, "has taken nothing of what it is sent for 0.3 s"));
	close(fd);
	free(body);
}

/* A peer that sends a malformed frame gets an ERROR that says which frame and why. */
static void test_refusal_is_told(void **state)
{
	struct loopnet *t = *state;
	unsigned char bytes[64], back[512];
	const struct wire_head *h = (const void *)back;
	int fd = loopnet_raw(t);
	Shard__Error *m;
	ssize_t n;

	frames_make(bytes, OP_PING, 0, 0, NULL, 0, 0);
	bytes[40] ^= 1;
	assert_int_equal(send(fd, bytes, 64, 0), 64);
	RUN_UNTIL(t, t->accepted_nr == 1 && t->accepted[0].closed);
	assert_int_equal(t->accepted[0].why.status, SHARD_PROTOCOL);
	assert_int_equal(t->accepted[0].stats.refused, 1);
	n = recv(fd, back, sizeof(back), 0);
	assert_true(n > 64);
	assert_int_equal(h->op, OP_ERROR);
	assert_null(wire_invalid(h, 0, true));
	m = shard__error__unpack(NULL, h->body_bytes, back + 64);
	assert_non_null(m);
	assert_int_equal(m->status, SHARD_PROTOCOL);
	assert_non_null(strstr(m->text, "frame 0"));
	assert_non_null(strstr(m->text, "header checksum"));
	shard__error__free_unpacked(m, NULL);
	close(fd);
}

/* A frame that was read before a pause is delivered after it, without more to read. */
static void test_pause(void **state)
{
	struct loopnet *t = *state;
	struct wire_head push = {.op = OP_PUSH};

	loopnet_connected(t, t->path);
	t->accepted[0].got.hold_after_each = true; /* As if on_frame() called conn_pause(). */
	assert_int_equal(
		stream_send(conn_stream(t->dialled.c), &push, "\x0a\x01\x05", 3, NULL, NULL),
		SHARD_OK);
	/* Its header is read with the body before it, and then the socket is empty. */
	loopnet_ping(t->dialled.c);
	RUN_UNTIL(t, t->accepted[0].got.nr == 1);
	assert_true(stream_ready(conn_stream(t->accepted[0].c)));
	conn_pause(t->accepted[0].c, true);
	for (int i = 0; i < 3; i++)
		uv_run(&t->loop, UV_RUN_NOWAIT);
	assert_int_equal(t->accepted[0].got.nr, 1);
	conn_pause(t->accepted[0].c, false);
	RUN_UNTIL(t, t->accepted[0].got.nr == 2);
	conn_close(t->dialled.c, NULL, 0);
	conn_pause(t->accepted[0].c, true);
	conn_pause(t->accepted[0].c, false);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
}

static void sent(void *arg, enum shard_status st)
{
	struct loopend *n = arg;

	(void)st;
	assert_int_equal(n->closed, 0); /* All bodies are given back before on_close(). */
	n->given_back++;
	conn_kick(n->c); /* This is allowed at any time. */
}

/* Called by on_room(), after each write that made room. Frames that are queued here are written
 * without a kick. */
static void refill(struct loopend *n, struct conn *c)
{
	struct wire_head h = {.op = OP_PING};

	while (n->refills > 0 && stream_queued(conn_stream(c)) < 4) {
		assert_int_equal(stream_send(conn_stream(c), &h, NULL, 0, sent, n), SHARD_OK);
		n->refills--;
	}
}

/* An end that fills its queue is told of room after each write, and gets every body back. */
static void test_room(void **state)
{
	struct loopnet *t = *state;
	struct wire_head h = {.op = OP_PUSH_DATA};
	char *body = calloc(1, WIRE_PART_BYTES);
	int nr = 0;

	loopnet_connected(t, t->path);
	t->accepted[0].got.discard = true;
	while (stream_send(conn_stream(t->dialled.c), &h, body, WIRE_PART_BYTES, sent,
			   &t->dialled) == SHARD_OK)
		nr++;
	assert_int_equal(nr, 32);
	t->dialled.refill = refill;
	t->dialled.refills = 100;
	conn_kick(t->dialled.c);
	RUN_UNTIL(t, t->accepted[0].got.heads == 132);
	assert_true(t->dialled.rooms > 1);
	for (int i = 0; i < 8; i++)
		assert_int_equal(stream_send(conn_stream(t->dialled.c), &h, body, WIRE_PART_BYTES,
					     sent, &t->dialled),
				 SHARD_OK);
	nr = t->dialled.rooms;
	conn_close(t->dialled.c, NULL, 0);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	assert_int_equal(t->dialled.given_back, 140);
	assert_int_equal(t->dialled.rooms, nr); /* A closed connection has no room to report. */
	free(body);
}

/* --- what is sent from within a read --- */

struct answers {
	struct conn *c;
	int peer; /* The socket of the other end. */
	ssize_t kicked, kicked_now;
	bool closed;
};

static enum shard_status answers_head(void *owner, struct stream *s, const struct wire_head *h,
				      void **to, struct err *e)
{
	(void)owner, (void)s, (void)h, (void)to, (void)e;
	return SHARD_OK;
}

static enum shard_status answers_frame(void *owner, struct stream *s, const struct wire_head *h,
				       const void *body, struct err *e)
{
	struct wire_head pong = {.op = OP_PONG};
	struct answers *a = owner;
	char there[256];

	(void)h, (void)body, (void)e;
	assert_int_equal(stream_send(s, &pong, NULL, 0, NULL, NULL), SHARD_OK);
	conn_kick(a->c);
	a->kicked = recv(a->peer, there, sizeof(there), MSG_PEEK | MSG_DONTWAIT);
	conn_kick_now(a->c);
	a->kicked_now = recv(a->peer, there, sizeof(there), MSG_PEEK | MSG_DONTWAIT);
	return SHARD_OK;
}

static void answers_closed(void *owner, struct conn *c, const struct err *why)
{
	(void)c, (void)why;
	((struct answers *)owner)->closed = true;
}

/* During a read conn_kick() leaves an answer in the queue until all frames of the read are handled,
 * and conn_kick_now() sends it at once. */
static void test_kick_in_read(void **state)
{
	static const struct conn_handler handler = {
		{.on_head = answers_head, .on_frame = answers_frame}, NULL, answers_closed, NULL};
	struct loopnet *t = *state;
	struct answers a = {.kicked = 0};
	struct conn_conf conf = t->conf;
	unsigned char ping[64];
	int fds[2];

	conf.handler = &handler;
	conf.owner = &a;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
			 0);
	a.peer = fds[1];
	assert_int_equal(conn_accept(&a.c, &t->loop, fds[0], &conf, NULL), SHARD_OK);
	frames_make(ping, OP_PING, 0, 0, NULL, 0, 0);
	assert_int_equal(send(fds[1], ping, sizeof(ping), 0), 64);
	RUN_UNTIL(t, a.kicked_now != 0);
	assert_int_equal(a.kicked, -1);
	assert_int_equal(a.kicked_now, 64);
	close(fds[1]);
	RUN_UNTIL(t, a.closed);
}

/* --- a limit for what a connection holds --- */

enum { ASKED = 24, ANSWER = 200 << 10, HELD_MAX = 300 << 10 };

struct asked {
	uint32_t nr;
	uint64_t most; /* The most bytes that were held when a question came. */
	bool closed;
};

static enum shard_status asked_head(void *owner, struct stream *s, const struct wire_head *h,
				    void **to, struct err *e)
{
	(void)owner, (void)s, (void)h, (void)to, (void)e;
	return SHARD_OK;
}

/* Each frame is answered by 200 KiB that the stream owns. */
static enum shard_status asked_frame(void *owner, struct stream *s, const struct wire_head *h,
				     const void *body, struct err *e)
{
	struct wire_head answer = {.op = OP_PUSH_DATA};
	struct asked *a = owner;

	(void)h, (void)body;
	a->most = stream_held(s) > a->most ? stream_held(s) : a->most;
	a->nr++;
	return stream_send_owned(s, &answer, calloc(1, ANSWER), ANSWER) == SHARD_OK
		       ? SHARD_OK
		       : err_set(e, SHARD_SYSTEM, "full");
}

static void asked_closed(void *owner, struct conn *c, const struct err *why)
{
	(void)c, (void)why;
	((struct asked *)owner)->closed = true;
}

/* Many questions arrive in one read. They are answered a few at a time, so that the answers stay
 * below the limit, and all are answered, whether the peer reads the answers at once or late. */
static void test_limit(void **state)
{
	static const struct conn_handler handler = {
		.frames = {.on_head = asked_head, .on_frame = asked_frame},
		.on_close = asked_closed};
	struct stream_account account = {.most = UINT64_MAX};
	struct wire_head ping = {.op = OP_PING}, with_body = {.op = OP_ABANDON};
	struct loopnet *t = *state;
	Shard__Why why = SHARD__WHY__INIT;
	struct asked a = {0};

	why.why = (char *)(uintptr_t) "some text";
	t->conf.account = &account;
	loopnet_connected(t, t->path);
	conn_set_owner(t->accepted[0].c, &handler, &a);
	conn_set_limit(t->accepted[0].c, HELD_MAX);
	t->dialled.got.to = malloc(FRAMES_BODY_MAX);
	for (uint32_t round = 1; round <= 3; round++) {
		/* In the last round others hold all the memory, so answers go one at a time. */
		account.most = round == 3 ? 0 : UINT64_MAX;
		a.most = 0;
		conn_pause(t->dialled.c, round == 2);
		for (int i = 1; i < ASKED; i++)
			assert_int_equal(stream_send_control(conn_stream(t->dialled.c), &with_body,
							     &why.base),
					 SHARD_OK);
		/* Its header is read with the body before it, and then the socket has nothing more
		 * to read. */
		assert_int_equal(stream_send_control(conn_stream(t->dialled.c), &ping, NULL),
				 SHARD_OK);
		conn_kick(t->dialled.c);
		if (round == 2) {
			/* Then it stops, because nobody reads the answers. */
			RUN_UNTIL(t, a.nr >= ASKED + 2);
			for (int i = 0; i < 20; i++)
				uv_run(&t->loop, UV_RUN_NOWAIT);
			assert_true(a.nr < ASKED + 8 &&
				    stream_held(conn_stream(t->accepted[0].c)) > HELD_MAX / 2);
			conn_pause(t->dialled.c, false);
		}
		RUN_UNTIL(t, t->dialled.got.nr == round * ASKED);
		assert_int_equal(a.nr, round * ASKED);
		assert_true(a.most <= (round == 3 ? 0 : HELD_MAX));
		assert_int_equal(account.bytes, 0);
	}
	assert_true(account.peak >= ANSWER && account.peak <= HELD_MAX + ANSWER + 4096);
	conn_close(t->dialled.c, NULL, 0);
	RUN_UNTIL(t, t->dialled.closed && a.closed);
	free(t->dialled.got.to);
}

#define T(name) cmocka_unit_test_setup_teardown(name, loopnet_up, loopnet_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_linger),       T(test_linger_ends),   T(test_stall_and_silence),
		T(test_last_words),   T(test_takes_nothing), T(test_refusal_is_told),
		T(test_pause),        T(test_room),          T(test_limit),
		T(test_kick_in_read),
	};

	return cmocka_run_group_tests_name("conn_flow", tests, NULL, NULL);
}
