// SPDX-License-Identifier: Apache-2.0
/* The calls for parts of tensors and for many at once: shard_push_none_range(), shard_push_many(),
 * shard_push() with SHARD_ADD, and shard_pull_all(). Two trainers of two real daemons use them over
 * unix sockets and TCP. The weights are known in advance. What is pushed twice, left out, frozen or
 * not there is refused, and the step goes on when it is put right. */
#include "base/check.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { A, FIXED, B, N, TENSORS, RANKS = 2, HALF = 1100 };

static const struct shard_tensor tensors[TENSORS] = {
	[A] = {.name = "a", .ndim = 1, .shape = {3000}},
	[FIXED] = {.name = "fixed", .ndim = 1, .shape = {700}, .flags = SHARD_FROZEN},
	[B] = {.name = "b", .ndim = 1, .shape = {64}},
	[N] = {.name = "n", .ndim = 1, .shape = {2048}, .image = SHARD_F32},
};

static struct cluster *cluster;
static struct trainer trainer[RANKS];
static float weight[TENSORS][3000]; /* What is known. */

static uint64_t numel(uint32_t t)
{
	return tensors[t].shape[0];
}

static void begin_training(bool tcp, const char *settings)
{
	struct shard_spec s = {.size = sizeof(s),
			       .name = "m",
			       .tensors = tensors,
			       .tensors_nr = TENSORS,
			       .image = SHARD_BF16,
			       .grad = SHARD_F32,
			       .settings = settings};
	struct trainer *t = trainer;

	cluster = cluster_start(2, "min_world = 2\nmax_world = 2\nchunk_elems = 1024\n", NULL);
	for (int i = 0; i < RANKS; i++) {
		const struct cluster_node *n = &cluster->node[i];

		trainer_connect(&t[i], tcp ? n->tcp_address : n->unix_address);
		EXPECT(SHARD_OK, shard_define(t[i].client, &s, &t[i].model, &t[i].created));
		for (uint32_t k = 0; t[i].created && k < TENSORS; k++) {
			for (uint64_t e = 0; e < numel(k); e++)
				weight[k][e] = (float)(e % 32) * 0.5f;
			EXPECT(SHARD_OK, shard_write(t[i].model, SHARD_MASTER, k, 0, numel(k),
						     SHARD_F32, weight[k]));
		}
		if (t[i].created)
			EXPECT(SHARD_OK, shard_seal(t[i].model, 0));
	}
	EXPECT(SHARD_TIMEOUT, shard_join(t[0].model, 0, 0, &t[0].world));
	EXPECT(SHARD_OK, shard_join(t[1].model, 1, pace_ms(20000), &t[1].world));
	EXPECT(SHARD_OK, shard_join(t[0].model, 0, pace_ms(20000), &t[0].world));
}

static void end_training(void)
{
	for (int i = 0; i < RANKS; i++)
		trainer_end(&trainer[i]);
	cluster_done(&cluster);
}

static int put_away(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

static void begin(uint32_t micro_steps)
{
	struct shard_begin_opts o = SHARD_INIT(struct shard_begin_opts);

	o.micro_steps = micro_steps;
	for (int i = 0; i < RANKS; i++) {
		trainer[i].step = SHARD_INIT(struct shard_step);
		EXPECT(SHARD_OK, shard_begin(trainer[i].model, &o, &trainer[i].step));
	}
}

/* Both commit. The update is minus the mean over the ranks, because their weights are 1. */
static uint64_t finish(void)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	for (int i = 0; i < RANKS; i++)
		EXPECT(SHARD_OK, shard_commit(trainer[i].model, NULL));
	for (int i = 0; i < RANKS; i++) {
		EXPECT(SHARD_OK, shard_result(trainer[i].model, 0, pace_ms(20000), &r));
		assert_int_equal(r.outcome, SHARD_APPLIED);
	}
	return r.step;
}

static void check(uint64_t step)
{
	static float got[3000];

	for (int i = 0; i < RANKS; i++) {
		shard_model *m = trainer[i].model;
		shard_ticket all;

		EXPECT(SHARD_OK, shard_pull_all(m, step, &all));
		EXPECT(SHARD_OK, shard_wait(m, all, pace_ms(20000)));
		for (uint32_t k = 0; k < TENSORS; k++) {
			uint64_t at = step;

			EXPECT(SHARD_OK,
			       shard_read(m, SHARD_MASTER, k, 0, numel(k), SHARD_F32, got, &at));
			for (uint64_t e = 0; e < numel(k); e++)
				if (got[e] != weight[k][e])
					fail_msg("%s[%lu] is %g, not %g", tensors[k].name,
						 (unsigned long)e, (double)got[e],
						 (double)weight[k][e]);
		}
	}
}

static void learn(uint32_t tensor, uint64_t first, uint64_t end, float by)
{
	for (uint64_t e = first; e < end; e++)
		weight[tensor][e] -= by;
}

/* In the arena, where shard_push_many() takes gradients from. */
static void fill(shard_model *m, uint32_t tensor, float g)
{
	float *at = shard_grad(m, tensor);

	assert_non_null(at);
	for (uint64_t e = 0; e < numel(tensor); e++)
		at[e] = g;
}

static void push(shard_model *m, uint32_t tensor, uint64_t first, uint64_t count, float g,
		 uint32_t flags, enum shard_status st)
{
	static float src[3000];

	for (uint64_t e = 0; e < count; e++)
		src[e] = g;
	EXPECT(st, shard_push(m, tensor, first, count, src, SHARD_F32, flags, NULL));
}

/* --- many --- */

static void many_refused(shard_model *m)
{
	static const uint32_t list[] = {B, FIXED, N}, none[] = {A, TENSORS};

	EXPECT(SHARD_BAD_ARG, shard_push_many(m, list, 3));
	EXPECT_TEXT("\"fixed\", which is frozen");
	EXPECT(SHARD_MISSING, shard_commit(m, NULL)); /* Only the one before it is pushed. */
	EXPECT_TEXT("2 of 3 tensors were not pushed: a, n:");
	EXPECT(SHARD_DUPLICATE, shard_push_many(m, list, 1));
	EXPECT_TEXT("push of \"b\": elements 0 to 63 were pushed already");
	EXPECT(SHARD_DUPLICATE, shard_push_none(m, B));
	EXPECT(SHARD_RANGE, shard_push_many(m, none, 2));
	EXPECT_TEXT("tensor 4 of \"m\", which has 4");
	EXPECT(SHARD_DUPLICATE, shard_push_many(m, NULL, 0)); /* All: "a" comes first. */
	EXPECT_TEXT("push of \"a\"");
	EXPECT(SHARD_OK, shard_push_many(m, &list[2], 1));
	EXPECT(SHARD_OK, shard_push_many(m, list, 0));
}

static void many(void **state)
{
	begin_training(*state != NULL, "optimizer=sgd lr=1");
	for (uint64_t step = 1; step <= 2; step++) {
		begin(1);
		for (int i = 0; i < RANKS; i++) {
			fill(trainer[i].model, A, 1 + (float)i);
			fill(trainer[i].model, B, 2);
			fill(trainer[i].model, N, 0.5f * (float)i);
		}
		many_refused(trainer[0].model);
		EXPECT(SHARD_OK, shard_push_many(trainer[1].model, NULL, 77));
		learn(A, 0, numel(A), 1.5f);
		learn(B, 0, numel(B), 2);
		learn(N, 0, numel(N), 0.25f);
		assert_int_equal(finish(), step);
		check(step);
		EXPECT(SHARD_STALE, shard_push_many(trainer[0].model, NULL, 0));
	}
	begin(2);
	EXPECT(SHARD_BAD_ARG, shard_push_many(trainer[0].model, NULL, 0));
	EXPECT_TEXT("in a step of 2 micro-steps");
	EXPECT(SHARD_OK, shard_abandon(trainer[0].model, "it only looked"));
	end_training();
}

/* --- parts --- */

static void parts_refused(shard_model *m)
{
	EXPECT(SHARD_DUPLICATE, shard_push_none_range(m, A, HALF - 1, 2));
	EXPECT_TEXT("elements 1099 to 1099 were pushed already");
	EXPECT(SHARD_DUPLICATE, shard_push_none(m, A));
	EXPECT_TEXT("of which 1100 of 3000 elements were pushed already");
	EXPECT(SHARD_RANGE, shard_push_none_range(m, A, 2999, 2));
	EXPECT(SHARD_RANGE, shard_push_none_range(m, A, 0, 0));
	EXPECT(SHARD_RANGE, shard_push_none_range(m, TENSORS, 0, 1));
	EXPECT(SHARD_OK, shard_push_none_range(m, FIXED, 0, 700));
	EXPECT(SHARD_OK, shard_push_none_range(m, FIXED, 5, 1));
	EXPECT(SHARD_MISSING, shard_commit(m, NULL));
	EXPECT_TEXT("2 of 3 tensors were not pushed: a (1100 of 3000 elements), n:");
}

/* Each rank has the gradient of a part, as where experts or columns are split. What it does not
 * have covers whole chunks, a part of one, and a whole tensor. */
static void parts(void **state)
{
	begin_training(*state != NULL, "optimizer=sgd lr=1");
	for (uint64_t step = 1; step <= 2; step++) {
		shard_model *m = trainer[0].model;

		begin(1);
		for (int i = 0; i < RANKS; i++) /* What is left of it must not be used. */
			fill(trainer[i].model, A, 1000);
		push(m, A, 0, HALF, 2, 0, SHARD_OK);
		EXPECT(SHARD_OK, shard_push_none_range(m, B, 0, 64));
		EXPECT(SHARD_DUPLICATE, shard_push_none_range(m, B, 0, 64));
		EXPECT(SHARD_DUPLICATE, shard_push_none_range(m, B, 1, 1));
		parts_refused(m);
		EXPECT(SHARD_OK, shard_push_none_range(m, A, HALF, 3000 - HALF));
		push(m, A, HALF + 5, 1, 7, 0, SHARD_DUPLICATE);
		push(m, N, 0, 1024, 3, 0, SHARD_OK);
		EXPECT(SHARD_OK, shard_push_none_range(m, N, 1024, 1024)); /* A whole chunk. */
		m = trainer[1].model;
		EXPECT(SHARD_OK, shard_push_none_range(m, A, 10, HALF - 10));
		push(m, A, HALF, 3000 - HALF, 4, 0, SHARD_OK);
		EXPECT(SHARD_OK, shard_push_none_range(m, A, 0, 10));
		push(m, B, 0, 64, 1, 0, SHARD_OK);
		EXPECT(SHARD_OK, shard_push_none_range(m, N, 0, 2048));
		learn(A, 0, HALF, 1);
		learn(A, HALF, 3000, 2);
		learn(B, 0, 64, 0.5f);
		learn(N, 0, 1024, 1.5f);
		assert_int_equal(finish(), step);
		check(step);
	}
	end_training();
}

/* --- accumulation --- */

static void adds_refused(shard_model *m)
{
	EXPECT(SHARD_BAD_ARG, shard_push_none_range(m, A, 0, 10));
	EXPECT_TEXT("only a whole tensor can be left out of one");
	EXPECT(SHARD_BAD_ARG, shard_push(m, A, 0, 10, NULL, SHARD_F32, 0, NULL));
	EXPECT_TEXT("without SHARD_ADD in a step of 3 micro-steps");
	push(m, FIXED, 0, 700, 1, SHARD_ADD, SHARD_BAD_ARG);
	EXPECT_TEXT("\"fixed\", which is frozen");
	EXPECT(SHARD_MISSING, shard_commit(m, NULL));
	EXPECT_TEXT("in each of 3 micro-steps");
	push(m, A, 0, 1000, 1, SHARD_ADD, SHARD_OK); /* A third time. */
	push(m, A, 999, 2, 9, SHARD_ADD, SHARD_DUPLICATE);
	EXPECT_TEXT("elements 999 to 999 were pushed in all 3 micro-steps already");
	EXPECT(SHARD_DUPLICATE, shard_push_none(m, A));
	push(m, A, 1000, 2000, 3, SHARD_ADD, SHARD_OK);
}

static void accumulated(void **state)
{
	begin_training(*state != NULL, "optimizer=sgd lr=1");
	for (uint64_t step = 1; step <= 2; step++) {
		shard_model *m = trainer[0].model;

		begin(3);
		for (int micro = 0; micro < 2; micro++)
			push(m, A, 0, 3000, 1 + (float)micro, SHARD_ADD, SHARD_OK);
		adds_refused(m);
		push(m, B, 0, 64, 1, SHARD_ADD, SHARD_OK); /* One micro-step of three has it. */
		EXPECT(SHARD_OK, shard_push_none(m, B));
		EXPECT(SHARD_OK, shard_push_none_range(m, B, 0, 64));
		EXPECT(SHARD_DUPLICATE, shard_push_none(m, B));
		for (int micro = 0; micro < 3; micro++)
			EXPECT(SHARD_OK, shard_push_none(m, N));
		EXPECT(SHARD_DUPLICATE, shard_push_none(m, N));
		m = trainer[1].model;
		for (int micro = 0; micro < 3; micro++) {
			push(m, N, 0, 1500, 2, SHARD_ADD, SHARD_OK);
			push(m, N, 1500, 548, 1, SHARD_ADD, SHARD_OK);
			EXPECT(SHARD_OK, shard_push_none(m, A));
			push(m, B, 0, 64, 1, SHARD_ADD, SHARD_OK);
		}
		learn(A, 0, 1000, (1 + 2 + 1) / 2.0f);
		learn(A, 1000, 3000, (1 + 2 + 3) / 2.0f);
		learn(B, 0, 64, (1 + 3) / 2.0f);
		learn(N, 0, 1500, 3);
		learn(N, 1500, 2048, 1.5f);
		assert_int_equal(finish(), step);
		check(step);
	}
	end_training();
}

/* --- shard_pull_all() --- */

static void step_of(bool skip, uint64_t step)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	begin(1);
	for (int i = 0; i < RANKS; i++) {
		if (skip && i == 1) {
			EXPECT(SHARD_OK, shard_vote_skip(trainer[i].model, "a test"));
			continue;
		}
		fill(trainer[i].model, A, 1);
		fill(trainer[i].model, B, 1);
		fill(trainer[i].model, N, 1);
		EXPECT(SHARD_OK, shard_push_many(trainer[i].model, NULL, 0));
		EXPECT(SHARD_OK, shard_commit(trainer[i].model, NULL));
	}
	for (int i = 0; i < RANKS; i++) {
		EXPECT(SHARD_OK, shard_result(trainer[i].model, 0, pace_ms(20000), &r));
		assert_int_equal(r.outcome, skip ? SHARD_SKIPPED_VOTE : SHARD_APPLIED);
		assert_int_equal(r.step, step);
	}
}

static void pull_all(shard_model *m, uint64_t step)
{
	shard_ticket ticket;

	EXPECT(SHARD_OK, shard_pull_all(m, step, &ticket));
	EXPECT(SHARD_OK, shard_wait(m, ticket, pace_ms(20000)));
}

/* A step that was skipped leaves the weights of the one before it, and an image with newer weights
 * will do. A step that is not decided will not. */
static void whole_image(bool tcp, const char *settings)
{
	shard_ticket next, all;

	begin_training(tcp, settings);
	for (uint64_t step = 1; step <= 4; step++) {
		step_of(step == 3, step);
		for (int i = 0; i < RANKS; i++)
			for (uint64_t s = 0; s <= step; s++)
				pull_all(trainer[i].model, s);
	}
	EXPECT(SHARD_OK, shard_pull_all(trainer[0].model, 4, &all));
	EXPECT(SHARD_OK, shard_pull_all(trainer[0].model, 5, &next));
	EXPECT(SHARD_TIMEOUT, shard_wait(trainer[0].model, next, 0));
	EXPECT(SHARD_OK, shard_test(trainer[0].model, all));
	EXPECT(SHARD_AGAIN, shard_test(trainer[0].model, next));
	step_of(false, 5);
	EXPECT(SHARD_OK, shard_wait(trainer[0].model, next, pace_ms(20000)));
	EXPECT(SHARD_BAD_ARG, shard_pull_all(trainer[0].model, 5, NULL));
	EXPECT(SHARD_OK, shard_leave(trainer[0].model, pace_ms(20000)));
	EXPECT(SHARD_BAD_STATE, shard_pull_all(trainer[0].model, 5, &all));
	end_training();
}

static void pulled(void **state)
{
	whole_image(*state != NULL, "optimizer=sgd lr=1");
}

static void pulled_stale(void **state)
{
	whole_image(*state != NULL, "optimizer=sgd lr=1 max_staleness=1");
}

#define OVER(fn)                                                                                   \
	{#fn " unix", fn, NULL, put_away, NULL},                                                   \
	{                                                                                          \
#fn " tcp", fn, NULL, put_away, (void *)1                                          \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {OVER(many), OVER(parts), OVER(accumulated), OVER(pulled),
					   OVER(pulled_stale)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
