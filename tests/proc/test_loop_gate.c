// SPDX-License-Identifier: Apache-2.0
/* Tests memory whose making or giving back takes long, as it does for gigabytes. The loops of both
 * daemons answer meanwhile, links stay up, and another model trains. A definition that is given up,
 * a node that stops, a link that ends and a kernel that refuses memory leave nothing behind. The
 * gate holds the threads that make memory and give it back. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/gate.h"
#include "lib/inproc.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/rawnode.h"
#include "lib/rmtree.h"
#include "lib/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define MODEL                                                                                      \
	"[model]\noptimizer = sgd\nlr = 1\nmax_world = 2\nlocal_world = 2\nchunk_elems = 65536\n"

GATE_CALLS

static void links_stood(struct inproc *c)
{
	for (uint32_t i = 0; i < c->nodes; i++)
		assert_int_equal(inproc_logged(&c->node[i], "event=link_down"), 0);
}

static void steps(struct trainer *t, int nr)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	for (int i = 0; i < nr; i++) {
		trainer_begin(t);
		trainer_push_all(t, 1);
		EXPECT(SHARD_OK, shard_commit(t->model, NULL));
		EXPECT(SHARD_OK, shard_result(t->model, 0, 10000, &r));
	}
}

struct attacher {
	shard_client *client;
	shard_model *model;
	pthread_t thread;
	enum shard_status st;
};

static void *attaches(void *arg)
{
	struct attacher *a = arg;

	gate_mine = true;
	a->st = shard_attach(a->client, "large", &a->model);
	return NULL;
}

static void test_define_and_drop(void **state)
{
	const struct inproc_conf conf = {.daemon = *state, .tail = MODEL};
	uint64_t until;
	struct definer d, other, drop;
	struct attacher attacher;
	struct trainer t;
	json_int_t before[2];
	struct inproc c;

	inproc_start(&c, &conf);
	trainer_join(&t, c.node[0].unix_address, SHARD_F32, SHARD_F32);
	for (int i = 0; i < 2; i++)
		before[i] = gate_used(&c.node[i]);
	gate_set(&gate.makes, true);
	definer_begin(&d, c.node[0].unix_address, "large");
	gate_wait(&c, &gate.making, 2); /* One thread of each node. */
	definer_begin(&other, c.node[1].unix_address, "large");
	/* It waits until the model is made. */
	attacher = (struct attacher){.client = t.client};
	assert_int_equal(pthread_create(&attacher.thread, NULL, attaches, &attacher), 0);
	until = clock_ns() + NS_PER_SEC / 2;
	do {
		steps(&t, 1);
		for (int i = 0; i < 2; i++)
			gate_expect_state(&c.node[i], "large", "defining");
	} while (clock_ns() < until);
	gate_set(&gate.makes, false);
	assert_int_equal(pthread_join(attacher.thread, NULL), 0);
	assert_int_equal(attacher.st, SHARD_OK);
	shard_detach(&attacher.model);
	definer_end(&d, SHARD_OK, NULL);
	definer_end(&other, SHARD_OK, NULL); /* Both definitions have the same model. */
	for (int i = 0; i < 2; i++)
		gate_wait_state(&c.node[i], "large", "waiting");
	definer_over(&d);
	definer_over(&other);

	gate_set(&gate.gives, true);
	definer_drop(&drop, c.node[0].unix_address, "large");
	gate_wait(&c, &gate.giving, 2);
	definer_begin(&d, c.node[1].unix_address, "large"); /* It waits for the memory. */
	until = clock_ns() + NS_PER_SEC / 4;
	do {
		steps(&t, 1);
		for (int i = 0; i < 2; i++) {
			gate_expect_state(&c.node[i], "large", "");
			assert_true(gate_used(&c.node[i]) > before[i]);
		}
	} while (clock_ns() < until);
	gate_set(&gate.gives, false);
	definer_end(&drop, SHARD_OK, NULL);
	definer_end(&d, SHARD_OK, NULL);
	definer_over(&drop);
	definer_over(&d);
	definer_drop(&drop, c.node[0].unix_address, "large");
	definer_end(&drop, SHARD_OK, NULL);
	definer_over(&drop);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gate_used(&c.node[i]), before[i]);
	links_stood(&c);
	trainer_end(&t);
	inproc_stop(&c);
}

struct joiner {
	shard_model *model;
	struct shard_world world;
	pthread_t thread;
	enum shard_status st;
	char text[512];
};

static void *joins(void *arg)
{
	struct joiner *j = arg;

	gate_mine = true;
	j->world = SHARD_INIT(struct shard_world);
	j->st = shard_join(j->model, -1, 20000, &j->world);
	snprintf(j->text, sizeof(j->text), "%s", shard_error());
	return NULL;
}

static void end_join(struct joiner *j)
{
	pthread_join(j->thread, NULL);
	if (j->st != SHARD_OK)
		fail_msg("%s: %s", shard_name(j->st), j->text);
}

static void begin_join(struct joiner *j, shard_model *m)
{
	j->model = m;
	assert_int_equal(pthread_create(&j->thread, NULL, joins, j), 0);
}

/* There are two arenas. The arena of a trainer that left is made again for the next one, while the
 * other trainer trains. */
static void test_rejoin(void **state)
{
	const struct inproc_conf conf = {.nodes = 1, .tail = MODEL};
	struct shard_world world = SHARD_INIT(struct shard_world);
	struct definer d[3];
	struct joiner j[2];
	struct trainer t;
	struct inproc c;

	(void)state;
	inproc_start(&c, &conf);
	trainer_join(&t, c.node[0].unix_address, SHARD_F32, SHARD_F32);
	for (int i = 0; i < 3; i++) {
		definer_begin(&d[i], c.node[0].unix_address, "large");
		definer_end(&d[i], SHARD_OK, NULL);
	}
	for (int i = 0; i < 2; i++) {
		EXPECT(SHARD_OK, shard_join(d[0].model, -1, 10000, &world));
		EXPECT(SHARD_OK, shard_leave(d[0].model, 10000));
	}
	gate_set(&gate.gives, true);
	begin_join(&j[0], d[1].model);
	gate_wait(&c, &gate.giving, 1);
	steps(&t, 3);
	gate_expect_state(&c.node[0], "large", "waiting");
	gate_set(&gate.makes, true);
	gate_set(&gate.gives, false);
	gate_wait(&c, &gate.making, 1);
	steps(&t, 3);
	gate_set(&gate.makes, false);
	end_join(&j[0]);
	EXPECT(SHARD_OK, shard_leave(d[1].model, 10000));
	/* There is no memory. The trainer that joins is told, and the next one gets it. */
	gate_set(&gate.refuses, true);
	EXPECT(SHARD_BUDGET, shard_join(d[2].model, -1, 10000, &world));
	EXPECT_TEXT("Cannot allocate memory");
	gate_set(&gate.refuses, false);
	begin_join(&j[1], d[2].model);
	end_join(&j[1]);
	for (int i = 0; i < 3; i++)
		definer_over(&d[i]);
	trainer_end(&t);
	inproc_stop(&c);
}

/* A trainer joins a small model, whose arena is made again, while a large model is being made. */
static void test_rejoin_beside_a_making(void **state)
{
	const struct inproc_conf conf = {.nodes = 1, .tail = MODEL};
	struct shard_world world = SHARD_INIT(struct shard_world);
	struct definer d;
	struct trainer t;
	struct inproc c;

	(void)state;
	inproc_start(&c, &conf);
	trainer_define(&t, c.node[0].unix_address, SHARD_F32, SHARD_F32);
	for (int i = 0; i < 2; i++) { /* Afterwards both arenas have been used. */
		EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &world));
		EXPECT(SHARD_OK, shard_leave(t.model, pace_ms(10000)));
	}
	gate_set(&gate.makes, true);
	definer_begin(&d, c.node[0].unix_address, "large");
	gate_wait(&c, &gate.making, 1);
	for (int i = 0; i < 2; i++) {
		EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &world));
		EXPECT(SHARD_OK, shard_leave(t.model, pace_ms(10000)));
	}
	gate_expect_state(&c.node[0], "large", "defining");
	gate_set(&gate.makes, false);
	definer_end(&d, SHARD_OK, NULL);
	definer_over(&d);
	trainer_end(&t);
	inproc_stop(&c);
}

/* Node b, which is the test, has no room. The definition fails at once, while the thread of node a
 * still works. The next definition waits until the memory is free on both nodes. */
static void test_given_up(void **state)
{
	struct wire_head no = {.op = OP_ERROR, .flags = WIRE_REPLY},
			 gone = {.op = OP_MODEL_DROP, .flags = WIRE_REPLY};
	Shard__Error why = SHARD__ERROR__INIT;
	struct definer d, again;
	struct rawnode x;

	(void)state;
	rawnode_start(&x, false, &(struct inproc_conf){.tail = MODEL}, 1);
	gate_set(&gate.makes, true);
	definer_begin(&d, x.daemon->unix_address, "large");
	rawnode_expect(&x, OP_MODEL);
	gate_wait(&x.c, &gate.making, 1);
	why.status = SHARD_BUDGET;
	why.text = (char *)(uintptr_t) "no room on node b";
	no.attempt = x.r[0].head.attempt;
	raw_send(&x.r[0], &no, &why.base);
	definer_end(&d, SHARD_BUDGET, "no room on node b");
	rawnode_expect(&x, OP_MODEL_DROP);
	assert_true(x.r[0].head.attempt != 0);
	gone.attempt = x.r[0].head.attempt;
	gone.model = x.r[0].head.model;
	gate_expect_state(x.daemon, "large", "");
	/* The memory of a working thread is not given to others. */
	assert_true(gate_used(x.daemon) > 0);
	definer_begin(&again, x.daemon->unix_address, "large");
	raw_send(&x.r[0], &gone, NULL);
	gate_set(&gate.makes, false);
	rawnode_expect(&x, OP_MODEL);
	no.attempt = x.r[0].head.attempt;
	raw_send(&x.r[0], &no, &why.base);
	definer_end(&again, SHARD_BUDGET, "no room on node b");
	rawnode_expect(&x, OP_MODEL_DROP);
	gate_wait_used(x.daemon, 0);
	definer_over(&d);
	definer_over(&again);
	rawnode_stop(&x);
}

static void test_refused(void **state)
{
	const struct inproc_conf conf = {.daemon = *state, .tail = MODEL};
	struct definer d;
	struct inproc c;

	inproc_start(&c, &conf);
	gate_set(&gate.refuses, true);
	definer_begin(&d, c.node[1].unix_address, "large");
	definer_end(&d, SHARD_BUDGET, "\"large\" cannot be made on node ");
	definer_over(&d);
	for (int i = 0; i < 2; i++)
		gate_wait_used(&c.node[i], 0);
	gate_set(&gate.refuses, false);
	definer_begin(&d, c.node[1].unix_address, "large");
	definer_end(&d, SHARD_OK, NULL);
	definer_over(&d);
	links_stood(&c);
	inproc_stop(&c);
}

static void *stops(void *arg)
{
	struct inproc_node *n = arg;

	gate_mine = true;
	inproc_node_stop(n);
	return NULL;
}

/* Each node in turn ends while both make a model. It waits for its thread, and the definition
 * fails. */
static void test_stop(void **state)
{
	const struct inproc_conf conf = {.tail = MODEL};
	struct inproc c;
	struct definer d;
	pthread_t thread;

	(void)state;
	for (int node = 0; node < 2; node++) {
		inproc_start(&c, &conf);
		gate_set(&gate.makes, true);
		definer_begin(&d, c.node[1 - node].unix_address, "large");
		gate_wait(&c, &gate.making, 2);
		assert_int_equal(pthread_create(&thread, NULL, stops, &c.node[node]), 0);
		inproc_wait_log(&c.node[1 - node], "event=link_down", 1);
		pthread_join(d.thread, NULL);
		if (d.st != SHARD_UNREACHABLE && d.st != SHARD_CLOSED)
			fail_msg("%s: %s", shard_name(d.st), d.text);
		definer_over(&d);
		gate_expect_state(&c.node[1 - node], "large", "");
		assert_int_equal(inproc_logged(&c.node[node], "event=stopped"), 0);
		gate_set(&gate.makes, false);
		pthread_join(thread, NULL);
		gate_wait_used(&c.node[1 - node], 0);
		inproc_stop(&c);
	}
}

/* Node b comes back without its memory. The model is restored when the memory is there again. */
static void test_restart(void **state)
{
	const struct inproc_conf conf = {.cluster = "heartbeat_timeout = 2s\n", .tail = MODEL};
	struct inproc c;
	struct definer d;
	struct keep keep;

	(void)state;
	keep_init(&keep);
	inproc_start(&c, &conf);
	definer_begin(&d, c.node[0].unix_address, "large");
	definer_end(&d, SHARD_OK, NULL);
	keep_must_save(c.node[0].unix_address, "large", keep.dir, NULL);
	inproc_node_stop(&c.node[1]);
	inproc_wait_log(&c.node[0], "event=lost model=large", 1);
	gate_set(&gate.makes, true);
	assert_int_equal(inproc_node_start(&c.node[1]), SHARD_OK);
	gate_wait(&c, &gate.making, 1);
	inproc_wait_log(&c.node[0], "it makes its memory anew", 1);
	gate_expect_state(&c.node[0], "large", "restoring");
	gate_expect_state(&c.node[1], "large", "defining");
	gate_set(&gate.makes, false);
	inproc_wait_log(&c.node[0], "event=restored model=large", 1);
	assert_int_equal(inproc_logged(&c.node[0], "event=restore_failed"), 0);
	definer_over(&d);
	inproc_stop(&c);
	keep_free(&keep);
}

/* Checks that no frame with this op comes before the answer to a request that is refused at
 * once. */
static void comes_not(struct rawnode *x, uint16_t op)
{
	struct wire_head bad = {.op = OP_BLOB, .attempt = 77};
	Shard__Blob body = SHARD__BLOB__INIT;

	raw_send(&x->r[0], &bad, &body.base);
	do {
		if (!raw_recv(&x->r[0]))
			fail_msg("the link has ended");
		assert_int_not_equal(x->r[0].head.op, op);
	} while (x->r[0].head.attempt != bad.attempt);
}

/* The coordinator, which is the test, links again while node b still makes what it asked for. That
 * is given up, and requested again. */
static void test_link(void **state)
{
	struct wire_head drop = {.op = OP_MODEL_DROP, .model = 1};
	struct rawnode x;
	uint32_t chunks = GATE_ELEMS / 1024;

	(void)state;
	rawnode_start(&x, true, &(struct inproc_conf){.tail = MODEL}, 1);
	gate_set(&gate.makes, true);
	x.silent = true;
	rawnode_define(&x, chunks, "optimizer=sgd lr=1 chunk_elems=1024 max_world=2 local_world=2");
	gate_wait(&x.c, &gate.making, 1);
	rawnode_link(&x);
	inproc_wait_log(x.daemon, "event=drop model=m", 1);
	assert_non_null(strstr(raw_error(&x.r[0]), "model 1 is still being dropped on node b"));
	gate_expect_state(x.daemon, "m", "");
	/* The model is dropped meanwhile. Node b does that by itself already, and answers when it
	 * is done. */
	drop.attempt = ++x.tag;
	raw_send(&x.r[0], &drop, NULL);
	comes_not(&x, OP_MODEL_DROP);
	gate_set(&gate.makes, false);
	rawnode_expect(&x, OP_MODEL_DROP);
	assert_int_equal(x.r[0].head.attempt, drop.attempt);
	assert_int_equal(gate_used(x.daemon), 0);
	x.silent = false;
	rawnode_define(&x, chunks, x.settings);
	gate_expect_state(x.daemon, "m", "recovering");
	/* The model is dropped while it is made. The answer comes when the memory is free. */
	drop.attempt = ++x.tag;
	raw_send(&x.r[0], &drop, NULL);
	rawnode_expect(&x, OP_MODEL_DROP);
	gate_set(&gate.makes, true);
	x.silent = true;
	rawnode_define(&x, chunks, x.settings);
	gate_wait(&x.c, &gate.making, 1);
	drop.attempt = ++x.tag;
	raw_send(&x.r[0], &drop, NULL);
	assert_non_null(strstr(raw_error(&x.r[0]), "while this node was away"));
	gate_set(&gate.makes, false);
	rawnode_expect(&x, OP_MODEL_DROP);
	assert_int_equal(x.r[0].head.attempt, drop.attempt);
	assert_int_equal(gate_used(x.daemon), 0);
	x.chunks_nr = 0;
	rawnode_stop(&x);
}

/* Node b has made the model, and the coordinator has not. The link ends, and over the next one b
 * names the model. */
static void test_named_while_it_is_made(void **state)
{
	struct wire_head ping = {.op = OP_PING};
	struct definer d;
	struct rawnode x;

	(void)state;
	rawnode_start(&x, false,
		      &(struct inproc_conf){.cluster = "heartbeat_timeout = 20s", .tail = MODEL},
		      1);
	gate_set(&gate.makes, true);
	definer_begin(&d, x.daemon->unix_address, "large");
	rawnode_hold(&x);
	ping.model = x.model;
	gate_wait(&x.c, &gate.making, 1);
	rawnode_link(&x);
	raw_send(&x.r[0], &ping, NULL);
	comes_not(&x, OP_MODEL_DROP);
	gate_set(&gate.makes, false);
	rawnode_stop(&x);
	pthread_join(d.thread, NULL);
	definer_over(&d);
}

enum { DIR_BYTES = 100, TAIL_BYTES = 600 };

/* Saves a checkpoint of "large" on a node that is alone, and makes settings that restore it at the
 * start. */
static void keep_large(struct keep *k, char dir[DIR_BYTES], char tail[TAIL_BYTES])
{
	struct definer d;
	struct inproc c;

	keep_init(k);
	snprintf(dir, DIR_BYTES, "%s/large", k->dir);
	snprintf(tail, TAIL_BYTES, "%scheckpoint_dir = %s\nrestore_at_start = yes\n", MODEL,
		 k->dir);
	inproc_start(&c, &(struct inproc_conf){.nodes = 1, .tail = MODEL});
	definer_begin(&d, c.node[0].unix_address, "large");
	definer_end(&d, SHARD_OK, NULL);
	keep_must_save(c.node[0].unix_address, "large", dir, "t1");
	definer_over(&d);
	inproc_stop(&c);
}

/* A node makes its memory again. A restore asks it to load only when that memory is there. */
static void test_restored_when_it_is_made(void **state)
{
	char tail[TAIL_BYTES], dir[DIR_BYTES];
	struct wire_head model;
	struct definer d;
	struct rawnode x;
	struct keep k;

	(void)state;
	keep_large(&k, dir, tail);
	rawnode_start(&x, false,
		      &(struct inproc_conf){.cluster = "heartbeat_timeout = 20s", .tail = tail}, 1);
	gate_set(&gate.makes, true);
	definer_begin(&d, x.daemon->unix_address, "large");
	rawnode_hold(&x);
	gate_wait(&x.c, &gate.making, 1);
	rawnode_link(&x); /* Node b has started again. */
	gate_set(&gate.makes, false);
	rawnode_expect(&x, OP_MODEL);
	model = x.r[0].head;
	inproc_wait_log(x.daemon, "event=restore_waits ", 1);
	comes_not(&x, OP_LOAD_PART);
	x.r[0].head = model;
	rawnode_held(&x);
	rawnode_obey(&x, OP_LOAD_PART, 0);
	rawnode_stop(&x);
	pthread_join(d.thread, NULL);
	definer_over(&d);
	keep_free(&k);
}

/* The only checkpoint is of step 0 and damaged. It is tried once. */
static void test_bad_checkpoint_of_step_0(void **state)
{
	char tail[TAIL_BYTES], dir[DIR_BYTES];
	struct definer d;
	struct inproc c;
	struct keep k;

	(void)state;
	keep_large(&k, dir, tail);
	keep_flip(dir, "t1", "node-a.safetensors", -100);
	inproc_start(&c, &(struct inproc_conf){.nodes = 1, .tail = tail});
	definer_begin(&d, c.node[0].unix_address, "large");
	definer_end(&d, SHARD_PROTOCOL, "t1");
	assert_int_equal(inproc_logged(&c.node[0], "event=checkpoint_bad"), 1);
	definer_over(&d);
	inproc_stop(&c);
	keep_free(&k);
}

/* The making takes longer than a node may be silent about a request. A trainer of the other node
 * waits for it. */
static void test_made_slowly(void **state)
{
	const struct inproc_conf conf = {.cluster = "heartbeat_timeout = 1s\nstep_timeout = 1s\n"
						    "lost_timeout = 1s",
					 .tail = MODEL};
	uint64_t until;
	struct definer d;
	struct inproc c;

	(void)state;
	inproc_start(&c, &conf);
	gate_set(&gate.makes, true);
	definer_begin(&d, c.node[1].unix_address, "large");
	gate_wait(&c, &gate.making, 2);
	until = clock_ns() + 3 * NS_PER_SEC;
	while (clock_ns() < until)
		usleep(10000);
	gate_set(&gate.makes, false);
	definer_end(&d, SHARD_OK, NULL);
	definer_over(&d);
	inproc_stop(&c);
}

int main(void)
{
	static char folder[] = "/dev/shm/shardd-gate.XXXXXX", warm[80];
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_named_while_it_is_made),
		cmocka_unit_test(test_restored_when_it_is_made),
		cmocka_unit_test(test_bad_checkpoint_of_step_0),
		cmocka_unit_test(test_made_slowly),
		cmocka_unit_test(test_define_and_drop),
		{"test_define_and_drop warm", test_define_and_drop, NULL, NULL, warm},
		cmocka_unit_test(test_rejoin),
		cmocka_unit_test(test_rejoin_beside_a_making),
		cmocka_unit_test(test_given_up),
		cmocka_unit_test(test_refused),
		{"test_refused warm", test_refused, NULL, NULL, warm},
		cmocka_unit_test(test_stop),
		cmocka_unit_test(test_restart),
		cmocka_unit_test(test_link),
	};

	int failed;

	gate_mine = true;
	CHECK(mkdtemp(folder) != NULL);
	snprintf(warm, sizeof(warm), "warm_restart = tmpfs\nwarm_dir = %s", folder);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	rmtree(folder);
	return failed;
}
