// SPDX-License-Identifier: Apache-2.0
/* Tests shard_save(), shard_restore(), shard_set_blob() and shard_blob() against a scripted daemon:
 * which calls a save makes wait, how a save ends, what a restore takes for silence, and with which
 * READY a blob travels. */
#include "base/check.h"
#include "base/clock.h"
#include "ckpt.h"
#include "lib/fakeserver.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct fake *start(bool tcp)
{
	struct fake_conf conf = {.tcp = tcp, .rank = 2, .world_size = 4};

	return fake_start(&conf);
}

static void mute(struct fake *f, uint16_t op, bool value)
{
	fake_lock(f);
	f->knobs.mute[op] = value;
	fake_unlock(f);
}

static struct wire_head newest(struct fake *f, uint16_t op, uint32_t n)
{
	struct wire_head h;

	fake_await(f, op, n);
	fake_lock(f);
	h = f->last[op];
	fake_unlock(f);
	return h;
}

/* --- save --- */

/* Three saves run at once. Steps do not wait for them, their progress is told, and each ends with
 * its own status. */
static void test_save(void **state)
{
	struct fake *f = start(*state != NULL);
	shard_ticket a, b, c, pull;
	struct wire_head ha, hb, hc;
	float x[4];
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	mute(f, OP_SAVE, true);
	EXPECT(SHARD_OK, shard_save(t.model, "/ckpt", "first", &a));
	ha = newest(f, OP_SAVE, 1);
	assert_string_equal(f->save_dir, "/ckpt");
	assert_string_equal(f->save_tag, "first");
	assert_int_equal(ha.model, FAKE_MODEL);
	EXPECT(SHARD_OK, shard_save(t.model, NULL, NULL, &b));
	hb = newest(f, OP_SAVE, 2);
	assert_string_equal(f->save_dir, "");
	EXPECT(SHARD_OK, shard_save(t.model, "/ckpt", "third", &c));
	hc = newest(f, OP_SAVE, 3);
	assert_true(a < b && b < c);
	/* Only a wait for the ticket of a save waits for the save. */
	EXPECT(SHARD_OK, shard_pull(t.model, 0, 0, 4, 0, x, SHARD_F32, &pull));
	EXPECT(SHARD_OK, shard_wait(t.model, pull, pace_ms(5000)));
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, &pull));
	EXPECT(SHARD_OK, shard_wait(t.model, pull, pace_ms(5000)));
	EXPECT(SHARD_AGAIN, shard_test(t.model, a));
	EXPECT(SHARD_TIMEOUT, shard_wait(t.model, a, 0));
	fake_progress(f, &ha, 3 << 20, 4 << 20);
	EXPECT(SHARD_TIMEOUT, shard_wait(t.model, a, 30));
	fake_progress(f, &hb, 1, 2);
	for (int i = 0; i < 100 && strstr(shard_error(), "3145728 of 4194304") == NULL; i++)
		EXPECT(SHARD_TIMEOUT, shard_wait(t.model, a, 30));
	EXPECT_TEXT("save of \"gpt\"");
	EXPECT_TEXT("3145728 of 4194304 bytes are written");
	/* Saves may end in any order. */
	f->sys = EDQUOT;
	fake_saved(f, &hb, SHARD_SYSTEM,
		   "node b: /ckpt/.global_step1.tmp/node-b.safetensors: No space left on device");
	errno = 0;
	EXPECT(SHARD_SYSTEM, shard_wait(t.model, b, pace_ms(5000)));
	/* errno comes from a field of the frame and not from the text. */
	assert_int_equal(errno, EDQUOT);
	EXPECT_TEXT("node b: /ckpt/.global_step1.tmp/node-b.safetensors: No space left on device");
	EXPECT(SHARD_SYSTEM, shard_wait(t.model, b, 0)); /* The answer stays the same. */
	EXPECT(SHARD_SYSTEM, shard_test(t.model, b));
	EXPECT(SHARD_AGAIN, shard_test(t.model, a));
	fake_saved(f, &ha, SHARD_OK, NULL);
	EXPECT(SHARD_OK, shard_wait(t.model, a, pace_ms(5000)));
	EXPECT(SHARD_OK, shard_test(t.model, a));
	fake_close(f); /* The third save never ends. */
	EXPECT(SHARD_CLOSED, shard_wait(t.model, c, pace_ms(5000)));
	EXPECT(SHARD_OK, shard_wait(t.model, a, 0)); /* A known result stays. */
	EXPECT(SHARD_CLOSED, shard_save(t.model, NULL, NULL, &c));
	(void)hc;
	trainer_end(&t);
	fake_stop(f);
}

/* Bad texts are refused before anything is sent, and at most 64 saves of a model run at once. */
static void test_save_limits(void **state)
{
	struct fake *f = start(*state != NULL);
	char longer[1100];
	shard_ticket first = 0, ticket;
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16); /* A save needs no join. */
	memset(longer, 'x', sizeof(longer));
	longer[sizeof(longer) - 1] = 0;
	EXPECT(SHARD_BAD_ARG, shard_save(t.model, longer, NULL, &ticket));
	EXPECT(SHARD_BAD_ARG, shard_save(t.model, NULL, longer, &ticket));
	EXPECT(SHARD_BAD_ARG, shard_save(NULL, NULL, NULL, &ticket));
	/* The library itself refuses a text that the daemon would not accept, so the connection
	 * stays. */
	EXPECT(SHARD_BAD_ARG, shard_save(t.model, "/ck\npt", NULL, &ticket));
	EXPECT_TEXT("dir \"/ck...\" has a control character (0x0a) at byte 3");
	EXPECT(SHARD_BAD_ARG, shard_save(t.model, NULL, "ta\x1bg", &ticket));
	EXPECT_TEXT("tag \"ta...\" has a control character (0x1b) at byte 2");
	EXPECT(SHARD_BAD_ARG, shard_save(t.model, NULL, "\xff", &ticket));
	EXPECT_TEXT("tag \"...\" has what is not UTF-8 (0xff) at byte 0");
	assert_int_equal(f->frames[OP_SAVE], 0);
	/* Saves that have ended make room for more. */
	for (int i = 0; i < 200; i++) {
		EXPECT(SHARD_OK, shard_save(t.model, NULL, NULL, i % 3 ? &ticket : NULL));
		if (i % 3)
			EXPECT(SHARD_OK, shard_wait(t.model, ticket, pace_ms(5000)));
	}
	mute(f, OP_SAVE, true);
	for (int i = 0; i < 64; i++)
		EXPECT(SHARD_OK, shard_save(t.model, NULL, NULL, first ? &ticket : &first));
	EXPECT(SHARD_AGAIN, shard_save(t.model, NULL, NULL, &ticket));
	EXPECT_TEXT("64 saves of \"gpt\" are under way");
	shard_detach(&t.model); /* While all of them run. */
	trainer_end(&t);
	fake_stop(f);
}

/* --- restore --- */

/* A restore returns a handle with the tensors of the checkpoint, or says why there is none. */
static void test_restore(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_info info = SHARD_INIT(struct shard_info);
	shard_model *m = NULL;
	struct trainer t;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	/* This connection already has a handle on the model. */
	EXPECT(SHARD_EXISTS, shard_restore(t.client, "/ckpt", NULL, NULL, &m));
	assert_null(m);
	shard_detach(&t.model);
	EXPECT(SHARD_BAD_ARG, shard_restore(t.client, NULL, NULL, NULL, &m));
	EXPECT(SHARD_BAD_ARG, shard_restore(t.client, "/ckpt", NULL, NULL, NULL));
	EXPECT(SHARD_PROTOCOL, shard_restore(t.client, "/ckpt", "damaged", NULL, &m));
	EXPECT_TEXT("node-a.safetensors: piece 0 differs");
	EXPECT(SHARD_PROTOCOL, shard_restore(t.client, "/ckpt", "nameless", NULL, &m));
	EXPECT_TEXT("cannot be read");
	EXPECT(SHARD_OK, shard_restore(t.client, "/ckpt", NULL, NULL, &m));
	assert_int_equal(shard_tensors(m), TRAINER_TENSORS);
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		EXPECT(SHARD_OK, shard_tensor_info(m, i, &info));
		assert_int_equal(info.numel, trainer_numel[i]);
	}
	assert_string_equal(info.name, "ln_f.weight");
	t.model = m;
	t.world = (struct shard_world)SHARD_INIT(struct shard_world);
	t.step = (struct shard_step)SHARD_INIT(struct shard_step);
	/* From here on it is used like a model that was defined. */
	EXPECT(SHARD_OK, shard_join(m, -1, pace_ms(5000), &t.world));
	trainer_begin(&t);
	trainer_check_image(&t, SHARD_BF16, 0);
	trainer_end(&t);
	fake_stop(f);
}

struct talker {
	pthread_t thread;
	struct fake *f;
	int words;
};

static void *talk(void *arg)
{
	struct talker *k = arg;
	struct wire_head h = newest(k->f, OP_RESTORE, 1);
	struct timespec pause = {.tv_nsec = 100000000};

	for (int i = 0; i < k->words; i++) {
		fake_progress(k->f, &h, (uint64_t)i, 100);
		nanosleep(&pause, NULL); /* The test is about time, so it has to sleep. */
	}
	return NULL;
}

struct seen {
	uint64_t calls, done, total;
};

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
	struct seen *s = arg;

	s->calls++;
	s->done = done;
	s->total = total;
}

/* The timeout limits the silence between two progress frames and not the whole restore. */
static void test_restore_silent(void **state)
{
	struct fake *f = start(*state != NULL);
	struct talker k = {.f = f, .words = 8};
	struct seen seen = {0};
	struct ckpt_ask a = {
		.dir = "/ckpt", .timeout_ms = 400, .progress = on_progress, .arg = &seen};
	struct ckpt_answer answer;
	struct trainer t;
	uint64_t began;

	trainer_define(&t, f->address, SHARD_BF16, SHARD_BF16);
	mute(f, OP_RESTORE, true);
	CHECK(pthread_create(&k.thread, NULL, talk, &k) == 0);
	began = clock_ns();
	pthread_mutex_lock(&t.client->lock);
	assert_int_equal(ckpt_restore(t.client, &a, &answer, NULL), SHARD_TIMEOUT);
	pthread_mutex_unlock(&t.client->lock);
	/* 700 ms of progress and 400 ms of silence, less what the clocks may differ. */
	assert_true(clock_ns() - began >= 1000 * NS_PER_MS);
	EXPECT_TEXT("7 of 100 bytes");
	pthread_join(k.thread, NULL);
	assert_true(seen.calls >= 2 && seen.done == 7 && seen.total == 100);
	trainer_end(&t);
	fake_stop(f);
}

/* --- blobs --- */

static void commit(struct fake *f, struct trainer *t)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	(void)f;
	trainer_push_all(t, 1);
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(5000), &r));
}

static void expect_blob(struct trainer *t, uint32_t bytes, unsigned char first, uint64_t at)
{
	static unsigned char got[65536];
	size_t n = sizeof(got);
	uint64_t step = 0;

	EXPECT(SHARD_OK, shard_blob(t->model, 2, got, &n, &step));
	assert_int_equal(n, bytes);
	assert_int_equal(step, at);
	if (bytes > 0)
		assert_int_equal(got[0], first);
}

/* A blob travels with the READY of its step and counts once the step is committed or skipped. */
static void test_blob(void **state)
{
	struct fake *f = start(*state != NULL);
	unsigned char *big = calloc(65537, 1), got[4];
	struct shard_result r = SHARD_INIT(struct shard_result);
	uint64_t step;
	size_t n = 4;
	struct trainer t;

	CHECK(big != NULL);
	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_BAD_STATE, shard_set_blob(t.model, "x", 1));
	EXPECT(SHARD_NOT_FOUND, shard_blob(t.model, 2, got, &n, &step));
	EXPECT(SHARD_BAD_ARG, shard_blob(t.model, 2, got, NULL, &step));
	EXPECT(SHARD_BAD_ARG, shard_blob(t.model, 2, NULL, &n, &step));
	trainer_begin(&t);
	EXPECT(SHARD_RANGE, shard_set_blob(t.model, big, 65537));
	EXPECT_TEXT("65537 bytes, at most 65536");
	EXPECT(SHARD_BAD_ARG, shard_set_blob(t.model, NULL, 1));
	big[0] = 1;
	EXPECT(SHARD_OK, shard_set_blob(t.model, "first", 5));
	/* The last call counts, and it has copied the bytes. */
	EXPECT(SHARD_OK, shard_set_blob(t.model, big, 65536));
	big[0] = 99;
	commit(f, &t);
	EXPECT(SHARD_BAD_STATE, shard_set_blob(t.model, "x", 1));
	assert_true(f->ready_has_blob && f->ready_blob.bytes == 65536);
	expect_blob(&t, 65536, 1, 1);
	n = 4;
	/* If the memory is too small, n is what is needed. */
	EXPECT(SHARD_RANGE, shard_blob(t.model, 2, got, &n, &step));
	assert_int_equal(n, 65536);
	trainer_begin(&t);
	commit(f, &t); /* Without a new blob the older one stays, with its step. */
	assert_false(f->ready_has_blob);
	expect_blob(&t, 65536, 1, 1);
	trainer_begin(&t);
	EXPECT(SHARD_OK, shard_set_blob(t.model, NULL, 0));
	trainer_push_all(&t, 1);
	mute(f, OP_READY, true);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	fake_await(f, OP_READY, 3);
	fake_ended(f, "rank 3 is gone");
	EXPECT(SHARD_WORLD_CHANGED, shard_result(t.model, 0, pace_ms(5000), &r));
	expect_blob(&t, 65536, 1, 1); /* An attempt that ends does not change the blob. */
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	mute(f, OP_READY, false);
	fake_attempt(f, "");
	trainer_begin(&t);
	commit(f, &t); /* The same step again, with the blob that was set for it. */
	assert_true(f->ready_has_blob && f->ready_blob.bytes == 0);
	expect_blob(&t, 0, 0, 3);
	n = 0;
	EXPECT(SHARD_OK, shard_blob(t.model, 2, NULL, &n, NULL));
	trainer_begin(&t);
	EXPECT(SHARD_OK, shard_set_blob(t.model, "skipped", 7));
	EXPECT(SHARD_OK, shard_vote_skip(t.model, "bad data"));
	EXPECT(SHARD_OK, shard_result(t.model, 0, pace_ms(5000), &r));
	expect_blob(&t, 7, 's', 4);
	free(big);
	trainer_end(&t);
	fake_stop(f);
}

/* A blob that was set for a step is forgotten when the model is rolled back. */
static void test_blob_rolled_back(void **state)
{
	struct fake *f = start(*state != NULL);
	shard_ticket save;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_OK, shard_save(t.model, NULL, NULL, &save));
	EXPECT(SHARD_OK, shard_wait(t.model, save, pace_ms(5000)));
	trainer_begin(&t);
	EXPECT(SHARD_OK, shard_set_blob(t.model, "gone", 4));
	fake_rolled_back(f, 0, "lost");
	while (shard_push_none(t.model, 0) != SHARD_ROLLED_BACK)
		EXPECT(SHARD_OK, shard_progress(t.client));
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	fake_attempt(f, "");
	trainer_begin(&t);
	commit(f, &t);
	assert_false(f->ready_has_blob);
	trainer_end(&t);
	fake_stop(f);
}

/* --- threads --- */

struct worker {
	pthread_t thread;
	struct trainer *t;
	int failed;
};

static void *saves_and_blobs(void *arg)
{
	struct worker *w = arg;
	char got[16];

	for (int i = 0; i < 100; i++) {
		shard_ticket ticket;
		size_t n = sizeof(got);
		uint64_t step;
		enum shard_status rc = shard_save(w->t->model, NULL, NULL, &ticket);

		if (rc == SHARD_OK && (i & 1))
			while ((rc = shard_test(w->t->model, ticket)) == SHARD_AGAIN) {
				struct pollfd p = {.fd = shard_fd(w->t->client), .events = POLLIN};

				/* Without a pause these threads may keep the lock from the one that
				 * reads the socket. */
				(void)poll(&p, 1, 1);
				(void)!shard_progress(w->t->client);
			}
		else if (rc == SHARD_OK)
			rc = shard_wait(w->t->model, ticket, pace_ms(10000));
		w->failed += rc != SHARD_OK;
		rc = shard_blob(w->t->model, 2, got, &n, &step);
		w->failed += rc != SHARD_OK || n != 5 || step == 0;
	}
	return NULL;
}

/* Four threads save and read blobs on one handle while the main thread makes steps. */
static void test_threads(void **state)
{
	struct fake *f = start(*state != NULL);
	struct worker w[4] = {{.failed = 0}};
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	EXPECT(SHARD_OK, shard_set_blob(t.model, "zeroe", 5));
	commit(f, &t);
	for (int i = 0; i < 4; i++) {
		w[i].t = &t;
		CHECK(pthread_create(&w[i].thread, NULL, saves_and_blobs, &w[i]) == 0);
	}
	for (int i = 0; i < 20; i++) {
		trainer_begin(&t);
		EXPECT(SHARD_OK, shard_set_blob(t.model, "again", 5));
		commit(f, &t);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(w[i].thread, NULL);
		assert_int_equal(w[i].failed, 0);
	}
	trainer_end(&t);
	fake_stop(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER_BOTH(test_save),    OVER_BOTH(test_save_limits),
		OVER_BOTH(test_restore), OVER_BOTH(test_restore_silent),
		OVER_BOTH(test_blob),    OVER_BOTH(test_blob_rolled_back),
		OVER_BOTH(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
