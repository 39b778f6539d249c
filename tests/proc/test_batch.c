// SPDX-License-Identifier: Apache-2.0
/* Tests that a global batch is the same in every world. Trainers share a batch of eight samples by
 * shard_samples(), in worlds of 1, 2, 3 and 10 over two nodes, where two of ten have no sample, and
 * in a world that a trainer leaves. The gradients of samples are small whole numbers, so every sum
 * is exact and the weights of all worlds are the same numbers, which the test computes by itself.
 */
#include "base/check.h"
#include "lib/pace.h"
#include "lib/proc.h"

#include "shard.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { BATCH = 8, STEPS = 6, ELEMS = 3000, WORLD_MAX = 10 };

static struct cluster *cluster;

struct job {
	char name[16], settings[160];
	uint32_t size, leaves; /* leaves: this trainer leaves after half of the steps. */
	pthread_t thread[WORLD_MAX];
};

struct member {
	const struct job *job;
	uint32_t index;
	char failed[400]; /* Empty: it did all its steps. */
	uint32_t empty;   /* Its steps without a sample. */
};

/* Of one sample, for one element. */
static int gradient(uint64_t step, uint64_t sample, uint64_t i)
{
	return (int)((sample * 7 + i * 3 + step) % 5) - 2;
}

#define TRY(call)                                                                                  \
	do {                                                                                       \
		if ((rc = (call)) != SHARD_OK)                                                     \
			goto out;                                                                  \
	} while (0)

static enum shard_status define(const struct job *j, shard_client *c, shard_model **m)
{
	static const float zero[ELEMS];
	struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {ELEMS}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	enum shard_status rc;
	int created;

	s.name = j->name;
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = j->settings;
	TRY(shard_define(c, &s, m, &created));
	if (created) {
		TRY(shard_write(*m, SHARD_MASTER, 0, 0, ELEMS, SHARD_F32, zero));
		TRY(shard_seal(*m, 0));
	}
out:
	return rc;
}

static enum shard_status one_step(struct member *me, shard_model *m, const struct shard_world *w)
{
	struct shard_begin_opts b = SHARD_INIT(struct shard_begin_opts);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_step s = SHARD_INIT(struct shard_step);
	uint64_t first, count;
	enum shard_status rc;
	float *g;

	TRY(shard_samples(w, BATCH, &first, &count));
	b.weight = count ? (double)count : SHARD_NO_SAMPLES;
	TRY(shard_begin(m, &b, &s));
	if (count) {
		g = shard_grad(m, 0);
		for (uint64_t i = 0; g && i < ELEMS; i++) {
			g[i] = 0;
			for (uint64_t k = first; k < first + count; k++)
				g[i] += (float)gradient(s.step, k, i);
		}
		TRY(shard_push(m, 0, 0, ELEMS, NULL, SHARD_F32, 0, NULL));
	} else if ((rc = shard_push_none(m, 0)) != SHARD_DUPLICATE) {
		/* Everything counts as pushed already, unless the attempt is over. */
		return rc == SHARD_OK ? SHARD_BAD_STATE : rc;
	}
	TRY(shard_commit(m, NULL));
	TRY(shard_result(m, 0, SHARD_DEFAULT, &r));
	me->empty += !count;
	if (r.outcome != SHARD_APPLIED || r.weight_sum != BATCH)
		rc = SHARD_MISMATCH;
out:
	return rc;
}

static void *member_run(void *arg)
{
	struct member *me = arg;
	const struct job *j = me->job;
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_world w = SHARD_INIT(struct shard_world);
	uint64_t last = me->index == j->leaves ? STEPS / 2 : STEPS;
	shard_client *c = NULL;
	shard_model *m = NULL;
	enum shard_status rc;

	o.address = cluster->node[me->index % 2].unix_address;
	if (me->index % 3 == 2)
		o.address = cluster->node[me->index % 2].tcp_address;
	o.timeout_ms = pace_ms(20000);
	TRY(shard_connect(&c, &o));
	TRY(define(j, c, &m));
	TRY(shard_join(m, (int)me->index, pace_ms(20000), &w));
	while (w.step <= last) {
		rc = one_step(me, m, &w);
		if (rc != SHARD_OK && rc != SHARD_WORLD_CHANGED)
			goto out;
		TRY(shard_world_get(m, &w));
	}
	TRY(shard_leave(m, pace_ms(20000)));
out:
	if (rc != SHARD_OK)
		snprintf(me->failed, sizeof(me->failed), "trainer %u: %s: %s", me->index,
			 shard_name(rc), shard_error());
	shard_disconnect(&c);
	return NULL;
}

/* The weights are those of a mean over the whole batch in each step, to the last bit. */
static void check(const struct job *j)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	static float got[ELEMS];
	uint64_t step = STEPS;
	shard_client *c;
	shard_model *m;

	o.address = cluster->node[1].unix_address;
	assert_int_equal(shard_connect(&c, &o), SHARD_OK);
	assert_int_equal(shard_attach(c, j->name, &m), SHARD_OK);
	assert_int_equal(shard_read(m, SHARD_MASTER, 0, 0, ELEMS, SHARD_F32, got, &step), SHARD_OK);
	assert_int_equal(step, STEPS);
	for (uint64_t i = 0; i < ELEMS; i++) {
		float want = 0;

		for (uint64_t t = 1; t <= STEPS; t++) {
			int sum = 0;

			for (uint64_t k = 0; k < BATCH; k++)
				sum += gradient(t, k, i);
			want -= (float)sum / BATCH; /* lr is 1. */
		}
		if (memcmp(&want, &got[i], sizeof(want)) != 0)
			fail_msg("%s: element %lu is %g and not %g", j->name, (unsigned long)i,
				 (double)got[i], (double)want);
	}
	shard_disconnect(&c);
}

static uint32_t train(const char *name, uint32_t size, uint32_t leaves)
{
	struct job j = {.size = size, .leaves = leaves};
	struct member member[WORLD_MAX] = {0};
	uint32_t empty = 0;

	snprintf(j.name, sizeof(j.name), "%s", name);
	snprintf(j.settings, sizeof(j.settings),
		 "optimizer=sgd lr=1 chunk_elems=1024 min_world=%u max_world=%u timeout=60s "
		 "join_timeout=1000s",
		 leaves < size ? size - 1 : size, size);
	for (uint32_t i = 0; i < size; i++) {
		member[i] = (struct member){.job = &j, .index = i};
		CHECK(pthread_create(&j.thread[i], NULL, member_run, &member[i]) == 0);
	}
	for (uint32_t i = 0; i < size; i++)
		CHECK(pthread_join(j.thread[i], NULL) == 0);
	for (uint32_t i = 0; i < size; i++) {
		if (member[i].failed[0])
			fail_msg("%s: %s", name, member[i].failed);
		empty += member[i].empty;
	}
	check(&j);
	return empty;
}

static void test_same_weights_in_every_world(void **state)
{
	(void)state;
	assert_int_equal(train("one", 1, UINT32_MAX), 0);
	assert_int_equal(train("two", 2, UINT32_MAX), 0);
	assert_int_equal(train("three", 3, UINT32_MAX), 0);
	/* Ranks 8 and 9 have nothing to do. */
	assert_int_equal(train("ten", 10, UINT32_MAX), 2 * STEPS);
}

/* Who leaves is one with samples, and afterwards one without. */
static void test_same_weights_when_the_world_changes(void **state)
{
	(void)state;
	for (uint32_t leaver = 0; leaver < 3; leaver++) {
		char name[16];

		snprintf(name, sizeof(name), "leaves-%u", leaver);
		train(name, 3, leaver);
	}
	train("leaves-ten", 10, 9);
}

static int setup(void **state)
{
	(void)state;
	cluster = cluster_start(2, NULL, NULL);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	cluster_done(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_weights_in_every_world),
		cmocka_unit_test(test_same_weights_when_the_world_changes),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
