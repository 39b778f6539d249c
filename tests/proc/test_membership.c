// SPDX-License-Identifier: Apache-2.0
/* Tests who is in the world, and the ways in which a step ends that is not applied: joining at the
 * boundary, rank hints, max_world, leaving, abandoning, voting to skip, gradients that are not
 * finite, the dynamic loss scale, and tensors without a gradient. */
#include "lib/drill.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SGD "optimizer=sgd lr=1 chunk_elems=1024 timeout=20s "

struct crowd {
	struct drill_yard *y;
	struct drill *t[4]; /* 0 and 1 are on node a. */
	int nr;
};

static const char *address(const struct crowd *c, int i)
{
	return c->y->cluster->node[i / 2].unix_address;
}

static void start(struct crowd *c, void **state, int nr, struct drill_cmd define)
{
	*c = (struct crowd){.y = *state, .nr = nr};
	c->y->cluster = cluster_start(2, NULL, NULL);
	define.op = DRILL_DEFINE;
	for (int i = 0; i < nr; i++) {
		c->t[i] = drill_new(c->y, address(c, i));
		drill_expect(c->t[i], SHARD_OK, define);
		if (c->t[i]->last.created) {
			DRILL(c->t[i], SHARD_OK, .op = DRILL_WRITE);
			DRILL(c->t[i], SHARD_OK, .op = DRILL_SEAL);
		}
		DRILL_SEND(c->t[i], .op = DRILL_JOIN, .hint = i);
	}
	for (int i = 0; i < nr; i++)
		drill_get(c->t[i], SHARD_OK);
}

static void finish(struct crowd *c)
{
	cluster_stop(c->y->cluster);
	c->y->cluster = NULL;
}

static void all(struct crowd *c, enum shard_status want, struct drill_cmd cmd)
{
	for (int i = 0; i < c->nr; i++)
		drill_send(c->t[i], cmd);
	for (int i = 0; i < c->nr; i++)
		drill_get(c->t[i], want);
}
#define ALL(c, want, ...) all((c), (want), (struct drill_cmd){__VA_ARGS__})

/* If the hints are 0 to n - 1, they are the ranks, in whatever order the trainers come. */
static void test_hints(void **state)
{
	static const int hint[4] = {3, 1, 0, 2};
	struct crowd c = {.y = *state, .nr = 4};

	c.y->cluster = cluster_start(2, NULL, NULL);
	for (int i = 0; i < 4; i++)
		c.t[i] = drill_joining(c.y, address(&c, i), hint[i], SGD "min_world=4 max_world=4");
	for (int i = 0; i < 4; i++) {
		drill_get(c.t[i], SHARD_OK);
		assert_int_equal(c.t[i]->last.world.rank, hint[i]);
		assert_int_equal(c.t[i]->last.world.world_size, 4);
		assert_int_equal(c.t[i]->last.world.local_size, 2);
	}
	ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = 5);
	drill_replay(c.t[0], 5, 4);
	finish(&c);
}

/* The others are told who joined last, as that rank. */
static void says_who(struct crowd *c, int rank)
{
	struct drill *t = c->t[0];
	char want[64];

	DRILL(t, SHARD_OK, .op = DRILL_WORLD);
	snprintf(want, sizeof(want), "rank %d (pid ", rank);
	drill_text(t->last.why, want);
	drill_text(t->last.why, ") joined");
}

/* A newcomer comes in at a boundary and gets the last rank. One above max_world waits until another
 * one has left. */
static void test_join_and_leave(void **state)
{
	struct crowd c;
	struct drill *late;

	start(&c, state, 2, (struct drill_cmd){.text = SGD "min_world=2 max_world=3"});
	ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = 1);
	ALL(&c, SHARD_OK, .op = DRILL_BEGIN); /* This world is of two, whoever comes now. */
	c.t[2] = drill_joining(c.y, address(&c, 2), -1, SGD "min_world=2 max_world=3");
	ALL(&c, SHARD_OK, .op = DRILL_PUSH);
	ALL(&c, SHARD_OK, .op = DRILL_COMMIT);
	ALL(&c, SHARD_OK, .op = DRILL_RESULT);
	assert_int_equal(c.t[0]->last.result.world_size, 2);
	drill_asked(c.y, c.t[2]);
	ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = DRILL_STEPS - 1, .count = 3);
	drill_get(c.t[2], SHARD_OK);
	assert_int_equal(c.t[2]->last.world.rank, 2);
	says_who(&c, 2);
	c.nr = 3;
	ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = c.t[2]->last.world.step + 2);
	late = drill_new(c.y, address(&c, 3));
	drill_define(late, SGD "min_world=2 max_world=3");
	DRILL(late, SHARD_TIMEOUT, .op = DRILL_JOIN, .hint = -1, .timeout_ms = 200);
	DRILL_SEND(late, .op = DRILL_JOIN, .hint = -1);
	DRILL_SEND(c.t[0],
		   .op = DRILL_LEAVE); /* It leaves at the boundary, to which the others train. */
	DRILL_SEND(c.t[1], .op = DRILL_TRAIN, .step = c.t[1]->last.world.step + 5);
	DRILL_SEND(c.t[2], .op = DRILL_TRAIN, .step = c.t[2]->last.world.step + 5);
	drill_get(c.t[0], SHARD_OK);
	drill_get(late, SHARD_OK);
	DRILL_SEND(late, .op = DRILL_TRAIN, .step = c.t[1]->last.world.step + 5);
	drill_get(c.t[1], SHARD_OK);
	drill_get(c.t[2], SHARD_OK);
	drill_get(late, SHARD_OK);
	assert_int_equal(late->last.world.world_size, 3);
	assert_int_equal(c.t[1]->last.world.rank, 0); /* Those who stay keep their order. */
	assert_int_equal(c.t[2]->last.world.rank, 1);
	assert_int_equal(late->last.world.rank, 2);
	drill_replay(c.t[1], c.t[1]->last.world.step - 1, 0);
	DRILL(c.t[0], SHARD_BAD_STATE, .op = DRILL_BEGIN); /* It has left. */
	finish(&c);
}

/* Nobody says how many there may be, so whoever comes is taken in. A trainer that leaves while a
 * step is in hand ends it, which is no reason to warn anybody. */
static void test_any_number(void **state)
{
	struct crowd c;

	start(&c, state, 2, (struct drill_cmd){.text = SGD "min_world=2"});
	ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = 1);
	c.t[2] = drill_joining(c.y, address(&c, 2), -1, SGD "min_world=2");
	drill_asked(c.y, c.t[2]);
	ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = DRILL_STEPS - 1, .count = 3);
	drill_get(c.t[2], SHARD_OK);
	says_who(&c, 2);
	DRILL(c.t[2], SHARD_OK, .op = DRILL_LEAVE);
	ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = c.t[0]->last.world.step + 1);
	for (int node = 0; node < 2; node++) {
		char *log = cluster_log(c.y->cluster, node),
		     *end = strstr(log, "event=attempt_ended");

		assert_non_null(end);
		while (end > log && end[-1] != '\n')
			end--;
		end[strcspn(end, "\n")] = 0;
		drill_text(end, "level=info");
		drill_text(end, " left");
		free(log);
	}
	finish(&c);
}

static void test_abandon(void **state)
{
	struct crowd c;

	start(&c, state, 3, (struct drill_cmd){.text = SGD "min_world=3 max_world=3"});
	ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = 1);
	ALL(&c, SHARD_OK, .op = DRILL_BEGIN);
	assert_int_equal(c.t[0]->last.step.attempt, 1);
	for (int i = 0; i < 3; i += 2) {
		DRILL(c.t[i], SHARD_OK, .op = DRILL_PUSH);
		DRILL(c.t[i], SHARD_OK, .op = DRILL_COMMIT);
		DRILL_SEND(c.t[i], .op = DRILL_RESULT);
	}
	DRILL(c.t[1], SHARD_OK, .op = DRILL_ABANDON, .text = "a broken batch");
	for (int i = 0; i < 3; i += 2) {
		drill_get(c.t[i], SHARD_WORLD_CHANGED);
		drill_text(c.t[i]->last.error, "rank 1");
		drill_text(c.t[i]->last.error, "a broken batch");
	}
	ALL(&c, SHARD_OK, .op = DRILL_WORLD);
	ALL(&c, SHARD_OK, .op = DRILL_BEGIN);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(c.t[i]->last.step.step, 2);
		assert_int_equal(c.t[i]->last.step.attempt, 2);
	}
	ALL(&c, SHARD_OK, .op = DRILL_PUSH);
	ALL(&c, SHARD_OK, .op = DRILL_COMMIT);
	ALL(&c, SHARD_OK, .op = DRILL_RESULT);
	assert_int_equal(c.t[0]->last.result.attempts, 2);
	drill_replay(c.t[1], 2, 3);
	finish(&c);
}

static void test_vote_skip(void **state)
{
	struct crowd c;

	start(&c, state, 3, (struct drill_cmd){.text = SGD "min_world=3 max_world=3"});
	ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = 1);
	ALL(&c, SHARD_OK, .op = DRILL_BEGIN);
	DRILL(c.t[0], SHARD_OK, .op = DRILL_PUSH);
	DRILL(c.t[0], SHARD_OK, .op = DRILL_COMMIT);
	DRILL(c.t[1], SHARD_OK, .op = DRILL_PUSH, .first = 0,
	      .count = 1); /* It may have pushed already. */
	DRILL(c.t[1], SHARD_OK, .op = DRILL_SKIP, .text = "no data");
	DRILL(c.t[2], SHARD_OK, .op = DRILL_PUSH);
	DRILL(c.t[2], SHARD_OK, .op = DRILL_COMMIT);
	ALL(&c, SHARD_OK, .op = DRILL_RESULT);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(c.t[i]->last.result.outcome, SHARD_SKIPPED_VOTE);
		assert_int_equal(c.t[i]->last.result.applied, 1);
		assert_int_equal(c.t[i]->last.result.step, 2);
	}
	drill_replay(c.t[0], 2, 3);
	ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = 4);
	drill_replay(c.t[0], 4, 3);
	finish(&c);
}

/* The error names the rank and the tensor of a gradient that is not finite, whether it is summed on
 * its own node, on another node, or is the only one of its node. */
static void test_nonfinite(void **state)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	struct crowd c;

	start(&c, state, 3, (struct drill_cmd){.text = SGD "min_world=3 max_world=3"});
	for (int round = 0; round < 9; round++) {
		int who = round % 3;
		uint32_t tensor = (uint32_t)(round * 7 % 4);

		ALL(&c, SHARD_OK, .op = DRILL_BEGIN);
		for (int i = 0; i < 3; i++) {
			DRILL(c.t[i], SHARD_OK, .op = DRILL_PUSH, .first = tensor, .count = 1,
			      .spoil = i == who, .bad = bad[round / 3]);
			for (uint32_t k = 0; k < DRILL_TENSORS; k++)
				if (k != tensor)
					DRILL(c.t[i], SHARD_OK, .op = DRILL_PUSH, .first = k,
					      .count = 1);
		}
		ALL(&c, SHARD_OK, .op = DRILL_COMMIT);
		ALL(&c, SHARD_OK, .op = DRILL_RESULT);
		for (int i = 0; i < 3; i++) {
			assert_int_equal(c.t[i]->last.result.outcome, SHARD_SKIPPED_NONFINITE);
			assert_int_equal(c.t[i]->last.result.bad_tensor, tensor);
			assert_int_equal(c.t[i]->last.result.bad_rank, who);
			assert_int_equal(c.t[i]->last.result.skipped_in_row, 1);
			assert_false(isfinite(c.t[i]->last.result.grad_norm));
		}
		ALL(&c, SHARD_OK, .op = DRILL_WORLD);
		ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = 2 * (uint64_t)round + 2);
	}
	drill_replay(c.t[2], 18, 3);
	finish(&c);
}

/* With a scale of 2^4 and hysteresis 2 the second overflow halves the scale, and two good steps in
 * a row double it. At the floor the model is paused. */
static void test_loss_scale(void **state)
{
	static const struct {
		bool overflow;
		double next;
	} step[] = {
		{true, 16},  {true, 8},  {false, 8}, {false, 8},
		{false, 16}, {true, 16}, {true, 8},  {true, 4},
	};
	struct crowd c;

	start(&c, state, 2,
	      (struct drill_cmd){.grad = SHARD_F16,
				 .text = SGD "min_world=2 max_world=2 initial_scale_power=4 "
					     "loss_scale_window=2 min_loss_scale=4"});
	for (size_t i = 0; i < sizeof(step) / sizeof(step[0]); i++) {
		ALL(&c, SHARD_OK, .op = DRILL_BEGIN);
		for (int k = 0; k < 2; k++) {
			DRILL(c.t[k], SHARD_OK, .op = DRILL_PUSH, .grad = SHARD_F16, .first = 0,
			      .count = 1, .spoil = step[i].overflow && k == 1, .bad = 1e6f);
			DRILL(c.t[k], SHARD_OK, .op = DRILL_PUSH, .grad = SHARD_F16, .first = 1,
			      .count = 3);
		}
		ALL(&c, SHARD_OK, .op = DRILL_COMMIT);
		ALL(&c, SHARD_OK, .op = DRILL_RESULT);
		assert_int_equal(c.t[0]->last.result.outcome,
				 step[i].overflow ? SHARD_SKIPPED_NONFINITE : SHARD_APPLIED);
		if (c.t[1]->last.result.next_loss_scale != step[i].next)
			fail_msg("step %zu: scale %g, expected %g", i + 1,
				 c.t[1]->last.result.next_loss_scale, step[i].next);
	}
	drill_replay(c.t[0], 8, 2);
	ALL(&c, SHARD_OK, .op = DRILL_BEGIN);
	for (int k = 0; k < 2; k++)
		DRILL(c.t[k], SHARD_OK, .op = DRILL_PUSH, .grad = SHARD_F16, .spoil = true,
		      .bad = 1e6f);
	ALL(&c, SHARD_OK, .op = DRILL_COMMIT);
	ALL(&c, SHARD_DIVERGED, .op = DRILL_RESULT);
	assert_int_equal(c.t[0]->last.result.outcome, SHARD_SKIPPED_NONFINITE);
	drill_text(c.t[0]->last.error, "loss scale 4");
	finish(&c);
}

/* A missing gradient is not added as zeros. The sum begins with the first operand that there is. */
static void test_push_none(void **state)
{
	struct drill_truth r;
	struct crowd c;

	start(&c, state, 4, (struct drill_cmd){.text = SGD "min_world=4 max_world=4"});
	drill_truth_init(&r);
	for (uint64_t step = 1; step <= 6; step++) {
		/* Tensors 0 (across chunks) and 3 have no gradient: in step 1 from anybody, then
		 * from one trainer, from its node, from one of each node, from all but one. */
		static const uint32_t none[] = {0xf, 0x1, 0x3, 0x5, 0xe, 0xc};

		ALL(&c, SHARD_OK, .op = DRILL_BEGIN);
		for (uint32_t i = 0; i < 4; i++)
			DRILL(c.t[i], SHARD_OK, .op = DRILL_PUSH,
			      .none = none[step - 1] >> i & 1 ? 0x9 : 0);
		ALL(&c, SHARD_OK, .op = DRILL_COMMIT);
		ALL(&c, SHARD_OK, .op = DRILL_RESULT);
		for (uint32_t i = 0; i < DRILL_NUMEL; i++)
			for (uint32_t rank = 0; rank < 4; rank++)
				if (!(none[step - 1] >> rank & 1) ||
				    (i >= 2368 && i < DRILL_NUMEL - 1))
					r.w[i] -= drill_gradient(rank, step, i) / 4;
		drill_check(c.t[step % 4], &r, step);
	}
	finish(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_hints, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_join_and_leave, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_any_number, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_abandon, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_vote_skip, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_nonfinite, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_loss_scale, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_push_none, drill_setup, drill_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
