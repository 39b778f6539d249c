// SPDX-License-Identifier: Apache-2.0
/* Only one session writes the initial weights: the one that got created=1. What another session
 * writes meanwhile is refused with the name of the writer, whichever node it asks. What a writer
 * left that ended does not count. A seal takes all weights, from one writer, or fails. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/evil.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/rawnode.h"
#include "shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { CHUNK = 1024, ELEMS = 4 * CHUNK }; /* Two chunks on each of two nodes. */

struct client {
	shard_client *c;
	shard_model *m;
	int created;
};

static void define_at(struct client *x, shard_client *c)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {ELEMS}};
	const struct shard_spec s = {.size = sizeof(s),
				     .name = "m",
				     .tensors = &tensor,
				     .tensors_nr = 1,
				     .image = SHARD_F32,
				     .grad = SHARD_F32,
				     .settings = "optimizer=sgd momentum=0.9 chunk_elems=1024"};

	x->c = c;
	MUST(shard_define(x->c, &s, &x->m, &x->created));
}

static void define(struct client *x, struct inproc_node *n)
{
	define_at(x, crew_connect(n->unix_address));
}

static enum shard_status write_kind(struct client *x, enum shard_kind kind, uint64_t first,
				    uint64_t count, float value)
{
	float w[ELEMS];

	for (int i = 0; i < ELEMS; i++)
		w[i] = value;
	return shard_write(x->m, kind, 0, first, count, SHARD_F32, w);
}

static enum shard_status write_some(struct client *x, uint64_t first, uint64_t count, float value)
{
	return write_kind(x, SHARD_MASTER, first, count, value);
}

static void must_be(struct client *x, enum shard_kind kind, float value)
{
	float w[ELEMS];
	uint64_t step = 0;

	MUST(shard_read(x->m, kind, 0, 0, ELEMS, SHARD_F32, w, &step));
	for (int i = 0; i < ELEMS; i++)
		if (w[i] != value)
			fail_msg("element %d is %g, not %g", i, (double)w[i], (double)value);
}

static void fails(enum shard_status got, enum shard_status want, const char *part)
{
	if (got != want || strstr(shard_error(), part) == NULL)
		fail_msg("%s, not %s with \"%s\": %s", shard_name(got), shard_name(want), part,
			 got != SHARD_OK ? shard_error() : "");
}

/* The writer is on each of the two nodes in turn. A trainer on each node tries to write every
 * chunk, to seal and to join. */
static void test_second_writer(void **state)
{
	(void)state;
	for (int on = 0; on < 2; on++) {
		struct client first, other[2];
		struct shard_world w = SHARD_INIT(struct shard_world);
		struct inproc c;
		char who[64], whose[64];

		inproc_start(&c, NULL);
		snprintf(who, sizeof(who), "pid %d on node %s writes the weights of \"m\"",
			 (int)getpid(), c.node[on].name);
		snprintf(whose, sizeof(whose), "its weights, which pid %d on node %s writes",
			 (int)getpid(), c.node[on].name);
		define(&first, &c.node[on]);
		assert_int_equal(first.created, 1);
		MUST(write_some(&first, 0, ELEMS, 1));
		for (int i = 0; i < 2; i++) {
			define(&other[i], &c.node[i]);
			assert_int_equal(other[i].created, 0);
			for (uint64_t k = 0; k < ELEMS; k += CHUNK)
				fails(write_some(&other[i], k, CHUNK, 2), SHARD_BUSY, who);
			fails(shard_seal(other[i].m, 0), SHARD_BUSY, who);
			fails(shard_join(other[i].m, -1, 200, &w), SHARD_TIMEOUT,
			      i == 0 || i == on ? whose : "who got created = 1 for it writes");
		}
		MUST(shard_seal(first.m, 0));
		must_be(&first, SHARD_MASTER, 1);
		for (int i = 0; i < 2; i++)
			shard_disconnect(&other[i].c);
		shard_disconnect(&first.c);
		inproc_stop(&c);
	}
}

/* The next writer starts over, also in the chunks that the previous writer has written. */
static void test_writer_that_ended(void **state)
{
	(void)state;
	for (int on = 0; on < 4; on++) {
		uint64_t until = pace_by(20);
		struct client first, second, idle;
		struct inproc c;

		inproc_start(&c, NULL);
		define(&first, &c.node[on & 1]);
		define(&idle, &c.node[on & 1]);
		MUST(write_some(&first, 0, ELEMS, 1));
		MUST(write_kind(&first, SHARD_MOMENTUM, 0, ELEMS, 7));
		shard_disconnect(&first.c);
		inproc_wait_log(&c.node[on & 1], "event=session_closed", 1);
		while (define(&second, &c.node[on >> 1]), !second.created) {
			/* The coordinator learns a moment later that the first writer has ended. */
			assert_true(clock_ns() < until);
			shard_disconnect(&second.c);
		}
		fails(write_some(&idle, 0, CHUNK, 3), SHARD_BUSY, "writes the weights of \"m\"");
		fails(shard_seal(second.m, 0), SHARD_MISSING, "4096 elements are not written");
		MUST(write_some(&second, 0, CHUNK, 2));
		fails(shard_seal(second.m, 0), SHARD_MISSING, "3072 elements are not written");
		MUST(write_some(&second, CHUNK, ELEMS - CHUNK, 2));
		MUST(shard_seal(second.m, 0));
		must_be(&second, SHARD_MASTER, 2);
		must_be(&second, SHARD_MOMENTUM, 0);
		shard_disconnect(&second.c);
		shard_disconnect(&idle.c);
		inproc_stop(&c);
	}
}

/* Connects as another user. This thread has that user's id while it connects. */
static shard_client *connect_as(uid_t uid, const char *address)
{
	shard_client *c;

	CHECK(syscall(SYS_setresuid, -1, uid, -1) == 0);
	c = crew_connect(address);
	CHECK(syscall(SYS_setresuid, -1, 0, -1) == 0);
	return c;
}

/* A user who may only read the model does not get the right to write it, even when that user comes
 * first. */
static void test_reader(void **state)
{
	const struct inproc_conf conf = {.daemon = "socket_mode = 0666",
					 .tail = "[model]\nmode = 0644\n"};

	(void)state;
	if (geteuid() != 0)
		skip(); /* Only root can become another user. */
	for (int on = 0; on < 2; on++) {
		struct client first, reader, again;
		struct inproc c;

		inproc_start(&c, &conf);
		CHECK(chmod(c.dir, 0711) == 0);
		define(&first, &c.node[0]);
		assert_int_equal(first.created, 1);
		shard_disconnect(&first.c);
		inproc_wait_log(&c.node[0], "event=session_closed", 1);
		define_at(&reader, connect_as(12345, c.node[on].unix_address));
		assert_int_equal(reader.created, 0);
		fails(write_some(&reader, 0, ELEMS, 2), SHARD_DENIED, "mode 0644");
		define(&again, &c.node[0]);
		assert_int_equal(again.created, 1);
		MUST(write_some(&again, 0, ELEMS, 1));
		MUST(shard_seal(again.m, 0));
		must_be(&reader, SHARD_MASTER, 1);
		shard_disconnect(&reader.c);
		shard_disconnect(&again.c);
		inproc_stop(&c);
	}
}

/* When nobody writes the model, a session that has only attached may not write it either. */
static void test_nobody_writes(void **state)
{
	struct client first, idle;
	struct inproc c;

	(void)state;
	inproc_start(&c, NULL);
	define(&first, &c.node[0]);
	define(&idle, &c.node[1]);
	shard_disconnect(&first.c);
	inproc_wait_log(&c.node[0], "event=session_closed", 1);
	fails(write_some(&idle, 0, CHUNK, 3), SHARD_BAD_STATE,
	      "nobody writes the weights of \"m\"");
	fails(shard_seal(idle.m, 0), SHARD_BAD_STATE, "nobody writes the weights of \"m\"");
	shard_disconnect(&idle.c);
	inproc_stop(&c);
}

/* A session that defines again over the connection that writes, as after a wait that it gave up, is
 * still the writer. */
static void test_writer_again(void **state)
{
	(void)state;
	for (int on = 0; on < 2; on++) {
		struct client first, other;
		struct inproc c;
		shard_client *same;

		inproc_start(&c, NULL);
		define(&first, &c.node[on]);
		MUST(write_some(&first, 0, CHUNK, 1));
		same = first.c;
		shard_detach(&first.m);
		define_at(&first, same);
		assert_int_equal(first.created, 1);
		define(&other, &c.node[on]);
		assert_int_equal(other.created, 0);
		MUST(write_some(&first, 0, ELEMS, 2));
		MUST(shard_seal(first.m, 0));
		must_be(&first, SHARD_MASTER, 2);
		shard_disconnect(&other.c);
		shard_disconnect(&first.c);
		inproc_stop(&c);
	}
}

/* --- the test as the coordinator: write grants come in any order --- */

static void send_write(struct rawnode *x, uint64_t term, uint32_t seq, float value, uint32_t nr)
{
	float w[1024];
	struct wire_head h = {.op = OP_WRITE,
			      .attempt = ++x->tag,
			      .model = x->model,
			      .generation = 1,
			      .term = term,
			      .seq = seq,
			      .chunk = SHARD_MASTER,
			      .step = x->chunks_nr / 2 * 1024};

	for (int i = 0; i < 1024; i++)
		w[i] = value;
	raw_head(&x->r[0], &h, w, nr * (uint32_t)sizeof(w[0]));
}

static void refused(struct rawnode *x, const char *part)
{
	char *text = raw_error(&x->r[0]);

	if (text == NULL || strstr(text, part) == NULL)
		fail_msg("answered with \"%s\", not with \"%s\"", text != NULL ? text : "nothing",
			 part);
}

static uint64_t missing(struct rawnode *x, uint64_t term, uint32_t seq)
{
	struct wire_head h = {.op = OP_WRITTEN,
			      .attempt = ++x->tag,
			      .model = x->model,
			      .generation = 1,
			      .term = term,
			      .seq = seq};
	Shard__Written body = SHARD__WRITTEN__INIT, *got;
	uint64_t nr;

	raw_send(&x->r[0], &h, &body.base);
	rawnode_expect(x, OP_WRITTEN);
	got = shard__written__unpack(NULL, x->r[0].head.body_bytes, x->r[0].body);
	assert_non_null(got);
	nr = got->missing;
	shard__written__free_unpacked(got, NULL);
	return nr;
}

static void test_grants(void **state)
{
	struct rawnode x;

	(void)state;
	rawnode_start(&x, true, NULL, 1);
	rawnode_define(&x, 4, "optimizer=sgd chunk_elems=1024");
	send_write(&x, 0, 0, 1, 1024);
	refused(&x, "somebody else has begun to write");
	send_write(&x, 5, 1, 1, 1024);
	rawnode_expect(&x, OP_WRITE);
	assert_int_equal(missing(&x, 5, 1), 1024);
	/* This is from the next writer, so what was written before is void. */
	send_write(&x, 5, 2, 2, 1024);
	rawnode_expect(&x, OP_WRITE);
	assert_int_equal(missing(&x, 5, 2), 1024);
	send_write(&x, 5, 1, 1, 1024); /* This is from the previous writer, and late. */
	refused(&x, "somebody else has begun to write");
	send_write(&x, 4, 9, 1, 1024);
	refused(&x, "somebody else has begun to write");
	assert_int_equal(missing(&x, 6, 1), 2048); /* This writer has written nothing here. */
	send_write(&x, 6, 1, 3, 24);
	rawnode_expect(&x, OP_WRITE);
	assert_int_equal(missing(&x, 6, 1), 2024); /* It has written a part of a chunk. */
	assert_int_equal(missing(&x, 6, 2), 2048);
	rawnode_stop(&x);
}

/* --- the test as another node --- */

/* created=1 does not go to a session that has ended while the model was made. */
static void test_asker_that_ended(void **state)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 40}, end = {.op = OP_DETACHED};
	Shard__Trainer gone = SHARD__TRAINER__INIT;
	Shard__Tensor t, *list[1];
	Shard__Defined *got;
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape;
	struct rawnode x;
	struct raw r;

	(void)state;
	rawnode_start(&x, false, &(struct inproc_conf){.cluster = "heartbeat_timeout = 20s"}, 1);
	evil_spec(&d, &s, &t, list, &shape);
	d.session = gone.session = 7;
	raw_send(&x.r[0], &h, &d.base);
	rawnode_expect(&x, OP_MODEL);
	raw_send(&x.r[0], &end, &gone.base);
	rawnode_held(&x);
	raw_connect(&r, x.daemon->unix_address);
	raw_hello(&r, ROLE_TRAINER);
	inproc_wait_log(x.daemon, "event=model ", 1);
	raw_send(&r, &h, &d.base);
	assert_true(raw_expect(&r, OP_DEFINE));
	got = shard__defined__unpack(NULL, r.head.body_bytes, r.body);
	assert_non_null(got);
	assert_true(got->created);
	shard__defined__free_unpacked(got, NULL);
	raw_close(&r);
	rawnode_stop(&x);
}

/* A definition waits at the coordinator for a drop. Then its node's link ends, and its trainer ends
 * while the coordinator cannot hear of it. The definition must not count any more. */
static void test_held_asker_behind_a_link(void **state)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 40};
	struct wire_head manage = {.op = OP_MANAGE, .attempt = 50};
	Shard__Manage drop = SHARD__MANAGE__INIT;
	Shard__Tensor t, *list[1];
	Shard__Defined *got;
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape;
	struct rawnode x;
	struct raw r;

	(void)state;
	rawnode_start(&x, false, &(struct inproc_conf){.cluster = "heartbeat_timeout = 20s"}, 1);
	evil_spec(&d, &s, &t, list, &shape);
	d.session = 7;
	raw_send(&x.r[0], &h, &d.base);
	rawnode_hold(&x);
	rawnode_expect(&x, OP_DEFINE);
	raw_connect(&r, x.daemon->unix_address);
	raw_hello(&r, ROLE_TRAINER);
	drop.name = s.name;
	drop.action = 1;
	drop.force = true;
	raw_send(&r, &manage, &drop.base);
	rawnode_expect(&x, OP_MODEL_DROP); /* The drop is not answered yet. */
	d.session = 8;
	raw_send(&x.r[0], &h, &d.base);
	raw_send(&x.r[0], &h, &d.base);
	refused(&x, "by this connection waits already");
	rawnode_link(&x);
	assert_true(raw_expect(&r, OP_MANAGE));
	d.session = 0;
	raw_send(&r, &h, &d.base);
	rawnode_hold(&x);
	assert_true(raw_expect(&r, OP_DEFINE));
	got = shard__defined__unpack(NULL, r.head.body_bytes, r.body);
	assert_non_null(got);
	assert_true(got->created);
	shard__defined__free_unpacked(got, NULL);
	raw_close(&r);
	rawnode_stop(&x);
}

/* Node b has started again and makes its memory. Its trainer gets the answer to its definition when
 * the memory is there. */
static void test_defines_while_its_node_makes_it(void **state)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 40}, asked, bad = {.op = OP_BLOB};
	Shard__Blob blob = SHARD__BLOB__INIT;
	Shard__Tensor t, *list[1];
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape;
	struct rawnode x;

	(void)state;
	rawnode_start(&x, false, &(struct inproc_conf){.cluster = "heartbeat_timeout = 20s"}, 1);
	evil_spec(&d, &s, &t, list, &shape);
	d.session = 7;
	raw_send(&x.r[0], &h, &d.base);
	rawnode_hold(&x);
	rawnode_expect(&x, OP_DEFINE);
	rawnode_link(&x);
	rawnode_expect(&x, OP_MODEL);
	asked = x.r[0].head;
	d.session = 8;
	h.attempt = 41;
	raw_send(&x.r[0], &h, &d.base);
	bad.attempt = 42; /* The refusal of this request comes after all earlier answers. */
	raw_send(&x.r[0], &bad, &blob.base);
	do {
		assert_true(raw_recv(&x.r[0]));
		assert_int_not_equal(x.r[0].head.op, OP_DEFINE);
	} while (x.r[0].head.attempt != 42);
	x.r[0].head = asked;
	rawnode_held(&x);
	rawnode_expect(&x, OP_DEFINE);
	assert_int_equal(x.r[0].head.attempt, 41);
	rawnode_stop(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_second_writer),
					   cmocka_unit_test(test_writer_again),
					   cmocka_unit_test(test_writer_that_ended),
					   cmocka_unit_test(test_reader),
					   cmocka_unit_test(test_nobody_writes),
					   cmocka_unit_test(test_grants),
					   cmocka_unit_test(test_asker_that_ended),
					   cmocka_unit_test(test_held_asker_behind_a_link),
					   cmocka_unit_test(test_defines_while_its_node_makes_it)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
