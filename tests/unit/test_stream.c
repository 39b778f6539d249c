/* SPDX-License-Identifier: Apache-2.0 */
/* Streams over a socketpair: whatever way bytes are torn, the same frames arrive; whatever is not a frame is refused, counted and
 * ends the stream; nothing leaks. */
#include "base/check.h"
#include "base/rng.h"
#include "lib/frames.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include "shard.pb-c.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static int fail_alloc_in; /* 0: never; n: the n-th allocation of a stream fails */

extern void *__libc_memalign(size_t align, size_t bytes);
void *aligned_alloc(size_t align, size_t bytes)
{
	return fail_alloc_in > 0 && --fail_alloc_in == 0 ? NULL : __libc_memalign(align, bytes);
}
#define CAN_FAIL_ALLOC 1
#endif

struct pair {
	struct stream *s;
	struct frames got;
	int peer;
};

static struct pair *pair_new(void)
{
	struct pair *p = calloc(1, sizeof(*p));
	struct stream_conf conf = {.queue_max = 64, .body_max = 1 << 20, .handler = &frames_handler};
	int fds[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	conf.fd = fds[0];
	conf.owner = &p->got;
	p->got.to = malloc(FRAMES_BODY_MAX);
	p->peer = fds[1];
	CHECK(fcntl(p->peer, F_SETFL, O_NONBLOCK) == 0);
	assert_int_equal(stream_open(&p->s, &conf, NULL), SHARD_OK);
	return p;
}

static void pair_free(struct pair *p)
{
	stream_free(&p->s);
	if (p->peer >= 0)
		close(p->peer);
	free(p->got.to);
	free(p);
}

static enum shard_status feed(struct pair *p, const void *bytes, size_t nr, struct err *e)
{
	enum shard_status rc = SHARD_OK;
	const char *at = bytes;

	while (nr > 0 && rc == SHARD_OK) { /* the socket's buffer is smaller than the largest frame */
		ssize_t n = send(p->peer, at, nr, MSG_NOSIGNAL | MSG_DONTWAIT);

		assert_true(n > 0);
		at += n;
		nr -= (size_t)n;
		rc = stream_read(p->s, 1 << 20, e);
	}
	for (int i = 0; rc == SHARD_OK && i < 8; i++)
		rc = stream_read(p->s, 1 << 20, e);
	return rc;
}

/* control, bulk, empty, control: the shapes that a reader can meet */
static size_t sample(unsigned char *out, size_t bulk_bytes)
{
	unsigned char *body = malloc(bulk_bytes);
	size_t n = 0;

	frames_fill(body, bulk_bytes, 7);
	n += frames_make(out + n, OP_PUSH, 0, 1, "\x0a\x01\x05", 3, 0);
	n += frames_make(out + n, OP_PUSH_DATA, WIRE_PART_FLAG(3), 2, body, (uint32_t)bulk_bytes, 1);
	n += frames_make(out + n, OP_PING, 0, 0, NULL, 0, 2);
	n += frames_make(out + n, OP_READY, 0, 0, "\x09\x00\x00\x00\x00\x00\x00\xf0\x3f", 9, 3);
	free(body);
	return n;
}

static void check_sample(const struct frames *f, size_t bulk_bytes)
{
	unsigned char *body = malloc(bulk_bytes);

	frames_fill(body, bulk_bytes, 7);
	assert_int_equal(f->nr, 4);
	assert_int_equal(f->heads, 4);
	assert_int_equal(f->head[0].op, OP_PUSH);
	assert_int_equal(f->head[1].chunk, 2);
	assert_int_equal(WIRE_PART(f->head[1].flags), 3);
	assert_int_equal(f->head[3].op, OP_READY);
	assert_true(f->sum[0] == xxh_sum("\x0a\x01\x05", 3, 0));
	assert_true(f->sum[1] == xxh_sum(body, bulk_bytes, 0));
	assert_memory_equal(f->to, body, bulk_bytes);
	free(body);
}

static void test_torn_everywhere(void **state)
{
	unsigned char bytes[1024];
	size_t n = sample(bytes, 333);

	(void)state;
	for (size_t cut = 0; cut <= n; cut++) {
		struct pair *p = pair_new();

		assert_int_equal(feed(p, bytes, cut, NULL), SHARD_OK);
		assert_int_equal(stream_mid_frame(p->s),
				 cut % n != 0 && cut != 67 && cut != 67 + 64 + 333 && cut != 67 + 128 + 333);
		assert_int_equal(feed(p, bytes + cut, n - cut, NULL), SHARD_OK);
		check_sample(&p->got, 333);
		assert_false(stream_mid_frame(p->s));
		assert_int_equal(stream_stats(p->s)->copied_bytes, 0);
		assert_int_equal(stream_stats(p->s)->tensor_bytes_in, 333);
		pair_free(p);
	}
}

static void test_byte_by_byte(void **state)
{
	unsigned char bytes[4096];
	size_t n = sample(bytes, 2000);
	struct pair *p = pair_new();

	(void)state;
	for (size_t i = 0; i < n; i++)
		assert_int_equal(feed(p, bytes + i, 1, NULL), SHARD_OK);
	check_sample(&p->got, 2000);
	pair_free(p);
}

static void test_whole_part(void **state)
{
	unsigned char *bytes = malloc(WIRE_PART_BYTES + 1024);
	size_t n = sample(bytes, WIRE_PART_BYTES);
	struct pair *p = pair_new();

	(void)state;
	assert_int_equal(feed(p, bytes, n, NULL), SHARD_OK);
	check_sample(&p->got, WIRE_PART_BYTES);
	assert_int_equal(stream_stats(p->s)->bytes_in, n);
	pair_free(p);
	free(bytes);
}

static void refused(const unsigned char *bytes, size_t n, const char *text)
{
	struct pair *p = pair_new();
	struct err e = {0};

	assert_int_not_equal(feed(p, bytes, n, &e), SHARD_OK);
	assert_int_equal(e.status, SHARD_PROTOCOL);
	assert_int_equal(stream_stats(p->s)->refused, 1);
	if (text && !strstr(e.text, text))
		fail_msg("\"%s\" lacks \"%s\"", e.text, text);
	assert_int_equal(stream_read(p->s, 100, &e), SHARD_PROTOCOL); /* and stays so */
	pair_free(p);
}

static void test_header_bits(void **state)
{
	unsigned char good[256], bad[256];
	size_t n = frames_make(good, OP_PUSH_DATA, 0, 5, "abcdefgh", 8, 0);

	(void)state;
	for (unsigned bit = 0; bit < 512; bit++) {
		memcpy(bad, good, n);
		bad[bit / 8] ^= (unsigned char)(1 << bit % 8);
		refused(bad, n, bit < 32 ? "magic" : bit < 48 ? "version" : "header checksum");
	}
}

static void test_body_bits(void **state)
{
	unsigned char *body = malloc(WIRE_PART_BYTES), *bytes = malloc(WIRE_PART_BYTES + 64);
	struct rng r = {42};
	size_t n;

	(void)state;
	for (int i = 0; i < 1000; i++) {
		uint32_t len = 1 + (uint32_t)rng_below(&r, 4096);
		uint64_t bit;

		frames_fill(body, len, (uint64_t)i);
		n = frames_make(bytes, OP_CONTRIB_DATA, 0, 5, body, len < 2 ? 2 : len, 0);
		bit = rng_below(&r, (n - 64) * 8);
		bytes[64 + bit / 8] ^= (unsigned char)(1 << bit % 8);
		refused(bytes, n, "body checksum");
	}
	free(body);
	free(bytes);
}

static void test_order(void **state)
{
	unsigned char a[64], b[64], both[192];
	size_t n = 0;

	(void)state;
	frames_make(a, OP_PING, 0, 0, NULL, 0, 0);
	frames_make(b, OP_PONG, 0, 0, NULL, 0, 1);
	memcpy(both, a, 64);
	memcpy(both + 64, a, 64);
	refused(both, 128, "frame 1 (ping) from unix pid "); /* duplicate */
	refused(b, 64, "header checksum");                   /* the first was lost */
	memcpy(both, b, 64);
	memcpy(both + 64, a, 64);
	refused(both, 128, "frame 0"); /* swapped */
	n += frames_make(both, OP_PING, 0, 0, NULL, 0, 0);
	n += frames_make(both + n, OP_PING, 0, 0, NULL, 0, 2);
	refused(both, n, "header checksum");
}

/* Headers whose sums are right, so that only the rule in question can refuse them. */
static void made(uint16_t op, uint32_t flags, uint32_t body_bytes, uint64_t body_sum, const char *text)
{
	struct wire_head h = {.magic = WIRE_MAGIC,
			      .version = WIRE_VERSION,
			      .op = op,
			      .flags = flags,
			      .body_bytes = body_bytes,
			      .body_sum = body_sum};

	h.head_sum = (uint32_t)xxh_sum(&h, 60, 0);
	refused((unsigned char *)&h, sizeof(h), text);
}

static void test_rules(void **state)
{
	struct wire_head h;

	(void)state;
	made(0, 0, 0, 0, "unknown op");
	made(9, 0, 0, 0, "unknown op");
	made(OP_NR, 0, 0, 0, "unknown op");
	made(65535, 0, 0, 0, "unknown op");
	made(OP_PING, 2, 0, 0, "unknown flags");
	made(OP_PUSH, WIRE_PART_FLAG(1), 0, 0, "part of a body");
	made(OP_PUSH_DATA, 0, WIRE_PART_BYTES + 1, 0, "body too large");
	made(OP_PUSH_DATA, 0, 0, 0, "body too small");
	made(OP_STATUS, 0, UINT32_MAX, 0, "body too large");
	made(OP_STATUS, 0, (1 << 20) + 1, 0, "larger than this connection may send now");
	made(OP_PING, 0, 0, 1, "checksum where there is none");
	frames_make((unsigned char *)&h, OP_PING, 0, 0, NULL, 0, 0);
	h.version = 2;
	refused((unsigned char *)&h, 64, "wire version");
	refused((const unsigned char *)"GET /metrics HTTP/1.1\r\nHost: a-host-with-a-long-name:29700\r\n\r\n\r\n\r\n", 66,
		"not a shardd frame");
}

static void test_sums_off(void **state)
{
	struct pair *p = pair_new();
	struct wire_head h = {.op = OP_PUSH_DATA, .body_bytes = 4};
	unsigned char bytes[68] = {0};

	(void)state;
	stream_features(p->s, 0);
	frames_make(bytes, OP_HELLO, WIRE_REPLY, 0, "\x08\x01\x10\x01", 4, 0); /* HELLO keeps its sum */
	assert_int_equal(feed(p, bytes, 68, NULL), SHARD_OK);
	wire_seal(&h, "abcd", 1, false);
	assert_true(h.body_sum == 0);
	memcpy(bytes, &h, 64);
	memcpy(bytes + 64, "abcx", 4);
	assert_int_equal(feed(p, bytes, 68, NULL), SHARD_OK);
	assert_int_equal(p->got.nr, 2);
	frames_make(bytes, OP_PUSH_DATA, 0, 0, "abcd", 4, 2);
	assert_int_equal(feed(p, bytes, 68, NULL), SHARD_PROTOCOL);
	pair_free(p);
}

static void test_owner_refuses(void **state)
{
	struct pair *p = pair_new();
	unsigned char bytes[64];
	struct err e;

	(void)state;
	p->got.refuse_op = OP_PING;
	frames_make(bytes, OP_PING, 0, 0, NULL, 0, 0);
	assert_int_equal(feed(p, bytes, 64, &e), SHARD_BAD_STATE);
	assert_non_null(strstr(e.text, "frame 0 (ping) from unix pid "));
	assert_non_null(strstr(e.text, ": not now"));
	assert_string_equal(stream_told(p->s), "not now");
	pair_free(p);
}

static void test_discard(void **state)
{
	unsigned char *bytes = malloc(WIRE_PART_BYTES + 1024);
	size_t n = sample(bytes, WIRE_PART_BYTES);
	struct pair *p = pair_new();

	(void)state;
	p->got.discard = true;
	assert_int_equal(feed(p, bytes, n, NULL), SHARD_OK);
	assert_int_equal(p->got.heads, 4);
	assert_int_equal(p->got.nr, 0);
	assert_int_equal(stream_stats(p->s)->frames_in, 4);
	pair_free(p);
	p = pair_new();
	p->got.discard = true;
	bytes[67 + 64 + 100000] ^= 1; /* also what is dropped is summed */
	assert_int_equal(feed(p, bytes, n, NULL), SHARD_PROTOCOL);
	pair_free(p);
	free(bytes);
}

static void test_hold(void **state)
{
	unsigned char bytes[1024];
	size_t n = sample(bytes, 100);
	struct pair *p = pair_new();

	(void)state;
	p->got.hold_after_each = true;
	assert_int_equal(feed(p, bytes, n, NULL), SHARD_OK);
	for (uint32_t i = 1; i <= 4; i++) {
		assert_int_equal(p->got.nr, i);
		stream_hold(p->s, false);
		assert_int_equal(stream_read(p->s, 1 << 20, NULL), SHARD_OK);
	}
	check_sample(&p->got, 100);
	pair_free(p);
}

static void test_peer_closes(void **state)
{
	unsigned char bytes[1024];
	size_t n = sample(bytes, 100);
	struct err e;

	(void)state;
	for (size_t cut = 0; cut <= n; cut += 13) {
		struct pair *p = pair_new();

		assert_int_equal(feed(p, bytes, cut, NULL), SHARD_OK);
		close(p->peer);
		p->peer = -1;
		assert_int_equal(stream_read(p->s, 1 << 20, &e), SHARD_CLOSED);
		assert_int_equal(strstr(e.text, "middle of a frame") != NULL, stream_mid_frame(p->s));
		pair_free(p);
	}
}

/* --- sending --- */
struct sent {
	uint32_t ok, closed;
	struct stream *again; /* queue another frame from the callback */
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
		assert_int_equal(stream_send(t->again, &h, NULL, 0, NULL, NULL), st == SHARD_OK ? SHARD_OK : SHARD_CLOSED);
}

static void test_queue_full(void **state)
{
	struct pair *p = pair_new();
	struct wire_head h = {.op = OP_PING};
	struct sent t = {0};

	(void)state;
	for (int i = 0; i < 64; i++)
		assert_int_equal(stream_send(p->s, &h, NULL, 0, on_sent, &t), SHARD_OK);
	assert_int_equal(stream_send(p->s, &h, NULL, 0, on_sent, &t), SHARD_AGAIN);
	assert_false(stream_drained(p->s));
	assert_int_equal(stream_write(p->s, NULL), SHARD_OK);
	assert_int_equal(t.ok, 64);
	assert_true(stream_drained(p->s));
	assert_false(stream_drained(p->s));
	pair_free(p);
	assert_int_equal(t.closed, 0);
}

static void test_control_room(void **state)
{
	struct pair *p = pair_new();
	struct wire_head h = {.op = OP_STATUS, .flags = WIRE_REPLY};
	Shard__Text m = SHARD__TEXT__INIT;
	enum shard_status rc = SHARD_OK;
	char *text = malloc(20 << 20);
	int nr = 0;

	(void)state;
	memset(text, 'x', (20 << 20) - 1);
	text[(20 << 20) - 1] = '\0';
	m.text = text + (20 << 20) - 8192; /* ring is 64 KiB: room for seven of these */
	while ((rc = stream_send_control(p->s, &h, &m.base)) == SHARD_OK)
		nr++;
	assert_int_equal(rc, SHARD_AGAIN);
	assert_in_range(nr, 7, 8);
	m.text = text;
	assert_int_equal(stream_send_control(p->s, &h, &m.base), SHARD_RANGE);
	m.text = text + (19 << 20); /* 1 MiB: memory of its own, also with the ring full */
	assert_int_equal(stream_send_control(p->s, &h, &m.base), SHARD_OK);
	pair_free(p);
	free(text);
}

static void test_bodies_come_back(void **state)
{
	struct pair *p = pair_new();
	struct wire_head h = {.op = OP_PUSH_DATA};
	char *body = calloc(1, WIRE_PART_BYTES);
	struct sent t = {.again = p->s};
	struct err e;

	(void)state;
	for (int i = 0; i < 8; i++)
		assert_int_equal(stream_send(p->s, &h, body, WIRE_PART_BYTES, on_sent, &t), SHARD_OK);
	assert_int_equal(stream_send(p->s, &h, body, WIRE_PART_BYTES + 1, on_sent, &t), SHARD_RANGE);
	assert_int_equal(stream_write(p->s, NULL), SHARD_AGAIN);
	assert_true(t.ok < 8);
	close(p->peer);
	p->peer = -1;
	assert_int_equal(stream_write(p->s, &e), SHARD_CLOSED);
	assert_int_equal(stream_send(p->s, &h, body, 64, on_sent, &t), SHARD_CLOSED);
	pair_free(p);
	assert_int_equal(t.ok + t.closed, 8);
	free(body);
}

/* stream to stream, the writer stopped at odd places by a small socket buffer, mixed sizes, frames queued from sent() */
static void test_round_trip(void **state)
{
	struct pair *a = pair_new(), *b = pair_new();
	struct stream_conf conf = {.queue_max = 16, .body_max = 1 << 20, .handler = &frames_handler, .owner = &b->got};
	unsigned char *body = malloc(WIRE_PART_BYTES);
	struct rng r = {3};
	struct sent t = {0};
	uint64_t sums[100];
	uint32_t queued = 0;
	int small = 4096;

	(void)state;
	frames_fill(body, WIRE_PART_BYTES, 9);
	assert_int_equal(setsockopt(stream_fd(a->s), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	stream_free(&b->s);
	conf.fd = a->peer;
	a->peer = -1;
	assert_int_equal(stream_open(&b->s, &conf, NULL), SHARD_OK);
	while (b->got.nr < 100) {
		struct wire_head h = {.op = OP_CONTRIB_DATA, .chunk = queued, .step = 5, .term = 7};
		uint32_t bytes =
			rng_below(&r, 3) ? 2 + (uint32_t)rng_below(&r, 300) : 2 + (uint32_t)rng_below(&r, WIRE_PART_BYTES - 1);

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
	pair_free(a);
	pair_free(b);
	free(body);
}

/* --- descriptors --- */
static void test_fds(void **state)
{
	struct pair *a = pair_new(), *b = pair_new();
	struct stream_conf conf = {.queue_max = 16, .body_max = 1 << 20, .handler = &frames_handler, .owner = &b->got};
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
	assert_int_equal(stream_send_control(a->s, &h, &m.base), SHARD_OK); /* a body whose read brings the next header along */
	assert_int_equal(stream_send_fds(a->s, &h, &m.base, fds, 2), SHARD_OK);
	assert_int_equal(stream_send_control(a->s, &ping, NULL), SHARD_OK);
	assert_int_equal(stream_send_fds(a->s, &h, &m.base, fds, 4), SHARD_OK);
	assert_int_equal(stream_write(a->s, NULL), SHARD_OK);
	assert_int_equal(frames_open_fds(), before); /* our duplicates are gone, the peer has not read them yet */
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
	pair_free(a);
	pair_free(b);
}

/* bytes with descriptors beside them, as a peer that follows no rule would send them */
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
	size_t n = sample(bytes, 300);

	(void)state;
	for (int nr = 1; nr <= 16; nr += 5) {
		uint32_t before = frames_open_fds();
		struct pair *p = pair_new();

		for (size_t i = 0; i < n; i += 9) /* with every piece of every frame */
			send_with_fds(p->peer, bytes + i, n - i < 9 ? n - i : 9, nr);
		for (int i = 0; i < 200; i++)
			assert_int_equal(stream_read(p->s, 1 << 20, NULL), SHARD_OK);
		check_sample(&p->got, 300);
		assert_int_equal(frames_open_fds(), before + 2); /* the pair */
		send_with_fds(p->peer, "x", 1, nr);              /* and in a frame that never ends */
		assert_int_equal(stream_read(p->s, 1 << 20, NULL), SHARD_OK);
		pair_free(p);
		assert_int_equal(frames_open_fds(), before);
	}
}

static void test_alloc_fails(void **state)
{
#ifdef CAN_FAIL_ALLOC
	struct frames f = {0};
	struct stream_conf conf = {.queue_max = 4, .body_max = 100, .handler = &frames_handler, .owner = &f};
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
	struct stream_conf conf = {.fd = 987, .queue_max = 4, .handler = &frames_handler, .owner = &f};
	struct stream *s = NULL;
	struct err e;

	(void)state;
	assert_int_equal(stream_open(&s, &conf, &e), SHARD_SYSTEM);
	assert_null(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_torn_everywhere),
		cmocka_unit_test(test_byte_by_byte),
		cmocka_unit_test(test_whole_part),
		cmocka_unit_test(test_header_bits),
		cmocka_unit_test(test_body_bits),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_rules),
		cmocka_unit_test(test_sums_off),
		cmocka_unit_test(test_owner_refuses),
		cmocka_unit_test(test_discard),
		cmocka_unit_test(test_hold),
		cmocka_unit_test(test_peer_closes),
		cmocka_unit_test(test_queue_full),
		cmocka_unit_test(test_control_room),
		cmocka_unit_test(test_bodies_come_back),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_fds),
		cmocka_unit_test(test_fds_unasked),
		cmocka_unit_test(test_alloc_fails),
		cmocka_unit_test(test_bad_descriptor),
	};

	return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}
