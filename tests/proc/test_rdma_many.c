// SPDX-License-Identifier: Apache-2.0
/* Trains many models over one RDMA queue pair at once, beside the TCP connection that carries what
 * has no registered memory on the other side. One has many chunks, one has a single chunk, one has
 * two images, and of one every third step is skipped. They train together, rest, and train after
 * the other node started again. The verbs are those of rdma/fake.h. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/linked.h"
#include "lib/pace.h"
#include "lib/skipper.h"
#include "rdma/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { TRAINED = 3, RESTING = 30, NUMEL = 3000 };

static const char *const extra[TRAINED] = {"", "chunk_elems=65536",
					   "chunk_elems=4096 max_staleness=1"};
static const uint32_t scale[TRAINED] = {12, 1, 4};

static void rest(struct inproc *c)
{
	shard_client *client = crew_connect(c->node[0].unix_address);
	struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {NUMEL}};
	static float w[NUMEL];

	for (uint32_t k = 0; k < RESTING; k++) {
		struct shard_spec s = SHARD_INIT(struct shard_spec);
		shard_model *m;
		char name[16];
		int created;

		snprintf(name, sizeof(name), "rest%u", k);
		for (uint32_t i = 0; i < NUMEL; i++)
			w[i] = (float)(i + k);
		s.name = name;
		s.tensors = &tensor;
		s.tensors_nr = 1;
		s.image = s.grad = SHARD_F32;
		s.settings = "optimizer=sgd timeout=30s max_world=1";
		MUST(shard_define(client, &s, &m, &created));
		MUST(shard_write(m, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, w));
		MUST(shard_seal(m, 1));
		shard_detach(&m);
	}
	shard_disconnect(&client);
}

static void rested(struct inproc_node *n)
{
	shard_client *client = crew_connect(n->unix_address);
	uint64_t until = pace_by(30);
	static float w[NUMEL];

	for (uint32_t k = 0; k < RESTING; k++) {
		enum shard_status st;
		uint64_t step = 0;
		shard_model *m;
		char name[16];

		snprintf(name, sizeof(name), "rest%u", k);
		while ((st = shard_attach(client, name, &m)) == SHARD_NOT_FOUND &&
		       clock_ns() < until)
			usleep(1000);
		crew_must(st, SHARD_OK, name);
		do
			st = shard_read(m, SHARD_IMAGE, 0, 0, NUMEL, SHARD_F32, w, &step);
		while (st == SHARD_BAD_STATE && clock_ns() < until && usleep(1000) == 0);
		crew_must(st, SHARD_OK, "the image of a model that rests");
		assert_true(w[0] == (float)k && w[NUMEL - 1] == (float)(NUMEL - 1 + k));
		shard_detach(&m);
	}
	shard_disconnect(&client);
}

static void train(struct inproc *c, struct crew *crew, uint64_t steps)
{
	static char name[TRAINED][16];

	for (uint32_t i = 0; i < TRAINED; i++) {
		snprintf(name[i], sizeof(name[i]), "trained%u", i);
		crew_init(&crew[i], name[i]);
		crew_larger(&crew[i], scale[i]);
		crew[i].extra = extra[i];
		for (uint32_t n = 0; n < 2; n++)
			crew_add(&crew[i], c->node[n].unix_address, n);
		crew_start(&crew[i], steps);
	}
	for (uint32_t i = 0; i < TRAINED; i++)
		assert_int_equal(crew_finish(&crew[i]), steps);
}

static void test_many(void **state)
{
	static struct skipper skipper[SKIPPERS];
	static struct inproc c;
	struct crew *crew = calloc(TRAINED, sizeof(*crew));

	(void)state;
	assert_non_null(crew);
	fake_reset();
	inproc_start(&c, &(struct inproc_conf){.nodes = 2,
					       .net = "transport = rdma\nrdma_queue_pairs = 1"});
	linked_by_rdma(&c);
	rest(&c);
	skipper_start(skipper, (const char *[]){c.node[0].unix_address, c.node[1].unix_address});
	train(&c, crew, 60);
	skipper_more(skipper, 6);
	skipper_end(skipper);
	for (uint32_t i = 0; i < TRAINED; i++)
		for (uint32_t n = 0; n < 2; n++)
			crew_check(&crew[i], c.node[n].unix_address, 60);
	rested(&c.node[1]);
	assert_true(linked_figure(&c.node[1], "a", "rdma_in_bytes") > 0);
	inproc_stop(&c);
	free(crew);
}

static void test_started_again(void **state)
{
	static struct inproc c;

	(void)state;
	fake_reset();
	inproc_start(&c, &(struct inproc_conf){.nodes = 2,
					       .net = "transport = rdma\nrdma_queue_pairs = 1"});
	linked_by_rdma(&c);
	rest(&c);
	rested(&c.node[1]);
	inproc_node_stop(&c.node[1]);
	assert_int_equal(inproc_node_start(&c.node[1]), SHARD_OK);
	rested(&c.node[1]);
	inproc_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_many),
					   cmocka_unit_test(test_started_again)};

	return cmocka_run_group_tests_name("rdma_many", tests, NULL, NULL);
}
