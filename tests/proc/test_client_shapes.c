// SPDX-License-Identifier: Apache-2.0
/* Trains models of every shape with real daemons: chunks of many parts, many chunks, tensors that
 * nobody pushes, and frozen tensors, over unix sockets and over tcp. The weights are known in
 * advance. */
#include "base/check.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define MODEL_OF(min, max)                                                                         \
	"min_world = " #min "\nmax_world = " #max "\nchunk_elems = 1024\ntimeout = 120s\n"

static void finish_step(struct trainer *t, uint64_t step)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(10000), &r));
	assert_int_equal(r.step, step);
	assert_int_equal(r.outcome, SHARD_APPLIED);
}

static const struct shard_tensor parts[3] = {{.name = "a", .ndim = 1, .shape = {250000}},
					     {.name = "none", .ndim = 1, .shape = {150000}},
					     {.name = "b", .ndim = 1, .shape = {200000}}};

/* The room for the largest of the parts. */
static float *part(void)
{
	float *w = malloc(250000 * sizeof(*w));

	assert_non_null(w);
	return w;
}

static void define_parts(struct trainer *t)
{
	struct shard_spec s = {.size = sizeof(s),
			       .name = "big",
			       .tensors = parts,
			       .tensors_nr = 3,
			       .image = SHARD_F32,
			       .grad = SHARD_F32,
			       .settings = "optimizer=sgd lr=1"};
	float *w = part();

	EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
	for (uint32_t k = 0; k < 3 && t->created; k++) {
		for (uint64_t n = 0; n < parts[k].shape[0]; n++)
			w[n] = (float)(n % 1000) + (float)k;
		EXPECT(SHARD_OK,
		       shard_write(t->model, SHARD_MASTER, k, 0, parts[k].shape[0], SHARD_F32, w));
	}
	if (t->created)
		EXPECT(SHARD_OK, shard_seal(t->model, 0));
	free(w);
}

/* The masters after three steps, as they are read and as each of two trainers pulls them. */
static void check_parts(struct trainer *t)
{
	float *w = part(), *back = part();
	uint64_t at = 0;

	for (uint32_t k = 0; k < 3; k++) {
		uint64_t nr = parts[k].shape[0];

		EXPECT(SHARD_OK,
		       shard_read(t[0].model, SHARD_MASTER, k, 0, nr, SHARD_F32, back, &at));
		for (uint64_t n = 0; n < nr; n++)
			assert_true(back[n] == (float)(n % 1000) + (float)k -
						       (k == 1 ? 0.0f : 3 * 1.5f * (float)(n % 3)));
		for (int i = 0; i < 2; i++) {
			shard_ticket ticket;

			EXPECT(SHARD_OK,
			       shard_pull(t[i].model, k, 0, nr, 3, w, SHARD_F32, &ticket));
			EXPECT(SHARD_OK, shard_wait(t[i].model, ticket, pace_ms(10000)));
			assert_memory_equal(w, back, nr * sizeof(*w));
		}
	}
	free(w);
	free(back);
}

/* 600,000 elements in fp32 have chunks of four parts and a short last one. Nobody pushes the tensor
 * in the middle. */
static void many_parts(bool tcp)
{
	struct cluster *c =
		cluster_start(2, "min_world = 2\nmax_world = 2\nchunk_elems = 262144\n", NULL);
	struct trainer t[2];
	float *w = part();

	for (int i = 0; i < 2; i++) {
		trainer_connect(&t[i], tcp ? c->node[i].tcp_address : c->node[i].unix_address);
		define_parts(&t[i]);
	}
	EXPECT(SHARD_TIMEOUT, shard_join(t[0].model, 0, 0, &t[0].world));
	EXPECT(SHARD_OK, shard_join(t[1].model, 1, pace_ms(10000), &t[1].world));
	EXPECT(SHARD_OK, shard_join(t[0].model, 0, pace_ms(10000), &t[0].world));
	for (uint64_t step = 1; step <= 3; step++) {
		for (int i = 0; i < 2; i++) {
			trainer_begin(&t[i]);
			for (uint64_t n = 0; n < 250000; n++)
				w[n] = (float)(i + 1) *
				       (float)(n % 3); /* The mean of two is 1.5 times that. */
			EXPECT(SHARD_OK,
			       shard_push(t[i].model, 2, 0, 200000, w, SHARD_F32, 0, NULL));
			EXPECT(SHARD_OK, shard_push_none(t[i].model, 1));
			EXPECT(SHARD_OK,
			       shard_push(t[i].model, 0, 0, 250000, w, SHARD_F32, 0, NULL));
			EXPECT(SHARD_OK, shard_commit(t[i].model, NULL));
		}
		for (int i = 0; i < 2; i++)
			finish_step(&t[i], step);
	}
	check_parts(t);
	for (int i = 0; i < 2; i++)
		trainer_end(&t[i]);
	free(w);
	cluster_stop(c);
}

static void test_parts_unix(void **state)
{
	(void)state;
	many_parts(false);
}

static void test_parts_tcp(void **state)
{
	(void)state;
	many_parts(true);
}

/* A frozen tensor fills chunks of its own. It has no gradient and never changes, and is in the
 * image. */
static void frozen(bool tcp)
{
	static const struct shard_tensor tensors[3] = {
		{.name = "a", .ndim = 1, .shape = {500}},
		{.name = "fixed", .ndim = 1, .shape = {5000}, .flags = SHARD_FROZEN},
		{.name = "b", .ndim = 1, .shape = {3000}}};
	struct cluster *c = cluster_start(2, MODEL_OF(1, 1), NULL);
	struct shard_spec s = {.size = sizeof(s),
			       .name = "lora",
			       .tensors = tensors,
			       .tensors_nr = 3,
			       .image = SHARD_BF16,
			       .grad = SHARD_F32,
			       .settings = "optimizer=adamw lr=0.1"};
	float w[5000], g[5000];
	uint64_t at = 0;
	struct trainer t;

	for (int i = 0; i < 5000; i++) {
		w[i] = (float)(i % 100);
		g[i] = 1;
	}
	trainer_connect(&t, tcp ? c->node[0].tcp_address : c->node[0].unix_address);
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	for (uint32_t k = 0; k < 3; k++)
		EXPECT(SHARD_OK,
		       shard_write(t.model, SHARD_MASTER, k, 0, tensors[k].shape[0], SHARD_F32, w));
	EXPECT(SHARD_OK, shard_seal(t.model, 10));
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &t.world));
	assert_int_equal(t.world.step, 11);
	for (uint64_t step = 11; step <= 12; step++) {
		trainer_begin(&t);
		for (uint64_t n = 0; n < 5000; n++)
			assert_true(trainer_image_at(&t, SHARD_BF16, 1, n) == (float)(n % 100));
		EXPECT(SHARD_BAD_ARG, shard_push(t.model, 1, 0, 5000, g, SHARD_F32, 0, NULL));
		EXPECT_TEXT("\"fixed\", which is frozen");
		EXPECT(SHARD_OK, shard_push(t.model, 2, 0, 3000, g, SHARD_F32, 0, NULL));
		EXPECT(SHARD_OK, shard_push(t.model, 0, 0, 500, g, SHARD_F32, 0, NULL));
		EXPECT(SHARD_OK, shard_commit(t.model, NULL));
		finish_step(&t, step);
	}
	EXPECT(SHARD_OK, shard_read(t.model, SHARD_MASTER, 2, 0, 3000, SHARD_F32, w, &at));
	assert_int_equal(at, 12);
	for (uint64_t n = 0; n < 3000; n++)
		assert_true(w[n] < (float)(n % 100) - 0.05f && w[n] > (float)(n % 100) - 0.75f);
	trainer_end(&t);
	cluster_stop(c);
}

static void test_frozen_unix(void **state)
{
	(void)state;
	frozen(false);
}

static void test_frozen_tcp(void **state)
{
	(void)state;
	frozen(true);
}

/* There are more chunks than frames in the library's queue. What does not fit waits, and is sent
 * without another call. */
static void many_chunks(bool tcp)
{
	enum { ELEMS = 3000 * 1024 };
	static const struct shard_tensor one = {.name = "a", .ndim = 1, .shape = {ELEMS}};
	struct cluster *c = cluster_start(1, MODEL_OF(1, 1), NULL);
	struct shard_spec s = {.size = sizeof(s),
			       .name = "wide",
			       .tensors = &one,
			       .tensors_nr = 1,
			       .image = SHARD_BF16,
			       .grad = SHARD_BF16,
			       .settings = "optimizer=sgd lr=1"};
	float *w = calloc(ELEMS, sizeof(*w));
	uint64_t at = 0;
	struct trainer t;

	trainer_connect(&t, tcp ? c->node[0].tcp_address : c->node[0].unix_address);
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	EXPECT(SHARD_OK, shard_write(t.model, SHARD_MASTER, 0, 0, ELEMS, SHARD_F32, w));
	EXPECT(SHARD_OK, shard_seal(t.model, 0));
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &t.world));
	for (uint64_t step = 1; step <= 2; step++) {
		trainer_begin(&t);
		for (uint64_t n = 0; n < ELEMS; n++)
			w[n] = (float)(n / 1024 % 100);
		EXPECT(SHARD_OK, shard_push(t.model, 0, 0, ELEMS, w, SHARD_F32, SHARD_CAST, NULL));
		EXPECT(SHARD_OK, shard_commit(t.model, NULL));
		finish_step(&t, step);
	}
	EXPECT(SHARD_OK, shard_read(t.model, SHARD_IMAGE, 0, 0, ELEMS, SHARD_F32, w,
				    &at)); /* As an observer would. */
	assert_int_equal(at, 2);
	for (uint64_t n = 0; n < ELEMS; n++)
		assert_true(w[n] == -2 * (float)(n / 1024 % 100));
	trainer_end(&t);
	free(w);
	cluster_stop(c);
}

static void test_chunks_unix(void **state)
{
	(void)state;
	many_chunks(false);
}

static void test_chunks_tcp(void **state)
{
	(void)state;
	many_chunks(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts_unix),  cmocka_unit_test(test_parts_tcp),
		cmocka_unit_test(test_chunks_unix), cmocka_unit_test(test_chunks_tcp),
		cmocka_unit_test(test_frozen_unix), cmocka_unit_test(test_frozen_tcp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
