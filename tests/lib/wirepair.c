/* SPDX-License-Identifier: Apache-2.0 */
/* A pair of sockets of which one end is a stream and the other a plain descriptor. Tests of
 * net/stream.h call it. wirepair_feed() writes bytes at the plain end and reads them with the
 * stream. What cannot be made or written fails the test. */
#include "lib/wirepair.h"

#include "base/check.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct wirepair *wirepair_new(void)
{
	struct wirepair *p = calloc(1, sizeof(*p));
	struct stream_conf conf = {
		.queue_max = 64, .body_max = 1 << 20, .handler = &frames_handler};
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

void wirepair_free(struct wirepair *p)
{
	stream_free(&p->s);
	if (p->peer >= 0)
		close(p->peer);
	free(p->got.to);
	free(p);
}

enum shard_status wirepair_feed(struct wirepair *p, const void *bytes, size_t nr, struct err *e)
{
	enum shard_status rc = SHARD_OK;
	const char *at = bytes;

	/* The socket's buffer is smaller than the largest frame. */
	while (nr > 0 && rc == SHARD_OK) {
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

size_t wirepair_sample(unsigned char *out, size_t bulk_bytes)
{
	unsigned char *body = malloc(bulk_bytes);
	size_t n = 0;

	frames_fill(body, bulk_bytes, 7);
	n += frames_make(out + n, OP_PUSH, 0, 1, "\x0a\x01\x05", 3, 0);
	n += frames_make(out + n, OP_PUSH_DATA, WIRE_PART_FLAG(3), 2, body, (uint32_t)bulk_bytes,
			 1);
	n += frames_make(out + n, OP_PING, 0, 0, NULL, 0, 2);
	n += frames_make(out + n, OP_READY, 0, 0, "\x09\x00\x00\x00\x00\x00\x00\xf0\x3f", 9, 3);
	free(body);
	return n;
}

void wirepair_check(const struct frames *f, size_t bulk_bytes)
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
