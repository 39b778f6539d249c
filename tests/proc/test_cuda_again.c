// SPDX-License-Identifier: Apache-2.0
/* A trainer with a device whose connection breaks and is made again. The memory of gradients and
 * image is another one then, at the same addresses, and what was registered with the driver would
 * copy from and to that of before. So each gradient has to arrive, and each pull has to have the
 * newest weights, also one that comes before the first begin. */
#include "shard_cuda.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/fakegpu.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { N = 3000, STEPS = 6 };

static struct cluster *cluster;
static struct fakegpu gpu;

#define CUDA(call)                                                                                 \
	do {                                                                                       \
		enum shard_status cuda_ = (call);                                                  \
		if (cuda_ != SHARD_OK)                                                             \
			fail_msg("%s: %s: %s", #call, shard_name(cuda_), shard_cuda_error());      \
	} while (0)

static void push_all(shard_cuda *cu, void *dev)
{
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++)
		CUDA(shard_cuda_push(cu, i, 0, trainer_numel[i], dev, SHARD_F32, 0, gpu.stream,
				     NULL));
	CUDA(shard_cuda_wait(cu, 0, pace_ms(20000)));
}

static void weights_are(shard_cuda *cu, void *dev, uint64_t step)
{
	struct shard_cuda_pull pull = {.tensor = 0, .count = N, .dev = dev};
	shard_ticket ticket;
	float w[N];

	CUDA(shard_cuda_pull(cu, step, &pull, 1, gpu.stream, &ticket));
	CUDA(shard_cuda_order(cu, ticket, gpu.stream, pace_ms(20000)));
	fakegpu_read(&gpu, w, dev, sizeof(w));
	for (uint64_t k = 0; k < N; k++)
		assert_true(w[k] == trainer_weight(0, k) - (float)step);
}

static void breaks(struct trainer *t)
{
	enum shard_status rc;

	cluster_kill(cluster, 0);
	cluster_spawn(cluster, 0);
	while ((rc = shard_progress(t->client)) == SHARD_OK)
		sched_yield();
	assert_int_equal(rc, SHARD_WORLD_CHANGED);
	EXPECT(SHARD_OK, shard_world_get(t->model, &t->world));
}

static void test_mapped_anew(void **state)
{
	struct shard_result res = SHARD_INIT(struct shard_result);
	void *weights, *ones;
	struct trainer t;
	shard_cuda *cu;
	float *pinned;

	(void)state;
	trainer_join(&t, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	trainer_looks(&t, 300 * NS_PER_SEC);
	CUDA(shard_cuda_open(&cu, t.model, NULL));
	weights = fakegpu_alloc(&gpu, N * sizeof(float));
	ones = fakegpu_alloc(&gpu, N * sizeof(float));
	pinned = fakegpu_pinned(&gpu, N * sizeof(float));
	for (int i = 0; i < N; i++)
		pinned[i] = 1;
	fakegpu_write(&gpu, ones, pinned, N * sizeof(float));
	for (uint64_t step = 1; step <= STEPS; step++) {
		if (step % 2 == 0) {
			CUDA(shard_cuda_begin(cu, NULL, &t.step));
			push_all(cu, ones);
			breaks(&t);
		}
		if (step % 4 == 0)
			weights_are(cu, weights, step - 1);
		CUDA(shard_cuda_begin(cu, NULL, &t.step));
		assert_int_equal(t.step.step, step);
		push_all(cu, ones);
		EXPECT(SHARD_OK, shard_commit(t.model, NULL));
		EXPECT(SHARD_OK, shard_result(t.model, 0, pace_ms(20000), &res));
		weights_are(cu, weights, step);
	}
	CUDA(shard_cuda_close(&cu, pace_ms(10000)));
	fakegpu_free(&gpu, weights);
	fakegpu_free(&gpu, ones);
	CHECK(gpu.host_free(pinned) == 0);
	EXPECT(SHARD_OK, shard_leave(t.model, pace_ms(10000)));
	trainer_end(&t);
}

/* A pull before the first begin, by a handle that has read the image on the device so far. That one
 * is of the connection before, and there is neither another one yet nor host memory that is
 * registered. */
static void test_pull_first(void **state)
{
	struct shard_cuda_about about = SHARD_INIT(struct shard_cuda_about);
	struct shard_cuda_opts o = SHARD_INIT(struct shard_cuda_opts);
	struct shard_spec spec;
	struct trainer t;
	char why[512];
	shard_cuda *cu;
	void *weights;

	(void)state;
	trainer_spec(&spec, SHARD_F32, SHARD_F32);
	spec.name = "first";
	spec.settings = "optimizer=sgd lr=1 chunk_elems=1024 tier=gpu";
	trainer_define_as(&t, cluster->node[0].unix_address, &spec);
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &t.world));
	trainer_looks(&t, 300 * NS_PER_SEC);
	o.flags = SHARD_CUDA_BOUNCE | SHARD_CUDA_IMAGE;
	CUDA(shard_cuda_open(&cu, t.model, &o));
	CUDA(shard_cuda_tell(cu, &about));
	assert_int_equal(about.image_device, 1);
	weights = fakegpu_alloc(&gpu, N * sizeof(float));
	weights_are(cu, weights, 0);
	for (int i = 0; i < 2; i++) {
		trainer_cut(&t);
		weights_are(cu, weights, 0);
		CUDA(shard_cuda_begin(cu, NULL, &t.step));
		assert_non_null(shard_cuda_image(cu, 0));
		weights_are(cu, weights, 0);
		EXPECT(SHARD_OK, shard_abandon(t.model, "it only looked"));
	}
	/* What was told stays as it is, also when the next begin finds another reason. */
	snprintf(why, sizeof(why), "%s", about.why);
	gpu.fake_cuda_fail("cuMemImportFromShareableHandle", 1, 2);
	trainer_cut(&t);
	CUDA(shard_cuda_begin(cu, NULL, &t.step));
	gpu.fake_cuda_fail(NULL, 0, 0);
	assert_null(shard_cuda_image(cu, 0));
	assert_string_equal(about.why, why);
	CUDA(shard_cuda_tell(cu, &about));
	assert_non_null(strstr(about.why, "cuMemImportFromShareableHandle"));
	EXPECT(SHARD_OK, shard_abandon(t.model, "it only looked"));
	CUDA(shard_cuda_close(&cu, pace_ms(10000)));
	fakegpu_free(&gpu, weights);
	EXPECT(SHARD_OK, shard_leave(t.model, pace_ms(10000)));
	trainer_end(&t);
}

static int set_up(void **state)
{
	(void)state;
	cluster = cluster_make(1, NULL, "[daemon]\ngpu = auto\n");
	cluster_warm(cluster, CLUSTER_SYSTEMD);
	cluster_up(cluster);
	fakegpu_open(&gpu);
	return 0;
}

static int put_away(void **state)
{
	(void)state;
	fakegpu_close(&gpu);
	cluster_put_away(&cluster);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mapped_anew),
		cmocka_unit_test(test_pull_first),
	};

	(void)argc;
	fakegpu_path(argv);
	return cmocka_run_group_tests(tests, set_up, put_away);
}
