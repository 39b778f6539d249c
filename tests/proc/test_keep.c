// SPDX-License-Identifier: Apache-2.0
/* Tests shard_keep() with real daemons. What a trainer took over stays at its addresses through
 * leave, detach, disconnect and the end of the daemon, it never changes, a forked child has it, and
 * nothing that is written there reaches the daemon. No memory of the daemon is mapped afterwards,
 * so that none is held by it. */
#include "base/check.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SMALL "chunk_elems = 1024\n"

/* What a trainer holds pointers to. */
struct pointers {
	const float *image[TRAINER_TENSORS];
	float *grad;
};

static struct shard_kept keep(struct trainer *t, enum shard_kind kind)
{
	struct shard_kept kept = SHARD_INIT(struct shard_kept);

	EXPECT(SHARD_OK, shard_keep(t->model, kind, pace_ms(10000), &kept));
	return kept;
}

static struct pointers point(struct trainer *t)
{
	struct pointers p = {.grad = shard_grad(t->model, 0)};

	for (uint32_t i = 0; i < TRAINER_TENSORS; i++)
		p.image[i] = shard_image(t->model, i);
	return p;
}

static bool is_minus(const struct pointers *p, float minus)
{
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++)
		for (uint64_t k = 0; k < trainer_numel[i]; k++)
			if (p->image[i][k] != trainer_weight(i, k) - minus)
				return false;
	return true;
}

/* With lr = 1 and gradients of 1, each step subtracts 1 from every weight. */
static void one_step(struct trainer *t)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	trainer_begin(t);
	trainer_push_all(t, 1);
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	EXPECT(SHARD_OK, shard_result(t->model, 0, SHARD_DEFAULT, &r));
	assert_int_equal(r.outcome, SHARD_APPLIED);
}

/* Memory of a daemon is a memfd, or a file of a folder for warm starts. */
static bool maps_daemon(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	bool found = false;

	CHECK(f != NULL);
	while (fgets(line, sizeof(line), f) != NULL)
		found = found || strstr(line, "memfd:") != NULL;
	fclose(f);
	return found;
}

static bool mapped(const void *at)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

	return msync((void *)((uintptr_t)at / page * page), page, MS_ASYNC) == 0;
}

static int child_has(void *arg)
{
	const struct pointers *p = arg;

	if (!is_minus(p, 2))
		return 1;
	*(float *)(uintptr_t)p->image[0] = 77; /* A copy of the child's own. */
	return 0;
}

static void test_outlives(void **state)
{
	struct cluster *c = cluster_start(1, SMALL, NULL);
	struct shard_kept image, grad = SHARD_INIT(struct shard_kept);
	struct pointers p, now;
	struct trainer t;
	size_t bytes;
	void *base;
	bool tcp = *state != NULL;

	*state = c;
	trainer_join(&t, tcp ? c->node[0].tcp_address : c->node[0].unix_address, SHARD_F32,
		     SHARD_F32);
	one_step(&t);
	one_step(&t);
	/* The image may still be that of step 1. */
	trainer_begin(&t);
	p = point(&t);
	EXPECT(SHARD_OK, shard_region(t.model, SHARD_IMAGE, &base, &bytes));
	assert_true(is_minus(&p, 2));
	image = keep(&t, SHARD_IMAGE);
	assert_ptr_equal(image.base, base);
	assert_int_equal(image.bytes, bytes);
	assert_int_equal(image.step, 2);
	assert_int_equal(image.mixed, 0);
	now = point(&t);
	assert_true(now.image[0] != p.image[0] && now.grad == p.grad);
	assert_true(is_minus(&p, 2) && is_minus(&now, 2));

	/* The handle goes on, and what was taken over does not. */
	EXPECT(SHARD_BAD_STATE, shard_keep(t.model, SHARD_GRAD, 0, &grad));
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	one_step(&t);
	trainer_begin(&t);
	now = point(&t);
	assert_true(is_minus(&now, 4) && is_minus(&p, 2));
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	EXPECT(SHARD_OK, shard_result(t.model, 0, SHARD_DEFAULT, &SHARD_INIT(struct shard_result)));
	grad = keep(&t, SHARD_GRAD);
	assert_ptr_equal(grad.base, p.grad);

	EXPECT(SHARD_OK, shard_leave(t.model, SHARD_DEFAULT));
	assert_true(is_minus(&p, 2));
	shard_detach(&t.model);
	trainer_end(&t);
	assert_true(is_minus(&p, 2));
	assert_false(maps_daemon());
	p.grad[0] = 7;
	p.grad[2999] = 7;
	proc_expect_exit(proc_fork(child_has, &p), 0, pace_ms(10000));
	assert_true(is_minus(&p, 2));
	*(float *)(uintptr_t)p.image[0] = 5; /* It is the caller's memory. */
	shard_unmap(&image);
	shard_unmap(&grad);
	assert_null(image.base);
	assert_false(mapped(p.image[0]));
	assert_false(mapped(p.grad));
	shard_unmap(&image); /* Harmless. */
	shard_unmap(NULL);
	cluster_done((struct cluster **)state);
}

/* A trainer keeps the old pointers to its gradients and writes there. The steps of others, and its
 * own, have nothing of it. It does so before it joins again, too. */
static void test_stale_writer(void **state)
{
	struct cluster *c = cluster_start(1, SMALL, NULL);
	struct shard_kept kept[2];
	struct pointers old[2], now;
	struct trainer t;
	bool tcp = *state != NULL;

	*state = c;
	trainer_join(&t, tcp ? c->node[0].tcp_address : c->node[0].unix_address, SHARD_F32,
		     SHARD_F32);
	for (int round = 0; round < 2; round++) {
		one_step(&t);
		old[round] = point(&t);
		kept[round] = keep(&t, SHARD_GRAD);
		assert_true(shard_grad(t.model, 0) != old[round].grad);
		trainer_begin(&t);
		trainer_push_all(&t, 1);
		for (int r = 0; r <= round; r++)
			for (int k = 0; k < 3000; k++)
				old[r].grad[k] = NAN;
		EXPECT(SHARD_OK, shard_commit(t.model, NULL));
		one_step(&t);
		EXPECT(SHARD_OK, shard_leave(t.model, SHARD_DEFAULT));
		EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &t.world));
	}
	trainer_begin(&t);
	now = point(&t);
	assert_true(is_minus(&now, 6));
	trainer_end(&t);
	for (int r = 0; r < 2; r++) {
		assert_true(isnan(old[r].grad[0]));
		shard_unmap(&kept[r]);
	}
	cluster_done((struct cluster **)state);
}

/* After the result of a step the caller gets the weights of that step, although the image may not
 * have them yet. */
static void test_newest(void **state)
{
	struct cluster *c = cluster_start(2, SMALL, NULL);
	struct trainer t;
	bool tcp = *state != NULL;

	*state = c;
	trainer_join(&t, tcp ? c->node[0].tcp_address : c->node[0].unix_address, SHARD_F32,
		     SHARD_F32);
	for (uint64_t step = 1; step <= 20; step++) {
		struct shard_kept kept;
		struct pointers p;

		one_step(&t);
		p = point(&t);
		kept = keep(&t, SHARD_IMAGE);
		assert_int_equal(kept.step, step);
		assert_int_equal(kept.mixed, 0);
		assert_true(is_minus(&p, (float)step));
		shard_unmap(&kept);
	}
	trainer_end(&t);
	cluster_done((struct cluster **)state);
}

/* With two images the pointers of any step show the newest weights. */
static void test_two_images(void **state)
{
	struct cluster *c = cluster_start(1, SMALL "max_staleness = 1\n", NULL);
	const float *seen[4];
	struct shard_kept kept;
	struct trainer t;
	bool tcp = *state != NULL;

	*state = c;
	trainer_join(&t, tcp ? c->node[0].tcp_address : c->node[0].unix_address, SHARD_F32,
		     SHARD_F32);
	for (int step = 0; step < 4; step++) {
		trainer_begin(&t);
		seen[step] = shard_image(t.model, 0);
		trainer_push_all(&t, 1);
		EXPECT(SHARD_OK, shard_commit(t.model, NULL));
		EXPECT(SHARD_OK,
		       shard_result(t.model, 0, SHARD_DEFAULT, &SHARD_INIT(struct shard_result)));
	}
	assert_true(seen[2] != seen[3]);
	kept = keep(&t, SHARD_IMAGE);
	assert_int_equal(kept.step, 4);
	assert_int_equal(kept.mixed, 0);
	trainer_end(&t);
	for (int step = 0; step < 4; step++)
		for (uint64_t k = 0; k < trainer_numel[0]; k++)
			assert_true(seen[step][k] == trainer_weight(0, k) - 4);
	shard_unmap(&kept);
	cluster_done((struct cluster **)state);
}

/* The daemon is killed, or the model dropped. What is there is kept, and nothing of the daemon. */
static void test_after_the_end(void **state)
{
	struct cluster *c = cluster_start(1, SMALL, NULL);
	bool tcp = *state != NULL;

	*state = c;
	for (int killed = 0; killed < 2; killed++) {
		struct shard_kept kept, grad;
		struct pointers p;
		struct trainer t;

		trainer_join(&t, tcp ? c->node[0].tcp_address : c->node[0].unix_address, SHARD_F32,
			     SHARD_F32);
		one_step(&t);
		trainer_begin(&t);
		p = point(&t);
		if (killed) {
			cluster_kill(c, 0);
			while (shard_progress(t.client) == SHARD_OK)
				(void)poll(NULL, 0, 1);
		} else {
			EXPECT(SHARD_OK, shard_drop(t.client, "gpt", 1));
			EXPECT(SHARD_NOT_FOUND, shard_push_none(t.model, 0));
		}
		kept = keep(&t, SHARD_IMAGE);
		assert_int_equal(kept.step, 1);
		assert_int_equal(kept.mixed, 0);
		grad = keep(&t, SHARD_GRAD);
		trainer_end(&t);
		assert_true(is_minus(&p, 1));
		p.grad[0] = p.grad[2999] = 3;
		assert_false(maps_daemon());
		shard_unmap(&kept);
		shard_unmap(&grad);
	}
	cluster_done((struct cluster **)state);
}

static void test_refused(void **state)
{
	struct cluster *c = cluster_start(1, SMALL, NULL);
	struct shard_kept kept = SHARD_INIT(struct shard_kept);
	struct shard_kept unset = {0};
	struct rlimit was, none;
	enum shard_status rc;
	struct pointers p;
	struct trainer t;
	int error;

	*state = c;
	trainer_define(&t, c->node[0].unix_address, SHARD_F32, SHARD_F32);
	EXPECT(SHARD_BAD_STATE, shard_keep(t.model, SHARD_IMAGE, 0, &kept));
	EXPECT_TEXT("not joined");
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &t.world));
	EXPECT(SHARD_BAD_ARG, shard_keep(NULL, SHARD_IMAGE, 0, &kept));
	EXPECT(SHARD_BAD_ARG, shard_keep(t.model, SHARD_MASTER, 0, &kept));
	EXPECT(SHARD_BAD_ARG, shard_keep(t.model, SHARD_IMAGE, 0, NULL));
	EXPECT(SHARD_BAD_ARG, shard_keep(t.model, SHARD_IMAGE, 0, &unset));
	one_step(&t);
	trainer_begin(&t);
	p = point(&t);
	assert_int_equal(getrlimit(RLIMIT_AS, &was), 0);
	none = (struct rlimit){4096, was.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_AS, &none), 0);
	rc = shard_keep(t.model, SHARD_IMAGE, 0, &kept);
	error = errno;
	assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
	assert_int_equal(rc, SHARD_SYSTEM);
	assert_int_equal(error, ENOMEM);
	/* The handle is as it was. */
	assert_ptr_equal(shard_image(t.model, 0), p.image[0]);
	assert_true(is_minus(&p, 1));
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	one_step(&t);
	trainer_end(&t);
	cluster_done((struct cluster **)state);
}

static int put_away(void **state)
{
	cluster_put_away((struct cluster **)state);
	return 0;
}

#define KEEP_BOTH(fn)                                                                              \
	{#fn " unix", fn, NULL, put_away, NULL},                                                   \
	{                                                                                          \
#fn " tcp", fn, NULL, put_away, (void *)1                                          \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		KEEP_BOTH(test_outlives),      KEEP_BOTH(test_stale_writer),
		KEEP_BOTH(test_newest),        KEEP_BOTH(test_two_images),
		KEEP_BOTH(test_after_the_end), cmocka_unit_test_teardown(test_refused, put_away),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
