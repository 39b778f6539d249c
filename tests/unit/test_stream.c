/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what a stream takes in. However bytes are torn, the same frames arrive. Whatever is no
 * frame is refused and counted, and ends the stream. Frames can be dropped and held. What a stream
 * sends is in test_stream_send.c. */
#include "base/check.h"
#include "base/rng.h"
#include "lib/wirepair.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_torn_everywhere(void **state)
{
	unsigned char bytes[1024];
	size_t n = wirepair_sample(bytes, 333);

	(void)state;
	for (size_t cut = 0; cut <= n; cut++) {
		struct wirepair *p = wirepair_new();

		assert_int_equal(wirepair_feed(p, bytes, cut, NULL), SHARD_OK);
		assert_int_equal(stream_mid_frame(p->s), cut % n != 0 && cut != 67 &&
								 cut != 67 + 64 + 333 &&
								 cut != 67 + 128 + 333);
		assert_int_equal(wirepair_feed(p, bytes + cut, n - cut, NULL), SHARD_OK);
		wirepair_check(&p->got, 333);
		assert_false(stream_mid_frame(p->s));
		assert_int_equal(stream_stats(p->s)->copied_bytes, 0);
		assert_int_equal(stream_stats(p->s)->tensor_bytes_in, 333);
		wirepair_free(p);
	}
}

static void test_byte_by_byte(void **state)
{
	unsigned char bytes[4096];
	size_t n = wirepair_sample(bytes, 2000);
	struct wirepair *p = wirepair_new();

	(void)state;
	for (size_t i = 0; i < n; i++)
		assert_int_equal(wirepair_feed(p, bytes + i, 1, NULL), SHARD_OK);
	wirepair_check(&p->got, 2000);
	wirepair_free(p);
}

static void test_whole_part(void **state)
{
	unsigned char *bytes = malloc(WIRE_PART_BYTES + 1024);
	size_t n = wirepair_sample(bytes, WIRE_PART_BYTES);
	struct wirepair *p = wirepair_new();

	(void)state;
	assert_int_equal(wirepair_feed(p, bytes, n, NULL), SHARD_OK);
	wirepair_check(&p->got, WIRE_PART_BYTES);
	assert_int_equal(stream_stats(p->s)->bytes_in, n);
	wirepair_free(p);
	free(bytes);
}

static void refused(const unsigned char *bytes, size_t n, const char *text)
{
	struct wirepair *p = wirepair_new();
	struct err e = {0};

	assert_int_not_equal(wirepair_feed(p, bytes, n, &e), SHARD_OK);
	assert_int_equal(e.status, SHARD_PROTOCOL);
	assert_int_equal(stream_stats(p->s)->refused, 1);
	if (text && !strstr(e.text, text))
		fail_msg("\"%s\" lacks \"%s\"", e.text, text);
	/* The stream stays that way. */
	assert_int_equal(stream_read(p->s, 100, &e), SHARD_PROTOCOL);
	wirepair_free(p);
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

/* A frame that its owner does not want is dropped and counted, and what follows is whole. This
 * also holds in pieces, and if nobody wanted the body. */
static void test_damage_is_spared(void **state)
{
	unsigned char body[333], bytes[2048];
	size_t n = 0;

	(void)state;
	frames_fill(body, sizeof(body), 3);
	n += frames_make(bytes, OP_CONTRIB_DATA, 0, 5, body, sizeof(body), 0);
	n += frames_make(bytes + n, OP_PING, 0, 0, NULL, 0, 1);
	n += frames_make(bytes + n, OP_CONTRIB_DATA, WIRE_PART_FLAG(1), 5, body, sizeof(body), 2);
	bytes[64 + 77] ^= 4;
	for (size_t cut = 1; cut < n; cut += 7) {
		struct wirepair *p = wirepair_new();
		struct landing l;

		landing_init(&l);
		p->got.spare = true;
		p->got.discard = cut % 2;
		p->got.landing = cut % 2 ? NULL : &l;
		assert_int_equal(wirepair_feed(p, bytes, cut, NULL), SHARD_OK);
		assert_int_equal(wirepair_feed(p, bytes + cut, n - cut, NULL), SHARD_OK);
		assert_int_equal(p->got.damaged, 1);
		assert_int_equal(p->got.nr, p->got.discard ? 0 : 2); /* The other two. */
		assert_int_equal(p->got.heads, 3);
		assert_int_equal(stream_stats(p->s)->refused, 1);
		assert_true(list_empty(&l.streams));
		wirepair_free(p);
	}
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
	refused(both, 128, "frame 1 (ping) from unix pid "); /* A duplicate. */
	refused(b, 64, "header checksum");                   /* The first one was lost. */
	memcpy(both, b, 64);
	memcpy(both + 64, a, 64);
	refused(both, 128, "frame 0"); /* Two were swapped. */
	n += frames_make(both, OP_PING, 0, 0, NULL, 0, 0);
	n += frames_make(both + n, OP_PING, 0, 0, NULL, 0, 2);
	refused(both, n, "header checksum");
}

/* Headers with correct sums, so that only the rule in question can refuse them. */
static void made(uint16_t op, uint32_t flags, uint32_t body_bytes, uint64_t body_sum,
		 const char *text)
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
	refused((const unsigned char *)"GET /metrics HTTP/1.1\r\nHost: "
				       "a-host-with-a-long-name:29700\r\n\r\n\r\n\r\n",
		66, "not a shardd frame (magic)");
	refused((const unsigned char *)"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
				       "<html><body></body></html>",
		66, "not a shardd frame, but HTTP: is that the port of its page");
}

static void test_sums_off(void **state)
{
	struct wirepair *p = wirepair_new();
	struct wire_head h = {.op = OP_PUSH_DATA, .body_bytes = 4};
	unsigned char bytes[68] = {0};

	(void)state;
	stream_features(p->s, 0);
	frames_make(bytes, OP_HELLO, WIRE_REPLY, 0, "\x08\x01\x10\x01", 4,
		    0); /* HELLO keeps its sum. */
	assert_int_equal(wirepair_feed(p, bytes, 68, NULL), SHARD_OK);
	wire_seal(&h, "abcd", 1, false);
	assert_true(h.body_sum == 0);
	memcpy(bytes, &h, 64);
	memcpy(bytes + 64, "abcx", 4);
	assert_int_equal(wirepair_feed(p, bytes, 68, NULL), SHARD_OK);
	assert_int_equal(p->got.nr, 2);
	frames_make(bytes, OP_PUSH_DATA, 0, 0, "abcd", 4, 2);
	assert_int_equal(wirepair_feed(p, bytes, 68, NULL), SHARD_PROTOCOL);
	wirepair_free(p);
}

static void test_owner_refuses(void **state)
{
	struct wirepair *p = wirepair_new();
	unsigned char bytes[64];
	struct err e;

	(void)state;
	p->got.refuse_op = OP_PING;
	frames_make(bytes, OP_PING, 0, 0, NULL, 0, 0);
	assert_int_equal(wirepair_feed(p, bytes, 64, &e), SHARD_BAD_STATE);
	assert_non_null(strstr(e.text, "frame 0 (ping) from unix pid "));
	assert_non_null(strstr(e.text, ": not now"));
	assert_string_equal(stream_told(p->s), "not now");
	wirepair_free(p);
}

static void test_discard(void **state)
{
	unsigned char *bytes = malloc(WIRE_PART_BYTES + 1024);
	size_t n = wirepair_sample(bytes, WIRE_PART_BYTES);
	struct wirepair *p = wirepair_new();

	(void)state;
	p->got.discard = true;
	assert_int_equal(wirepair_feed(p, bytes, n, NULL), SHARD_OK);
	assert_int_equal(p->got.heads, 4);
	assert_int_equal(p->got.nr, 0);
	assert_int_equal(stream_stats(p->s)->frames_in, 4);
	wirepair_free(p);
	p = wirepair_new();
	p->got.discard = true;
	bytes[67 + 64 + 100000] ^= 1; /* What is dropped is summed, too. */
	assert_int_equal(wirepair_feed(p, bytes, n, NULL), SHARD_PROTOCOL);
	wirepair_free(p);
	free(bytes);
}

static void test_hold(void **state)
{
	unsigned char bytes[1024];
	size_t n = wirepair_sample(bytes, 100);
	struct wirepair *p = wirepair_new();

	(void)state;
	p->got.hold_after_each = true;
	assert_int_equal(wirepair_feed(p, bytes, n, NULL), SHARD_OK);
	for (uint32_t i = 1; i <= 4; i++) {
		assert_int_equal(p->got.nr, i);
		stream_hold(p->s, false);
		assert_int_equal(stream_read(p->s, 1 << 20, NULL), SHARD_OK);
	}
	wirepair_check(&p->got, 100);
	wirepair_free(p);
}

static void test_peer_closes(void **state)
{
	unsigned char bytes[1024];
	size_t n = wirepair_sample(bytes, 100);
	struct err e;

	(void)state;
	for (size_t cut = 0; cut <= n; cut += 13) {
		struct wirepair *p = wirepair_new();

		assert_int_equal(wirepair_feed(p, bytes, cut, NULL), SHARD_OK);
		close(p->peer);
		p->peer = -1;
		assert_int_equal(stream_read(p->s, 1 << 20, &e), SHARD_CLOSED);
		assert_int_equal(strstr(e.text, "middle of a frame") != NULL,
				 stream_mid_frame(p->s));
		wirepair_free(p);
	}
}

static bool stays(const void *arg, const struct wire_head *h)
{
	assert_int_equal(h->op, OP_PUSH_DATA);
	return *(const bool *)arg;
}

/* Wherever the owner of the memory takes it back, no further byte goes there, and the frames
 * that follow are delivered as ever. */
static void test_landing_ends(void **state)
{
	enum { BULK = 333, BEGINS = 67 + 64 };
	unsigned char bytes[1024], was[BULK];
	size_t n = wirepair_sample(bytes, BULK);

	(void)state;
	for (size_t cut = 0; cut <= n; cut++) {
		struct wirepair *p = wirepair_new();
		bool mid = cut >= BEGINS && cut < BEGINS + BULK;
		struct landing l;

		landing_init(&l);
		p->got.landing = &l;
		assert_int_equal(wirepair_feed(p, bytes, cut, NULL), SHARD_OK);
		assert_int_equal(list_empty(&l.streams), !mid);
		landing_judge(&l, stays, &(bool){true});
		assert_int_equal(list_empty(&l.streams), !mid);
		landing_judge(&l, stays, &(bool){false});
		landing_end(&l);
		assert_true(list_empty(&l.streams));
		memcpy(was, p->got.to, BULK);
		assert_int_equal(wirepair_feed(p, bytes + cut, n - cut, NULL), SHARD_OK);
		assert_int_equal(p->got.nr, mid ? 3 : 4);
		assert_true(!mid || memcmp(was, p->got.to, BULK) == 0);
		assert_true(list_empty(&l.streams));
		wirepair_free(p);
	}
}

/* A stream that ends in the middle of a body leaves nothing behind in the landing. */
static void test_landing_outlives(void **state)
{
	unsigned char bytes[1024];
	struct landing l;

	(void)state;
	(void)wirepair_sample(bytes, 333);
	landing_init(&l);
	for (int i = 0; i < 2; i++) {
		struct wirepair *p = wirepair_new();
		struct err e;

		p->got.landing = &l;
		p->got.refuse_op = i == 0 ? OP_PUSH_DATA : 0;
		assert_int_equal(wirepair_feed(p, bytes, 67 + 64 + 100, &e),
				 i == 0 ? SHARD_BAD_STATE : SHARD_OK);
		assert_int_equal(list_empty(&l.streams), i == 0);
		wirepair_free(p);
		assert_true(list_empty(&l.streams));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_torn_everywhere),
		cmocka_unit_test(test_byte_by_byte),
		cmocka_unit_test(test_whole_part),
		cmocka_unit_test(test_header_bits),
		cmocka_unit_test(test_body_bits),
		cmocka_unit_test(test_damage_is_spared),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_rules),
		cmocka_unit_test(test_sums_off),
		cmocka_unit_test(test_owner_refuses),
		cmocka_unit_test(test_discard),
		cmocka_unit_test(test_hold),
		cmocka_unit_test(test_peer_closes),
		cmocka_unit_test(test_landing_ends),
		cmocka_unit_test(test_landing_outlives),
	};

	return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}
