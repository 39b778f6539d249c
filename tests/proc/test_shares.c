// SPDX-License-Identifier: Apache-2.0
/* Gradients that the ranks of a node have reduced among themselves (SHARD_SHARE). Node a of two
 * real daemons has three ranks, which push shares of what their GPUs would have summed, with
 * borders anywhere. Node b has one rank. The other half of each comparison is the same training
 * where rank 0 pushes the whole sum and the others of its node nothing. Masters must be equal bit
 * by bit, over unix sockets and TCP, with codecs, predivide, staleness and micro-steps. What lies
 * in an arena beside a share is NaN, so nobody may look at it. Shares that overlap, leave a hole or
 * are mixed with whole gradients end the attempt by name. */
#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define OLDER "tests/older/shardd"

enum { A, FIXED, B, N, TENSORS, HERE = 3, RANKS = 4, STEPS = 4, LONGEST = 3000 };
enum how { IN_SHARES, WHOLE };

static const struct shard_tensor tensors[TENSORS] = {
	[A] = {.name = "a", .ndim = 1, .shape = {LONGEST}},
	[FIXED] = {.name = "fixed", .ndim = 1, .shape = {700}, .flags = SHARD_FROZEN},
	[B] = {.name = "b", .ndim = 1, .shape = {64}},
	[N] = {.name = "n", .ndim = 1, .shape = {2048}, .image = SHARD_F32},
};
/* Where the share of each rank ends in each tensor, in the order in which shares follow. */
static const struct {
	uint32_t rank;
	uint64_t end;
} shares[TENSORS][HERE] = {
	[A] = {{1, 999}, {0, 2047}, {2, LONGEST}},
	[B] = {{1, 64}, {0, 64}, {2, 64}},
	[N] = {{2, 1}, {0, 1024}, {1, 2048}},
};

static struct cluster *cluster;
static struct trainer trainer[RANKS];

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
			       .grad = SHARD_BF16,
			       .settings = settings};

	cluster = cluster_start(2, "min_world = 4\nmax_world = 4\nchunk_elems = 1024\n", NULL);
	for (uint32_t i = 0; i < RANKS; i++) {
		const struct cluster_node *n = &cluster->node[i == RANKS - 1];
		struct trainer *t = &trainer[i];
		float w[LONGEST];

		trainer_connect(t, tcp ? n->tcp_address : n->unix_address);
		EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
		for (uint32_t k = 0; t->created && k < TENSORS; k++) {
			for (uint64_t e = 0; e < numel(k); e++)
				w[e] = (float)(e % 32) * 0.5f;
			EXPECT(SHARD_OK,
			       shard_write(t->model, SHARD_MASTER, k, 0, numel(k), SHARD_F32, w));
		}
		if (t->created)
			EXPECT(SHARD_OK, shard_seal(t->model, 0));
	}
	for (uint32_t i = 0; i + 1 < RANKS; i++)
		EXPECT(SHARD_TIMEOUT,
		       shard_join(trainer[i].model, (int32_t)i, 0, &trainer[i].world));
	for (uint32_t i = RANKS; i-- > 0;)
		EXPECT(SHARD_OK,
		       shard_join(trainer[i].model, (int32_t)i, pace_ms(20000), &trainer[i].world));
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(trainer[i].world.rank, i);
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

/* One thread has all ranks, and what one of them still has to send leaves in its own calls. */
static void result(int of, struct shard_result *r)
{
	const uint64_t until_ns = clock_ns() + pace_ms(20000) * NS_PER_MS;
	enum shard_status st;

	while ((st = shard_result(trainer[of].model, 0, 20, r)) == SHARD_TIMEOUT &&
	       clock_ns() < until_ns)
		for (int i = 0; i < RANKS; i++)
			EXPECT(SHARD_OK, shard_progress(trainer[i].client));
	EXPECT(SHARD_OK, st);
}

static void finish(enum shard_outcome want)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	for (int i = 0; i < RANKS; i++)
		EXPECT(SHARD_OK, shard_commit(trainer[i].model, NULL));
	for (int i = 0; i < RANKS; i++) {
		result(i, &r);
		assert_int_equal(r.outcome, want);
	}
}

/* The sum that the GPUs of node a have made, and the gradient of rank 3. */
static void gradient(float *to, uint64_t step, uint32_t node, uint32_t tensor, uint32_t micro)
{
	struct rng r = {((step * 2 + node) * TENSORS + tensor) * 8 + micro};

	for (uint64_t e = 0; e < numel(tensor); e++)
		to[e] = (float)(rng_unit(&r) - 0.5);
}

static void share_of(uint32_t rank, uint32_t tensor, uint64_t *first, uint64_t *count)
{
	uint64_t from = 0;

	for (int i = 0; i < HERE; i++) {
		if (shares[tensor][i].rank == rank) {
			*first = from;
			*count = shares[tensor][i].end - from;
		}
		from = shares[tensor][i].end;
	}
}

/* Whatever the arena had is gone. */
static void spoil(uint32_t rank, uint32_t tensor)
{
	uint16_t *at = shard_grad(trainer[rank].model, tensor);

	assert_non_null(at);
	memset(at, 0xff, numel(tensor) * sizeof(*at));
}

static void push(uint32_t rank, uint32_t tensor, uint64_t first, uint64_t count, const float *src,
		 uint32_t flags)
{
	EXPECT(SHARD_OK,
	       shard_push(trainer[rank].model, tensor, first, count, src ? src + first : NULL,
			  src ? SHARD_F32 : SHARD_BF16, flags | SHARD_CAST, NULL));
}

/* One micro-step of one tensor, by all ranks. */
static void push_tensor(enum how how, uint64_t step, uint32_t tensor, uint32_t micro,
			uint32_t flags)
{
	static float sum[LONGEST], other[LONGEST];
	uint64_t first = 0, count = 0;

	gradient(sum, step, 0, tensor, micro);
	gradient(other, step, 1, tensor, micro);
	push(RANKS - 1, tensor, 0, numel(tensor), other, flags);
	for (uint32_t rank = 0; rank < HERE; rank++) {
		if (how == WHOLE && rank == 0)
			push(rank, tensor, 0, numel(tensor), sum, flags);
		else if (how == WHOLE)
			EXPECT(SHARD_OK, shard_push_none(trainer[rank].model, tensor));
		if (how == WHOLE)
			continue;
		share_of(rank, tensor, &first, &count);
		if (micro == 0)
			spoil(rank, tensor);
		push(rank, tensor, first, count, count > 0 ? sum : NULL, flags | SHARD_SHARE);
	}
}

static void train(enum how how, bool tcp, const char *settings, uint32_t micro_steps,
		  float master[TENSORS][LONGEST])
{
	begin_training(tcp, settings);
	for (uint64_t step = 1; step <= STEPS; step++) {
		begin(micro_steps);
		for (uint32_t micro = 0; micro < micro_steps; micro++)
			for (uint32_t k = TENSORS; k-- > 0;)
				if (k != FIXED)
					push_tensor(how, step, k, micro,
						    micro_steps > 1 ? SHARD_ADD : 0);
		finish(SHARD_APPLIED);
	}
	for (uint32_t k = 0; k < TENSORS; k++) {
		uint64_t step = STEPS;

		EXPECT(SHARD_OK, shard_read(trainer[0].model, SHARD_MASTER, k, 0, numel(k),
					    SHARD_F32, master[k], &step));
	}
	end_training();
}

static void compare(bool tcp, const char *settings, uint32_t micro_steps)
{
	static float in_shares[TENSORS][LONGEST], whole[TENSORS][LONGEST];

	train(IN_SHARES, tcp, settings, micro_steps, in_shares);
	train(WHOLE, tcp, settings, micro_steps, whole);
	for (uint32_t k = 0; k < TENSORS; k++)
		for (uint64_t e = 0; e < numel(k); e++)
			if (memcmp(&in_shares[k][e], &whole[k][e], sizeof(float)) != 0)
				fail_msg("%s[%lu] is %a in shares, and %a as a whole",
					 tensors[k].name, (unsigned long)e, (double)in_shares[k][e],
					 (double)whole[k][e]);
	assert_true(in_shares[A][5] != 2.5f); /* It was trained. */
}

static void plain(void **state)
{
	compare(*state != NULL, "optimizer=adamw lr=1e-2 clip=0.5", 1);
}

static void coded(void **state)
{
	compare(*state != NULL, "optimizer=adamw lr=1e-2 grad_codec=int4 image_codec=int8", 1);
}

static void divided(void **state)
{
	compare(*state != NULL, "optimizer=sgd lr=1 momentum=0.9 predivide=3", 1);
}

static void stale(void **state)
{
	compare(*state != NULL, "optimizer=adamw lr=1e-2 max_staleness=1", 1);
}

static void accumulated(void **state)
{
	compare(*state != NULL, "optimizer=sgd lr=1", 3);
}

/* --- what does not fit --- */

/* Rank r pushes elements first to end of "a" as its share, and all other tensors are left out. */
static void push_a(uint32_t rank, uint64_t first, uint64_t end, uint32_t flags)
{
	static const float zero[LONGEST];

	push(rank, A, first, end - first, zero, flags);
}

static void rest(uint32_t rank, uint32_t but)
{
	for (uint32_t k = 0; k < TENSORS; k++)
		if (k != but && k != FIXED)
			EXPECT(SHARD_OK, shard_push_none(trainer[rank].model, k));
}

/* All ranks of the attempt hear that it is over, and why, and may begin it again. */
static void differs(const char *why)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	for (uint32_t i = 0; i < RANKS; i++) {
		enum shard_status st = shard_commit(trainer[i].model, NULL);

		assert_true(st == SHARD_OK || st == SHARD_WORLD_CHANGED);
		EXPECT(SHARD_MISMATCH, shard_result(trainer[i].model, 0, pace_ms(20000), &r));
		EXPECT_TEXT(why);
		EXPECT(SHARD_OK, shard_world_get(trainer[i].model, &trainer[i].world));
		assert_int_equal(trainer[i].world.step, 1);
	}
}

static void unfit(void **state)
{
	(void)state;
	begin_training(false, "optimizer=sgd lr=1");
	begin(1);
	rest(3, TENSORS);
	for (uint32_t i = 0; i < HERE; i++)
		rest(i, A);
	push_a(0, 0, 1000, SHARD_SHARE);
	push_a(1, 990, 2000, SHARD_SHARE);
	push_a(2, 2000, 3000, SHARD_SHARE);
	differs("elements 990 to 999 of \"a\" are in the shares of ranks 0 and 1: those of a node "
		"must not overlap");
	begin(1);
	rest(3, TENSORS);
	for (uint32_t i = 0; i < HERE; i++)
		rest(i, A);
	push_a(0, 0, 1500, SHARD_SHARE);
	push_a(1, 0, 0, SHARD_SHARE);
	push_a(2, 1701, 3000, SHARD_SHARE);
	differs("elements 1500 to 1700 of \"a\" are in the share of no rank of this node: together "
		"its "
		"ranks push all of it");
	begin(1);
	rest(3, TENSORS);
	for (uint32_t i = 0; i < HERE; i++)
		rest(i, A);
	push_a(0, 0, 1500, SHARD_SHARE);
	push_a(1, 0, 3000, 0);
	push_a(2, 1500, 3000, SHARD_SHARE);
	differs("\"a\" was pushed with SHARD_SHARE by rank ");
	EXPECT_TEXT("and without it by rank 1: all ranks of a node pass it, or none");
	/* With empty shares alone it is a hole, and with none of them nobody has a gradient. */
	begin(1);
	rest(3, TENSORS);
	rest(0, TENSORS);
	for (uint32_t i = 1; i < HERE; i++) {
		rest(i, A);
		push_a(i, 0, 0, SHARD_SHARE);
	}
	differs("of \"a\" are in the share of no rank of this node");
	/* A node of one rank has it all. */
	begin(1);
	for (uint32_t i = 0; i < HERE; i++)
		rest(i, TENSORS);
	rest(3, A);
	push_a(3, 10, 3000, SHARD_SHARE);
	differs("elements 0 to 9 of \"a\" are in the share of no rank of this node");
	/* The same step can still be made. Rank 1 has no share, and says that it has no gradient.
	 */
	begin(1);
	rest(3, TENSORS);
	for (uint32_t i = 0; i < HERE; i++)
		rest(i, i == 1 ? TENSORS : A);
	push_a(2, 0, 700, SHARD_SHARE);
	push_a(0, 700, 3000, SHARD_SHARE);
	finish(SHARD_APPLIED);
	end_training();
}

/* A vote to skip leaves shares out, and the step is skipped for it. */
static void voted(void **state)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	begin_training(*state != NULL, "optimizer=sgd lr=1");
	begin(1);
	for (uint32_t i = 0; i < HERE; i++)
		spoil(i, A);
	push_a(0, 0, 1500, SHARD_SHARE);
	push_a(2, 2500, 3000, SHARD_SHARE);
	rest(0, A), rest(2, A), rest(3, TENSORS);
	EXPECT(SHARD_OK, shard_vote_skip(trainer[1].model, "a try"));
	for (uint32_t i = 0; i < RANKS; i++) {
		if (i != 1)
			EXPECT(SHARD_OK, shard_commit(trainer[i].model, NULL));
	}
	for (uint32_t i = 0; i < RANKS; i++) {
		EXPECT(SHARD_OK, shard_result(trainer[i].model, 0, pace_ms(20000), &r));
		assert_int_equal(r.outcome, SHARD_SKIPPED_VOTE);
	}
	end_training();
}

/* Whose share is not finite is named, though the sum has no operands. */
static void blamed(void **state)
{
	float bad[LONGEST] = {0};
	struct shard_result r = SHARD_INIT(struct shard_result);

	begin_training(*state != NULL, "optimizer=sgd lr=1");
	for (uint32_t rank = 0; rank < HERE; rank++) {
		uint64_t first = 1010 * rank, end = rank + 1 < HERE ? first + 1010 : 3000;

		begin(1);
		rest(3, TENSORS);
		for (uint32_t i = 0; i < HERE; i++)
			rest(i, A);
		bad[first] = INFINITY;
		for (uint32_t i = 0; i < HERE; i++)
			push(i, A, 1010 * i, (i + 1 < HERE ? 1010 * (i + 1) : 3000) - 1010 * i, bad,
			     SHARD_SHARE);
		bad[first] = 0;
		assert_true(first < end);
		finish(SHARD_SKIPPED_NONFINITE);
		EXPECT(SHARD_OK, shard_result(trainer[3].model, 0, 0, &r));
		assert_int_equal(r.bad_tensor, A);
		assert_int_equal(r.bad_rank, rank);
	}
	end_training();
}

/* --- what the library refuses --- */

/* A step has two micro-steps. Nothing of a tensor is pushed with SHARD_SHARE in one of them, and
 * without it in the other. */
static void later_shares(shard_model *m)
{
	const uint32_t share = SHARD_SHARE | SHARD_ADD;

	EXPECT(SHARD_OK, shard_push(m, B, 0, 64, NULL, SHARD_BF16, SHARD_ADD, NULL));
	EXPECT(SHARD_DUPLICATE, shard_push(m, B, 0, 64, NULL, SHARD_BF16, share, NULL));
	EXPECT_TEXT("pushed without SHARD_SHARE in an earlier micro-step: all pass it, or none");
	EXPECT(SHARD_DUPLICATE, shard_push(m, B, 0, 10, NULL, SHARD_BF16, share, NULL));
	EXPECT(SHARD_DUPLICATE, shard_push(m, B, 0, 0, NULL, SHARD_BF16, share, NULL));
	EXPECT_TEXT("pushed without SHARD_SHARE in an earlier micro-step: all pass it, or none");
	EXPECT(SHARD_OK, shard_push(m, B, 0, 64, NULL, SHARD_BF16, SHARD_ADD, NULL));
	EXPECT(SHARD_OK, shard_push(m, N, 0, 0, NULL, SHARD_BF16, share, NULL));
	EXPECT(SHARD_BAD_ARG, shard_push(m, N, 0, 2048, NULL, SHARD_BF16, SHARD_ADD, NULL));
	EXPECT_TEXT("without SHARD_SHARE, of which a share was pushed in this step: pass it");
}

static void refused(void **state)
{
	shard_model *m;

	(void)state;
	begin_training(false, "optimizer=sgd lr=1");
	begin(1);
	m = trainer[0].model;
	EXPECT(SHARD_RANGE, shard_push(m, A, 2990, 11, NULL, SHARD_BF16, SHARD_SHARE, NULL));
	EXPECT(SHARD_RANGE, shard_push(m, TENSORS, 0, 0, NULL, SHARD_BF16, SHARD_SHARE, NULL));
	EXPECT(SHARD_BAD_ARG, shard_push(m, FIXED, 0, 0, NULL, SHARD_BF16, SHARD_SHARE, NULL));
	EXPECT(SHARD_RANGE, shard_push(m, A, 0, 0, NULL, SHARD_BF16, 0, NULL));
	EXPECT(SHARD_BAD_ARG, shard_push(m, A, 0, 1, NULL, SHARD_BF16, 16, NULL));
	EXPECT(SHARD_MISSING, shard_commit(m, NULL));
	push_a(0, 10, 20, SHARD_SHARE);
	EXPECT(SHARD_DUPLICATE, shard_push(m, A, 20, 10, NULL, SHARD_BF16, SHARD_SHARE, NULL));
	EXPECT_TEXT("this rank's share in this step is 10 elements from 10 on");
	EXPECT(SHARD_BAD_ARG, shard_push(m, A, 20, 10, NULL, SHARD_BF16, 0, NULL));
	EXPECT_TEXT("without SHARD_SHARE, of which a share was pushed in this step: pass it");
	EXPECT(SHARD_DUPLICATE, shard_push_none(m, A));
	EXPECT(SHARD_DUPLICATE, shard_push_none_range(m, A, 30, 10));
	EXPECT(SHARD_OK, shard_push(m, B, 1, 1, NULL, SHARD_BF16, 0, NULL));
	EXPECT(SHARD_DUPLICATE, shard_push(m, B, 2, 1, NULL, SHARD_BF16, SHARD_SHARE, NULL));
	EXPECT_TEXT("1 of 64 elements were pushed without SHARD_SHARE already");
	EXPECT(SHARD_OK, shard_abandon(m, "enough"));
	for (uint32_t i = 1; i < RANKS; i++)
		EXPECT(SHARD_OK, shard_abandon(trainer[i].model, "too"));
	begin(2);
	push_a(0, 10, 20, SHARD_SHARE | SHARD_ADD);
	EXPECT(SHARD_BAD_ARG, shard_push(m, A, 10, 10, NULL, SHARD_BF16, SHARD_SHARE, NULL));
	EXPECT(SHARD_BAD_ARG, shard_push(m, A, 10, 10, NULL, SHARD_BF16, SHARD_ADD, NULL));
	EXPECT(SHARD_DUPLICATE,
	       shard_push(m, A, 10, 11, NULL, SHARD_BF16, SHARD_SHARE | SHARD_ADD, NULL));
	push_a(0, 10, 20, SHARD_SHARE | SHARD_ADD);
	EXPECT(SHARD_DUPLICATE,
	       shard_push(m, A, 10, 10, NULL, SHARD_BF16, SHARD_SHARE | SHARD_ADD, NULL));
	EXPECT_TEXT("pushed in all 2 micro-steps already");
	later_shares(m);
	end_training();
}

static void with_an_older_daemon(void **state)
{
	static const float zero[LONGEST];
	struct shard_begin_opts b = SHARD_INIT(struct shard_begin_opts);
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	struct trainer t;

	(void)state;
	cluster = cluster_make(1, NULL, NULL);
	cluster->daemon = OLDER;
	cluster_up(cluster);
	trainer_connect(&t, cluster->node[0].unix_address);
	s.name = "m";
	s.tensors = tensors;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_BF16;
	s.settings = "optimizer=sgd lr=1 min_world=1 max_world=1";
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	EXPECT(SHARD_OK, shard_write(t.model, SHARD_MASTER, A, 0, LONGEST, SHARD_F32, zero));
	EXPECT(SHARD_OK, shard_seal(t.model, 0));
	t.world = SHARD_INIT(struct shard_world);
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(20000), &t.world));
	t.step = SHARD_INIT(struct shard_step);
	EXPECT(SHARD_OK, shard_begin(t.model, &b, &t.step));
	EXPECT(SHARD_UNSUPPORTED,
	       shard_push(t.model, A, 0, LONGEST, NULL, SHARD_BF16, SHARD_SHARE, NULL));
	EXPECT_TEXT("with SHARD_SHARE, which the release of shardd at ");
	trainer_end(&t);
	cluster_done(&cluster);
}

#define OVER(fn)                                                                                   \
	{#fn " unix", fn, NULL, put_away, NULL},                                                   \
	{                                                                                          \
#fn " tcp", fn, NULL, put_away, (void *)1                                          \
	}
#define ONE(fn)                                                                                    \
	{                                                                                          \
#fn, fn, NULL, put_away, NULL                                                      \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER(plain), OVER(coded), OVER(divided), OVER(stale),  OVER(accumulated),
		ONE(unfit),  OVER(voted), OVER(blamed),  ONE(refused), ONE(with_an_older_daemon)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
