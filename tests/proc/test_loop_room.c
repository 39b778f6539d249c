// SPDX-License-Identifier: Apache-2.0
/* Tests definitions when there is not room for everything at once. A definition waits for memory
 * that another model is about to give back, or may give back, and for nothing else. The gate holds
 * the threads that make memory and give it back. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/gate.h"
#include "lib/inproc.h"
#include "lib/rawnode.h"
#include "lib/rmtree.h"
#include "lib/trainer.h"
#include "node/state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
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

static void *stops(void *arg)
{
	struct inproc_node *n = arg;

	gate_mine = true;
	inproc_node_stop(n);
	return NULL;
}

#define ROOM_FOR_ONE "memory = 36MiB\n"

/* There is room for one model. Another one waits while the memory of the first is given back. It
 * waits for heartbeat_timeout, and is then refused with figures. */
static void test_room_comes_back(void **state)
{
	char daemon[200];
	const struct inproc_conf conf = {
		.daemon = daemon, .cluster = "heartbeat_timeout = 3s\n", .tail = MODEL};
	struct definer d, drop;
	struct inproc c;

	snprintf(daemon, sizeof(daemon), ROOM_FOR_ONE "%s", *state != NULL ? (char *)*state : "");
	inproc_start(&c, &conf);
	definer_begin(&d, c.node[0].unix_address, "first");
	definer_end(&d, SHARD_OK, NULL);
	definer_over(&d);
	definer_begin(&d, c.node[1].unix_address, "second"); /* No memory is being given back. */
	definer_end(&d, SHARD_BUDGET, "\"second\" needs");
	definer_over(&d);
	for (int i = 0; i < 2; i++)
		assert_int_equal(inproc_logged(&c.node[i], "event=model_waits"), 0);

	gate_set(&gate.gives, true);
	definer_drop(&drop, c.node[0].unix_address, "first");
	gate_wait(&c, &gate.giving, 2);
	definer_begin(&d, c.node[1].unix_address, "third");
	for (int i = 0; i < 2; i++) {
		inproc_wait_log(&c.node[i], "event=model_waits model=third", 1);
		gate_expect_state(&c.node[i], "third", "defining");
	}
	definer_end(&d, SHARD_BUDGET, "\"third\" needs");
	definer_over(&d);
	definer_end(&drop, SHARD_TIMEOUT, "has not given its memory back");
	definer_over(&drop);
	definer_begin(&d, c.node[1].unix_address, "fourth");
	for (int i = 0; i < 2; i++)
		inproc_wait_log(&c.node[i], "event=model_waits model=fourth", 1);
	gate_set(&gate.gives, false);
	definer_end(&d, SHARD_OK, NULL);
	definer_over(&d);
	links_stood(&c);
	inproc_stop(&c);
}

/* The link ends while node b makes a model, so that model is given up. Over the next link comes
 * another model, for which there is no room until the thread has ended. A drop ends the wait as
 * well. */
static void test_room_after_a_link(void **state)
{
	struct wire_head drop = {.op = OP_MODEL_DROP, .model = 2};
	uint32_t chunks = GATE_ELEMS / 1024;
	struct rawnode x;

	(void)state;
	rawnode_start(&x, true, &(struct inproc_conf){.daemon = ROOM_FOR_ONE, .tail = MODEL}, 1);
	gate_set(&gate.makes, true);
	x.silent = true;
	rawnode_define(&x, chunks, "optimizer=sgd lr=1 chunk_elems=1024 max_world=2 local_world=2");
	gate_wait(&x.c, &gate.making, 1);
	x.chunks_nr = 0;
	rawnode_link(&x);
	inproc_wait_log(x.daemon, "event=drop model=m", 1);
	rawnode_define_as(&x, 2, "second", chunks, x.settings);
	inproc_wait_log(x.daemon, "event=model_waits model=second", 1);
	rawnode_expect(&x, OP_PROGRESS); /* It reports progress as if the model were being made. */
	drop.attempt = ++x.tag;
	raw_send(&x.r[0], &drop, NULL);
	inproc_wait_log(x.daemon, "event=drop model=second", 1);
	rawnode_define_as(&x, 3, "third", chunks, x.settings);
	inproc_wait_log(x.daemon, "event=model_waits model=third", 1);
	gate_set(&gate.makes, false);
	rawnode_expect(&x, OP_MODEL_DROP);
	assert_int_equal(x.r[0].head.attempt, drop.attempt);
	rawnode_expect(&x, OP_MODEL);
	assert_int_equal(x.r[0].head.model, 3);
	gate_expect_state(x.daemon, "third", "recovering");
	rawnode_stop(&x);
}

/* A link comes up, and the coordinator has not said yet whether it still has the model that node b
 * holds. Another model waits until that is known. */
static void test_room_of_an_unnamed_model(void **state)
{
	struct wire_head drop = {.op = OP_MODEL_DROP, .model = 1};
	uint32_t chunks = GATE_ELEMS / 1024;
	struct rawnode x;
	const char *text;

	(void)state;
	rawnode_start(&x, true, &(struct inproc_conf){.daemon = ROOM_FOR_ONE, .tail = MODEL}, 1);
	rawnode_define(&x, chunks, "optimizer=sgd lr=1 chunk_elems=1024 max_world=2 local_world=2");
	x.silent = true;
	x.chunks_nr = 0;
	rawnode_link(&x);
	rawnode_define_as(&x, 2, "second", chunks, x.settings);
	inproc_wait_log(x.daemon, "event=model_waits model=second", 1);
	rawnode_define(&x, chunks, x.settings); /* The coordinator still has it. */
	text = raw_error(&x.r[0]);
	assert_non_null(text);
	assert_non_null(strstr(text, "\"second\" needs"));
	assert_non_null(strstr(text, "MiB are free"));
	rawnode_define_as(&x, 3, "third", chunks, x.settings);
	assert_non_null(raw_error(&x.r[0]));
	assert_int_equal(inproc_logged(x.daemon, "event=model_waits model=third"), 0);

	x.chunks_nr = 0;
	rawnode_link(&x);
	rawnode_define_as(&x, 4, "fourth", chunks, x.settings);
	inproc_wait_log(x.daemon, "event=model_waits model=fourth", 1);
	raw_send(&x.r[0], &drop, NULL); /* The coordinator has dropped it meanwhile. */
	rawnode_expect(&x, OP_MODEL);
	assert_int_equal(x.r[0].head.model, 4);
	gate_expect_state(x.daemon, "m", "");
	gate_expect_state(x.daemon, "fourth", "recovering");
	rawnode_stop(&x);
}

/* A model is dropped by force while node b is not running, and its memory outlives b. The next
 * model, which waits for b, has room there when b has been told of the drop. */
static void test_room_of_a_drop_missed(void **state)
{
	char daemon[200];
	const struct inproc_conf conf = {.daemon = daemon, .tail = MODEL};
	struct definer d;
	struct trainer t;
	struct inproc c;

	snprintf(daemon, sizeof(daemon), ROOM_FOR_ONE "%s", (char *)*state);
	inproc_start(&c, &conf);
	definer_begin(&d, c.node[0].unix_address, "first");
	definer_end(&d, SHARD_OK, NULL);
	definer_over(&d);
	inproc_node_stop(&c.node[1]);
	inproc_wait_log(&c.node[0], "event=link_down", 1);
	trainer_connect(&t, c.node[0].unix_address);
	assert_int_equal(shard_drop(t.client, "first", 1), SHARD_OK);
	shard_disconnect(&t.client);
	definer_begin(&d, c.node[0].unix_address, "second");
	assert_int_equal(inproc_node_start(&c.node[1]), SHARD_OK);
	definer_end(&d, SHARD_OK, NULL);
	definer_over(&d);
	inproc_wait_log(&c.node[1], "event=dropped model=first", 1);
	inproc_stop(&c);
}

/* Models that are made and dropped leave nothing behind. */
static void test_nothing_grows(void **state)
{
	const struct inproc_conf conf = {.nodes = 1, .tail = MODEL};
	struct definer d, drop;
	uint32_t cap = 0;
	struct inproc c;

	(void)state;
	inproc_start(&c, &conf);
	for (int i = 0; i < 6; i++) {
		definer_begin(&d, c.node[0].unix_address, "again");
		definer_end(&d, SHARD_OK, NULL);
		definer_over(&d);
		definer_drop(&drop, c.node[0].unix_address, "again");
		definer_end(&drop, SHARD_OK, NULL);
		definer_over(&drop);
		if (i == 0)
			cap = __atomic_load_n(&c.node[0].server->later.cap, __ATOMIC_RELAXED);
	}
	assert_int_equal(__atomic_load_n(&c.node[0].server->later.cap, __ATOMIC_RELAXED), cap);
	inproc_stop(&c);
}

/* The daemon ends while a definition waits for room. */
static void test_stop_without_room(void **state)
{
	const struct inproc_conf conf = {.nodes = 1, .daemon = ROOM_FOR_ONE, .tail = MODEL};
	struct definer d, drop;
	struct inproc c;
	pthread_t thread;

	(void)state;
	inproc_start(&c, &conf);
	definer_begin(&d, c.node[0].unix_address, "first");
	definer_end(&d, SHARD_OK, NULL);
	definer_over(&d);
	gate_set(&gate.gives, true);
	definer_drop(&drop, c.node[0].unix_address, "first");
	gate_wait(&c, &gate.giving, 1);
	definer_begin(&d, c.node[0].unix_address, "second");
	inproc_wait_log(&c.node[0], "event=model_waits model=second", 1);
	assert_int_equal(pthread_create(&thread, NULL, stops, &c.node[0]), 0);
	inproc_wait_log(&c.node[0], "event=stopping", 1);
	gate_set(&gate.gives, false);
	pthread_join(thread, NULL);
	pthread_join(d.thread, NULL);
	pthread_join(drop.thread, NULL);
	assert_int_not_equal(d.st, SHARD_OK);
	definer_over(&d);
	definer_over(&drop);
	inproc_stop(&c);
}

/* There is a tmpfs of 32 MiB, and models of some 12 MiB are made there. What a model in the making
 * already has there must not count twice, and what it still needs is not given to another model. */
static void test_warm_room(void **state)
{
	static char folder[] = "/tmp/shardd-tmpfs.XXXXXX";
	char daemon[120];
	const struct inproc_conf conf = {.nodes = 1, .daemon = daemon, .tail = MODEL};
	struct definer d[3];
	struct inproc c;
	json_int_t one;

	(void)state;
	CHECK(mkdtemp(folder) != NULL);
	if (mount("tmpfs", folder, "tmpfs", 0, "size=32m,mode=0700") != 0) {
		rmdir(folder);
		print_message("this test needs to mount a tmpfs: %s\n", strerror(errno));
		skip();
	}
	snprintf(daemon, sizeof(daemon), "warm_restart = tmpfs\nwarm_dir = %s", folder);
	/* The number of regions that are there already: none, or state and sums. */
	for (uint32_t there = 0; there <= 2; there += 2) {
		gate.passes = there;
		inproc_start(&c, &conf);
		gate_set(&gate.makes, true);
		definer_begin(&d[0], c.node[0].unix_address, "first");
		gate_wait(&c, &gate.making, 1);
		one = gate_used(&c.node[0]);
		definer_begin(&d[1], c.node[0].unix_address, "second");
		gate_wait_used(&c.node[0], 2 * one);
		definer_begin(&d[2], c.node[0].unix_address, "third");
		definer_end(&d[2], SHARD_BUDGET, "give that file system a larger size=");
		gate_set(&gate.makes, false);
		for (int i = 0; i < 2; i++)
			definer_end(&d[i], SHARD_OK, NULL);
		for (int i = 0; i < 2; i++) {
			struct definer drop;

			definer_drop(&drop, c.node[0].unix_address, d[i].name);
			definer_end(&drop, SHARD_OK, NULL);
			definer_over(&drop);
		}
		for (int i = 0; i < 3; i++)
			definer_over(&d[i]);
		inproc_stop(&c);
	}
	CHECK(umount(folder) == 0);
	rmdir(folder);
}

/* Another process takes the free room of a tmpfs of 32 MiB while a model of some 12 MiB is made
 * there. If the place was requested, the error says how much is missing. With `auto` the model is
 * made in memory of the process. */
static void test_warm_taken(void **state)
{
	static char folder[] = "/tmp/shardd-taken.XXXXXX";
	char daemon[120], filler[80], command[160];
	const struct inproc_conf conf = {.nodes = 1, .daemon = daemon, .tail = MODEL};
	struct definer d, drop;
	struct inproc c;

	(void)state;
	CHECK(mkdtemp(folder) != NULL);
	if (mount("tmpfs", folder, "tmpfs", 0, "size=32m,mode=0700") != 0) {
		rmdir(folder);
		print_message("this test needs to mount a tmpfs: %s\n", strerror(errno));
		skip();
	}
	snprintf(filler, sizeof(filler), "%s/filler", folder);
	snprintf(command, sizeof(command), "head -c 64M /dev/zero >%s 2>/dev/null", filler);
	for (uint32_t i = 0; i < 4; i++) {
		bool autos = i % 2 == 1;

		snprintf(daemon, sizeof(daemon), "warm_restart = %s\nwarm_dir = %s",
			 autos ? "auto" : "tmpfs", folder);
		gate.passes = i / 2; /* Either the state is there already, or nothing is. */
		inproc_start(&c, &conf);
		gate_set(&gate.makes, true);
		definer_begin(&d, c.node[0].unix_address, "m");
		gate_wait(&c, &gate.making, 1);
		(void)!system(command);
		gate_set(&gate.makes, false);
		if (autos) {
			definer_end(&d, SHARD_OK, NULL);
			inproc_wait_log(&c.node[0], "event=warm_restart_void model=m", 1);
			definer_drop(&drop, c.node[0].unix_address, "m");
			definer_end(&drop, SHARD_OK, NULL);
			definer_over(&drop);
		} else {
			definer_end(&d, SHARD_BUDGET, folder);
			assert_non_null(strstr(d.text, "give that file system a larger size="));
			assert_null(strstr(d.text, "Bad address"));
		}
		gate_wait_used(&c.node[0], 0);
		definer_over(&d);
		inproc_stop(&c);
		CHECK(unlink(filler) == 0);
	}
	CHECK(umount(folder) == 0);
	rmdir(folder);
}

int main(void)
{
	static char folder[] = "/dev/shm/shardd-room.XXXXXX", warm[80];
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_room_comes_back),
		{"test_room_comes_back warm", test_room_comes_back, NULL, NULL, warm},
		cmocka_unit_test(test_room_after_a_link),
		cmocka_unit_test(test_room_of_an_unnamed_model),
		{"test_room_of_a_drop_missed", test_room_of_a_drop_missed, NULL, NULL, warm},
		cmocka_unit_test(test_stop_without_room),
		cmocka_unit_test(test_nothing_grows),
		cmocka_unit_test(test_warm_room),
		cmocka_unit_test(test_warm_taken),
	};

	int failed;

	gate_mine = true;
	CHECK(mkdtemp(folder) != NULL);
	snprintf(warm, sizeof(warm), "warm_restart = tmpfs\nwarm_dir = %s", folder);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	rmtree(folder);
	return failed;
}
