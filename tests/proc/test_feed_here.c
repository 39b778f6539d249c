/* SPDX-License-Identifier: Apache-2.0 */
/* A small chunk is computed on the loop also when it had to wait in the queue of sums. What its end
 * brings about comes before reduce_feed() has taken it out of the queue. The loop stands still
 * while the worker does all that it has, as on a machine that has too much to do, so that the loop
 * hears of all those sums in one turn. */
#include "base/check.h"
#include "lib/drill.h"
#include "lib/hold.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* LARGE sums of one model are at one worker at a time. The last chunk is small. */
enum { A, B, CHUNK = 32768, LARGE = 32, HELD = LARGE * CHUNK, LAST = 64, TAIL = 64 * CHUNK };

struct here {
	struct drill_yard *y;
	struct cluster *c;
	uint32_t trainers, numel;
	struct trainer t[3]; /* The first two are on node A. */
	float *w;
};

static float weight(uint32_t i)
{
	return (float)(i % 97) - 48.0f;
}

static void define(struct here *f, uint32_t i)
{
	struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {f->numel}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	struct trainer *t = &f->t[i];
	char settings[160];

	snprintf(settings, sizeof(settings),
		 "optimizer=sgd lr=1 chunk_elems=32768 timeout=20s min_world=%u max_world=%u",
		 f->trainers, f->trainers);
	s.name = "m";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = settings;
	trainer_connect(t, f->c->node[i == 2 ? B : A].unix_address);
	EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
	if (!t->created)
		return;
	for (uint32_t k = 0; k < f->numel; k++)
		f->w[k] = weight(k);
	EXPECT(SHARD_OK, shard_write(t->model, SHARD_MASTER, 0, 0, f->numel, SHARD_F32, f->w));
	EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

static struct here *begin(void **state, int nodes, uint32_t trainers, uint32_t numel)
{
	struct here *f = calloc(1, sizeof(*f));

	CHECK(f != NULL && (f->w = calloc(numel, sizeof(*f->w))) != NULL);
	f->y = *state;
	f->trainers = trainers;
	f->numel = numel;
	f->y->cluster = f->c = cluster_make(nodes, NULL, NULL);
	for (int n = 0; n < nodes; n++)
		cluster_spawn(f->c, n);
	for (int n = 0; n < nodes; n++)
		cluster_ready(f->c, n);
	for (uint32_t i = 0; i < trainers; i++)
		define(f, i);
	for (uint32_t i = 0; i + 1 < trainers; i++)
		EXPECT(SHARD_TIMEOUT, shard_join(f->t[i].model, (int32_t)i, 0, &f->t[i].world));
	for (uint32_t i = trainers; i-- > 0;)
		EXPECT(SHARD_OK,
		       shard_join(f->t[i].model, (int32_t)i, pace_ms(10000), &f->t[i].world));
	return f;
}

static void end(struct here *f)
{
	for (uint32_t i = 0; i < f->trainers; i++)
		trainer_end(&f->t[i]);
	cluster_done(&f->y->cluster);
	free(f->w);
	free(f);
}

static void push(struct here *f, uint32_t i, uint32_t from, uint32_t to, float value)
{
	shard_ticket ticket;

	for (uint32_t k = 0; k < to - from; k++)
		f->w[k] = value;
	EXPECT(SHARD_OK,
	       shard_push(f->t[i].model, 0, from, to - from, f->w, SHARD_F32, 0, &ticket));
	EXPECT(SHARD_OK, shard_wait(f->t[i].model, ticket, pace_ms(10000)));
}

static void commit(struct here *f, uint32_t i)
{
	shard_ticket ticket;

	EXPECT(SHARD_OK, shard_commit(f->t[i].model, &ticket));
}

static void result(struct here *f, uint32_t i, enum shard_outcome outcome)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	EXPECT(SHARD_OK, shard_result(f->t[i].model, 0, pace_ms(10000), &r));
	assert_int_equal(r.outcome, outcome);
}

/* The worker does all that it has while the loop stands still. */
static void work_off(struct here *f, struct hold *worker)
{
	pid_t pid = f->c->node[A].pid;
	struct hold loop;

	hold_main(&loop, pid);
	hold_release(worker);
	hold_quiet(pid, "shardd-w");
	hold_release(&loop);
}

static void push_in_turn(struct here *f, float value, bool overflow)
{
	struct hold worker;

	trainer_begin(&f->t[0]);
	hold_threads(&worker, f->c->node[A].pid, "shardd-w");
	push(f, 0, 0, CHUNK, overflow ? INFINITY : value);
	push(f, 0, CHUNK, HELD, value);
	push(f, 0, HELD, f->numel, value); /* It waits: so many sums are at the tier. */
	commit(f, 0);
	cluster_says(f->c, A, "\"state\":"); /* The daemon has read all of that. */
	work_off(f, &worker);
}

/* One node. The last chunk completes a step that changes no weight, and the next one begins. */
static void test_skip(void **state)
{
	struct here *f = begin(state, 1, 1, HELD + LAST);

	push_in_turn(f, 1, true);
	result(f, 0, SHARD_SKIPPED_NONFINITE);
	for (int i = 0; i < 2; i++) {
		trainer_begin(&f->t[0]);
		push(f, 0, 0, f->numel, 1);
		commit(f, 0);
		result(f, 0, SHARD_APPLIED);
	}
	end(f);
}

/* The same without an overflow. */
static void test_apply(void **state)
{
	struct here *f = begin(state, 1, 1, HELD + LAST);

	push_in_turn(f, 1, false);
	result(f, 0, SHARD_APPLIED);
	trainer_begin(&f->t[0]);
	push(f, 0, 0, f->numel, 1);
	commit(f, 0);
	result(f, 0, SHARD_APPLIED);
	end(f);
}

/* Two nodes. Node A holds every other chunk, the small one among them. Node B was first, so each
 * sum of a node is followed by one over the nodes. */
static void test_nodes(void **state)
{
	struct here *f = begin(state, 2, 3, TAIL + LAST);
	struct hold worker;

	for (uint32_t i = 0; i < f->trainers; i++)
		trainer_begin(&f->t[i]);
	push(f, 0, 0, f->numel, 1);
	push(f, 2, 0, f->numel, 1);
	do { /* The contributions of B are on their way. */
		hold_quiet(f->c->node[B].pid, "");
		hold_quiet(f->c->node[A].pid, "");
	} while (!hold_asleep(f->c->node[B].pid, ""));
	hold_threads(&worker, f->c->node[A].pid, "shardd-w");
	for (uint32_t c = 0; c < 64; c += 2)
		push(f, 1, c * CHUNK, (c + 1) * CHUNK, 1);
	push(f, 1, TAIL, f->numel, 1); /* It waits: so many sums are at the tier. */
	for (uint32_t c = 1; c < 64; c += 2)
		push(f, 1, c * CHUNK, (c + 1) * CHUNK, 1);
	cluster_says(f->c, A, "\"state\":"); /* The daemon has read all of that. */
	work_off(f, &worker);
	for (uint32_t i = 0; i < f->trainers; i++)
		commit(f, i);
	for (uint32_t i = 0; i < f->trainers; i++)
		result(f, i, SHARD_APPLIED);
	end(f);
}

int main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, drill_setup, drill_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_apply),
		CASE(test_skip),
		CASE(test_nodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
