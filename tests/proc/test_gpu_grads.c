// SPDX-License-Identifier: Apache-2.0
/* Trainers whose gradients lie where a real daemon has memory for them on their GPUs, on the driver
 * library for tests. A twin model gets the same gradients by arenas of the host: after each step
 * the weights of both are the same bit by bit. So it is where all ranks are on one device, and the
 * sums are made there, and where they are on two, where some of a chunk comes from the host, in
 * parts, in shares, in micro-steps or not at all, with several nodes, copies and codecs, after a
 * gradient that is not finite, another attempt, a trainer that ends, a kill of the daemon and a
 * device that fails. Where there cannot be such memory, the sentence says why. */
#include "shard_cuda.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/fakegpu.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "lib/trainer.h"
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

enum { NUMEL_MAX = 3000, RANKS_MAX = 3, BYTES_MAX = NUMEL_MAX * 4, SETTINGS_MAX = 300 };
#define ADAMW "optimizer=adamw lr=0.05 clip=1.5 chunk_elems=1024 local_world=3"
#define TIER  " tier=gpu"

static struct cluster *cluster;
static struct fakegpu gpu;
static struct CUctx_st *context[2];
static struct CUstream_st *stream[2];

#define CUDA(st, call)                                                                             \
	do {                                                                                       \
		enum shard_status cuda_ = (call);                                                  \
		if (cuda_ != (st))                                                                 \
			fail_msg("%s: %s: %s", #call, shard_name(cuda_), shard_cuda_error());      \
	} while (0)

static void use_device(int n)
{
	CHECK(gpu.set_current(context[n]) == 0);
	gpu.ctx = context[n];
	gpu.stream = stream[n];
}

static int setup(void **state)
{
	(void)state;
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
	CHECK(unsetenv("SHARDD_GPU_DEADLINE_MS") == 0);
	use_device(1);
	CHECK(gpu.stream_destroy(stream[1]) == 0 && gpu.release(1) == 0);
	use_device(0);
	fakegpu_close(&gpu);
	cluster_put_away(&cluster);
	return 0;
}

static void start(int nodes_nr, const char *more, const char *daemon)
{
	char extra[256];

	snprintf(extra, sizeof(extra), "[daemon]\ngpu = auto\n%s", more);
	cluster = cluster_make(nodes_nr, "", extra);
	cluster_warm(cluster, CLUSTER_SYSTEMD);
	cluster->daemon = daemon;
	cluster_up(cluster);
}

/* --- trainers --- */

/* How a rank gives its gradients. */
enum way {
	HOST,  /* By the arena of the host. */
	OWN,   /* By a copy from memory of its own on the device. */
	THERE, /* From memory of the daemon on the device. */
	PARTS, /* The same, each tensor in three pushes. */
	SOME,  /* Tensor 2 by the arena, and the others from the device. */
	FEW,   /* None of tensors 0 and 1. */
	ADDED, /* In two micro-steps. */
	SHARED /* Tensors 0 and 2 in shares, rank 0 the first half. */
};

struct rig {
	struct trainer t;
	shard_cuda *cu;
	enum way way;
	enum shard_dtype grad;
	int hint, device; /* device -1: it has none. */
	bool joined;
	void *own, *pinned;
};

struct crew {
	struct rig rank[RANKS_MAX];
	uint32_t nr;
};

static bool has_memory(struct rig *r, const char *why)
{
	struct shard_cuda_about about = SHARD_INIT(struct shard_cuda_about);

	CUDA(SHARD_OK, shard_cuda_tell(r->cu, &about));
	assert_int_equal(about.grad_device, shard_cuda_grad(r->cu, 0) != NULL);
	if (!about.grad_device && strstr(about.why, why) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", why, about.why);
	return about.grad_device;
}

static void open_cuda(struct rig *r, uint32_t flags)
{
	struct shard_cuda_opts o = SHARD_INIT(struct shard_cuda_opts);

	use_device(r->device);
	o.device = r->device;
	o.flags = flags;
	CUDA(SHARD_OK, shard_cuda_open(&r->cu, r->t.model, &o));
	r->pinned = fakegpu_pinned(&gpu, BYTES_MAX);
	r->own = fakegpu_alloc(&gpu, BYTES_MAX);
}

static bool try_join(struct rig *r, int64_t timeout_ms, enum shard_status or)
{
	enum shard_status rc = shard_join(r->t.model, r->hint, timeout_ms, &r->t.world);

	if (rc != SHARD_OK && rc != or)
		fail_msg("%s: %s", shard_name(rc), shard_error());
	return rc == SHARD_OK;
}

/* It asks to join, and rig_open() waits until the others have done so, too. */
static void rig_define(struct rig *r, int hint, const char *address, const char *name,
		       enum shard_dtype grad, const char *settings, int device, enum way way)
{
	struct shard_spec s;

	memset(r, 0, sizeof(*r));
	r->hint = hint;
	trainer_spec(&s, SHARD_F32, grad);
	s.name = name;
	s.settings = settings;
	trainer_define_as(&r->t, address, &s);
	trainer_looks(&r->t, 300 * NS_PER_SEC);
	r->joined = try_join(r, 0, SHARD_TIMEOUT);
	r->grad = grad;
	r->way = way;
	r->device = way == HOST ? -1 : device;
}

static void rig_open(struct rig *r)
{
	if (!r->joined)
		(void)try_join(r, pace_ms(10000), SHARD_OK);
	if (r->device >= 0)
		open_cuda(r, SHARD_CUDA_GRAD);
}

static void close_cuda(struct rig *r)
{
	if (r->device < 0)
		return;
	use_device(r->device);
	CUDA(SHARD_OK, shard_cuda_close(&r->cu, pace_ms(10000)));
	CHECK(gpu.host_free(r->pinned) == 0);
	fakegpu_free(&gpu, r->own);
}

static void rig_close(struct rig *r)
{
	close_cuda(r);
	EXPECT(SHARD_OK, shard_leave(r->t.model, pace_ms(10000)));
	trainer_end(&r->t);
}

static void nothing_left(void)
{
	struct fake_cuda_left left;

	gpu.fake_cuda_left(&left); /* The test has contexts and streams of its own. */
	assert_int_equal(left.registered + left.allocated + left.events + left.handles +
				 left.ranges + left.mapped,
			 0);
}

/* --- a step --- */

static void gradient_of(struct rig *r, void *to, uint32_t rank, uint32_t tensor, uint64_t step)
{
	static float g[NUMEL_MAX];
	const float *w = shard_image(r->t.model, tensor);

	for (uint64_t i = 0; i < trainer_numel[tensor]; i++)
		g[i] = w[i] * 0.125f +
		       (float)((step * 31 + i * 7 + tensor + 5 * rank) % 61) * 0.01f;
	dtype_convert(to, r->grad, g, SHARD_F32, trainer_numel[tensor]);
}

/* Pushes what is in r->pinned. */
static void push_range(struct rig *r, uint32_t tensor, uint64_t first, uint64_t n, uint32_t flags)
{
	size_t at = first * dtype_bytes(r->grad), bytes = n * dtype_bytes(r->grad);
	bool arena = r->way == OWN || (r->way == SOME && tensor == 2);
	char *to = arena ? r->own : shard_cuda_grad(r->cu, tensor);

	if (to == NULL)
		fail_msg("%s", shard_cuda_error());
	fakegpu_write(&gpu, to + at, (char *)r->pinned + at, bytes);
	CUDA(SHARD_OK, shard_cuda_push(r->cu, tensor, first, n, arena ? to + at : NULL, r->grad,
				       flags, gpu.stream, NULL));
	if (arena || flags != 0) /* r->own has the next one then. */
		CUDA(SHARD_OK, shard_cuda_wait(r->cu, 0, pace_ms(20000)));
}

static void push_tensor(struct rig *r, const struct rig *like, uint32_t rank, uint32_t tensor,
			float spoil)
{
	static char host[BYTES_MAX];
	uint64_t n = trainer_numel[tensor], half = n / 2, micro = like->way == ADDED ? 2 : 1;
	uint32_t flags = like->way == ADDED ? SHARD_ADD : 0;
	bool shared = like->way == SHARED && (tensor == 0 || tensor == 2);
	uint64_t first = shared && rank > 0 ? half : 0, count = shared ? half : n;
	void *to = r->device < 0 ? host : r->pinned;

	if (like->way == FEW && tensor < 2) {
		EXPECT(SHARD_OK, shard_push_none(r->t.model, tensor));
		return;
	}
	if (shared)
		flags = SHARD_SHARE;
	for (uint64_t k = 0; k < micro; k++) {
		if (r->device >= 0) /* What is in r->pinned is still on its way. */
			CHECK(gpu.sync(gpu.stream) == 0);
		gradient_of(r, to, rank, tensor, r->t.step.step + 100 * k);
		if (spoil != 0)
			dtype_convert((char *)to + (n - 1) * dtype_bytes(r->grad), r->grad, &spoil,
				      SHARD_F32, 1);
		if (r->device < 0)
			EXPECT(SHARD_OK, shard_push(r->t.model, tensor, first, count,
						    host + first * dtype_bytes(r->grad), r->grad,
						    flags, NULL));
		for (uint64_t at = 0; r->way == PARTS && at < n; at += n / 3 + 1)
			push_range(r, tensor, at, n - at < n / 3 + 1 ? n - at : n / 3 + 1, 0);
		if (r->device >= 0 && r->way != PARTS)
			push_range(r, tensor, first, count, flags);
	}
}

static void begin(struct rig *r, uint32_t micro_steps)
{
	struct shard_begin_opts o = SHARD_INIT(struct shard_begin_opts);
	enum shard_status rc;

	o.micro_steps = micro_steps;
	while ((rc = r->device >= 0
			     ? shard_cuda_begin(r->cu, &o, &r->t.step)
			     : shard_begin(r->t.model, &o, &r->t.step)) == SHARD_WORLD_CHANGED)
		EXPECT(SHARD_OK, shard_world_get(r->t.model, &r->t.world));
	if (rc != SHARD_OK)
		fail_msg("%s: %s, %s", shard_name(rc), shard_error(), shard_cuda_error());
}

static void begin_all(struct crew *c, const struct crew *like)
{
	for (uint32_t k = 0; k < c->nr; k++)
		begin(&c->rank[k], like->rank[k].way == ADDED ? 2 : 0);
}

/* The crew pushes what its ways say, and the ways of `like` what there is. */
static void push_rank(struct crew *c, const struct crew *like, uint32_t k, float spoil)
{
	struct rig *r = &c->rank[k];

	if (r->device >= 0)
		use_device(r->device);
	for (uint32_t i = TRAINER_TENSORS; i-- > 0;)
		push_tensor(r, &like->rank[k], k, i, i == 2 && k + 1 == c->nr ? spoil : 0);
	if (r->device >= 0)
		CUDA(SHARD_OK, shard_cuda_wait(r->cu, 0, pace_ms(20000)));
}

static struct shard_result finish_all(struct crew *c, enum shard_outcome outcome)
{
	struct shard_result res = SHARD_INIT(struct shard_result);

	for (uint32_t k = 0; k < c->nr; k++)
		EXPECT(SHARD_OK, shard_commit(c->rank[k].t.model, NULL));
	for (uint32_t k = 0; k < c->nr; k++) {
		EXPECT(SHARD_OK, shard_result(c->rank[k].t.model, 0, pace_ms(20000), &res));
		assert_int_equal(res.outcome, outcome);
	}
	return res;
}

static struct shard_result step(struct crew *c, const struct crew *like, float spoil,
				enum shard_outcome outcome)
{
	begin_all(c, like);
	for (uint32_t k = 0; k < c->nr; k++)
		push_rank(c, like, k, spoil);
	return finish_all(c, outcome);
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

/* A step of both crews, with the same weights after it. */
static void both(struct crew *c, struct crew *twin, float spoil)
{
	enum shard_outcome outcome = spoil == 0 ? SHARD_APPLIED : SHARD_SKIPPED_NONFINITE;
	struct shard_result a = step(c, c, spoil, outcome), b = step(twin, c, spoil, outcome);

	assert_memory_equal(&a.grad_norm, &b.grad_norm, sizeof(a.grad_norm));
	assert_int_equal(a.bad_tensor, b.bad_tensor);
	assert_int_equal(a.bad_rank, b.bad_rank);
	assert_int_equal(a.bad_rank, spoil == 0 ? -1 : (int)c->nr - 1);
	same(&c->rank[0].t, &twin->rank[0].t);
}

/* Sums that devices of a node have made. */
static uint64_t sums(int node)
{
	char words[200], *out;
	uint64_t nr = 0;

	snprintf(words, sizeof(words), "--address %s status --json",
		 cluster->node[node].unix_address);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	for (const char *p = out; (p = strstr(p, "\"sums\":")) != NULL; p++)
		nr += strtoull(p + strlen("\"sums\":"), NULL, 10);
	free(out);
	return nr;
}

struct run {
	const char *more; /* Settings of both models. */
	enum shard_dtype grad;
	struct {
		enum way way;
		int device, node;
	} rank[RANKS_MAX];
	uint32_t ranks;
	bool summed; /* On the device. */
};

static void settings_of(char settings[SETTINGS_MAX], const struct run *w, bool twin)
{
	snprintf(settings, SETTINGS_MAX, "%s min_world=%u%s%s", ADAMW, w->ranks, twin ? "" : TIER,
		 w->more);
}

static void open_crew(struct crew *c, const struct run *w, const char *name, bool twin)
{
	char settings[SETTINGS_MAX];

	c->nr = w->ranks;
	settings_of(settings, w, twin);
	for (uint32_t k = 0; k < w->ranks; k++)
		rig_define(&c->rank[k], (int)k, cluster->node[w->rank[k].node].unix_address, name,
			   w->grad, settings, w->rank[k].device, twin ? HOST : w->rank[k].way);
	for (uint32_t k = 0; k < w->ranks; k++)
		rig_open(&c->rank[k]);
}

static void close_crew(struct crew *c)
{
	for (uint32_t k = 0; k < c->nr; k++)
		rig_close(&c->rank[k]);
}

static void run(const struct run *w, size_t number)
{
	static struct crew c, twin;
	char name[16], other[16];
	uint64_t before = sums(0);
	struct trainer last;

	snprintf(name, sizeof(name), "m%zu", number);
	snprintf(other, sizeof(other), "twin%zu", number);
	gpu.fake_cuda_delay(300, number + 1);
	open_crew(&c, w, name, false);
	open_crew(&twin, w, other, true);
	for (uint32_t k = 0; k < w->ranks; k++)
		if (c.rank[k].device >= 0)
			assert_true(has_memory(&c.rank[k], ""));
	for (int k = 0; k < 5; k++)
		both(&c, &twin, k == 2 ? NAN : 0);
	if (w->summed)
		assert_true(sums(0) > before);
	else
		assert_int_equal(sums(0), before);
	close_crew(&c);
	close_crew(&twin);
	nothing_left();
	trainer_connect(&last, cluster->node[0].unix_address);
	EXPECT(SHARD_OK, shard_drop(last.client, name, 1));
	EXPECT(SHARD_OK, shard_drop(last.client, other, 1));
	trainer_end(&last);
}

/* --- tests --- */

static void test_ranks(void **state)
{
	static const struct run runs[] = {
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
	start(1, "", NULL);
	for (size_t i = 0; i < NR(runs); i++)
		run(&runs[i], i);
	assert_int_equal(cluster_logged(cluster, 0, "event=no_device_grads"), 0);
	cluster_done(&cluster);
}

/* Contributions to chunks of another node leave from the host. */
static void test_nodes(void **state)
{
	static const struct run runs[] = {
		{"", SHARD_BF16, {{THERE, 0, 0}, {THERE, 0, 0}, {THERE, 1, 1}}, 3, true},
		{" grad_codec=int8", SHARD_BF16, {{THERE, 0, 0}, {PARTS, 0, 1}}, 2, false},
		{" replicas=2 predivide=2", SHARD_F32, {{THERE, 1, 0}, {FEW, 1, 1}}, 2, false},
	};

	(void)state;
	start(2, "", NULL);
	for (size_t i = 0; i < NR(runs); i++)
		run(&runs[i], i);
	cluster_done(&cluster);
}

static const struct run two = {"", SHARD_F32, {{THERE, 0, 0}, {THERE, 0, 0}}, 2, true};

static void told(enum shard_status rc)
{
	assert_true(rc == SHARD_OK || rc == SHARD_WORLD_CHANGED);
}

/* The same gradients in another attempt, after one rank gave the first one up. */
static void test_again(void **state)
{
	static struct crew c, twin;

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "20000", 1) == 0);
	start(1, "", NULL);
	open_crew(&c, &two, "m", false);
	open_crew(&twin, &two, "twin", true);
	for (int k = 0; k < 3; k++) {
		both(&c, &twin, 0);
		begin_all(&c, &c);
		push_rank(&c, &c, 0, 0);
		if (k > 0) /* Sums are under way. */
			push_rank(&c, &c, 1, 0);
		EXPECT(SHARD_OK, shard_abandon(c.rank[1].t.model, "to have another attempt"));
		told(shard_abandon(c.rank[0].t.model, "it may have heard of it"));
		both(&c, &twin, 0);
	}
	close_crew(&c);
	close_crew(&twin);
	cluster_done(&cluster);
}

/* A rank that dies with pushes under way leaves its slot to another one, with other memory. */
static void test_trainer_dies(void **state)
{
	static struct crew c, twin;
	char settings[SETTINGS_MAX];

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "20000", 1) == 0);
	start(1, "", NULL);
	open_crew(&c, &two, "m", false);
	open_crew(&twin, &two, "twin", true);
	for (int k = 0; k < 4; k++) {
		struct rig *r = &c.rank[1];

		both(&c, &twin, 0);
		begin_all(&c, &c);
		push_rank(&c, &c, 0, 0);
		push_rank(&c, &c, 1, 0);
		close_cuda(r);
		trainer_end(&r->t); /* As when the process ends. */
		told(shard_abandon(c.rank[0].t.model, "it may have heard of it"));
		settings_of(settings, &two, false);
		rig_define(r, 1, cluster->node[0].unix_address, "m", SHARD_F32, settings, k % 2,
			   THERE);
		rig_open(r);
		assert_true(has_memory(r, ""));
	}
	both(&c, &twin, 0);
	assert_int_equal(cluster_logged(cluster, 0, "event=device_grads model=m"), 2 + 4);
	close_crew(&c);
	close_crew(&twin);
	nothing_left();
	cluster_done(&cluster);
}

/* Memory of before keeps nothing: after the next begin it is other memory. */
static void test_killed(void **state)
{
	static struct crew c, twin;
	enum shard_status rc;

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "5000", 1) == 0);
	start(1, "", NULL);
	open_crew(&c, &two, "m", false);
	open_crew(&twin, &two, "twin", true);
	for (int k = 0; k < 3; k++) {
		both(&c, &twin, 0);
		begin_all(&c, &c);
		push_rank(&c, &c, 0, 0);
		if (k > 0)
			push_rank(&c, &c, 1, 0);
		cluster_kill(cluster, 0);
		cluster_spawn(cluster, 0);
		for (uint32_t i = 0; i < 4; i++) {
			struct trainer *t = i < 2 ? &c.rank[i].t : &twin.rank[i - 2].t;

			while ((rc = shard_progress(t->client)) == SHARD_OK)
				sched_yield();
			assert_int_equal(rc, SHARD_WORLD_CHANGED);
			EXPECT(SHARD_OK, shard_world_get(t->model, &t->world));
		}
		assert_null(shard_cuda_grad(c.rank[0].cu, 0));
	}
	both(&c, &twin, 0);
	close_crew(&c);
	close_crew(&twin);
	nothing_left();
	cluster_done(&cluster);
}

/* The daemon stops, or the model is dropped, while sums are under way. */
static void test_ends(void **state)
{
	static struct crew c;

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "40000", 1) == 0);
	for (int k = 0; k < 4; k++) {
		struct trainer other;

		start(1, "", NULL);
		open_crew(&c, &two, "m", false);
		step(&c, &c, 0, SHARD_APPLIED);
		begin_all(&c, &c);
		push_rank(&c, &c, 0, 0);
		push_rank(&c, &c, 1, 0);
		for (uint32_t i = 0; k % 2 && i < 2; i++)
			EXPECT(SHARD_OK, shard_commit(c.rank[i].t.model, NULL));
		if (k >= 2) {
			trainer_connect(&other, cluster->node[0].unix_address);
			EXPECT(SHARD_OK, shard_drop(other.client, "m", 1));
			trainer_end(&other);
		}
		cluster_done(&cluster);
		for (uint32_t i = 0; i < 2; i++) {
			close_cuda(&c.rank[i]);
			trainer_end(&c.rank[i].t);
		}
		nothing_left();
	}
}

/* Pushes what of the gradients is in the chunk. */
static void push_chunk(struct crew *c, uint64_t chunk, float spoil)
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
			CHECK(gpu.sync(gpu.stream) == 0);
			gradient_of(r, r->pinned, k, i, r->t.step.step);
			((float *)r->pinned)[from - first] += spoil;
			push_range(r, i, from - first, end - from, 0);
		}
		CUDA(SHARD_OK, shard_cuda_wait(r->cu, 0, pace_ms(20000)));
	}
}

static bool phase_is(int node, const char *phase)
{
	char words[200], want[40], *out;
	bool is;

	snprintf(words, sizeof(words), "--address %s status --json",
		 cluster->node[node].unix_address);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	snprintf(want, sizeof(want), "\"phase\":\"%s\"", phase);
	is = strstr(out, want) != NULL;
	free(out);
	return is;
}

/* A step in which node 1 votes for its chunks, which have odd numbers, while sums for those of node
 * 0 are under way. False: it was seen too late. */
static bool votes(struct crew *c)
{
	struct shard_result res = SHARD_INIT(struct shard_result);
	uint64_t before = sums(1);

	begin_all(c, c);
	for (uint32_t k = 1; k < 6; k += 2)
		push_chunk(c, k, 0);
	while (sums(1) < before + 3)
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
	static const struct run there = {"", SHARD_F32, {{THERE, 0, 1}, {THERE, 0, 1}}, 2, true};
	static struct crew c;

	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "400000", 1) == 0);
	start(2, "stop_timeout = 100ms\n", NULL);
	open_crew(&c, &there, "m", false);
	while (!votes(&c))
		; /* It was decided before this process saw the vote. */
	cluster_signal(cluster, 0, SIGSTOP);
	cluster_signal(cluster, 1, SIGTERM);
	assert_int_equal(cluster_wait(cluster, 1, pace_ms(20000)), 0);
	cluster_signal(cluster, 0, SIGCONT);
	for (uint32_t k = 0; k < c.nr; k++) {
		close_cuda(&c.rank[k]);
		trainer_end(&c.rank[k].t);
	}
	nothing_left();
	cluster_done(&cluster);
}

/* A push is done when the work before it on the stream is, and so is what lies there. */
static void test_waits_for_the_stream(void **state)
{
	static const struct run one = {"", SHARD_F32, {{THERE, 0, 0}}, 1, true};
	static struct crew c;
	struct rig *r = &c.rank[0];
	void *there;

	(void)state;
	start(1, "", NULL);
	open_crew(&c, &one, "m", false);
	gpu.fake_cuda_delay(100000, 1);
	for (int k = 0; k < 3; k++) {
		begin_all(&c, &c);
		there = shard_cuda_grad(r->cu, 0);
		assert_non_null(there);
		gradient_of(r, r->pinned, 0, 0, r->t.step.step);
		fakegpu_write(&gpu, there, r->pinned, trainer_numel[0] * sizeof(float));
		CUDA(SHARD_OK, shard_cuda_push(r->cu, 0, 0, trainer_numel[0], NULL, SHARD_F32, 0,
					       gpu.stream, NULL));
		CUDA(SHARD_OK, shard_cuda_wait(r->cu, 0, pace_ms(20000)));
		assert_memory_equal(gpu.fake_cuda_inside((uint64_t)(uintptr_t)there), r->pinned,
				    trainer_numel[0] * sizeof(float));
		EXPECT(SHARD_OK, shard_abandon(r->t.model, "it only looked"));
	}
	gpu.fake_cuda_delay(0, 1);
	close_crew(&c);
	cluster_done(&cluster);
}

/* What lies there has one dtype: elements of another one would be read from beyond it. */
static void test_other_dtype(void **state)
{
	static const struct run one = {"", SHARD_BF16, {{THERE, 0, 0}}, 1, true};
	const uint32_t last = TRAINER_TENSORS - 1;
	static struct crew c;
	struct rig *r = &c.rank[0];

	(void)state;
	start(1, "", NULL);
	open_crew(&c, &one, "m", false);
	begin_all(&c, &c);
	CUDA(SHARD_DTYPE, shard_cuda_push(r->cu, last, 0, trainer_numel[last], NULL, SHARD_F32,
					  SHARD_CAST, gpu.stream, NULL));
	CUDA(SHARD_DTYPE, shard_cuda_push(r->cu, last, 0, trainer_numel[last], NULL, SHARD_F32, 0,
					  gpu.stream, NULL));
	EXPECT(SHARD_OK, shard_abandon(r->t.model, "it only asked"));
	step(&c, &c, 0, SHARD_APPLIED);
	close_crew(&c);
	cluster_done(&cluster);
}

/* --- a device that fails --- */

static enum shard_status try_step(struct rig *r)
{
	struct shard_result res = SHARD_INIT(struct shard_result);
	enum shard_status rc = shard_cuda_begin(r->cu, NULL, &r->t.step);
	bool there = rc == SHARD_OK && shard_cuda_grad(r->cu, 0) != NULL;

	for (uint32_t i = 0; i < TRAINER_TENSORS && rc == SHARD_OK; i++)
		rc = shard_cuda_push(r->cu, i, 0, trainer_numel[i], there ? NULL : r->own, r->grad,
				     0, gpu.stream, NULL);
	if (rc == SHARD_OK)
		rc = shard_cuda_wait(r->cu, 0, pace_ms(20000));
	if (rc == SHARD_OK)
		rc = shard_commit(r->t.model, NULL);
	if (rc == SHARD_OK)
		rc = shard_result(r->t.model, 0, pace_ms(20000), &res);
	if (shard_cuda_wait(r->cu, 0, pace_ms(20000)) != SHARD_OK && rc == SHARD_OK)
		rc = SHARD_WORLD_CHANGED;
	gpu.fake_cuda_settle(0);
	return rc;
}

/* The device fails in a sum. What it had of the model comes from the other node, and the trainer
 * goes on, with memory of the host until the daemon has been started again. */
static void device_fails(const char *fail)
{
	static const struct run one = {" replicas=2", SHARD_F32, {{THERE, 0, 1}}, 1, true};
	static struct crew c;
	enum shard_status rc;
	struct rig *r = &c.rank[0];

	start(2, "", NULL);
	open_crew(&c, &one, "m", false);
	memset(r->pinned, 0, BYTES_MAX);
	fakegpu_write(&gpu, r->own, r->pinned, BYTES_MAX);
	EXPECT(SHARD_OK, try_step(r));
	cluster_kill(cluster, 1);
	CHECK(setenv("FAKE_CUDA_FAIL", fail, 1) == 0);
	cluster_spawn(cluster, 1);
	CHECK(unsetenv("FAKE_CUDA_FAIL") == 0);
	while ((rc = shard_progress(r->t.client)) == SHARD_OK)
		sched_yield();
	EXPECT(SHARD_WORLD_CHANGED, rc);
	EXPECT(SHARD_OK, shard_world_get(r->t.model, &r->t.world));
	for (int k = 0; (rc = try_step(r)) == SHARD_OK; k++)
		assert_true(k < 100);
	EXPECT(SHARD_WORLD_CHANGED, rc);
	/* The sum was the first to hear of it, and no other attempt has begun there. */
	assert_int_equal(cluster_logged(cluster, 1, "event=gpu_state_lost model=m"), 1);
	cluster_signal(cluster, 1, SIGKILL); /* It may have ended by itself. */
	(void)cluster_wait(cluster, 1, pace_ms(20000));
	cluster_spawn(cluster, 1);
	EXPECT(SHARD_OK, shard_world_get(r->t.model, &r->t.world));
	while ((rc = try_step(r)) != SHARD_OK) {
		assert_int_equal(rc, SHARD_WORLD_CHANGED);
		EXPECT(SHARD_OK, shard_world_get(r->t.model, &r->t.world));
	}
	EXPECT(SHARD_OK, try_step(r));
	close_crew(&c);
	nothing_left();
	cluster_done(&cluster);
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
	CHECK(setenv("SHARDD_GPU_DEADLINE_MS", "1500", 1) == 0);
	device_fails("cuMemcpyDtoHAsync_v2 10 -1");
}

/* --- where there is none --- */

static void refused(const char *address, const char *name, const char *settings, const char *why)
{
	struct crew c = {.nr = 1}, like = {.nr = 1};
	struct rig *r = &c.rank[0];

	rig_define(r, 0, address, name, SHARD_F32, settings, 0, OWN);
	rig_open(r);
	assert_false(has_memory(r, why));
	CUDA(SHARD_OK, shard_cuda_begin(r->cu, NULL, &r->t.step));
	CUDA(SHARD_BAD_ARG, shard_cuda_push(r->cu, 0, 0, 5, NULL, SHARD_F32, 0, gpu.stream, NULL));
	EXPECT(SHARD_OK, shard_abandon(r->t.model, "it only began"));
	step(&c, &like, 0, SHARD_APPLIED); /* It trains without. */
	close_crew(&c);
	nothing_left();
}

static void test_refused(void **state)
{
	const char *address, *tcp;

	(void)state;
	start(1, "gpu_memory = 5MiB\n", NULL);
	address = cluster->node[0].unix_address;
	tcp = cluster->node[0].tcp_address;
	refused(address, "memory", ADAMW, "has no chunk of the model");
	refused(tcp, "tcp", ADAMW, "over TCP");
	refused(address, "full", ADAMW TIER, "gpu_memory");
	assert_int_equal(cluster_logged(cluster, 0, "event=no_device_grads model=full why="), 1);
	assert_int_equal(cluster_logged(cluster, 0, "event=device_grads"), 0);
	cluster_done(&cluster);
	start(1, "", NULL);
	refused(cluster->node[0].unix_address, "stale", ADAMW TIER " max_staleness=1",
		"max_staleness = 1");
	cluster_done(&cluster);
	start(1, "", "tests/older/shardd");
	refused(cluster->node[0].unix_address, "older", ADAMW, "does not know of gradients");
	cluster_done(&cluster);
	/* It would answer with an image. */
	start(1, "", "tests/before/shardd");
	refused(cluster->node[0].unix_address, "m", ADAMW TIER, "does not know of gradients");
	cluster_done(&cluster);
}

/* --- main --- */

int main(int argc, char **argv)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_ranks),        TEST(test_nodes),        TEST(test_again),
		TEST(test_killed),       TEST(test_trainer_dies), TEST(test_refused),
		TEST(test_device_fails), TEST(test_ends),         TEST(test_waits_for_the_stream),
		TEST(test_device_hangs), TEST(test_other_dtype),  TEST(test_stops_alone),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	CHECK(setenv("FAKE_CUDA_DEVICES", "2", 1) == 0);
	fakegpu_path(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
