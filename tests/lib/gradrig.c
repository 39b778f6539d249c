// SPDX-License-Identifier: Apache-2.0
/* Trainers with memory for gradients on a GPU, for tests. A test makes rigs and twins with
 * rigs_open(), has both do steps with rigs_both(), and ends them with rigs_close(). What fails ends
 * the test. */
#include "lib/gradrig.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/tool.h"
#include "wire/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct cluster *rigs_cluster;
struct fakegpu rigs_gpu;
static struct CUctx_st *context[2];
static struct CUstream_st *stream[2];

void rig_device(int n)
{
	CHECK(rigs_gpu.set_current(context[n]) == 0);
	rigs_gpu.ctx = context[n];
	rigs_gpu.stream = stream[n];
}

int rigs_setup(void **state)
{
	(void)state;
	fakegpu_open(&rigs_gpu);
	context[0] = rigs_gpu.ctx;
	stream[0] = rigs_gpu.stream;
	CHECK(rigs_gpu.retain(&context[1], 1) == 0 && rigs_gpu.set_current(context[1]) == 0);
	CHECK(rigs_gpu.stream_create(&stream[1], 0) == 0);
	rig_device(0);
	return 0;
}

int rigs_teardown(void **state)
{
	(void)state;
	CHECK(unsetenv("FAKE_CUDA_FAIL") == 0 && unsetenv("FAKE_CUDA_DELAY_US") == 0);
	CHECK(unsetenv("SHARDD_GPU_DEADLINE_MS") == 0);
	rig_device(1);
	CHECK(rigs_gpu.stream_destroy(stream[1]) == 0 && rigs_gpu.release(1) == 0);
	rig_device(0);
	fakegpu_close(&rigs_gpu);
	cluster_put_away(&rigs_cluster);
	return 0;
}

void rigs_start(int nodes_nr, const char *more, const char *daemon)
{
	char extra[256];

	snprintf(extra, sizeof(extra), "[daemon]\ngpu = auto\n%s", more);
	rigs_cluster = cluster_make(nodes_nr, "", extra);
	cluster_warm(rigs_cluster, CLUSTER_SYSTEMD);
	rigs_cluster->daemon = daemon;
	cluster_up(rigs_cluster);
	for (int n = 0; n < nodes_nr; n++) /* `shardctl status` fails while a link is down. */
		cluster_wait_log(rigs_cluster, n, "event=link_up ", (uint32_t)nodes_nr - 1);
}

/* --- trainers --- */

bool rig_has_memory(struct rig *r, const char *why)
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

	rig_device(r->device);
	o.device = r->device;
	o.flags = flags;
	CUDA(SHARD_OK, shard_cuda_open(&r->cu, r->t.model, &o));
	r->pinned = fakegpu_pinned(&rigs_gpu, BYTES_MAX);
	r->own = fakegpu_alloc(&rigs_gpu, BYTES_MAX);
}

static bool try_join(struct rig *r, int64_t timeout_ms, enum shard_status or)
{
	enum shard_status rc = shard_join(r->t.model, r->hint, timeout_ms, &r->t.world);

	if (rc != SHARD_OK && rc != or)
		fail_msg("%s: %s", shard_name(rc), shard_error());
	return rc == SHARD_OK;
}

/* It asks to join, and rig_open() waits until the others have done so, too. */
void rig_define(struct rig *r, int hint, const char *address, const char *name,
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

void rig_open(struct rig *r)
{
	if (!r->joined)
		(void)try_join(r, pace_ms(10000), SHARD_OK);
	if (r->device >= 0)
		open_cuda(r, SHARD_CUDA_GRAD);
}

void rig_close_cuda(struct rig *r)
{
	if (r->device < 0)
		return;
	rig_device(r->device);
	CUDA(SHARD_OK, shard_cuda_close(&r->cu, pace_ms(10000)));
	CHECK(rigs_gpu.host_free(r->pinned) == 0);
	fakegpu_free(&rigs_gpu, r->own);
}

static void rig_close(struct rig *r)
{
	rig_close_cuda(r);
	EXPECT(SHARD_OK, shard_leave(r->t.model, pace_ms(10000)));
	trainer_end(&r->t);
}

void rigs_nothing_left(void)
{
	struct fake_cuda_left left;

	rigs_gpu.fake_cuda_left(&left); /* The test has contexts and streams of its own. */
	assert_int_equal(left.registered + left.allocated + left.events + left.handles +
				 left.ranges + left.mapped,
			 0);
}

/* --- a step --- */

void rig_gradient(struct rig *r, void *to, uint32_t rank, uint32_t tensor, uint64_t step)
{
	static float g[NUMEL_MAX];
	const float *w = shard_image(r->t.model, tensor);

	for (uint64_t i = 0; i < trainer_numel[tensor]; i++)
		g[i] = w[i] * 0.125f +
		       (float)((step * 31 + i * 7 + tensor + 5 * rank) % 61) * 0.01f;
	dtype_convert(to, r->grad, g, SHARD_F32, trainer_numel[tensor]);
}

/* Pushes what is in r->pinned. */
void rig_push_range(struct rig *r, uint32_t tensor, uint64_t first, uint64_t n, uint32_t flags)
{
	size_t at = first * dtype_bytes(r->grad), bytes = n * dtype_bytes(r->grad);
	bool arena = r->way == OWN || (r->way == SOME && tensor == 2);
	char *to = arena ? r->own : shard_cuda_grad(r->cu, tensor);

	if (to == NULL)
		fail_msg("%s", shard_cuda_error());
	fakegpu_write(&rigs_gpu, to + at, (char *)r->pinned + at, bytes);
	CUDA(SHARD_OK, shard_cuda_push(r->cu, tensor, first, n, arena ? to + at : NULL, r->grad,
				       flags, rigs_gpu.stream, NULL));
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
			CHECK(rigs_gpu.sync(rigs_gpu.stream) == 0);
		rig_gradient(r, to, rank, tensor, r->t.step.step + 100 * k);
		if (spoil != 0)
			dtype_convert((char *)to + (n - 1) * dtype_bytes(r->grad), r->grad, &spoil,
				      SHARD_F32, 1);
		if (r->device < 0)
			EXPECT(SHARD_OK, shard_push(r->t.model, tensor, first, count,
						    host + first * dtype_bytes(r->grad), r->grad,
						    flags, NULL));
		for (uint64_t at = 0; r->way == PARTS && at < n; at += n / 3 + 1)
			rig_push_range(r, tensor, at, n - at < n / 3 + 1 ? n - at : n / 3 + 1, 0);
		if (r->device >= 0 && r->way != PARTS)
			rig_push_range(r, tensor, first, count, flags);
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

void rigs_begin(struct rigs *c, const struct rigs *like)
{
	for (uint32_t k = 0; k < c->nr; k++)
		begin(&c->rank[k], like->rank[k].way == ADDED ? 2 : 0);
}

/* The crew pushes what its ways say, and the ways of `like` what there is. */
void rigs_push(struct rigs *c, const struct rigs *like, uint32_t k, float spoil)
{
	struct rig *r = &c->rank[k];

	if (r->device >= 0)
		rig_device(r->device);
	for (uint32_t i = TRAINER_TENSORS; i-- > 0;)
		push_tensor(r, &like->rank[k], k, i, i == 2 && k + 1 == c->nr ? spoil : 0);
	if (r->device >= 0)
		CUDA(SHARD_OK, shard_cuda_wait(r->cu, 0, pace_ms(20000)));
}

static struct shard_result finish_all(struct rigs *c, enum shard_outcome outcome)
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

struct shard_result rigs_step(struct rigs *c, const struct rigs *like, float spoil,
			      enum shard_outcome outcome)
{
	rigs_begin(c, like);
	for (uint32_t k = 0; k < c->nr; k++)
		rigs_push(c, like, k, spoil);
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
void rigs_both(struct rigs *c, struct rigs *twin, float spoil)
{
	enum shard_outcome outcome = spoil == 0 ? SHARD_APPLIED : SHARD_SKIPPED_NONFINITE;
	struct shard_result a = rigs_step(c, c, spoil, outcome),
			    b = rigs_step(twin, c, spoil, outcome);

	assert_memory_equal(&a.grad_norm, &b.grad_norm, sizeof(a.grad_norm));
	assert_int_equal(a.bad_tensor, b.bad_tensor);
	assert_int_equal(a.bad_rank, b.bad_rank);
	assert_int_equal(a.bad_rank, spoil == 0 ? -1 : (int)c->nr - 1);
	same(&c->rank[0].t, &twin->rank[0].t);
}

/* Sums that devices of a node have made. */
uint64_t rigs_sums(int node)
{
	char words[200], *out;
	uint64_t nr = 0;

	snprintf(words, sizeof(words), "--address %s status --json",
		 rigs_cluster->node[node].unix_address);
	if (tool_run(&out, "shardctl", words) != 0)
		fail_msg("shardctl %s: %s", words, out);
	for (const char *p = out; (p = strstr(p, "\"sums\":")) != NULL; p++)
		nr += strtoull(p + strlen("\"sums\":"), NULL, 10);
	free(out);
	return nr;
}

void rigs_settings(char settings[SETTINGS_MAX], const struct rig_run *w, bool twin)
{
	snprintf(settings, SETTINGS_MAX, "%s min_world=%u%s%s", ADAMW, w->ranks, twin ? "" : TIER,
		 w->more);
}

void rigs_open(struct rigs *c, const struct rig_run *w, const char *name, bool twin)
{
	char settings[SETTINGS_MAX];

	c->nr = w->ranks;
	rigs_settings(settings, w, twin);
	for (uint32_t k = 0; k < w->ranks; k++)
		rig_define(&c->rank[k], (int)k, rigs_cluster->node[w->rank[k].node].unix_address,
			   name, w->grad, settings, w->rank[k].device,
			   twin ? HOST : w->rank[k].way);
	for (uint32_t k = 0; k < w->ranks; k++)
		rig_open(&c->rank[k]);
}

void rigs_close(struct rigs *c)
{
	for (uint32_t k = 0; k < c->nr; k++)
		rig_close(&c->rank[k]);
}
