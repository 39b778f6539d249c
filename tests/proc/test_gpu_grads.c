// SPDX-License-Identifier: Apache-2.0
/* Trainers whose gradients lie where a real daemon has memory for them on their GPUs, on the driver
 * library for tests. A twin model gets the same gradients by arenas of the host: after each step
 * the weights of both are the same bit by bit. So it is where all ranks are on one device, and the
 * sums are made there, and where they are on two, where some of a chunk comes from the host, in
 * parts, in shares, in micro-steps or not at all, with several nodes, copies and codecs, after a
 * gradient that is not finite, and in another attempt. Where there cannot be such memory, the
 * sentence says why. What ends meanwhile is in test_gpu_grads_ends.c. */
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

static void run(const struct rig_run *w, size_t number)
{
	static struct rigs c, twin;
	char name[16], other[16];
	uint64_t before = rigs_sums(0);
	struct trainer last;

	snprintf(name, sizeof(name), "m%zu", number);
	snprintf(other, sizeof(other), "twin%zu", number);
	rigs_gpu.fake_cuda_delay(300, number + 1);
	rigs_open(&c, w, name, false);
	rigs_open(&twin, w, other, true);
	for (uint32_t k = 0; k < w->ranks; k++)
		if (c.rank[k].device >= 0)
			assert_true(rig_has_memory(&c.rank[k], ""));
	for (int k = 0; k < 5; k++)
		rigs_both(&c, &twin, k == 2 ? NAN : 0);
	if (w->summed)
		assert_true(rigs_sums(0) > before);
	else
		assert_int_equal(rigs_sums(0), before);
	rigs_close(&c);
	rigs_close(&twin);
	rigs_nothing_left();
	trainer_connect(&last, rigs_cluster->node[0].unix_address);
	EXPECT(SHARD_OK, shard_drop(last.client, name, 1));
	EXPECT(SHARD_OK, shard_drop(last.client, other, 1));
	trainer_end(&last);
}

/* --- tests --- */

static void test_ranks(void **state)
{
	static const struct rig_run runs[] = {
		{"", SHARD_F32, {{THERE, 0, 0}}, 1, true},
		{"", SHARD_F32, {{THERE, 0, 0}, {THERE, 0, 0}, {PARTS, 0, 0}}, 3, true},
		{"", SHARD_BF16, {{THERE, 1, 0}, {THERE, 1, 0}}, 2, true},
		{" predivide=3", SHARD_F16, {{PARTS, 1, 0}, {THERE, 1, 0}}, 2, true},
		{"", SHARD_F32, {{THERE, 0, 0}, {FEW, 0, 0}}, 2, true},
		{"", SHARD_F32, {{FEW, 1, 0}, {FEW, 1, 0}}, 2, true},
		{"", SHARD_BF16, {{THERE, 0, 0}, {THERE, 1, 0}}, 2, false},
		{"", SHARD_F32, {{THERE, 0, 0}, {OWN, 0, 0}, {HOST, 0, 0}}, 3, false},
		{" gpu_share=50", SHARD_F32, {{SOME, 0, 0}, {THERE, 0, 0}}, 2, true},
		{" predivide=2", SHARD_BF16, {{SOME, 1, 0}, {FEW, 0, 0}}, 2, true},
		{"", SHARD_F32, {{ADDED, 0, 0}, {ADDED, 0, 0}}, 2, false},
		{"", SHARD_BF16, {{SHARED, 0, 0}, {SHARED, 0, 0}}, 2, false},
	};

	(void)state;
	rigs_start(1, "", NULL);
	for (size_t i = 0; i < NR(runs); i++)
		run(&runs[i], i);
	assert_int_equal(cluster_logged(rigs_cluster, 0, "event=no_device_grads"), 0);
	cluster_done(&rigs_cluster);
}

/* Contributions to chunks of another node leave from the host. */
static void test_nodes(void **state)
{
	static const struct rig_run runs[] = {
		{"", SHARD_BF16, {{THERE, 0, 0}, {THERE, 0, 0}, {THERE, 1, 1}}, 3, true},
		{" grad_codec=int8", SHARD_BF16, {{THERE, 0, 0}, {PARTS, 0, 1}}, 2, false},
		{" replicas=2 predivide=2", SHARD_F32, {{THERE, 1, 0}, {FEW, 1, 1}}, 2, false},
	};

	(void)state;
	rigs_start(2, "", NULL);
	for (size_t i = 0; i < NR(runs); i++)
		run(&runs[i], i);
	cluster_done(&rigs_cluster);
}

static const struct rig_run two = {"", SHARD_F32, {{THERE, 0, 0}, {THERE, 0, 0}}, 2, true};

static void told(enum shard_status rc)
{
	assert_true(rc == SHARD_OK || rc == SHARD_WORLD_CHANGED);
}

/* The same gradients in another attempt, after one rank gave the first one up. */
static void test_again(void **state)
{
	static struct rigs c, twin;

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "20000", 1) == 0);
	rigs_start(1, "", NULL);
	rigs_open(&c, &two, "m", false);
	rigs_open(&twin, &two, "twin", true);
	for (int k = 0; k < 3; k++) {
		rigs_both(&c, &twin, 0);
		rigs_begin(&c, &c);
		rigs_push(&c, &c, 0, 0);
		if (k > 0) /* Sums are under way. */
			rigs_push(&c, &c, 1, 0);
		EXPECT(SHARD_OK, shard_abandon(c.rank[1].t.model, "to have another attempt"));
		told(shard_abandon(c.rank[0].t.model, "it may have heard of it"));
		rigs_both(&c, &twin, 0);
	}
	rigs_close(&c);
	rigs_close(&twin);
	cluster_done(&rigs_cluster);
}

/* A push is done when the work before it on the stream is, and so is what lies there. */
static void test_waits_for_the_stream(void **state)
{
	static const struct rig_run one = {"", SHARD_F32, {{THERE, 0, 0}}, 1, true};
	static struct rigs c;
	struct rig *r = &c.rank[0];
	void *there;

	(void)state;
	rigs_start(1, "", NULL);
	rigs_open(&c, &one, "m", false);
	rigs_gpu.fake_cuda_delay(100000, 1);
	for (int k = 0; k < 3; k++) {
		rigs_begin(&c, &c);
		there = shard_cuda_grad(r->cu, 0);
		assert_non_null(there);
		rig_gradient(r, r->pinned, 0, 0, r->t.step.step);
		fakegpu_write(&rigs_gpu, there, r->pinned, trainer_numel[0] * sizeof(float));
		CUDA(SHARD_OK, shard_cuda_push(r->cu, 0, 0, trainer_numel[0], NULL, SHARD_F32, 0,
					       rigs_gpu.stream, NULL));
		CUDA(SHARD_OK, shard_cuda_wait(r->cu, 0, pace_ms(20000)));
		assert_memory_equal(rigs_gpu.fake_cuda_inside((uint64_t)(uintptr_t)there),
				    r->pinned, trainer_numel[0] * sizeof(float));
		EXPECT(SHARD_OK, shard_abandon(r->t.model, "it only looked"));
	}
	rigs_gpu.fake_cuda_delay(0, 1);
	rigs_close(&c);
	cluster_done(&rigs_cluster);
}

/* What lies there has one dtype: elements of another one would be read from beyond it. */
static void test_other_dtype(void **state)
{
	static const struct rig_run one = {"", SHARD_BF16, {{THERE, 0, 0}}, 1, true};
	const uint32_t last = TRAINER_TENSORS - 1;
	static struct rigs c;
	struct rig *r = &c.rank[0];

	(void)state;
	rigs_start(1, "", NULL);
	rigs_open(&c, &one, "m", false);
	rigs_begin(&c, &c);
	CUDA(SHARD_DTYPE, shard_cuda_push(r->cu, last, 0, trainer_numel[last], NULL, SHARD_F32,
					  SHARD_CAST, rigs_gpu.stream, NULL));
	CUDA(SHARD_DTYPE, shard_cuda_push(r->cu, last, 0, trainer_numel[last], NULL, SHARD_F32, 0,
					  rigs_gpu.stream, NULL));
	EXPECT(SHARD_OK, shard_abandon(r->t.model, "it only asked"));
	rigs_step(&c, &c, 0, SHARD_APPLIED);
	rigs_close(&c);
	cluster_done(&rigs_cluster);
}

/* --- where there is none --- */

static void refused(const char *address, const char *name, const char *settings, const char *why)
{
	struct rigs c = {.nr = 1}, like = {.nr = 1};
	struct rig *r = &c.rank[0];

	rig_define(r, 0, address, name, SHARD_F32, settings, 0, OWN);
	rig_open(r);
	assert_false(rig_has_memory(r, why));
	CUDA(SHARD_OK, shard_cuda_begin(r->cu, NULL, &r->t.step));
	CUDA(SHARD_BAD_ARG,
	     shard_cuda_push(r->cu, 0, 0, 5, NULL, SHARD_F32, 0, rigs_gpu.stream, NULL));
	EXPECT(SHARD_OK, shard_abandon(r->t.model, "it only began"));
	rigs_step(&c, &like, 0, SHARD_APPLIED); /* It trains without. */
	rigs_close(&c);
	rigs_nothing_left();
}

static void test_refused(void **state)
{
	const char *address, *tcp;

	(void)state;
	rigs_start(1, "gpu_memory = 5MiB\n", NULL);
	address = rigs_cluster->node[0].unix_address;
	tcp = rigs_cluster->node[0].tcp_address;
	refused(address, "memory", ADAMW, "has no chunk of the model");
	refused(tcp, "tcp", ADAMW, "over TCP");
	refused(address, "full", ADAMW TIER, "gpu_memory");
	assert_int_equal(cluster_logged(rigs_cluster, 0, "event=no_device_grads model=full why="),
			 1);
	assert_int_equal(cluster_logged(rigs_cluster, 0, "event=device_grads"), 0);
	cluster_done(&rigs_cluster);
	rigs_start(1, "", NULL);
	refused(rigs_cluster->node[0].unix_address, "stale", ADAMW TIER " max_staleness=1",
		"max_staleness = 1");
	cluster_done(&rigs_cluster);
	rigs_start(1, "", "tests/older/shardd");
	refused(rigs_cluster->node[0].unix_address, "older", ADAMW, "does not know of gradients");
	cluster_done(&rigs_cluster);
	/* It would answer with an image. */
	rigs_start(1, "", "tests/before/shardd");
	refused(rigs_cluster->node[0].unix_address, "m", ADAMW TIER, "does not know of gradients");
	cluster_done(&rigs_cluster);
}

/* --- main --- */

int main(int argc, char **argv)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, rigs_setup, rigs_teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_ranks),
		TEST(test_nodes),
		TEST(test_again),
		TEST(test_refused),
		TEST(test_waits_for_the_stream),
		TEST(test_other_dtype),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	CHECK(setenv("FAKE_CUDA_DEVICES", "2", 1) == 0);
	fakegpu_path(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
