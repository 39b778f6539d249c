// SPDX-License-Identifier: Apache-2.0
/* A node is gone for good, and is drained while it is down: its chunks get copies elsewhere at
 * once, nobody waits for it or counts it as missing, and every node keeps that. A node that has an
 * only copy is refused by name. When the node comes back it holds nothing until its drain is
 * ended. At the end masters, moments and image equal the reference of the crew bit by bit on each
 * node. lost_timeout is so long that nothing here happens because of it. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/moved.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define TIMES  "heartbeat_timeout = 1s\nlost_timeout = 1000s\n"
#define STATIC "[cluster]\n" TIMES
#define QUORUM "[cluster]\nmembership = quorum\nelection_timeout = 300ms\n" TIMES

static struct cluster *cluster;
static struct crew *crew;
static uint16_t http_port[CLUSTER_NODES_MAX];

static void more(uint64_t steps)
{
	crew_wait_step(crew, crew_step(crew) + steps);
}

static void begin(int nodes, const char *conf, const char *extra)
{
	moved_begin(&cluster, &crew,
		    &(struct moved_plan){.nodes = nodes,
					 .conf = conf,
					 .extra = extra,
					 .scale = 1,
					 .reconnects = true,
					 .http_port = http_port});
}

static void say(int at, const char *what, int rc, const char *part)
{
	int is;
	char *out = moved_said(cluster, at, what, &is);

	if (is != rc || strstr(out, part) == NULL)
		fail_msg("%s at node %c: %d, and not %d with \"%s\": %s", what, 'a' + at, is, rc,
			 part, out);
	free(out);
}

/* The line of the node in `shardctl members` at another one, which may hear of it later. */
static void wait_member(int at, int node, const char *part)
{
	char name[24];
	uint64_t until = pace_by(20);

	snprintf(name, sizeof(name), "\n%c  ", 'a' + node);
	for (;;) {
		int rc;
		char *out = moved_said(cluster, at, "members", &rc), *line, *end;

		assert_int_equal(rc, 0);
		line = strstr(out, name);
		if (line != NULL && (end = strchr(line + 1, '\n')) != NULL) {
			*end = 0;
			if (strstr(line, part) != NULL) {
				free(out);
				return;
			}
		}
		if (clock_ns() > until)
			fail_msg("node %c says of node %c: %s", 'a' + at, 'a' + node,
				 line != NULL ? line : out);
		free(out);
		usleep(20000);
	}
}

/* What the doctor on the machine of that node says of the others. */
static void doctor(int at, const char *part)
{
	char words[300], *out = NULL;

	snprintf(words, sizeof(words), "doctor --config %s --address %s", cluster->node[at].conf,
		 cluster->node[at].unix_address);
	(void)tool_run(&out, "shardctl", words);
	if (strstr(out, part) == NULL)
		fail_msg("no \"%s\": %s", part, out);
	free(out);
}

/* Is there nothing at this node that an alert or an eye would find? */
static void wait_well(int at, int gone)
{
	uint64_t until = pace_by(20);
	char series[64];
	const char *text;

	snprintf(series, sizeof(series), "shardd_link_up{peer=\"%c\"}", 'a' + gone);
	while (strstr(text = moved_http(http_port[at], "/healthz"), " 200 OK") == NULL) {
		if (clock_ns() > until)
			fail_msg("node %c is ill: %s", 'a' + at, text);
		usleep(100000);
	}
	assert_null(strstr(moved_http(http_port[at], "/metrics"), series));
	wait_member(at, gone, "drained, gone");
}

/* A machine burns. One command, and nothing is red because of it. A node takes its place, with its
 * vote, and then another one is lost. */
static void test_for_good(void **state)
{
	int d;

	(void)state;
	begin(3, QUORUM, "replicas=2");
	cluster_kill(cluster, 2);
	more(3);
	assert_non_null(strstr(moved_http(http_port[1], "/healthz"), "node c is down"));
	doctor(0, "c: no shardd runs at ");
	say(1, "drain c --timeout 20", 0, "node c is drained, gone: nobody waits for it; it has");
	doctor(0, "1 of 1 others answer");
	moved_copied(cluster, 0);
	assert_int_equal(moved_held(cluster, 0, 0), moved_held(cluster, 0, 1));
	say(1, "history moved --node all --from 2 --to 2", 0, "node c is gone for good");
	wait_well(0, 2);
	wait_well(1, 2);
	say(0, "drain c --timeout 20", 0, "drained, gone"); /* Again: it is so. */
	d = cluster_joiner(cluster, 1, NULL);
	cluster_spawn(cluster, d);
	cluster_ready(cluster, d);
	moved_wait(cluster, 0, d, 1, 1000);
	wait_member(0, 2, " no ");
	wait_member(0, d, " yes ");
	wait_member(d, 2, "drained, gone");
	moved_copied(cluster, 0);
	cluster_kill(cluster, 1);
	more(10);
	moved_ends(&cluster, &crew, false);
}

/* The node comes back, with the number that it had. Its own state folder knows nothing of it. */
static void comes_back(bool wiped)
{
	char words[200];

	begin(3, QUORUM, "replicas=2");
	cluster_kill(cluster, 2);
	say(0, "drain c --no-wait", 0, "get copies on other nodes");
	moved_copied(cluster, 0);
	snprintf(words, sizeof(words), "-rf %s", cluster->node[2].state);
	if (wiped)
		assert_int_equal(tool_run(NULL, "/bin/rm", words), 0);
	cluster_spawn(cluster, 2);
	cluster_ready(cluster, 2);
	wait_member(0, 2, " 0  ");
	wait_member(2, 2, " 0  ");
	more(10);
	assert_int_equal(moved_held(cluster, 0, 2), 0);
	say(1, "drain --undo c", 0, "node c holds its share of chunks again");
	moved_wait(cluster, 0, 2, 1, 1000);
	wait_member(0, 2, " 1  ");
	moved_copied(cluster, 0);
	/* It may be lost again, and is missing then. */
	cluster_kill(cluster, 2);
	more(5);
	wait_member(0, 2, "down ");
	assert_non_null(strstr(moved_http(http_port[0], "/healthz"), "node c is down"));
	moved_ends(&cluster, &crew, false);
}

static void test_comes_back(void **state)
{
	(void)state;
	comes_back(false);
}

static void test_comes_back_wiped(void **state)
{
	(void)state;
	comes_back(true);
}

/* Every node keeps it: the coordinator, of which it was asked, is not there any more. */
static void test_is_kept(void **state)
{
	(void)state;
	cluster = cluster_start(3, NULL, STATIC);
	wait_member(1, 0, " up ");
	cluster_kill(cluster, 2);
	say(1, "drain c", 0, "node c is drained, gone: nobody waits for it\n");
	cluster_wait_log(cluster, 1, "event=gone node=c", 1);
	for (int n = 0; n < 2; n++)
		cluster_kill(cluster, n);
	cluster_spawn(cluster, 1);
	cluster_ready(cluster, 1);
	wait_member(1, 2, "drained, gone");
	say(1, "drain a", 3, "With membership = static no other node can take its place");
	cluster_spawn(cluster, 0);
	cluster_ready(cluster, 0);
	wait_member(0, 2, "drained, gone");
	wait_member(1, 0, " up ");
	/* It was a mistake. */
	say(1, "drain --undo c", 0, "node c is waited for again");
	wait_member(0, 2, "down ");
	wait_member(1, 2, "down ");
	say(1, "drain --undo c", 3, "it keeps its drain in its state folder");
	cluster_done(&cluster);
}

/* It has the only copy of chunks, and so nothing is done. A restore without it ends that. */
static void test_only_copy(void **state)
{
	char words[300];

	(void)state;
	begin(2, STATIC "[model]\nreplicas = 1\n", "replicas=1");
	snprintf(words, sizeof(words), "save moved --dir %s/ckpt", cluster->dir);
	say(0, words, 0, "");
	crew_finish(crew);
	test_free(crew);
	crew = NULL;
	cluster_kill(cluster, 1);
	say(0, "drain b", 5, "node b holds the only copy of ");
	say(0, "drain b", 5, "chunks of \"moved\": start it again. If it is gone for good, ");
	wait_member(0, 1, "down ");
	assert_int_equal(cluster_logged(cluster, 0, "event=gone"), 0);
	say(0, "model drop moved --force", 0, "");
	say(0, "drain b", 0, "node b is drained, gone");
	snprintf(words, sizeof(words), "restore %s/ckpt", cluster->dir);
	say(0, words, 0, "");
	wait_well(0, 1);
	say(0, "model drop moved", 0, "");
	cluster_done(&cluster);
}

/* With as many copies as nodes there is nowhere to copy to, and the command says so. */
static void test_nowhere(void **state)
{
	int c;

	(void)state;
	begin(2, STATIC, "replicas=2");
	cluster_kill(cluster, 1);
	more(3);
	say(0, "drain b --timeout 5", 1,
	    "nothing has changed for 5 s: \"moved\": "); /* The default of others. */
	wait_well(0, 1);
	c = cluster_joiner(cluster, 0, NULL);
	cluster_spawn(cluster, c);
	cluster_ready(cluster, c);
	moved_copied(cluster, 0);
	say(0, "drain b --timeout 20", 0, "drained, gone");
	moved_ends(&cluster, &crew, true);
}

struct drain { /* What a thread has shardctl do at that node. */
	int at;
	const char *what;
	char *out; /* This and rc are valid once it has been joined. */
	int rc;
};

static void *drain(void *arg)
{
	struct drain *d = arg;

	d->out = moved_said(cluster, d->at, d->what, &d->rc);
	return NULL;
}

/* The drain is ended while the command still waits for copies, for which there is no node. */
static void test_undone(void **state)
{
	struct drain d = {.at = 0, .what = "drain b --timeout 15"};
	pthread_t thread;

	(void)state;
	begin(2, STATIC, "replicas=2");
	cluster_kill(cluster, 1);
	more(3);
	assert_int_equal(pthread_create(&thread, NULL, drain, &d), 0);
	cluster_wait_log(cluster, 0, "event=gone node=b", 1);
	cluster_wait_log(cluster, 0, "event=not_moved", 1);
	say(0, "drain --undo b", 0, "node b is waited for again");
	assert_int_equal(pthread_join(thread, NULL), 0);
	if (d.rc != 1 || strstr(d.out, "node b is not drained: somebody has ended") == NULL)
		fail_msg("%d: %s", d.rc, d.out);
	free(d.out);
	moved_ends(&cluster, &crew, false);
}

/* The node that coordinates is killed while copies are made. The command ends by itself, says what
 * came of it, and is right when it is given again. The node comes back without its memory. */
static void coordinator_dies(const char *when)
{
	struct drain d = {.at = 1, .what = "drain d --timeout 30"};
	pthread_t thread;

	begin(4, QUORUM, "replicas=3");
	cluster_kill(cluster, 3);
	more(3);
	assert_int_equal(pthread_create(&thread, NULL, drain, &d), 0);
	cluster_wait_log(cluster, 0, when, 1);
	cluster_kill(cluster, 0);
	cluster_spawn(cluster, 0);
	cluster_ready(cluster, 0);
	moved_elected(cluster, 1);
	assert_int_equal(pthread_join(thread, NULL), 0);
	if (d.rc != 0 && (d.rc != 3 || strstr(d.out, "again") == NULL))
		fail_msg("%d: %s", d.rc, d.out);
	free(d.out);
	say(1, "drain d --timeout 30", 0, "drained, gone");
	for (int n = 0; n < 3; n++)
		wait_member(n, 3, "drained, gone");
	more(10);
	moved_copied(cluster, 1);
	moved_ends(&cluster, &crew, true);
}

static void test_coordinator_dies_first(void **state)
{
	(void)state;
	coordinator_dies("event=gone node=d");
}

static void test_coordinator_dies_while_copying(void **state)
{
	(void)state;
	coordinator_dies("event=moving");
}

/* The copies are made when nobody trains, too. The old ones leave with a step, and every node says
 * that there is none. */
static void test_nobody_trains(void **state)
{
	char *out;
	int rc;

	(void)state;
	begin(3, STATIC, "replicas=2");
	crew_finish(crew);
	test_free(crew);
	crew = NULL;
	for (int n = 0; n < 2; n++) {
		out = moved_said(cluster, n, "drain c --timeout 4", &rc);
		if (rc != 1 ||
		    strstr(out, n == 0 ? "the next step, for which trainers are missing"
				       : "chunks move: the node that coordinates") == NULL)
			fail_msg("node %c: %d: %s", 'a' + n, rc, out);
		free(out);
	}
	cluster_done(&cluster);
}

/* The drain of a node without capacity is ended, which gives it nothing. */
static void test_no_capacity(void **state)
{
	int c;

	(void)state;
	cluster = cluster_start(2, NULL, STATIC);
	c = cluster_joiner(cluster, 0, "[daemon]\ncapacity = 0\n");
	cluster_spawn(cluster, c);
	cluster_ready(cluster, c);
	wait_member(0, c, " up ");
	say(0, "drain c", 0, "node c is drained: it holds no chunks");
	say(0, "drain --undo c", 0, "holds no chunks: its capacity is 0");
	cluster_done(&cluster);
}

static int cleanup(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_for_good, cleanup),
		cmocka_unit_test_teardown(test_comes_back, cleanup),
		cmocka_unit_test_teardown(test_comes_back_wiped, cleanup),
		cmocka_unit_test_teardown(test_is_kept, cleanup),
		cmocka_unit_test_teardown(test_only_copy, cleanup),
		cmocka_unit_test_teardown(test_nowhere, cleanup),
		cmocka_unit_test_teardown(test_undone, cleanup),
		cmocka_unit_test_teardown(test_coordinator_dies_first, cleanup),
		cmocka_unit_test_teardown(test_coordinator_dies_while_copying, cleanup),
		cmocka_unit_test_teardown(test_nobody_trains, cleanup),
		cmocka_unit_test_teardown(test_no_capacity, cleanup),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
