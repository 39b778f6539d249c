// SPDX-License-Identifier: Apache-2.0
/* Tests a trainer that is killed with SIGKILL in each phase of a step. The other trainers hear of
 * it in their waiting calls, at once and by name. They go on in the smaller world, or wait for it
 * where min_world asks for all. The weights are those of the committed history. */
#include "base/clock.h"
#include "lib/drill.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define AT_LEAST_3  "optimizer=sgd lr=1 chunk_elems=1024 min_world=3 max_world=4 timeout=20s"
#define HEARTBEAT_S 5 /* The default of heartbeat_timeout. */
#define ALL_4       "optimizer=sgd lr=1 chunk_elems=1024 min_world=4 max_world=4 timeout=20s"

enum phase {
	BEFORE_BEGIN,
	AFTER_BEGIN,
	AFTER_SOME,
	AFTER_ALL,
	AFTER_COMMIT,
	IN_COMMIT,
	AFTER_RESULT,
	PHASES
};

struct crowd {
	struct drill_yard *y;
	const char *settings;
	struct drill *t[4];     /* By rank, as long as all are there. 0 and 1 are on node a. */
	uint64_t step, told_ns; /* told_ns: the longest time until somebody heard of a death. */
};

static const char *address(const struct crowd *c, int i)
{
	return c->y->cluster->node[i / 2].unix_address;
}

/* Starts the trainer that is missing. The next step of the others is still in the old world, and
 * the one after it in the new world. */
static void arrive(struct crowd *c, int who)
{
	c->t[who] = drill_joining(c->y, address(c, who), who, c->settings);
	drill_asked(c->y, c->t[who]);
}

static void all(struct crowd *c, int but, struct drill_cmd cmd)
{
	for (int i = 0; i < 4; i++)
		if (i != but)
			drill_send(c->t[i], cmd);
	for (int i = 0; i < 4; i++)
		if (i != but)
			drill_get(c->t[i], SHARD_OK);
}

static void train_to(struct crowd *c, uint64_t step, int but)
{
	all(c, but, (struct drill_cmd){.op = DRILL_TRAIN, .step = step});
	c->step = step;
}

/* The others train until the newcomer is in. */
static void settle_in(struct crowd *c, int who)
{
	all(c, who, (struct drill_cmd){.op = DRILL_TRAIN, .step = DRILL_STEPS - 1, .count = 4});
	drill_get(c->t[who], SHARD_OK);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(c->t[i]->last.world.world_size, 4);
		assert_int_equal(c->t[i]->last.world.step, c->t[who]->last.world.step);
	}
	c->step = c->t[who]->last.world.step - 1;
}

/* The world may have changed after the last call looked for it. Then begin says so, and the trainer
 * begins again. */
static void begin(struct crowd *c, int i)
{
	if (drill_do(c->t[i], (struct drill_cmd){.op = DRILL_BEGIN})->rc == SHARD_WORLD_CHANGED) {
		DRILL(c->t[i], SHARD_OK, .op = DRILL_WORLD);
		DRILL(c->t[i], SHARD_OK, .op = DRILL_BEGIN);
	}
	assert_int_equal(c->t[i]->last.rc, SHARD_OK);
	assert_int_equal(c->t[i]->last.step.step, c->step + 1);
	assert_int_equal(c->t[i]->last.step.rank, i); /* As hinted, however often it was away. */
	assert_int_equal(c->t[i]->last.step.world_size, 4);
}

/* The others commit and wait for the verdict. The victim gets as far as `phase` says. */
static void advance(struct crowd *c, int victim, enum phase phase)
{
	for (int i = 0; i < 4; i++) {
		if (i == victim)
			continue;
		begin(c, i);
		DRILL(c->t[i], SHARD_OK, .op = DRILL_PUSH);
		if (phase == AFTER_COMMIT && i == (victim + 1) % 4)
			continue; /* With its commit the step would be decided. */
		DRILL(c->t[i], SHARD_OK, .op = DRILL_COMMIT);
		DRILL_SEND(c->t[i], .op = DRILL_RESULT);
	}
	if (phase >= AFTER_BEGIN)
		begin(c, victim);
	if (phase == AFTER_SOME)
		DRILL(c->t[victim], SHARD_OK, .op = DRILL_PUSH, .first = 2, .count = 1);
	if (phase >= AFTER_ALL)
		DRILL(c->t[victim], SHARD_OK, .op = DRILL_PUSH);
	if (phase == AFTER_COMMIT || phase == AFTER_RESULT)
		DRILL(c->t[victim], SHARD_OK, .op = DRILL_COMMIT);
	if (phase == AFTER_RESULT)
		DRILL(c->t[victim], SHARD_OK, .op = DRILL_RESULT);
}

static void told(struct crowd *c, int i, int victim, uint32_t pid, uint64_t at_ns)
{
	struct drill_reply *r = drill_recv(c->t[i], 20000);
	char who[64];

	if (r->rc != SHARD_WORLD_CHANGED)
		fail_msg("rank %d: %s: %s, expected SHARD_WORLD_CHANGED", i, shard_name(r->rc),
			 r->error);
	snprintf(who, sizeof(who), "rank %d (pid %u, node %s)", victim, pid,
		 victim / 2 ? "b" : "a");
	drill_text(r->error, who);
	drill_text(r->error, "closed its socket");
	if (r->ended_ns - at_ns > c->told_ns)
		c->told_ns = r->ended_ns - at_ns;
	assert_true(r->ended_ns - at_ns < HEARTBEAT_S * NS_PER_SEC / 2); /* Before silence
									    could tell. */
}

static uint64_t end(struct crowd *c, int victim, enum phase phase)
{
	uint64_t at;

	if (phase != IN_COMMIT)
		return drill_kill(c->t[victim]);
	at = clock_ns();
	DRILL_SEND(c->t[victim], .op = DRILL_COMMIT_AND_DIE);
	assert_int_not_equal(proc_wait(c->t[victim]->pid, 10000), -1);
	c->t[victim]->pid = 0;
	return at;
}

/* The step is decided with the last commit, or not at all, and it is the same for everybody. */
static void in_commit(struct crowd *c, int victim)
{
	int decided = 0;

	for (int i = 0; i < 4; i++) {
		if (i == victim)
			continue;
		drill_recv(c->t[i], 20000);
		assert_true(c->t[i]->last.rc == SHARD_OK ||
			    c->t[i]->last.rc == SHARD_WORLD_CHANGED);
		decided += c->t[i]->last.rc == SHARD_OK;
	}
	assert_true(decided == 0 || decided == 3);
	c->step += decided == 3;
}

static void after_result(
	struct crowd *c,
	int victim) /* The step counts. The one after it has been offered to four trainers. */
{
	for (int i = 0; i < 4; i++)
		if (i != victim)
			drill_get(c->t[i], SHARD_OK);
	c->step++;
	for (int i = 0; i < 4; i++) {
		if (i == victim)
			continue;
		begin(c, i);
		DRILL(c->t[i], SHARD_OK, .op = DRILL_PUSH);
		DRILL(c->t[i], SHARD_OK, .op = DRILL_COMMIT);
		DRILL_SEND(c->t[i], .op = DRILL_RESULT);
	}
}

static void die(struct crowd *c, int victim, enum phase phase)
{
	uint32_t pid = (uint32_t)c->t[victim]->pid;
	int late = phase == AFTER_COMMIT ? (victim + 1) % 4 : -1;
	uint64_t at;

	advance(c, victim, phase);
	if (phase == AFTER_RESULT)
		after_result(c, victim);
	at = end(c, victim, phase);
	if (phase == IN_COMMIT)
		in_commit(c, victim);
	for (int i = 0; i < 4 && phase != IN_COMMIT; i++)
		if (i != victim && i != late)
			told(c, i, victim, pid, at);
	if (late >= 0) { /* Its own node may tell it a moment after the others were told. Then the
			    wait for the verdict says so. */
		if (drill_do(c->t[late], (struct drill_cmd){.op = DRILL_COMMIT})->rc == SHARD_OK)
			DRILL(c->t[late], SHARD_WORLD_CHANGED, .op = DRILL_RESULT);
		assert_int_equal(c->t[late]->last.rc, SHARD_WORLD_CHANGED);
		drill_text(c->t[late]->last.error, "closed its socket");
	}
	all(c, victim, (struct drill_cmd){.op = DRILL_WORLD});
}

static void start(struct crowd *c, void **state, const char *settings, int first)
{
	*c = (struct crowd){.y = *state, .settings = settings};
	c->y->cluster = cluster_start(2, NULL, NULL);
	for (int i = 0; i < first; i++)
		c->t[i] = drill_joining(c->y, address(c, i), i, settings);
	for (int i = 0; i < first; i++) {
		drill_get(c->t[i], SHARD_OK);
		assert_int_equal(c->t[i]->last.world.rank, i);
	}
}

static void finish(struct crowd *c, uint64_t seen_by, uint32_t otherwise)
{
	drill_replay(c->t[seen_by], c->step, otherwise);
	print_message("the slowest heard of a death after %.2f ms\n", (double)c->told_ns / 1e6);
	cluster_stop(c->y->cluster);
	c->y->cluster = NULL;
}

/* With min_world = 3 the others go on without the fourth, and it comes back. */
static void test_smaller_world(void **state)
{
	struct crowd c;

	start(&c, state, AT_LEAST_3, 3);
	arrive(&c, 3);
	settle_in(&c, 3);
	for (int round = 0; round < 2 * PHASES; round++) {
		int victim = round & 1 ? 1 : 3; /* Rank 0 sees the whole history. */
		enum phase phase = (enum phase)(round / 2);

		die(&c, victim, phase);
		train_to(&c, c.step + 2, victim);
		assert_int_equal(c.t[0]->shared->world_of[c.step - 1], 3);
		arrive(&c, victim);
		settle_in(&c, victim);
	}
	finish(&c, 0, 0);
}

/* With min_world = 4 the others wait, and say for how many. All take the same step then. */
static void test_waits_for_all(void **state)
{
	struct crowd c;

	start(&c, state, ALL_4, 4);
	train_to(&c, 1, -1);
	for (int round = 0; round < PHASES; round++) {
		int victim = round & 1 ? 0 : 2;

		die(&c, victim, (enum phase)round);
		arrive(&c, victim);
		drill_get(c.t[victim], SHARD_OK);
		assert_int_equal(c.t[victim]->last.world.step, c.step + 1);
		assert_int_equal(c.t[victim]->last.world.rank, victim);
		train_to(&c, c.step + 1, -1);
	}
	finish(&c, 3, 4);
}

/* A call that waits for a trainer that does not come names how many are missing. */
static void test_text_of_missing(void **state)
{
	struct crowd c;

	start(&c, state, "optimizer=sgd lr=1 chunk_elems=1024 min_world=4 max_world=4 timeout=1s",
	      4);
	train_to(&c, 1, -1);
	die(&c, 3, AFTER_BEGIN);
	for (int i = 0; i < 3; i++)
		DRILL_SEND(c.t[i], .op = DRILL_BEGIN);
	for (int i = 0; i < 3; i++) {
		drill_get(c.t[i], SHARD_TIMEOUT);
		drill_text(c.t[i]->last.error, "1 more trainer: 3 of at least 4 joined");
	}
	arrive(&c, 3);
	drill_get(c.t[3], SHARD_OK);
	train_to(&c, 2, -1);
	cluster_stop(c.y->cluster);
	c.y->cluster = NULL;
}

/* The only trainer of node b dies after its node has voted, and there is only one arena. The arena
 * becomes free when the attempt ends, and no other attempt begins before the next trainer is in. */
static void test_next_one_on_a_prepared_node(void **state)
{
	static const char settings[] = "optimizer=sgd lr=1 chunk_elems=1024 min_world=2 "
				       "max_world=2 local_world=1 timeout=20s";
	struct drill_yard *y = *state;
	struct drill *t[2];

	y->cluster = cluster_make(2, NULL, NULL);
	cluster_between(y->cluster);
	cluster_up(y->cluster);
	for (int i = 0; i < 2; i++)
		t[i] = drill_joining(y, y->cluster->node[i].unix_address, i, settings);
	for (int i = 0; i < 2; i++)
		drill_get(t[i], SHARD_OK);
	cluster_votes(y->cluster, false);
	for (int i = 0; i < 2; i++)
		DRILL(t[i], SHARD_OK, .op = DRILL_BEGIN);
	for (int i = 0; i < 2; i++)
		DRILL(t[i], SHARD_OK, .op = DRILL_PUSH);
	for (int i = 0; i < 2; i++)
		DRILL(t[i], SHARD_OK, .op = DRILL_COMMIT);
	cluster_phase(y->cluster, 1, "prepared");
	drill_kill(t[1]);
	t[1] = drill_joining(y, y->cluster->node[1].unix_address, 1, settings);
	drill_get(t[1], SHARD_OK);
	cluster_votes(y->cluster, true);
	DRILL(t[0], SHARD_WORLD_CHANGED, .op = DRILL_RESULT);
	DRILL(t[0], SHARD_OK, .op = DRILL_WORLD);
	for (int i = 0; i < 2; i++)
		DRILL_SEND(t[i], .op = DRILL_TRAIN, .step = 3);
	for (int i = 0; i < 2; i++)
		drill_get(t[i], SHARD_OK);
	drill_replay(t[0], 3, 2);
	cluster_stop(y->cluster);
	y->cluster = NULL;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_smaller_world, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_waits_for_all, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_text_of_missing, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_next_one_on_a_prepared_node, drill_setup,
						drill_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
