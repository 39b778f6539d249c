// SPDX-License-Identifier: Apache-2.0
/* Tests how a world comes about. A call that waits for min_world trainers fails after
 * quorum_timeout and names who is missing, on the coordinator's node and on another one; the
 * trainer stays in, and goes on when there are enough. Nothing else is cut short by it. The ranks
 * that trainers ask for, which are torchrun's RANK, are only hints: whatever they are, each world
 * has the ranks from 0 on, and the weights are right. */
#include "base/clock.h"
#include "lib/drill.h"
#include "lib/pace.h"
#include "lib/tool.h"
#include "lib/trainer.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SGD   "optimizer=sgd lr=1 chunk_elems=1024 "
#define THREE "min_world=3 max_world=3"

static void finish(struct drill_yard *y)
{
	cluster_stop(y->cluster);
	y->cluster = NULL;
}

static void train(struct drill *const t[], unsigned nr, uint64_t step)
{
	for (unsigned i = 0; i < nr; i++)
		DRILL_SEND(t[i], .op = DRILL_TRAIN, .step = step);
	for (unsigned i = 0; i < nr; i++)
		drill_get(t[i], SHARD_OK);
}

/* --- too few trainers --- */

/* Trainer t is in a step, and the other one of its world dies. */
static void loses(struct drill *t, struct drill *other)
{
	DRILL(t, SHARD_OK, .op = DRILL_BEGIN);
	drill_kill(other);
	/* It may hear of the end before it has pushed or committed. */
	drill_do(t, (struct drill_cmd){.op = DRILL_PUSH});
	drill_do(t, (struct drill_cmd){.op = DRILL_COMMIT});
	DRILL(t, SHARD_WORLD_CHANGED, .op = DRILL_RESULT);
	DRILL(t, SHARD_OK, .op = DRILL_WORLD);
}

/* Trainer `stays` of a world of two is left alone, and is told for whom it waits. */
static void left_alone(void **state, int stays)
{
	struct drill_yard *y = *state;
	struct drill *t[2];
	char gone[80];

	y->cluster = cluster_start(2, NULL, NULL);
	for (int i = 0; i < 2; i++)
		t[i] = drill_joining(y, y->cluster->node[i].unix_address, i,
				     SGD "timeout=600s quorum_timeout=300ms min_world=2");
	for (int i = 0; i < 2; i++)
		drill_get(t[i], SHARD_OK);
	train(t, 2, 2);
	snprintf(gone, sizeof(gone), "; gone: rank %d (pid %d, node %s)", !stays,
		 (int)t[!stays]->pid, y->cluster->node[!stays].name);
	loses(t[stays], t[!stays]);
	for (int again = 0; again < 2; again++) {
		DRILL(t[stays], SHARD_TIMEOUT, .op = DRILL_BEGIN);
		drill_text(t[stays]->last.error, "1 more trainer: 1 of at least 2 joined");
		drill_text(t[stays]->last.error, gone);
		assert_true(t[stays]->last.ended_ns - t[stays]->last.began_ns >= 300 * NS_PER_MS);
	}
	/* It is still in the world that it waited for. */
	t[!stays] = drill_joining(y, y->cluster->node[!stays].unix_address, -1,
				  SGD "timeout=600s quorum_timeout=300ms min_world=2");
	drill_get(t[!stays], SHARD_OK);
	train(t, 2, 5);
	drill_replay(t[stays], 5, 2);
	finish(y);
}

static void test_alone_at_the_coordinator(void **state)
{
	left_alone(state, 0);
}

static void test_alone_at_another_node(void **state)
{
	left_alone(state, 1);
}

/* The time for min_world trainers is longer than that for anything else. */
static void test_longer_than_timeout(void **state)
{
	struct drill_yard *y = *state;
	struct drill *t[2];

	y->cluster = cluster_start(2, NULL, NULL);
	for (int i = 0; i < 2; i++)
		t[i] = drill_joining(y, y->cluster->node[i].unix_address, i,
				     SGD "timeout=5s quorum_timeout=600s min_world=2");
	for (int i = 0; i < 2; i++)
		drill_get(t[i], SHARD_OK);
	train(t, 2, 2);
	loses(t[1], t[0]);
	DRILL_SEND(t[1], .op = DRILL_BEGIN);
	/* More than `timeout`. */
	assert_int_equal(poll(&(struct pollfd){.fd = t[1]->fd, .events = POLLIN}, 1, 7000), 0);
	t[0] = drill_joining(y, y->cluster->node[0].unix_address, -1,
			     SGD "timeout=5s quorum_timeout=600s min_world=2");
	drill_get(t[0], SHARD_OK);
	drill_recv(t[1], 20000);
	finish(y);
}

/* A paused model has enough trainers, and so `timeout` counts. */
static void test_other_waits_are_not_cut(void **state)
{
	struct drill_yard *y = *state;
	struct drill *t[1];
	char words[256];

	y->cluster = cluster_start(2, NULL, NULL);
	t[0] = drill_joining(y, y->cluster->node[1].unix_address, 0,
			     SGD "timeout=2s quorum_timeout=100ms");
	drill_get(t[0], SHARD_OK);
	train(t, 1, 2);
	DRILL(t[0], SHARD_OK, .op = DRILL_BEGIN);
	snprintf(words, sizeof(words), "-a %s model pause m --timeout 0.5",
		 y->cluster->node[0].unix_address);
	tool_expect(3, "stays asked for", "shardctl", words); /* After the step in hand. */
	DRILL(t[0], SHARD_OK, .op = DRILL_PUSH);
	DRILL(t[0], SHARD_OK, .op = DRILL_COMMIT);
	DRILL(t[0], SHARD_OK, .op = DRILL_RESULT);
	DRILL(t[0], SHARD_OK, .op = DRILL_WORLD);
	DRILL(t[0], SHARD_TIMEOUT, .op = DRILL_BEGIN);
	drill_text(t[0]->last.error, "an operator paused the model");
	assert_true(t[0]->last.ended_ns - t[0]->last.began_ns >= 2 * NS_PER_SEC);
	finish(y);
}

/* The first ones of a job. A caller that gives a timeout of its own waits for that. */
static void test_join(void **state)
{
	struct drill_yard *y = *state;
	struct shard_spec s;
	struct trainer t;
	uint64_t before;

	y->cluster = cluster_start(2, NULL, NULL);
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	s.settings = "optimizer=sgd lr=1 timeout=600s quorum_timeout=200ms min_world=3";
	trainer_define_as(&t, y->cluster->node[1].unix_address, &s);
	EXPECT(SHARD_TIMEOUT, shard_join(t.model, 1, SHARD_DEFAULT, &t.world));
	EXPECT_TEXT("2 more trainers: 1 of at least 3 joined; nobody asked to be rank 0, 2");
	before = clock_ns();
	EXPECT(SHARD_TIMEOUT, shard_join(t.model, 1, 1000, &t.world));
	EXPECT_TEXT("2 more trainers: 1 of at least 3 joined");
	assert_true(clock_ns() - before >= NS_PER_SEC);
	trainer_end(&t);
	finish(y);
}

/* --- hints --- */

/* Three trainers ask for these ranks. Each has one of the ranks from 0 on, and what they ask for if
 * that is a numbering. Their steps are right. */
static void asks(struct drill_yard *y, const int hints[3], bool numbering)
{
	struct drill *t[3];
	unsigned seen = 0;

	y->cluster = cluster_start(2, NULL, NULL);
	for (int i = 0; i < 3; i++)
		t[i] = drill_joining(y,
				     i == 0   ? y->cluster->node[0].unix_address
				     : i == 1 ? y->cluster->node[1].unix_address
					      : y->cluster->node[1].tcp_address,
				     hints[i], SGD "timeout=60s " THREE);
	for (int i = 0; i < 3; i++) {
		drill_get(t[i], SHARD_OK);
		assert_int_equal(t[i]->last.world.world_size, 3);
		assert_true(t[i]->last.world.rank < 3);
		seen |= 1u << t[i]->last.world.rank;
		if (numbering)
			assert_int_equal(t[i]->last.world.rank, hints[i]);
	}
	assert_int_equal(seen, 7);
	train(t, 3, 3);
	/* One that is started again comes with the same stale number, and others have moved up. */
	drill_kill(t[1]);
	DRILL_SEND(t[0], .op = DRILL_TRAIN, .step = 6);
	DRILL_SEND(t[2], .op = DRILL_TRAIN, .step = 6);
	t[1] = drill_joining(y, y->cluster->node[0].unix_address, hints[1],
			     SGD "timeout=60s " THREE);
	drill_get(t[1], SHARD_OK);
	assert_true(t[1]->last.world.rank < 3);
	DRILL(t[1], SHARD_OK, .op = DRILL_TRAIN, .step = 6);
	drill_get(t[0], SHARD_OK);
	drill_get(t[2], SHARD_OK);
	drill_replay(t[0], 6, 3);
	for (int i = 0; i < 3; i++)
		drill_end(t[i]);
	finish(y);
}

static void test_hints(void **state)
{
	static const struct {
		int hints[3];
		bool numbering;
	} rows[] = {
		{{2, 0, 1}, true},
		{{0, 0, 0}, false},   /* RANK=0 everywhere: nobody used torchrun. */
		{{1, 2, 3}, false},   /* Counted from 1. */
		{{7, 5, 6}, false},   /* The numbers of a larger job. */
		{{-1, 0, -1}, false}, /* Some have no number. */
		{{INT_MAX, INT_MIN, 0}, false},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		asks(*state, rows[i].hints, rows[i].numbering);
}

/* A trainer more than max_world is told that it waits for a place, whatever the others wait for. */
static void test_one_too_many(void **state)
{
	static const char set[] = SGD "min_world=2 max_world=2";
	struct drill_yard *y = *state;
	struct drill *t[3];

	y->cluster = cluster_start(2, NULL, NULL);
	for (int i = 0; i < 2; i++)
		t[i] = drill_joining(y, y->cluster->node[i].unix_address, i, set);
	for (int i = 0; i < 2; i++)
		drill_get(t[i], SHARD_OK);
	train(t, 2, 2);
	t[2] = drill_new(y, y->cluster->node[1].unix_address);
	drill_define(t[2], set);
	DRILL(t[2], SHARD_TIMEOUT, .op = DRILL_JOIN, .hint = 0, .timeout_ms = 1000);
	drill_text(t[2]->last.error, "a place: the world has 2 trainers, and max_world = 2");
	train(t, 2, 4);
	finish(y);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, drill_setup, drill_teardown)
		TEST(test_alone_at_the_coordinator),
		TEST(test_alone_at_another_node),
		TEST(test_longer_than_timeout),
		TEST(test_other_waits_are_not_cut),
		TEST(test_join),
		TEST(test_hints),
		TEST(test_one_too_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
