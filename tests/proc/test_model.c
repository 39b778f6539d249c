// SPDX-License-Identifier: Apache-2.0
/* Tests existing models on two real nodes. They are attached to by name, and dropped on all nodes:
 * with joined trainers in each phase of a step, and with a node that is away. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/pair.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* --- attach --- */

static void test_attach(void **state)
{
	struct shard_info info = SHARD_INIT(struct shard_info);
	struct pair p;
	shard_model *m = NULL;
	struct drill *t;

	pair_start(&p, state, NULL);
	pair_fails(shard_attach(p.c[1], "m", &m), SHARD_NOT_FOUND,
		   "no model \"m\": none is defined");
	t = p.t[0] = drill_new(p.y, p.y->cluster->node[0].unix_address);
	DRILL(t, SHARD_OK, .op = DRILL_DEFINE, .text = PAIR_TWO);
	pair_fails(shard_attach(p.c[1], "n", &m), SHARD_NOT_FOUND,
		   "no model \"n\": there is \"m\"");
	assert_null(m);
	assert_int_equal(shard_attach(p.c[1], "m", &m), SHARD_OK); /* It has no weights yet. */
	pair_fails(shard_attach(p.c[1], "m", &m), SHARD_EXISTS, "\"m\"");
	DRILL(t, SHARD_OK, .op = DRILL_WRITE);
	DRILL(t, SHARD_OK, .op = DRILL_SEAL);
	DRILL_SEND(t, .op = DRILL_JOIN, .hint = 0);
	p.t[1] = drill_new(p.y, p.y->cluster->node[1].unix_address);
	DRILL(p.t[1], SHARD_OK, .op = DRILL_ATTACH, .text = "m");
	DRILL(p.t[1], SHARD_OK, .op = DRILL_JOIN, .hint = 1);
	drill_get(t, SHARD_OK);
	BOTH(&p, .op = DRILL_TRAIN, .step = 7);
	drill_replay(p.t[0], 7, 2);
	drill_replay(p.t[1], 7, 2);
	DRILL(p.t[1], SHARD_OK, .op = DRILL_DETACH);
	DRILL(p.t[1], SHARD_OK, .op = DRILL_ATTACH, .text = "m");
	assert_int_equal(shard_attach(p.c[0], "m", &m), SHARD_OK);
	assert_int_equal(shard_tensors(m), DRILL_TENSORS);
	assert_int_equal(shard_tensor_info(m, 2, &info), SHARD_OK);
	assert_string_equal(info.name, "proj");
	assert_int_equal(info.shape[0] * 1000 + info.shape[1], 64050);
	pair_finish(&p);
}

/* --- drop --- */

static void test_drop(void **state)
{
	struct pair p;

	pair_start(&p, state, NULL);
	pair_fails(shard_drop(p.c[1], "m", 0), SHARD_NOT_FOUND, "no model \"m\"");
	pair_join(&p, PAIR_TWO);
	BOTH(&p, .op = DRILL_TRAIN, .step = 3);
	assert_true(pair_used(&p, 0) > 0 && pair_used(&p, 1) > 0);
	assert_int_equal(pair_files(&p), 1);
	pair_fails(shard_drop(p.c[1], "m", 0), SHARD_BUSY,
		   "\"m\" has 2 joined trainers: rank 0 (pid ");
	drill_text(shard_error(), "node a), rank 1 (pid ");
	for (int i = 0; i < 2; i++)
		DRILL_SEND(p.t[i], .op = DRILL_LEAVE);
	for (int i = 0; i < 2; i++)
		drill_get(p.t[i], SHARD_OK);
	/* Right after the answer all memory is free, and the name too. */
	for (int round = 0; round < 3; round++) {
		assert_int_equal(shard_drop(p.c[round & 1], "m", 0), SHARD_OK);
		assert_int_equal(pair_used(&p, 0) + pair_used(&p, 1), 0);
		assert_int_equal(pair_files(&p), 0);
		for (int i = 0; i < 2; i++) {
			DRILL(p.t[i], SHARD_NOT_FOUND, .op = DRILL_READ, .kind = SHARD_MASTER);
			DRILL(p.t[i], SHARD_NOT_FOUND, .op = DRILL_JOIN);
			drill_text(p.t[i]->last.error, "\"m\" was dropped by uid ");
			DRILL(p.t[i], SHARD_OK, .op = DRILL_DETACH);
			drill_define(p.t[i], PAIR_TWO);
		}
	}
	BOTH(&p, .op = DRILL_JOIN, .hint = -1);
	BOTH(&p, .op = DRILL_TRAIN, .step = 3); /* The new model has nothing of the old one. */
	drill_replay(p.t[0], 3, 2);
	pair_finish(&p);
}

/* The trainers are expelled in every phase of a step. */
static void test_drop_force(void **state)
{
	static const enum drill_op until[] = {DRILL_JOIN, DRILL_BEGIN, DRILL_PUSH, DRILL_COMMIT};
	struct pair p;

	pair_start(&p, state, NULL);
	for (size_t k = 0; k < NR(until); k++) {
		pair_join(&p, PAIR_TWO);
		BOTH(&p, .op = DRILL_TRAIN, .step = 2);
		for (size_t i = 1; i <= k; i++) {
			DRILL(p.t[0], SHARD_OK, .op = until[i]);
			if (until[i] == DRILL_BEGIN)
				DRILL(p.t[1], SHARD_OK, .op = DRILL_BEGIN);
		}
		/* It waits for the result, and is told. */
		if (until[k] == DRILL_COMMIT)
			DRILL_SEND(p.t[0], .op = DRILL_RESULT);
		assert_int_equal(shard_drop(p.c[1], "m", 1), SHARD_OK);
		if (until[k] == DRILL_COMMIT)
			drill_get(p.t[0], SHARD_NOT_FOUND);
		else
			DRILL(p.t[0], SHARD_NOT_FOUND, .op = DRILL_READ, .kind = SHARD_MASTER);
		DRILL(p.t[0], SHARD_NOT_FOUND, .op = DRILL_BEGIN);
		drill_text(p.t[0]->last.error, "\"m\" was dropped by uid ");
		DRILL(p.t[1], SHARD_NOT_FOUND, .op = DRILL_READ, .kind = SHARD_IMAGE);
		DRILL(p.t[1], SHARD_NOT_FOUND, .op = DRILL_WORLD);
		assert_int_equal(pair_used(&p, 0) + pair_used(&p, 1), 0);
		for (int i = 0; i < 2; i++)
			drill_end(p.t[i]);
	}
	pair_finish(&p);
}

/* A node does not answer. Without force the model is not dropped. With force that node is told when
 * it is back. */
static void test_drop_away(void **state)
{
	uint64_t until = pace_by(10);
	struct pair p;

	pair_start(&p, state, "[cluster]\nheartbeat_timeout = 1s\n");
	p.t[0] = drill_new(p.y, p.y->cluster->node[0].unix_address);
	drill_define(p.t[0], PAIR_TWO);
	cluster_signal(p.y->cluster, 1, SIGSTOP);
	pair_await_log(&p, 0, "event=link_down peer=b");
	pair_fails(shard_drop(p.c[0], "m", 0), SHARD_UNREACHABLE,
		   "\"m\" cannot be dropped on node b, which is down: ");
	assert_int_equal(pair_files(&p), 1);
	assert_int_equal(shard_drop(p.c[0], "m", 1), SHARD_OK);
	assert_int_equal(pair_used(&p, 0) + pair_files(&p), 0);
	cluster_signal(p.y->cluster, 1, SIGCONT);
	while (pair_used(&p, 1) != 0) {
		if (clock_ns() > until)
			fail_msg("node b keeps what was dropped while it was away");
		usleep(2000);
	}
	DRILL(p.t[0], SHARD_OK, .op = DRILL_DETACH);
	drill_define(p.t[0], PAIR_TWO); /* It waits for the link. */
	assert_true(p.t[0]->last.rc == SHARD_OK && pair_used(&p, 1) > 0);
	pair_finish(&p);
}

int main(void)
{
#define TEST(t) cmocka_unit_test_setup_teardown(t, drill_setup, drill_teardown)
	const struct CMUnitTest tests[] = {TEST(test_attach), TEST(test_drop),
					   TEST(test_drop_force), TEST(test_drop_away)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
