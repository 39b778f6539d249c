// SPDX-License-Identifier: Apache-2.0
/* Sends kill -9 in each phase of a step to the coordinator, to another node, to both, and to a node
 * that is alone. There is one rank on a node, whose gradient exists only where the trainer wrote
 * it, or there are two. The model is never lost, a step that a trainer was told of stays, and
 * training goes on from there with weights that are right to the last bit. */
#include "lib/hold.h"
#include "lib/trainer.h"
#include "lib/warm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BEAT "[cluster]\nheartbeat_timeout = 2s\n"

enum phase { IDLE, STAGING, PREPARED, APPLYING, APPLIED, PHASES };

static void results(struct warm *w)
{
	for (uint32_t r = 0; r < w->ranks; r++)
		EXPECT(SHARD_OK, warm_result(w, r));
}

/* All ranks have pushed to a node that is alone, and all but one have committed. Waits until all
 * gradients are reduced. */
static void summed(struct warm *w)
{
	while (w->ranks > 1 && !warm_says(w, 0, "\"state\":\"ready\",\"chunks_pushed\":3", 1))
		;
	while (!warm_says(w, 0, "\"state\":\"computing\",\"chunks_pushed\":3", 1) ||
	       !hold_asleep(w->cluster->node[0].pid, "shardd-w"))
		;
	warm_phase(w, 0, "staging"); /* The loop has taken the results of the workers by now. */
}

/* All ranks push and commit, and the workers of the first victim stand still when the step is
 * decided. Of two nodes that is when the votes pass again. */
static void applying(struct warm *w, int first, struct hold *h)
{
	bool alone = w->cluster->nodes_nr == 1;

	for (uint32_t r = 0; r < w->ranks - alone; r++)
		warm_commit(w, r);
	if (alone)
		summed(w);
	else
		warm_phase(w, first, "prepared");
	hold_threads(h, w->cluster->node[first].pid, "shardd-w");
	if (alone)
		warm_commit(w, w->ranks - 1);
	else
		cluster_votes(w->cluster, true);
	warm_phase(w, first, "applying");
}

/* Brings the victims into the phase in which they are killed. Returns the newest step that a
 * trainer was told is committed. */
static uint64_t advance(struct warm *w, unsigned victims, enum phase phase, struct hold *h)
{
	/* If the victims are all nodes, the step is decided. */
	bool all = victims == (1u << w->cluster->nodes_nr) - 1;
	uint64_t step = w->r[0].world.step;
	int first = __builtin_ctz(victims);

	h->nr = 0;
	if (phase == IDLE)
		return step - 1;
	for (uint32_t r = 0; r < w->ranks; r++)
		warm_begin(w, r);
	if (phase == STAGING)
		return step - 1;
	if (w->cluster->nodes_nr > 1)
		cluster_votes(w->cluster, phase == APPLIED || (phase == PREPARED && all));
	if (phase == APPLYING) {
		applying(w, first, h);
	} else {
		for (uint32_t r = 0; r < w->ranks; r++)
			warm_commit(w, r);
	}
	if (phase == PREPARED) {
		if (!all)
			warm_phase(w, first, "prepared");
		return step - 1;
	}
	results(w);
	return step;
}

static void die(struct warm *w, unsigned victims, struct hold *h)
{
	int first = __builtin_ctz(victims);

	if (h->nr == 0) {
		warm_kill(w, victims);
		return;
	}
	hold_kill(h, w->cluster->node[first].pid);
	cluster_wait(w->cluster, first, 10000);
	warm_kill(w, victims & ~(1u << first));
}

static void one(struct warm *w, unsigned victims, enum phase phase)
{
	struct hold h;
	uint64_t told = advance(w, victims, phase, &h), next;

	die(w, victims, &h);
	if (w->cluster->nodes_nr > 1)
		cluster_votes(w->cluster, true);
	warm_spawn(w, victims);
	next = warm_back(w, victims);
	assert_in_range(next, told + 1, told + 2);
	if (phase != PREPARED)
		assert_int_equal(next, told + 1);
	warm_check(w, next - 1);
	warm_train(w, next);
	warm_check(w, next);
	for (int n = 0; n < w->cluster->nodes_nr; n++)
		assert_int_equal(warm_logged(w, n, "event=lost"), 0);
}

static void deaths(struct warm *w, int nodes, const int *on, const unsigned *victims)
{
	w->between = nodes > 1;
	warm_start(w, nodes, on, BEAT);
	warm_all(w);
	warm_train(w, 2);
	for (; *victims != 0; victims++)
		for (int phase = IDLE; phase < PHASES; phase++)
			one(w, *victims, (enum phase)phase);
	warm_finish(w);
}

static void test_member(void **state)
{
	deaths(*state, 2, (int[]){1, 1}, (unsigned[]){2, 0});
}

static void test_member_of_two(void **state)
{
	deaths(*state, 2, (int[]){2, 2}, (unsigned[]){2, 0});
}

static void test_coordinator(void **state)
{
	deaths(*state, 2, (int[]){1, 1}, (unsigned[]){1, 0});
}

static void test_both(void **state)
{
	deaths(*state, 2, (int[]){1, 1}, (unsigned[]){3, 0});
}

static void test_only(void **state)
{
	deaths(*state, 1, (int[]){1}, (unsigned[]){1, 0});
}

static void test_only_with_two(void **state)
{
	deaths(*state, 1, (int[]){2}, (unsigned[]){1, 0});
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		WARM_BOTH(test_member),      WARM_BOTH(test_member_of_two),
		WARM_BOTH(test_coordinator), WARM_BOTH(test_both),
		WARM_BOTH(test_only),        WARM_BOTH(test_only_with_two)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
