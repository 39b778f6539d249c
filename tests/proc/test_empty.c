// SPDX-License-Identifier: Apache-2.0
/* Tensors with a dimension of 0 in a model of two real daemons, over unix sockets and TCP: first,
 * last, between others, frozen, and of an image dtype that no other tensor has. Every call takes
 * them with a count of 0, no step waits for them, and the weights of the others are known in
 * advance. They are in a checkpoint, and come back with their shapes. */
#include "base/check.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"
#include "wire/dtype.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { TENSORS = 8, NUMEL_MAX = 2048, STEPS = 5 };

static const struct shard_tensor tensors[TENSORS] = {
	{.name = "first", .ndim = 2, .shape = {0, 7}},
	{.name = "a", .ndim = 1, .shape = {1500}},
	{.name = "between", .ndim = 3, .shape = {3, 0, 2}},
	{.name = "b", .ndim = 2, .shape = {2, 256}}, /* Its chunk ends with it. */
	{.name = "fp16", .ndim = 1, .shape = {0}, .image = SHARD_F16},
	{.name = "n", .ndim = 1, .shape = {NUMEL_MAX}, .image = SHARD_F32},
	{.name = "fp32", .ndim = 1, .shape = {0}, .image = SHARD_F32},
	{.name = "frozen", .ndim = 1, .shape = {0}, .flags = SHARD_FROZEN},
};

static const struct shard_spec spec = {.size = sizeof(spec),
				       .name = "m",
				       .tensors = tensors,
				       .tensors_nr = TENSORS,
				       .image = SHARD_BF16,
				       .grad = SHARD_F32,
				       .settings = "optimizer=sgd lr=1 chunk_elems=1024"};

static uint64_t numel(uint32_t t)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < tensors[t].ndim; d++)
		n *= tensors[t].shape[d];
	return n;
}

/* Plain SGD with small numbers, which are exact. */
static float grad(uint32_t t, uint64_t i, uint64_t step)
{
	return (float)((step + i + t) % 8) * 0.25f;
}

static float weight(uint32_t t, uint64_t i, uint64_t steps)
{
	float w = (float)(i % 64) * 0.5f - (float)t;

	for (uint64_t n = 1; n <= steps; n++)
		w -= n == 4 ? 0 : grad(t, i, n); /* In step 4 nobody has a gradient. */
	return w;
}

static void define(struct trainer *t, const char *address)
{
	float w[NUMEL_MAX];

	trainer_connect(t, address);
	EXPECT(SHARD_OK, shard_define(t->client, &spec, &t->model, &t->created));
	assert_true(t->created);
	for (uint32_t k = 0; k < TENSORS; k++) {
		for (uint64_t i = 0; i < numel(k); i++)
			w[i] = weight(k, i, 0);
		EXPECT(SHARD_OK, shard_write(t->model, SHARD_MASTER, k, 0, numel(k), SHARD_F32,
					     numel(k) > 0 ? w : NULL));
	}
	EXPECT(SHARD_RANGE, shard_write(t->model, SHARD_MASTER, 0, 0, 1, SHARD_F32, w));
	EXPECT_TEXT("\"first\": first 0, count 1, but it has 0 elements");
	EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

static void check_info(struct trainer *t)
{
	void *base;
	size_t bytes;

	EXPECT(SHARD_OK, shard_region(t->model, SHARD_IMAGE, &base, &bytes));
	for (uint32_t k = 0; k < TENSORS; k++) {
		struct shard_info info = SHARD_INIT(struct shard_info);

		EXPECT(SHARD_OK, shard_tensor_info(t->model, k, &info));
		assert_int_equal(info.numel, numel(k));
		assert_int_equal(info.ndim, tensors[k].ndim);
		assert_memory_equal(info.shape, tensors[k].shape, sizeof(info.shape));
		assert_true(info.image_offset <= bytes);
		assert_ptr_equal(shard_image(t->model, k), (char *)base + info.image_offset);
		assert_non_null(shard_grad(t->model, k));
	}
}

/* One element pushed as two halves that are summed. */
static void push_halves(struct trainer *t, uint32_t k, float *g)
{
	for (uint64_t i = 0; i < numel(k); i++)
		g[i] /= 2;
	for (int micro = 0; micro < 2; micro++)
		EXPECT(SHARD_OK, shard_push(t->model, k, 0, numel(k), numel(k) > 0 ? g : NULL,
					    SHARD_F32, SHARD_ADD, NULL));
}

/* Each step hands the gradients over in another way. */
static void push(struct trainer *t, uint32_t k, uint64_t step)
{
	bool empty = numel(k) == 0;
	shard_ticket ticket = 0;
	float g[NUMEL_MAX];

	for (uint64_t i = 0; i < numel(k); i++)
		g[i] = grad(k, i, step);
	switch (step > STEPS ? 1 : step) {
	case 1:
		EXPECT(SHARD_OK, shard_push(t->model, k, 0, numel(k), empty ? NULL : g, SHARD_F32,
					    0, &ticket));
		EXPECT(SHARD_OK, shard_test(t->model, ticket));
		if (empty) /* Nothing was pushed twice. */
			EXPECT(SHARD_OK,
			       shard_push(t->model, k, 0, 0, NULL, SHARD_F32, 0, &ticket));
		break;
	case 2: /* No step waits for one without elements. */
		if (!empty)
			EXPECT(SHARD_OK,
			       shard_push(t->model, k, 0, numel(k), g, SHARD_F32, 0, NULL));
		break;
	case 3: /* shard_push_many() follows. */
		memcpy(shard_grad(t->model, k), g, numel(k) * sizeof(*g));
		break;
	case 4:
		EXPECT(SHARD_OK, shard_push_none(t->model, k));
		if (empty) {
			EXPECT(SHARD_OK, shard_push_none(t->model, k));
			EXPECT(SHARD_OK, shard_push_none_range(t->model, k, 0, 0));
		}
		break;
	default:
		push_halves(t, k, g);
	}
}

static void one_step(struct trainer *t, uint64_t step)
{
	struct shard_begin_opts opts = SHARD_INIT(struct shard_begin_opts);
	struct shard_result r = SHARD_INIT(struct shard_result);

	opts.micro_steps = step == 5 ? 2 : 1;
	t->step = SHARD_INIT(struct shard_step);
	EXPECT(SHARD_OK, shard_begin(t->model, &opts, &t->step));
	assert_int_equal(t->step.step, step);
	for (uint32_t k = 0; k < TENSORS; k++)
		if (!(tensors[k].flags & SHARD_FROZEN))
			push(t, k, step);
	if (step == 3)
		EXPECT(SHARD_OK, shard_push_many(t->model, NULL, 0));
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(20000), &r));
	assert_int_equal(r.outcome, SHARD_APPLIED);
}

static void check(struct trainer *t, uint64_t steps)
{
	shard_ticket ticket;
	float got[NUMEL_MAX];
	uint64_t step;

	for (uint32_t k = 0; k < TENSORS; k++) {
		step = 0;
		EXPECT(SHARD_OK, shard_read(t->model, SHARD_MASTER, k, 0, numel(k), SHARD_F32,
					    numel(k) > 0 ? got : NULL, &step));
		assert_int_equal(step, numel(k) > 0 ? steps : 0);
		for (uint64_t i = 0; i < numel(k); i++)
			assert_true(got[i] == weight(k, i, steps));
		if (!t->world.world_size)
			continue;
		EXPECT(SHARD_OK,
		       shard_pull(t->model, k, 0, numel(k), steps, got, SHARD_F32, &ticket));
		if (numel(k) == 0)
			EXPECT(SHARD_OK, shard_test(t->model, ticket));
		EXPECT(SHARD_OK, shard_wait(t->model, ticket, pace_ms(20000)));
	}
	EXPECT(SHARD_OK, shard_pull_all(t->model, steps, &ticket));
	EXPECT(SHARD_OK, shard_wait(t->model, ticket, pace_ms(20000)));
}

static void refused(struct trainer *t)
{
	shard_ticket ticket;

	trainer_begin(t);
	EXPECT(SHARD_BAD_ARG, shard_push(t->model, 7, 0, 0, NULL, SHARD_F32, 0, NULL));
	EXPECT_TEXT("\"frozen\", which is frozen");
	EXPECT(SHARD_RANGE, shard_push(t->model, 2, 0, 1, NULL, SHARD_F32, 0, NULL));
	EXPECT(SHARD_RANGE, shard_push(t->model, 2, 1, 0, NULL, SHARD_F32, 0, NULL));
	EXPECT(SHARD_RANGE, shard_push(t->model, 1, 0, 0, NULL, SHARD_F32, 0, NULL));
	EXPECT(SHARD_RANGE, shard_push_none_range(t->model, 2, 0, 1));
	EXPECT(SHARD_RANGE, shard_pull(t->model, 2, 0, 1, 0, NULL, SHARD_F32, &ticket));
	EXPECT(SHARD_DTYPE, shard_push(t->model, 2, 0, 0, NULL, SHARD_BF16, 0, NULL));
	EXPECT(SHARD_MISSING, shard_commit(t->model, NULL));
	EXPECT_TEXT("3 of 7 tensors were not pushed: a, b, n");
	EXPECT(SHARD_OK, shard_abandon(t->model, "it only looked"));
}

static void join(struct trainer *t)
{
	EXPECT(SHARD_OK, shard_join(t->model, -1, pace_ms(20000), &t->world));
	check_info(t);
}

static const char *address_of(struct cluster *c, int node, bool tcp)
{
	return tcp ? c->node[node].tcp_address : c->node[node].unix_address;
}

static void trained(void **state)
{
	bool tcp = *state != NULL;
	struct cluster *c = cluster_start(2, NULL, NULL);
	struct trainer t = {0};
	struct keep keep;

	keep_init(&keep);
	define(&t, address_of(c, 1, tcp));
	join(&t);
	for (uint64_t step = 1; step <= STEPS; step++)
		one_step(&t, step);
	check(&t, STEPS);
	refused(&t);
	trainer_end(&t);
	keep_must_save(c->node[0].unix_address, "m", keep.dir, NULL);
	cluster_stop(c);
	c = cluster_start(1, NULL, NULL);
	keep_must_restore(c->node[0].unix_address, keep.dir, NULL, NULL);
	t = (struct trainer){0};
	trainer_connect(&t, address_of(c, 0, tcp));
	EXPECT(SHARD_OK, shard_define(t.client, &spec, &t.model, &t.created));
	assert_false(t.created);
	join(&t);
	check(&t, STEPS);
	one_step(&t, STEPS + 1);
	check(&t, STEPS + 1);
	trainer_end(&t);
	cluster_stop(c);
	keep_free(&keep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {OVER_BOTH(trained)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
