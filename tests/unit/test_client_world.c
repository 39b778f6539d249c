// SPDX-License-Identifier: Apache-2.0
/* Tests joining, and each way in which an attempt, a model or a connection can end, as the caller
 * sees it. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/fakeserver_impl.h"
#include "lib/pace.h"
#include "lib/trainer.h"
#include "wire/dtype.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <poll.h>
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

/* With timeouts of 0.8 s. */
static struct fake *start_short(bool tcp)
{
	struct fake_conf conf = {.tcp = tcp, .rank = 0, .world_size = 1, .timeout_ms = 800};

	return fake_start(&conf);
}

/* The client has handled everything that was sent so far. */
static void settle(struct fake *f, struct trainer *t, uint32_t pings)
{
	struct wire_head ping = {.op = OP_PING};

	fake_send(f, &ping, NULL);
	if (!f->conf.tcp) {
		struct pollfd p = {.fd = shard_fd(t->client), .events = POLLIN};

		while (poll(&p, 1, 20) == 1)
			EXPECT(SHARD_OK, shard_progress(t->client));
	}
	fake_await(f, OP_PONG, pings);
}

/* An attempt ends because a rank is gone. Each call says so until shard_world_get(), and the step
 * begins again in the new world. */
static void test_world_changed(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;
	float g = 0;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	fake_lock(f);
	f->knobs.mute[OP_READY] = true;
	fake_unlock(f);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, &ticket));
	fake_await(f, OP_READY, 1);
	fake_ended(f, "rank 3 (pid 712, node b) closed its socket");
	EXPECT(SHARD_WORLD_CHANGED, shard_result(t.model, ticket, SHARD_DEFAULT, &r));
	assert_string_equal(shard_error(), "rank 3 (pid 712, node b) closed its socket; step 1 is "
					   "over here: shard_world_get() says which one is next");
	EXPECT(SHARD_WORLD_CHANGED, shard_begin(t.model, NULL, &t.step));
	EXPECT(SHARD_WORLD_CHANGED, shard_push(t.model, 0, 0, 1, &g, SHARD_F32, SHARD_CAST, NULL));
	EXPECT(SHARD_WORLD_CHANGED, shard_commit(t.model, &ticket));
	/* The commit is over, although without effect. */
	EXPECT(SHARD_OK, shard_test(t.model, ticket));
	fake_lock(f);
	f->conf.rank = 1;
	f->conf.world_size = 3;
	f->knobs.mute[OP_READY] = false;
	fake_unlock(f);
	/* The next attempt has not come, so this is still the old world. */
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	assert_string_equal(t.world.why, "rank 3 (pid 712, node b) closed its socket");
	assert_int_equal(t.world.step, 1);
	fake_attempt(f, "rank 3 (pid 712, node b) closed its socket");
	/* So the next begin tells of the new world, once. */
	EXPECT(SHARD_WORLD_CHANGED, shard_begin(t.model, NULL, &t.step));
	assert_string_equal(shard_error(), "rank 3 (pid 712, node b) closed its socket; world is "
					   "now 3, this is rank 1, step 1 is next");
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	assert_int_equal(t.world.rank, 1);
	assert_int_equal(t.world.world_size, 3);
	trainer_begin(&t);
	assert_int_equal(t.step.attempt, 2);
	assert_int_equal(t.step.step, 1);
	trainer_check_image(&t, SHARD_BF16, 0); /* The ended attempt had no effect. */
	trainer_push_all(&t, 2);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	EXPECT(SHARD_OK, shard_result(t.model, 0, SHARD_DEFAULT, &r));
	assert_int_equal(r.attempts, 2);
	trainer_begin(&t);
	trainer_check_image(&t, SHARD_BF16, 2);
	trainer_end(&t);
	fake_stop(f);
}

/* A trainer that had not begun the ended attempt is told nothing, if its rank and the size of the
 * world stay the same. */
static void test_ended_unbegun(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	fake_ended(f, "rank 3 is slow");
	fake_attempt(f, "rank 3 is slow");
	settle(f, &t, 1);
	trainer_begin(&t); /* Rank and world size are the same, so there is nothing to tell. */
	assert_int_equal(t.step.attempt, 2);
	/* An ATTEMPT without an ENDED before it also ends the attempt in hand. */
	fake_attempt(f, "silently replaced");
	settle(f, &t, 2);
	EXPECT(SHARD_WORLD_CHANGED, shard_push_none(t.model, 3));
	EXPECT_TEXT("silently replaced");
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	trainer_begin(&t);
	assert_int_equal(t.step.attempt, 3);
	trainer_end(&t);
	fake_stop(f);
}

/* An abandoned attempt takes no more pushes, and the daemon is told the reason. */
static void test_abandon(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	float g = 0;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_abandon(t.model, "bad batch"));
	fake_await(f, OP_ABANDON, 1);
	assert_string_equal(f->abandon_why, "bad batch");
	EXPECT(SHARD_BAD_STATE, shard_push(t.model, 3, 0, 1, &g, SHARD_F32, SHARD_CAST, NULL));
	EXPECT_TEXT("abandoned");
	fake_ended(f, "rank 2 abandoned: bad batch");
	EXPECT(SHARD_WORLD_CHANGED, shard_result(t.model, 0, SHARD_DEFAULT, &r));
	fake_attempt(f, "rank 2 abandoned: bad batch");
	/* The trainer that abandoned knows why, and needs no shard_world_get(). */
	trainer_begin(&t);
	assert_int_equal(t.step.attempt, 2);
	trainer_end(&t);
	fake_stop(f);
}

/* A join that times out says what it waits for, and can be repeated. */
static void test_join_waits(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	fake_lock(f);
	f->knobs.waits = "3 of 4 trainers are here";
	fake_unlock(f);
	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_TIMEOUT, shard_join(t.model, -1, 200, &t.world));
	EXPECT_TEXT_AROUND("join of \"gpt\" waited ", " s: 3 of 4 trainers are here");
	/* A second call goes on waiting and sends no second JOIN. */
	EXPECT(SHARD_TIMEOUT, shard_join(t.model, -1, 100, &t.world));
	fake_attempt(f, "");
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &t.world));
	fake_lock(f);
	assert_int_equal(f->frames[OP_JOIN], 1);
	fake_unlock(f);
	trainer_end(&t);
	fake_stop(f);
}

/* Who has to write the weights is not let in before, and does not wait for itself. */
static void test_join_unsealed(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_spec s;
	struct trainer t;

	trainer_connect(&t, f->address);
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	assert_int_equal(t.created, 1);
	t.world = SHARD_INIT(struct shard_world);
	EXPECT(SHARD_BAD_STATE, shard_join(t.model, -1, SHARD_DEFAULT, &t.world));
	EXPECT_TEXT("has no weights yet");
	EXPECT_TEXT("shard_seal() first");
	fake_lock(f);
	assert_int_equal(f->frames[OP_JOIN], 0);
	fake_unlock(f);
	EXPECT(SHARD_OK, shard_seal(t.model, 0));
	fake_attempt(f, "");
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &t.world));
	trainer_end(&t);
	fake_stop(f);
}

/* A begin that times out says whether it waits for an attempt or for which chunk of an image. */
static void test_begin_waits(void **state)
{
	struct fake *f = start_short(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct trainer t;

	fake_lock(f);
	f->knobs.no_next_attempt = true;
	f->knobs.waits = "rank 0 of 1";
	fake_unlock(f);
	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	EXPECT(SHARD_OK, shard_result(t.model, 0, SHARD_DEFAULT, &r));
	EXPECT(SHARD_TIMEOUT, shard_begin(t.model, NULL, &t.step));
	EXPECT_TEXT_AROUND("begin after step 1 of \"gpt\" waited ", " s: rank 0 of 1");
	fake_lock(f);
	f->step++; /* The image of the next attempt is not there yet. */
	fake_unlock(f);
	fake_attempt(f, "");
	EXPECT(SHARD_TIMEOUT, shard_begin(t.model, NULL, &t.step));
	EXPECT_TEXT_AROUND(
		"begin of step 3 of \"gpt\" waited ",
		" s for chunk 0 of 6 of the image of step 2; shardd waits for rank 0 of 1");
	fake_lock(f);
	f->knobs.waits = NULL;
	fake_unlock(f);
	EXPECT(SHARD_TIMEOUT, shard_begin(t.model, NULL, &t.step));
	EXPECT_TEXT_AROUND("begin of step 3 of \"gpt\" waited ",
			   " s for chunk 0 of 6 of the image of step 2");
	trainer_end(&t);
	fake_stop(f);
}

/* Each call on a lost model says that and why it is lost. The connection goes on. */
static void test_lost(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	fake_lock(f);
	f->knobs.mute[OP_READY] = true;
	fake_unlock(f);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	fake_lost(f, "node b died");
	EXPECT(SHARD_LOST, shard_result(t.model, 0, SHARD_DEFAULT, &r));
	EXPECT_TEXT("\"gpt\" is lost: node b died");
	EXPECT(SHARD_LOST, shard_begin(t.model, NULL, &t.step));
	EXPECT(SHARD_LOST, shard_leave(t.model, 0));
	assert_non_null(shard_grad(t.model, 0)); /* The memory stays. */
	shard_detach(&t.model);
	EXPECT(SHARD_OK, shard_progress(t.client)); /* The connection still works. */
	trainer_end(&t);
	fake_stop(f);
}

/* The model is lost while no call is there to read of it. The next begin must not wait for an
 * attempt that cannot come. */
static void test_lost_between_calls(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct pollfd readable;
	uint64_t before;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	fake_lock(f);
	f->knobs.mute[OP_READY] = true;
	fake_unlock(f);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	fake_ended(f, "node b is out of reach");
	EXPECT(SHARD_WORLD_CHANGED, shard_result(t.model, 0, SHARD_DEFAULT, &r));
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	EXPECT(SHARD_OK, shard_progress(t.client));
	fake_lost(f, "node b died");
	readable = (struct pollfd){.fd = shard_fd(t.client), .events = POLLIN};
	assert_int_equal(poll(&readable, 1, 10000), 1);
	before = clock_ns();
	EXPECT(SHARD_LOST, shard_begin(t.model, NULL, &t.step));
	/* The model's timeout is 20 s. */
	assert_true(clock_ns() - before < pace_ns(5 * NS_PER_SEC));
	EXPECT_TEXT("\"gpt\" is lost: node b died");
	trainer_end(&t);
	fake_stop(f);
}

/* When the connection closes, a wait for a result ends at once. */
static void test_closed_in_step(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;
	uint64_t before;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	fake_lock(f);
	f->knobs.mute[OP_READY] = true;
	fake_unlock(f);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, &ticket));
	fake_close(f);
	before = clock_ns();
	EXPECT(SHARD_CLOSED, shard_result(t.model, ticket, SHARD_DEFAULT, &r));
	assert_true(clock_ns() - before < pace_ns(5 * NS_PER_SEC));
	EXPECT(SHARD_CLOSED, shard_wait(t.model, ticket, SHARD_DEFAULT));
	EXPECT(SHARD_CLOSED, shard_test(t.model, ticket));
	trainer_end(&t); /* Frees a mapping, a queue and a ticket that are still in use. */
	fake_stop(f);
}

/* After the connection closed, writes of the trainer no longer reach the memory that it shared with
 * the daemon. The pushed gradients stay as they were, because a daemon may resume with them. */
static void test_closed_arena(void **state)
{
	struct fake *f = start(false);
	struct shard_result r = SHARD_INIT(struct shard_result);
	unsigned char *before, *grad;
	shard_ticket ticket;
	struct trainer t;
	uint64_t bytes;

	(void)state;
	trainer_join(&t, f->address, SHARD_F32, SHARD_F32);
	fake_lock(f);
	f->knobs.mute[OP_READY] = true;
	fake_unlock(f);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	grad = shard_grad(t.model, 0);
	bytes = 3000 * sizeof(float);
	EXPECT(SHARD_OK, shard_commit(t.model, &ticket));
	fake_await(f, OP_READY, 1);
	fake_close(f);
	EXPECT(SHARD_CLOSED, shard_result(t.model, ticket, SHARD_DEFAULT, &r));
	before = malloc(f->arena.bytes);
	memcpy(before, f->arena.base, f->arena.bytes);
	assert_true(*(const float *)f->arena.base == 1);
	assert_true(*(const float *)(const void *)grad == 0);
	memset(grad, 9, bytes);
	assert_int_equal(grad[bytes - 1], 9);
	assert_memory_equal(f->arena.base, before, f->arena.bytes);
	free(before);
	shard_detach(&t.model);
	trainer_end(&t);
	fake_stop(f);
}

/* The result of a decided step can still be read after the connection closed. */
static void test_decided_stays(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, &ticket));
	EXPECT(SHARD_OK, shard_wait(t.model, ticket, pace_ms(10000)));
	fake_close(f);
	while (shard_progress(t.client) == SHARD_OK)
		sched_yield();
	/* The step was committed before the connection closed. */
	EXPECT(SHARD_OK, shard_result(t.model, ticket, pace_ms(10000), &r));
	assert_int_equal(r.step, 1);
	EXPECT(SHARD_OK, shard_wait(t.model, ticket, pace_ms(10000)));
	EXPECT(SHARD_CLOSED, shard_begin(t.model, NULL, &t.step));
	trainer_end(&t);
	fake_stop(f);
}

/* A detach in the middle of a step abandons it and leaves. */
static void test_detach_in_step(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	shard_detach(&t.model);
	fake_await(f, OP_ABANDON, 1);
	fake_await(f, OP_LEAVE, 1);
	EXPECT(SHARD_OK, shard_progress(t.client));
	trainer_end(&t);
	fake_stop(f);
}

/* A change of the world sends the image once more, to a trainer that may be reading it. Chunks that
 * are there must not be written again. The test sends other bytes under the same version, and must
 * not find them in the image. */
static void test_image_again(void **state)
{
	struct fake *f = start(true);
	struct trainer t;
	float before;

	(void)state;
	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	before = trainer_image_at(&t, SHARD_BF16, 2, 5);
	fake_lock(f);
	f->master[f->tensors[2].offset + 5] += 8;
	fake_publish(f);
	fake_unlock(f);
	settle(f, &t, 1);
	assert_true(trainer_image_at(&t, SHARD_BF16, 2, 5) == before);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	trainer_begin(&t); /* The next version replaces the bytes. */
	assert_true(trainer_image_at(&t, SHARD_BF16, 2, 5) == before + 8 - 1);
	trainer_end(&t);
	fake_stop(f);
}

/* The ranks divide the samples of a batch among them without gaps, in parts that differ by at most
 * one. */
static void test_samples(void **state)
{
	struct shard_world w = SHARD_INIT(struct shard_world);
	uint64_t first, count, next = 0;

	(void)state;
	w.world_size = 7;
	for (w.rank = 0; w.rank < 7; w.rank++) {
		EXPECT(SHARD_OK, shard_samples(&w, 1024, &first, &count));
		assert_int_equal(first, next);
		assert_true(count == 146 || count == 147);
		next = first + count;
	}
	assert_int_equal(next, 1024);
	EXPECT(SHARD_BAD_ARG, shard_samples(&w, 1024, &first, &count)); /* There is no rank 7. */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER_BOTH(test_world_changed),  OVER_BOTH(test_ended_unbegun),
		OVER_BOTH(test_abandon),        OVER_BOTH(test_join_waits),
		OVER_BOTH(test_join_unsealed),  OVER_BOTH(test_begin_waits),
		OVER_BOTH(test_lost),           OVER_BOTH(test_lost_between_calls),
		OVER_BOTH(test_closed_in_step), OVER_BOTH(test_detach_in_step),
		OVER_BOTH(test_decided_stays),  cmocka_unit_test(test_closed_arena),
		cmocka_unit_test(test_samples), cmocka_unit_test(test_image_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
