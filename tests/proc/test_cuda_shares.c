// SPDX-License-Identifier: Apache-2.0
/* Two trainers of one node push shares of what their GPUs have summed (SHARD_SHARE), from device
 * memory, on the driver library of tests/cuda, whose copies are late. The gradient goes straight
 * into the arena, or through small pinned buffers in many pieces. Each weight gets the share that
 * it is in, and what is pushed beside a share is refused. */
#include "shard_cuda.h"

#include "base/check.h"
#include "lib/fakegpu.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"
#include "wire/dtype.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { RANKS = 2 };

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

struct rank {
	struct trainer t;
	shard_cuda *cu;
	uint16_t *gradient[TRAINER_TENSORS], *pinned[TRAINER_TENSORS]; /* bf16 */
};

static void open_ranks(struct rank *r, const char *name, const struct shard_cuda_opts *o)
{
	struct shard_spec s;

	for (int i = 0; i < RANKS; i++) {
		trainer_spec(&s, SHARD_F32, SHARD_BF16);
		s.name = name;
		s.settings = "optimizer=sgd lr=1 min_world=2 max_world=2 chunk_elems=1024";
		trainer_define_as(&r[i].t, cluster->node[0].unix_address, &s);
	}
	EXPECT(SHARD_TIMEOUT, shard_join(r[0].t.model, 0, 0, &r[0].t.world));
	EXPECT(SHARD_OK, shard_join(r[1].t.model, 1, pace_ms(10000), &r[1].t.world));
	EXPECT(SHARD_OK, shard_join(r[0].t.model, 0, pace_ms(10000), &r[0].t.world));
	for (int i = 0; i < RANKS; i++) {
		CUDA(SHARD_OK, shard_cuda_open(&r[i].cu, r[i].t.model, o));
		for (int k = 0; k < TRAINER_TENSORS; k++) {
			r[i].gradient[k] = fakegpu_alloc(&gpu, trainer_numel[k] * 2);
			r[i].pinned[k] = fakegpu_pinned(&gpu, trainer_numel[k] * 2);
		}
	}
}

static void close_ranks(struct rank *r)
{
	for (int i = 0; i < RANKS; i++) {
		CUDA(SHARD_OK, shard_cuda_close(&r[i].cu, pace_ms(10000)));
		for (int k = 0; k < TRAINER_TENSORS; k++) {
			fakegpu_free(&gpu, r[i].gradient[k]);
			CHECK(gpu.host_free(r[i].pinned[k]) == 0);
		}
		EXPECT(SHARD_OK, shard_leave(r[i].t.model, pace_ms(10000)));
		trainer_end(&r[i].t);
	}
}

/* Rank 0 has the first third of each tensor, which is nothing of the last one. */
static void push_shares(struct rank *r, int rank)
{
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		uint64_t n = trainer_numel[i], border = n / 3, first = rank ? border : 0;
		uint16_t *from = r->pinned[i], *dev = r->gradient[i];

		for (uint64_t k = 0; k < n; k++)
			from[k] = dtype_to_bf16(rank ? 6 : 2);
		fakegpu_write(&gpu, dev, from, n * sizeof(*dev));
		if (rank == 0 && border == 0)
			EXPECT(SHARD_OK, shard_push(r->t.model, i, 0, 0, NULL, SHARD_BF16,
						    SHARD_SHARE, NULL));
		else
			CUDA(SHARD_OK, shard_cuda_push(r->cu, i, first, rank ? n - border : border,
						       dev + first, SHARD_BF16, SHARD_SHARE,
						       gpu.stream, NULL));
	}
	/* The rest is somebody else's, and must not be copied over what is in the arena. */
	CUDA(SHARD_DUPLICATE, shard_cuda_push(r->cu, 0, rank ? 0 : 2000, 10, r->gradient[0],
					      SHARD_BF16, 0, gpu.stream, NULL));
	CUDA(SHARD_DUPLICATE, shard_cuda_push(r->cu, 0, rank ? 0 : 2000, 10, r->gradient[0],
					      SHARD_BF16, SHARD_SHARE, gpu.stream, NULL));
	CUDA(SHARD_BAD_ARG, shard_cuda_push(r->cu, 0, 0, 10, r->gradient[0], SHARD_F32,
					    SHARD_SHARE | SHARD_CAST, gpu.stream, NULL));
	if (strstr(shard_cuda_error(), "with SHARD_SHARE and other flags") == NULL)
		fail_msg("it says: %s", shard_cuda_error());
}

static void step_by(const char *name, const struct shard_cuda_opts *o, bool pinned)
{
	struct shard_cuda_about about = SHARD_INIT(struct shard_cuda_about);
	struct shard_result result = SHARD_INIT(struct shard_result);
	struct rank r[RANKS];

	memset(r, 0, sizeof(r));
	open_ranks(r, name, o);
	CUDA(SHARD_OK, shard_cuda_tell(r[0].cu, &about));
	assert_int_equal(about.grad_pinned, pinned);
	for (int i = 0; i < RANKS; i++) {
		r[i].t.step = SHARD_INIT(struct shard_step);
		CUDA(SHARD_OK, shard_cuda_begin(r[i].cu, NULL, &r[i].t.step));
	}
	for (int i = 0; i < RANKS; i++)
		push_shares(&r[i], i);
	for (int i = 0; i < RANKS; i++)
		CUDA(SHARD_OK, shard_cuda_wait(r[i].cu, 0, pace_ms(20000)));
	for (int i = 0; i < RANKS; i++)
		EXPECT(SHARD_OK, shard_commit(r[i].t.model, NULL));
	for (int i = 0; i < RANKS; i++) {
		EXPECT(SHARD_OK, shard_result(r[i].t.model, 0, pace_ms(20000), &result));
		assert_int_equal(result.outcome, SHARD_APPLIED);
	}
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		static float w[3000];
		uint64_t n = trainer_numel[i], step = result.step;

		EXPECT(SHARD_OK,
		       shard_read(r[0].t.model, SHARD_MASTER, i, 0, n, SHARD_F32, w, &step));
		for (uint64_t k = 0; k < n; k++) /* The mean over two ranks. */
			assert_true(w[k] == trainer_weight(i, k) - (k < n / 3 ? 1.0f : 3.0f));
	}
	close_ranks(r);
}

static void straight(void **state)
{
	struct shard_cuda_opts o = SHARD_INIT(struct shard_cuda_opts);

	(void)state;
	step_by("straight", &o, true);
}

static void through_buffers(void **state)
{
	struct shard_cuda_opts o = SHARD_INIT(struct shard_cuda_opts);

	(void)state;
	o.flags = SHARD_CUDA_BOUNCE;
	o.buffer_bytes = 4096;
	step_by("through", &o, false);
}

static int set_up(void **state)
{
	(void)state;
	cluster = cluster_start(1, NULL, NULL);
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
		cmocka_unit_test(straight),
		cmocka_unit_test(through_buffers),
	};

	(void)argc;
	fakegpu_path(argv);
	return cmocka_run_group_tests(tests, set_up, put_away);
}
