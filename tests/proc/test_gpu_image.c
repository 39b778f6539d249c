// SPDX-License-Identifier: Apache-2.0
/* A trainer that reads the weights where a real daemon keeps them in the memory of its GPU, on the
 * driver library for tests. On each of two devices, in each step, the bytes there are those of the
 * image of the host, and gradients that are made of them train as those of a twin do. So it is with
 * chunks in main memory, of another node, of another device, that come as codes, and after a
 * skipped step, a restore, another trainer, and a kill of the daemon. Where there cannot be such an
 * image, the sentence says why, and training goes on. */
#include "shard_cuda.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/fakegpu.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/rawpeer.h"
#include "lib/rmtree.h"
#include "lib/tool.h"
#include "lib/trainer.h"
#include "shard.pb-c.h"
#include "wire/dtype.h"
#include "wire/ops.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NUMEL_MAX = 3000 };
#define ADAMW "optimizer=adamw lr=0.05 clip=1.5 chunk_elems=1024"
#define TIER  ADAMW " tier=gpu"

static struct cluster *cluster;
static struct fakegpu gpu;
static char folder[64];

#define CUDA(st, call)                                                                             \
	do {                                                                                       \
		enum shard_status cuda_ = (call);                                                  \
		if (cuda_ != (st))                                                                 \
			fail_msg("%s: %s: %s", #call, shard_name(cuda_), shard_cuda_error());      \
	} while (0)

static struct CUctx_st *context[2];
static struct CUstream_st *stream[2];

/* The trainer's device from now on. */
static void use_device(int n)
{
	CHECK(gpu.set_current(context[n]) == 0);
	gpu.ctx = context[n];
	gpu.stream = stream[n];
}

static int setup(void **state)
{
	(void)state;
	strcpy(folder, "/tmp/shardd-gpu-image-XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
	fakegpu_open(&gpu);
	context[0] = gpu.ctx;
	stream[0] = gpu.stream;
	CHECK(gpu.retain(&context[1], 1) == 0 && gpu.set_current(context[1]) == 0);
	CHECK(gpu.stream_create(&stream[1], 0) == 0);
	use_device(0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	CHECK(unsetenv("FAKE_CUDA_FAIL") == 0 && unsetenv("FAKE_CUDA_DELAY_US") == 0);
	use_device(1);
	CHECK(gpu.stream_destroy(stream[1]) == 0 && gpu.release(1) == 0);
	use_device(0);
	fakegpu_close(&gpu);
	cluster_put_away(&cluster);
	rmtree(folder);
	return 0;
}

static void start(int nodes_nr, const char *more, enum cluster_warm warm)
{
	char model[256], extra[256];

	snprintf(model, sizeof(model), "checkpoint_dir = %s\n", folder);
	snprintf(extra, sizeof(extra), "[daemon]\ngpu = auto\n%s", more);
	cluster = cluster_make(nodes_nr, model, extra);
	cluster_warm(cluster, warm);
	cluster_up(cluster);
}

/* --- a trainer with a device --- */

struct rig {
	struct trainer t;
	shard_cuda *cu;
	enum shard_dtype image;
	void *gradient; /* On the device. */
	void *pinned;
};

static void define(struct trainer *t, const char *address, const char *name, enum shard_dtype image,
		   const char *settings)
{
	struct shard_spec s;

	trainer_spec(&s, image, SHARD_F32);
	s.name = name;
	s.settings = settings;
	trainer_define_as(t, address, &s);
	trainer_looks(t, 300 * NS_PER_SEC);
	EXPECT(SHARD_OK, shard_join(t->model, -1, pace_ms(10000), &t->world));
}

static void open_cuda(struct rig *r, int device, uint32_t flags)
{
	struct shard_cuda_opts o = SHARD_INIT(struct shard_cuda_opts);

	o.device = device;
	o.flags = flags;
	CUDA(SHARD_OK, shard_cuda_open(&r->cu, r->t.model, &o));
}

static void rig_open(struct rig *r, const char *address, const char *name, enum shard_dtype image,
		     const char *settings, int device)
{
	define(&r->t, address, name, image, settings);
	r->image = image;
	use_device(device);
	open_cuda(r, device, SHARD_CUDA_IMAGE);
	r->pinned = fakegpu_pinned(&gpu, NUMEL_MAX * sizeof(float));
}

static void rig_close(struct rig *r)
{
	struct fake_cuda_left left;

	CUDA(SHARD_OK, shard_cuda_close(&r->cu, pace_ms(10000)));
	CHECK(gpu.host_free(r->pinned) == 0);
	EXPECT(SHARD_OK, shard_leave(r->t.model, pace_ms(10000)));
	trainer_end(&r->t);
	gpu.fake_cuda_left(&left); /* The test has a context and a stream of its own. */
	assert_int_equal(left.registered + left.allocated + left.events + left.handles +
				 left.ranges + left.mapped,
			 0);
}

static bool has_image(struct rig *r, const char *why)
{
	struct shard_cuda_about about = SHARD_INIT(struct shard_cuda_about);

	CUDA(SHARD_OK, shard_cuda_tell(r->cu, &about));
	assert_int_equal(about.image_device, shard_cuda_image(r->cu, 0) != NULL);
	if (!about.image_device && strstr(about.why, why) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", why, about.why);
	return about.image_device;
}

/* What kernels of the trainer would read. */
static const void *weights(struct rig *r, uint32_t tensor)
{
	const void *dev = shard_cuda_image(r->cu, tensor), *inside;

	if (dev == NULL)
		fail_msg("%s", shard_cuda_error());
	inside = gpu.fake_cuda_inside((uint64_t)(uintptr_t)dev);
	assert_non_null(inside);
	return inside;
}

static void there(struct rig *r)
{
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++)
		if (memcmp(weights(r, i), shard_image(r->t.model, i),
			   trainer_numel[i] * dtype_bytes(r->image)) != 0)
			fail_msg("step %llu: tensor %u is another one on the device",
				 (unsigned long long)r->t.step.step, i);
}

/* --- training --- */

static void gradient_of(float *to, const void *image, enum shard_dtype dt, uint64_t step,
			uint32_t tensor)
{
	uint64_t n = trainer_numel[tensor];

	dtype_convert(to, SHARD_F32, image, dt, n);
	for (uint64_t i = 0; i < n; i++)
		to[i] = to[i] * 0.125f + (float)((step * 31 + i * 7 + tensor) % 61) * 0.01f;
}

static void finish(struct trainer *t, enum shard_outcome outcome)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(20000), &r));
	assert_int_equal(r.outcome, outcome);
}

static void twin_step(struct trainer *t, enum shard_dtype image)
{
	static float g[NUMEL_MAX];

	trainer_begin(t);
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		gradient_of(g, shard_image(t->model, i), image, t->step.step, i);
		EXPECT(SHARD_OK,
		       shard_push(t->model, i, 0, trainer_numel[i], g, SHARD_F32, 0, NULL));
	}
	finish(t, SHARD_APPLIED);
}

static void push_all(struct rig *r)
{
	void *dev = fakegpu_alloc(&gpu, NUMEL_MAX * sizeof(float));

	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		gradient_of(r->pinned, weights(r, i), r->image, r->t.step.step, i);
		fakegpu_write(&gpu, dev, r->pinned, trainer_numel[i] * sizeof(float));
		CUDA(SHARD_OK, shard_cuda_push(r->cu, i, 0, trainer_numel[i], dev, SHARD_F32, 0,
					       gpu.stream, NULL));
		CUDA(SHARD_OK, shard_cuda_wait(r->cu, 0, pace_ms(20000)));
	}
	fakegpu_free(&gpu, dev);
}

static void step(struct rig *r)
{
	CUDA(SHARD_OK, shard_cuda_begin(r->cu, NULL, &r->t.step));
	there(r);
	push_all(r);
	finish(&r->t, SHARD_APPLIED);
}

static void same(struct trainer *a, struct trainer *b)
{
	static float x[NUMEL_MAX], y[NUMEL_MAX];

	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		uint64_t n = trainer_numel[i], at = 0, other = 0;

		EXPECT(SHARD_OK, shard_read(a->model, SHARD_MASTER, i, 0, n, SHARD_F32, x, &at));
		EXPECT(SHARD_OK, shard_read(b->model, SHARD_MASTER, i, 0, n, SHARD_F32, y, &other));
		assert_int_equal(at, other);
		assert_memory_equal(x, y, n * sizeof(*x));
	}
}

static void ends(struct trainer *t)
{
	EXPECT(SHARD_OK, shard_leave(t->model, pace_ms(10000)));
	trainer_end(t);
}

/* --- tests --- */

/* Device 1 has chunks that device 0 computes, and the other way round. */
static void test_each_step(void **state)
{
	static const struct {
		enum shard_dtype image;
		int device;
		const char *more;
	} way[] = {{SHARD_F32, 0, ""},
		   {SHARD_BF16, 1, " gpu_share=50"},
		   {SHARD_F16, 0, " image_codec=int8 grad_codec=int8"}};
	const char *address;

	(void)state;
	start(1, "", CLUSTER_SYSTEMD);
	address = cluster->node[0].unix_address;
	for (size_t i = 0; i < NR(way); i++) {
		char name[16], other[16], settings[160];
		struct trainer twin;
		struct rig r;

		snprintf(name, sizeof(name), "way%zu", i);
		snprintf(other, sizeof(other), "twin%zu", i);
		snprintf(settings, sizeof(settings), "%s%s", TIER, way[i].more);
		gpu.fake_cuda_delay(300, i + 1);
		define(&twin, address, other, way[i].image, ADAMW);
		rig_open(&r, address, name, way[i].image, settings, way[i].device);
		assert_true(has_image(&r, ""));
		for (int k = 0; k < 6; k++) {
			step(&r);
			twin_step(&twin, way[i].image);
		}
		same(&twin, &r.t);
		ends(&twin);
		rig_close(&r);
	}
	assert_int_equal(cluster_logged(cluster, 0, "event=device_image model="), NR(way));
	cluster_done(&cluster);
}

/* Of pulls, which are copies within the device then. */
static void test_pulls(void **state)
{
	struct shard_cuda_about about = SHARD_INIT(struct shard_cuda_about);
	struct shard_cuda_pull pull = {.tensor = 2, .first = 7, .count = 2400};
	static float w[2400];
	struct rig r;
	void *to;

	(void)state;
	start(1, "", CLUSTER_SYSTEMD);
	rig_open(&r, cluster->node[0].unix_address, "m", SHARD_F32, TIER, 0);
	CUDA(SHARD_OK, shard_cuda_close(&r.cu, pace_ms(10000)));
	open_cuda(&r, 0, SHARD_CUDA_IMAGE | SHARD_CUDA_BOUNCE);
	assert_true(has_image(&r, ""));
	to = pull.dev = fakegpu_alloc(&gpu, sizeof(w));
	for (int k = 0; k < 4; k++) {
		shard_ticket ticket;

		step(&r);
		CUDA(SHARD_OK, shard_cuda_pull(r.cu, r.t.step.step, &pull, 1, gpu.stream, &ticket));
		CUDA(SHARD_OK, shard_cuda_order(r.cu, ticket, gpu.stream, pace_ms(20000)));
		fakegpu_read(&gpu, w, to, sizeof(w));
		assert_memory_equal(w, (const float *)shard_image(r.t.model, 2) + 7, sizeof(w));
	}
	CUDA(SHARD_OK, shard_cuda_tell(r.cu, &about));
	assert_int_equal(about.pulled_bytes, 4 * sizeof(w));
	fakegpu_free(&gpu, to);
	rig_close(&r);
	cluster_done(&cluster);
}

/* Chunks of node b come over the network, as they are or as codes. */
static void test_nodes(void **state)
{
	static const char *const more[] = {"", " image_codec=int4", " replicas=2"};

	(void)state;
	start(2, "", CLUSTER_SYSTEMD);
	for (size_t i = 0; i < NR(more); i++) {
		char name[16], settings[160];
		struct rig r;

		snprintf(name, sizeof(name), "m%zu", i);
		snprintf(settings, sizeof(settings), "%s%s", TIER, more[i]);
		rig_open(&r, cluster->node[0].unix_address, name, SHARD_F32, settings, (int)i % 2);
		assert_true(has_image(&r, ""));
		for (int k = 0; k < 5; k++)
			step(&r);
		rig_close(&r);
	}
	cluster_done(&cluster);
}

/* The versions of a skipped step move, and a restore voids all of them. */
static void test_skip_and_restore(void **state)
{
	struct shard_result res = SHARD_INIT(struct shard_result);
	static float before[NUMEL_MAX];
	enum shard_status rc;
	char w[300];
	struct rig r;

	(void)state;
	/* Copies take so long that a begin would be earlier, if it did not wait for them. */
	CHECK(setenv("FAKE_CUDA_DELAY_US", "30000", 1) == 0);
	start(1, "", CLUSTER_SYSTEMD);
	rig_open(&r, cluster->node[0].unix_address, "m", SHARD_F32, TIER " gpu_share=50", 0);
	step(&r);
	CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
	EXPECT(SHARD_OK, shard_vote_skip(r.t.model, "to see it skipped"));
	EXPECT(SHARD_OK, shard_result(r.t.model, 0, pace_ms(20000), &res));
	assert_int_equal(res.outcome, SHARD_SKIPPED_VOTE);
	step(&r);
	snprintf(w, sizeof(w), "--address %s save m", cluster->node[0].unix_address);
	tool_expect(0, "step", "shardctl", w);
	CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
	memcpy(before, weights(&r, 0), sizeof(before));
	there(&r);
	push_all(&r);
	finish(&r.t, SHARD_APPLIED);
	step(&r);
	snprintf(w, sizeof(w), "--address %s restore --force %s/m", cluster->node[0].unix_address,
		 folder);
	tool_expect(0, "", "shardctl", w);
	while ((rc = shard_cuda_begin(r.cu, NULL, &r.t.step)) == SHARD_OK)
		EXPECT(SHARD_OK, shard_abandon(r.t.model, "it waits for the restore"));
	assert_int_equal(rc, SHARD_ROLLED_BACK);
	EXPECT(SHARD_OK, shard_world_get(r.t.model, &r.t.world));
	CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
	assert_int_equal(r.t.step.step, 4);
	there(&r);
	assert_memory_equal(before, weights(&r, 0), sizeof(before));
	EXPECT(SHARD_OK, shard_abandon(r.t.model, "it only looked"));
	step(&r);
	rig_close(&r);
	cluster_done(&cluster);
}

/* The memory of the image is that of before while its trainer has not asked again. */
static void test_killed(void **state)
{
	enum shard_status rc;
	struct rig r;

	(void)state;
	start(1, "", CLUSTER_SYSTEMD);
	rig_open(&r, cluster->node[0].unix_address, "m", SHARD_F32, TIER, 1);
	for (int k = 0; k < 4; k++) {
		step(&r);
		CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
		push_all(&r);
		cluster_kill(cluster, 0);
		(void)weights(&r, 0);
		cluster_spawn(cluster, 0);
		while ((rc = shard_progress(r.t.client)) == SHARD_OK)
			sched_yield();
		assert_int_equal(rc, SHARD_WORLD_CHANGED);
		EXPECT(SHARD_OK, shard_world_get(r.t.model, &r.t.world));
		assert_null(shard_cuda_image(r.cu, 0));
		step(&r);
	}
	assert_int_equal(cluster_logged(cluster, 0, "event=device_image model=m"), 5);
	rig_close(&r);
	cluster_done(&cluster);
}

/* A trainer asks for the image again while chunks of node b are there in main memory, and their
 * copies to the GPU are still under way. */
static void test_cut(void **state)
{
	struct rig r;

	(void)state;
	cluster = cluster_make(2, NULL, "[daemon]\ngpu = auto\n");
	for (int n = 0; n < 2; n++) {
		/* What node b sends comes when node a has made its own chunks. */
		CHECK(setenv("FAKE_CUDA_DELAY_US", n ? "40000" : "20000", 1) == 0);
		cluster_spawn(cluster, n);
	}
	for (int n = 0; n < 2; n++)
		cluster_ready(cluster, n);
	CHECK(unsetenv("FAKE_CUDA_DELAY_US") == 0);
	rig_open(&r, cluster->node[0].unix_address, "m", SHARD_F32, TIER, 0);
	for (int k = 0; k < 8; k++) {
		step(&r);
		trainer_cut(&r.t);
	}
	step(&r);
	assert_int_equal(cluster_logged(cluster, 0, "event=device_image model=m"), 1);
	rig_close(&r);
	cluster_done(&cluster);
}

/* A step that may end with the daemon. */
static enum shard_status try_step(struct rig *r)
{
	void *dev = fakegpu_alloc(&gpu, NUMEL_MAX * sizeof(float));
	struct shard_result res = SHARD_INIT(struct shard_result);
	enum shard_status rc = shard_cuda_begin(r->cu, NULL, &r->t.step);

	fakegpu_write(&gpu, dev, r->pinned, NUMEL_MAX * sizeof(float));
	for (uint32_t i = 0; i < TRAINER_TENSORS && rc == SHARD_OK; i++)
		rc = shard_cuda_push(r->cu, i, 0, trainer_numel[i], dev, SHARD_F32, 0, gpu.stream,
				     NULL);
	if (rc == SHARD_OK)
		rc = shard_cuda_wait(r->cu, 0, pace_ms(20000));
	if (rc == SHARD_OK)
		rc = shard_commit(r->t.model, NULL);
	if (rc == SHARD_OK)
		rc = shard_result(r->t.model, 0, pace_ms(20000), &res);
	if (shard_cuda_wait(r->cu, 0, pace_ms(20000)) != SHARD_OK && rc == SHARD_OK)
		rc = SHARD_WORLD_CHANGED; /* Nothing reads dev any more. */
	gpu.fake_cuda_settle(0);
	fakegpu_free(&gpu, dev);
	return rc;
}

/* The GPU of a daemon fails, and with it the image there. The daemon ends, and its next process
 * gets the chunks from the other node. */
static void test_device_fails(void **state)
{
	enum shard_status rc;
	struct rig r;

	(void)state;
	start(2, "", CLUSTER_SYSTEMD);
	rig_open(&r, cluster->node[1].unix_address, "m", SHARD_F32, TIER " replicas=2", 0);
	memset(r.pinned, 0, NUMEL_MAX * sizeof(float));
	step(&r);
	cluster_kill(cluster, 1);
	CHECK(setenv("FAKE_CUDA_FAIL", "cuMemcpyHtoDAsync_v2 90 700", 1) == 0);
	cluster_spawn(cluster, 1);
	CHECK(unsetenv("FAKE_CUDA_FAIL") == 0);
	while ((rc = shard_progress(r.t.client)) == SHARD_OK)
		sched_yield();
	EXPECT(SHARD_WORLD_CHANGED, rc);
	EXPECT(SHARD_OK, shard_world_get(r.t.model, &r.t.world));
	while ((rc = try_step(&r)) == SHARD_OK)
		;
	EXPECT(SHARD_WORLD_CHANGED, rc);
	cluster_wait_log(cluster, 1, "event=gpu_state_lost model=m", 1);
	cluster_signal(cluster, 1, SIGKILL); /* It may have ended by itself. */
	(void)cluster_wait(cluster, 1, pace_ms(20000));
	cluster_spawn(cluster, 1);
	EXPECT(SHARD_OK, shard_world_get(r.t.model, &r.t.world));
	while ((rc = try_step(&r)) != SHARD_OK) {
		assert_int_equal(rc, SHARD_WORLD_CHANGED);
		EXPECT(SHARD_OK, shard_world_get(r.t.model, &r.t.world));
	}
	step(&r);
	step(&r);
	rig_close(&r);
	cluster_done(&cluster);
}

/* There is no memory to export, and the model has its own already. */
static void test_no_export(void **state)
{
	struct rig r;

	(void)state;
	CHECK(setenv("FAKE_CUDA_FAIL", "cuMemExportToShareableHandle 3 2", 1) == 0);
	start(1, "", CLUSTER_SYSTEMD);
	CHECK(unsetenv("FAKE_CUDA_FAIL") == 0);
	rig_open(&r, cluster->node[0].unix_address, "m", SHARD_F32, TIER, 0);
	assert_false(has_image(&r, "cuMemExportToShareableHandle"));
	assert_int_equal(cluster_logged(cluster, 0, "event=no_device_image model=m"), 1);
	CUDA(SHARD_OK, shard_cuda_close(&r.cu, pace_ms(10000)));
	open_cuda(&r, 0, SHARD_CUDA_IMAGE); /* Now there is. */
	assert_true(has_image(&r, ""));
	step(&r);
	rig_close(&r);
	cluster_done(&cluster);
}

/* A trainer that ends in the middle of a step leaves the image to the next one. */
static void test_trainer_ends(void **state)
{
	struct rig r;

	(void)state;
	start(1, "", CLUSTER_SYSTEMD);
	for (int k = 0; k < 3; k++) {
		rig_open(&r, cluster->node[0].unix_address, "m", SHARD_F32, TIER, 0);
		step(&r);
		step(&r);
		CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
		push_all(&r);
		EXPECT(SHARD_OK, shard_abandon(r.t.model, "this trainer ends"));
		rig_close(&r);
	}
	assert_int_equal(cluster_logged(cluster, 0, "event=device_image model=m"), 1);
	cluster_done(&cluster);
}

static void refused(const char *address, const char *name, const char *settings, int device,
		    const char *why)
{
	struct rig r;

	rig_open(&r, address, name, SHARD_F32, settings, device);
	assert_false(has_image(&r, why));
	assert_null(shard_cuda_image(r.cu, 0));
	CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
	EXPECT(SHARD_OK, shard_abandon(r.t.model, "it only began"));
	twin_step(&r.t, SHARD_F32); /* It trains without. */
	rig_close(&r);
}

static void test_refused(void **state)
{
	const char *address, *tcp;
	struct rig r;

	(void)state;
	start(1, "gpu_memory = 3MiB\n", CLUSTER_SYSTEMD);
	address = cluster->node[0].unix_address;
	tcp = cluster->node[0].tcp_address;
	refused(address, "memory", ADAMW, 0, "has no chunk of the model");
	refused(tcp, "tcp", ADAMW, 0, "over TCP");
	refused(address, "full", TIER, 0, "gpu_memory");
	assert_int_equal(cluster_logged(cluster, 0, "event=no_device_image model=full why="), 1);
	assert_int_equal(cluster_logged(cluster, 0, "event=device_image"), 0);
	define(&r.t, address, "memory", SHARD_F32, ADAMW);
	open_cuda(&r, 0, 0);
	assert_null(shard_cuda_image(r.cu, 0));
	assert_non_null(strstr(shard_cuda_error(), "SHARD_CUDA_IMAGE"));
	assert_null(shard_cuda_image(r.cu, 99));
	CUDA(SHARD_OK, shard_cuda_close(&r.cu, pace_ms(10000)));
	ends(&r.t);
	cluster_done(&cluster);
	start(1, "", CLUSTER_SYSTEMD);
	refused(cluster->node[0].unix_address, "stale", TIER " max_staleness=1", 1,
		"max_staleness = 1");
	cluster_done(&cluster);
}

/* --- the call below it, and the frame --- */

/* A daemon stops while copies of chunks in main memory are under way. */
static void test_stops(void **state)
{
	struct shard_result res = SHARD_INIT(struct shard_result);
	struct rig r;

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "40000", 1) == 0);
	for (int k = 0; k < 3; k++) {
		start(1, "", CLUSTER_SYSTEMD);
		rig_open(&r, cluster->node[0].unix_address, "m", SHARD_F32, TIER " gpu_share=50",
			 k % 2);
		step(&r);
		CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
		push_all(&r);
		EXPECT(SHARD_OK, shard_commit(r.t.model, NULL));
		if (k == 2)
			EXPECT(SHARD_OK, shard_result(r.t.model, 0, pace_ms(20000), &res));
		cluster_done(&cluster);
		CUDA(SHARD_OK, shard_cuda_close(&r.cu, pace_ms(10000)));
		CHECK(gpu.host_free(r.pinned) == 0);
		trainer_end(&r.t);
	}
}

/* A model is dropped while copies of its image are under way, and another one of that name gets an
 * image of its own. */
static void test_dropped(void **state)
{
	struct trainer other;
	struct rig r;

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "20000", 1) == 0);
	start(1, "", CLUSTER_SYSTEMD);
	for (int k = 0; k < 2; k++) {
		rig_open(&r, cluster->node[0].unix_address, "m", SHARD_F32, TIER " gpu_share=50",
			 k);
		step(&r);
		CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
		push_all(&r);
		EXPECT(SHARD_OK, shard_commit(r.t.model, NULL));
		trainer_connect(&other, cluster->node[0].unix_address);
		EXPECT(SHARD_OK, shard_drop(other.client, "m", 1));
		trainer_end(&other);
		CUDA(SHARD_OK, shard_cuda_close(&r.cu, pace_ms(10000)));
		CHECK(gpu.host_free(r.pinned) == 0);
		trainer_end(&r.t);
	}
	assert_int_equal(cluster_logged(cluster, 0, "event=device_image model=m"), 2);
	cluster_done(&cluster);
}

/* The image on a GPU is made while a step changes what is copied there. */
static void test_meanwhile(void **state)
{
	static const uint8_t uuid[17] = "\xfa\x4e"
					"no GPU here.\0\1";
	struct shard_info info = SHARD_INIT(struct shard_info);
	struct shard_result res = SHARD_INIT(struct shard_result);

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "20000", 1) == 0);
	start(1, "", CLUSTER_SYSTEMD);
	for (int k = 0; k < 8; k++) {
		struct trainer t;
		char name[16];
		char *there;
		size_t bytes;
		int fd;

		snprintf(name, sizeof(name), "m%d", k);
		define(&t, cluster->node[0].unix_address, name, SHARD_F32, TIER " gpu_share=70");
		trainer_begin(&t);
		trainer_push_all(&t, 0.25f);
		EXPECT(SHARD_OK, shard_commit(t.model, NULL));
		EXPECT(SHARD_OK, shard_device_region(t.model, SHARD_IMAGE, uuid, &fd, &bytes));
		EXPECT(SHARD_OK, shard_result(t.model, 0, pace_ms(20000), &res));
		trainer_begin(&t);
		there = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
		assert_true(there != MAP_FAILED); /* Of the driver for tests it can be read. */
		for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
			EXPECT(SHARD_OK, shard_tensor_info(t.model, i, &info));
			assert_memory_equal(there + info.image_offset, shard_image(t.model, i),
					    trainer_numel[i] * sizeof(float));
		}
		munmap(there, bytes);
		close(fd);
		EXPECT(SHARD_OK, shard_abandon(t.model, "it only looked"));
		ends(&t);
	}
	cluster_done(&cluster);
}

static void test_library(void **state)
{
	uint8_t uuid[17] = "\xfa\x4e"
			   "no GPU here.";
	int fd = -1, again = -1;
	struct trainer t;
	size_t bytes = 0;

	(void)state;
	start(1, "", CLUSTER_SYSTEMD);
	define(&t, cluster->node[0].unix_address, "m", SHARD_F32, TIER);
	EXPECT(SHARD_BAD_ARG, shard_device_region(t.model, SHARD_MASTER, uuid, &fd, &bytes));
	EXPECT(SHARD_BAD_ARG, shard_device_region(t.model, SHARD_IMAGE, NULL, &fd, &bytes));
	EXPECT(SHARD_BAD_ARG, shard_device_region(t.model, SHARD_IMAGE, uuid, NULL, &bytes));
	uuid[15] = 7;
	EXPECT(SHARD_UNSUPPORTED, shard_device_region(t.model, SHARD_IMAGE, uuid, &fd, &bytes));
	EXPECT_TEXT("[daemon] gpu");
	uuid[15] = 1;
	EXPECT(SHARD_OK, shard_device_region(t.model, SHARD_IMAGE, uuid, &fd, &bytes));
	EXPECT(SHARD_OK, shard_device_region(t.model, SHARD_IMAGE, uuid, &again, &bytes));
	assert_true(fd >= 0 && again >= 0 && fd != again && bytes % (2 << 20) == 0 && bytes > 0);
	close(fd);
	close(again);
	trainer_begin(&t); /* By the versions of the second one. */
	EXPECT(SHARD_OK, shard_abandon(t.model, "it only began"));
	EXPECT(SHARD_OK, shard_leave(t.model, pace_ms(10000)));
	EXPECT(SHARD_BAD_STATE, shard_device_region(t.model, SHARD_IMAGE, uuid, &fd, &bytes));
	trainer_end(&t);
	cluster_done(&cluster);
}

static void asks(const char *address, size_t uuid_bytes, enum shard_status want)
{
	struct wire_head h = {.op = OP_DEVICE, .attempt = 9, .model = 1, .generation = 1};
	uint8_t uuid[40] = {0};
	Shard__Device body = SHARD__DEVICE__INIT;
	Shard__Error *e;
	struct raw r;

	body.uuid.data = uuid;
	body.uuid.len = uuid_bytes;
	raw_connect(&r, address);
	raw_hello(&r, ROLE_TRAINER);
	raw_send(&r, &h, &body.base);
	do
		assert_true(raw_recv(&r));
	while (r.head.op != OP_ERROR);
	e = shard__error__unpack(NULL, r.head.body_bytes, r.body);
	assert_non_null(e);
	assert_int_equal(e->status, want);
	shard__error__free_unpacked(e, NULL);
	raw_close(&r);
}

static void test_frames(void **state)
{
	(void)state;
	start(1, "", CLUSTER_SYSTEMD);
	asks(cluster->node[0].unix_address, 3, SHARD_PROTOCOL);
	asks(cluster->node[0].unix_address, 40, SHARD_PROTOCOL);
	asks(cluster->node[0].unix_address, 16, SHARD_BAD_STATE);
	cluster_done(&cluster);
}

int main(int argc, char **argv)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_each_step), TEST(test_pulls),        TEST(test_nodes),
		TEST(test_killed),    TEST(test_trainer_ends), TEST(test_skip_and_restore),
		TEST(test_refused),   TEST(test_library),      TEST(test_frames),
		TEST(test_no_export), TEST(test_device_fails), TEST(test_meanwhile),
		TEST(test_stops),     TEST(test_dropped),      TEST(test_cut),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	CHECK(setenv("FAKE_CUDA_DEVICES", "2", 1) == 0);
	fakegpu_path(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
