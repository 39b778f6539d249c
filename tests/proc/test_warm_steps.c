// SPDX-License-Identifier: Apache-2.0
/* Sends kill -9 at chosen instructions and system calls, which a debugger counts. One test kills in
 * the worker that updates weights, from its first instruction of a step to its last. The others
 * kill in the loop, around everything that it writes and sends when a step is decided. What was
 * decided before the kill is complete afterwards to the last bit, and nothing is decided twice. */
#include "base/clock.h"
#include "base/rng.h"
#include "lib/hold.h"
#include "lib/trainer.h"
#include "lib/warm.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { IDLE_MS = 100, WORKER_KILLS = 8, WORKER_STEPS = 16000, LOOP_KILLS = 8 };

static uint64_t seed(void)
{
	const char *given = getenv("SEED");
	uint64_t at = given != NULL ? strtoull(given, NULL, 0) : clock_ns();

	print_message("SEED=%lu\n", (unsigned long)at);
	return at;
}

static void killed(struct warm *w, struct hold *h, int node)
{
	hold_kill(h, w->cluster->node[node].pid);
	cluster_wait(w->cluster, node, 10000);
	warm_spawn(w, 1u << node);
}

/* There is one node, so the commit of its own trainer decides. Kills the node after so many
 * instructions of the worker, and returns how many there were. */
static uint64_t in_worker(struct warm *w, uint64_t instructions)
{
	uint64_t step = w->r[0].world.step, made, next;
	struct hold h;

	warm_begin(w, 0);
	assert_true(warm_says(w, 0, "\"chunks_pushed\":1", 10000));
	/* Waits until the gradients are reduced. */
	while (!hold_asleep(w->cluster->node[0].pid, "shardd-w"))
		sched_yield();
	hold_threads(&h, w->cluster->node[0].pid, "shardd-w");
	warm_commit(w, 0);
	made = hold_steps(&h, instructions, IDLE_MS);
	killed(w, &h, 0);
	next = warm_back(w, 1);
	assert_in_range(next, step, step + 1);
	warm_check(w, next - 1);
	return made;
}

static void test_worker(void **state)
{
	struct warm *w = *state;
	struct rng r = {.state = seed()};
	uint64_t finished = 0;

	warm_start(w, 1, (int[]){1}, NULL);
	w->numel = 16500; /* Three tiles, of which the last one is short. */
	w->settings = "optimizer=sgd momentum=0.5 chunk_elems=65536";
	w->momentum = 0.5f;
	warm_all(w);
	warm_train(w, 1);
	for (uint64_t k = 0; k < WORKER_KILLS; k++) {
		uint64_t before = w->r[0].world.step;
		uint64_t made = in_worker(w, WORKER_STEPS * k / WORKER_KILLS +
						     rng_below(&r, WORKER_STEPS / WORKER_KILLS));

		print_message("after %lu instructions: %s\n", (unsigned long)made,
			      w->r[0].world.step > before ? "decided" : "not decided");
		finished += w->r[0].world.step > before;
	}
	print_message("%lu of %d kills were in decided steps\n", (unsigned long)finished,
		      WORKER_KILLS);
	assert_true(finished > 0);
	warm_train(w, w->r[0].world.step);
	warm_check(w, w->r[0].world.step - 1);
	warm_finish(w);
}

/* There are two nodes. Kills one at the n-th stop of its loop at a system call after the last
 * commit of a step. Returns how many stops there were. */
static uint64_t in_loop(struct warm *w, int node, uint64_t stops)
{
	uint64_t step = w->r[0].world.step, made, next;
	struct hold h;

	for (uint32_t r = 0; r < w->ranks; r++)
		warm_begin(w, r);
	warm_commit(w, (uint32_t)node);
	assert_true(warm_says(w, node, "\"state\":\"ready\"", 20000));
	hold_main(&h, w->cluster->node[node].pid);
	warm_commit(w, (uint32_t)!node);
	made = hold_calls(&h, stops, IDLE_MS);
	killed(w, &h, node);
	next = warm_back(w, 1u << node);
	assert_in_range(next, step, step + 1);
	warm_check(w, next - 1);
	return made;
}

static void loop(struct warm *w, int node)
{
	uint64_t all;

	warm_start(w, 2, (int[]){1, 1}, NULL);
	w->numel = 3000;
	w->settings = "optimizer=sgd chunk_elems=1024";
	warm_all(w);
	warm_train(w, 1);
	all = in_loop(w, node, 1000);
	print_message("%lu stops of the loop in a decision\n", (unsigned long)all);
	for (uint64_t k = 0; k < LOOP_KILLS; k++)
		in_loop(w, node, 1 + all * k / LOOP_KILLS);
	warm_train(w, w->r[0].world.step);
	warm_check(w, w->r[0].world.step - 1);
	warm_finish(w);
}

static void test_loop_of_coordinator(void **state)
{
	loop(*state, 0);
}

static void test_loop_of_member(void **state)
{
	loop(*state, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {WARM_BOTH(test_worker),
					   WARM_BOTH(test_loop_of_coordinator),
					   WARM_BOTH(test_loop_of_member)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
