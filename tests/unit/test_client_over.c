// SPDX-License-Identifier: Apache-2.0
/* Tests what may come between any two statements of a step, against a scripted daemon. After the
 * end of a connection the memory of a joined trainer stays mapped, no call begins anything on a
 * connection that it knows to be over, and nothing is mapped from a daemon that is gone. When
 * another step comes, a begin that waits looks at the whole image again. Another thread may also
 * read a frame. The test forces these moments by holding the client's lock while the caller sits in
 * poll(2). What the daemon then sends, and its end, reach the caller in one read. */
#include "base/check.h"
#include "client/handle.h"
#include "lib/fakeserver.h"
#include "lib/fakeserver_impl.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* A thread that holds this lock keeps the library from entering the kernel's poll(2), as a
 * scheduler may do. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

int poll(struct pollfd *fds, nfds_t nr, int timeout_ms)
{
	if (nr == 2) { /* The library polls its socket and the descriptor that wakes it. */
		pthread_mutex_lock(&gate);
		pthread_mutex_unlock(&gate);
	}
	if (timeout_ms < 0)
		return ppoll(fds, nr, NULL, NULL);
	return ppoll(fds, nr, &(struct timespec){timeout_ms / 1000, timeout_ms % 1000 * 1000000L},
		     NULL);
}

static struct fake *start(bool tcp)
{
	struct fake_conf conf = {.tcp = tcp};

	return fake_start(&conf);
}

struct caller {
	struct trainer t;
	pthread_t thread;
	enum shard_status rc;
	char text[512];
	struct shard_kept kept;
};

static void said(struct caller *c, enum shard_status rc)
{
	c->rc = rc;
	snprintf(c->text, sizeof(c->text), "%s", shard_error());
}

static void *begins(void *arg)
{
	struct caller *c = arg;

	said(c, shard_begin(c->t.model, NULL, &c->t.step));
	return NULL;
}

static void *joins(void *arg)
{
	struct caller *c = arg;

	said(c, shard_join(c->t.model, 0, SHARD_DEFAULT, &c->t.world));
	return NULL;
}

/* Returns with the client's lock held, while the call sits in poll(2). It only tries that lock,
 * because the test may hold the lock of the scripted daemon, which elsewhere is taken after it. */
static void start_and_hold(struct caller *c, void *(*call)(void *))
{
	assert_int_equal(pthread_create(&c->thread, NULL, call, c), 0);
	for (;;) {
		if (pthread_mutex_trylock(&c->t.client->lock) == 0) {
			if (c->t.client->pumping)
				return;
			pthread_mutex_unlock(&c->t.client->lock);
		}
		(void)poll(NULL, 0, 1);
	}
}

static void let_go(struct caller *c)
{
	pthread_mutex_unlock(&c->t.client->lock);
	assert_int_equal(pthread_join(c->thread, NULL), 0);
}

/* Ends the connection. The caller holds the scripted daemon's lock. shutdown(2) is needed, because
 * the daemon's thread may sit in poll(2) with this socket, which would delay the effect of a
 * close(2) until it wakes. */
static void end_now(struct fake *f)
{
	struct err e;

	CHECK(stream_write(f->stream, &e) == SHARD_OK);
	CHECK(shutdown(stream_fd(f->stream), SHUT_RDWR) == 0);
	stream_free(&f->stream);
}

static void all_zero(const void *memory, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		assert_int_equal(((const unsigned char *)memory)[i], 0);
}

/* A trainer may use the memory that it was given, whatever became of its connection. */
static void still_memory(struct trainer *t, float *grad, const void *image, float minus)
{
	size_t bytes;
	void *base;

	assert_ptr_equal(shard_grad(t->model, 0), grad);
	assert_ptr_equal(shard_image(t->model, 0), image);
	trainer_check_image(t, SHARD_F32, minus);
	EXPECT(SHARD_OK, shard_region(t->model, SHARD_GRAD, &base, &bytes));
	assert_ptr_equal(base, grad);
	grad[0] = 7;
	assert_true(grad[0] == 7);
}

/* The last frame of an image and the end of the connection come in one read. The begin that waited
 * for the image says that the connection is over. */
static void test_begin_and_end(void **state)
{
	struct fake *f = start(false);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct wire_head h;
	struct caller c;
	const void *image;
	float *grad;

	(void)state;
	trainer_join(&c.t, f->address, SHARD_F32, SHARD_F32);
	trainer_begin(&c.t);
	grad = shard_grad(c.t.model, 0);
	image = shard_image(c.t.model, 0);
	assert_true(grad != NULL && image != NULL);
	trainer_push_all(&c.t, 1);
	fake_lock(f);
	f->knobs.no_next_attempt = true;
	fake_unlock(f);
	EXPECT(SHARD_OK, shard_commit(c.t.model, NULL));
	EXPECT(SHARD_OK, shard_result(c.t.model, 0, SHARD_DEFAULT, &r));
	start_and_hold(&c, begins);
	fake_lock(f);
	fake_send_attempt(f, "");
	/* This frame has no body, so one read gets it and the end. */
	h = fake_head(f, OP_PUBLISHED);
	fake_control(f, &h, NULL);
	end_now(f);
	fake_unlock(f);
	let_go(&c);
	assert_int_equal(c.rc, SHARD_CLOSED);
	assert_non_null(strstr(c.text, "is over"));
	still_memory(&c.t, grad, image, 1);
	all_zero((char *)grad + 64, 64);
	shard_disconnect(&c.t.client);
	fake_stop(f);
}

/* A connection ends in the middle of a step. Over tcp the library's thread notices it between any
 * two statements of the trainer. */
static void test_end_in_step(void **state)
{
	struct fake *f = start(*state != NULL);
	const void *image;
	struct trainer t;
	float *grad;

	trainer_join(&t, f->address, SHARD_F32, SHARD_F32);
	trainer_begin(&t);
	grad = shard_grad(t.model, 0);
	image = shard_image(t.model, 0);
	fake_close(f);
	while (shard_progress(t.client) == SHARD_OK)
		(void)poll(NULL, 0, 1);
	still_memory(&t, grad, image, 0);
	EXPECT(SHARD_CLOSED, shard_push(t.model, 0, 0, 1, NULL, SHARD_F32, 0, NULL));
	shard_disconnect(&t.client);
	fake_stop(f);
}

/* The daemon asks for a sign of life, says why it ends the connection, and ends it. The library
 * finds that it cannot send before it has read any of this. It still says why. */
static void test_last_words_after_ping(void **state)
{
	struct fake *f = start(false);
	struct wire_head ping = {.op = OP_PING}, error = {.op = OP_ERROR};
	Shard__Error x = SHARD__ERROR__INIT;
	enum shard_status rc;
	struct trainer t;

	(void)state;
	trainer_join(&t, f->address, SHARD_F32, SHARD_F32);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	x.status = SHARD_CLOSED;
	x.text = (char *)(uintptr_t) "dropped by the test";
	fake_lock(f);
	fake_control(f, &ping, NULL);
	fake_control(f, &error, &x.base);
	end_now(f);
	fake_unlock(f);
	rc = shard_commit(t.model, NULL);
	while (rc == SHARD_OK)
		rc = shard_progress(t.client);
	assert_int_equal(rc, SHARD_CLOSED);
	EXPECT_TEXT("dropped by the test");
	shard_disconnect(&t.client);
	fake_stop(f);
}

/* A model is lost in the middle of a step. Its calls say so, and its memory stays until the handle
 * is detached. */
static void test_lost_in_step(void **state)
{
	struct fake *f = start(*state != NULL);
	const void *image;
	struct trainer t;
	float *grad;

	trainer_join(&t, f->address, SHARD_F32, SHARD_F32);
	trainer_begin(&t);
	grad = shard_grad(t.model, 0);
	image = shard_image(t.model, 0);
	fake_lost(f, "all copies are gone");
	while (shard_push(t.model, 0, 0, 1, NULL, SHARD_F32, 0, NULL) != SHARD_LOST)
		EXPECT(SHARD_OK, shard_progress(t.client));
	still_memory(&t, grad, image, 0);
	trainer_end(&t);
	fake_stop(f);
}

/* The library finds the answer to JOIN and the end of the connection in the same turn, because it
 * had to answer a PING, too. It maps nothing of a daemon that is gone, and hands nothing out. */
static void test_join_and_end(void **state)
{
	struct fake *f = start(false);
	struct caller c = {.t.world = SHARD_INIT(struct shard_world)};
	struct wire_head ping = {.op = OP_PING};

	(void)state;
	trainer_define(&c.t, f->address, SHARD_F32, SHARD_F32);
	fake_lock(f); /* So the daemon's thread handles JOIN only when the caller is held. */
	start_and_hold(&c, joins);
	fake_control(f, &ping, NULL);
	fake_unlock(f);
	fake_await(f, OP_JOIN, 1);
	fake_lock(f);
	end_now(f);
	fake_unlock(f);
	let_go(&c);
	assert_int_equal(c.rc, SHARD_CLOSED);
	assert_null(c.t.model->arena.base);
	assert_null(shard_grad(c.t.model, 0));
	EXPECT_TEXT("is over");
	assert_null(shard_image(c.t.model, 0));
	shard_disconnect(&c.t.client);
	fake_stop(f);
}

/* Marks the chunks of [from, to) as those of `step`, and leaves their bytes as they are. */
static void versions(struct fake *f, uint32_t from, uint32_t to, uint64_t step)
{
	struct image_head *h = f->shared.base;

	for (uint32_t c = from; c < to; c++)
		atomic_store(&h->version[c], step);
}

static bool looks_for(struct caller *c, uint64_t step)
{
	bool looks;

	pthread_mutex_lock(&c->t.client->lock);
	looks = c->t.client->pumping && c->t.model->offered.id.step == step;
	pthread_mutex_unlock(&c->t.client->lock);
	return looks;
}

/* While a begin waits for the second half of an image, its attempt ends, the step is committed
 * without this trainer, and the next attempt has the same ranks. The first half, which was there
 * for the old step, is not there for the new one. */
static void test_step_moves_on(void **state)
{
	struct fake *f = start(false);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct wire_head h;
	struct caller c = {.rc = SHARD_OK};

	(void)state;
	trainer_join(&c.t, f->address, SHARD_F32, SHARD_F32);
	trainer_begin(&c.t);
	trainer_push_all(&c.t, 1);
	fake_lock(f);
	f->knobs.no_next_attempt = true;
	fake_unlock(f);
	EXPECT(SHARD_OK, shard_commit(c.t.model, NULL));
	EXPECT(SHARD_OK, shard_result(c.t.model, 0, SHARD_DEFAULT, &r));
	start_and_hold(&c, begins);
	fake_lock(f);
	assert_true(f->chunks_nr >= 4);
	versions(f, 2, f->chunks_nr, 0);
	fake_send_attempt(f, "");
	fake_unlock(f);
	pthread_mutex_unlock(&c.t.client->lock);
	while (!looks_for(&c, 2))
		(void)poll(NULL, 0, 1);
	fake_ended(f, "node b is out of reach");
	fake_lock(f);
	f->step++;
	f->attempt = 0;
	versions(f, 2, f->chunks_nr, 2);
	fake_send_attempt(f, "");
	fake_unlock(f);
	for (int ms = 0; !looks_for(&c, 3) && ms < 10000; ms++)
		(void)poll(NULL, 0, 1);
	assert_true(looks_for(&c, 3)); /* The begin still waits. */
	fake_lock(f);
	versions(f, 0, 2, 2);
	h = fake_head(f, OP_PUBLISHED);
	fake_control(f, &h, NULL);
	fake_unlock(f);
	assert_int_equal(pthread_join(c.thread, NULL), 0);
	assert_int_equal(c.rc, SHARD_OK);
	assert_int_equal(c.t.step.step, 3);
	shard_disconnect(&c.t.client);
	fake_stop(f);
}

static void *results(void *arg)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct caller *c = arg;

	said(c, shard_result(c->t.model, 0, SHARD_DEFAULT, &r));
	return NULL;
}

/* One thread waits for the result of a step and is about to enter poll(2) for all threads. Another
 * one begins the next step, reads the result meanwhile, and makes no further calls. The first one
 * must still get the result. */
static void test_read_by_another(void **state)
{
	struct fake *f = start(false);
	struct caller c = {.rc = SHARD_CLOSED};
	struct timespec limit;
	struct pollfd p;

	(void)state;
	trainer_join(&c.t, f->address, SHARD_F32, SHARD_F32);
	trainer_begin(&c.t);
	trainer_push_all(&c.t, 1);
	fake_lock(f);
	f->knobs.mute[OP_READY] = true;
	fake_unlock(f);
	EXPECT(SHARD_OK, shard_commit(c.t.model, NULL));
	fake_await(f, OP_READY, 1);
	pthread_mutex_lock(&gate);
	start_and_hold(&c, results);
	pthread_mutex_unlock(&c.t.client->lock);
	fake_result(f);
	p = (struct pollfd){.fd = stream_fd(c.t.client->stream), .events = POLLIN};
	assert_int_equal(poll(&p, 1, pace_ms(10000)), 1);
	trainer_begin(&c.t);
	assert_int_equal(c.t.step.step, 2);
	pthread_mutex_unlock(&gate);
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 15; /* The model's timeout is 20 s. */
	assert_int_equal(pthread_timedjoin_np(c.thread, NULL, &limit), 0);
	assert_int_equal(c.rc, SHARD_OK);
	shard_disconnect(&c.t.client);
	fake_stop(f);
}

static void *keeps(void *arg)
{
	struct caller *c = arg;

	c->kept = SHARD_INIT(struct shard_kept);
	said(c, shard_keep(c->t.model, SHARD_IMAGE, pace_ms(10000), &c->kept));
	return NULL;
}

/* The result of a step is known, and its image is half there. shard_keep() waits for the rest. If
 * it may not wait, or the connection ends, it says that the weights are mixed. */
static void test_keep_in_update(void **state)
{
	struct fake *f = start(false);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_kept kept = SHARD_INIT(struct shard_kept);
	struct caller c = {.rc = SHARD_CLOSED};
	struct image_head *head;
	struct wire_head h;

	(void)state;
	trainer_join(&c.t, f->address, SHARD_F32, SHARD_F32);
	head = f->shared.base;
	trainer_begin(&c.t);
	trainer_push_all(&c.t, 1);
	fake_lock(f);
	f->knobs.no_next_attempt = true;
	fake_unlock(f);
	EXPECT(SHARD_OK, shard_commit(c.t.model, NULL));
	EXPECT(SHARD_OK, shard_result(c.t.model, 0, SHARD_DEFAULT, &r));
	fake_lock(f);
	versions(f, 0, f->chunks_nr, 0);
	fake_unlock(f);
	/* Whole, but not the newest: it is taken as it is. */
	EXPECT(SHARD_OK, shard_keep(c.t.model, SHARD_IMAGE, 0, &kept));
	assert_int_equal(kept.step, 0);
	assert_int_equal(kept.mixed, 0);
	shard_unmap(&kept);
	fake_lock(f);
	versions(f, 0, 2, 1);
	fake_unlock(f);
	EXPECT(SHARD_OK, shard_keep(c.t.model, SHARD_IMAGE, 0, &kept));
	assert_int_equal(kept.step, 0);
	assert_int_equal(kept.mixed, 1);
	shard_unmap(&kept);

	start_and_hold(&c, keeps); /* It waits. */
	pthread_mutex_unlock(&c.t.client->lock);
	fake_lock(f);
	versions(f, 0, f->chunks_nr, 1);
	h = fake_head(f, OP_PUBLISHED);
	fake_control(f, &h, NULL);
	fake_unlock(f);
	assert_int_equal(pthread_join(c.thread, NULL), 0);
	assert_int_equal(c.rc, SHARD_OK);
	assert_int_equal(c.kept.step, 1);
	assert_int_equal(c.kept.mixed, 0);
	shard_unmap(&c.kept);

	fake_close(f);
	while (shard_progress(c.t.client) == SHARD_OK)
		(void)poll(NULL, 0, 1);
	/* A daemon that lives on may be writing, whatever the versions say. */
	atomic_fetch_add(&head->open, 1);
	EXPECT(SHARD_OK, shard_keep(c.t.model, SHARD_IMAGE, pace_ms(10000), &kept));
	assert_int_equal(kept.step, 1);
	assert_int_equal(kept.mixed, 1);
	shard_unmap(&kept);
	shard_disconnect(&c.t.client);
	fake_stop(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_begin_and_end),  OVER_BOTH(test_end_in_step),
		OVER_BOTH(test_lost_in_step),          cmocka_unit_test(test_join_and_end),
		cmocka_unit_test(test_step_moves_on),  cmocka_unit_test(test_read_by_another),
		cmocka_unit_test(test_keep_in_update), cmocka_unit_test(test_last_words_after_ping),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
