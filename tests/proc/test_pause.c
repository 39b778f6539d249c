// SPDX-License-Identifier: Apache-2.0
/* Tests processes that stop running and go on later (SIGSTOP, SIGCONT). A trainer that sleeps
 * longer than its step is expelled, and hears so when it wakes. A daemon (also the coordinator)
 * that sleeps shorter than the others wait loses only the attempt in hand. One that sleeps longer
 * is found silent within heartbeat_timeout + 1 s. The weights are those of the committed history.
 */
#include "base/clock.h"
#include "lib/drill.h"
#include "lib/pace.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SGD "optimizer=sgd lr=1 chunk_elems=1024 timeout=20s "

struct crowd {
	struct drill_yard *y;
	struct drill *t[3]; /* 0 and 1 are on node a. */
};

static const char *address(const struct crowd *c, int i)
{
	return c->y->cluster->node[i / 2].unix_address;
}

static void start(struct crowd *c, void **state, const char *settings, const char *conf)
{
	*c = (struct crowd){.y = *state};
	c->y->cluster = cluster_start(2, NULL, conf);
	for (int i = 0; i < 3; i++) {
		c->t[i] = drill_new(c->y, address(c, i));
		drill_define(c->t[i], settings);
	}
	for (int i = 0; i < 3; i++)
		DRILL_SEND(c->t[i], .op = DRILL_JOIN, .hint = i);
}

/* With min_world=2 any two may be in the first world. They train until the third one is in. */
static void all_join(struct crowd *c)
{
	bool joined[3] = {false};

	for (int i = 0; i < 3; i++)
		drill_asked(c->y, c->t[i]);
	for (int left = 3; left > 0;) {
		struct pollfd p[3];

		for (int i = 0; i < 3; i++)
			p[i] = (struct pollfd){.fd = joined[i] ? -1 : c->t[i]->fd,
					       .events = POLLIN};
		if (poll(p, 3, pace_ms(20000)) < 1)
			fail_msg("%d trainers did not join", left);
		for (int i = 0; i < 3; i++) {
			if (joined[i] || p[i].revents == 0)
				continue;
			drill_get(c->t[i], SHARD_OK);
			DRILL_SEND(c->t[i], .op = DRILL_TRAIN, .step = DRILL_STEPS - 1, .count = 3);
			joined[i] = true;
			left--;
		}
	}
	for (int i = 0; i < 3; i++)
		drill_get(c->t[i], SHARD_OK);
}

static void finish(struct crowd *c)
{
	cluster_stop(c->y->cluster);
	c->y->cluster = NULL;
}

static void train_to(struct crowd *c, uint64_t step)
{
	for (int i = 0; i < 3; i++)
		DRILL_SEND(c->t[i], .op = DRILL_TRAIN, .step = step);
	for (int i = 0; i < 3; i++)
		drill_get(c->t[i], SHARD_OK);
}

/* The sleeper has begun, or even voted with its node (PREPARED). Rank 0 never commits before the
 * deadline of the step, which is long enough for those that are awake, also on a busy machine. */
static void oversleeps(void **state, bool prepared)
{
	int sleeper = prepared ? 2 : 1;
	struct crowd c;
	uint64_t step;

	start(&c, state, SGD "min_world=2 max_world=3",
	      "[cluster]\nheartbeat_timeout = 2s\nstep_timeout = 3s\n");
	all_join(&c);
	step = c.t[2]->last.world.step;
	for (int i = 0; i < 3; i++) {
		DRILL(c.t[i], SHARD_OK, .op = DRILL_BEGIN);
		if (i != sleeper || prepared)
			DRILL(c.t[i], SHARD_OK, .op = DRILL_PUSH);
	}
	for (int i = 0; i < 3; i++)
		if (i != 0 && (i != sleeper || prepared))
			DRILL(c.t[i], SHARD_OK, .op = DRILL_COMMIT);
	proc_signal(c.t[sleeper]->pid, SIGSTOP);
	if (prepared) { /* Rank 0 is awake and is expelled, because the sleeper has done its
			   part. */
		DRILL_SEND(c.t[1], .op = DRILL_RESULT);
		drill_get(c.t[1], SHARD_WORLD_CHANGED);
		drill_text(c.t[1]->last.error, "rank 0");
		/* This is too late. It may not have heard so yet, but RESULT waits for the end of
		 * the attempt or of the connection. */
		drill_do(c.t[0], (struct drill_cmd){.op = DRILL_COMMIT});
		drill_do(c.t[0], (struct drill_cmd){.op = DRILL_RESULT});
		DRILL(c.t[0], SHARD_CLOSED, .op = DRILL_TRAIN, .step = step + 1);
		drill_text(c.t[0]->last.error, "rank 0");
		kill(c.t[2]->pid, SIGCONT);
		DRILL(c.t[2], SHARD_WORLD_CHANGED, .op = DRILL_RESULT);
		for (int i = 1; i < 3; i++)
			DRILL(c.t[i], SHARD_OK, .op = DRILL_WORLD);
		for (int i = 1; i < 3; i++)
			DRILL_SEND(c.t[i], .op = DRILL_TRAIN, .step = step + 1);
		for (int i = 1; i < 3; i++)
			drill_get(c.t[i], SHARD_OK);
		drill_replay(c.t[1], step + 1, 2);
	} else {
		DRILL(c.t[0], SHARD_OK, .op = DRILL_COMMIT);
		DRILL_SEND(c.t[0], .op = DRILL_RESULT);
		DRILL_SEND(c.t[2], .op = DRILL_RESULT);
		for (int i = 0; i < 3; i += 2) {
			drill_get(c.t[i], SHARD_WORLD_CHANGED);
			drill_text(c.t[i]->last.error, "rank 1");
			DRILL(c.t[i], SHARD_OK, .op = DRILL_WORLD);
			DRILL_SEND(c.t[i], .op = DRILL_TRAIN, .step = step + 1);
		}
		for (int i = 0; i < 3; i += 2)
			drill_get(c.t[i], SHARD_OK);
		kill(c.t[1]->pid, SIGCONT); /* The others are two steps further. */
		drill_do(c.t[1], (struct drill_cmd){.op = DRILL_PUSH});
		drill_do(c.t[1], (struct drill_cmd){.op = DRILL_COMMIT});
		DRILL(c.t[1], SHARD_CLOSED, .op = DRILL_RESULT);
		drill_text(c.t[1]->last.error, "rank 1");
		drill_replay(c.t[0], step + 1, 2);
	}
	finish(&c);
}

static void test_trainer_in_the_middle(void **state)
{
	oversleeps(state, false);
}

static void test_trainer_of_prepared_node(void **state)
{
	oversleeps(state, true);
}

/* A sleep shorter than heartbeat_timeout does not even cost the attempt. */
static void short_nap(void **state, int node)
{
	struct crowd c;

	start(&c, state, SGD "min_world=3 max_world=3", NULL);
	for (int i = 0; i < 3; i++)
		drill_get(c.t[i], SHARD_OK);
	for (int nap = 0; nap < 5; nap++) {
		for (int i = 0; i < 3; i++)
			DRILL_SEND(c.t[i], .op = DRILL_TRAIN, .step = (uint64_t)(nap + 1) * 40,
				   .notify = (uint64_t)nap * 40 + 10 + (uint64_t)nap);
		drill_get(c.t[0], SHARD_OK);
		cluster_signal(c.y->cluster, node, SIGSTOP);
		(void)poll(NULL, 0, 50); /* There is no event to wait for: nothing must happen. */
		cluster_signal(c.y->cluster, node, SIGCONT);
		c.t[0]->out = true;
		drill_get(c.t[0], SHARD_OK);
		for (int i = 1; i < 3; i++) {
			drill_get(c.t[i], SHARD_OK);
			c.t[i]->out = true;
			drill_get(c.t[i], SHARD_OK);
		}
	}
	drill_replay(c.t[2], 200, 3);
	finish(&c);
}

static void test_short_nap(void **state)
{
	short_nap(state, 1);
}

static void test_short_nap_of_coordinator(void **state)
{
	short_nap(state, 0);
}

/* A sleep longer than heartbeat_timeout, and shorter than the wait for a node that stays away. The
 * node is found silent in time, and nothing is LOST. */
static void long_sleep(void **state, int node)
{
	struct crowd c;
	uint64_t at;
	int other = node ? 0 : 2; /* A trainer of the node that stays awake. */

	start(&c, state, SGD "min_world=3 max_world=3", "[cluster]\nheartbeat_timeout = 1s\n");
	for (int i = 0; i < 3; i++)
		drill_get(c.t[i], SHARD_OK);
	train_to(&c, 2);
	for (int i = 0; i < 3; i++)
		DRILL(c.t[i], SHARD_OK, .op = DRILL_BEGIN);
	DRILL(c.t[other], SHARD_OK, .op = DRILL_PUSH);
	DRILL(c.t[other], SHARD_OK, .op = DRILL_COMMIT);
	DRILL_SEND(c.t[other], .op = DRILL_RESULT);
	at = clock_ns();
	cluster_signal(c.y->cluster, node, SIGSTOP);
	drill_get(c.t[other], SHARD_WORLD_CHANGED);
	drill_text(c.t[other]->last.error, node ? "node b" : "node a");
	drill_text(c.t[other]->last.error, "silent for 1.0 s");
	assert_true(c.t[other]->last.ended_ns - at < pace_ns(2 * NS_PER_SEC));
	cluster_signal(c.y->cluster, node, SIGCONT);
	for (int i = 0; i < 3; i++) {
		drill_do(c.t[i], (struct drill_cmd){.op = DRILL_PUSH});
		drill_do(c.t[i], (struct drill_cmd){.op = DRILL_COMMIT});
	}
	for (int i = 0; i < 3; i++)
		DRILL(c.t[i], SHARD_OK, .op = DRILL_WORLD);
	train_to(&c, 5);
	for (int i = 0; i < 3; i++)
		drill_replay(c.t[i], 5, 3);
	finish(&c);
}

static void test_long_sleep(void **state)
{
	long_sleep(state, 1);
}

static void test_long_sleep_of_coordinator(void **state)
{
	long_sleep(state, 0);
}

/* The coordinator sleeps while the other node is away. The time in which it could not hear anything
 * does not count. */
static void test_both_sleep(void **state)
{
	struct crowd c;

	start(&c, state, SGD "min_world=3 max_world=3", "[cluster]\nheartbeat_timeout = 1s\n");
	for (int i = 0; i < 3; i++)
		drill_get(c.t[i], SHARD_OK);
	train_to(&c, 2);
	for (int i = 0; i < 3; i++)
		DRILL(c.t[i], SHARD_OK, .op = DRILL_BEGIN);
	DRILL(c.t[0], SHARD_OK, .op = DRILL_PUSH);
	DRILL(c.t[0], SHARD_OK, .op = DRILL_COMMIT);
	DRILL_SEND(c.t[0], .op = DRILL_RESULT);
	cluster_signal(c.y->cluster, 1, SIGSTOP);
	drill_get(c.t[0], SHARD_WORLD_CHANGED);
	cluster_signal(c.y->cluster, 0, SIGSTOP);
	(void)poll(NULL, 0, 1500); /* Longer than it waits for a node that stays away. */
	cluster_signal(c.y->cluster, 1, SIGCONT);
	cluster_signal(c.y->cluster, 0, SIGCONT);
	for (int i = 0; i < 3; i++) {
		drill_do(c.t[i], (struct drill_cmd){.op = DRILL_PUSH});
		drill_do(c.t[i], (struct drill_cmd){.op = DRILL_COMMIT});
	}
	for (int i = 0; i < 3; i++)
		DRILL(c.t[i], SHARD_OK, .op = DRILL_WORLD);
	train_to(&c, 5);
	drill_replay(c.t[0], 5, 3);
	finish(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_trainer_in_the_middle, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_trainer_of_prepared_node, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_short_nap, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_short_nap_of_coordinator, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_long_sleep, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_long_sleep_of_coordinator, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_both_sleep, drill_setup, drill_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
