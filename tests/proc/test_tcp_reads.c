// SPDX-License-Identifier: Apache-2.0
/* Tests a trainer over TCP that trains while other threads of its process read weights over the
 * same connection. The answers to them fill its queue, and the image must not wait behind them for
 * ever. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/pace.h"

#include <stdatomic.h>
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NUMEL = 1 << 21, READERS = 6, STEPS = 40 };

struct shared {
	shard_model *m;
	_Atomic bool over;
	_Atomic uint64_t reads;
};

static void *reads(void *arg)
{
	struct shared *x = arg;
	float *w = malloc(NUMEL * sizeof(*w));

	CHECK(w != NULL);
	while (!atomic_load(&x->over)) {
		uint64_t step = 0;
		enum shard_status st =
			shard_read(x->m, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, w, &step);

		if (st != SHARD_STALE) /* A step was applied between two parts of the read. */
			crew_must(st, SHARD_OK, "read");
		atomic_fetch_add(&x->reads, 1);
	}
	free(w);
	return NULL;
}

static shard_model *defined(shard_client *c)
{
	struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {NUMEL}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	float *w = calloc(NUMEL, sizeof(*w));
	shard_model *m;
	int created;

	CHECK(w != NULL);
	s.name = "m";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd lr=1 chunk_elems=262144 timeout=20s";
	MUST(shard_define(c, &s, &m, &created));
	MUST(shard_write(m, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, w));
	MUST(shard_seal(m, 0));
	free(w);
	return m;
}

static void test_reads(void **state)
{
	static struct inproc c;
	struct shard_world world = SHARD_INIT(struct shard_world);
	struct shared x = {0};
	pthread_t thread[READERS];
	shard_client *client;

	(void)state;
	inproc_start(&c, &(struct inproc_conf){.nodes = 1});
	client = crew_connect(c.node[0].tcp_address);
	x.m = defined(client);
	MUST(shard_join(x.m, 0, pace_ms(20000), &world));
	for (int i = 0; i < READERS; i++)
		CHECK(pthread_create(&thread[i], NULL, reads, &x) == 0);
	for (uint64_t n = 1; n <= STEPS; n++) {
		struct shard_result r = SHARD_INIT(struct shard_result);
		struct shard_step s = SHARD_INIT(struct shard_step);

		MUST(shard_begin(x.m, NULL, &s));
		assert_int_equal(s.step, n);
		MUST(shard_push_none(x.m, 0));
		MUST(shard_commit(x.m, NULL));
		MUST(shard_result(x.m, 0, pace_ms(20000), &r));
	}
	atomic_store(&x.over, true);
	for (int i = 0; i < READERS; i++)
		pthread_join(thread[i], NULL);
	assert_true(atomic_load(&x.reads) > 0);
	shard_disconnect(&client);
	inproc_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_reads)};

	return cmocka_run_group_tests_name("tcp_reads", tests, NULL, NULL);
}
