/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what a stream sends: a queue that fills and drains, bodies that come back, the way from
 * stream to stream, descriptors beside frames, and streams that cannot be opened. Nothing leaks.
 * What a stream takes in is in test_stream.c. */
#include "base/check.h"
#include "base/rng.h"
#include "lib/wirepair.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include "shard.pb-c.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static int fail_alloc_in; /* 0: none. n: the n-th allocation of a stream fails. */

extern void *__libc_memalign(size_t align, size_t bytes);
void *aligned_alloc(size_t align, size_t bytes)
{
	return fail_alloc_in > 0 && --fail_alloc_in == 0 ? NULL : __libc_memalign(align, bytes);
}
#define CAN_FAIL_ALLOC 1
#endif

/* --- sending --- */
struct sent {
	uint32_t ok, closed;
	struct stream *again; /* Queues another frame from the callback. */
};

static void on_sent(void *arg, enum shard_status st)
{
	struct sent *t = arg;
	struct wire_head h = {.op = OP_PING};

	if (st == SHARD_OK)
		t->ok++;
	else
		t->closed++;
	if (t->again)
		assert_int_equal(stream_send(t->again, &h, NULL, 0, NULL, NULL),
				 st == SHARD_OK ? SHARD_OK : SHARD_CLOSED);
}

static void test_queue_full(void **state)
{
	struct wirepair *p = wirepair_new();
	struct wire_head h = {.op = OP_PING};
	struct sent t = {0};

	(void)state;
	for (int i = 0; i < 64; i++)
		assert_int_equal(stream_send(p->s, &h, NULL, 0, on_sent, &t), SHARD_OK);
	assert_int_equal(stream_send(p->s, &h, NULL, 0, on_sent, &t), SHARD_AGAIN);
	assert_false(stream_roomy(p->s));
	assert_int_equal(stream_write(p->s, NULL), SHARD_OK);
	assert_int_equal(t.ok, 64);
	assert_true(stream_roomy(p->s));
	wirepair_free(p);
	assert_int_equal(t.closed, 0);
}

static void test_control_room(void **state)
{
	struct wirepair *p = wirepair_new();
	struct wire_head h = {.op = OP_STATUS, .flags = WIRE_REPLY};
	Shard__Text m = SHARD__TEXT__INIT;
	enum shard_status rc = SHARD_OK;
	char *text = malloc(20 << 20);
	int nr = 0;

	(void)state;
	memset(text, 'x', (20 << 20) - 1);
	text[(20 << 20) - 1] = '\0';
	/* The ring has 64 KiB, which is room for seven of these. */
	m.text = text + (20 << 20) - 8192;
	while ((rc = stream_send_control(p->s, &h, &m.base)) == SHARD_OK)
		nr++;
	assert_int_equal(rc, SHARD_AGAIN);
	assert_in_range(nr, 7, 8);
	/* The limit is one of bytes, because few frames are queued. */
	assert_false(stream_roomy(p->s));
	m.text = text;
	assert_int_equal(stream_send_control(p->s, &h, &m.base), SHARD_RANGE);
	m.text = text + (19 << 20); /* 1 MiB has memory of its own, also when the ring is full. */
	assert_int_equal(stream_send_control(p->s, &h, &m.base), SHARD_OK);
	wirepair_free(p);
	free(text);
}

/* A body that is packed already travels as one that the stream packs, from the ring and from memory
 * of its own. The caller's bytes are free at once. */
static void test_packed(void **state)
{
	struct wirepair *p = wirepair_new();
	struct wire_head h = {.op = OP_STATUS, .flags = WIRE_REPLY};
	Shard__Text m = SHARD__TEXT__INIT;
	unsigned char packed[1 << 15], got[2][(1 << 15) + sizeof(h)];
	size_t bytes;

	(void)state;
	for (size_t nr = 100; nr < 1 << 15; nr += (1 << 15) - 200) {
		char *text = malloc(nr + 1);

		memset(text, 'x', nr);
		text[nr] = 0;
		m.text = text;
		bytes = protobuf_c_message_pack(&m.base, packed);
		assert_int_equal(stream_send_control(p->s, &h, &m.base), SHARD_OK);
		assert_int_equal(stream_send_bytes(p->s, &h, packed, bytes), SHARD_OK);
		memset(packed, 0, sizeof(packed));
		free(text);
		assert_int_equal(stream_write(p->s, NULL), SHARD_OK);
		for (int i = 0; i < 2; i++)
			assert_int_equal(recv(p->peer, got[i], sizeof(h) + bytes, MSG_WAITALL),
					 sizeof(h) + bytes);
		assert_memory_equal(got[0] + sizeof(h), got[1] + sizeof(h), bytes);
		assert_int_equal(stream_held(p->s), 0);
	}
	assert_int_equal(stream_send_bytes(p->s, &h, packed, 20 << 20), SHARD_RANGE);
	assert_int_equal(stream_send_bytes(p->s, &h, NULL, 0), SHARD_OK);
	wirepair_free(p);
}

static void test_bodies_come_back(void **state)
{
	struct wirepair *p = wirepair_new();
	struct wire_head h = {.op = OP_PUSH_DATA};
	char *body = calloc(1, WIRE_PART_BYTES);
	struct sent t = {.again = p->s};
	struct err e;

	(void)state;
	for (int i = 0; i < 8; i++)
		assert_int_equal(stream_send(p->s, &h, body, WIRE_PART_BYTES, on_sent, &t),
				 SHARD_OK);
	assert_int_equal(stream_send(p->s, &h, body, WIRE_PART_BYTES + 1, on_sent, &t),
			 SHARD_RANGE);
	assert_int_equal(stream_write(p->s, NULL), SHARD_AGAIN);
	assert_true(t.ok < 8);
	close(p->peer);
	p->peer = -1;
	assert_int_equal(stream_write(p->s, &e), SHARD_CLOSED);
	assert_int_equal(stream_send(p->s, &h, body, 64, on_sent, &t), SHARD_CLOSED);
	wirepair_free(p);
	assert_int_equal(t.ok + t.closed, 8);
	free(body);
}

/* Frames of mixed sizes go from stream to stream. A small socket buffer stops the writer at odd
 * places, and further frames are queued from sent(). */
static void test_round_trip(void **state)
{
	struct wirepair *a = wirepair_new(), *b = wirepair_new();
	struct stream_conf conf = {
		.queue_max = 16, .body_max = 1 << 20, .handler = &frames_handler, .owner = &b->got};
	unsigned char *body = malloc(WIRE_PART_BYTES);
	struct rng r = {3};
	struct sent t = {0};
	uint64_t sums[100];
	uint32_t queued = 0;
	int small = 4096;

	(void)state;
	frames_fill(body, WIRE_PART_BYTES, 9);
	assert_int_equal(setsockopt(stream_fd(a->s), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)),
			 0);
	stream_free(&b->s);
	conf.fd = a->peer;
	a->peer = -1;
	assert_int_equal(stream_open(&b->s, &conf, NULL), SHARD_OK);
	while (b->got.nr < 100) {
		struct wire_head h = {.op = OP_CONTRIB_DATA, .chunk = queued, .step = 5, .term = 7};
		uint32_t bytes = rng_below(&r, 3)
					 ? 2 + (uint32_t)rng_below(&r, 300)
					 : 2 + (uint32_t)rng_below(&r, WIRE_PART_BYTES - 1);

		if (queued < 100 && stream_send(a->s, &h, body, bytes, on_sent, &t) == SHARD_OK)
			sums[queued++] = xxh_sum(body, bytes, 0);
		if (rng_below(&r, 4) == 0 || queued == 100)
			assert_in_range(stream_write(a->s, NULL), SHARD_OK, SHARD_AGAIN);
		assert_int_equal(stream_read(b->s, 1 + rng_below(&r, 100000), NULL), SHARD_OK);
	}
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(b->got.head[i].chunk, i);
		assert_true(b->got.sum[i] == sums[i]);
	}
	assert_int_equal(t.ok, 100);
	assert_true(stream_stats(a->s)->bytes_out == stream_stats(b->s)->bytes_in);
	assert_int_equal(stream_stats(b->s)->copied_bytes, 0);
	wirepair_free(a);
	wirepair_free(b);
	free(body);
}

/* --- descriptors --- */
static void test_fds(void **state)
{
	struct wirepair *a = wirepair_new(), *b = wirepair_new();
	struct stream_conf conf = {
		.queue_max = 16, .body_max = 1 << 20, .handler = &frames_handler, .owner = &b->got};
	struct wire_head h = {.op = OP_JOIN, .flags = WIRE_REPLY}, ping = {.op = OP_PING};
	Shard__Joined m = SHARD__JOINED__INIT;
	int fds[5] = {0, 1, 2, 0, 1};
	uint32_t before;

	(void)state;
	stream_free(&b->s);
	conf.fd = a->peer;
	a->peer = -1;
	assert_int_equal(stream_open(&b->s, &conf, NULL), SHARD_OK);
	before = frames_open_fds();
	m.arena_bytes = 12345;
	b->got.take_fds = true;
	assert_int_equal(stream_send_control(a->s, &h, &m.base),
			 SHARD_OK); /* A body whose read brings the next header along. */
	assert_int_equal(stream_send_fds(a->s, &h, &m.base, fds, 2), SHARD_OK);
	assert_int_equal(stream_send_control(a->s, &ping, NULL), SHARD_OK);
	assert_int_equal(stream_send_fds(a->s, &h, &m.base, fds, 4), SHARD_OK);
	assert_int_equal(stream_write(a->s, NULL), SHARD_OK);
	assert_int_equal(frames_open_fds(),
			 before); /* Our duplicates are gone, and the peer has not read them yet. */
	assert_int_equal(stream_read(b->s, 1 << 20, NULL), SHARD_OK);
	while (b->got.nr < 4)
		assert_int_equal(stream_read(b->s, 1 << 20, NULL), SHARD_OK);
	assert_int_equal(b->got.fds_nr, 6);
	assert_int_equal(b->got.fds_at[0], 0);
	assert_int_equal(b->got.fds_at[1], 2);
	assert_int_equal(b->got.fds_at[2], 2);
	for (int i = 0; i < 6; i++) {
		assert_int_equal(fcntl(b->got.fds[i], F_GETFD), FD_CLOEXEC);
		close(b->got.fds[i]);
	}
	assert_int_equal(frames_open_fds(), before);
	wirepair_free(a);
	wirepair_free(b);
}

/* Sends bytes with descriptors beside them, as a peer that follows no rule would. */
static void send_with_fds(int to, const void *bytes, size_t nr, int fds_nr)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(16 * sizeof(int))];
	} control = {0};
	struct iovec iov = {(char *)(uintptr_t)bytes, nr};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes};
	int fds[16] = {0};

	m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)fds_nr);
	CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
	CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
	CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)fds_nr);
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), fds, sizeof(int) * (size_t)fds_nr);
	assert_int_equal(sendmsg(to, &m, MSG_NOSIGNAL), (ssize_t)nr);
}

static void test_fds_unasked(void **state)
{
	unsigned char bytes[1024];
	size_t n = wirepair_sample(bytes, 300);

	(void)state;
	for (int nr = 1; nr <= 16; nr += 5) {
		uint32_t before = frames_open_fds();
		struct wirepair *p = wirepair_new();

		/* Descriptors come with every piece of every frame. */
		for (size_t i = 0; i < n; i += 9)
			send_with_fds(p->peer, bytes + i, n - i < 9 ? n - i : 9, nr);
		for (int i = 0; i < 200; i++)
			assert_int_equal(stream_read(p->s, 1 << 20, NULL), SHARD_OK);
		wirepair_check(&p->got, 300);
		assert_int_equal(frames_open_fds(), before + 2); /* The pair itself. */
		send_with_fds(p->peer, "x", 1, nr); /* And in a frame that never ends. */
		assert_int_equal(stream_read(p->s, 1 << 20, NULL), SHARD_OK);
		wirepair_free(p);
		assert_int_equal(frames_open_fds(), before);
	}
}

static void test_alloc_fails(void **state)
{
#ifdef CAN_FAIL_ALLOC
	struct frames f = {0};
	struct stream_conf conf = {
		.queue_max = 4, .body_max = 100, .handler = &frames_handler, .owner = &f};
	struct stream *s = NULL;
	int fds[2], n = 0;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	conf.fd = fds[0];
	do
		fail_alloc_in = ++n;
	while (stream_open(&s, &conf, NULL) != SHARD_OK && n < 10);
	fail_alloc_in = 0;
	assert_int_equal(n, 2);
	stream_free(&s);
	assert_null(s);
	close(fds[1]);
#else
	(void)state;
	skip();
#endif
}

static void test_bad_descriptor(void **state)
{
	struct frames f = {0};
	struct stream_conf conf = {
		.fd = 987, .queue_max = 4, .handler = &frames_handler, .owner = &f};
	struct stream *s = NULL;
	struct err e;

	(void)state;
	assert_int_equal(stream_open(&s, &conf, &e), SHARD_SYSTEM);
	assert_null(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_queue_full),     cmocka_unit_test(test_control_room),
		cmocka_unit_test(test_packed),         cmocka_unit_test(test_bodies_come_back),
		cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_fds),
		cmocka_unit_test(test_fds_unasked),    cmocka_unit_test(test_alloc_fails),
		cmocka_unit_test(test_bad_descriptor),
	};

	return cmocka_run_group_tests_name("stream_send", tests, NULL, NULL);
}
