// SPDX-License-Identifier: Apache-2.0
/* Tests SIGTERM. An undecided step is aborted and the log says so, and a step that its node has
 * voted for is waited for. Trainers of all nodes hear which node stopped and why, and the exit
 * status is 0, also in the middle of a start. (The phases that workers make long are in
 * test_stop_phases.c.) A daemon that would share another's state directory, port or socket is
 * refused with a sentence. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/drill.h"
#include "lib/pace.h"
#include "lib/ports.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SGD "optimizer=sgd lr=1 chunk_elems=1024 timeout=20s min_world=3 max_world=3"

struct crowd {
	struct drill_yard *y;
	struct drill *t[3]; /* 0 and 1 are on node a. */
};

static void start(struct crowd *c, void **state)
{
	*c = (struct crowd){.y = *state};
	c->y->cluster = cluster_make(2, NULL, NULL);
	cluster_between(c->y->cluster);
	cluster_up(c->y->cluster);
	for (int i = 0; i < 3; i++)
		c->t[i] = drill_joining(c->y, c->y->cluster->node[i / 2].unix_address, i, SGD);
	for (int i = 0; i < 3; i++)
		drill_get(c->t[i], SHARD_OK);
}

static void finish(struct crowd *c)
{
	cluster_stop(c->y->cluster);
	c->y->cluster = NULL;
}

static void stopped(struct crowd *c, int node)
{
	int status = cluster_wait(c->y->cluster, node, 10000);

	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void logged(struct crowd *c, int node, const char *part)
{
	char *text = cluster_log(c->y->cluster, node);

	drill_text(text, part);
	free(text);
}

/* All ranks have committed, and both nodes have voted. Node a does not hear the vote of node b. */
static void almost(struct crowd *c)
{
	cluster_votes(c->y->cluster, false);
	for (int i = 0; i < 3; i++) {
		DRILL(c->t[i], SHARD_OK, .op = DRILL_BEGIN);
		DRILL(c->t[i], SHARD_OK, .op = DRILL_PUSH);
	}
	for (int i = 0; i < 3; i++) {
		DRILL(c->t[i], SHARD_OK, .op = DRILL_COMMIT);
		DRILL_SEND(c->t[i], .op = DRILL_RESULT);
	}
	cluster_phase(c->y->cluster, 1, "prepared");
}

static void test_undecided(void **state)
{
	struct crowd c;

	start(&c, state);
	almost(&c);
	cluster_signal(c.y->cluster, 0, SIGTERM); /* It decides, and has not decided. */
	drill_get(c.t[1], SHARD_CLOSED);
	drill_text(c.t[1]->last.error, "node a stops: SIGTERM");
	stopped(&c, 0);
	logged(&c, 0, "not decided, it is aborted");
	logged(&c, 0, "event=stopped");
	finish(&c);
}

/* Node b has voted, so it may not fail any more. When it is told to stop, it stays until it knows
 * the verdict. */
static void test_prepared(void **state)
{
	struct drill_reply *r;
	struct crowd c;
	uint64_t at;

	start(&c, state);
	almost(&c);
	at = clock_ns();
	cluster_signal(c.y->cluster, 1, SIGTERM);
	cluster_wait_log(c.y->cluster, 1, "event=stopping", 1);
	cluster_votes(c.y->cluster, true);
	for (int i = 0; i < 3; i++) {
		r = drill_get(c.t[i], SHARD_OK);
		assert_int_equal(r->result.outcome, SHARD_APPLIED);
		assert_int_equal(r->result.step, 1);
	}
	stopped(&c, 1);
	assert_true(clock_ns() - at < pace_ns(3 * NS_PER_SEC));
	DRILL(c.t[2], SHARD_CLOSED, .op = DRILL_TRAIN, .step = 9);
	drill_text(c.t[2]->last.error, "node b stops: SIGTERM");
	finish(&c);
}

/* The same with a node that does not coordinate. Its own trainer hears it from the node. The others
 * hear that the attempt is over, and why. */
static void test_undecided_elsewhere(void **state)
{
	struct crowd c;

	start(&c, state);
	for (int i = 0; i < 3; i++) {
		DRILL(c.t[i], SHARD_OK, .op = DRILL_BEGIN);
		DRILL(c.t[i], SHARD_OK, .op = DRILL_PUSH);
	}
	for (int i = 0; i < 2; i++) {
		DRILL(c.t[i], SHARD_OK, .op = DRILL_COMMIT);
		DRILL_SEND(c.t[i], .op = DRILL_RESULT);
	}
	cluster_signal(c.y->cluster, 1,
		       SIGTERM); /* It has not voted, because rank 2 has not committed. */
	stopped(&c, 1);
	logged(&c, 1, "not decided, it is aborted");
	drill_do(c.t[2], (struct drill_cmd){.op = DRILL_COMMIT}); /* A commit has no answer. */
	if (c.t[2]->last.rc == SHARD_OK)
		DRILL(c.t[2], SHARD_CLOSED, .op = DRILL_RESULT);
	drill_text(c.t[2]->last.error, "node b stops: SIGTERM");
	for (int i = 0; i < 2; i++) {
		drill_recv(c.t[i], 20000);
		assert_int_equal(c.t[i]->last.rc, SHARD_WORLD_CHANGED);
		drill_text(c.t[i]->last.error, "node b stops: SIGTERM");
		assert_null(strstr(c.t[i]->last.error, "out of reach"));
	}
	finish(&c);
}

/* Wherever in a step the signal comes, both nodes stop in time and with status 0. */
static void test_while_training(void **state)
{
	for (uint64_t round = 0; round < 4; round++) {
		struct crowd c;
		uint64_t at;

		start(&c, state);
		for (int i = 0; i < 3; i++)
			DRILL_SEND(c.t[i], .op = DRILL_TRAIN, .step = DRILL_STEPS - 1,
				   .notify = 5 + round);
		drill_get(c.t[0], SHARD_OK);
		c.t[0]->out = true;
		at = clock_ns();
		cluster_signal(c.y->cluster, (int)round & 1, SIGTERM);
		cluster_signal(c.y->cluster, !(round & 1), SIGTERM);
		stopped(&c, 0);
		stopped(&c, 1);
		assert_true(clock_ns() - at < pace_ns(4 * NS_PER_SEC));
		for (int i = 0; i < 3; i++)
			drill_kill(c.t[i]);
		finish(&c);
	}
}

static int refused(const char *conf, const char *set, char *text, size_t bytes)
{
	char shardd[600], command[1400];
	size_t n;
	FILE *f;

	proc_beside(shardd, sizeof(shardd), "shardd");
	snprintf(command, sizeof(command), "%s --config %s %s 2>&1", shardd, conf, set);
	f = popen(command, "r");
	CHECK(f != NULL);
	n = fread(text, 1, bytes - 1, f);
	text[n] = 0;
	return WEXITSTATUS(pclose(f));
}

static void test_second_daemon(void **state)
{
	struct drill_yard *y = *state;
	char set[512], text[8192];
	struct cluster_node *n;
	struct drill *t;

	y->cluster = cluster_start(1, NULL, NULL);
	n = &y->cluster->node[0];
	assert_int_equal(refused(n->conf, "", text, sizeof(text)), 1);
	drill_text(text, n->state);
	drill_text(text, "in use");
	snprintf(set, sizeof(set), "--state %s2 --socket %s2", n->state, n->socket);
	assert_int_equal(refused(n->conf, set, text, sizeof(text)), 1);
	snprintf(set, sizeof(set), "127.0.0.1:%u is in use (EADDRINUSE) by pid %d (shardd)",
		 n->port, (int)n->pid);
	drill_text(text, set);
	snprintf(set, sizeof(set), "--state %s3 --set nodes.a=127.0.0.1:%u", n->state,
		 ports_take());
	if (refused(n->conf, set, text, sizeof(text)) == 1)
		drill_text(text, n->socket);
	t = drill_new(y, n->unix_address); /* The first daemon is still there. */
	drill_end(t);
	cluster_stop(y->cluster);
	y->cluster = NULL;
}

/* Its socket is there from an early moment of the start on. */
static void test_in_a_start(void **state)
{
	struct drill_yard *y = *state;
	const struct timespec moment = {.tv_nsec = 100000};
	const uint64_t until_ns = clock_ns() + pace_ms(30000) * NS_PER_MS;
	struct cluster_node *n;

	y->cluster = cluster_make(1, NULL, NULL);
	n = &y->cluster->node[0];
	for (int i = 0; i < 20; i++) {
		int status;

		cluster_spawn(y->cluster, 0);
		while (access(n->socket, F_OK) != 0) {
			assert_true(clock_ns() < until_ns);
			nanosleep(&moment, NULL);
		}
		cluster_signal(y->cluster, 0, SIGTERM);
		status = cluster_wait(y->cluster, 0, 10000);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
	assert_int_equal(cluster_logged(y->cluster, 0, "event=stopped"), 20);
	cluster_stop(y->cluster);
	y->cluster = NULL;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_undecided, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_undecided_elsewhere, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_prepared, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_while_training, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_second_daemon, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_in_a_start, drill_setup, drill_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
