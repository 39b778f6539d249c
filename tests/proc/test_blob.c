// SPDX-License-Identifier: Apache-2.0
/* Tests blobs on two real nodes. They are committed with the step, and not with an attempt that
 * ended. A rank finds its own blob from any node, after it left, after it was killed, and in worlds
 * of other sizes. A node that could have a newer blob is named. The contents are a function of rank
 * and step, so every bit is checked. */
#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "data/blobs.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define LARGEST 65536u

/* --- the contents of the blob of a rank at a step --- */

static uint32_t blob_bytes(uint32_t rank, uint64_t step)
{
	static const uint32_t sizes[] = {0, 1, 4096, 65535, LARGEST, 17};

	return sizes[(rank * 7 + step) % NR(sizes)];
}

static unsigned char blob_at(uint32_t rank, uint64_t step, uint32_t i)
{
	return (unsigned char)((i * 2654435761u + rank * 40503u + step * 977u) >> 13);
}

static void set_blob(struct trainer *t, uint32_t rank, uint64_t step)
{
	unsigned char *data = malloc(LARGEST);
	uint32_t bytes = blob_bytes(rank, step);

	CHECK(data != NULL);
	for (uint32_t i = 0; i < bytes; i++)
		data[i] = blob_at(rank, step, i);
	EXPECT(SHARD_OK, shard_set_blob(t->model, data, bytes));
	memset(data, 0xee, LARGEST); /* It was copied. */
	free(data);
}

/* Checks the blob of a rank. Returns its step, 0: there is none. Each blob must be complete. */
static uint64_t check_blob(struct trainer *t, uint32_t rank)
{
	unsigned char *data = malloc(LARGEST);
	size_t bytes = LARGEST;
	uint64_t step = 0;
	uint64_t began = clock_ns();
	enum shard_status rc;

	/* Nodes that just started find each other one after the other. */
	while ((rc = shard_blob(t->model, rank, data, &bytes, &step)) == SHARD_UNREACHABLE &&
	       clock_ns() - began < pace_ns(10 * NS_PER_SEC)) {
		bytes = LARGEST;
		sched_yield();
	}
	if (rc != SHARD_OK && rc != SHARD_NOT_FOUND)
		fail_msg("blob of rank %u: %s: %s", rank, shard_name(rc), shard_error());
	if (rc == SHARD_OK) {
		assert_true(step > 0);
		if (bytes != blob_bytes(rank, step))
			fail_msg("blob of rank %u, step %lu: %zu bytes, %u were set", rank, step,
				 bytes, blob_bytes(rank, step));
		for (uint32_t i = 0; i < bytes; i++)
			if (data[i] != blob_at(rank, step, i))
				fail_msg("blob of rank %u, step %lu: byte %u of %zu differs", rank,
					 step, i, bytes);
	}
	free(data);
	return step;
}

static void expect_blob(struct trainer *t, uint32_t rank, uint64_t step)
{
	uint64_t got = check_blob(t, rank);

	if (got != step)
		fail_msg("the blob of rank %u is of step %lu, not %lu", rank, got, step);
}

/* --- two trainers in this process, one on each node --- */

static void join_both(struct trainer *t, int first_hint)
{
	/* The world needs both. */
	EXPECT(SHARD_TIMEOUT, shard_join(t[0].model, first_hint, 0, &t[0].world));
	EXPECT(SHARD_OK, shard_join(t[1].model, 1 - first_hint, pace_ms(20000), &t[1].world));
	EXPECT(SHARD_OK, shard_join(t[0].model, first_hint, pace_ms(20000), &t[0].world));
	assert_int_equal(t[0].world.rank, first_hint);
}

static void start_both(struct cluster *c, struct trainer *t)
{
	for (int i = 0; i < 2; i++)
		trainer_define(&t[i], c->node[i].unix_address, SHARD_BF16, SHARD_BF16);
	join_both(t, 0);
}

static void begin_both(struct trainer *t, bool with_blobs)
{
	for (int i = 0; i < 2; i++) {
		trainer_begin(&t[i]);
		if (with_blobs)
			set_blob(&t[i], t[i].step.rank, t[i].step.step);
		trainer_push_all(&t[i], 1);
	}
}

static void finish_both(struct trainer *t)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	for (int i = 0; i < 2; i++)
		EXPECT(SHARD_OK, shard_commit(t[i].model, NULL));
	for (int i = 0; i < 2; i++) {
		EXPECT(SHARD_OK, shard_result(t[i].model, 0, pace_ms(20000), &r));
		EXPECT(SHARD_OK, shard_world_get(t[i].model, &t[i].world));
	}
}

/* Each blob is read from both nodes. */
static void expect_all(struct trainer *t, uint64_t step0, uint64_t step1)
{
	for (int i = 0; i < 2; i++) {
		expect_blob(&t[i], 0, step0);
		expect_blob(&t[i], 1, step1);
	}
}

static void test_commit(void **state)
{
	struct cluster *c =
		cluster_start(2, "min_world = 2\nmax_world = 2\nchunk_elems = 1024", NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct trainer t[2];
	size_t bytes = 0;

	(void)state;
	start_both(c, t);
	EXPECT(SHARD_NOT_FOUND, shard_blob(t[0].model, 1, NULL, &bytes, NULL));
	EXPECT_TEXT("rank 1 of \"gpt\" has committed no blob");
	EXPECT(SHARD_RANGE, shard_blob(t[0].model, 2, NULL, &bytes, NULL));
	EXPECT_TEXT("max_world is 2");
	for (int i = 0; i < 12; i++) { /* All sizes. */
		begin_both(t, true);
		/* A blob that is only set is not committed. */
		expect_all(t, (uint64_t)i, (uint64_t)i);
		finish_both(t);
	}
	expect_all(t, 12, 12);
	begin_both(t, false); /* A step without blobs. The older ones stay, with their step. */
	finish_both(t);
	expect_all(t, 12, 12);
	begin_both(t, true);
	EXPECT(SHARD_OK, shard_commit(t[0].model, NULL));
	EXPECT(SHARD_OK, shard_abandon(t[1].model, "bad gradients"));
	EXPECT(SHARD_WORLD_CHANGED, shard_result(t[0].model, 0, pace_ms(20000), &r));
	expect_all(t, 12, 12); /* The attempt ended without committing its blobs. */
	EXPECT(SHARD_OK, shard_world_get(t[0].model, &t[0].world));
	/* The same step again. The blobs that were set for it before are committed with it. */
	begin_both(t, false);
	finish_both(t);
	expect_all(t, 14, 14);
	begin_both(t, true);
	EXPECT(SHARD_OK, shard_commit(t[0].model, NULL));
	/* A skip is a decision like any other. */
	EXPECT(SHARD_OK, shard_vote_skip(t[1].model, "not this batch"));
	for (int i = 0; i < 2; i++) {
		EXPECT(SHARD_OK, shard_result(t[i].model, 0, pace_ms(20000), &r));
		assert_int_equal(r.outcome, SHARD_SKIPPED_VOTE);
	}
	expect_all(t, 15, 15);
	for (int i = 0; i < 2; i++)
		trainer_end(&t[i]);
	cluster_stop(c);
}

/* Each rank goes to the other node. Its old blobs are where it was, and the new ones are where it
 * is now. */
static void test_move(void **state)
{
	struct cluster *c =
		cluster_start(2, "min_world = 2\nmax_world = 2\nchunk_elems = 1024", NULL);
	struct trainer t[2];

	(void)state;
	start_both(c, t);
	for (uint64_t i = 0; i < 3; i++) {
		begin_both(t, true);
		finish_both(t);
	}
	for (int hint = 1; hint >= 0; hint--) {
		for (int i = 0; i < 2; i++)
			shard_detach(&t[i].model); /* It leaves, and does not wait for the other. */
		for (int i = 0; i < 2; i++)
			trainer_end(&t[i]);
		for (int i = 0; i < 2; i++)
			trainer_define(&t[i], c->node[i].unix_address, SHARD_BF16, SHARD_BF16);
		join_both(t, hint);
		expect_all(t, t[0].world.step - 1, t[0].world.step - 1);
		begin_both(t, true);
		finish_both(t);
		expect_all(t, t[0].world.step - 1, t[0].world.step - 1);
	}
	for (int i = 0; i < 2; i++)
		trainer_end(&t[i]);
	cluster_stop(c);
}

static void test_out_of_reach(void **state)
{
	struct cluster *c = cluster_start(2, "min_world = 2\nmax_world = 2\nchunk_elems = 1024",
					  "[cluster]\nheartbeat_timeout = 1s\n");
	struct trainer t[2];
	unsigned char data[1];
	size_t bytes = 0;

	(void)state;
	start_both(c, t);
	begin_both(t, true);
	finish_both(t);
	cluster_signal(c, 1, SIGSTOP); /* It does not answer, which is noticed. */
	EXPECT(SHARD_UNREACHABLE, shard_blob(t[0].model, 1, data, &bytes, NULL));
	EXPECT_TEXT("the blob of rank 1 of \"gpt\": ");
	EXPECT_TEXT("node b");
	expect_blob(&t[0], 0, 1); /* No node can have a newer one. */
	/* It is known to be down now. */
	EXPECT(SHARD_UNREACHABLE, shard_blob(t[0].model, 1, data, &bytes, NULL));
	EXPECT_TEXT("node b");
	cluster_signal(c, 1, SIGCONT);
	for (int i = 0; i < 2; i++)
		trainer_end(&t[i]);
	cluster_stop(c);
}

/* --- trainers that are killed --- */

struct shared {                                      /* Memory of all processes of the test. */
	_Atomic uint64_t step, checked, found, last; /* Train until step `last`. */
};

struct child {
	const struct cluster *cluster;
	struct shared *shared;
	int hint;
};

static void look(struct child *k, struct trainer *t)
{
	uint64_t newest = 0;

	for (uint32_t r = 0; r < 4; r++) {
		uint64_t step = check_blob(t, r);

		if (step >= t->world.step)
			fail_msg("rank %u has a blob of step %lu, step %lu comes next", r, step,
				 t->world.step);
		newest = step > newest ? step : newest;
		atomic_fetch_add(&k->shared->found, step > 0);
	}
	/* Some trainer decided this step, and all set a blob in each step. */
	if (newest != t->world.step - 1)
		fail_msg("the newest blob is of step %lu, step %lu comes next", newest,
			 t->world.step);
	atomic_fetch_add(&k->shared->checked, 1);
}

static int train(void *arg)
{
	struct child *k = arg;
	struct shard_result r = SHARD_INIT(struct shard_result);
	enum shard_status rc = SHARD_WORLD_CHANGED;
	struct trainer t;

	trainer_define(&t, k->cluster->node[k->hint % 3].unix_address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_OK, shard_join(t.model, k->hint, pace_ms(20000), &t.world));
	while (t.world.step <= atomic_load(&k->shared->last)) {
		if (rc != SHARD_OK)
			look(k, &t); /* After a join, and after each change. */
		if ((rc = shard_begin(t.model, NULL, &t.step)) == SHARD_OK) {
			set_blob(&t, t.step.rank, t.step.step);
			for (uint32_t i = 0; i < TRAINER_TENSORS && rc == SHARD_OK; i++)
				rc = shard_push_none(t.model, i);
		}
		if (rc == SHARD_OK)
			rc = shard_commit(t.model, NULL);
		if (rc == SHARD_OK)
			rc = shard_result(t.model, 0, pace_ms(20000), &r);
		if (rc == SHARD_OK)
			atomic_store(&k->shared->step, r.step);
		else if (rc != SHARD_WORLD_CHANGED)
			fail_msg("%s: %s", shard_name(rc), shard_error());
		EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	}
	trainer_end(&t);
	return 0;
}

static void reach(const struct shared *s, uint64_t step)
{
	uint64_t began = clock_ns();
	struct timespec pause = {.tv_nsec = 1000000};

	while (atomic_load(&s->step) < step) {
		if (clock_ns() - began > pace_ns(20 * NS_PER_SEC))
			fail_msg("step %lu does not come: %lu", step, atomic_load(&s->step));
		nanosleep(&pause, NULL);
	}
}

static void test_kill(void **state)
{
	struct cluster *c = cluster_start(
		3, "min_world = 1\nmax_world = 4\nlocal_world = 4\nchunk_elems = 1024", NULL);
	struct shared *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct rng rng = {7};
	struct child k[4];
	pid_t pid[4];

	(void)state;
	assert_true(s != MAP_FAILED);
	atomic_store(&s->last, UINT64_MAX - 1);
	for (int i = 0; i < 4; i++) {
		k[i] = (struct child){c, s, i};
		pid[i] = proc_fork(train, &k[i]);
		if (i == 0)
			reach(s, 1); /* It writes the weights. */
	}
	for (int i = 0; i < 10; i++) { /* Worlds have 2 to 4 ranks, on either node. */
		int victim = (int)(rng_next(&rng) % 4), other = (victim + 1 + i % 3) % 4;

		reach(s, atomic_load(&s->step) + 3 + rng_next(&rng) % 5);
		kill(pid[victim], SIGKILL);
		if (i & 1)
			kill(pid[other], SIGKILL);
		(void)proc_wait(pid[victim], 10000);
		if (i & 1)
			(void)proc_wait(pid[other], 10000);
		reach(s, atomic_load(&s->step) + 2);
		pid[victim] = proc_fork(train, &k[victim]);
		if (i & 1)
			pid[other] = proc_fork(train, &k[other]);
	}
	reach(s, atomic_load(&s->step) + 5);
	atomic_store(&s->last, atomic_load(&s->step) + 5);
	for (int i = 0; i < 4; i++)
		proc_expect_exit(pid[i], 0, 20000);
	assert_true(atomic_load(&s->checked) >= 20 &&
		    atomic_load(&s->found) > 2 * atomic_load(&s->checked));
	munmap(s, sizeof(*s));
	cluster_stop(c);
}

/* The library would not send this. */
static void test_too_large(void **state)
{
	Shard__Ready r = SHARD__READY__INIT;
	struct err e;

	(void)state;
	r.has_blob = true;
	r.blob.len = LARGEST;
	assert_int_equal(blobs_check(&r, &e), SHARD_OK);
	r.blob.len = LARGEST + 1;
	assert_int_equal(blobs_check(&r, &e), SHARD_RANGE);
	assert_non_null(strstr(e.text, "65537 bytes"));
	r.blob.len = 1;
	r.has_blob = false;
	assert_int_equal(blobs_check(&r, &e), SHARD_RANGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_commit),       cmocka_unit_test(test_move),
		cmocka_unit_test(test_out_of_reach), cmocka_unit_test(test_kill),
		cmocka_unit_test(test_too_large),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
