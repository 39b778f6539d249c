// SPDX-License-Identifier: Apache-2.0
/* Tests steps against a scripted daemon whose optimizer is weight -= gradient: what reaches the
 * daemon, what comes back, and what the library refuses itself. The ends of attempts are in
 * test_client_world.c. */
#include "base/check.h"
#include "base/clock.h"
#include "client/client.h"
#include "lib/fakeserver.h"
#include "lib/pace.h"
#include "lib/trainer.h"
#include "wire/dtype.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct fake *start(bool tcp)
{
	struct fake_conf conf = {.tcp = tcp, .rank = 2, .world_size = 4};

	return fake_start(&conf);
}

/* Five steps give the weights of the optimizer in each type. After a leave the trainer can join
 * again. */
static void test_steps(void **state)
{
	static const enum shard_dtype dtypes[] = {SHARD_F32, SHARD_BF16, SHARD_F16};

	for (size_t d = 0; d < 3; d++) {
		struct fake *f = start(*state != NULL);
		struct shard_result r = SHARD_INIT(struct shard_result);
		shard_ticket ticket, before;
		struct trainer t;

		trainer_join(&t, f->address, dtypes[d], dtypes[d]);
		assert_int_equal(t.world.rank, 2);
		assert_int_equal(t.world.world_size, 4);
		assert_int_equal(t.world.step, 1);
		assert_int_equal(t.world.term, FAKE_TERM);
		assert_string_equal(t.world.why, "");
		for (uint64_t step = 1; step <= 5; step++) {
			trainer_begin(&t);
			assert_int_equal(t.step.step, step);
			assert_int_equal(t.step.attempt, 1);
			assert_int_equal(t.step.rank, 2);
			assert_true(t.step.loss_scale == 8);
			trainer_check_image(&t, dtypes[d], (float)(step - 1));
			trainer_push_all(&t, 1);
			EXPECT(SHARD_OK, shard_commit(t.model, &ticket));
			if (step > 1)
				assert_int_equal(ticket, before + TRAINER_TENSORS + 1);
			before = ticket;
			EXPECT(SHARD_OK,
			       shard_result(t.model, step % 2 ? ticket : 0, SHARD_DEFAULT, &r));
			assert_int_equal(r.outcome, SHARD_APPLIED);
			assert_int_equal(r.step, step);
			assert_int_equal(r.attempts, 1);
			assert_int_equal(r.pushed_bytes,
					 (3000 + 7 + 2500 + 1) * dtype_bytes(dtypes[d]));
			assert_true(r.pulled_bytes > 5508 * dtype_bytes(dtypes[d]) &&
				    r.weight_sum == 1);
			EXPECT(SHARD_OK, shard_test(t.model, ticket));
			EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
			assert_int_equal(t.world.step, step + 1);
		}
		EXPECT(SHARD_OK, shard_leave(t.model, SHARD_DEFAULT));
		assert_null(shard_image(t.model, 0));
		assert_null(shard_grad(t.model, 0));
		EXPECT(SHARD_OK, shard_join(t.model, 0, SHARD_DEFAULT, &t.world));
		trainer_begin(&t);
		trainer_check_image(&t, dtypes[d], 5);
		pthread_mutex_lock(&t.client->lock);
		/* Every byte of a tensor was read directly to its place. */
		assert_int_equal(stream_stats(t.client->stream)->copied_bytes, 0);
		pthread_mutex_unlock(&t.client->lock);
		trainer_end(&t);
		fake_stop(f);
	}
}

/* Gradients may be pushed in place or from other memory, in parts, with a cast, or not at all. */
static void test_push_ways(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_begin_opts o = SHARD_INIT(struct shard_begin_opts);
	float ones[3000];
	uint16_t *arena;
	shard_ticket ticket = 0;
	struct trainer t;

	for (int i = 0; i < 3000; i++)
		ones[i] = 1;
	trainer_join(&t, f->address, SHARD_F32, SHARD_BF16);
	o.weight = 16;
	EXPECT(SHARD_OK, shard_begin(t.model, &o, &t.step));
	arena = shard_grad(t.model, 0);
	assert_int_equal((uintptr_t)arena % 128, 0);
	for (int i = 0; i < 3000; i++)
		arena[i] = dtype_to_bf16(2);
	/* Pushes tensor 0 in place, in three parts. */
	EXPECT(SHARD_OK, shard_push(t.model, 0, 1000, 2000, NULL, SHARD_BF16, 0, &ticket));
	assert_int_equal(ticket, 1);
	EXPECT(SHARD_OK, shard_push(t.model, 0, 0, 500, NULL, SHARD_BF16, 0, NULL));
	/* A pointer to the place in the arena means the same as NULL. */
	EXPECT(SHARD_OK, shard_push(t.model, 0, 500, 500, arena + 500, SHARD_BF16, 0, NULL));
	EXPECT(SHARD_OK, shard_push_none(t.model, 1));
	EXPECT(SHARD_OK, shard_push(t.model, 2, 0, 2500, ones, SHARD_F32, SHARD_CAST, NULL));
	EXPECT(SHARD_OK, shard_push(t.model, 3, 0, 1, ones, SHARD_F32, SHARD_CAST, NULL));
	EXPECT(SHARD_OK, shard_commit(t.model, &ticket));
	assert_int_equal(ticket, 2);
	EXPECT(SHARD_OK, shard_result(t.model, ticket, SHARD_DEFAULT, &r));
	assert_true(r.weight_sum == 16);
	assert_int_equal(r.pushed_bytes, 2 * (3000 + 2500 + 1));
	trainer_begin(&t);
	assert_true(trainer_image_at(&t, SHARD_F32, 0, 2999) == trainer_weight(0, 2999) - 2);
	assert_true(trainer_image_at(&t, SHARD_F32, 0, 0) == trainer_weight(0, 0) - 2);
	assert_true(trainer_image_at(&t, SHARD_F32, 1, 3) == trainer_weight(1, 3));
	assert_true(trainer_image_at(&t, SHARD_F32, 2, 2499) == trainer_weight(2, 2499) - 1);
	trainer_end(&t);
	fake_stop(f);
}

/* Calls in the wrong order or with bad options are refused, and the text says what is missing. */
static void test_misuse(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_begin_opts o = SHARD_INIT(struct shard_begin_opts);
	double lr = 1;
	float g[3000] = {0};
	shard_ticket ticket;
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_BAD_STATE, shard_begin(t.model, NULL, &t.step));
	EXPECT_TEXT("shard_join() first");
	EXPECT(SHARD_BAD_STATE, shard_push(t.model, 0, 0, 1, g, SHARD_BF16, 0, &ticket));
	EXPECT(SHARD_BAD_STATE, shard_commit(t.model, &ticket));
	EXPECT(SHARD_BAD_STATE, shard_leave(t.model, 100));
	EXPECT(SHARD_BAD_STATE, shard_pull(t.model, 0, 0, 1, 0, NULL, SHARD_F32, &ticket));
	EXPECT(SHARD_BAD_STATE, shard_world_get(t.model, &t.world));
	EXPECT(SHARD_BAD_STATE, shard_result(t.model, 0, 0, &r));
	assert_null(shard_grad(t.model, 0));
	EXPECT(SHARD_OK, shard_join(t.model, -1, SHARD_DEFAULT, &t.world));
	EXPECT(SHARD_BAD_STATE, shard_join(t.model, -1, SHARD_DEFAULT, &t.world));
	EXPECT_TEXT("joined already, as rank 2");
	EXPECT(SHARD_BAD_STATE, shard_push(t.model, 0, 0, 1, g, SHARD_BF16, 0, &ticket));
	EXPECT_TEXT("shard_begin() first");
	o.lr = &lr;
	lr = -1;
	EXPECT(SHARD_BAD_ARG, shard_begin(t.model, &o, &t.step));
	EXPECT_TEXT("lr[0] is -1");
	o.lr = NULL;
	o.weight = -1;
	EXPECT(SHARD_BAD_ARG, shard_begin(t.model, &o, &t.step));
	t.step.size = 0;
	EXPECT(SHARD_BAD_ARG, shard_begin(t.model, NULL, &t.step));
	t.step.size = sizeof(t.step);
	trainer_end(&t);
	fake_stop(f);
}

/* Pushes with a wrong range, type or moment are refused, and so is an incomplete commit. */
static void test_bad_pushes(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	float g[3000] = {0};
	shard_ticket ticket;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	EXPECT(SHARD_BAD_STATE, shard_begin(t.model, NULL, &t.step));
	EXPECT_TEXT("step 1 of \"gpt\" is begun already");
	EXPECT(SHARD_RANGE, shard_push(t.model, 4, 0, 1, g, SHARD_BF16, 0, &ticket));
	EXPECT(SHARD_RANGE, shard_push(t.model, 0, 2999, 2, g, SHARD_BF16, 0, &ticket));
	assert_string_equal(shard_error(),
			    "push of \"wte\": first 2999, count 2, but it has 3000 elements");
	EXPECT(SHARD_RANGE, shard_push(t.model, 0, 0, 0, g, SHARD_BF16, 0, &ticket));
	EXPECT(SHARD_RANGE, shard_push(t.model, 0, UINT64_MAX, 2, g, SHARD_BF16, 0, &ticket));
	EXPECT(SHARD_DTYPE, shard_push(t.model, 0, 0, 1, g, SHARD_F32, 0, &ticket));
	assert_string_equal(shard_error(), "push of \"wte\": fp32 is given, gradients of \"gpt\" "
					   "are bf16: convert, or pass SHARD_CAST");
	EXPECT(SHARD_DTYPE, shard_push(t.model, 0, 0, 1, NULL, SHARD_F32, SHARD_CAST, &ticket));
	EXPECT(SHARD_BAD_ARG, shard_push(t.model, 0, 0, 1, g, SHARD_BF16, 64, &ticket));
	EXPECT(SHARD_OK, shard_push(t.model, 0, 100, 100, g, SHARD_F32, SHARD_CAST, &ticket));
	EXPECT(SHARD_DUPLICATE, shard_push(t.model, 0, 50, 100, g, SHARD_F32, SHARD_CAST, &ticket));
	assert_string_equal(
		shard_error(),
		"push of \"wte\": elements 100 to 149 were pushed already in this step");
	EXPECT(SHARD_DUPLICATE, shard_push_none(t.model, 0));
	EXPECT(SHARD_OK, shard_push_none(t.model, 1));
	EXPECT(SHARD_DUPLICATE, shard_push_none(t.model, 1));
	EXPECT(SHARD_DUPLICATE, shard_push(t.model, 1, 0, 7, g, SHARD_F32, SHARD_CAST, &ticket));
	EXPECT(SHARD_MISSING, shard_commit(t.model, &ticket));
	assert_string_equal(shard_error(), "3 of 4 tensors were not pushed: wte (100 of 3000 "
					   "elements), h.0.attn.weight, ln_f.weight: "
					   "push them, or shard_push_none()");
	EXPECT(SHARD_BAD_STATE, shard_leave(t.model, 100));
	EXPECT(SHARD_BAD_STATE, shard_result(t.model, 0, 0, &r));
	EXPECT(SHARD_BAD_ARG, shard_result(t.model, 99, 0, &r));
	EXPECT(SHARD_BAD_ARG, shard_wait(t.model, 99, 0));
	EXPECT(SHARD_BAD_ARG, shard_test(t.model, 99));
	/* After a failed commit the step can still be completed. */
	EXPECT(SHARD_OK, shard_push(t.model, 0, 0, 100, g, SHARD_F32, SHARD_CAST, &ticket));
	EXPECT(SHARD_OK, shard_push(t.model, 0, 200, 2800, g, SHARD_F32, SHARD_CAST, &ticket));
	EXPECT(SHARD_OK, shard_push(t.model, 2, 0, 2500, g, SHARD_F32, SHARD_CAST, &ticket));
	EXPECT(SHARD_OK, shard_push_none(t.model, 3));
	EXPECT(SHARD_OK, shard_commit(t.model, &ticket));
	EXPECT(SHARD_OK, shard_result(t.model, ticket, SHARD_DEFAULT, &r));
	EXPECT(SHARD_STALE, shard_push(t.model, 0, 0, 1, g, SHARD_F32, SHARD_CAST, &ticket));
	EXPECT_TEXT("step 1 is decided");
	trainer_end(&t);
	fake_stop(f);
}

/* After a commit no push is possible. A wait for the result says which rank is waited for. */
static void test_late_push(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;
	float g = 0;
	struct trainer t;

	fake_lock(f);
	f->knobs.mute[OP_READY] = true;
	fake_unlock(f);
	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, &ticket));
	EXPECT(SHARD_BAD_STATE, shard_push(t.model, 3, 0, 1, &g, SHARD_F32, SHARD_CAST, NULL));
	EXPECT_TEXT("committed already");
	EXPECT(SHARD_BAD_STATE, shard_commit(t.model, &ticket));
	EXPECT(SHARD_AGAIN, shard_test(t.model, ticket));
	EXPECT(SHARD_TIMEOUT, shard_result(t.model, ticket, 0, &r));
	assert_string_equal(shard_error(), "step 1 attempt 1 of \"gpt\" is undecided");
	fake_lock(f);
	f->knobs.waits = "rank 2 (pid 4411, node b): 14 of 96 chunks pushed";
	fake_unlock(f);
	EXPECT(SHARD_TIMEOUT, shard_result(t.model, ticket, 300, &r));
	EXPECT_TEXT_AROUND("step 1 attempt 1 of \"gpt\" waits ",
			   " s for rank 2 (pid 4411, node b): 14 of 96 chunks pushed");
	EXPECT(SHARD_TIMEOUT, shard_wait(t.model, ticket, 100));
	EXPECT_TEXT("a commit, is not done");
	fake_await(f, OP_READY, 1);
	fake_result(f);
	EXPECT(SHARD_OK, shard_wait(t.model, ticket, pace_ms(10000)));
	EXPECT(SHARD_OK, shard_result(t.model, ticket, 0, &r));
	trainer_end(&t);
	fake_stop(f);
}

/* A step that is skipped, by vote or for numbers that are not finite, leaves the weights as they
 * were. */
static void test_skip_votes(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	float g[3000] = {0};
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	/* A vote to skip does not need the other elements. */
	EXPECT(SHARD_OK, shard_push(t.model, 0, 0, 1500, g, SHARD_F32, SHARD_CAST, NULL));
	EXPECT(SHARD_OK, shard_vote_skip(t.model, "loss is\n1e9"));
	EXPECT(SHARD_OK, shard_result(t.model, 0, SHARD_DEFAULT, &r));
	assert_int_equal(r.outcome, SHARD_SKIPPED_VOTE);
	fake_lock(f);
	assert_string_equal(f->ready_why, "loss is 1e9");
	f->knobs.skip_nonfinite = true;
	fake_unlock(f);
	trainer_begin(&t);
	assert_int_equal(t.step.step, 2);
	trainer_check_image(&t, SHARD_BF16, 0);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	EXPECT(SHARD_OK, shard_result(t.model, 0, SHARD_DEFAULT, &r));
	assert_int_equal(r.outcome, SHARD_SKIPPED_NONFINITE);
	assert_true(r.next_loss_scale == 4);
	trainer_begin(&t);
	trainer_check_image(&t, SHARD_BF16, 0);
	fake_lock(f);
	f->knobs.diverged = true;
	fake_unlock(f);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	EXPECT(SHARD_DIVERGED, shard_result(t.model, 0, SHARD_DEFAULT, &r));
	assert_int_equal(r.step, 3);
	trainer_end(&t);
	fake_stop(f);
}

/* A pull of a step that is not there yet is completed when the step is committed. At most 1024
 * pulls wait. */
static void test_pull(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	float whole[3000], part[10];
	shard_ticket t0, t1, t2;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	EXPECT(SHARD_OK, shard_pull(t.model, 0, 0, 3000, 0, whole, SHARD_F32, &t0));
	EXPECT(SHARD_OK, shard_wait(t.model, t0, 0));
	assert_true(whole[2999] == trainer_weight(0, 2999));
	EXPECT(SHARD_OK, shard_pull(t.model, 2, 0, 2500, 1, NULL, SHARD_F32, &t1));
	EXPECT(SHARD_OK, shard_pull(t.model, 2, 2490, 10, 1, part, SHARD_F32, &t2));
	assert_int_equal(t2, t0 + 2);
	EXPECT(SHARD_AGAIN, shard_test(t.model, t1));
	EXPECT(SHARD_TIMEOUT, shard_wait(t.model, t2, 50));
	EXPECT_TEXT("\"h.0.attn.weight\": chunk 3 of the image is not of step 1 yet");
	EXPECT(SHARD_RANGE, shard_pull(t.model, 2, 2490, 11, 1, part, SHARD_F32, &t2));
	EXPECT(SHARD_BAD_ARG, shard_pull(t.model, 2, 2490, 10, 1, part, (enum shard_dtype)0, &t2));
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	EXPECT(SHARD_OK, shard_wait(t.model, t2, SHARD_DEFAULT));
	EXPECT(SHARD_OK, shard_test(t.model, t1));
	for (int i = 0; i < 10; i++)
		assert_true(part[i] == trainer_weight(2, 2490 + (uint64_t)i) - 1);
	EXPECT(SHARD_OK, shard_result(t.model, 0, SHARD_DEFAULT, &r));
	for (int i = 0; i < 1024; i++)
		EXPECT(SHARD_OK, shard_pull(t.model, 0, 0, 1, 99, NULL, SHARD_F32, &t0));
	EXPECT(SHARD_AGAIN, shard_pull(t.model, 0, 0, 1, 99, NULL, SHARD_F32, &t0));
	trainer_end(&t);
	fake_stop(f);
}

/* A program with an event loop of its own can wait for shard_fd(). */
static void test_fd(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct pollfd p;
	shard_ticket ticket;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, &ticket));
	p = (struct pollfd){.fd = shard_fd(t.client), .events = POLLIN};
	while (shard_test(t.model, ticket) == SHARD_AGAIN) { /* As an event loop would do. */
		assert_int_equal(poll(&p, 1, pace_ms(10000)), 1);
		EXPECT(SHARD_OK, shard_progress(t.client));
	}
	EXPECT(SHARD_OK, shard_result(t.model, ticket, 0, &r));
	do {
		EXPECT(SHARD_OK, shard_progress(t.client));
	} while (poll(&p, 1, 50) == 1); /* In the end nothing is left to read. */
	trainer_end(&t);
	fake_stop(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER_BOTH(test_steps),      OVER_BOTH(test_push_ways), OVER_BOTH(test_misuse),
		OVER_BOTH(test_bad_pushes), OVER_BOTH(test_late_push), OVER_BOTH(test_skip_votes),
		OVER_BOTH(test_pull),       OVER_BOTH(test_fd),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
