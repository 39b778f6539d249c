// SPDX-License-Identifier: Apache-2.0
/* A node is away while the others restore a model that has two copies of each chunk. It stands
 * still, or it starts again with the memory that it had. When it is back its trainer hears that the
 * model went back (SHARD_ROLLED_BACK), as all others did, and not that its weights are lost. The
 * steps after that are the right ones. */
#include "lib/drill.h"
#include "lib/keep.h"
#include "lib/tool.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BEAT "[cluster]\nheartbeat_timeout = 1s\nlost_timeout = 60s\n"
#define TWO  "optimizer=sgd lr=1 chunk_elems=1024 min_world=2 max_world=2 replicas=2"
#define ONE  "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=1 replicas=2"

enum { SAVED = 2, AWAY = 4, LAST = 6 };

static struct keep keep;

static void both(struct drill_yard *y, enum shard_status want, uint64_t step)
{
	for (int i = 0; i < 2; i++)
		DRILL_SEND(&y->t[i], .op = DRILL_TRAIN, .step = step);
	for (int i = 0; i < 2; i++)
		drill_get(&y->t[i], want);
}

/* Trainers on nodes a and c of three have gone on after a save. */
static void begin(struct drill_yard *y, bool warm)
{
	keep_init(&keep);
	y->cluster = cluster_make(3, "replicas = 2\n", BEAT);
	if (warm)
		cluster_warm(y->cluster, CLUSTER_TMPFS);
	cluster_up(y->cluster);
	drill_joining(y, y->cluster->node[0].unix_address, 0, TWO);
	drill_joining(y, y->cluster->node[2].unix_address, 1, TWO);
	drill_get(&y->t[0], SHARD_OK);
	drill_get(&y->t[1], SHARD_OK);
	both(y, SHARD_OK, SAVED);
	keep_must_save(y->cluster->node[0].unix_address, "m", keep.dir, NULL);
	both(y, SHARD_OK, AWAY);
}

/* Node c is out of the view, and the others restore the model. */
static void restored_without_c(struct drill_yard *y)
{
	char words[256];

	cluster_says(y->cluster, 0, "\"members\":[\"a\",\"b\"]");
	snprintf(words, sizeof(words), "restore %s --force --address %s", keep.dir,
		 y->cluster->node[0].unix_address);
	tool_expect(0, "\"m\" is at step 2", "shardctl", words);
}

static void ends(struct drill_yard *y)
{
	struct drill_truth truth;

	both(y, SHARD_OK, LAST);
	drill_truth_init(&truth);
	for (uint64_t s = 1; s <= LAST; s++)
		drill_truth_step(&truth, s, 2);
	for (int i = 0; i < 2; i++)
		drill_check(&y->t[i], &truth, LAST);
	assert_int_equal(cluster_logged(y->cluster, 2, "restoring=0"), 0);
	cluster_done(&y->cluster);
	keep_free(&keep);
}

/* It takes part again, from the step after the saved one. */
static void went_back(struct drill *t)
{
	DRILL(t, SHARD_ROLLED_BACK, .op = DRILL_TRAIN, .step = LAST);
	DRILL(t, SHARD_OK, .op = DRILL_WORLD);
}

static void test_stands_still(void **state)
{
	struct drill_yard *y = *state;

	begin(y, false);
	cluster_signal(y->cluster, 2, SIGSTOP);
	restored_without_c(y);
	cluster_signal(y->cluster, 2, SIGCONT);
	went_back(&y->t[0]);
	DRILL(&y->t[1], SHARD_ROLLED_BACK, .op = DRILL_TRAIN, .step = LAST);
	drill_text(y->t[1].last.error, "it was lost and sealed again while this node was away");
	DRILL(&y->t[1], SHARD_OK, .op = DRILL_WORLD);
	ends(y);
}

static void test_starts_again(void **state)
{
	struct drill_yard *y = *state;

	begin(y, true);
	drill_kill(&y->t[1]);
	cluster_kill(y->cluster, 2);
	restored_without_c(y);
	went_back(&y->t[0]);
	cluster_spawn(y->cluster, 2);
	cluster_ready(y->cluster, 2);
	drill_joining(y, y->cluster->node[2].unix_address, 1, TWO);
	drill_get(&y->t[1], SHARD_OK);
	ends(y);
}

/* --- a node that dies while it reads its share, and is back at once --- */

static int restore_by_tool(void *arg)
{
	const struct cluster_node *n = arg;
	char words[300], *out;
	int rc;

	snprintf(words, sizeof(words), "restore %s --force --timeout 60 --address %s", keep.dir,
		 n->unix_address);
	rc = tool_run(&out, "shardctl", words);
	if (rc != 0)
		fprintf(stderr, "%s\n", out);
	free(out);
	return rc;
}

/* It hears that it shall read before it hears who coordinates, which is said once in a part of
 * election_timeout. The restore of the operator goes on, of the checkpoint that was named. */
static void test_knows_nobody_yet(void **state)
{
	struct drill_yard *y = *state;
	int leader, other;
	pid_t tool;

	keep_init(&keep);
	y->cluster = cluster_make(3, "replicas = 2\n",
				  "[cluster]\nmembership = quorum\nelection_timeout = 1s\n"
				  "heartbeat_timeout = 10s\n");
	cluster_warm(y->cluster, CLUSTER_TMPFS);
	cluster_up(y->cluster);
	drill_joining(y, y->cluster->node[0].unix_address, 0, ONE);
	drill_get(&y->t[0], SHARD_OK);
	DRILL(&y->t[0], SHARD_OK, .op = DRILL_TRAIN, .step = SAVED);
	keep_must_save(y->cluster->node[0].unix_address, "m", keep.dir, NULL);
	for (leader = 0; cluster_logged(y->cluster, leader, "event=leading ") == 0; leader++)
		assert_true(leader < 2);
	other = (leader + 1) % 3; /* It takes the next one for the leader until it hears of it. */
	cluster_signal(y->cluster, other, SIGSTOP);
	tool = proc_fork(restore_by_tool, &y->cluster->node[leader]);
	cluster_wait_log(y->cluster, leader, "event=restoring", 1);
	cluster_kill(y->cluster, other);
	cluster_wait_log(y->cluster, leader, "event=restore_waits", 1);
	cluster_spawn(y->cluster, other);
	cluster_ready(y->cluster, other);
	proc_expect_exit(tool, 0, 60000);
	cluster_done(&y->cluster);
	keep_free(&keep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_stands_still, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_starts_again, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_knows_nobody_yet, drill_setup, drill_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
