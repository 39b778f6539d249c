// SPDX-License-Identifier: Apache-2.0
/* Tests requests about one model that meet: restores, definitions and drops. The other node, which
 * is the test, holds each of them at a certain point. Every request is answered, and a name means
 * one model. */
#include "lib/crew.h"
#include "lib/evil.h"
#include "lib/inproc.h"
#include "lib/keep.h"
#include "lib/rawnode.h"
#include "shard.h"
#include "wire/ops.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { ELEMS = 64, DROP = 1 };

static const struct inproc_conf slow = {.cluster = "heartbeat_timeout = 20s"};

/* Saves a checkpoint of "m" into k, on a node that is alone. */
static void make(struct keep *k)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {ELEMS}};
	const struct shard_spec s = {.size = sizeof(s),
				     .name = "m",
				     .tensors = &tensor,
				     .tensors_nr = 1,
				     .image = SHARD_F32,
				     .grad = SHARD_F32,
				     .settings = "optimizer=sgd chunk_elems=1024"};
	float w[ELEMS] = {1, 2, 3};
	shard_client *client;
	shard_model *m;
	struct inproc c;
	int created;

	inproc_start(&c, &(struct inproc_conf){.nodes = 1});
	keep_init(k);
	client = crew_connect(c.node[0].unix_address);
	MUST(shard_define(client, &s, &m, &created));
	MUST(shard_write(m, SHARD_MASTER, 0, 0, ELEMS, SHARD_F32, w));
	MUST(shard_seal(m, 3));
	keep_must_save(c.node[0].unix_address, "m", k->dir, "t");
	shard_disconnect(&client);
	inproc_stop(&c);
}

static void greet(struct rawnode *x, struct raw *r)
{
	raw_connect(r, x->daemon->unix_address);
	raw_hello(r, ROLE_TRAINER);
}

static void restore(struct raw *r, const struct keep *k, const char *tag, bool force)
{
	struct wire_head h = {.op = OP_RESTORE, .attempt = 10};
	Shard__Restore body = SHARD__RESTORE__INIT;

	body.dir = (char *)(uintptr_t)k->dir;
	body.tag = (char *)(uintptr_t)tag;
	body.force = force;
	raw_send(r, &h, &body.base);
}

/* Defines "m" as make() does. When this returns, the daemon has read the request. */
static void define(struct raw *r)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 11}, ping = {.op = OP_PING};
	Shard__Tensor t, *list[1];
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape;

	evil_spec(&d, &s, &t, list, &shape);
	s.name = (char *)(uintptr_t) "m";
	s.settings = (char *)(uintptr_t) "optimizer=sgd chunk_elems=1024";
	t.name = (char *)(uintptr_t) "w";
	shape = ELEMS;
	raw_send(r, &h, &d.base);
	raw_send(r, &ping, NULL);
	assert_true(raw_expect(r, OP_PONG));
}

static void drop(struct raw *r)
{
	struct wire_head h = {.op = OP_MANAGE, .attempt = 12};
	Shard__Manage body = SHARD__MANAGE__INIT;

	body.name = (char *)(uintptr_t) "m";
	body.action = DROP;
	body.force = true;
	raw_send(r, &h, &body.base);
}

static void refused(struct raw *r, const char *part)
{
	char *text;

	assert_true(raw_expect(r, OP_ERROR));
	text = (char *)r->body;
	if (r->head.body_bytes == 0 || memmem(text, r->head.body_bytes, part, strlen(part)) == NULL)
		fail_msg("refused with \"%.*s\", not with \"%s\"", (int)r->head.body_bytes, text,
			 part);
}

/* As node b: answers that the model is dropped. */
static void gone(struct rawnode *x)
{
	struct wire_head h = {.op = OP_MODEL_DROP, .flags = WIRE_REPLY};

	rawnode_obey(x, OP_MODEL_DROP, 0);
	h.model = x->r[0].head.model;
	h.attempt = x->r[0].head.attempt;
	raw_send(&x->r[0], &h, NULL);
}

/* As node b: answers LOAD_PART, which has just come. */
static void loaded(struct rawnode *x)
{
	struct wire_head h = {.op = OP_LOAD_PART, .flags = WIRE_REPLY};

	h.model = x->r[0].head.model;
	h.attempt = x->r[0].head.attempt;
	raw_send(&x->r[0], &h, NULL);
}

/* A restore makes the model, and its first view waits for node b. A trainer defines it and waits.
 * Then the model is dropped. */
static void test_dropped_in_its_first_restore(void **state)
{
	struct raw restores, defines, drops;
	struct rawnode x;
	struct keep k;

	(void)state;
	make(&k);
	rawnode_start(&x, false, &slow, 1);
	greet(&x, &restores);
	greet(&x, &defines);
	greet(&x, &drops);
	restore(&restores, &k, "t", false);
	rawnode_hold(&x);
	rawnode_expect(&x, OP_CORE + CORE_ASK);
	define(&defines);
	drop(&drops);
	refused(&defines, "was dropped by");
	gone(&x);
	refused(&restores, "was dropped");
	assert_true(raw_expect(&drops, OP_MANAGE));
	json_decref(inproc_status(x.daemon));
	raw_close(&restores);
	raw_close(&defines);
	raw_close(&drops);
	rawnode_stop(&x);
	keep_free(&k);
}

/* The same for a model that gave up its weights for the restore, which waits for node b. */
static void test_dropped_in_a_restore(void **state)
{
	struct raw restores, drops;
	struct rawnode x;
	struct keep k;

	(void)state;
	make(&k);
	rawnode_start(&x, false, &slow, 1);
	greet(&x, &restores);
	greet(&x, &drops);
	restore(&restores, &k, "t", false);
	rawnode_obey(&x, OP_LOAD_PART, 0);
	loaded(&x);
	rawnode_obey(&x, OP_CORE + CORE_VIEW, 0);
	inproc_wait_log(x.daemon, "event=sealed ", 1);
	assert_true(raw_expect(&restores, OP_RESTORE));
	restore(&restores, &k, "t", true);
	rawnode_obey(&x, OP_LOAD_PART, 0);
	raw_close(&x.r[0]);
	inproc_wait_log(x.daemon, "event=link_down ", 1);
	drop(&drops);
	refused(&restores, "was dropped");
	assert_true(raw_expect(&drops, OP_MANAGE));
	json_decref(inproc_status(x.daemon));
	rawnode_link(&x);
	raw_close(&restores);
	raw_close(&drops);
	rawnode_stop(&x);
	keep_free(&k);
}

/* The same while node b reads its part, which the drop cancels. Nobody may be asked for a part
 * again. */
static void test_dropped_while_it_loads(void **state)
{
	struct wire_head cancelled = {.op = OP_ERROR, .flags = WIRE_REPLY};
	Shard__Error body = SHARD__ERROR__INIT;
	struct raw restores, drops;
	struct rawnode x;
	struct keep k;

	(void)state;
	make(&k);
	rawnode_start(&x, false, &slow, 1);
	greet(&x, &restores);
	greet(&x, &drops);
	restore(&restores, &k, "t", false);
	rawnode_obey(&x, OP_LOAD_PART, 0);
	loaded(&x);
	rawnode_obey(&x, OP_CORE + CORE_VIEW, 0);
	inproc_wait_log(x.daemon, "event=sealed ", 1);
	assert_true(raw_expect(&restores, OP_RESTORE));
	restore(&restores, &k, "t", true);
	rawnode_obey(&x, OP_LOAD_PART, 0);
	cancelled.attempt = x.r[0].head.attempt;
	cancelled.model = x.r[0].head.model;
	drop(&drops);
	rawnode_obey(&x, OP_PART_CANCEL, 0);
	body.status = SHARD_CLOSED;
	body.text = (char *)(uintptr_t) "cancelled";
	raw_send(&x.r[0], &cancelled, &body.base);
	refused(&restores, "was dropped");
	assert_int_equal(inproc_logged(x.daemon, "event=restoring "), 2);
	gone(&x);
	assert_true(raw_expect(&drops, OP_MANAGE));
	raw_close(&restores);
	raw_close(&drops);
	rawnode_stop(&x);
	keep_free(&k);
}

/* Two restores of a name that no model has wait for node b. One of them makes the model. */
static void test_two_restores(void **state)
{
	struct raw restores[2], other;
	struct rawnode x;
	struct keep k;
	uint32_t id;

	(void)state;
	make(&k);
	rawnode_start(&x, false, &slow, 1);
	for (int i = 0; i < 2; i++)
		greet(&x, &restores[i]);
	greet(&x, &other);
	raw_close(&x.r[0]);
	inproc_wait_log(x.daemon, "event=link_down ", 1);
	for (int i = 0; i < 2; i++)
		restore(&restores[i], &k, "t", false);
	/* When this one is answered, the daemon has handled the earlier ones. */
	restore(&other, &k, "none", false);
	refused(&other, "none");
	rawnode_link(&x);
	rawnode_hold(&x);
	id = x.model;
	rawnode_obey(&x, OP_LOAD_PART, 0);
	assert_int_equal(x.model, id);
	loaded(&x);
	rawnode_obey(&x, OP_CORE + CORE_VIEW, 0);
	inproc_wait_log(x.daemon, "event=sealed ", 1);
	assert_int_equal(inproc_logged(x.daemon, "event=model model=m "), 1);
	for (int i = 0; i < 2; i++)
		raw_close(&restores[i]);
	raw_close(&other);
	rawnode_stop(&x);
	keep_free(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_dropped_in_its_first_restore),
					   cmocka_unit_test(test_dropped_in_a_restore),
					   cmocka_unit_test(test_dropped_while_it_loads),
					   cmocka_unit_test(test_two_restores)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
