// SPDX-License-Identifier: Apache-2.0
/* libshard-cuda with real daemons, on the driver library of tests/cuda, whose copies are late. A
 * model that is trained with gradients and parameters in device memory equals, bit by bit, the one
 * that is trained from host memory: with memory that is registered, in pieces and not at all, with
 * read-only memory that cannot be, over TCP, and with weights of two steps before. Arguments that
 * are wrong, copies that hang, attempts that are over and handles that are closed in the middle end
 * as shard_cuda.h says. */
#include "shard_cuda.h"

#include "base/check.h"
#include "lib/fakegpu.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"
#include "wire/dtype.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define NUMEL_MAX 3000

static struct cluster *cluster;
static struct fakegpu gpu;

/* As EXPECT(), for the functions of shard_cuda.h. */
#define CUDA(st, call)                                                                             \
	do {                                                                                       \
		enum shard_status expect_ = (call);                                                \
		if (expect_ != (st))                                                               \
			fail_msg("%s: %s: %s, expected %s", #call, shard_name(expect_),            \
				 shard_cuda_error(), shard_name(st));                              \
	} while (0)
#define CUDA_TEXT(part)                                                                            \
	do {                                                                                       \
		if (strstr(shard_cuda_error(), (part)) == NULL)                                    \
			fail_msg("\"%s\" is not in \"%s\"", (part), shard_cuda_error());           \
	} while (0)

/* --- a trainer with a device --- */

struct rig {
	struct trainer t;
	shard_cuda *cu;
	enum shard_dtype image, grad;
	void *weight[TRAINER_TENSORS], *gradient[TRAINER_TENSORS]; /* On the device. */
	void *pinned[TRAINER_TENSORS]; /* What the next gradient is written from. */
};

static void define(struct trainer *t, const char *address, const char *name, enum shard_dtype image,
		   enum shard_dtype grad, const char *settings)
{
	struct shard_spec s;

	trainer_spec(&s, image, grad);
	s.name = name;
	s.settings = settings;
	trainer_define_as(t, address, &s);
	EXPECT(SHARD_OK, shard_join(t->model, -1, pace_ms(10000), &t->world));
}

static void rig_open(struct rig *r, const char *address, const char *name, enum shard_dtype image,
		     enum shard_dtype grad, const char *settings, const struct shard_cuda_opts *o)
{
	define(&r->t, address, name, image, grad, settings);
	r->image = image;
	r->grad = grad;
	CUDA(SHARD_OK, shard_cuda_open(&r->cu, r->t.model, o));
	for (int i = 0; i < TRAINER_TENSORS; i++) {
		r->weight[i] = fakegpu_alloc(&gpu, trainer_numel[i] * dtype_bytes(image));
		r->gradient[i] = fakegpu_alloc(&gpu, trainer_numel[i] * dtype_bytes(grad));
		r->pinned[i] = fakegpu_pinned(&gpu, trainer_numel[i] * dtype_bytes(grad));
	}
}

static void rig_free(struct rig *r)
{
	for (int i = 0; i < TRAINER_TENSORS; i++) {
		fakegpu_free(&gpu, r->weight[i]);
		fakegpu_free(&gpu, r->gradient[i]);
		CHECK(gpu.host_free(r->pinned[i]) == 0);
	}
	EXPECT(SHARD_OK, shard_leave(r->t.model, pace_ms(10000)));
	trainer_end(&r->t);
}

static void rig_close(struct rig *r)
{
	struct fake_cuda_left left;

	CUDA(SHARD_OK, shard_cuda_close(&r->cu, pace_ms(10000)));
	assert_null(r->cu);
	rig_free(r);
	gpu.fake_cuda_left(&left); /* The test has a context and a stream of its own. */
	assert_int_equal(left.registered + left.allocated + left.events, 0);
	assert_true(left.streams == 1 && left.contexts == 1);
}

/* --- training, on the device and from host memory --- */

/* A gradient that depends on the weights, so that each late copy of one of them shows. */
static void gradient_of(void *to, enum shard_dtype grad, const void *weights,
			enum shard_dtype image, uint64_t step, uint32_t tensor)
{
	static _Thread_local float w[NUMEL_MAX];
	uint64_t n = trainer_numel[tensor];

	dtype_convert(w, SHARD_F32, weights, image, n);
	for (uint64_t i = 0; i < n; i++)
		w[i] = w[i] * 0.125f + (float)((step * 31 + i * 7 + tensor) % 61) * 0.01f;
	dtype_convert(to, grad, w, SHARD_F32, n);
}

static void finish_step(struct trainer *t)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(20000), &r));
	assert_int_equal(r.outcome, SHARD_APPLIED);
}

static void host_step(struct trainer *t, enum shard_dtype image, enum shard_dtype grad)
{
	static char g[NUMEL_MAX * 4];

	trainer_begin(t);
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		gradient_of(g, grad, shard_image(t->model, i), image, t->step.step, i);
		EXPECT(SHARD_OK, shard_push(t->model, i, 0, trainer_numel[i], g, grad, 0, NULL));
	}
	finish_step(t);
}

static void look(struct rig *r, float minus)
{
	trainer_begin(&r->t);
	trainer_check_image(&r->t, SHARD_F32, minus);
	EXPECT(SHARD_OK, shard_abandon(r->t.model, "it only looked"));
}

static void get_weights(struct rig *r, uint64_t step)
{
	struct shard_cuda_pull pull[TRAINER_TENSORS] = {{0}};
	shard_ticket ticket;

	for (uint32_t i = 0; i < TRAINER_TENSORS; i++)
		pull[i] = (struct shard_cuda_pull){
			.tensor = i, .count = trainer_numel[i], .dev = r->weight[i]};
	CUDA(SHARD_OK, shard_cuda_pull(r->cu, step, pull, TRAINER_TENSORS, gpu.stream, &ticket));
	CUDA(SHARD_OK, shard_cuda_order(r->cu, ticket, gpu.stream, pace_ms(20000)));
}

/* The gradients of a step: from the weights on the device, in device memory, and on their way. */
static void push_all(struct rig *r)
{
	static char w[NUMEL_MAX * 4];

	for (uint32_t i = TRAINER_TENSORS; i-- > 0;) {
		uint64_t n = trainer_numel[i], half = n > 100 ? n / 2 : n;
		char *dev = r->gradient[i];

		fakegpu_read(&gpu, w, r->weight[i], n * dtype_bytes(r->image));
		gradient_of(r->pinned[i], r->grad, w, r->image, r->t.step.step, i);
		fakegpu_write(&gpu, dev, r->pinned[i], n * dtype_bytes(r->grad));
		CUDA(SHARD_OK,
		     shard_cuda_push(r->cu, i, 0, half, dev, r->grad, 0, gpu.stream, NULL));
		if (half < n)
			CUDA(SHARD_OK, shard_cuda_push(r->cu, i, half, n - half,
						       dev + half * dtype_bytes(r->grad), r->grad,
						       0, gpu.stream, NULL));
	}
}

static void device_step(struct rig *r)
{
	CUDA(SHARD_OK, shard_cuda_begin(r->cu, NULL, &r->t.step));
	push_all(r);
	CUDA(SHARD_OK, shard_cuda_wait(r->cu, 0, pace_ms(20000)));
	finish_step(&r->t);
	get_weights(r, r->t.step.step);
}

static void same(struct trainer *a, struct trainer *b)
{
	static float x[NUMEL_MAX], y[NUMEL_MAX];

	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		uint64_t n = trainer_numel[i], step = 0, theirs = 0;

		EXPECT(SHARD_OK, shard_read(a->model, SHARD_MASTER, i, 0, n, SHARD_F32, x, &step));
		EXPECT(SHARD_OK,
		       shard_read(b->model, SHARD_MASTER, i, 0, n, SHARD_F32, y, &theirs));
		assert_int_equal(step, theirs);
		if (memcmp(x, y, n * sizeof(*x)) != 0)
			for (uint64_t k = 0; k < n; k++)
				if (memcmp(&x[k], &y[k], 4) != 0)
					fail_msg(
						"step %llu, tensor %u, element %llu: %.9g and %.9g",
						(unsigned long long)step, i, (unsigned long long)k,
						(double)x[k], (double)y[k]);
	}
}

struct way {
	const char *name;
	bool tcp, no_read_only;
	enum shard_dtype image, grad;
	const char *settings;
	struct shard_cuda_opts opts;
	uint32_t grad_pinned, image_pinned;
	const char *why;
};

#define ADAMW "optimizer=adamw lr=0.05 clip=1.5 chunk_elems=1024"

static void as_from_the_host(const struct way *way)
{
	const char *address =
		way->tcp ? cluster->node[0].tcp_address : cluster->node[0].unix_address;
	struct shard_cuda_about about = SHARD_INIT(struct shard_cuda_about);
	char name[64], other[64];
	struct trainer host;
	struct rig r;

	snprintf(name, sizeof(name), "%s-device", way->name);
	snprintf(other, sizeof(other), "%s-host", way->name);
	gpu.fake_cuda_read_only(!way->no_read_only);
	define(&host, address, other, way->image, way->grad, way->settings);
	rig_open(&r, address, name, way->image, way->grad, way->settings, &way->opts);
	CUDA(SHARD_OK, shard_cuda_tell(r.cu, &about));
	if (about.grad_pinned != way->grad_pinned || about.image_pinned != way->image_pinned)
		fail_msg("%s: arena %u, image %u: %s", way->name, about.grad_pinned,
			 about.image_pinned, about.why);
	if (strstr(about.why, way->why) == NULL || (!way->why[0] && about.why[0]))
		fail_msg("%s: \"%s\" is not in \"%s\"", way->name, way->why, about.why);
	assert_int_equal(about.driver, 12040);
	get_weights(&r, 0);
	for (int step = 0; step < 8; step++) {
		host_step(&host, way->image, way->grad);
		device_step(&r);
	}
	same(&host, &r.t);
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) { /* And on the device. */
		static char w[NUMEL_MAX * 4];
		size_t bytes = trainer_numel[i] * dtype_bytes(way->image);

		fakegpu_read(&gpu, w, r.weight[i], bytes);
		assert_memory_equal(w, shard_image(host.model, i), bytes);
	}
	CUDA(SHARD_OK, shard_cuda_tell(r.cu, &about));
	assert_int_equal(about.pulled_bytes, 9 * 5508 * dtype_bytes(way->image));
	gpu.fake_cuda_read_only(1);
	rig_close(&r);
	EXPECT(SHARD_OK, shard_leave(host.model, pace_ms(10000)));
	trainer_end(&host);
}

#define OPTS(...)                                                                                  \
	{                                                                                          \
		.size = sizeof(struct shard_cuda_opts), .device = -1, __VA_ARGS__                  \
	}

static void each_way(void **state)
{
	static const struct way ways[] = {
		{"plain", false, false, SHARD_F32, SHARD_F32, ADAMW, OPTS(.flags = 0), 1, 1, ""},
		{"bf16", false, false, SHARD_BF16, SHARD_BF16, ADAMW, OPTS(.flags = 0), 1, 1, ""},
		{"mixed",
		 false,
		 false,
		 SHARD_F16,
		 SHARD_F32,
		 ADAMW,
		 {.size = sizeof(struct shard_cuda_opts)},
		 1,
		 1,
		 ""},
		{"pieces", false, false, SHARD_F32, SHARD_BF16, ADAMW, OPTS(.piece_bytes = 4096), 1,
		 1, ""},
		{"bounce", false, false, SHARD_F32, SHARD_F32, ADAMW,
		 OPTS(.flags = SHARD_CUDA_BOUNCE, .buffer_bytes = 4096), 0, 0, "SHARD_CUDA_BOUNCE"},
		{"writable", false, true, SHARD_BF16, SHARD_F32, ADAMW, OPTS(.buffer_bytes = 4096),
		 1, 0, "READ_ONLY_HOST_REGISTER"},
		{"tcp", true, false, SHARD_BF16, SHARD_BF16, ADAMW, OPTS(.flags = 0), 1, 1, ""},
	};

	(void)state;
	for (size_t i = 0; i < NR(ways); i++) {
		gpu.fake_cuda_delay(300, i + 1);
		as_from_the_host(&ways[i]);
	}
	assert_int_equal(gpu.fake_cuda_synchronous(), 0); /* Nothing was pageable. */
}

/* With max_staleness = 1 step n is computed on the weights that step n - 2 left. */
static void two_steps_before(void **state)
{
	static const char settings[] = "optimizer=sgd lr=0.5 max_staleness=1 chunk_elems=1024";
	struct shard_cuda_about about = SHARD_INIT(struct shard_cuda_about);
	struct shard_result res = SHARD_INIT(struct shard_result);
	const char *address = cluster->node[0].unix_address;
	struct trainer host;
	struct rig r;

	(void)state;
	define(&host, address, "stale-host", SHARD_F32, SHARD_F32, settings);
	rig_open(&r, address, "stale-device", SHARD_F32, SHARD_F32, settings, NULL);
	CUDA(SHARD_OK, shard_cuda_tell(r.cu, &about));
	assert_true(about.grad_pinned && !about.image_pinned);
	assert_non_null(strstr(about.why, "max_staleness"));
	for (uint64_t step = 1; step <= 6; step++) {
		static char g[NUMEL_MAX * 4];

		trainer_begin(&host);
		for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
			gradient_of(g, SHARD_F32, shard_image(host.model, i), SHARD_F32, step, i);
			EXPECT(SHARD_OK, shard_push(host.model, i, 0, trainer_numel[i], g,
						    SHARD_F32, 0, NULL));
		}
		EXPECT(SHARD_OK, shard_commit(host.model, NULL));
		CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
		assert_int_equal(r.t.step.step, step);
		get_weights(&r, step < 2 ? 0 : step - 2);
		push_all(&r);
		CUDA(SHARD_OK, shard_cuda_wait(r.cu, 0, pace_ms(20000)));
		EXPECT(SHARD_OK, shard_commit(r.t.model, NULL));
	}
	EXPECT(SHARD_OK, shard_result(host.model, 0, pace_ms(20000), &res));
	EXPECT(SHARD_OK, shard_result(r.t.model, 0, pace_ms(20000), &res));
	same(&host, &r.t);
	rig_close(&r);
	EXPECT(SHARD_OK, shard_leave(host.model, pace_ms(10000)));
	trainer_end(&host);
}

/* --- sums, conversions, and threads --- */

static void summed_and_converted(void **state)
{
	struct shard_begin_opts b = SHARD_INIT(struct shard_begin_opts);
	struct shard_cuda_opts o = OPTS(.buffer_bytes = 4096);
	float *part[2];
	struct rig r;

	(void)state;
	b.micro_steps = 2;
	b.weight = 2;
	rig_open(&r, cluster->node[0].unix_address, "sums", SHARD_F32, SHARD_BF16,
		 "optimizer=sgd lr=1", &o);
	for (int k = 0; k < 2; k++) {
		part[k] = fakegpu_pinned(&gpu, NUMEL_MAX * sizeof(float));
		for (int i = 0; i < NUMEL_MAX; i++)
			part[k][i] = k == 0 ? 3.0f : 1.0f;
	}
	CUDA(SHARD_OK, shard_cuda_begin(r.cu, &b, &r.t.step));
	for (int k = 0; k < 2; k++)
		for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
			void *dev = fakegpu_alloc(&gpu, NUMEL_MAX * sizeof(float));
			shard_ticket ticket;

			fakegpu_write(&gpu, dev, part[k], trainer_numel[i] * sizeof(float));
			CUDA(SHARD_OK,
			     shard_cuda_push(r.cu, i, 0, trainer_numel[i], dev, SHARD_F32,
					     SHARD_ADD | SHARD_CAST, gpu.stream, &ticket));
			CUDA(SHARD_OK, shard_cuda_wait(r.cu, ticket, pace_ms(20000)));
			fakegpu_free(&gpu, dev);
		}
	CUDA(SHARD_OK, shard_cuda_wait(r.cu, 0, pace_ms(20000)));
	finish_step(&r.t);
	get_weights(&r, r.t.step.step);
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		static float w[NUMEL_MAX];

		fakegpu_read(&gpu, w, r.weight[i], trainer_numel[i] * sizeof(float));
		for (uint64_t k = 0; k < trainer_numel[i]; k++)
			assert_true(w[k] == trainer_weight(i, k) - 2.0f);
	}
	for (int k = 0; k < 2; k++)
		CHECK(gpu.host_free(part[k]) == 0);
	rig_close(&r);
}

struct pusher {
	struct rig *r;
	uint32_t tensor;
	float value;
	enum shard_status rc;
};

static void *push_pieces(void *arg)
{
	struct pusher *p = arg;
	uint64_t n = trainer_numel[p->tensor], step = n / 50 + 1;
	char *dev = p->r->gradient[p->tensor];

	CHECK(gpu.set_current(gpu.ctx) == 0);
	for (uint64_t at = 0; at < n && p->rc == SHARD_OK; at += step)
		p->rc = shard_cuda_push(p->r->cu, p->tensor, at, n - at < step ? n - at : step,
					dev + at * 4, SHARD_F32, 0, gpu.stream, NULL);
	return NULL;
}

static void from_several_threads(void **state)
{
	pthread_t thread[TRAINER_TENSORS];
	struct pusher p[TRAINER_TENSORS];
	struct rig r;

	(void)state;
	rig_open(&r, cluster->node[0].unix_address, "threads", SHARD_F32, SHARD_F32,
		 "optimizer=sgd lr=1", NULL);
	for (int step = 1; step <= 5; step++) {
		CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
		for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
			for (uint64_t k = 0; k < trainer_numel[i]; k++)
				((float *)r.pinned[i])[k] = 0.5f;
			fakegpu_write(&gpu, r.gradient[i], r.pinned[i], trainer_numel[i] * 4);
			p[i] = (struct pusher){&r, i, 0.5f, SHARD_OK};
		}
		for (uint32_t i = 0; i < TRAINER_TENSORS; i++)
			CHECK(pthread_create(&thread[i], NULL, push_pieces, &p[i]) == 0);
		for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
			CHECK(pthread_join(thread[i], NULL) == 0);
			assert_int_equal(p[i].rc, SHARD_OK);
		}
		CUDA(SHARD_OK, shard_cuda_wait(r.cu, 0, pace_ms(20000)));
		finish_step(&r.t);
		look(&r, 0.5f * (float)step);
	}
	rig_close(&r);
}

/* Tensors of a multiple of 64 elements adjoin in the image. Where they do on the device, too, they
 * are one copy. */
static void neighbours_are_one_copy(void **state)
{
	static const struct shard_tensor tensors[] = {
		{.name = "a", .ndim = 1, .shape = {64}},
		{.name = "b", .ndim = 1, .shape = {128}},
		{.name = "c", .ndim = 1, .shape = {10}},
		{.name = "d", .ndim = 1, .shape = {32}},
	};
	static const uint64_t numel[] = {64, 128, 10, 32};
	struct shard_cuda_about about = SHARD_INIT(struct shard_cuda_about);
	struct shard_world world = SHARD_INIT(struct shard_world);
	struct shard_cuda_pull pull[4] = {{0}};
	struct shard_spec s;
	struct trainer t;
	uint64_t at = 0;
	shard_cuda *cu;
	float w[234];
	char *dev;

	(void)state;
	trainer_spec(&s, SHARD_F32, SHARD_F32);
	s.name = "neighbours";
	s.tensors = tensors;
	s.tensors_nr = 4;
	trainer_connect(&t, cluster->node[0].unix_address);
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	for (int i = 0; i < 234; i++)
		w[i] = (float)i;
	for (uint32_t i = 0; i < 4; at += numel[i++])
		EXPECT(SHARD_OK,
		       shard_write(t.model, SHARD_MASTER, i, 0, numel[i], SHARD_F32, w + at));
	EXPECT(SHARD_OK, shard_seal(t.model, 0));
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &world));
	CUDA(SHARD_OK, shard_cuda_open(&cu, t.model, NULL));
	dev = fakegpu_alloc(&gpu, 234 * 4);
	at = 0;
	for (uint32_t i = 0; i < 4; at += numel[i++])
		pull[i] = (struct shard_cuda_pull){
			.tensor = i, .count = numel[i], .dev = dev + at * 4};
	CUDA(SHARD_OK, shard_cuda_pull(cu, 0, pull, 4, gpu.stream, NULL));
	CUDA(SHARD_OK, shard_cuda_wait(cu, 0, pace_ms(20000)));
	memset(w, 0, sizeof(w));
	fakegpu_read(&gpu, w, dev, 234 * 4);
	for (int i = 0; i < 234; i++)
		assert_true(w[i] == (float)i);
	CUDA(SHARD_OK, shard_cuda_tell(cu, &about));
	assert_int_equal(about.pulled_copies,
			 2); /* a, b and c; d begins at the next 64 elements. */
	/* The other way round on the device. */
	pull[0].dev = dev + 128 * 4;
	pull[1].dev = dev;
	CUDA(SHARD_OK, shard_cuda_pull(cu, 0, pull, 2, gpu.stream, NULL));
	CUDA(SHARD_OK, shard_cuda_wait(cu, 0, pace_ms(20000)));
	fakegpu_read(&gpu, w, dev, 192 * 4);
	for (int i = 0; i < 192; i++)
		assert_true(w[i] == (float)(i < 128 ? i + 64 : i - 128));
	CUDA(SHARD_OK, shard_cuda_close(&cu, pace_ms(10000)));
	fakegpu_free(&gpu, dev);
	EXPECT(SHARD_OK, shard_leave(t.model, pace_ms(10000)));
	trainer_end(&t);
}

/* --- what goes wrong --- */

/* A second handle of a model that has one, and what no handle can have. */
static void wrong_opens(shard_model *m)
{
	struct shard_cuda_opts o = SHARD_INIT(struct shard_cuda_opts);
	shard_cuda *cu;

	CUDA(SHARD_BAD_ARG, shard_cuda_open(NULL, m, NULL));
	CUDA(SHARD_BAD_ARG, shard_cuda_open(&cu, NULL, NULL));
	CUDA(SHARD_BAD_STATE, shard_cuda_open(&cu, m, NULL));
	CUDA_TEXT("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
	CUDA_TEXT("close the other handle");
	o.flags = 8;
	CUDA(SHARD_BAD_ARG, shard_cuda_open(&cu, m, &o));
	o.flags = 0;
	o.device = 1;
	CUDA(SHARD_UNSUPPORTED, shard_cuda_open(&cu, m, &o));
	CUDA_TEXT("CUDA_VISIBLE_DEVICES");
	o.piece_bytes = 5;
	CUDA(SHARD_BAD_ARG, shard_cuda_open(&cu, m, &o));
	CHECK(gpu.set_current(NULL) == 0);
	CUDA(SHARD_BAD_STATE, shard_cuda_open(&cu, m, NULL));
	CUDA_TEXT("torch.cuda.set_device");
	CHECK(gpu.set_current(gpu.ctx) == 0);
	assert_null(cu);
}

static void wrong_arguments(void **state)
{
	struct shard_cuda_pull pull = {0};
	struct CUstream_st *captured;
	struct rig r;
	void *dev;

	(void)state;
	rig_open(&r, cluster->node[0].unix_address, "wrong", SHARD_F32, SHARD_F32,
		 "optimizer=sgd lr=1", NULL);
	dev = r.gradient[0];
	wrong_opens(r.t.model);
	CUDA(SHARD_BAD_STATE, shard_cuda_push(r.cu, 0, 0, 3000, dev, SHARD_F32, 0, NULL, NULL));
	CUDA_TEXT("shard_cuda_begin()");
	CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
	CUDA(SHARD_BAD_ARG, shard_cuda_push(NULL, 0, 0, 1, dev, SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_RANGE, shard_cuda_push(r.cu, 9, 0, 1, dev, SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_RANGE, shard_cuda_push(r.cu, 0, 1, 3000, dev, SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_RANGE, shard_cuda_push(r.cu, 0, UINT64_MAX, 2, dev, SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_RANGE, shard_cuda_push(r.cu, 0, 0, 0, dev, SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_BAD_ARG, shard_cuda_push(r.cu, 0, 0, 1, NULL, SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_BAD_ARG, shard_cuda_push(r.cu, 0, 0, 1, dev, SHARD_F32, 8, NULL, NULL));
	CUDA(SHARD_DTYPE, shard_cuda_push(r.cu, 0, 0, 1, dev, SHARD_BF16, 0, NULL, NULL));
	/* Memory and streams that are not the device's. */
	CUDA(SHARD_BAD_ARG, shard_cuda_push(r.cu, 0, 0, 1, &r, SHARD_F32, 0, NULL, NULL));
	CUDA_TEXT("cuMemcpyDtoHAsync of a gradient: CUDA_ERROR_INVALID_VALUE (1)");
	CUDA(SHARD_BAD_ARG,
	     shard_cuda_push(r.cu, 0, 0, 1, dev, SHARD_F32, 0, (shard_stream)&r, NULL));
	CUDA_TEXT("CUDA_ERROR_INVALID_HANDLE");
	CHECK(gpu.stream_create(&captured, 0) == 0);
	gpu.fake_cuda_capture(captured, 1);
	CUDA(SHARD_BAD_STATE, shard_cuda_push(r.cu, 0, 0, 1, dev, SHARD_F32, 0, captured, NULL));
	CUDA_TEXT("captured into a graph");
	CHECK(gpu.stream_destroy(captured) == 0);
	/* Twice, as a whole and in parts. */
	CUDA(SHARD_OK, shard_cuda_push(r.cu, 0, 0, 1000, dev, SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_OK, shard_cuda_push(r.cu, 0, 2000, 1000, dev, SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_DUPLICATE, shard_cuda_push(r.cu, 0, 999, 2, dev, SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_DUPLICATE, shard_cuda_push(r.cu, 0, 0, 3000, dev, SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_OK, shard_cuda_push(r.cu, 0, 1000, 1000, dev, SHARD_F32, 0, NULL, NULL));
	/* What libshard says to a push is said to who waits, and to the next push. */
	EXPECT(SHARD_OK, shard_push_none(r.t.model, 1));
	CUDA(SHARD_OK, shard_cuda_push(r.cu, 1, 0, 7, dev, SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_DUPLICATE, shard_cuda_wait(r.cu, 0, pace_ms(20000)));
	CUDA_TEXT("shard_push_none()");
	CUDA(SHARD_DUPLICATE, shard_cuda_push(r.cu, 2, 0, 7, dev, SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_BAD_ARG, shard_cuda_wait(r.cu, 1000, 0));
	CUDA(SHARD_BAD_ARG, shard_cuda_pull(r.cu, 0, NULL, 1, NULL, NULL));
	CUDA(SHARD_RANGE, shard_cuda_pull(r.cu, 0, &pull, 1, NULL, NULL));
	pull.count = 1;
	CUDA(SHARD_BAD_ARG, shard_cuda_pull(r.cu, 0, &pull, 1, NULL, NULL));
	CUDA(SHARD_BAD_ARG, shard_cuda_tell(r.cu, NULL));
	EXPECT(SHARD_OK, shard_abandon(r.t.model, "a test"));
	rig_close(&r);
}

static void fill(struct rig *r, uint32_t tensor, float value)
{
	for (uint64_t k = 0; k < trainer_numel[tensor]; k++)
		((float *)r->pinned[tensor])[k] = value;
}

static void push_value(struct rig *r, uint32_t tensor, float value, shard_ticket *ticket)
{
	fill(r, tensor, value);
	fakegpu_write(&gpu, r->gradient[tensor], r->pinned[tensor], trainer_numel[tensor] * 4);
	CHECK(gpu.sync(gpu.stream) == 0);
	CUDA(SHARD_OK, shard_cuda_push(r->cu, tensor, 0, trainer_numel[tensor], r->gradient[tensor],
				       SHARD_F32, 0, gpu.stream, ticket));
}

/* The gradient of an attempt that is over must not get into the next one. */
static void an_attempt_is_over(void **state)
{
	struct shard_result res = SHARD_INIT(struct shard_result);
	struct shard_cuda_opts o = OPTS(.timeout_ms = pace_ms(2000));
	struct CUstream_st *copies;
	shard_ticket ticket;
	struct rig r;

	(void)state;
	rig_open(&r, cluster->node[0].unix_address, "over", SHARD_F32, SHARD_F32,
		 "optimizer=sgd lr=1", &o);
	copies = shard_cuda_stream(r.cu);
	CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
	gpu.fake_cuda_hold(copies, 1);
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++)
		push_value(&r, i, 100.0f, &ticket);
	CUDA(SHARD_TIMEOUT, shard_cuda_wait(r.cu, ticket, 50));
	CUDA_TEXT("4 copies are queued and not done yet");
	EXPECT(SHARD_MISSING, shard_commit(r.t.model, NULL));
	EXPECT(SHARD_OK, shard_abandon(r.t.model, "a test"));
	gpu.fake_cuda_delay(20000, 1);
	gpu.fake_cuda_hold(copies, 0);
	CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
	/* From host memory, into the places that the copies of the old attempt go to. */
	for (uint32_t i = 0; i + 1 < TRAINER_TENSORS; i++) {
		fill(&r, i, 2.0f);
		EXPECT(SHARD_OK, shard_push(r.t.model, i, 0, trainer_numel[i], r.pinned[i],
					    SHARD_F32, 0, NULL));
	}
	push_value(&r, TRAINER_TENSORS - 1, 2.0f, NULL);
	CUDA(SHARD_OK, shard_cuda_wait(r.cu, 0, pace_ms(20000)));
	EXPECT(SHARD_OK, shard_commit(r.t.model, NULL));
	EXPECT(SHARD_OK, shard_result(r.t.model, 0, pace_ms(20000), &res));
	look(&r, 2.0f);
	gpu.fake_cuda_delay(300, 1);
	rig_close(&r);
}

/* A stream that hangs ends the handle and not the model. */
static void a_copy_hangs(void **state)
{
	struct shard_cuda_opts o = OPTS(.timeout_ms = 300);
	struct rig r;

	(void)state;
	rig_open(&r, cluster->node[0].unix_address, "hangs", SHARD_F32, SHARD_F32,
		 "optimizer=sgd lr=1", &o);
	CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
	gpu.fake_cuda_hold(gpu.stream, 1);
	fakegpu_write(&gpu, r.gradient[0], r.pinned[0], 3000 * 4);
	CUDA(SHARD_OK,
	     shard_cuda_push(r.cu, 0, 0, 3000, r.gradient[0], SHARD_F32, 0, gpu.stream, NULL));
	CUDA(SHARD_CLOSED, shard_cuda_wait(r.cu, 0, pace_ms(20000)));
	CUDA_TEXT("was not done in 0.3 s");
	CUDA(SHARD_CLOSED, shard_cuda_push(r.cu, 1, 0, 7, r.gradient[1], SHARD_F32, 0, NULL, NULL));
	CUDA(SHARD_CLOSED, shard_cuda_begin(r.cu, NULL, &r.t.step));
	CUDA(SHARD_TIMEOUT, shard_cuda_close(&r.cu, 50)); /* It may yet write into the arena. */
	CUDA_TEXT("close the handle again");
	CUDA(SHARD_TIMEOUT, shard_cuda_close(&r.cu, 0));
	gpu.fake_cuda_hold(gpu.stream, 0);
	EXPECT(SHARD_OK, shard_abandon(r.t.model, "a test"));
	rig_close(&r);
}

/* In the middle of copies both ways, of the kinds that the helper makes and of those it does not.
 */
static void closed_in_the_middle(void **state)
{
	struct shard_cuda_pull pull = {.tensor = 0, .count = 3000};
	struct shard_cuda_opts o[2] = {OPTS(.flags = 0),
				       OPTS(.flags = SHARD_CUDA_BOUNCE, .buffer_bytes = 4096)};

	(void)state;
	for (int round = 0; round < 16; round++) {
		struct rig r;

		gpu.fake_cuda_delay(2000, (uint64_t)round);
		rig_open(&r, cluster->node[0].unix_address, "middle", SHARD_F32, SHARD_F32,
			 "optimizer=sgd lr=1", &o[round % 2]);
		pull.dev = r.weight[0];
		CUDA(SHARD_OK, shard_cuda_begin(r.cu, NULL, &r.t.step));
		CUDA(SHARD_OK, shard_cuda_pull(r.cu, 0, &pull, 1, gpu.stream, NULL));
		for (uint32_t i = 0; i < TRAINER_TENSORS; i++)
			CUDA(SHARD_OK, shard_cuda_push(r.cu, i, 0, trainer_numel[i], r.gradient[i],
						       SHARD_F32, 0, gpu.stream, NULL));
		/* A step that is not there yet: the helper waits for it. */
		CUDA(SHARD_OK, shard_cuda_pull(r.cu, r.t.step.step, &pull, 1, gpu.stream, NULL));
		if (round & 2)
			CUDA(SHARD_OK, shard_cuda_wait(r.cu, 1, pace_ms(20000)));
		CUDA(SHARD_OK, shard_cuda_close(&r.cu, pace_ms(10000)));
		EXPECT(SHARD_OK, shard_abandon(r.t.model, "a test"));
		rig_close(&r);
	}
	gpu.fake_cuda_delay(300, 1);
}

/* A pull of a step that never comes ends with the handle's timeout, and the handle goes on. */
static void a_step_that_does_not_come(void **state)
{
	struct shard_cuda_pull pull = {.tensor = 2, .count = 2500};
	struct shard_cuda_opts o = OPTS(.timeout_ms = 300);
	shard_ticket ticket;
	struct rig r;

	(void)state;
	rig_open(&r, cluster->node[0].unix_address, "never", SHARD_F32, SHARD_F32,
		 "optimizer=sgd lr=1", &o);
	pull.dev = r.weight[2];
	CUDA(SHARD_OK, shard_cuda_pull(r.cu, 7, &pull, 1, gpu.stream, &ticket));
	CUDA(SHARD_TIMEOUT, shard_cuda_wait(r.cu, ticket, 0));
	CUDA(SHARD_TIMEOUT, shard_cuda_order(r.cu, ticket, gpu.stream, pace_ms(20000)));
	CUDA_TEXT("did not have the parameters of step 7");
	CUDA(SHARD_TIMEOUT, shard_cuda_wait(r.cu, 0, pace_ms(20000)));
	CUDA(SHARD_OK, shard_cuda_pull(r.cu, 0, &pull, 1, gpu.stream, &ticket));
	CUDA(SHARD_OK, shard_cuda_wait(r.cu, 0, pace_ms(20000)));
	rig_close(&r);
}

static void forked(void **state)
{
	struct rig r;
	pid_t child;

	(void)state;
	rig_open(&r, cluster->node[0].unix_address, "forked", SHARD_F32, SHARD_F32,
		 "optimizer=sgd lr=1", NULL);
	if ((child = fork()) == 0)
		_exit(!(shard_cuda_wait(r.cu, 0, 0) == SHARD_FORKED && !shard_cuda_stream(r.cu) &&
			shard_cuda_close(&r.cu, 0) == SHARD_OK && r.cu == NULL));
	proc_expect_exit(child, 0, 10000);
	rig_close(&r);
}

static int set_up(void **state)
{
	(void)state;
	cluster = cluster_start(1, NULL, "[daemon]\nmemory = 1GiB\n"); /* For all the models. */
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
		cmocka_unit_test(each_way),
		cmocka_unit_test(two_steps_before),
		cmocka_unit_test(summed_and_converted),
		cmocka_unit_test(from_several_threads),
		cmocka_unit_test(neighbours_are_one_copy),
		cmocka_unit_test(wrong_arguments),
		cmocka_unit_test(an_attempt_is_over),
		cmocka_unit_test(a_copy_hangs),
		cmocka_unit_test(closed_in_the_middle),
		cmocka_unit_test(a_step_that_does_not_come),
		cmocka_unit_test(forked),
	};

	(void)argc;
	fakegpu_path(argv);
	return cmocka_run_group_tests(tests, set_up, put_away);
}
