// SPDX-License-Identifier: Apache-2.0
/* Tests shard_result.slowest_rank, the rank for whose commit the step waited. Three trainers on one
 * node or on two take turns to be the last, and each of them is told which one it was. One thread
 * drives all of them. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { RANKS = 3, STEPS = 9 };

static void define(struct trainer *t, const char *address)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {100}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	float w[100] = {0};

	s.name = "slow";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd min_world=3 max_world=3 chunk_elems=1024";
	trainer_connect(t, address);
	EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
	if (!t->created)
		return;
	EXPECT(SHARD_OK, shard_write(t->model, SHARD_MASTER, 0, 0, 100, SHARD_F32, w));
	EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

static void commit(struct trainer *t)
{
	float g[100] = {0};

	EXPECT(SHARD_OK, shard_push(t->model, 0, 0, 100, g, SHARD_F32, 0, NULL));
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
}

/* Waits until the daemon of the first trainer waits for this rank alone. */
static void await_missing(struct trainer *t, uint32_t rank)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	uint64_t until = pace_by(20);
	char want[32], other[2][32];

	snprintf(want, sizeof(want), "rank %u ", rank);
	for (uint32_t i = 0, k = 0; i < RANKS; i++)
		if (i != rank)
			snprintf(other[k++], sizeof(other[0]), "rank %u ", i);
	do {
		assert_true(clock_ns() < until);
		EXPECT(SHARD_TIMEOUT, shard_result(t->model, 0, 1, &r));
	} while (strstr(shard_error(), want) == NULL || strstr(shard_error(), other[0]) != NULL ||
		 strstr(shard_error(), other[1]) != NULL);
}

/* All begin and all but one commit. The last one commits when the others are known to have
 * committed. A node counts from when it began the attempt, so the wait is as long as that took. */
static void one_step(struct trainer *t, uint64_t step, uint32_t last)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	uint64_t from = clock_ns(), began;

	for (uint32_t i = 0; i < RANKS; i++) {
		trainer_begin(&t[i]);
		assert_int_equal(t[i].step.rank, i);
	}
	began = clock_ns();
	for (uint32_t i = 0; i < RANKS; i++)
		if (i != last)
			commit(&t[i]);
	await_missing(&t[(last + 1) % RANKS], last);
	for (uint64_t until = clock_ns() + (began - from); clock_ns() < until;)
		;
	commit(&t[last]);
	for (uint32_t i = 0; i < RANKS; i++) {
		EXPECT(SHARD_OK, shard_result(t[i].model, 0, pace_ms(20000), &r));
		assert_int_equal(r.step, step);
		if (r.slowest_rank != last)
			fail_msg(
				"step %lu: rank %u is told that rank %u was the slowest, it was %u",
				(unsigned long)step, i, r.slowest_rank, last);
	}
}

static void slowest(uint32_t nodes, bool tcp)
{
	const struct inproc_conf conf = {.nodes = nodes};
	struct trainer t[RANKS];
	struct inproc c;

	inproc_start(&c, &conf);
	for (uint32_t i = 0; i < RANKS; i++) {
		struct inproc_node *n = &c.node[i % nodes];

		define(&t[i], tcp ? n->tcp_address : n->unix_address);
		EXPECT(i + 1 < RANKS ? SHARD_TIMEOUT : SHARD_OK,
		       shard_join(t[i].model, (int)i, i + 1 < RANKS ? 0 : 20000, &t[i].world));
	}
	for (uint32_t i = 0; i + 1 < RANKS; i++)
		EXPECT(SHARD_OK, shard_join(t[i].model, (int)i, pace_ms(20000), &t[i].world));
	for (uint64_t step = 1; step <= STEPS; step++)
		one_step(t, step, (uint32_t)(step * 2) % RANKS);
	for (uint32_t i = 0; i < RANKS; i++)
		trainer_end(&t[i]);
	inproc_stop(&c);
}

static void one_node(void **state)
{
	(void)state;
	slowest(1, false);
}

static void two_nodes(void **state)
{
	(void)state;
	slowest(2, false);
}

static void two_nodes_tcp(void **state)
{
	(void)state;
	slowest(2, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_node),
		cmocka_unit_test(two_nodes),
		cmocka_unit_test(two_nodes_tcp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
