// SPDX-License-Identifier: Apache-2.0
/* Tests the marks of shard.h about threads. [any] calls from many threads on one handle give the
 * same weights as one thread. A second thread in a [one] call gets SHARD_BUSY. The test is meant
 * for the thread sanitizer, too. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/fakeserver.h"
#include "lib/pace.h"
#include "lib/trainer.h"
#include "wire/dtype.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { PUSHERS = 4, STEPS = 20 };

static struct fake *start(bool tcp)
{
	struct fake_conf conf = {.tcp = tcp};

	return fake_start(&conf);
}

struct crew {
	struct trainer t;
	pthread_barrier_t begun, pushed, over;
	_Atomic int failed;
};

struct member {
	struct crew *crew;
	int index;
	pthread_t thread;
};

static void expect(struct crew *c, enum shard_status rc, enum shard_status wanted)
{
	if (rc == wanted)
		return;
	fprintf(stderr, "%s: %s\n", shard_name(rc), shard_error());
	atomic_store(&c->failed, 1);
}

/* Every thread pushes its part of each tensor, as the tensors of a backward pass finish in any
 * order. */
static void *pusher(void *arg)
{
	struct member *me = arg;
	struct crew *c = me->crew;
	float ones[3000];
	shard_ticket ticket;

	for (int i = 0; i < 3000; i++)
		ones[i] = 1;
	for (int step = 0; step < STEPS; step++) {
		pthread_barrier_wait(&c->begun);
		for (uint32_t k = 0; k < TRAINER_TENSORS; k++) {
			uint32_t i = (k + (uint32_t)me->index) % TRAINER_TENSORS;
			uint64_t first = trainer_numel[i] * (uint64_t)me->index / PUSHERS;
			uint64_t end = trainer_numel[i] * (uint64_t)(me->index + 1) / PUSHERS;

			if (end == first)
				continue;
			expect(c,
			       shard_push(c->t.model, i, first, end - first, ones, SHARD_F32,
					  SHARD_CAST, &ticket),
			       SHARD_OK);
			/* shard_test() returns SHARD_AGAIN while another thread has the lock. */
			while (shard_test(c->t.model, ticket) == SHARD_AGAIN)
				sched_yield();
		}
		pthread_barrier_wait(&c->pushed);
		pthread_barrier_wait(&c->over);
	}
	return NULL;
}

/* Waits in each step for the image of that step, and checks a part of it. */
static void *puller(void *arg)
{
	struct member *me = arg;
	struct crew *c = me->crew;
	float part[100];

	for (uint64_t step = 1; step <= STEPS; step++) {
		struct shard_result r = SHARD_INIT(struct shard_result);
		shard_ticket ticket;

		pthread_barrier_wait(&c->begun);
		expect(c, shard_pull(c->t.model, 2, 1000, 100, step, part, SHARD_F32, &ticket),
		       SHARD_OK);
		expect(c, shard_wait(c->t.model, ticket, pace_ms(20000)), SHARD_OK);
		for (uint64_t k = 0; k < 100; k++)
			if (part[k] != trainer_weight(2, 1000 + k) - (float)step)
				atomic_store(&c->failed, 1);
		pthread_barrier_wait(&c->pushed);
		expect(c, shard_result(c->t.model, 0, pace_ms(20000), &r), SHARD_OK);
		pthread_barrier_wait(&c->over);
	}
	return NULL;
}

/* Several threads push and pull on one handle, and the weights are those of a single thread. */
static void test_crew(void **state)
{
	struct fake *f = start(*state != NULL);
	struct member members[PUSHERS + 1];
	struct crew c = {.failed = 0};

	trainer_join(&c.t, f->address, SHARD_BF16, SHARD_BF16);
	pthread_barrier_init(&c.begun, NULL, PUSHERS + 2);
	pthread_barrier_init(&c.pushed, NULL, PUSHERS + 1);
	pthread_barrier_init(&c.over, NULL, PUSHERS + 2);
	for (int i = 0; i <= PUSHERS; i++) {
		members[i] = (struct member){.crew = &c, .index = i};
		CHECK(pthread_create(&members[i].thread, NULL, i < PUSHERS ? pusher : puller,
				     &members[i]) == 0);
	}
	for (uint64_t step = 1; step <= STEPS; step++) {
		enum shard_status rc;

		trainer_begin(&c.t);
		pthread_barrier_wait(&c.begun);
		while ((rc = shard_commit(c.t.model, NULL)) == SHARD_MISSING)
			sched_yield(); /* The others are still pushing. */
		EXPECT(SHARD_OK, rc);
		pthread_barrier_wait(&c.over);
		assert_int_equal(atomic_load(&c.failed), 0);
	}
	for (int i = 0; i <= PUSHERS; i++)
		pthread_join(members[i].thread, NULL);
	fake_lock(f);
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++)
		for (uint64_t k = 0; k < trainer_numel[i]; k++)
			assert_true(f->master[f->tensors[i].offset + k] ==
				    trainer_weight(i, k) - STEPS);
	fake_unlock(f);
	pthread_barrier_destroy(&c.begun);
	pthread_barrier_destroy(&c.pushed);
	pthread_barrier_destroy(&c.over);
	trainer_end(&c.t);
	fake_stop(f);
}

struct waiter {
	struct trainer *t;
	pthread_t thread;
	enum shard_status rc;
	uint64_t returned_ns;
};

static void *begin_again(void *arg)
{
	struct waiter *w = arg;

	w->rc = shard_begin(w->t->model, NULL, &w->t->step);
	return NULL;
}

/* While a thread is in a [one] call, another thread gets SHARD_BUSY for such calls. */
static void test_busy(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_world world = SHARD_INIT(struct shard_world);
	struct shard_step step = SHARD_INIT(struct shard_step);
	struct waiter w;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	fake_lock(f);
	f->knobs.no_next_attempt = true;
	fake_unlock(f);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	EXPECT(SHARD_OK, shard_result(t.model, 0, pace_ms(10000), &r));
	w = (struct waiter){.t = &t};
	/* This thread waits for an attempt that does not come yet. */
	CHECK(pthread_create(&w.thread, NULL, begin_again, &w) == 0);
	for (enum shard_status rc = SHARD_OK; rc != SHARD_BUSY;) {
		rc = shard_world_get(t.model, &world);
		/* It is SHARD_OK as long as the other thread is not in its call. */
		assert_true(rc == SHARD_OK || rc == SHARD_BUSY);
		sched_yield();
	}
	EXPECT_TEXT("another thread is in a call on \"gpt\"");
	EXPECT(SHARD_BUSY, shard_begin(t.model, NULL, &step));
	EXPECT(SHARD_BUSY, shard_commit(t.model, NULL));
	EXPECT(SHARD_BUSY, shard_vote_skip(t.model, ""));
	EXPECT(SHARD_BUSY, shard_abandon(t.model, ""));
	EXPECT(SHARD_BUSY, shard_leave(t.model, 0));
	EXPECT(SHARD_OK, shard_wait(t.model, 0, 0)); /* An [any] call works. */
	assert_int_equal(shard_tensors(t.model), TRAINER_TENSORS);
	fake_attempt(f, "");
	pthread_join(w.thread, NULL);
	assert_int_equal(w.rc, SHARD_OK);
	trainer_end(&t);
	fake_stop(f);
}

static void *wait_result(void *arg)
{
	struct waiter *w = arg;
	struct shard_result r = SHARD_INIT(struct shard_result);

	w->rc = shard_result(w->t->model, 0, pace_ms(20000), &r);
	w->returned_ns = clock_ns();
	return NULL;
}

static void waiters(bool tcp, enum shard_status wanted,
		    void (*cause)(struct fake *f, struct trainer *t))
{
	struct fake *f = start(tcp);
	struct waiter w[4];
	struct trainer t;
	uint64_t began;

	fake_lock(f);
	f->knobs.mute[OP_READY] = true;
	fake_unlock(f);
	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	fake_await(f, OP_READY, 1);
	for (int i = 0; i < 4; i++) {
		w[i] = (struct waiter){.t = &t};
		CHECK(pthread_create(&w[i].thread, NULL, wait_result, &w[i]) == 0);
	}
	began = clock_ns();
	/* The cause is repeated, because an interrupt ends only the calls that wait by then. */
	for (bool all = false; !all;) {
		cause(f, &t);
		all = true;
		for (int i = 0; i < 4; i++) {
			struct timespec soon;

			clock_gettime(CLOCK_REALTIME, &soon);
			soon.tv_nsec += 20000000;
			soon.tv_sec += soon.tv_nsec / 1000000000;
			soon.tv_nsec %= 1000000000;
			if (w[i].thread && pthread_timedjoin_np(w[i].thread, NULL, &soon) != 0)
				all = false;
			else
				w[i].thread = 0;
		}
		assert_true(clock_ns() - began < pace_ns(10 * NS_PER_SEC));
	}
	for (int i = 0; i < 4; i++)
		assert_int_equal(w[i].rc, wanted);
	trainer_end(&t);
	fake_stop(f);
}

static void cause_interrupt(struct fake *f, struct trainer *t)
{
	(void)f;
	shard_interrupt(t->client);
}

static void cause_ended(struct fake *f, struct trainer *t)
{
	(void)t;
	fake_ended(f, "rank 1 left");
}

static void cause_close(struct fake *f, struct trainer *t)
{
	(void)t;
	fake_close(f);
}

/* The main thread reads the frame that one of the others waits for in poll(2). */
static void cause_progress(struct fake *f, struct trainer *t)
{
	fake_lock(f);
	bool decided = f->step > 0;

	fake_unlock(f);
	if (!decided)
		fake_result(f);
	EXPECT(SHARD_OK, shard_progress(t->client));
}

/* Whatever ends a wait ends it for all four threads that wait for the same result. */
static void test_waiters(void **state)
{
	waiters(*state != NULL, SHARD_INTERRUPTED, cause_interrupt);
	waiters(*state != NULL, SHARD_WORLD_CHANGED, cause_ended);
	waiters(*state != NULL, SHARD_CLOSED, cause_close);
	waiters(*state != NULL, SHARD_OK, cause_progress);
}

static void *read_all(void *arg)
{
	struct waiter *w = arg;
	float back[3000];
	uint64_t step = 0;

	for (int n = 0; n < 20 && w->rc == SHARD_OK; n++) {
		uint32_t i = (uint32_t)n % TRAINER_TENSORS;

		w->rc = shard_read(w->t->model, SHARD_MASTER, i, 0, trainer_numel[i], SHARD_F32,
				   back, &step);
		for (uint64_t k = 0; k < trainer_numel[i]; k++)
			if (back[k] != trainer_weight(i, k))
				w->rc = SHARD_MISMATCH;
	}
	return NULL;
}

/* Four threads read tensors on one connection, and each gets its own bytes. */
static void test_reads(void **state)
{
	struct fake *f = start(*state != NULL);
	struct waiter w[4];
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	for (int i = 0; i < 4; i++) {
		w[i] = (struct waiter){.t = &t};
		CHECK(pthread_create(&w[i].thread, NULL, read_all, &w[i]) == 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(w[i].thread, NULL);
		assert_int_equal(w[i].rc, SHARD_OK);
	}
	trainer_end(&t);
	fake_stop(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER_BOTH(test_crew),
		OVER_BOTH(test_busy),
		OVER_BOTH(test_waiters),
		OVER_BOTH(test_reads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
