/* SPDX-License-Identifier: Apache-2.0 */
/* What goes over a connection that is open: all that was queued before it closes, deadlines for frames and silence, refusals that the peer is
 * told, pauses, and word that everything is sent. How it opens and closes is in test_conn.c. */
#include "base/check.h"
#include "lib/loopnet.h"
#include "wire/ops.h"

#include "shard.pb-c.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* What was queued before conn_close() with a linger time arrives, also when the peer's own bytes are never read. */
static void test_linger(void **state)
{
	struct loopnet *t = *state;
	struct wire_head h = {.op = OP_PUSH_DATA};
	char *body = calloc(1, WIRE_PART_BYTES);
	uint64_t start = clock_ns();

	loopnet_connected(t, t->path);
	t->dialled.got.to = malloc(FRAMES_BODY_MAX);
	for (int i = 0; i < 16; i++)
		assert_int_equal(stream_send(conn_stream(t->accepted[0].c), &h, body, WIRE_PART_BYTES, NULL, NULL), SHARD_OK);
	loopnet_ping(t->dialled.c);
	conn_close(t->accepted[0].c, NULL, 5000);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	assert_true(clock_ns() - start < 4 * NS_PER_SEC); /* ends when the peer has all, not when patience does */
	assert_int_equal(t->dialled.got.nr, 16);
	assert_int_equal(t->accepted[0].got.nr, 0);
	free(t->dialled.got.to);
	free(body);
}

static void test_linger_ends(void **state)
{
	struct loopnet *t = *state;
	struct wire_head h = {.op = OP_PUSH_DATA};
	char *body = calloc(1, WIRE_PART_BYTES);

	loopnet_connected(t, t->path);
	conn_pause(t->dialled.c, true); /* reads nothing */
	for (int i = 0; i < 16; i++)
		assert_int_equal(stream_send(conn_stream(t->accepted[0].c), &h, body, WIRE_PART_BYTES, NULL, NULL), SHARD_OK);
	conn_close(t->accepted[0].c, NULL, 30);
	RUN_UNTIL(t, t->accepted[0].closed);
	conn_pause(t->dialled.c, false);
	RUN_UNTIL(t, t->dialled.closed);
	free(body);
}

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

static void test_pause(void **state)
{
	struct loopnet *t = *state;
	struct wire_head push = {.op = OP_PUSH};

	loopnet_connected(t, t->path);
	t->accepted[0].got.hold_after_each = true; /* what conn_pause() in on_frame does */
	assert_int_equal(stream_send(conn_stream(t->dialled.c), &push, "\x0a\x01\x05", 3, NULL, NULL), SHARD_OK);
	loopnet_ping(t->dialled.c); /* its header comes with the body before it; nothing after it makes the socket readable */
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
	assert_int_equal(n->closed, 0); /* bodies come back before on_close() */
	n->given_back++;
	conn_kick(n->c); /* harmless at any time */
}

static void test_drained(void **state)
{
	struct loopnet *t = *state;
	struct wire_head h = {.op = OP_PUSH_DATA};
	char *body = calloc(1, WIRE_PART_BYTES);
	int nr = 0;

	loopnet_connected(t, t->path);
	t->accepted[0].got.discard = true;
	while (stream_send(conn_stream(t->dialled.c), &h, body, WIRE_PART_BYTES, sent, &t->dialled) == SHARD_OK)
		nr++;
	assert_int_equal(nr, 32);
	conn_kick(t->dialled.c);
	RUN_UNTIL(t, t->dialled.drained == 1);
	RUN_UNTIL(t, t->accepted[0].got.heads == 32);
	for (int i = 0; i < 8; i++)
		assert_int_equal(stream_send(conn_stream(t->dialled.c), &h, body, WIRE_PART_BYTES, sent, &t->dialled), SHARD_OK);
	conn_close(t->dialled.c, NULL, 0);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	assert_int_equal(t->dialled.given_back, 40);
	assert_int_equal(t->dialled.drained, 1);
	free(body);
}

#define T(name) cmocka_unit_test_setup_teardown(name, loopnet_up, loopnet_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_linger),          T(test_linger_ends), T(test_stall_and_silence),
		T(test_refusal_is_told), T(test_pause),       T(test_drained),
	};

	return cmocka_run_group_tests_name("conn_flow", tests, NULL, NULL);
}
