// SPDX-License-Identifier: Apache-2.0
/* Tests that a model is dropped while tensors of it and of another model go by RDMA (rdma/fake.h).
 * Its memory is given back on both nodes once the other side writes nothing more there. The links
 * stay, and the other model trains on with the right bits. Trainers that come and go have their
 * arenas registered and given back. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/crewed.h"
#include "lib/linked.h"
#include "lib/pace.h"
#include "rdma/fake.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {100000}};

struct victim {
	const char *address;
	int rank;
	pthread_t thread;
	_Atomic uint64_t steps;
};

static shard_model *joined(struct victim *v, shard_client *client)
{
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	struct shard_world w = SHARD_INIT(struct shard_world);
	shard_model *m;
	int created;

	s.name = "victim";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd lr=1 chunk_elems=4096 min_world=2 max_world=2 timeout=20s";
	MUST(shard_define(client, &s, &m, &created));
	if (created) {
		float *zero = calloc(tensor.shape[0], sizeof(*zero));

		MUST(shard_write(m, SHARD_MASTER, 0, 0, tensor.shape[0], SHARD_F32, zero));
		free(zero);
		MUST(shard_seal(m, 0));
	}
	MUST(shard_join(m, v->rank, pace_ms(20000), &w));
	return m;
}

/* Trains until the model does not exist any more. */
static void *train(void *arg)
{
	struct victim *v = arg;
	shard_client *client = crew_connect(v->address);
	shard_model *m = joined(v, client);
	enum shard_status st = SHARD_OK;

	while (st == SHARD_OK) {
		struct shard_step s = SHARD_INIT(struct shard_step);
		struct shard_result res = SHARD_INIT(struct shard_result);
		float *g = NULL;
		shard_ticket t;

		if ((st = shard_begin(m, NULL, &s)) == SHARD_OK && (g = shard_grad(m, 0)) == NULL)
			st = SHARD_LOST;
		for (uint64_t i = 0; g != NULL && i < tensor.shape[0]; i++)
			g[i] = (float)(i % 7);
		if (st == SHARD_OK)
			st = shard_push(m, 0, 0, tensor.shape[0], NULL, SHARD_F32, 0, NULL);
		if (st == SHARD_OK)
			st = shard_commit(m, &t);
		if (st == SHARD_OK)
			st = shard_result(m, t, pace_ms(20000), &res);
		atomic_fetch_add(&v->steps, st == SHARD_OK);
	}
	shard_disconnect(&client);
	return NULL;
}

static void drop(const char *address)
{
	shard_client *client = crew_connect(address);

	MUST(shard_drop(client, "victim", 1));
	shard_disconnect(&client);
}

static void in_mid_training(void **state)
{
	struct crewed *r;
	struct victim v[2];
	struct fake_live alone;

	(void)state;
	fake_reset();
	r = crewed_begin(NULL);
	crew_start(&r->crew, UINT64_MAX);
	linked_by_rdma(&r->cluster);
	while (linked_figure(&r->cluster.node[0], "b", "rdma_in_bytes") <= 0)
		crewed_steps(r, 1);
	crewed_steps(r, 3);
	alone = fake_live();
	for (int round = 0; round < 5; round++) {
		uint64_t by = pace_by(10);
		json_int_t in = linked_figure(&r->cluster.node[0], "b", "rdma_in_bytes");

		for (int i = 0; i < 2; i++) {
			v[i] = (struct victim){.address = r->cluster.node[i].unix_address,
					       .rank = i};
			CHECK(pthread_create(&v[i].thread, NULL, train, &v[i]) == 0);
		}
		while (fake_live().regions < alone.regions + 12 || v[0].steps < 5 ||
		       linked_figure(&r->cluster.node[0], "b", "rdma_in_bytes") - in < 1000000)
			CHECK(clock_ns() < by);
		drop(r->cluster.node[round % 2].unix_address);
		for (int i = 0; i < 2; i++)
			pthread_join(v[i].thread, NULL);
		while (fake_live().regions != alone.regions) {
			CHECK(clock_ns() < by);
			usleep(1000);
		}
		crewed_steps(r, 3);
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(inproc_logged(&r->cluster.node[i], "event=link_down"), 0);
	crewed_end(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(in_mid_training)};

	return cmocka_run_group_tests_name("rdma_drop", tests, NULL, NULL);
}
