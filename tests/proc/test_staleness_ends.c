// SPDX-License-Identifier: Apache-2.0
/* Tests every end of a step that was begun ahead (max_staleness = 1), with the library and a real
 * daemon. The step before it is applied, is skipped with another loss scale, or ends with its
 * world. The step ahead is abandoned, a third step has to wait, or a trainer leaves. There are two
 * trainers, over unix sockets and over TCP, and one thread drives both. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct pair {
	struct inproc cluster;
	struct trainer t[2];
	shard_ticket ticket[2];
};

static void pair_join(struct pair *p, int i, int64_t timeout_ms, enum shard_status want)
{
	EXPECT(want, shard_join(p->t[i].model, i, timeout_ms, &p->t[i].world));
}

static void pair_define(struct pair *p, int i, bool tcp, const char *more)
{
	struct shard_spec s;
	char settings[256];

	snprintf(settings, sizeof(settings),
		 "optimizer=sgd lr=1 min_world=2 max_world=2 max_staleness=1 %s", more);
	trainer_connect(&p->t[i],
			tcp ? p->cluster.node[0].tcp_address : p->cluster.node[0].unix_address);
	trainer_spec(&s, SHARD_F32, SHARD_F16);
	s.settings = settings;
	EXPECT(SHARD_OK, shard_define(p->t[i].client, &s, &p->t[i].model, &p->t[i].created));
	for (uint32_t k = 0; k < TRAINER_TENSORS && p->t[i].created; k++) {
		float w[3000] = {0};

		EXPECT(SHARD_OK, shard_write(p->t[i].model, SHARD_MASTER, k, 0, trainer_numel[k],
					     SHARD_F32, w));
	}
	if (p->t[i].created)
		EXPECT(SHARD_OK, shard_seal(p->t[i].model, 0));
}

static void pair_start(struct pair *p, bool tcp, const char *more)
{
	const struct inproc_conf conf = {.nodes = 1};

	memset(p, 0, sizeof(*p));
	inproc_start(&p->cluster, &conf);
	for (int i = 0; i < 2; i++)
		pair_define(p, i, tcp, more);
	pair_join(p, 0, 0, SHARD_TIMEOUT);
	pair_join(p, 1, pace_ms(10000), SHARD_OK);
	pair_join(p, 0, pace_ms(10000), SHARD_OK);
}

static void pair_stop(struct pair *p)
{
	for (int i = 0; i < 2; i++)
		trainer_end(&p->t[i]);
	inproc_stop(&p->cluster);
}

static void pair_step(struct pair *p, int i, uint64_t step, float value)
{
	trainer_begin(&p->t[i]);
	assert_int_equal(p->t[i].step.step, step);
	trainer_push_all(&p->t[i], value);
	EXPECT(SHARD_OK, shard_commit(p->t[i].model, &p->ticket[i]));
}

/* Rank 0 has committed steps 1 and 2, rank 1 has begun nothing. Returns step 1's ticket. */
static shard_ticket pair_ahead(struct pair *p, bool tcp, const char *more)
{
	shard_ticket first;

	pair_start(p, tcp, more);
	pair_step(p, 0, 1, 2);
	first = p->ticket[0];
	pair_step(p, 0, 2, 2);
	return first;
}

static void pair_result(struct pair *p, int i, shard_ticket ticket, enum shard_status want,
			uint64_t step, enum shard_outcome outcome)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	EXPECT(want, shard_result(p->t[i].model, ticket, pace_ms(10000), &r));
	if (want != SHARD_OK)
		return;
	assert_int_equal(r.step, step);
	assert_int_equal(r.outcome, outcome);
}

static void pair_again(struct pair *p, int i, uint64_t step)
{
	EXPECT(SHARD_OK, shard_world_get(p->t[i].model, &p->t[i].world));
	assert_int_equal(p->t[i].world.step, step);
}

static void pair_redo(struct pair *p, int i, uint64_t step, float value)
{
	do
		pair_again(p, i, step);
	while (shard_begin(p->t[i].model, NULL, &p->t[i].step) != SHARD_OK);
	trainer_push_all(&p->t[i], value);
	EXPECT(SHARD_OK, shard_commit(p->t[i].model, &p->ticket[i]));
}

/* Waits for the result of the newest step of both. Over a unix socket a step ahead is sent only in
 * a call, and one thread makes the calls of both trainers, so it alternates between them. */
static void pair_results(struct pair *p, uint64_t step)
{
	uint64_t deadline = pace_by(20);
	bool done[2] = {false, false};

	for (int i = 0; !done[0] || !done[1]; i = !i) {
		struct shard_result r = SHARD_INIT(struct shard_result);
		enum shard_status rc =
			done[i] ? SHARD_TIMEOUT : shard_result(p->t[i].model, p->ticket[i], 1, &r);

		if (rc == SHARD_TIMEOUT && clock_ns() < deadline)
			continue;
		/* The other trainer has abandoned the attempt that this one had begun. */
		if (rc == SHARD_WORLD_CHANGED) {
			pair_redo(p, i, step, 2);
			continue;
		}
		EXPECT(SHARD_OK, rc);
		assert_int_equal(r.step, step);
		assert_int_equal(r.outcome, SHARD_APPLIED);
		done[i] = true;
	}
}

/* What rank 0 computes ahead is multiplied by the old scale. Rank 1 commits after that, so step 1
 * is not decided while rank 0 pushes. */
static void the_scale_changes(void **state)
{
	bool tcp = *state != NULL;
	shard_ticket first;
	struct pair p;

	pair_start(&p, tcp, "hysteresis=1 initial_scale_power=4");
	pair_step(&p, 0, 1, INFINITY);
	first = p.ticket[0];
	trainer_begin(&p.t[0]);
	assert_true(p.t[0].step.loss_scale == 16);
	trainer_push_all(&p.t[0], 16);
	EXPECT(SHARD_OK, shard_commit(p.t[0].model, &p.ticket[0]));
	pair_step(&p, 1, 1, INFINITY);
	pair_result(&p, 0, first, SHARD_OK, 1, SHARD_SKIPPED_NONFINITE);
	pair_result(&p, 0, p.ticket[0], SHARD_WORLD_CHANGED, 0, 0);
	EXPECT_TEXT("the loss scale is 8 now, and was 16 when the step began; ");
	pair_again(&p, 0, 2);
	pair_result(&p, 1, p.ticket[1], SHARD_OK, 1, SHARD_SKIPPED_NONFINITE);
	for (int i = 0; i < 2; i++)
		trainer_begin(&p.t[i]);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(p.t[i].step.step, 2);
		assert_true(p.t[i].step.loss_scale == 8);
		trainer_push_all(&p.t[i], 8);
		EXPECT(SHARD_OK, shard_commit(p.t[i].model, &p.ticket[i]));
	}
	pair_results(&p, 2);
	pair_stop(&p);
}

static void one_ahead_is_the_most(void **state)
{
	bool tcp = *state != NULL;
	shard_ticket first;
	struct pair p;

	first = pair_ahead(&p, tcp, "loss_scale=1 timeout=1s");
	EXPECT(SHARD_TIMEOUT, shard_begin(p.t[0].model, NULL, &p.t[0].step));
	EXPECT_TEXT("begin after step 2 of \"gpt\" waited ");
	EXPECT(SHARD_TIMEOUT,
	       shard_result(p.t[0].model, first, 0, &SHARD_INIT(struct shard_result)));
	EXPECT_TEXT("step 1 attempt 1 of \"gpt\" is undecided");
	pair_step(&p, 1, 1, 2);
	pair_result(&p, 0, first, SHARD_OK, 1, SHARD_APPLIED);
	pair_result(&p, 1, 0, SHARD_OK, 1, SHARD_APPLIED);
	pair_step(&p, 1, 2, 2);
	pair_results(&p, 2);
	for (int i = 0; i < 2; i++) { /* Step 3 is computed on the weights of step 1. */
		trainer_begin(&p.t[i]);
		assert_true(trainer_image_at(&p.t[i], SHARD_F32, 0, 77) == -2);
	}
	pair_stop(&p);
}

static void given_up_ahead(void **state)
{
	bool tcp = *state != NULL;
	shard_ticket first;
	struct pair p;

	pair_start(&p, tcp, "loss_scale=1");
	pair_step(&p, 0, 1, 2);
	first = p.ticket[0];
	trainer_begin(&p.t[0]);
	assert_int_equal(p.t[0].step.step, 2);
	EXPECT(SHARD_OK, shard_abandon(p.t[0].model, "bad data"));
	pair_step(&p, 1, 1, 2);
	pair_result(&p, 0, first, SHARD_OK, 1, SHARD_APPLIED);
	pair_result(&p, 1, p.ticket[1], SHARD_OK, 1, SHARD_APPLIED);
	/* It begins the next attempt without being told of the one that it abandoned. */
	trainer_begin(&p.t[0]);
	assert_int_equal(p.t[0].step.step, 2);
	assert_true(p.t[0].step.attempt > 1);
	trainer_push_all(&p.t[0], 2);
	EXPECT(SHARD_OK, shard_commit(p.t[0].model, &p.ticket[0]));
	pair_redo(&p, 1, 2, 2);
	pair_results(&p, 2);
	pair_stop(&p);
}

/* The other trainer ends, and the step in flight with it. So does the step ahead, and both are
 * begun again. */
static void both_end(void **state)
{
	bool tcp = *state != NULL;
	shard_ticket first;
	struct pair p;

	first = pair_ahead(&p, tcp, "loss_scale=1");
	trainer_begin(&p.t[1]);
	trainer_end(&p.t[1]);
	pair_result(&p, 0, first, SHARD_WORLD_CHANGED, 0, 0);
	EXPECT_TEXT("closed its socket");
	pair_result(&p, 0, p.ticket[0], SHARD_WORLD_CHANGED, 0, 0);
	pair_again(&p, 0, 1);
	pair_define(&p, 1, tcp, "loss_scale=1");
	pair_join(&p, 1, pace_ms(10000), SHARD_OK);
	pair_redo(&p, 0, 1, 2);
	first = p.ticket[0];
	pair_step(&p, 0, 2, 4);
	pair_step(&p, 1, 1, 2);
	pair_result(&p, 0, first, SHARD_OK, 1, SHARD_APPLIED);
	pair_step(&p, 1, 2, 4);
	/* The gradients of step 2 are sent before it leaves. */
	while (shard_leave(p.t[0].model, 1) == SHARD_TIMEOUT)
		(void)!shard_result(p.t[1].model, p.ticket[1], 1, &SHARD_INIT(struct shard_result));
	pair_result(&p, 1, p.ticket[1], SHARD_OK, 2, SHARD_APPLIED);
	pair_stop(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER_BOTH(the_scale_changes),
		OVER_BOTH(one_ahead_is_the_most),
		OVER_BOTH(given_up_ahead),
		OVER_BOTH(both_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
