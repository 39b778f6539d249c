// SPDX-License-Identifier: Apache-2.0
/* Tests requests that wait for another node, which does not answer. No user has so many of them
 * that other users get none, and each is given up in time. The other node is this test. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/evil.h"
#include "lib/pace.h"
#include "lib/rawnode.h"
#include "shard.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { SHARE = 1024, OVER = 8, CHUNK = 1024, ELEMS = 2 * CHUNK };

struct definer {
	struct rawnode *x;
	struct raw r;
	pthread_t thread;
	bool tcp; /* False: it is root, over the unix socket. */
};

static void *define(void *arg)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1};
	struct definer *d = arg;
	Shard__Tensor t, *list[1];
	Shard__Define body;
	Shard__Spec s;
	uint64_t shape;

	raw_connect(&d->r, d->tcp ? d->x->daemon->tcp_address : d->x->daemon->unix_address);
	raw_hello(&d->r, ROLE_TRAINER);
	evil_spec(&body, &s, &t, list, &shape);
	shape = ELEMS;
	raw_send(&d->r, &h, &body.base);
	if (!raw_expect(&d->r, OP_DEFINE))
		fail_msg("DEFINE was not answered");
	return NULL;
}

/* Reads an element that the other node holds. */
static void ask(struct raw *r, uint32_t model, uint32_t tag)
{
	struct wire_head h = {.op = OP_READ, .attempt = tag, .model = model};
	Shard__Read q = SHARD__READ__INIT;

	q.kind = SHARD_MASTER;
	q.first = CHUNK;
	q.count = 1;
	raw_send(r, &h, &q.base);
}

/* Returns the status of the ERROR that was just read. */
static uint32_t error_status(const struct raw *r)
{
	Shard__Error *e = shard__error__unpack(NULL, r->head.body_bytes, r->body);
	uint32_t st;

	CHECK(e != NULL);
	st = e->status;
	if (strstr(e->text, "node b has not answered read for 1 s: see its log") == NULL)
		fail_msg("%s", e->text);
	shard__error__free_unpacked(e, NULL);
	return st;
}

static void refused(struct raw *r, uint32_t tag)
{
	char *text = raw_error(r);

	if (text == NULL ||
	    strstr(text, "of this address wait for other nodes, which is its share") == NULL)
		fail_msg("answered with \"%s\"", text != NULL ? text : "nothing");
	assert_int_equal(r->head.attempt, tag);
}

static void test_share(void **state)
{
	struct inproc_conf conf = {.cluster = "heartbeat_timeout = 20s"};
	static uint32_t tags[SHARE];
	struct rawnode x;
	struct definer d = {.x = &x};
	struct raw many, more;

	(void)state;
	rawnode_start(&x, false, &conf, 1);
	CHECK(pthread_create(&d.thread, NULL, define, &d) == 0);
	rawnode_hold(&x);
	pthread_join(d.thread, NULL);
	raw_connect(&many, x.daemon->tcp_address);
	raw_hello(&many, ROLE_TRAINER);
	for (uint32_t i = 0; i < SHARE + OVER; i++)
		ask(&many, x.model, i + 1);
	for (uint32_t i = 0; i < OVER; i++)
		refused(&many, SHARE + i + 1);
	for (uint32_t i = 0; i < SHARE; i++) {
		rawnode_expect(&x, OP_READ);
		tags[i] = x.r[0].head.attempt;
	}
	ask(&d.r, x.model, 77); /* The request of another user is forwarded. */
	rawnode_expect(&x, OP_READ);
	raw_close(&many); /* Its requests are still open, and still count for its user. */
	inproc_wait_log(x.daemon, "event=session_closed", 1);
	raw_connect(&more, x.daemon->tcp_address);
	raw_hello(&more, ROLE_TRAINER);
	ask(&more, x.model, 5);
	refused(&more, 5);
	for (uint32_t i = 0; i < SHARE; i++)
		raw_send(&x.r[0],
			 &(struct wire_head){
				 .op = OP_ERROR, .flags = WIRE_REPLY, .attempt = tags[i]},
			 NULL);
	raw_send(&x.r[0],
		 &(struct wire_head){
			 .op = OP_ERROR, .flags = WIRE_REPLY, .attempt = x.r[0].head.attempt},
		 NULL);
	if (raw_error(&d.r) == NULL) /* So the earlier ones were handled, too. */
		fail_msg("the request of somebody else was not answered");
	ask(&more, x.model, 6);
	rawnode_expect(&x, OP_READ);
	raw_close(&more);
	raw_close(&d.r);
	rawnode_stop(&x);
}

/* Writes an element that the other node holds. */
static void write_one(struct raw *r, uint32_t model, uint32_t tag)
{
	struct wire_head h = {.op = OP_WRITE,
			      .attempt = tag,
			      .model = model,
			      .generation = 1,
			      .chunk = SHARD_MASTER,
			      .step = CHUNK};
	const float w = 1;

	raw_head(r, &h, &w, sizeof(w));
}

/* A WRITE that finds no room is refused with a status that says that it may be sent again. There is
 * room again once an answer has come. The session that defines the model comes over TCP and shares
 * with the others. */
static void test_write_share(void **state)
{
	struct inproc_conf conf = {.cluster = "heartbeat_timeout = 20s"};
	struct rawnode x;
	struct definer d = {.x = &x, .tcp = true};
	Shard__Error *e;

	(void)state;
	rawnode_start(&x, false, &conf, 1);
	CHECK(pthread_create(&d.thread, NULL, define, &d) == 0);
	rawnode_hold(&x);
	pthread_join(d.thread, NULL);
	for (uint32_t i = 0; i < SHARE; i++)
		ask(&d.r, x.model, 100 + i);
	write_one(&d.r, x.model, 7);
	assert_true(raw_expect(&d.r, OP_ERROR));
	assert_int_equal(d.r.head.attempt, 7);
	e = shard__error__unpack(NULL, d.r.head.body_bytes, d.r.body);
	assert_non_null(e);
	assert_int_equal(e->status, SHARD_BUSY);
	assert_int_equal(e->sys, EAGAIN);
	shard__error__free_unpacked(e, NULL);
	rawnode_expect(&x, OP_READ);
	raw_send(&x.r[0],
		 &(struct wire_head){
			 .op = OP_ERROR, .flags = WIRE_REPLY, .attempt = x.r[0].head.attempt},
		 NULL);
	assert_true(raw_expect(&d.r, OP_ERROR));
	write_one(&d.r, x.model, 8);
	rawnode_expect(&x, OP_WRITE);
	raw_close(&d.r);
	rawnode_stop(&x);
}

/* The link is alive. With `progress` its node also says that it works on the request. */
static void alive(struct rawnode *x, uint32_t tag, bool progress)
{
	struct wire_head ping = {.op = OP_PING},
			 h = {.op = OP_PROGRESS, .model = x->model, .attempt = tag};
	Shard__Progress body = SHARD__PROGRESS__INIT;

	raw_send(&x->r[0], &ping, NULL);
	body.done_bytes = 1;
	body.total_bytes = 2;
	if (progress)
		raw_send(&x->r[0], &h, &body.base);
}

/* A node is there and never answers. The request ends with TIMEOUT after step_timeout and
 * lost_timeout, which start again with each report of progress. The link stays. */
static void test_deadline(void **state)
{
	struct inproc_conf conf = {
		.cluster = "heartbeat_timeout = 1s\nstep_timeout = 1s\nlost_timeout = 200ms"};
	struct rawnode x;
	struct definer d = {.x = &x};
	uint64_t began, said = 0;
	uint32_t tag;

	(void)state;
	rawnode_start(&x, false, &conf, 1);
	CHECK(pthread_create(&d.thread, NULL, define, &d) == 0);
	rawnode_hold(&x);
	pthread_join(d.thread, NULL);
	ask(&d.r, x.model, 9);
	rawnode_expect(&x, OP_READ);
	tag = x.r[0].head.attempt;
	began = clock_ns();
	/* With progress it may take longer than without. */
	do {
		struct pollfd p = {.fd = d.r.fd, .events = POLLIN};

		alive(&x, tag, clock_ns() - began < 2 * NS_PER_SEC);
		if (clock_ns() - began < 2 * NS_PER_SEC)
			said = clock_ns();
		if (clock_ns() - began > pace_ns(20 * NS_PER_SEC))
			fail_msg("nobody gives the request up");
		if (poll(&p, 1, 50) == 0)
			continue;
		assert_true(raw_recv(&d.r));
	} while (d.r.head.op != OP_ERROR);
	assert_int_equal(d.r.head.attempt, 9);
	assert_true(clock_ns() - said >= NS_PER_SEC);
	assert_int_equal(error_status(&d.r), SHARD_TIMEOUT);
	assert_int_equal(inproc_logged(x.daemon, "event=link_down"), 0);
	raw_close(&d.r);
	rawnode_stop(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_share),
					   cmocka_unit_test(test_write_share),
					   cmocka_unit_test(test_deadline)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
