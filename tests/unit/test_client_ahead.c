// SPDX-License-Identifier: Apache-2.0
/* Tests a step that was begun ahead (max_staleness = 1), in every phase, against every frame that
 * may come then. The table below says what the results of the step in flight and of the step ahead
 * must be. After that the steps go on from where they have to. It runs over unix sockets and
 * tcp. */
#include "base/check.h"
#include "lib/fakeserver.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum ahead_phase { OPEN, PUSHED, COMMITTED, VOTED, ABANDONED, PHASES };
enum event {
	ENDED,      /* The attempt of the step in flight ends. */
	MISMATCHED, /* It ends with SHARD_MISMATCH. */
	ANOTHER,    /* The next ATTEMPT of the step in flight comes without an ENDED before it. */
	LOST,
	ROLLED_BACK,
	CLOSED,
	SAME, /* The ATTEMPT that was expected. */
	SCALED,
	MORE_RANKS,
	ENDED_AT_ONCE, /* The ATTEMPT that was expected, and its ENDED. */
};

static struct fake *start(bool tcp, uint64_t timeout_ms)
{
	struct fake_conf conf = {
		.tcp = tcp, .rank = 2, .world_size = 4, .staleness = 1, .timeout_ms = timeout_ms};

	return fake_start(&conf);
}

static void knob(struct fake *f, bool *which, bool value)
{
	fake_lock(f);
	*which = value;
	fake_unlock(f);
}

/* The client has handled everything that was sent so far. */
static void settle(struct fake *f, struct trainer *t)
{
	struct wire_head ping = {.op = OP_PING};
	uint32_t pongs;

	fake_lock(f);
	pongs = f->frames[OP_PONG];
	fake_unlock(f);
	fake_send(f, &ping, NULL);
	for (int i = 0; !f->conf.tcp && i < 20000; i++) {
		struct pollfd p = {.fd = shard_fd(t->client), .events = POLLIN};
		bool done;

		fake_lock(f);
		done = f->frames[OP_PONG] > pongs;
		fake_unlock(f);
		if (done)
			break;
		(void)!poll(&p, 1, 1);
		EXPECT(SHARD_OK, shard_progress(t->client));
	}
	fake_await(f, OP_PONG, pongs + 1);
}

/* Begins `step`. Every weight must be `minus` less than at first. */
static void begins(struct trainer *t, uint64_t step, float minus)
{
	trainer_begin(t);
	assert_int_equal(t->step.step, step);
	trainer_check_image(t, SHARD_BF16, minus);
}

static void commits(struct trainer *t, shard_ticket *ticket)
{
	trainer_push_all(t, 1);
	EXPECT(SHARD_OK, shard_commit(t->model, ticket));
}

static void result(struct trainer *t, shard_ticket ticket, enum shard_status want, uint64_t step)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	EXPECT(want, shard_result(t->model, ticket, pace_ms(10000), &r));
	if (want == SHARD_OK)
		assert_int_equal(r.step, step);
}

/* Brings step 2 in flight, where it is undecided, and begins step 3 ahead, up to `phase`. */
static void go_ahead(struct fake *f, struct trainer *t, shard_ticket ticket[2],
		     enum ahead_phase phase)
{
	trainer_join(t, f->address, SHARD_BF16, SHARD_BF16);
	begins(t, 1, 0);
	commits(t, &ticket[0]);
	result(t, ticket[0], SHARD_OK, 1);
	knob(f, &f->knobs.mute[OP_READY], true);
	begins(t, 2, 0);
	commits(t, &ticket[0]);
	fake_await(f, OP_READY, 2);
	begins(t, 3, 1);
	assert_true(t->step.rank == 2 && t->step.world_size == 4);
	ticket[1] = 0;
	if (phase == PUSHED)
		EXPECT(SHARD_OK, shard_push_none(t->model, 1));
	if (phase == COMMITTED)
		commits(t, &ticket[1]);
	if (phase == VOTED)
		EXPECT(SHARD_OK, shard_vote_skip(t->model, "test"));
	if (phase == ABANDONED)
		EXPECT(SHARD_OK, shard_abandon(t->model, "test"));
	EXPECT(SHARD_TIMEOUT,
	       shard_result(t->model, ticket[0], 0, &SHARD_INIT(struct shard_result)));
	assert_int_equal(f->frames[OP_READY], 2); /* Nothing of the step ahead is sent. */
	assert_int_equal(f->frames[OP_ABANDON], 0);
}

static void attempt_as(struct fake *f, enum event event)
{
	fake_lock(f);
	f->knobs.loss_scale = event == SCALED ? 4 : 0;
	f->knobs.more_ranks = event == MORE_RANKS;
	fake_unlock(f);
	fake_attempt(f, "");
	if (event == ENDED_AT_ONCE)
		fake_ended(f, "rank 0 is gone");
}

static void mismatched(struct fake *f)
{
	struct wire_head h = fake_head(f, OP_ENDED);
	Shard__Why w = SHARD__WHY__INIT;

	w.why = (char *)(uintptr_t) "gradients differ";
	w.status = SHARD_MISMATCH;
	fake_send(f, &h, &w.base);
}

static void send_event(struct fake *f, enum event event)
{
	switch (event) {
	case ENDED:
		fake_ended(f, "rank 0 is gone");
		return;
	case MISMATCHED:
		mismatched(f);
		return;
	case LOST:
		fake_lost(f, "node b is gone");
		return;
	case ROLLED_BACK:
		fake_rolled_back(f, 0, "node b was lost");
		return;
	case CLOSED:
		fake_error(f, SHARD_CLOSED, "stops");
		return;
	case ANOTHER:
	case SAME:
	case SCALED:
	case MORE_RANKS:
	case ENDED_AT_ONCE:
		attempt_as(f, event);
		return;
	}
}

struct row {
	enum event event;
	bool decided; /* The RESULT of the step in flight comes before the event. */
	enum shard_status flight, mine; /* Of the step in flight, and of the step ahead. */
	uint64_t again;                 /* The step that is begun next. 0: none ever is. */
};

static const struct row rows[] = {
	{ENDED, false, SHARD_WORLD_CHANGED, SHARD_WORLD_CHANGED, 2},
	{MISMATCHED, false, SHARD_MISMATCH, SHARD_WORLD_CHANGED, 2},
	{ANOTHER, false, SHARD_WORLD_CHANGED, SHARD_WORLD_CHANGED, 2},
	{LOST, false, SHARD_LOST, SHARD_LOST, 0},
	{ROLLED_BACK, false, SHARD_ROLLED_BACK, SHARD_ROLLED_BACK, 1},
	{CLOSED, false, SHARD_CLOSED, SHARD_CLOSED, 0},
	{SCALED, true, SHARD_OK, SHARD_WORLD_CHANGED, 3},
	{MORE_RANKS, true, SHARD_OK, SHARD_WORLD_CHANGED, 3},
	{ENDED_AT_ONCE, true, SHARD_OK, SHARD_WORLD_CHANGED, 3},
	{LOST, true, SHARD_OK, SHARD_LOST, 0},
	{ROLLED_BACK, true, SHARD_OK, SHARD_ROLLED_BACK, 1},
	{CLOSED, true, SHARD_OK, SHARD_CLOSED, 0},
};

/* A call of the step ahead returns its status, also in the phases in which it has no ticket. */
static void mine_is_over(struct trainer *t, const struct row *r, enum ahead_phase phase,
			 shard_ticket ticket)
{
	if (phase == COMMITTED)
		result(t, ticket, r->mine, 0);
	else if (phase == VOTED)
		/* Ticket 0 is the newest one. After a mismatch it gives that of step 2. */
		result(t, 0, r->event == MISMATCHED ? SHARD_MISMATCH : r->mine, 0);
	else if (phase == OPEN || phase == PUSHED)
		EXPECT(r->mine, shard_push_none(t->model, 0));
}

/* From the next ATTEMPT on, three steps go as if nothing had happened. */
static void goes_on(struct fake *f, struct trainer *t, uint64_t step)
{
	shard_ticket ticket;

	knob(f, &f->knobs.mute[OP_READY], false);
	for (int i = 0; i < 3; i++) {
		trainer_begin(t);
		assert_int_equal(t->step.step, step + (uint64_t)i);
		trainer_check_image(t, SHARD_BF16,
				    step + (uint64_t)i > 2 ? (float)(step + (uint64_t)i - 2) : 0);
		commits(t, &ticket);
		result(t, ticket, SHARD_OK, step + (uint64_t)i);
	}
}

static void one_row(bool tcp, const struct row *r, enum ahead_phase phase)
{
	struct fake *f = start(tcp, 10000);
	shard_ticket ticket[2];
	struct trainer t;

	go_ahead(f, &t, ticket, phase);
	knob(f, &f->knobs.no_next_attempt, true);
	if (r->decided)
		fake_result(f);
	if (r->event == ROLLED_BACK) {
		fake_lock(f);
		/* The weights of step 0. */
		for (uint64_t i = 0; i < f->elems; i++)
			f->saved[i] = f->master[i] + 1 + (float)r->decided;
		fake_unlock(f);
	}
	send_event(f, r->event);
	if (r->event != CLOSED)
		settle(f, &t);
	while (r->event == CLOSED && shard_progress(t.client) == SHARD_OK)
		sched_yield();
	knob(f, &f->knobs.no_next_attempt, false);
	result(&t, ticket[0], r->flight, 2);
	mine_is_over(&t, r, phase, ticket[1]);
	if (r->again == 0) {
		EXPECT(r->mine, shard_begin(t.model, NULL, &t.step));
	} else {
		/* A trainer that abandoned step 3 after step 2 was decided knows that its attempt
		 * is over. It is told only of a rollback. */
		bool told = !(r->decided && phase == ABANDONED && r->event != ROLLED_BACK);

		if (told)
			EXPECT(r->mine == SHARD_OK ? SHARD_WORLD_CHANGED : r->mine,
			       shard_begin(t.model, NULL, &t.step));
		if (told || r->event == MORE_RANKS)
			EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
		if (told)
			assert_int_equal(t.world.step, r->again);
		if (r->event == ENDED || r->event == MISMATCHED || r->event == ROLLED_BACK ||
		    r->event == ENDED_AT_ONCE)
			fake_attempt(f, "");
		goes_on(f, &t, r->again);
		assert_true(t.step.loss_scale == (r->event == SCALED ? 4 : 8));
		assert_int_equal(t.step.world_size, 4 + (r->event == MORE_RANKS));
	}
	trainer_end(&t);
	fake_stop(f);
}

/* Each row of the table is tried in each phase of the step ahead. */
static void every_phase_and_frame(void **state)
{
	for (size_t i = 0; i < NR(rows); i++)
		for (enum ahead_phase p = 0; p < PHASES; p++)
			one_row(*state != NULL, &rows[i], p);
}

/* The step in flight is applied or skipped, and the expected ATTEMPT comes. The caller hears
 * nothing of it, and the library sends what it had held back for the step ahead. */
static void the_same_attempt(void **state)
{
	for (int skip = 0; skip < 2; skip++)
		for (enum ahead_phase phase = 0; phase < PHASES; phase++) {
			struct fake *f = start(*state != NULL, 10000);
			struct shard_result r = SHARD_INIT(struct shard_result);
			shard_ticket ticket[2];
			struct trainer t;

			go_ahead(f, &t, ticket, phase);
			knob(f, &f->knobs.skip_nonfinite, skip);
			knob(f, &f->knobs.mute[OP_READY], false);
			fake_result(f); /* The ATTEMPT follows it. */
			EXPECT(SHARD_OK, shard_result(t.model, ticket[0], pace_ms(10000), &r));
			assert_int_equal(r.outcome, skip ? SHARD_SKIPPED_NONFINITE : SHARD_APPLIED);
			settle(f, &t);
			if (phase == OPEN || phase == PUSHED) {
				for (uint32_t i = 0; i < TRAINER_TENSORS; i++)
					if (phase == OPEN || i != 1)
						EXPECT(SHARD_OK, shard_push_none(t.model, i));
				EXPECT(SHARD_OK, shard_commit(t.model, &ticket[1]));
			}
			if (phase == ABANDONED) {
				fake_await(f, OP_ABANDON, 1);
				assert_string_equal(f->abandon_why, "test");
				fake_ended(f, "rank 2 abandoned it");
				fake_attempt(f, "");
				settle(f, &t);
				begins(&t, 3, 1);
				assert_int_equal(t.step.attempt, 2);
				commits(&t, &ticket[1]);
			}
			result(&t, phase == VOTED ? 0 : ticket[1], SHARD_OK, 3);
			assert_int_equal(f->ready_skip, phase == VOTED);
			begins(&t, 4, skip ? 1 : 2); /* The weights are those of step 2. */
			trainer_end(&t);
			fake_stop(f);
		}
}

/* Calls that wait for the step in flight time out with a text that names the step and the rank that
 * is waited for. Nothing is lost by that. */
static void deadlines(void **state)
{
	struct fake *f = start(*state != NULL, 200);
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket[2];
	struct trainer t;

	fake_lock(f);
	f->knobs.waits = "rank 0 (pid 1, node a)";
	fake_unlock(f);
	go_ahead(f, &t, ticket, COMMITTED);
	for (int i = 0; i < 2; i++)
		EXPECT(SHARD_TIMEOUT, shard_result(t.model, ticket[i], 30, &r));
	EXPECT_TEXT("step 3 attempt 0 of \"gpt\" waits ");
	EXPECT(SHARD_TIMEOUT, shard_wait(t.model, ticket[1], 30));
	EXPECT(SHARD_TIMEOUT, shard_begin(t.model, NULL, &t.step));
	EXPECT_TEXT("begin after step 3 of \"gpt\" waited ");
	EXPECT_TEXT("rank 0 (pid 1, node a)");
	EXPECT(SHARD_TIMEOUT, shard_leave(t.model, 30));
	EXPECT_TEXT("leaving \"gpt\" waited ");
	assert_int_equal(f->frames[OP_LEAVE], 0); /* Its gradients would not have been sent. */
	knob(f, &f->knobs.mute[OP_READY], false);
	fake_result(f);
	result(&t, ticket[1], SHARD_OK, 3);
	result(&t, ticket[0], SHARD_OK, 2);
	begins(&t, 4, 2);
	commits(&t, &ticket[0]);
	result(&t, ticket[0], SHARD_OK, 4);
	EXPECT(SHARD_OK, shard_leave(t.model, pace_ms(5000)));
	trainer_end(&t);
	fake_stop(f);
}

/* --- threads --- */

struct waiter {
	pthread_t thread;
	struct trainer *t;
	shard_ticket ticket;
	enum shard_status rc;
	_Atomic bool here;
};

static void *in_result(void *arg)
{
	struct waiter *w = arg;
	struct shard_result r = SHARD_INIT(struct shard_result);

	atomic_store(&w->here, true);
	w->rc = shard_result(w->t->model, w->ticket, pace_ms(10000), &r);
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

static void launch(struct waiter *w, struct trainer *t, shard_ticket ticket, void *(*fn)(void *))
{
	*w = (struct waiter){.t = t, .ticket = ticket};
	CHECK(pthread_create(&w->thread, NULL, fn, w) == 0);
	while (!atomic_load(&w->here))
		sched_yield();
}

static void landed(struct waiter *w, enum shard_status want)
{
	pthread_join(w->thread, NULL);
	if (w->rc != want)
		fail_msg("%s, not %s", shard_name(w->rc), shard_name(want));
}

/* shard_interrupt() ends the calls that wait for either step, and both steps still succeed. */
static void interrupted(void **state)
{
	struct fake *f = start(*state != NULL, 10000);
	shard_ticket ticket[2];
	struct waiter w[3];
	struct trainer t;

	go_ahead(f, &t, ticket, COMMITTED);
	launch(&w[0], &t, ticket[0], in_result);
	launch(&w[1], &t, ticket[1], in_result);
	launch(&w[2], &t, 0, in_begin);
	for (int i = 0; i < 3; i++) {
		struct timespec ms = {.tv_nsec = 5000000};

		shard_interrupt(t.client); /* Interrupts those that wait by now. */
		nanosleep(&ms, NULL);
	}
	for (int i = 0; i < 3; i++)
		landed(&w[i], SHARD_INTERRUPTED);
	knob(f, &f->knobs.mute[OP_READY], false);
	fake_result(f);
	result(&t, ticket[0], SHARD_OK, 2);
	result(&t, ticket[1], SHARD_OK, 3);
	begins(&t, 4, 2);
	trainer_end(&t);
	fake_stop(f);
}

enum { PUSHERS = 4, STEPS = 40 };

struct team {
	struct trainer t;
	pthread_barrier_t begun, pushed;
};

struct member {
	struct team *team;
	uint64_t index;
	pthread_t thread;
};

static void *pusher(void *arg)
{
	struct member *me = arg;
	float ones[3000];

	for (int i = 0; i < 3000; i++)
		ones[i] = 1;
	for (int step = 0; step < STEPS; step++) {
		pthread_barrier_wait(&me->team->begun);
		for (uint32_t k = 0; k < TRAINER_TENSORS; k++) {
			uint64_t first = trainer_numel[k] * me->index / PUSHERS,
				 end = trainer_numel[k] * (me->index + 1) / PUSHERS;

			if (end > first)
				CHECK(shard_push(me->team->t.model, k, first, end - first, ones,
						 SHARD_F32, SHARD_CAST, NULL) == SHARD_OK);
		}
		pthread_barrier_wait(&me->team->pushed);
	}
	return NULL;
}

/* Many threads push while the RESULT of the step before and the ATTEMPT of this step arrive. */
static void many_push(void **state)
{
	struct fake *f = start(*state != NULL, 10000);
	struct member members[PUSHERS];
	shard_ticket ticket = 0, before = 0;
	struct team c;

	fake_lock(f);
	f->knobs.ready_us = 300;
	fake_unlock(f);
	trainer_join(&c.t, f->address, SHARD_F32, SHARD_F32);
	pthread_barrier_init(&c.begun, NULL, PUSHERS + 1);
	pthread_barrier_init(&c.pushed, NULL, PUSHERS + 1);
	for (uint64_t i = 0; i < PUSHERS; i++) {
		members[i] = (struct member){.team = &c, .index = i};
		CHECK(pthread_create(&members[i].thread, NULL, pusher, &members[i]) == 0);
	}
	for (uint64_t step = 1; step <= STEPS; step++) {
		trainer_begin(&c.t);
		assert_int_equal(c.t.step.step, step);
		trainer_check_image(&c.t, SHARD_F32, step > 2 ? (float)(step - 2) : 0);
		pthread_barrier_wait(&c.begun);
		pthread_barrier_wait(&c.pushed);
		EXPECT(SHARD_OK, shard_commit(c.t.model, &ticket));
		if (before != 0)
			result(&c.t, before, SHARD_OK, step - 1);
		before = ticket;
	}
	result(&c.t, before, SHARD_OK, STEPS);
	for (int i = 0; i < PUSHERS; i++)
		pthread_join(members[i].thread, NULL);
	trainer_end(&c.t);
	fake_stop(f);
}

/* With staleness_after = 2 no step begins early before step 3, and until then each is computed on
 * the weights of the step before. */
static void warm_up(void **state)
{
	struct fake_conf conf = {.tcp = *state != NULL,
				 .rank = 2,
				 .world_size = 4,
				 .staleness = 1,
				 .staleness_after = 2,
				 .timeout_ms = 1000};
	struct fake *f = fake_start(&conf);
	shard_ticket ticket = 0, last = 0;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	knob(f, &f->knobs.mute[OP_READY], true);
	begins(&t, 1, 0);
	commits(&t, &ticket);
	fake_await(f, OP_READY, 1);
	EXPECT(SHARD_TIMEOUT, shard_begin(t.model, NULL, &t.step));
	knob(f, &f->knobs.mute[OP_READY], false);
	fake_result(f);
	result(&t, ticket, SHARD_OK, 1);
	begins(&t, 2, 1);
	commits(&t, &ticket);
	result(&t, ticket, SHARD_OK, 2);
	knob(f, &f->knobs.mute[OP_READY], true);
	begins(&t, 3, 1);
	commits(&t, &ticket);
	begins(&t, 4, 2);
	commits(&t, &last);
	knob(f, &f->knobs.mute[OP_READY], false);
	fake_result(f);
	result(&t, ticket, SHARD_OK, 3);
	result(&t, last, SHARD_OK, 4);
	trainer_end(&t);
	fake_stop(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER_BOTH(every_phase_and_frame), OVER_BOTH(the_same_attempt), OVER_BOTH(deadlines),
		OVER_BOTH(interrupted),           OVER_BOTH(many_push),        OVER_BOTH(warm_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
