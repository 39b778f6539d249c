// SPDX-License-Identifier: Apache-2.0
/* A model is defined, or made by a restore, while a node of the list is gone. It begins with the
 * others once that node has been away for lost_timeout. When the node is back it becomes a member,
 * gets its share of the chunks, and other nodes may be lost. At the end masters, moments and image
 * equal the reference of the crew bit by bit on each node. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/keep.h"
#include "lib/moved.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <jansson.h>

#define TIMES  "heartbeat_timeout = 1s\nlost_timeout = 3s\n"
#define STATIC "[cluster]\n" TIMES
#define QUORUM "[cluster]\nmembership = quorum\nelection_timeout = 300ms\n" TIMES

static struct cluster *cluster;
static struct crew *crew;
static struct keep keep;
static int told[3]; /* [node] */

/* How often a node has said in its log that node a does not answer. */
static int says(int node)
{
	char said[64];

	snprintf(said, sizeof(said), "level=info node=%c event=dial_failed peer=a", 'a' + node);
	return (int)cluster_logged(cluster, node, said);
}

static void more(uint64_t steps)
{
	crew_wait_step(crew, crew_step(crew) + steps);
}

/* Node `gone` is killed before anybody defines the model at node `at`. */
static void begin(int nodes, int gone, int at, const char *conf, const char *extra)
{
	crew = test_calloc(1, sizeof(*crew));
	crew_init(crew, "moved");
	crew->extra = extra;
	crew->pause_us = 2000;
	cluster = cluster_start(nodes, NULL, conf);
	for (int n = 0; n < nodes && strstr(conf, "quorum") != NULL; n++)
		moved_elected(cluster, n);
	/* Those that started before node a did could not reach it then. */
	for (int n = 0; n < nodes; n++)
		told[n] = says(n);
	cluster_kill(cluster, gone);
	for (int i = 0; i < 2; i++) {
		crew_add(crew, cluster->node[at].unix_address, (uint32_t)at);
		crew->member[i].reconnects = true;
	}
}

/* The refusals before name the node and say how long it is waited for. */
static void await_defined(int at, int gone)
{
	uint64_t until = pace_by(30);
	char error[512], part[32];
	uint32_t refused = 0;
	enum shard_status st;

	snprintf(part, sizeof(part), "node %c (127.0.0.1:", 'a' + gone);
	while ((st = crew_define(crew, cluster->node[at].unix_address, error)) != SHARD_OK) {
		if (st != SHARD_UNREACHABLE)
			fail_msg("%s", error);
		refused +=
			strstr(error, part) != NULL && strstr(error, "lost_timeout = 3 s") != NULL;
		if (clock_ns() > until)
			fail_msg("the model cannot be defined: %s", error);
	}
	if (refused == 0)
		fail_msg("nobody said that node %c is waited for", 'a' + gone);
}

static void trains(int at, int gone)
{
	await_defined(at, gone);
	crew_start(crew, UINT64_MAX);
	more(5);
}

static void comes_back(int at, int gone)
{
	cluster_spawn(cluster, gone);
	cluster_ready(cluster, gone);
	moved_wait(cluster, at, gone, 1, 1000);
	more(5);
}

static void test_two_copies(void **state)
{
	(void)state;
	begin(3, 2, 0, QUORUM, "replicas=2");
	trains(0, 2);
	comes_back(0, 2);
	moved_ends(&cluster, &crew, true);
}

/* The node that was gone is the only one that is left beside the trainers' later. */
static void test_then_another_is_lost(void **state)
{
	(void)state;
	begin(3, 2, 0, QUORUM, "replicas=2");
	trains(0, 2);
	comes_back(0, 2);
	cluster_kill(cluster, 1);
	more(20);
	moved_ends(&cluster, &crew, true);
}

/* The nodes dial node a all the time. Since it was killed the log says once that it does not
 * answer.
 */
static void dials(int node)
{
	uint64_t until = pace_by(20);

	while (cluster_logged(cluster, node, "event=dial_failed peer=a") < 4)
		if (clock_ns() > until)
			fail_msg("node %c does not dial node a", 'a' + node);
	assert_int_equal(says(node), told[node] + 1);
}

/* Node a is the first of the list, so it would coordinate the first view. */
static void test_first_is_gone(void **state)
{
	(void)state;
	begin(3, 0, 1, QUORUM, "replicas=2");
	trains(1, 0);
	dials(1);
	dials(2);
	comes_back(1, 0);
	moved_ends(&cluster, &crew, true);
}

/* Node a coordinates, and is alone with all chunks until b is back. */
static void test_static(void **state)
{
	(void)state;
	begin(2, 1, 0, STATIC, "");
	trains(0, 1);
	comes_back(0, 1);
	moved_ends(&cluster, &crew, false);
}

static void test_more_copies_than_nodes(void **state)
{
	uint64_t until = pace_by(30);
	char error[512] = "";

	(void)state;
	begin(2, 1, 0, STATIC, "replicas=2");
	while (strstr(error, "only 1 of 2 nodes with capacity are up") == NULL) {
		assert_int_equal(crew_define(crew, cluster->node[0].unix_address, error),
				 SHARD_UNREACHABLE);
		if (clock_ns() > until)
			fail_msg("node b is not given up: %s", error);
	}
	cluster_done(&cluster);
	test_free(crew);
	crew = NULL;
}

/* Nobody takes the place of a coordinator that the configuration names. */
static void test_coordinator_is_gone(void **state)
{
	char error[512] = "";
	uint64_t until;

	(void)state;
	begin(2, 0, 1, STATIC, "");
	until = clock_ns() + 4 * NS_PER_SEC; /* Longer than lost_timeout. */
	while (clock_ns() < until) {
		assert_int_equal(crew_define(crew, cluster->node[1].unix_address, error),
				 SHARD_UNREACHABLE);
		assert_non_null(strstr(error, "node a (127.0.0.1:"));
	}
	cluster_done(&cluster);
	test_free(crew);
	crew = NULL;
}

/* A checkpoint of three nodes comes back on two. */
static void test_restored(void **state)
{
	uint64_t until = pace_by(30), last;

	(void)state;
	begin(3, 2, 0, QUORUM "[model]\nreplicas = 2\n", "replicas=2");
	cluster_spawn(cluster, 2);
	cluster_ready(cluster, 2);
	crew_start(crew, 6);
	last = crew_finish(crew);
	keep_must_save(cluster->node[0].unix_address, "moved", keep.dir, NULL);
	cluster_kill(cluster, 2);
	assert_int_equal(moved_ctl(cluster, 0, "model drop moved --force"), 0);
	while (keep_restore(cluster->node[0].unix_address, keep.dir, NULL, "moved") != SHARD_OK) {
		if (clock_ns() > until)
			fail_msg("the checkpoint is not restored without node c");
	}
	crew_check(crew, cluster->node[0].unix_address, last);
	crew_start(crew, UINT64_MAX);
	more(3);
	comes_back(0, 2);
	moved_ends(&cluster, &crew, true);
}

/* All nodes start again with their memory, before and after the node is back. */
static void test_warm(void **state)
{
	(void)state;
	crew = test_calloc(1, sizeof(*crew));
	crew_init(crew, "moved");
	crew->extra = "replicas=2";
	crew->pause_us = 2000;
	cluster = cluster_make(3, NULL, QUORUM);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	for (int n = 0; n < 3; n++)
		moved_elected(cluster, n);
	cluster_kill(cluster, 2);
	for (int i = 0; i < 2; i++) {
		crew_add(crew, cluster->node[0].unix_address, 0);
		crew->member[i].reconnects = true;
	}
	trains(0, 2);
	for (int n = 0; n < 2; n++)
		cluster_kill(cluster, n);
	for (int n = 0; n < 2; n++)
		cluster_spawn(cluster, n);
	more(5);
	comes_back(0, 2);
	for (int n = 0; n < 3; n++)
		cluster_kill(cluster, n);
	for (int n = 0; n < 3; n++)
		cluster_spawn(cluster, n);
	more(5);
	moved_ends(&cluster, &crew, true);
}

static bool votes(int at, int node)
{
	char key[32];
	json_t *status, *it;
	bool yes = false;
	size_t i;
	int rc;
	char *out = moved_said(cluster, at, MOVED_STATUS, &rc);

	status = json_loads(out, 0, NULL);
	if (rc > 1 || status == NULL) /* 1: something is ill. */
		fail_msg("%s", out);
	snprintf(key, sizeof(key), "%c", 'a' + node);
	json_array_foreach(json_object_get(status, "nodes"), i, it)
		if (strcmp(json_string_value(json_object_get(it, "name")), key) == 0)
			yes = json_is_true(json_object_get(it, "votes"));
	json_decref(status);
	free(out);
	return yes;
}

/* A voter is gone for good. A node that has joined votes in its place, so that another one may be
 * lost: b and d are a majority of b, c and d, and not of a, b and c. */
static void test_votes_in_its_place(void **state)
{
	uint64_t until;
	int d;

	(void)state;
	begin(3, 0, 1, QUORUM, "replicas=2");
	trains(1, 0);
	d = cluster_joiner(cluster, 1, NULL);
	cluster_spawn(cluster, d);
	cluster_ready(cluster, d);
	moved_wait(cluster, 1, d, 1, 1000);
	until = pace_by(30);
	while (votes(1, 0) || !votes(1, d))
		if (clock_ns() > until)
			fail_msg("a votes: %d, d votes: %d", votes(1, 0), votes(1, d));
	moved_copied(cluster, 1);
	cluster_kill(cluster, 2);
	more(20);
	moved_ends(&cluster, &crew, false);
}

static int setup(void **state)
{
	(void)state;
	keep_init(&keep);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	keep_free(&keep);
	if (cluster != NULL)
		cluster_put_away(&cluster);
	return 0; /* Members of a crew that failed may still be at work. */
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_two_copies),
		CASE(test_then_another_is_lost),
		CASE(test_first_is_gone),
		CASE(test_static),
		CASE(test_coordinator_is_gone),
		CASE(test_more_copies_than_nodes),
		CASE(test_restored),
		CASE(test_votes_in_its_place),
		CASE(test_warm),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
