// SPDX-License-Identifier: Apache-2.0
/* Trainers with gradients in memory of a daemon on their GPUs (test_gpu_grads.c), where something
 * ends while sums are under way: a trainer, the daemon by a kill or in order, the model, and a
 * device that fails or hangs. What goes on afterwards has the weights of its twin. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/gradrig.h"
#include "lib/pace.h"
#include "lib/tool.h"
#include "wire/dtype.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const struct rig_run two = {"", SHARD_F32, {{THERE, 0, 0}, {THERE, 0, 0}}, 2, true};

static void told(enum shard_status rc)
{
	assert_true(rc == SHARD_OK || rc == SHARD_WORLD_CHANGED);
}

/* A rank that dies with pushes under way leaves its slot to another one, with other memory. */
static void test_trainer_dies(void **state)
{
	static struct rigs c, twin;
	char settings[SETTINGS_MAX];

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "20000", 1) == 0);
	rigs_start(1, "", NULL);
	rigs_open(&c, &two, "m", false);
	rigs_open(&twin, &two, "twin", true);
	for (int k = 0; k < 4; k++) {
		struct rig *r = &c.rank[1];

		rigs_both(&c, &twin, 0);
		rigs_begin(&c, &c);
		rigs_push(&c, &c, 0, 0);
		rigs_push(&c, &c, 1, 0);
		rig_close_cuda(r);
		trainer_end(&r->t); /* As when the process ends. */
		told(shard_abandon(c.rank[0].t.model, "it may have heard of it"));
		rigs_settings(settings, &two, false);
		rig_define(r, 1, rigs_cluster->node[0].unix_address, "m", SHARD_F32, settings,
			   k % 2, THERE);
		rig_open(r);
		assert_true(rig_has_memory(r, ""));
	}
	rigs_both(&c, &twin, 0);
	assert_int_equal(cluster_logged(rigs_cluster, 0, "event=device_grads model=m"), 2 + 4);
	rigs_close(&c);
	rigs_close(&twin);
	rigs_nothing_left();
	cluster_done(&rigs_cluster);
}

/* Memory of before keeps nothing: after the next begin it is other memory. */
static void test_killed(void **state)
{
	static struct rigs c, twin;
	enum shard_status rc;

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "5000", 1) == 0);
	rigs_start(1, "", NULL);
	rigs_open(&c, &two, "m", false);
	rigs_open(&twin, &two, "twin", true);
	for (int k = 0; k < 3; k++) {
		rigs_both(&c, &twin, 0);
		rigs_begin(&c, &c);
		rigs_push(&c, &c, 0, 0);
		if (k > 0)
			rigs_push(&c, &c, 1, 0);
		cluster_kill(rigs_cluster, 0);
		cluster_spawn(rigs_cluster, 0);
		for (uint32_t i = 0; i < 4; i++) {
			struct trainer *t = i < 2 ? &c.rank[i].t : &twin.rank[i - 2].t;

			while ((rc = shard_progress(t->client)) == SHARD_OK)
				sched_yield();
			assert_int_equal(rc, SHARD_WORLD_CHANGED);
			EXPECT(SHARD_OK, shard_world_get(t->model, &t->world));
		}
		assert_null(shard_cuda_grad(c.rank[0].cu, 0));
	}
	rigs_both(&c, &twin, 0);
	rigs_close(&c);
	rigs_close(&twin);
	rigs_nothing_left();
	cluster_done(&rigs_cluster);
}

/* The daemon stops, or the model is dropped, while sums are under way. */
static void test_ends(void **state)
{
	static struct rigs c;

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "40000", 1) == 0);
	for (int k = 0; k < 4; k++) {
		struct trainer other;

		rigs_start(1, "", NULL);
		rigs_open(&c, &two, "m", false);
		rigs_step(&c, &c, 0, SHARD_APPLIED);
		rigs_begin(&c, &c);
		rigs_push(&c, &c, 0, 0);
		rigs_push(&c, &c, 1, 0);
		for (uint32_t i = 0; k % 2 && i < 2; i++)
			EXPECT(SHARD_OK, shard_commit(c.rank[i].t.model, NULL));
		if (k >= 2) {
			trainer_connect(&other, rigs_cluster->node[0].unix_address);
			EXPECT(SHARD_OK, shard_drop(other.client, "m", 1));
			trainer_end(&other);
		}
		cluster_done(&rigs_cluster);
		for (uint32_t i = 0; i < 2; i++) {
			rig_close_cuda(&c.rank[i]);
			trainer_end(&c.rank[i].t);
		}
		rigs_nothing_left();
	}
}

/* Pushes what of the gradients is in the chunk. */
static void push_chunk(struct rigs *c, uint64_t chunk, float spoil)
{
	for (uint32_t k = 0; k < c->nr; k++) {
		struct rig *r = &c->rank[k];
		const char *base = shard_cuda_grad(r->cu, 0);

		for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
			const char *at = shard_cuda_grad(r->cu, i);
			uint64_t first = (uint64_t)(at - base) / sizeof(float),
				 end = first + trainer_numel[i];
			uint64_t from = chunk * 1024 > first ? chunk * 1024 : first;

			end = (chunk + 1) * 1024 < end ? (chunk + 1) * 1024 : end;
			if (from >= end)
				continue;
			CHECK(rigs_gpu.sync(rigs_gpu.stream) == 0);
			rig_gradient(r, r->pinned, k, i, r->t.step.step);
			((float *)r->pinned)[from - first] += spoil;
			rig_push_range(r, i, from - first, end - from, 0);
		}
		CUDA(SHARD_OK, shard_cuda_wait(r->cu, 0, pace_ms(20000)));
	}
}

static bool phase_is(int node, const char *phase)
{
	char words[200], want[40], *out;
	bool is;

	snprintf(words, sizeof(words), "--address %s status --json",
		 rigs_cluster->node[node].unix_address);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	snprintf(want, sizeof(want), "\"phase\":\"%s\"", phase);
	is = strstr(out, want) != NULL;
	free(out);
	return is;
}

/* A step in which node 1 votes for its chunks, which have odd numbers, while sums for those of node
 * 0 are under way. False: it was seen too late. */
static bool votes(struct rigs *c)
{
	struct shard_result res = SHARD_INIT(struct shard_result);
	uint64_t before = rigs_sums(1);

	rigs_begin(c, c);
	for (uint32_t k = 1; k < 6; k += 2)
		push_chunk(c, k, 0);
	while (rigs_sums(1) < before + 3)
		sched_yield();
	for (uint32_t k = 0; k < 6; k += 2)
		push_chunk(c, k, NAN);
	for (uint32_t k = 0; k < c->nr; k++)
		EXPECT(SHARD_OK, shard_commit(c->rank[k].t.model, NULL));
	while (phase_is(1, "staging"))
		sched_yield();
	if (phase_is(1, "prepared"))
		return true;
	for (uint32_t k = 0; k < c->nr; k++)
		EXPECT(SHARD_OK, shard_result(c->rank[k].t.model, 0, pace_ms(20000), &res));
	return false;
}

/* A node has voted, and stops while nobody tells it the verdict. The sums that are under way are
 * not finite, and nothing is done about that any more. */
static void test_stops_alone(void **state)
{
	static const struct rig_run there = {
		"", SHARD_F32, {{THERE, 0, 1}, {THERE, 0, 1}}, 2, true};
	static struct rigs c;

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "400000", 1) == 0);
	rigs_start(2, "stop_timeout = 100ms\n", NULL);
	rigs_open(&c, &there, "m", false);
	while (!votes(&c))
		; /* It was decided before this process saw the vote. */
	cluster_signal(rigs_cluster, 0, SIGSTOP);
	cluster_signal(rigs_cluster, 1, SIGTERM);
	assert_int_equal(cluster_wait(rigs_cluster, 1, pace_ms(20000)), 0);
	cluster_signal(rigs_cluster, 0, SIGCONT);
	for (uint32_t k = 0; k < c.nr; k++) {
		rig_close_cuda(&c.rank[k]);
		trainer_end(&c.rank[k].t);
	}
	rigs_nothing_left();
	cluster_done(&rigs_cluster);
}

/* --- a device that fails --- */

static enum shard_status try_step(struct rig *r)
{
	struct shard_result res = SHARD_INIT(struct shard_result);
	enum shard_status rc = shard_cuda_begin(r->cu, NULL, &r->t.step);
	bool there = rc == SHARD_OK && shard_cuda_grad(r->cu, 0) != NULL;

	for (uint32_t i = 0; i < TRAINER_TENSORS && rc == SHARD_OK; i++)
		rc = shard_cuda_push(r->cu, i, 0, trainer_numel[i], there ? NULL : r->own, r->grad,
				     0, rigs_gpu.stream, NULL);
	if (rc == SHARD_OK)
		rc = shard_cuda_wait(r->cu, 0, pace_ms(20000));
	if (rc == SHARD_OK)
		rc = shard_commit(r->t.model, NULL);
	if (rc == SHARD_OK)
		rc = shard_result(r->t.model, 0, pace_ms(20000), &res);
	if (shard_cuda_wait(r->cu, 0, pace_ms(20000)) != SHARD_OK && rc == SHARD_OK)
		rc = SHARD_WORLD_CHANGED;
	rigs_gpu.fake_cuda_settle(0);
	return rc;
}

/* The device fails in a sum. What it had of the model comes from the other node, and the trainer
 * goes on, with memory of the host until the daemon has been started again. */
static void device_fails(const char *fail)
{
	static const struct rig_run one = {" replicas=2", SHARD_F32, {{THERE, 0, 1}}, 1, true};
	static struct rigs c;
	enum shard_status rc;
	struct rig *r = &c.rank[0];

	rigs_start(2, "", NULL);
	rigs_open(&c, &one, "m", false);
	memset(r->pinned, 0, BYTES_MAX);
	fakegpu_write(&rigs_gpu, r->own, r->pinned, BYTES_MAX);
	EXPECT(SHARD_OK, try_step(r));
	cluster_kill(rigs_cluster, 1);
	CHECK(setenv("FAKE_CUDA_FAIL", fail, 1) == 0);
	cluster_spawn(rigs_cluster, 1);
	CHECK(unsetenv("FAKE_CUDA_FAIL") == 0);
	while ((rc = shard_progress(r->t.client)) == SHARD_OK)
		sched_yield();
	EXPECT(SHARD_WORLD_CHANGED, rc);
	EXPECT(SHARD_OK, shard_world_get(r->t.model, &r->t.world));
	for (int k = 0; (rc = try_step(r)) == SHARD_OK; k++)
		assert_true(k < 100);
	EXPECT(SHARD_WORLD_CHANGED, rc);
	/* The sum was the first to hear of it, and no other attempt has begun there. */
	assert_int_equal(cluster_logged(rigs_cluster, 1, "event=gpu_state_lost model=m"), 1);
	cluster_signal(rigs_cluster, 1, SIGKILL); /* It may have ended by itself. */
	(void)cluster_wait(rigs_cluster, 1, pace_ms(20000));
	cluster_spawn(rigs_cluster, 1);
	EXPECT(SHARD_OK, shard_world_get(r->t.model, &r->t.world));
	while ((rc = try_step(r)) != SHARD_OK) {
		assert_int_equal(rc, SHARD_WORLD_CHANGED);
		EXPECT(SHARD_OK, shard_world_get(r->t.model, &r->t.world));
	}
	EXPECT(SHARD_OK, try_step(r));
	rigs_close(&c);
	rigs_nothing_left();
	cluster_done(&rigs_cluster);
}

static void test_device_fails(void **state)
{
	(void)state;
	device_fails("cuMemcpyDtoHAsync_v2 40 700");
}

/* All have pushed and committed when the daemon gives the device up. */
static void test_device_hangs(void **state)
{
	(void)state;
	CHECK(setenv("SHARDD_GPU_DEADLINE_MS", "3000", 1) == 0);
	device_fails("cuMemcpyDtoHAsync_v2 10 -1");
}

/* --- main --- */

int main(int argc, char **argv)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, rigs_setup, rigs_teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_killed),      TEST(test_trainer_dies), TEST(test_ends),
		TEST(test_stops_alone), TEST(test_device_fails), TEST(test_device_hangs),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	CHECK(setenv("FAKE_CUDA_DEVICES", "2", 1) == 0);
	fakegpu_path(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
