// SPDX-License-Identifier: Apache-2.0
/* Tests requests that wait: definitions for a node that is away or for a model that is being made,
 * restores for the coordinator, and reads for a step. What one user has waiting is bounded in
 * number and bytes. Large requests count in the budget. All of it ends with the connections. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/evil.h"
#include "lib/keep.h"
#include "lib/rawnode.h"
#include "shard.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum {
	TENSORS = 100000,
	NAME = 60,
	LARGE = 7 << 20,
	SHARE = 1024,
	READS = 64,
	PATH = 900000,
	RESTORE = 80000, /* No less than what a restore takes beside its path. */
};

static const struct inproc_conf slow = {.cluster = "heartbeat_timeout = 20s"};

static void refused(struct raw *r, uint32_t tag, const char *part)
{
	char *text = raw_error(r);

	if (text == NULL || strstr(text, part) == NULL)
		fail_msg("answered with \"%s\", not with \"%s\"", text != NULL ? text : "nothing",
			 part);
	assert_int_equal(r->head.attempt, tag);
}

/* Checks that what was sent before has been handled and not refused. */
static void waits(struct raw *r)
{
	raw_send(r, &(struct wire_head){.op = OP_PING}, NULL);
	do
		assert_true(raw_recv(r));
	while (r->head.op == OP_PING);
	if (r->head.op != OP_PONG)
		fail_msg("answered with op %u: %s", r->head.op, (char *)r->body);
}

static void greet(struct raw *r, const char *address)
{
	raw_connect(r, address);
	raw_hello(r, ROLE_TRAINER);
}

static int64_t budget_used(struct inproc_node *n)
{
	json_t *o = inproc_status(n), *budget = json_object_get(o, "budget");
	int64_t used = json_integer_value(json_object_get(budget, "used")) -
		       json_integer_value(json_object_get(budget, "queues"));

	json_decref(o);
	return used;
}

/* --- definitions for a node that is away --- */

/* Defines a model with some 7 MiB of names. */
static void define_large(struct raw *r, uint32_t tag, const char *model)
{
	static Shard__Tensor tensor[TENSORS], *list[TENSORS];
	static char names[TENSORS][NAME + 1];
	struct wire_head h = {.op = OP_DEFINE, .attempt = tag};
	Shard__Tensor one, *first[1];
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape;

	evil_spec(&d, &s, &one, first, &shape);
	for (uint32_t i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "%0*u", NAME, i);
		tensor[i] = one;
		tensor[i].name = names[i];
		list[i] = &tensor[i];
	}
	s.name = (char *)(uintptr_t)model;
	s.tensors = list;
	s.n_tensors = TENSORS;
	raw_send(r, &h, &d.base);
}

static void away(struct rawnode *x)
{
	raw_close(&x->r[0]);
	inproc_wait_log(x->daemon, "event=link_down", 1);
}

static void test_definitions(void **state)
{
	struct rawnode x;
	struct raw r[4], root;

	(void)state;
	rawnode_start(&x, false, &slow, 1);
	away(&x);
	for (int i = 0; i < 4; i++)
		greet(&r[i], x.daemon->tcp_address);
	greet(&root, x.daemon->unix_address);
	define_large(&r[0], 1, "m0");
	define_large(&r[1], 1, "m1");
	waits(&r[0]);
	waits(&r[1]);
	assert_in_range(budget_used(x.daemon), 2 * LARGE - LARGE / 4, 2 * LARGE + LARGE / 4);
	define_large(&r[2], 1, "m2");
	refused(&r[2], 1, "of somebody over TCP wait already, which is its share");
	/* Another rank of the first job. The definition is kept once. */
	define_large(&r[3], 1, "m0");
	waits(&r[3]);
	assert_in_range(budget_used(x.daemon), 2 * LARGE - LARGE / 4, 2 * LARGE + LARGE / 4);
	define_large(&root, 1, "m2"); /* It comes from another user. */
	waits(&root);
	for (int i = 0; i < 4; i++)
		raw_close(&r[i]);
	raw_close(&root);
	inproc_wait_log(x.daemon, "event=session_closed", 5);
	assert_int_equal(budget_used(x.daemon), 0);
	rawnode_link(&x);
	rawnode_stop(&x);
}

/* --- definitions of a model that is being made --- */

static void define(struct raw *r, uint32_t tag)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = tag};
	Shard__Tensor t, *list[1];
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape;

	evil_spec(&d, &s, &t, list, &shape);
	raw_send(r, &h, &d.base);
}

static void test_askers(void **state)
{
	struct rawnode x;
	struct raw first, many;

	(void)state;
	rawnode_start(&x, false, &slow, 1);
	greet(&first, x.daemon->tcp_address);
	greet(&many, x.daemon->tcp_address);
	define(&first, 1);
	rawnode_expect(&x, OP_MODEL);
	for (uint32_t i = 1; i <= SHARE; i++)
		define(&many, i);
	refused(&many, SHARE, "which is its share");
	rawnode_held(&x);
	for (uint32_t i = 1; i < SHARE; i++) /* The others are answered, each once. */
		assert_true(raw_expect(&many, OP_DEFINE));
	waits(&many);
	raw_close(&first);
	raw_close(&many);
	rawnode_stop(&x);
}

/* --- a definition of a model whose checkpoint is being read --- */

/* Saves a checkpoint of that model at step 0 into DIR/evil-parts. */
static void checkpoint(const struct keep *keep)
{
	struct inproc_conf alone = {.nodes = 1};
	struct inproc c;
	struct evil v;
	char dir[100];

	snprintf(dir, sizeof(dir), "%s/evil-parts", keep->dir);
	inproc_start(&c, &alone);
	evil_open_parts(&v, c.node[0].unix_address);
	keep_must_save(c.node[0].unix_address, "evil-parts", dir, NULL);
	raw_close(&v.r);
	inproc_stop(&c);
}

static void define_from(struct raw *r, uint32_t tag, const struct keep *keep)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = tag};
	Shard__Tensor t, *list[1];
	char settings[200];
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape;

	evil_spec(&d, &s, &t, list, &shape);
	shape = EVIL_PARTS * (WIRE_PART_BYTES / sizeof(float));
	snprintf(settings, sizeof(settings),
		 "optimizer=sgd lr=1 restore_at_start=yes checkpoint_dir=%s", keep->dir);
	s.name = (char *)(uintptr_t) "evil-parts";
	s.settings = settings;
	raw_send(r, &h, &d.base);
}

static void answer(struct rawnode *x)
{
	struct wire_head h = {.op = x->r[0].head.op,
			      .flags = WIRE_REPLY,
			      .model = x->r[0].head.model,
			      .attempt = x->r[0].head.attempt};

	raw_send(&x->r[0], &h, NULL);
}

/* Everything is read, and node b does not adopt the view that seals it. Then an operator drops the
 * model. */
static void test_dropped(void **state)
{
	struct wire_head h = {.op = OP_MANAGE, .attempt = 50};
	Shard__Manage body = SHARD__MANAGE__INIT;
	struct rawnode x;
	struct raw r, tool;
	struct keep keep;

	(void)state;
	keep_init(&keep);
	checkpoint(&keep);
	rawnode_start(&x, false, &slow, 1);
	greet(&r, x.daemon->unix_address);
	define_from(&r, 1, &keep);
	rawnode_obey(&x, OP_LOAD_PART, 0);
	answer(&x);
	rawnode_obey(&x, OP_WRITTEN, 0);
	raw_connect(&tool, x.daemon->unix_address);
	raw_hello(&tool, ROLE_CTL);
	body.name = (char *)(uintptr_t) "evil-parts";
	body.action = 1;
	body.force = true;
	raw_send(&tool, &h, &body.base);
	refused(&r, 1, "\"evil-parts\" was dropped by uid");
	rawnode_expect(&x, OP_MODEL_DROP);
	answer(&x);
	assert_true(raw_expect(&tool, OP_MANAGE));
	raw_close(&tool);
	raw_close(&r);
	rawnode_stop(&x);
	keep_free(&keep);
}

/* --- restores for a coordinator that is away --- */

static void test_restores(void **state)
{
	char *dir = malloc(PATH);
	Shard__Restore body = SHARD__RESTORE__INIT;
	struct wire_head h = {.op = OP_RESTORE, .attempt = 1};
	struct rawnode x;
	struct raw r;

	(void)state;
	CHECK(dir != NULL);
	memset(dir, 'a', PATH);
	dir[0] = '/';
	dir[PATH - 1] = 0;
	body.dir = dir;
	rawnode_start(&x, true, &slow, 1);
	away(&x);
	greet(&r, x.daemon->tcp_address);
	for (; h.attempt <= (16 << 20) / (PATH + RESTORE); h.attempt++)
		raw_send(&r, &h, &body.base);
	waits(&r);
	raw_send(&r, &h, &body.base);
	refused(&r, h.attempt, "which is its share");
	raw_close(&r);
	free(dir);
	rawnode_link(&x);
	rawnode_stop(&x);
}

/* --- restores at a coordinator that stops --- */

static void *train(void *evil)
{
	struct evil *v = evil;
	const char *address = v->name;

	evil_open_parts(v, address);
	return NULL;
}

static void *stop(void *daemon)
{
	inproc_node_stop(daemon);
	return NULL;
}

static struct core_id id_of(const struct wire_head *h)
{
	return (struct core_id){h->term, h->step, h->seq, h->generation, h->attempt};
}

/* Node b has not said that it has applied a step, so the links stay. A restore that it asks for now
 * would wait for a beat that does not come any more. */
static void test_stopping(void **state)
{
	struct wire_head h = {.op = OP_RESTORE, .attempt = 9};
	const double weight = 1; /* Of the only rank, which is at the other node. */
	struct core_msg vote = {
		.op = CORE_VOTE,
		.vote = {.weights = &weight, .ranks_nr = 1, .bad_tensor = -1, .bad_rank = -1}};
	Shard__Restore body = SHARD__RESTORE__INIT;
	Shard__Ready ready = SHARD__READY__INIT;
	struct core_msg done = {.op = CORE_DONE};
	pthread_t trainer, stopper;
	struct wire_head push;
	struct evil v;
	struct rawnode x;
	char *text;

	(void)state;
	rawnode_start(&x, false, &slow, 1);
	v.name = x.daemon->unix_address;
	CHECK(pthread_create(&trainer, NULL, train, &v) == 0);
	rawnode_obey(&x, OP_CORE + CORE_BEGIN, 0);
	vote.id = id_of(&x.r[0].head);
	rawnode_say(&x, &vote);
	pthread_join(trainer, NULL);
	push = evil_head(&v, OP_PUSH, 0);
	raw_send(&v.r, &push, NULL);
	push = evil_head(&v, OP_READY, 0);
	ready.weight = 1;
	raw_send(&v.r, &push, &ready.base);
	rawnode_obey(&x, OP_CORE + CORE_COMMIT, 0);
	done.id = id_of(&x.r[0].head);
	CHECK(pthread_create(&stopper, NULL, stop, x.daemon) == 0);
	inproc_wait_log(x.daemon, "event=stopping", 1);
	body.dir = (char *)(uintptr_t) "/tmp/shardd-there-is-none";
	raw_send(&x.r[0], &h, &body.base);
	text = raw_error(&x.r[0]);
	if (strstr(text, "node a stops") == NULL)
		fail_msg("answered with \"%s\"", text);
	rawnode_say(&x, &done);
	pthread_join(stopper, NULL);
	assert_int_equal(inproc_logged(x.daemon, "event=stopped "), 1);
	assert_int_equal(inproc_logged(x.daemon, "event=stop_"), 0);
	raw_close(&v.r);
	rawnode_free(&x);
}

/* --- reads for a step --- */

static void make(struct inproc *c, const char *name)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {64}};
	const struct shard_spec s = {.size = sizeof(s),
				     .name = name,
				     .tensors = &tensor,
				     .tensors_nr = 1,
				     .image = SHARD_F32,
				     .grad = SHARD_F32,
				     .settings = "optimizer=sgd"};
	shard_client *client = crew_connect(c->node[0].unix_address);
	static const float w[64];
	shard_model *m;
	int created;

	MUST(shard_define(client, &s, &m, &created));
	MUST(shard_write(m, SHARD_MASTER, 0, 0, 64, SHARD_F32, w));
	MUST(shard_seal(m, 0));
	shard_disconnect(&client);
}

static void test_reads(void **state)
{
	struct inproc_conf conf = {.nodes = 1};
	Shard__Read q = SHARD__READ__INIT;
	struct inproc c;
	struct raw r[2];

	(void)state;
	inproc_start(&c, &conf);
	make(&c, "a");
	make(&c, "b");
	q.kind = SHARD_MASTER;
	q.count = 1;
	q.step = 1000;
	for (int i = 0; i < 2; i++)
		greet(&r[i], c.node[0].unix_address);
	for (uint32_t i = 1; i <= READS + 1; i++)
		raw_send(&r[0],
			 &(struct wire_head){.op = OP_READ, .attempt = i, .model = 1 + i % 2},
			 &q.base);
	refused(&r[0], READS + 1, "64 reads of this connection wait");
	raw_send(&r[1], &(struct wire_head){.op = OP_READ, .attempt = 1, .model = 1}, &q.base);
	waits(&r[1]);
	raw_close(&r[0]);
	raw_close(&r[1]);
	inproc_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_definitions), cmocka_unit_test(test_askers),
		cmocka_unit_test(test_dropped),     cmocka_unit_test(test_restores),
		cmocka_unit_test(test_stopping),    cmocka_unit_test(test_reads)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
