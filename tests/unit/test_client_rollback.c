// SPDX-License-Identifier: Apache-2.0
/* Tests how each phase of a trainer sees a model that was lost and is back from a checkpoint. The
 * call that waits, or the next one, returns SHARD_ROLLED_BACK until shard_world_get(). The step has
 * gone back, and image, tickets and blobs of the old generation do not count. */
#include "base/check.h"
#include "lib/fakeserver.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define WHY "node b was lost; restored from /ckpt/global_step1"

static struct fake *start(bool tcp)
{
	struct fake_conf conf = {.tcp = tcp, .rank = 2, .world_size = 4};

	return fake_start(&conf);
}

static void knob(struct fake *f, bool *which, bool value)
{
	fake_lock(f);
	*which = value;
	fake_unlock(f);
}

static uint32_t pongs_seen(struct fake *f)
{
	uint32_t nr;

	fake_lock(f);
	nr = f->frames[OP_PONG];
	fake_unlock(f);
	return nr;
}

/* The client has handled everything that was sent so far. */
static void settle(struct fake *f, struct trainer *t)
{
	struct wire_head ping = {.op = OP_PING};
	uint32_t pongs = pongs_seen(f);

	fake_send(f, &ping, NULL);
	if (!f->conf.tcp) {
		struct pollfd p = {.fd = shard_fd(t->client), .events = POLLIN};

		while (pongs_seen(f) == pongs && poll(&p, 1, 2000) == 1)
			EXPECT(SHARD_OK, shard_progress(t->client));
	}
	fake_await(f, OP_PONG, pongs + 1);
}

static void one_step(struct trainer *t)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	trainer_begin(t);
	trainer_push_all(t, 1);
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(10000), &r));
	assert_int_equal(r.step, t->step.step);
}

/* Makes three steps, of which the first is saved. The ATTEMPT of the fourth has not come. */
static void three_steps(struct fake *f, struct trainer *t)
{
	shard_ticket save;

	trainer_join(t, f->address, SHARD_BF16, SHARD_BF16);
	one_step(t);
	EXPECT(SHARD_OK, shard_save(t->model, "/ckpt", NULL, &save));
	EXPECT(SHARD_OK, shard_wait(t->model, save, pace_ms(10000)));
	one_step(t);
	knob(f, &f->knobs.no_next_attempt, true);
	one_step(t);
	knob(f, &f->knobs.no_next_attempt, false);
}

/* Goes on to the fourth step, which is ready, but has no result. */
static void undecided(struct fake *f, struct trainer *t)
{
	three_steps(f, t);
	fake_attempt(f, "");
	trainer_begin(t);
	knob(f, &f->knobs.mute[OP_READY], true);
	trainer_push_all(t, 1);
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	fake_await(f, OP_READY, 4);
}

/* The client knows of the rollback to step 1. Each call says so until shard_world_get(), and then
 * everything is as after a join. */
static void goes_on(struct fake *f, struct trainer *t)
{
	EXPECT(SHARD_ROLLED_BACK, shard_begin(t->model, NULL, &t->step));
	EXPECT_TEXT(WHY "; \"gpt\" is rolled back to step 1, step 2 begins next");
	EXPECT(SHARD_ROLLED_BACK, shard_commit(t->model, NULL));
	EXPECT(SHARD_ROLLED_BACK, shard_push_none(t->model, 0));
	EXPECT(SHARD_OK, shard_world_get(t->model, &t->world));
	assert_int_equal(t->world.step, 2);
	assert_int_equal(t->world.rank, 2);
	assert_int_equal(t->world.world_size, 4);
	assert_string_equal(t->world.why, WHY);
	fake_attempt(f, "");
	trainer_begin(t);
	assert_int_equal(t->step.step, 2);
	trainer_check_image(t, SHARD_BF16, 1);
	trainer_push_all(t, 1);
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	one_step(t);
	assert_int_equal(t->step.step, 3);
	assert_int_equal(f->last[OP_READY].generation, FAKE_GENERATION + 1);
	trainer_end(t);
	fake_stop(f);
}

/* The rollback comes after a result and before the next begin. */
static void test_decided(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	three_steps(f, &t);
	fake_rolled_back(f, 1, WHY);
	goes_on(f, &t);
}

/* The rollback comes before the first begin. */
static void test_joined(void **state)
{
	struct fake *f = start(*state != NULL);
	shard_ticket save;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_OK, shard_save(t.model, NULL, NULL, &save));
	EXPECT(SHARD_OK, shard_wait(t.model, save, pace_ms(10000)));
	fake_rolled_back(f, 0, WHY);
	settle(f, &t); /* Otherwise begin may still take the ATTEMPT that came first. */
	EXPECT(SHARD_ROLLED_BACK, shard_begin(t.model, NULL, &t.step));
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	assert_int_equal(t.world.step, 1);
	fake_attempt(f, "");
	one_step(&t);
	assert_int_equal(t.step.step, 1);
	trainer_end(&t);
	fake_stop(f);
}

/* The rollback comes while a step is begun and partly pushed. */
static void test_open(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	three_steps(f, &t);
	fake_attempt(f, "");
	trainer_begin(&t);
	assert_int_equal(t.step.step, 4);
	EXPECT(SHARD_OK, shard_push_none(t.model, 0));
	fake_rolled_back(f, 1, WHY);
	settle(f, &t);
	EXPECT(SHARD_ROLLED_BACK, shard_push_none(t.model, 1));
	EXPECT(SHARD_ROLLED_BACK, shard_vote_skip(t.model, ""));
	EXPECT(SHARD_ROLLED_BACK, shard_abandon(t.model, ""));
	EXPECT(SHARD_ROLLED_BACK, shard_set_blob(t.model, "x", 1));
	EXPECT(SHARD_ROLLED_BACK, shard_save(t.model, NULL, NULL, NULL));
	goes_on(f, &t);
}

/* With real daemons the attempt ends before the rollback. */
static void test_ended(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct trainer t;

	undecided(f, &t);
	fake_ended(f, "node b was lost");
	EXPECT(SHARD_WORLD_CHANGED, shard_result(t.model, 0, pace_ms(10000), &r));
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	assert_int_equal(t.world.step, 4);
	fake_rolled_back(f, 1, WHY);
	knob(f, &f->knobs.mute[OP_READY], false);
	goes_on(f, &t);
}

/* A second rollback comes before the trainer has looked at the first. */
static void test_twice(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	three_steps(f, &t);
	fake_attempt(f, "");
	trainer_begin(&t);
	fake_rolled_back(f, 2, "for the first time");
	fake_attempt(f, "not this one");
	fake_rolled_back(f, 1, WHY);
	settle(f, &t);
	EXPECT(SHARD_ROLLED_BACK, shard_push_none(t.model, 1));
	EXPECT_TEXT(WHY "; \"gpt\" is rolled back to step 1, step 2 begins next");
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	assert_int_equal(t.world.step, 2);
	assert_string_equal(t.world.why, WHY);
	fake_attempt(f, "");
	trainer_begin(&t);
	trainer_check_image(&t, SHARD_BF16, 1);
	assert_int_equal(t.step.step, 2);
	trainer_end(&t);
	fake_stop(f);
}

/* --- while calls wait --- */

struct waiter {
	pthread_t thread;
	struct trainer *t;
	shard_ticket ticket;
	enum shard_status rc;
	_Atomic bool here;
	float got[8];
};

static void *in_result(void *arg)
{
	struct waiter *w = arg;
	struct shard_result r = SHARD_INIT(struct shard_result);

	atomic_store(&w->here, true);
	w->rc = shard_result(w->t->model, 0, pace_ms(10000), &r);
	return NULL;
}

static void *in_begin(void *arg)
{
	struct waiter *w = arg;
	struct shard_step s = SHARD_INIT(struct shard_step);

	atomic_store(&w->here, true);
	w->rc = shard_begin(w->t->model, NULL, &s);
	return NULL;
}

static void *in_wait(void *arg)
{
	struct waiter *w = arg;

	w->rc = shard_pull(w->t->model, 0, 0, 8, 99, w->got, SHARD_F32, &w->ticket);
	atomic_store(&w->here, true);
	if (w->rc == SHARD_OK)
		w->rc = shard_wait(w->t->model, w->ticket, pace_ms(10000));
	return NULL;
}

/* Pushes the same elements again and again, which is a DUPLICATE until the attempt is over. */
static void *in_push(void *arg)
{
	struct waiter *w = arg;
	float g[100] = {0};

	do {
		w->rc = shard_push(w->t->model, 0, 0, 100, g, SHARD_F32, SHARD_CAST, NULL);
		atomic_store(&w->here, true);
		(void)!shard_progress(w->t->client);
	} while (w->rc == SHARD_OK || w->rc == SHARD_DUPLICATE);
	return NULL;
}

static void launch(struct waiter *w, struct trainer *t, void *(*fn)(void *))
{
	w->t = t;
	CHECK(pthread_create(&w->thread, NULL, fn, w) == 0);
	while (!atomic_load(&w->here))
		sched_yield();
}

static void landed(struct waiter *w)
{
	pthread_join(w->thread, NULL);
	if (w->rc != SHARD_ROLLED_BACK)
		fail_msg("%s", shard_name(w->rc));
}

/* The rollback ends calls that wait for a result and for an image. */
static void test_in_result(void **state)
{
	struct waiter w[3] = {{.rc = SHARD_OK}};
	struct fake *f = start(*state != NULL);
	struct trainer t;

	undecided(f, &t);
	for (int i = 0; i < 3; i++)
		launch(&w[i], &t, i < 2 ? in_result : in_wait);
	fake_rolled_back(f, 1, WHY);
	for (int i = 0; i < 3; i++)
		landed(&w[i]);
	knob(f, &f->knobs.mute[OP_READY], false);
	goes_on(f, &t);
}

/* The rollback ends a begin that waits for the next attempt. */
static void test_in_begin(void **state)
{
	struct waiter w = {.rc = SHARD_OK}, pull = {.rc = SHARD_OK};
	struct fake *f = start(*state != NULL);
	struct trainer t;

	three_steps(f, &t);
	launch(&w, &t, in_begin);
	launch(&pull, &t, in_wait);
	fake_rolled_back(f, 1, WHY);
	landed(&w);
	landed(&pull);
	goes_on(f, &t);
}

/* The rollback comes between the pushes of several threads. */
static void test_in_push(void **state)
{
	struct waiter w[4] = {{.rc = SHARD_OK}};
	struct fake *f = start(*state != NULL);
	struct trainer t;

	three_steps(f, &t);
	fake_attempt(f, "");
	trainer_begin(&t);
	for (int i = 0; i < 4; i++)
		launch(&w[i], &t, i < 3 ? in_push : in_wait);
	fake_rolled_back(f, 1, WHY);
	for (int i = 0; i < 4; i++)
		landed(&w[i]);
	goes_on(f, &t);
}

struct joiner {
	pthread_t thread;
	struct trainer *t;
	enum shard_status rc;
};

static void *in_join(void *arg)
{
	struct joiner *j = arg;

	j->rc = shard_join(j->t->model, -1, pace_ms(10000), &j->t->world);
	return NULL;
}

/* A trainer that is still joining has no step to lose. It gets the world of the new generation. */
static void test_in_join(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;
	struct joiner j = {.t = &t};
	shard_ticket save;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	t.world = (struct shard_world)SHARD_INIT(struct shard_world);
	t.step = (struct shard_step)SHARD_INIT(struct shard_step);
	EXPECT(SHARD_OK, shard_save(t.model, NULL, NULL, &save));
	EXPECT(SHARD_OK, shard_wait(t.model, save, pace_ms(10000)));
	fake_lock(f);
	f->knobs.waits = "1 of 4 trainers"; /* No ATTEMPT comes. */
	fake_unlock(f);
	CHECK(pthread_create(&j.thread, NULL, in_join, &j) == 0);
	fake_await(f, OP_JOIN, 1);
	fake_rolled_back(f, 0, WHY);
	fake_attempt(f, "");
	pthread_join(j.thread, NULL);
	assert_int_equal(j.rc, SHARD_OK);
	assert_int_equal(t.world.step, 1);
	one_step(&t);
	assert_int_equal(f->last[OP_READY].generation, FAKE_GENERATION + 1);
	trainer_end(&t);
	fake_stop(f);
}

/* A handle that has not joined goes on to the new generation, and its calls do not report it. */
static void test_attached(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;
	float x[4];
	uint64_t step = 0;
	shard_ticket save;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	t.world = (struct shard_world)SHARD_INIT(struct shard_world);
	t.step = (struct shard_step)SHARD_INIT(struct shard_step);
	EXPECT(SHARD_OK, shard_save(t.model, NULL, NULL, &save));
	EXPECT(SHARD_OK, shard_wait(t.model, save, pace_ms(10000)));
	fake_rolled_back(f, 5, WHY);
	settle(f, &t);
	EXPECT(SHARD_OK, shard_read(t.model, SHARD_MASTER, 0, 0, 4, SHARD_F32, x, &step));
	assert_int_equal(step, 5);
	assert_int_equal(f->last[OP_READ].generation, FAKE_GENERATION + 1);
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &t.world));
	assert_int_equal(t.world.step, 6);
	trainer_end(&t);
	fake_stop(f);
}

/* There are more rollbacks in a row than the client tells apart. A ticket that was done before one
 * of the newest ones stays done, and a ticket that waited at any of them is void for good. */
static void test_tickets_between(void **state)
{
	enum { BACK_NR = 20, EXACT = 8 };
	struct fake *f = start(*state != NULL);
	shard_ticket done[BACK_NR], never[BACK_NR], both[BACK_NR];
	float a[8], b[8];
	struct trainer t;

	three_steps(f, &t);
	for (uint32_t i = 0; i < BACK_NR; i++) {
		uint64_t step = i == 0 ? 3 : 1;

		EXPECT(SHARD_OK, shard_pull(t.model, 0, 0, 8, step, a, SHARD_F32, &done[i]));
		EXPECT(SHARD_OK, shard_wait(t.model, done[i], pace_ms(10000)));
		EXPECT(SHARD_OK, shard_pull(t.model, 0, 0, 8, 4, b, SHARD_F32, &never[i]));
		EXPECT(SHARD_OK, shard_pull(t.model, 0, 0, 8, 4, b, SHARD_F32, &both[i]));
		fake_rolled_back(f, 1, WHY);
		settle(f, &t);
		EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
		for (uint32_t k = 0; k <= i; k++) {
			EXPECT(SHARD_ROLLED_BACK, shard_test(t.model, never[k]));
			EXPECT(SHARD_ROLLED_BACK, shard_wait(t.model, both[k], 0));
			if (i < k + EXACT) {
				EXPECT(SHARD_OK, shard_test(t.model, done[k]));
				EXPECT(SHARD_OK, shard_wait(t.model, done[k], 0));
			}
		}
	}
	trainer_end(&t);
	fake_stop(f);
}

/* A ticket of the old generation that waited is void. One that was done stays done. */
static void test_tickets(void **state)
{
	struct fake *f = start(*state != NULL);
	shard_ticket done, never, commit, anew;
	float a[8], b[8];
	struct trainer t;

	three_steps(f, &t);
	EXPECT(SHARD_OK, shard_pull(t.model, 0, 0, 8, 3, a, SHARD_F32, &done));
	EXPECT(SHARD_OK, shard_wait(t.model, done, pace_ms(10000)));
	EXPECT(SHARD_OK, shard_pull(t.model, 0, 0, 8, 4, b, SHARD_F32, &never));
	fake_attempt(f, "");
	trainer_begin(&t);
	knob(f, &f->knobs.mute[OP_READY], true);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, &commit));
	fake_rolled_back(f, 1, WHY);
	settle(f, &t);
	EXPECT(SHARD_ROLLED_BACK, shard_pull(t.model, 0, 0, 8, 1, a, SHARD_F32, &anew));
	EXPECT(SHARD_OK, shard_test(t.model, done));
	EXPECT(SHARD_OK, shard_wait(t.model, done, 0));
	/* Before and after the rollback is acknowledged by shard_world_get(). */
	for (int i = 0; i < 2; i++) {
		EXPECT(SHARD_ROLLED_BACK, shard_test(t.model, never));
		EXPECT(SHARD_ROLLED_BACK, shard_wait(t.model, never, 0));
		EXPECT(SHARD_ROLLED_BACK, shard_wait(t.model, commit, 0));
		EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	}
	EXPECT(SHARD_OK, shard_pull(t.model, 0, 0, 8, 1, a, SHARD_F32, &anew));
	EXPECT(SHARD_OK, shard_wait(t.model, anew, pace_ms(10000)));
	assert_true(a[3] == trainer_weight(0, 3) - 1);
	/* Step 2 of the new generation is yet to come. */
	EXPECT(SHARD_OK, shard_pull(t.model, 0, 0, 8, 2, b, SHARD_F32, &anew));
	EXPECT(SHARD_TIMEOUT, shard_wait(t.model, anew, 0));
	knob(f, &f->knobs.mute[OP_READY], false);
	fake_attempt(f, "");
	one_step(&t);
	EXPECT(SHARD_OK, shard_wait(t.model, anew, pace_ms(10000)));
	assert_true(b[3] == trainer_weight(0, 3) - 2);
	trainer_end(&t);
	fake_stop(f);
}

/* The shared memory shows steps of the new generation before the client reads of the rollback. They
 * must not complete a pull of the old generation. */
static void test_image_first(void **state)
{
	struct fake *f = start(false);
	struct image_head *h;
	shard_ticket ticket;
	struct trainer t;
	float a[8];

	(void)state;
	three_steps(f, &t);
	EXPECT(SHARD_OK, shard_pull(t.model, 0, 0, 8, 7, a, SHARD_F32, &ticket));
	fake_lock(f);
	h = f->shared.base;
	h->generation++;
	for (uint32_t c = 0; c < f->chunks_nr; c++)
		atomic_store(&h->version[c], 9);
	fake_unlock(f);
	EXPECT(SHARD_TIMEOUT, shard_wait(t.model, ticket, 0));
	EXPECT(SHARD_AGAIN, shard_test(t.model, ticket));
	fake_rolled_back(f, 1, WHY);
	EXPECT(SHARD_ROLLED_BACK, shard_wait(t.model, ticket, pace_ms(10000)));
	trainer_end(&t);
	fake_stop(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER_BOTH(test_decided),
		OVER_BOTH(test_joined),
		OVER_BOTH(test_open),
		OVER_BOTH(test_ended),
		OVER_BOTH(test_twice),
		OVER_BOTH(test_in_result),
		OVER_BOTH(test_in_begin),
		OVER_BOTH(test_in_push),
		OVER_BOTH(test_in_join),
		OVER_BOTH(test_attached),
		OVER_BOTH(test_tickets),
		OVER_BOTH(test_tickets_between),
		cmocka_unit_test(test_image_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
