// SPDX-License-Identifier: Apache-2.0
/* Tests a connection that breaks and is made again (client/again.c), against a scripted daemon. It
 * closes the connection at each place of a step. Calls then say SHARD_WORLD_CHANGED, pointers stay
 * valid, and shard_world_get() leads back into the world, with the weights, and with what waited
 * before told as over. Each reason why it cannot be had again is a status with a sentence. */
#include "base/check.h"
#include "client/again.h"
#include "client/handle.h"
#include "lib/fakeserver.h"
#include "lib/fakeserver_impl.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BOTH(fn)                                                                                   \
	{#fn " unix", fn, NULL, NULL, NULL},                                                       \
	{                                                                                          \
#fn " tcp", fn, NULL, NULL, (void *)1                                              \
	}

static struct fake *start(bool tcp)
{
	struct fake_conf conf = {.tcp = tcp};

	return fake_start(&conf);
}

/* A trainer that has joined, whose connection is made again. */
static void heals(struct trainer *t, struct fake *f)
{
	trainer_join(t, f->address, SHARD_F32, SHARD_F32);
	trainer_looks(t, (uint64_t)pace_ms(20000) * NS_PER_MS);
}

static void knob_refuse(struct fake *f, uint16_t op, enum shard_status st, const char *text)
{
	fake_lock(f);
	f->knobs.refuse[op] = st;
	f->knobs.refuse_text = text;
	fake_unlock(f);
}

static void mute(struct fake *f, uint16_t op, bool on)
{
	fake_lock(f);
	f->knobs.mute[op] = on;
	fake_unlock(f);
}

static void whole_step(struct trainer *t, uint64_t step)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	trainer_begin(t);
	assert_int_equal(t->step.step, step);
	trainer_push_all(t, 1);
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(10000), &r));
	assert_int_equal(r.step, step);
	EXPECT(SHARD_OK, shard_world_get(t->model, &t->world));
	assert_int_equal(t->world.step, step + 1);
}

static uint64_t mapped(struct trainer *t)
{
	struct shard_info i = SHARD_INIT(struct shard_info);

	EXPECT(SHARD_OK, shard_tensor_info(t->model, 0, &i));
	return i.mapped;
}

/* --- each call of a step --- */

static enum shard_status call_begin(struct trainer *t)
{
	return shard_begin(t->model, NULL, &t->step);
}

static enum shard_status call_push(struct trainer *t)
{
	return shard_push(t->model, 1, 0, 7, NULL, SHARD_F32, 0, NULL);
}

static enum shard_status call_none(struct trainer *t)
{
	return shard_push_none(t->model, 0);
}

static enum shard_status call_set_blob(struct trainer *t)
{
	return shard_set_blob(t->model, "x", 1);
}

static enum shard_status call_commit(struct trainer *t)
{
	return shard_commit(t->model, NULL);
}

static enum shard_status call_skip(struct trainer *t)
{
	return shard_vote_skip(t->model, "a test");
}

static enum shard_status call_abandon(struct trainer *t)
{
	return shard_abandon(t->model, "a test");
}

static enum shard_status call_result(struct trainer *t)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	return shard_result(t->model, 0, pace_ms(10000), &r);
}

static enum shard_status call_blob(struct trainer *t)
{
	char data[8];
	size_t bytes = sizeof(data);

	return shard_blob(t->model, 0, data, &bytes, NULL);
}

static enum shard_status call_pull(struct trainer *t)
{
	shard_ticket ticket;

	return shard_pull(t->model, 0, 0, 1, 0, NULL, SHARD_F32, &ticket);
}

static enum shard_status call_read(struct trainer *t)
{
	uint64_t step = 0;
	float x;

	return shard_read(t->model, SHARD_MASTER, 0, 0, 1, SHARD_F32, &x, &step);
}

static enum shard_status call_save(struct trainer *t)
{
	shard_ticket ticket;

	return shard_save(t->model, NULL, NULL, &ticket);
}

static enum shard_status call_progress(struct trainer *t)
{
	return shard_progress(t->client);
}

static enum shard_status (*const calls[])(struct trainer *t) = {
	call_begin,  call_push, call_none, call_set_blob, call_commit, call_skip,    call_abandon,
	call_result, call_blob, call_pull, call_read,     call_save,   call_progress};

/* How far the step is when the connection ends. */
enum place { BETWEEN, BEGUN, PUSHED, COMMITTED, PLACE_NR };

static void go_to(struct trainer *t, struct fake *f, enum place p)
{
	mute(f, OP_READY, p == COMMITTED);
	if (p >= BEGUN)
		trainer_begin(t);
	if (p >= PUSHED)
		trainer_push_all(t, 1);
	if (p >= COMMITTED) {
		uint32_t before = f->frames[OP_READY];

		EXPECT(SHARD_OK, shard_commit(t->model, NULL));
		fake_await(f, OP_READY, before + 1);
	}
}

static void broken_is_told(struct trainer *t)
{
	uint64_t until = pace_by(10);

	/* A call that did not look at the socket does not know it yet. */
	while (shard_progress(t->client) == SHARD_OK && clock_ns() < until)
		(void)poll(NULL, 0, 1);
}

static void test_each_call(void **state)
{
	struct fake *f = start(*state != NULL);
	uint64_t step = 1, maps;
	struct trainer t;
	const void *image;
	void *grad;

	heals(&t, f);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		for (int p = BETWEEN; p < PLACE_NR; p++) {
			if (calls[i] == call_result && p == BETWEEN)
				continue; /* The step before has one, which stays. */
			go_to(&t, f, (enum place)p);
			grad = shard_grad(t.model, 1);
			image = shard_image(t.model, 1);
			maps = mapped(&t);
			fake_close(f);
			broken_is_told(&t);
			EXPECT(SHARD_WORLD_CHANGED, calls[i](&t));
			EXPECT_TEXT(f->address);
			assert_ptr_equal(shard_grad(t.model, 1), grad);
			assert_ptr_equal(shard_image(t.model, 1), image);
			trainer_check_image(&t, SHARD_F32, (float)(step - 1));
			*(float *)grad = 5;
			mute(f, OP_READY, false);
			EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
			assert_int_equal(t.world.step, step);
			assert_non_null(strstr(t.world.why, f->address));
			assert_ptr_equal(shard_grad(t.model, 1), grad);
			assert_ptr_equal(shard_image(t.model, 1), image);
			assert_int_equal(mapped(&t), maps + 1);
			whole_step(&t, step++);
			trainer_check_image(&t, SHARD_F32, (float)(step - 1));
		}
	EXPECT(SHARD_OK, shard_leave(t.model, pace_ms(10000)));
	trainer_end(&t);
	fake_stop(f);
}

/* --- what waits --- */

struct waiting {
	struct trainer *t;
	enum shard_status (*call)(struct trainer *t);
	shard_ticket ticket;
	pthread_t thread;
	enum shard_status rc;
};

static void *waits(void *arg)
{
	struct waiting *w = arg;

	w->rc = w->call != NULL ? w->call(w->t)
				: shard_wait(w->t->model, w->ticket, pace_ms(20000));
	return NULL;
}

static void begin_to_wait(struct waiting *w, struct trainer *t)
{
	uint32_t waiting = 0;

	w->t = t;
	assert_int_equal(pthread_create(&w->thread, NULL, waits, w), 0);
	while (waiting == 0) {
		(void)poll(NULL, 0, 1);
		pthread_mutex_lock(&t->client->lock);
		waiting = t->client->waiting;
		pthread_mutex_unlock(&t->client->lock);
	}
}

/* Calls that wait in other threads return, and only then is the new stream there. */
static void test_waiting_calls(void **state)
{
	struct fake *f = start(*state != NULL);
	struct waiting w[3] = {{.call = call_result}, {.call = NULL}, {.call = call_blob}};
	struct trainer t;

	heals(&t, f);
	mute(f, OP_BLOB, true);
	go_to(&t, f, COMMITTED);
	EXPECT(SHARD_OK, shard_pull(t.model, 0, 0, 3000, 1, NULL, SHARD_F32, &w[1].ticket));
	for (int i = 0; i < 3; i++)
		begin_to_wait(&w[i], &t);
	fake_close(f);
	mute(f, OP_READY, false);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(pthread_join(w[i].thread, NULL), 0);
		assert_int_equal(w[i].rc, SHARD_WORLD_CHANGED);
	}
	EXPECT(SHARD_WORLD_CHANGED, shard_test(t.model, w[1].ticket));
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	/* Its weights come, but it was told as over. */
	whole_step(&t, 1);
	EXPECT(SHARD_WORLD_CHANGED, shard_wait(t.model, w[1].ticket, pace_ms(10000)));
	EXPECT_TEXT("is of before the connection broke");
	go_to(&t, f, COMMITTED);
	fake_close(f);
	broken_is_told(&t);
	shard_detach(&t.model);
	trainer_end(&t);
	fake_stop(f);
}

/* Copies that pulls make end with the connection. */
static void test_pull_is_void(void **state)
{
	struct fake *f = start(*state != NULL);
	shard_ticket ticket;
	struct trainer t;
	float to[7];

	heals(&t, f);
	EXPECT(SHARD_OK, shard_pull(t.model, 1, 0, 7, 1, to, SHARD_F32, &ticket));
	fake_close(f);
	broken_is_told(&t);
	for (int i = 0; i < 7; i++)
		to[i] = 77;
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	whole_step(&t, 1);
	for (int i = 0; i < 7; i++)
		assert_true(to[i] == 77);
	EXPECT(SHARD_WORLD_CHANGED, shard_test(t.model, ticket));
	trainer_end(&t);
	fake_stop(f);
}

/* A step that was decided while nobody listened is not begun again. */
static void test_decided_meanwhile(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	heals(&t, f);
	mute(f, OP_READY, true);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_set_blob(t.model, "one", 3));
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	fake_await(f, OP_READY, 1);
	fake_close(f);
	fake_lock(f);
	f->knobs.mute[OP_READY] = false;
	for (uint64_t i = 0; i < f->elems; i++)
		f->master[i] -= 1;
	f->step++;
	fake_unlock(f);
	EXPECT(SHARD_WORLD_CHANGED, call_result(&t));
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	assert_int_equal(t.world.step, 2);
	whole_step(&t, 2);
	assert_false(f->ready_has_blob); /* It was one of step 1. */
	trainer_check_image(&t, SHARD_F32, 2);
	trainer_end(&t);
	fake_stop(f);
}

/* A step is computed while the one before it is decided. Both are over. */
static void test_step_ahead(void **state)
{
	struct fake_conf conf = {.tcp = *state != NULL, .staleness = 1};
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct fake *f = fake_start(&conf);
	shard_ticket first;
	struct trainer t;

	heals(&t, f);
	for (uint64_t step = 1; step <= 7; step += 2) {
		mute(f, OP_READY, true);
		trainer_begin(&t);
		assert_int_equal(t.step.step, step);
		trainer_push_all(&t, 1);
		EXPECT(SHARD_OK, shard_commit(t.model, &first));
		trainer_begin(&t);
		assert_int_equal(t.step.step, step + 1);
		trainer_push_all(&t, 1);
		if (step % 4 == 1)
			EXPECT(SHARD_OK, shard_commit(t.model, NULL));
		fake_close(f);
		broken_is_told(&t);
		mute(f, OP_READY, false);
		EXPECT(SHARD_WORLD_CHANGED, shard_result(t.model, first, pace_ms(10000), &r));
		EXPECT(SHARD_WORLD_CHANGED, call_begin(&t));
		EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
		assert_int_equal(t.world.step, step);
		for (int i = 0; i < 2; i++) {
			trainer_begin(&t);
			trainer_push_all(&t, 1);
			EXPECT(SHARD_OK, shard_commit(t.model, NULL));
			EXPECT(SHARD_OK, shard_result(t.model, 0, pace_ms(10000), &r));
			assert_int_equal(r.step, step + (uint64_t)i);
		}
	}
	trainer_end(&t);
	fake_stop(f);
}

/* Without an ATTEMPT the step is known all the same, and the begin waits. */
static void test_world_incomplete(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	heals(&t, f);
	whole_step(&t, 1);
	fake_lock(f);
	f->knobs.waits = "2 more trainers";
	fake_unlock(f);
	fake_close(f);
	broken_is_told(&t);
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	assert_int_equal(t.world.step, 2);
	fake_attempt(f, "");
	whole_step(&t, 2);
	fake_close(f);
	broken_is_told(&t);
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	assert_int_equal(t.world.step, 3);
	fake_lock(f);
	f->step++; /* The others had decided it, as it turns out. */
	fake_publish(f);
	fake_unlock(f);
	fake_attempt(f, "");
	EXPECT(SHARD_WORLD_CHANGED, call_begin(&t));
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	assert_int_equal(t.world.step, 4);
	trainer_end(&t);
	fake_stop(f);
}

/* --- ends --- */

static void test_rolled_back(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	heals(&t, f);
	whole_step(&t, 1);
	whole_step(&t, 2);
	fake_close(f);
	broken_is_told(&t);
	fake_lock(f);
	for (uint64_t i = 0; i < f->elems; i++)
		f->master[i] += 2;
	f->step = 0;
	f->generation++;
	fake_unlock(f);
	EXPECT(SHARD_WORLD_CHANGED, call_begin(&t));
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	assert_int_equal(t.world.step, 1);
	EXPECT(SHARD_ROLLED_BACK, call_blob(&t)); /* The loop is told, whatever it does next. */
	EXPECT(SHARD_ROLLED_BACK, call_begin(&t));
	EXPECT_TEXT("is rolled back to step 0, step 1 begins next");
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	whole_step(&t, 1);
	trainer_check_image(&t, SHARD_F32, 1);
	trainer_end(&t);
	fake_stop(f);
}

/* A trainer that is put out, or is told that it may not go on, does not come again. */
static void test_put_out(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	heals(&t, f);
	fake_error(f, SHARD_CLOSED, "node a stops: SIGTERM");
	broken_is_told(&t);
	EXPECT(SHARD_WORLD_CHANGED, call_begin(&t));
	EXPECT_TEXT("node a stops");
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	fake_error(f, SHARD_TIMEOUT, "put out by uid 0: slow");
	broken_is_told(&t);
	EXPECT(SHARD_CLOSED, call_begin(&t));
	EXPECT_TEXT("put out by uid 0");
	EXPECT(SHARD_CLOSED, shard_world_get(t.model, &t.world));
	trainer_end(&t);
	fake_stop(f);
}

/* The daemon took the end of the connection for that of the trainer. */
static void test_leave_while_broken(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	heals(&t, f);
	whole_step(&t, 1);
	fake_close(f);
	EXPECT(SHARD_OK, shard_leave(t.model, pace_ms(10000)));
	assert_null(shard_grad(t.model, 0));
	trainer_end(&t);
	fake_stop(f);
}

/* --- what cannot be had again --- */

static void refused(void **state, void (*change)(struct fake *f), enum shard_status want,
		    const char *text, enum shard_status later)
{
	struct fake *f = start(*state != NULL);
	const float *image;
	struct trainer t;

	fake_lock(f);
	f->knobs.run_id = "one";
	fake_unlock(f);
	heals(&t, f);
	image = shard_image(t.model, 1);
	fake_close(f);
	broken_is_told(&t);
	change(f);
	EXPECT(want, shard_world_get(t.model, &t.world));
	EXPECT_TEXT(text);
	EXPECT_TEXT(f->address);
	EXPECT(later, call_begin(&t));
	assert_ptr_equal(shard_image(t.model, 1), image);
	trainer_check_image(&t, SHARD_F32, 0);
	trainer_end(&t);
	fake_stop(f);
}

static void other_definition(struct fake *f)
{
	Shard__Spec *s;

	fake_lock(f);
	s = shard__spec__unpack(NULL, f->spec_bytes, f->spec);
	s->tensors[1]->flags = SHARD_FROZEN;
	CHECK(shard__spec__get_packed_size(s) <= f->spec_bytes + 8);
	free(f->spec);
	f->spec_bytes = shard__spec__get_packed_size(s);
	f->spec = malloc(f->spec_bytes);
	shard__spec__pack(s, f->spec);
	shard__spec__free_unpacked(s, NULL);
	fake_unlock(f);
}

static void test_other_definition(void **state)
{
	refused(state, other_definition, SHARD_MISMATCH,
		"is defined in another way there (tensor \"h.0.ln_1.weight\": flags 0x0 here, 0x1 "
		"there)",
		SHARD_MISMATCH);
}

static void other_model(struct fake *f)
{
	fake_lock(f);
	f->knobs.other_model = 1;
	fake_unlock(f);
}

/* The daemon lost its state folder, and counts models from 1 again. */
static void same_number(struct fake *f)
{
	fake_lock(f);
	f->knobs.other_birth = 1;
	fake_unlock(f);
}

static void test_other_model(void **state)
{
	static const char text[] = "the model that this trainer was in was dropped";

	refused(state, other_model, SHARD_NOT_FOUND, text, SHARD_NOT_FOUND);
	refused(state, same_number, SHARD_NOT_FOUND, text, SHARD_NOT_FOUND);
}

static void dropped(struct fake *f)
{
	knob_refuse(f, OP_ATTACH, SHARD_NOT_FOUND, "no model \"gpt\": none is defined");
}

static void test_dropped(void **state)
{
	refused(state, dropped, SHARD_NOT_FOUND, "no model \"gpt\": none is defined",
		SHARD_NOT_FOUND);
}

static void other_run(struct fake *f)
{
	fake_lock(f);
	f->knobs.run_id = "two";
	fake_unlock(f);
}

static void test_other_run(void **state)
{
	refused(state, other_run, SHARD_MISMATCH,
		"is of run \"two\" now, and this trainer is in run "
		"\"one\"",
		SHARD_WORLD_CHANGED);
}

static void test_lost_meanwhile(void **state)
{
	struct fake *f = start(*state != NULL);
	struct trainer t;

	heals(&t, f);
	fake_close(f);
	broken_is_told(&t);
	knob_refuse(f, OP_JOIN, SHARD_LOST, "the weights are gone");
	EXPECT(SHARD_LOST, shard_world_get(t.model, &t.world));
	EXPECT_TEXT("the weights are gone");
	trainer_end(&t);
	fake_stop(f);
}

static void test_time_over(void **state)
{
	struct fake *f = start(*state != NULL);
	char address[200];
	struct trainer t;
	uint64_t began;

	heals(&t, f);
	snprintf(address, sizeof(address), "%s", f->address);
	trainer_looks(&t, 300 * NS_PER_MS);
	fake_stop(f);
	broken_is_told(&t);
	began = clock_ns();
	EXPECT(SHARD_UNREACHABLE, shard_world_get(t.model, &t.world));
	EXPECT_TEXT("looked 0.3 s for a daemon at ");
	EXPECT_TEXT(address);
	EXPECT_TEXT(" times: no shardd at ");
	assert_true(clock_ns() - began >= 300 * NS_PER_MS);
	EXPECT(SHARD_WORLD_CHANGED, call_begin(&t)); /* It may be looked for again. */
	trainer_end(&t);
}

static void *world_gets(void *arg)
{
	struct waiting *w = arg;

	w->rc = shard_world_get(w->t->model, &w->t->world);
	return NULL;
}

static void test_interrupted(void **state)
{
	struct fake *f = start(*state != NULL);
	struct waiting w = {.rc = SHARD_OK};
	struct trainer t;
	bool healing = false;

	heals(&t, f);
	fake_stop(f);
	broken_is_told(&t);
	w.t = &t;
	assert_int_equal(pthread_create(&w.thread, NULL, world_gets, &w), 0);
	while (!healing) {
		(void)poll(NULL, 0, 1);
		pthread_mutex_lock(&t.client->lock);
		healing = t.client->healing;
		pthread_mutex_unlock(&t.client->lock);
	}
	EXPECT(SHARD_WORLD_CHANGED,
	       call_commit(&t) == SHARD_BUSY ? SHARD_WORLD_CHANGED : call_progress(&t));
	shard_interrupt(t.client);
	assert_int_equal(pthread_join(w.thread, NULL), 0);
	assert_int_equal(w.rc, SHARD_INTERRUPTED);
	trainer_end(&t);
}

/* --- the first connection --- */

static void test_first(void **state)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	char dir[] = "/tmp/shard-again-XXXXXX", path[64], address[80];
	shard_client *c = NULL;
	uint64_t began;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/s", dir);
	snprintf(address, sizeof(address), "unix:%s", path);
	o.address = address;
	began = clock_ns();
	EXPECT(SHARD_UNREACHABLE, shard_connect(&c, &o));
	assert_true(clock_ns() - began < pace_ns(5 * NS_PER_SEC)); /* At once. */
	assert_null(strstr(shard_error(), "looked"));
	o.look_ms = 300;
	EXPECT(SHARD_UNREACHABLE, shard_connect(&c, &o));
	EXPECT_TEXT("looked 0.3 s for a daemon at unix:");
	EXPECT_TEXT("ENOENT");
	assert_null(c);
	rmdir(dir);
}

static void *comes_late(void *arg)
{
	char *path = arg;
	struct fake *f;

	(void)poll(NULL, 0, 200); /* So that the first try fails. If it does not, that is fine. */
	f = start(false);
	CHECK(symlink(f->address + strlen("unix:"), path) == 0);
	return f;
}

static void test_first_waits(void **state)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	char dir[] = "/tmp/shard-again-XXXXXX", path[64], address[80];
	pthread_t thread;
	shard_client *c;
	void *f;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/s", dir);
	snprintf(address, sizeof(address), "unix:%s", path);
	assert_int_equal(pthread_create(&thread, NULL, comes_late, path), 0);
	o.address = address;
	o.look_ms = pace_ms(20000);
	EXPECT(SHARD_OK, shard_connect(&c, &o));
	assert_int_equal(pthread_join(thread, &f), 0);
	shard_disconnect(&c);
	fake_stop(f);
	unlink(path);
	rmdir(dir);
}

/* A join that waits for others goes on over a new connection. */
static void *joins(void *arg)
{
	struct waiting *w = arg;

	w->rc = shard_join(w->t->model, 0, pace_ms(20000), &w->t->world);
	return NULL;
}

static void test_join_goes_on(void **state)
{
	struct fake *f = start(*state != NULL);
	struct waiting w = {.rc = SHARD_SYSTEM};
	struct trainer t;

	trainer_define(&t, f->address, SHARD_F32, SHARD_F32);
	trainer_looks(&t, (uint64_t)pace_ms(20000) * NS_PER_MS);
	w.t = &t;
	fake_lock(f);
	f->knobs.waits = "2 more trainers";
	fake_unlock(f);
	assert_int_equal(pthread_create(&w.thread, NULL, joins, &w), 0);
	fake_await(f, OP_JOIN, 1);
	fake_close(f);
	fake_await(f, OP_JOIN, 2);
	fake_attempt(f, "");
	assert_int_equal(pthread_join(w.thread, NULL), 0);
	assert_int_equal(w.rc, SHARD_OK);
	whole_step(&t, 1);
	trainer_end(&t);
	fake_stop(f);
}

/* --- a rollback while the connection stands --- */

/* Another node knew of it first, and refuses the blob. */
static void test_stale_blob(void **state)
{
	struct fake *f = start(*state != NULL);
	struct waiting w = {.call = call_blob};
	struct trainer t;

	heals(&t, f);
	whole_step(&t, 1);
	knob_refuse(f, OP_BLOB, SHARD_STALE, "the model's generation is over");
	w.t = &t;
	assert_int_equal(pthread_create(&w.thread, NULL, waits, &w), 0);
	fake_await(f, OP_BLOB, 1);
	fake_rolled_back(f, 0, "the model was restored");
	assert_int_equal(pthread_join(w.thread, NULL), 0);
	assert_int_equal(w.rc, SHARD_ROLLED_BACK);
	EXPECT(SHARD_ROLLED_BACK, call_blob(&t));
	/* Nothing was rolled back here. */
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	EXPECT(SHARD_STALE, call_blob(&t));
	EXPECT_TEXT("the model's generation is over");
	trainer_end(&t);
	fake_stop(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(test_each_call),          BOTH(test_waiting_calls),
		BOTH(test_pull_is_void),       BOTH(test_decided_meanwhile),
		BOTH(test_step_ahead),         BOTH(test_world_incomplete),
		BOTH(test_rolled_back),        BOTH(test_put_out),
		BOTH(test_leave_while_broken), BOTH(test_other_definition),
		BOTH(test_other_model),        BOTH(test_dropped),
		BOTH(test_other_run),          BOTH(test_lost_meanwhile),
		BOTH(test_time_over),          BOTH(test_interrupted),
		BOTH(test_join_goes_on),       BOTH(test_stale_blob),
		cmocka_unit_test(test_first),  cmocka_unit_test(test_first_waits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
