/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer goes while the decided step is applied. Its arena becomes free when the step is
 * applied, also if the others train on without a pause, so that another trainer can join. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/drill.h"
#include "lib/hold.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NUMEL = 4 * 32768, STEPS = 40 /* Until both are in the world. */ };

static float w[NUMEL];

static void define(struct cluster *c, struct trainer *t)
{
	struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {NUMEL}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);

	s.name = "m";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd lr=1 chunk_elems=32768 timeout=20s min_world=1 max_world=2";
	trainer_connect(t, c->node[0].unix_address);
	EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
	if (!t->created)
		return;
	EXPECT(SHARD_OK, shard_write(t->model, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, w));
	EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

/* Trainer 0 may not have read yet that the world is of two. */
static void push(struct trainer *t)
{
	shard_ticket ticket;

	if (shard_begin(t->model, NULL, &t->step) == SHARD_WORLD_CHANGED) {
		EXPECT(SHARD_OK, shard_world_get(t->model, &t->world));
		trainer_begin(t);
	}
	EXPECT(SHARD_OK, shard_push(t->model, 0, 0, NUMEL, w, SHARD_F32, 0, &ticket));
	EXPECT(SHARD_OK, shard_wait(t->model, ticket, pace_ms(10000)));
}

/* One step of a lone trainer, or its part in a change of the world. */
static bool step(struct trainer *t)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;
	enum shard_status st;

	t->step = SHARD_INIT(struct shard_step);
	st = shard_begin(t->model, NULL, &t->step);
	if (st == SHARD_OK)
		st = shard_push(t->model, 0, 0, NUMEL, w, SHARD_F32, 0, &ticket);
	if (st == SHARD_OK)
		st = shard_commit(t->model, &ticket);
	if (st == SHARD_OK)
		st = shard_result(t->model, 0, pace_ms(10000), &r);
	if (st == SHARD_WORLD_CHANGED)
		EXPECT(SHARD_OK, shard_world_get(t->model, &t->world));
	else
		EXPECT(SHARD_OK, st);
	return st == SHARD_OK;
}

/* Trainer 1 goes while the worker applies the step. */
static void ends_applying(struct cluster *c, struct trainer *t)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;
	struct hold h;

	EXPECT(SHARD_OK, shard_commit(t[0].model, &ticket));
	hold_quiet(c->node[0].pid, ""); /* Its sums are done. */
	hold_threads(&h, c->node[0].pid, "shardd-w");
	EXPECT(SHARD_OK, shard_commit(t[1].model, &ticket));
	cluster_phase(c, 0, "applying");
	trainer_end(&t[1]);
	cluster_wait_log(c, 0, "event=session_closed", 2);
	hold_quiet(c->node[0].pid, "");
	hold_release(&h);
	EXPECT(SHARD_OK, shard_result(t[0].model, 0, pace_ms(10000), &r));
}

/* Trainer 1 goes before it has committed. */
static void ends_staging(struct cluster *c, struct trainer *t)
{
	trainer_end(&t[1]);
	cluster_wait_log(c, 0, "event=attempt_ended", 1);
	EXPECT(SHARD_WORLD_CHANGED, shard_begin(t[0].model, NULL, &t[0].step));
	EXPECT(SHARD_OK, shard_world_get(t[0].model, &t[0].world));
}

static void gone(void **state, bool applying)
{
	struct drill_yard *y = *state;
	struct cluster *c = y->cluster = cluster_make(1, NULL, NULL);
	struct trainer t[3] = {0};
	uint64_t by = pace_by(30);
	uint32_t steps = 0;

	cluster_spawn(c, 0);
	cluster_ready(c, 0);
	for (int i = 0; i < 3; i++)
		define(c, &t[i]);
	EXPECT(SHARD_OK, shard_join(t[0].model, 0, pace_ms(10000), &t[0].world));
	EXPECT(SHARD_TIMEOUT, shard_join(t[1].model, 1, 0, &t[1].world));
	cluster_wait_log(c, 0, "event=join ", 2);
	while (cluster_logged(c, 0, "size=2") == 0 && steps++ < STEPS)
		(void)step(&t[0]);
	EXPECT(SHARD_OK, shard_join(t[1].model, 1, pace_ms(10000), &t[1].world));
	EXPECT(SHARD_OK, shard_world_get(t[0].model, &t[0].world));
	push(&t[0]);
	push(&t[1]);
	if (applying)
		ends_applying(c, t);
	else
		ends_staging(c, t);
	EXPECT(SHARD_TIMEOUT, shard_join(t[2].model, 1, 0, &t[2].world));
	for (steps = 0; step(&t[0]) || t[0].world.world_size < 2; steps++)
		if (clock_ns() > by)
			fail_msg("%u steps were made, and the arena is not free yet", steps);
	trainer_end(&t[0]);
	trainer_end(&t[2]);
	cluster_done(&y->cluster);
}

static void test_gone_while_staging(void **state)
{
	gone(state, false);
}

static void test_gone_while_applying(void **state)
{
	gone(state, true);
}

int main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, drill_setup, drill_teardown)
	const struct CMUnitTest tests[] = {CASE(test_gone_while_staging),
					   CASE(test_gone_while_applying)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
