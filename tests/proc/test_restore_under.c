// SPDX-License-Identifier: Apache-2.0
/* A checkpoint of a folder and a tag that the caller gives, under settings of the caller's own. It
 * defines the model with them and, having been given the task of writing the weights, restores in
 * place of that, over unix sockets and TCP, from either of two real daemons. Weights, moments and
 * counters are those that were saved. World, learning rate and loss scale rule are the caller's.
 * Another caller may not do it, and a checkpoint that does not fit leaves the task where it is. */
#include "base/check.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NUMEL = 3000 };

#define SAVED "optimizer=sgd momentum=0.5 lr=1 chunk_elems=1024 min_world=1 max_world=1"
#define OTHER                                                                                      \
	"optimizer=sgd momentum=0.5 lr=0.25 chunk_elems=2048 min_world=1 max_world=4 clip=1000 "   \
	"replicas=2"

static const struct shard_tensor tensor = {.name = "a", .ndim = 1, .shape = {NUMEL}};
static struct cluster *cluster;

static void spec_of(struct shard_spec *s, const char *name, const char *settings)
{
	*s = (struct shard_spec){.size = sizeof(*s),
				 .name = name,
				 .tensors = &tensor,
				 .tensors_nr = 1,
				 .image = SHARD_F32,
				 .grad = SHARD_F32,
				 .settings = settings};
}

static float first_weight(uint32_t i)
{
	return (float)(i % 64) * 0.5f;
}

static float grad(uint32_t i)
{
	return (float)(i % 4);
}

static void one_step(struct trainer *t, uint64_t step)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	static float g[NUMEL];

	for (uint32_t i = 0; i < NUMEL; i++)
		g[i] = grad(i);
	trainer_begin(t);
	assert_int_equal(t->step.step, step);
	EXPECT(SHARD_OK, shard_push(t->model, 0, 0, NUMEL, g, SHARD_F32, 0, NULL));
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(20000), &r));
	assert_int_equal(r.outcome, SHARD_APPLIED);
	assert_int_equal(r.applied, step);
}

/* The momentum after n steps is (2 - 2^(1-n)) gradients, and all numbers here are exact. */
static void check(struct trainer *t, uint64_t step, double weight, double momentum)
{
	static float w[NUMEL], v[NUMEL];
	uint64_t at = step;

	EXPECT(SHARD_OK, shard_read(t->model, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, w, &at));
	EXPECT(SHARD_OK, shard_read(t->model, SHARD_MOMENTUM, 0, 0, NUMEL, SHARD_F32, v, &at));
	for (uint32_t i = 0; i < NUMEL; i++) {
		assert_true(w[i] == first_weight(i) - (float)weight * grad(i));
		assert_true(v[i] == (float)momentum * grad(i));
	}
}

static const char *address_of(int node, bool tcp)
{
	return tcp ? cluster->node[node].tcp_address : cluster->node[node].unix_address;
}

/* Two steps of lr = 1: the weights are 1 + 1.5 gradients less. */
static void save_two(struct keep *keep)
{
	static float w[NUMEL];
	struct trainer t;
	struct shard_spec s;

	spec_of(&s, "m", SAVED);
	cluster = cluster_start(2, NULL, NULL);
	trainer_connect(&t, cluster->node[0].unix_address);
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	for (uint32_t i = 0; i < NUMEL; i++)
		w[i] = first_weight(i);
	EXPECT(SHARD_OK, shard_write(t.model, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, w));
	EXPECT(SHARD_OK, shard_seal(t.model, 0));
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(20000), &t.world));
	one_step(&t, 1);
	one_step(&t, 2);
	check(&t, 2, 2.5, 1.5);
	keep_must_save(cluster->node[0].unix_address, "m", keep->dir, "mine");
	one_step(&t, 3);
	keep_must_save(cluster->node[0].unix_address, "m", keep->dir, "later");
	trainer_end(&t);
	cluster_done(&cluster);
}

static void under_other_settings(void **state)
{
	bool tcp = *state != NULL;
	struct trainer t, other;
	struct shard_spec s;
	struct keep keep;

	keep_init(&keep);
	save_two(&keep);
	cluster = cluster_start(2, NULL, NULL);
	spec_of(&s, "m", OTHER);
	trainer_connect(&t, address_of(1, tcp));
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	assert_int_equal(t.created, 1);
	shard_detach(&t.model);
	trainer_connect(&other, address_of(0, tcp)); /* It was not given the task. */
	EXPECT(SHARD_BUSY, shard_restore(other.client, keep.dir, "mine", "m", &other.model));
	EXPECT(SHARD_NOT_FOUND, shard_restore(t.client, keep.dir, "none", "m", &t.model));
	EXPECT(SHARD_OK, shard_restore(t.client, keep.dir, "mine", "m", &t.model));
	check(&t, 2, 2.5, 1.5);
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(20000), &t.world));
	assert_int_equal(t.world.step, 3);
	one_step(&t, 3); /* lr = 0.25 now: 0.25 x 1.75. */
	check(&t, 3, 2.9375, 1.75);
	EXPECT(SHARD_OK, shard_define(other.client, &s, &other.model, &other.created));
	assert_int_equal(other.created, 0); /* The model has these settings. */
	check(&other, 3, 2.9375, 1.75);
	trainer_end(&other);
	trainer_end(&t);
	cluster_done(&cluster);
	keep_free(&keep);
}

/* After a restore that failed the caller may still write the weights. */
static void does_not_fit(void **state)
{
	struct shard_tensor shorter = tensor;
	struct shard_spec s;
	struct trainer t;
	struct keep keep;
	static float w[NUMEL];

	keep_init(&keep);
	save_two(&keep);
	cluster = cluster_start(2, NULL, NULL);
	shorter.shape[0]--;
	spec_of(&s, "m", OTHER);
	s.tensors = &shorter;
	trainer_connect(&t, address_of(1, *state != NULL));
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	shard_detach(&t.model);
	EXPECT(SHARD_MISMATCH, shard_restore(t.client, keep.dir, "mine", "m", &t.model));
	EXPECT_TEXT("tensor \"a\": shape [2999] here, [3000] in the checkpoint");
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	assert_int_equal(t.created, 1);
	EXPECT(SHARD_OK, shard_write(t.model, SHARD_MASTER, 0, 0, NUMEL - 1, SHARD_F32, w));
	EXPECT(SHARD_OK, shard_seal(t.model, 0));
	trainer_end(&t);
	cluster_done(&cluster);
	keep_free(&keep);
}

static int put_away(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		{"under_other_settings unix", under_other_settings, NULL, put_away, NULL},
		{"under_other_settings tcp", under_other_settings, NULL, put_away, (void *)1},
		{"does_not_fit unix", does_not_fit, NULL, put_away, NULL},
		{"does_not_fit tcp", does_not_fit, NULL, put_away, (void *)1},
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
