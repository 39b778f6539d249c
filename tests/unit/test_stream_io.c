// SPDX-License-Identifier: Apache-2.0
/* Tests what is below the frames of a stream: a row of stream_io.h that gives and takes one byte at
 * a time, and TLS at every size of reads and writes, with new keys under way, and with a peer that
 * says something else, closes in the middle or changes a bit. */
#include "lib/frames.h"
#include "lib/sanitized.h"

#include "base/check.h"
#include "bench/limit_tcp.h"
#include "base/rng.h"
#include "net/auth.h"
#include "net/tls.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define KEY_1 "aa00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"
#define KEY_2 "bb00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"

enum { FRAMES = 60, BODY = WIRE_PART_BYTES, OVER_TCP = -1 };

/* --- a row that moves one byte a call --- */

struct slow {
	struct stream_io io;
	struct stream_io *below;
	bool more; /* The last read stopped early, so there may be more. */
};

static ssize_t slow_read(struct stream_io *io, struct msghdr *m)
{
	struct slow *s = (struct slow *)(void *)io;
	struct iovec one = {m->msg_iov[0].iov_base, 1};
	struct msghdr part = {.msg_iov = &one, .msg_iovlen = 1};
	ssize_t n = s->below->row->read(s->below, &part);

	s->more = n > 0;
	return n;
}

static ssize_t slow_write(struct stream_io *io, const struct msghdr *m)
{
	struct slow *s = (struct slow *)(void *)io;
	struct iovec one = {m->msg_iov[0].iov_base, 1};
	struct msghdr part = {.msg_iov = &one, .msg_iovlen = 1};

	return s->below->row->write(s->below, &part);
}

static int slow_flush(struct stream_io *io)
{
	struct slow *s = (struct slow *)(void *)io;

	return s->below->row->flush(s->below);
}

static bool slow_pending(const struct stream_io *io)
{
	return ((const struct slow *)(const void *)io)->more;
}

static bool slow_no(const struct stream_io *io)
{
	(void)io;
	return false;
}

static void slow_finish(struct stream_io *io)
{
	(void)io;
}

static void slow_close(struct stream_io *io)
{
	struct slow *s = (struct slow *)(void *)io;

	s->below->row->close(s->below);
	free(s);
}

static const struct stream_io_row slow_row = {"slow",     slow_read,    slow_write,
					      slow_flush, slow_pending, slow_no,
					      slow_no,    slow_finish,  slow_close};

static struct stream_io *slow_over(int fd)
{
	struct slow *s = calloc(1, sizeof(*s) + sizeof(struct stream_io));

	s->below = (struct stream_io *)(s + 1);
	stream_plain_init(s->below, fd);
	s->io = (struct stream_io){.row = &slow_row, .fd = fd};
	return &s->io;
}

/* --- two streams --- */

struct end {
	struct stream *s;
	struct frames got;
};

struct two {
	struct end a, b; /* a dials. */
	struct tls *tls[2];
	char dir[32];
};

static struct auth *keys(struct two *t, const char *text)
{
	char path[64];
	struct auth *a;
	struct err e;
	int fd;

	snprintf(path, sizeof(path), "%s/s", t->dir);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
	if (auth_open(&a, path, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	unlink(path);
	return a;
}

static void open_end(struct end *n, struct stream_io *io, int fd)
{
	struct stream_conf conf = {.fd = fd,
				   .io = io,
				   .queue_max = 128,
				   .body_max = 1 << 20,
				   .handler = &frames_handler,
				   .owner = &n->got};

	n->got.to = malloc(FRAMES_BODY_MAX);
	assert_int_equal(stream_open(&n->s, &conf, NULL), SHARD_OK);
}

static void sockets(int fds[2], int buffer)
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	for (int i = 0; buffer > 0 && i < 2; i++)
		assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer)),
				 0);
}

static void tls_ends(struct two *t, const char *dials, const char *takes, uint64_t rekey,
		     bool kernel)
{
	const char *texts[2] = {dials, takes};

	strcpy(t->dir, "/tmp/stream-io.XXXXXX");
	assert_non_null(mkdtemp(t->dir));
	for (int i = 0; i < 2; i++) {
		struct auth *a = keys(t, texts[i]);
		struct tls_conf conf = {
			.mode = TLS_PSK, .dials = a, .rekey_bytes = rekey, .kernel = kernel};
		struct err e;

		if (tls_open(&t->tls[i], &conf, &e) != SHARD_OK)
			fail_msg("%s", e.text);
		auth_close(&a);
	}
	rmdir(t->dir);
}

static struct two *tls_two(const char *dials, const char *takes, int buffer, uint64_t rekey)
{
	struct two *t = calloc(1, sizeof(*t));
	struct stream_io *io;
	int fds[2];

	tls_ends(t, dials, takes, rekey, buffer == OVER_TCP);
	if (buffer != OVER_TCP)
		sockets(fds, buffer);
	else
		assert_int_equal(limit_tcp_pair(fds), 0);
	assert_int_equal(tls_io(&io, t->tls[0], TLS_DIALLER, fds[0], NULL, NULL), SHARD_OK);
	open_end(&t->a, io, fds[0]);
	assert_int_equal(tls_io(&io, t->tls[1], TLS_LISTENER, fds[1], NULL, NULL), SHARD_OK);
	open_end(&t->b, io, fds[1]);
	for (int i = 0; i < 2; i++) /* The streams have theirs. */
		tls_close(&t->tls[i]);
	return t;
}

static void free_two(struct two *t)
{
	stream_free(&t->a.s);
	stream_free(&t->b.s);
	free(t->a.got.to);
	free(t->b.got.to);
	free(t);
}

/* Sends frames of mixed sizes both ways, and reads at most read_max bytes a turn. */
static void exchange(struct end *a, struct end *b, uint32_t nr, uint32_t most, uint64_t read_max)
{
	struct end *end[2] = {a, b};
	unsigned char *body = malloc(BODY);
	uint64_t sums[2][FRAMES];
	uint32_t queued[2] = {0, 0};
	struct rng r = {5};

	frames_fill(body, BODY, 9);
	while (a->got.nr < nr || b->got.nr < nr) {
		for (int i = 0; i < 2; i++) {
			struct wire_head h = {.op = OP_CONTRIB_DATA, .chunk = queued[i]};
			uint32_t bytes =
				2 + (uint32_t)rng_below(&r, rng_below(&r, 3) ? 200 : most - 2);
			struct err e = {.text = ""};
			enum shard_status st;

			if (queued[i] < nr &&
			    stream_send(end[i]->s, &h, body, bytes, NULL, NULL) == SHARD_OK)
				sums[i][queued[i]++] = xxh_sum(body, bytes, 0);
			st = stream_write(end[i]->s, &e);
			if (st != SHARD_OK && st != SHARD_AGAIN)
				fail_msg("write: %s", e.text);
			if (stream_read(end[i]->s, 1 + rng_below(&r, read_max), &e) != SHARD_OK)
				fail_msg("read: %s", e.text);
		}
	}
	for (int i = 0; i < 2; i++) {
		for (uint32_t k = 0; k < nr; k++) {
			assert_int_equal(end[!i]->got.head[k].chunk, k);
			assert_true(end[!i]->got.sum[k] == sums[i][k]);
		}
		assert_false(stream_wants_out(end[i]->s));
	}
	free(body);
}

/* --- cases --- */

static void test_byte_by_byte(void **state)
{
	struct two *t = calloc(1, sizeof(*t));
	int fds[2];

	(void)state;
	sockets(fds, 0);
	open_end(&t->a, slow_over(fds[0]), fds[0]);
	open_end(&t->b, slow_over(fds[1]), fds[1]);
	exchange(&t->a, &t->b, 20, 3000, 5000);
	free_two(t);
}

static void test_tls_sizes(void **state)
{
	static const struct {
		int buffer;
		uint64_t read_max;
	} rows[] = {{0, 1 << 20}, {0, 1}, {4608, 100000}, {2304, 300}, {65536, 20000}};
	char said[TLS_SAID_BYTES];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct two *t = tls_two(KEY_1, KEY_2 KEY_1, rows[i].buffer, 0);
		unsigned char channel[2][AUTH_BYTES];

		exchange(&t->a, &t->b, FRAMES, BODY, rows[i].read_max);
		assert_true(tls_channel(stream_io(t->a.s), channel[0]));
		assert_true(tls_channel(stream_io(t->b.s), channel[1]));
		assert_memory_equal(channel[0], channel[1], AUTH_BYTES);
		assert_string_equal(tls_said(stream_io(t->a.s), said),
				    "TLSv1.3 TLS_AES_128_GCM_SHA256 psk");
		assert_false(tls_names(stream_io(t->a.s), "a"));
		free_two(t);
	}
}

/* Keys that are for little data: many KeyUpdates, in both directions. */
static void test_tls_new_keys(void **state)
{
	struct two *t = tls_two(KEY_1, KEY_1, 30000, 50000);

	(void)state;
	exchange(&t->a, &t->b, FRAMES, BODY, 1 << 20);
	free_two(t);
}

static bool kernel_has_tls(void)
{
	char text[200] = "";
	FILE *f = fopen("/proc/sys/net/ipv4/tcp_available_ulp", "re");
	bool has = f && fgets(text, sizeof(text), f) && strstr(text, "tls");

	if (f)
		fclose(f);
	return has;
}

/* A daemon that ends has accepted connections that it never looks at. That is no error of
 * protocol. */
static void test_tls_reset(void **state)
{
	struct two *t = calloc(1, sizeof(*t));
	struct linger now = {.l_onoff = 1};
	struct stream_io *io;
	struct err e = {.text = ""};
	enum shard_status st;
	int fds[2];

	(void)state;
	tls_ends(t, KEY_1, KEY_1, 0, true);
	assert_int_equal(limit_tcp_pair(fds), 0);
	assert_int_equal(setsockopt(fds[1], SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
	close(fds[1]);
	assert_int_equal(tls_io(&io, t->tls[0], TLS_DIALLER, fds[0], NULL, NULL), SHARD_OK);
	open_end(&t->a, io, fds[0]);
	while ((st = stream_read(t->a.s, 1000, &e)) == SHARD_OK)
		;
	if (st != SHARD_CLOSED)
		fail_msg("%s", e.text);
	for (int i = 0; i < 2; i++)
		tls_close(&t->tls[i]);
	free_two(t);
}

/* New keys take time to make. A peer that sends nothing else does not hold up the others. */
static void test_tls_key_flood(void **state)
{
	struct two *t = tls_two(KEY_1, KEY_1, 0, 1);
	struct wire_head ping = {.op = OP_PING};
	enum shard_status st = SHARD_OK;
	struct err e;
	uint32_t n = 0;

	(void)state;
	exchange(&t->a, &t->b, 2, 100, 1000);
	while (st == SHARD_OK && n++ < 1000) { /* A key for each of these frames. */
		assert_int_equal(stream_send(t->a.s, &ping, NULL, 0, NULL, NULL), SHARD_OK);
		assert_int_equal(stream_write(t->a.s, &e), SHARD_OK);
		t->b.got.nr = 0;
		st = stream_read(t->b.s, 1 << 20, &e);
	}
	assert_int_equal(st, SHARD_PROTOCOL);
	assert_non_null(strstr(e.text, "and sent hardly anything else"));
	assert_in_range(n, 40, 100);
	free_two(t);
}

/* Sends records of one byte each, until the socket is full. Returns how many. */
static uint32_t send_bytes(struct stream_io *io)
{
	char byte = 7;
	struct iovec one = {&byte, 1};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1};
	uint32_t nr = 0;

	while (io->row->write(io, &m) == 1)
		nr++;
	assert_int_equal(errno, EAGAIN);
	return nr;
}

/* Small records take as long as large ones. One read ends nevertheless, and the next goes on. */
static void test_tls_turns(void **state)
{
	struct two *t = tls_two(KEY_1, KEY_1, OVER_TCP, 0);
	struct stream_io *a = stream_io(t->a.s), *b = stream_io(t->b.s);
	static char all[4 << 20];
	struct iovec iov = {all, sizeof(all)};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	uint32_t sent, came = 0, turns = 0;
	ssize_t n;

	(void)state;
	exchange(&t->a, &t->b, 2, 100, 1000);
	sent = send_bytes(a);
	if (kernel_has_tls() || sent < 100000) /* The socket holds less than one turn. */
		skip();
	while (came < sent) {
		n = b->row->read(b, &m);
		if (n < 0)
			assert_int_equal(errno, EAGAIN);
		assert_true(n < 40000);
		came += n > 0 ? (uint32_t)n : 0;
		turns += n > 0;
		(void)a->row->flush(a);
	}
	assert_true(turns > 2);
	free_two(t);
}

static uint64_t resident(void)
{
	unsigned long all, here;
	FILE *f = fopen("/proc/self/statm", "re");

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%lu %lu", &all, &here), 2);
	fclose(f);
	return here * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Both ends of a connection without streams, over which some data went. */
static void busy_pair(struct two *t, struct stream_io *io[2])
{
	static char data[BODY];
	struct iovec iov = {data, sizeof(data)};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t sent = 0, came = 0, n;
	int fds[2];

	sockets(fds, 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(tls_io(&io[i], t->tls[i], i ? TLS_LISTENER : TLS_DIALLER, fds[i],
					NULL, NULL),
				 SHARD_OK);
	while (sent == 0 || came < sent) {
		if (sent == 0 && (n = io[0]->row->write(io[0], &m)) > 0)
			sent = n;
		(void)io[0]->row->flush(io[0]);
		if ((n = io[1]->row->read(io[1], &m)) > 0)
			came += n;
		if (sent == 0)
			(void)io[0]->row->read(io[0], &m);
	}
	assert_true(sent > 100000);
}

/* The buffers of connections are the system's again when these are over, whatever was allocated
 * meanwhile. */
static void test_tls_memory(void **state)
{
	enum { NR = 60 };
	struct two *t = calloc(1, sizeof(*t));
	struct stream_io *io[NR][2];
	uint64_t before = 0, most = 0, after = 0;
	void *between[NR];

	(void)state;
	tls_ends(t, KEY_1, KEY_1, 0, false);
	for (int round = 0; round < 2; round++) { /* In the first one malloc() learns sizes. */
		before = resident();
		for (int i = 0; i < NR; i++) {
			busy_pair(t, io[i]);
			between[i] = malloc(100);
		}
		most = resident();
		for (int i = 0; i < NR; i++) {
			io[i][0]->row->close(io[i][0]);
			io[i][1]->row->close(io[i][1]);
		}
		after = resident();
		for (int i = 0; i < NR; i++)
			free(between[i]);
	}
	assert_true(most > before + NR * (200ull << 10));
	if (!SANITIZED) /* A sanitizer keeps what OpenSSL has freed. */
		assert_true(after < before + (most - before) / 3);
	for (int i = 0; i < 2; i++)
		tls_close(&t->tls[i]);
	free(t);
}

/* Over TCP the kernel encrypts what is sent, where it can, and else this process does. A key of the
 * kernel is not exchanged: the connection ends. */
static void test_tls_kernel(void **state)
{
	struct two *t = tls_two(KEY_1, KEY_1, OVER_TCP, 0);
	char said[TLS_SAID_BYTES];
	struct err e;

	(void)state;
	exchange(&t->a, &t->b, FRAMES, BODY, 1 << 20);
	for (int i = 0; i < 2; i++)
		assert_string_equal(tls_said(stream_io(i ? t->b.s : t->a.s), said),
				    kernel_has_tls() ? "TLSv1.3 TLS_AES_128_GCM_SHA256 psk kernel"
						     : "TLSv1.3 TLS_AES_128_GCM_SHA256 psk");
	stream_finish(t->a.s);
	while (stream_read(t->b.s, 1 << 20, &e) == SHARD_OK)
		;
	assert_int_equal(e.status, SHARD_CLOSED);
	free_two(t);
	if (!kernel_has_tls())
		return;
	t = tls_two(KEY_1, KEY_1, OVER_TCP, 3000);
	exchange(&t->a, &t->b, 2, 100, 1000);
	for (int i = 0; i < 100; i++) {
		struct wire_head ping = {.op = OP_PING};

		if (stream_send(t->a.s, &ping, NULL, 0, NULL, NULL) != SHARD_OK ||
		    stream_write(t->a.s, &e) > SHARD_AGAIN)
			break;
	}
	assert_non_null(strstr(e.text, "the kernel has sent as much with one key as is safe"));
	free_two(t);
}

/* The last words of an end that closes are read, and then its end. */
static void test_tls_end(void **state)
{
	struct two *t = tls_two(KEY_1, KEY_1, 0, 0);
	struct wire_head ping = {.op = OP_PING};
	struct err e;

	(void)state;
	exchange(&t->a, &t->b, 3, 100, 1000);
	assert_int_equal(stream_send(t->a.s, &ping, NULL, 0, NULL, NULL), SHARD_OK);
	assert_int_equal(stream_write(t->a.s, NULL), SHARD_OK);
	stream_finish(t->a.s);
	assert_int_equal(stream_read(t->b.s, 1 << 20, &e), SHARD_CLOSED);
	assert_int_equal(t->b.got.nr, 4);
	assert_non_null(strstr(e.text, "closed the connection"));
	free_two(t);
}

/* Turns both until one of them fails, and returns that one's status. */
static enum shard_status until_over(struct end *a, struct end *b, struct err *e)
{
	struct end *end[2] = {a, b};
	struct wire_head ping = {.op = OP_PING};

	assert_int_equal(stream_send(a->s, &ping, NULL, 0, NULL, NULL), SHARD_OK);
	for (int turn = 0; turn < 100; turn++) {
		for (int i = 0; i < 2; i++) {
			enum shard_status st = stream_write(end[i]->s, e);

			if (st == SHARD_OK || st == SHARD_AGAIN)
				st = stream_read(end[i]->s, 1 << 20, e);
			if (st != SHARD_OK)
				return st;
		}
	}
	return SHARD_OK;
}

static void test_tls_wrong_secret(void **state)
{
	struct two *t = tls_two(KEY_2, KEY_1, 0, 0);
	struct err e;

	(void)state;
	assert_int_equal(until_over(&t->a, &t->b, &e), SHARD_DENIED);
	assert_non_null(strstr(e.text, "it has another secret than this node"));
	assert_int_equal(stream_read(t->a.s, 1000, &e), SHARD_DENIED);
	assert_non_null(strstr(e.text, "it does not know the secret of this end"));
	assert_int_equal(t->b.got.heads, 0);
	free_two(t);
}

/* One end without TLS, and both are told. What was queued does not leave in the clear. */
static void test_tls_on_one_side(void **state)
{
	struct two *t = calloc(1, sizeof(*t));
	struct wire_head error = {.op = OP_ERROR}, ping = {.op = OP_PING};
	struct stream_io *io;
	struct err e;
	int fds[2];

	(void)state;
	tls_ends(t, KEY_1, KEY_1, 0, false);
	sockets(fds, 0);
	open_end(&t->a, NULL, fds[0]);
	assert_int_equal(tls_io(&io, t->tls[1], TLS_LISTENER, fds[1], NULL, NULL), SHARD_OK);
	open_end(&t->b, io, fds[1]);
	assert_int_equal(until_over(&t->a, &t->b, &e), SHARD_DENIED);
	assert_non_null(strstr(e.text, "it speaks no TLS, and [net] tls = psk at this node"));
	assert_int_equal(stream_send(t->b.s, &ping, NULL, 0, NULL, NULL), SHARD_CLOSED);
	assert_non_null(stream_told(t->b.s));
	assert_int_equal(stream_send(t->b.s, &error, NULL, 0, NULL, NULL), SHARD_OK);
	assert_int_equal(stream_write(t->b.s, NULL), SHARD_OK);
	assert_int_equal(stream_read(t->a.s, 1000, &e), SHARD_OK);
	assert_int_equal(t->a.got.head[0].op, OP_ERROR);
	stream_free(&t->a.s);
	stream_free(&t->b.s);

	free(t->a.got.to);
	free(t->b.got.to);
	t->a = t->b = (struct end){.s = NULL};
	sockets(fds, 0);
	assert_int_equal(tls_io(&io, t->tls[0], TLS_DIALLER, fds[0], NULL, NULL), SHARD_OK);
	open_end(&t->a, io, fds[0]);
	open_end(&t->b, NULL, fds[1]);
	assert_int_equal(until_over(&t->a, &t->b, &e), SHARD_PROTOCOL);
	assert_non_null(strstr(e.text, "it opened the connection with TLS"));
	assert_int_equal(stream_send(t->b.s, &error, NULL, 0, NULL, NULL), SHARD_OK);
	assert_int_equal(stream_write(t->b.s, NULL), SHARD_OK);
	assert_int_equal(stream_read(t->a.s, 1000, &e), SHARD_DENIED);
	assert_non_null(strstr(e.text, "it speaks no TLS, and this end does"));
	/* The PING that waits is not sent, nor is anything else. */
	assert_int_not_equal(stream_write(t->a.s, &e), SHARD_OK);
	assert_null(stream_told(t->a.s));
	for (int i = 0; i < 2; i++)
		tls_close(&t->tls[i]);
	free_two(t);
}

/* Garbage, a bit that flips and a cut at every place end the stream with a text, and no frame
 * passes. */
static void test_tls_garbage(void **state)
{
	struct rng r = {11};

	(void)state;
	for (int round = 0; round < 200; round++) {
		struct two *t = calloc(1, sizeof(*t));
		unsigned char text[700];
		struct stream_io *io;
		struct err e;
		int fds[2];
		size_t n = 1 + rng_below(&r, sizeof(text) - 1);

		tls_ends(t, KEY_1, KEY_1, 0, false);
		sockets(fds, 0);
		open_end(&t->a, NULL, fds[0]);
		assert_int_equal(tls_io(&io, t->tls[1], TLS_LISTENER, fds[1], NULL, NULL),
				 SHARD_OK);
		open_end(&t->b, io, fds[1]);
		frames_fill(text, sizeof(text), (uint64_t)round);
		if (round % 2) /* As a record begins. */
			memcpy(text, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
		assert_int_equal(send(fds[0], text, n, MSG_NOSIGNAL), (ssize_t)n);
		shutdown(fds[0], SHUT_WR);
		assert_int_not_equal(stream_read(t->b.s, 1 << 20, &e), SHARD_OK);
		assert_true(strlen(e.text) > 10);
		assert_int_equal(t->b.got.heads, 0);
		for (int i = 0; i < 2; i++)
			tls_close(&t->tls[i]);
		free_two(t);
	}
}

/* A bit that is changed on the way ends the stream before a frame is delivered. */
static void test_tls_changed(void **state)
{
	struct two *t = tls_two(KEY_1, KEY_1, 0, 0);
	struct wire_head h = {.op = OP_CONTRIB_DATA};
	unsigned char body[5000], wire[8000];
	struct err e;
	ssize_t n;
	int fd;

	(void)state;
	exchange(&t->a, &t->b, 2, 100, 1000);
	memset(body, 7, sizeof(body));
	assert_int_equal(stream_send(t->a.s, &h, body, sizeof(body), NULL, NULL), SHARD_OK);
	assert_int_equal(stream_write(t->a.s, NULL), SHARD_OK);
	fd = stream_fd(t->b.s);
	n = recv(fd, wire, sizeof(wire), 0);
	assert_true(n > (ssize_t)sizeof(body));
	assert_null(memmem(wire, (size_t)n, "\7\7\7\7", 4));
	assert_null(memmem(wire, (size_t)n, "SHRD", 4));
	wire[n / 2] ^= 1;
	assert_int_equal(send(stream_fd(t->a.s), wire, (size_t)n, MSG_NOSIGNAL), n);
	/* As if it had been cut: a trainer connects again. */
	assert_int_equal(stream_read(t->b.s, 1 << 20, &e), SHARD_CLOSED);
	assert_non_null(strstr(e.text, "bytes were changed on the way"));
	assert_non_null(strstr(e.text, "bad record mac"));
	while (stream_read(t->a.s, 1 << 20, &e) == SHARD_OK)
		;
	assert_int_equal(e.status, SHARD_CLOSED); /* It was told by an alert. */
	assert_int_equal(t->b.got.nr, 2);
	free_two(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_byte_by_byte),    cmocka_unit_test(test_tls_sizes),
		cmocka_unit_test(test_tls_new_keys),    cmocka_unit_test(test_tls_kernel),
		cmocka_unit_test(test_tls_end),         cmocka_unit_test(test_tls_wrong_secret),
		cmocka_unit_test(test_tls_on_one_side), cmocka_unit_test(test_tls_garbage),
		cmocka_unit_test(test_tls_changed),     cmocka_unit_test(test_tls_key_flood),
		cmocka_unit_test(test_tls_turns),       cmocka_unit_test(test_tls_memory),
		cmocka_unit_test(test_tls_reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
