/* SPDX-License-Identifier: Apache-2.0 */
/* Tests control bodies: round trips, bounded memory, and the refusal of everything that is not a
 * clean message. */
#include "base/check.h"
#include "base/rng.h"
#include "wire/control.h"
#include "wire/frame.h"
#include "wire/ops.h"

#include "shard.pb-c.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static unsigned char memory[1 << 20];

/* A message comes back as it was packed, and all of it lies in the given memory. */
static void test_round_trip(void **state)
{
	uint32_t absent[] = {1, 70000, 3};
	Shard__Push m = SHARD__PUSH__INIT;
	const ProtobufCMessage *out;
	const Shard__Push *p;
	struct arena a;
	uint8_t body[64];
	size_t n;

	(void)state;
	arena_init(&a, memory, sizeof(memory));
	m.n_absent = 3;
	m.absent = absent;
	n = shard__push__pack(&m, body);
	assert_int_equal(control_unpack(&out, control_type(OP_PUSH, false), body, n, &a, NULL),
			 SHARD_OK);
	p = (const Shard__Push *)out;
	assert_true((const unsigned char *)p >= memory &&
		    (const unsigned char *)p < memory + sizeof(memory));
	assert_int_equal(p->n_absent, 3);
	assert_memory_equal(p->absent, absent, sizeof(absent));
	assert_int_equal(control_unpack(&out, control_type(OP_PUSH, false), NULL, 0, &a, NULL),
			 SHARD_OK);
}

/* Exactly the ops with a control body have a message type. */
static void test_every_op_has_its_type(void **state)
{
	(void)state;
	for (uint16_t op = 0; op < OP_NR; op++) {
		const struct wire_op_row *row = wire_op(op);
		bool any = control_type(op, false) || control_type(op, true);

		if (!row) {
			assert_false(any);
			continue;
		}
		assert_int_equal(any, row->body == BODY_CONTROL || row->body == BODY_REPLY_BULK);
		if (row->body == BODY_REPLY_BULK)
			assert_null(control_type(op, true));
	}
	assert_null(control_type(60000, false));
}

static enum shard_status try(const ProtobufCMessageDescriptor *d, const void *body, size_t n,
			     size_t arena_bytes, struct err *e)
{
	const ProtobufCMessage *out = (const void *)"x";
	struct arena a;
	enum shard_status rc;

	arena_init(&a, memory, arena_bytes);
	rc = control_unpack(&out, d, body, n, &a, e);
	assert_int_equal(out != NULL, rc == SHARD_OK);
	return rc;
}

/* A body that is no message of its type is refused, and so is a text with control characters. Only
 * a text that may have several lines can hold line ends. */
static void test_refused(void **state)
{
	struct err e;

	(void)state;
	assert_int_equal(try(&shard__why__descriptor,
			     "\x0a\x05"
			     "ab",
			     4, 4096, &e),
			 SHARD_PROTOCOL); /* Its length goes past the end. */
	assert_non_null(strstr(e.text, "not a Why message"));
	assert_int_equal(try(&shard__why__descriptor, "\x0b", 1, 4096, &e), SHARD_PROTOCOL);
	assert_int_equal(try(&shard__why__descriptor,
			     "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12, 4096, &e),
			 SHARD_PROTOCOL);
	assert_int_equal(try(&shard__why__descriptor,
			     "\x0a\x03"
			     "abc",
			     5, 4096, &e),
			 SHARD_OK);
	assert_int_equal(try(&shard__why__descriptor,
			     "\x0a\x03"
			     "a\nc",
			     5, 4096, &e),
			 SHARD_BAD_ARG);
	assert_string_equal(e.text, "Why: why \"a...\" has a control character (0x0a) at byte 1");
	assert_int_equal(try(&shard__text__descriptor,
			     "\x0a\x03"
			     "a\nc",
			     5, 4096, &e),
			 SHARD_OK); /* JSON may have several lines. */
	assert_int_equal(try(&shard__text__descriptor,
			     "\x0a\x03"
			     "a\x1b"
			     "c",
			     5, 4096, &e),
			 SHARD_BAD_ARG);
	assert_int_equal(try(&shard__why__descriptor,
			     "\x0a\x03"
			     "a\x7f"
			     "c",
			     5, 4096, &e),
			 SHARD_BAD_ARG);
}

/* A text that is not valid UTF-8 is refused. */
static void test_utf8(void **state)
{
	static const char *const good[] = {"",
					   "z",
					   "\xc3\xa9",
					   "\xe2\x82\xac",
					   "\xf0\x9f\x99\x82",
					   "\xed\x9f\xbf",
					   "\xf4\x8f\xbf\xbf"};
	static const char *const bad[] = {
		"\x80",         "\xc0\x80",     "\xc1\xbf",         "\xc3",
		"\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
		"\xff",         "\xe2\x82",     "\xf0\x9f\x99",     "a\xc3("};
	Shard__Why m = SHARD__WHY__INIT;
	uint8_t body[64];

	(void)state;
	for (size_t i = 0; i < NR(good) + NR(bad); i++) {
		m.why = (char *)(uintptr_t)(i < NR(good) ? good[i] : bad[i - NR(good)]);
		assert_int_equal(
			try(&shard__why__descriptor, body, shard__why__pack(&m, body), 4096, NULL),
			i < NR(good) ? SHARD_OK : SHARD_BAD_ARG);
	}
}

/* control_clean() replaces bytes that a log must not have, and cuts between characters. */
static void test_clean(void **state)
{
	char out[8];

	(void)state;
	control_clean(out, sizeof(out), "a\nb\x7f\xff");
	assert_string_equal(out, "a b ?");
	control_clean(out, sizeof(out), "1234\xe2\x82\xac"); /* It just fits. */
	assert_string_equal(out, "1234\xe2\x82\xac");
	control_clean(out, sizeof(out), "12345\xe2\x82\xac");
	assert_string_equal(out, "12345");
	control_clean(out, 1, "x");
	assert_string_equal(out, "");
}

/* Texts in nested messages are checked, too. */
static void test_deep_texts(void **state)
{
	Shard__Spec spec = SHARD__SPEC__INIT;
	Shard__Define m = SHARD__DEFINE__INIT;
	Shard__Tensor t[3] = {SHARD__TENSOR__INIT, SHARD__TENSOR__INIT, SHARD__TENSOR__INIT},
		      *list[3] = {t, t + 1, t + 2};
	uint64_t shape[2] = {3, 4};
	uint8_t body[512];
	struct err e;
	size_t n;

	(void)state;
	spec.name = (char *)(uintptr_t) "gpt";
	spec.n_tensors = 3;
	spec.tensors = list;
	for (int i = 0; i < 3; i++) {
		t[i].name = (char *)(uintptr_t) "h.0.w";
		t[i].n_shape = 2;
		t[i].shape = shape;
	}
	m.spec = &spec;
	n = shard__define__pack(&m, body);
	assert_int_equal(try(&shard__define__descriptor, body, n, 65536, NULL), SHARD_OK);
	/* An arena that is too small gives SHARD_RANGE, wherever it runs out. */
	for (size_t arena = 0; arena < 1200; arena += 8) {
		enum shard_status rc = try(&shard__define__descriptor, body, n, arena, &e);

		if (rc != SHARD_OK && rc != SHARD_RANGE)
			fail_msg("%zu: %s", arena, e.text);
	}
	assert_int_equal(try(&shard__define__descriptor, body, n, 200, &e), SHARD_RANGE);
	t[2].name = (char *)(uintptr_t) "h.0\r\nlevel=error";
	n = shard__define__pack(&m, body);
	assert_int_equal(try(&shard__define__descriptor, body, n, 65536, &e), SHARD_BAD_ARG);
	assert_non_null(strstr(e.text, "name \"h.0...\" has a control character (0x0d) at byte 3"));
}

/* CONTROL_ARENA_BYTES is enough for the body that needs the most memory when it is unpacked. */
static void test_arena_factor(void **state)
{
	enum { BYTES = 4096 };
	uint8_t body[BYTES];

	(void)state;
	for (uint16_t op = 0; op < 2 * OP_NR; op++) {
		const ProtobufCMessageDescriptor *d = control_type(op / 2, op % 2);

		/* Each field is sent many times, as an empty message or string, and as a small
		 * number. */
		for (uint8_t field = 1; d && field < 16; field++) {
			for (int i = 0; i < BYTES; i += 2) {
				body[i] = (uint8_t)(field << 3 | 2);
				body[i + 1] = 0;
			}
			assert_int_not_equal(try(d, body, BYTES, CONTROL_ARENA_BYTES(BYTES), NULL),
					     SHARD_RANGE);
			for (int i = 0; i < BYTES; i += 2) {
				body[i] = (uint8_t)(field << 3);
				body[i + 1] = 1;
			}
			assert_int_not_equal(try(d, body, BYTES, CONTROL_ARENA_BYTES(BYTES), NULL),
					     SHARD_RANGE);
		}
	}
}

/* Random bodies in arenas of random sizes do no harm. */
static void test_noise(void **state)
{
	uint8_t body[256];
	struct rng r = {5};
	uint32_t ok = 0;

	(void)state;
	for (int i = 0; i < 200000; i++) {
		uint16_t op = (uint16_t)rng_below(&r, OP_NR);
		const ProtobufCMessageDescriptor *d = control_type(op, rng_below(&r, 2));
		size_t n = rng_below(&r, sizeof(body));

		for (size_t k = 0; k < n; k++)
			body[k] = (uint8_t)(rng_below(&r, 3) ? rng_below(&r, 32) : rng_next(&r));
		if (d)
			ok += try(d, body, n, 1 + rng_below(&r, 20000), NULL) == SHARD_OK;
	}
	assert_true(ok > 100);
}

static void test_names(void **state)
{
	(void)state;
	assert_true(control_text_ok("h.0/w \xc3\xa9"));
	assert_true(control_text_ok(""));
	assert_false(control_text_ok("a\nb"));
	assert_false(control_text_ok("\xc3"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_every_op_has_its_type),
		cmocka_unit_test(test_refused),      cmocka_unit_test(test_utf8),
		cmocka_unit_test(test_clean),        cmocka_unit_test(test_deep_texts),
		cmocka_unit_test(test_arena_factor), cmocka_unit_test(test_noise),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
