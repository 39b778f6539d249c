// SPDX-License-Identifier: Apache-2.0
/* Three real daemons that elect their coordinator (membership = quorum), with a crew that trains.
 * The coordinator is killed -9 again and again. Another node coordinates then, and training goes on
 * when all chunks are there again. No step is lost or done twice: weights, moments and image equal
 * the reference bit by bit. A node that is started with an older folder says so and ends, and a
 * coordinator whose disk is full gives the lead away. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define QUORUM                                                                                     \
	"[cluster]\nmembership = quorum\nelection_timeout = 300ms\nheartbeat_timeout = 5s\n"       \
	"lost_timeout = 60s\n"

static struct cluster *cluster;

/* Who coordinates, by what the nodes have logged last. */
static int leader(void)
{
	uint64_t best = 0, until = pace_by(20);
	int found = -1;

	while (found < 0) {
		for (int n = 0; n < cluster->nodes_nr; n++) {
			char *log = cluster_log(cluster, n), *at = log;

			while ((at = strstr(at, "event=leading term=")) != NULL) {
				uint64_t term =
					strtoull(at + strlen("event=leading term="), NULL, 10);

				at++;
				if (term <= best)
					continue;
				best = term;
				found = n;
			}
			free(log);
		}
		if (found < 0 && clock_ns() > until)
			fail_msg("nobody coordinates");
		if (found < 0)
			usleep(10000);
	}
	return found;
}

static uint32_t led(void)
{
	uint32_t nr = 0;

	for (int n = 0; n < cluster->nodes_nr; n++)
		nr += cluster_logged(cluster, n, "event=leading term=");
	return nr;
}

static void await_leader(uint32_t before)
{
	uint64_t until = pace_by(20);

	while (led() <= before) {
		if (clock_ns() > until)
			fail_msg("no other node coordinates");
		usleep(10000);
	}
}

static void more(struct crew *c, uint64_t steps)
{
	crew_wait_step(c, crew_step(c) + steps);
}

static void test_warm_leader(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	uint64_t last;

	(void)state;
	assert_non_null(c);
	crew_init(c, "elected");
	cluster = cluster_make(3, NULL, QUORUM);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	for (int n = 0; n < 3; n++)
		crew_add(c, cluster->node[n].unix_address, (uint32_t)n)->reconnects = true;
	crew_start(c, UINT64_MAX);
	more(c, 5);
	for (int k = 0; k < 4; k++) {
		uint32_t before = led();
		int victim = leader();

		cluster_kill(cluster, victim);
		await_leader(before);
		cluster_spawn(cluster, victim);
		more(c, 5);
	}
	last = crew_finish(c);
	for (int n = 0; n < 3; n++) {
		crew_check(c, cluster->node[n].unix_address, last);
		assert_int_equal(cluster_logged(cluster, n, "event=lost "), 0);
	}
	cluster_done(&cluster);
	free(c);
}

/* The coordinator dies with its memory. The others go on without it, as soon as they have elected
 * another one. It comes back as a node that catches up. All trainers are on node b, and go on when
 * that one was the victim. */
static void test_cold_leader(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	uint32_t learned[3] = {0};
	uint64_t last;

	(void)state;
	assert_non_null(c);
	crew_init(c, "elected");
	c->extra = "replicas=2 image_codec=int8";
	c->pause_us = 2000;
	cluster = cluster_start(3, NULL, QUORUM);
	for (int i = 0; i < 2; i++)
		crew_add(c, cluster->node[1].unix_address, 1)->reconnects = true;
	crew_start(c, UINT64_MAX);
	more(c, 5);
	for (int k = 0; k < 6; k++) {
		uint32_t before = led();
		int victim = leader();

		cluster_kill(cluster, victim);
		await_leader(before);
		if (victim != 1)
			more(c, 5);
		cluster_spawn(cluster, victim);
		cluster_wait_log(cluster, victim, "event=learned", ++learned[victim]);
		more(c, 5);
	}
	last = crew_finish(c);
	for (int n = 0; n < 3; n++) {
		crew_check(c, cluster->node[n].unix_address, last);
		assert_int_equal(cluster_logged(cluster, n, "event=lost "), 0);
	}
	cluster_done(&cluster);
	free(c);
}

/* Two of three nodes lose their memory at once, again and again. One of them is elected next, and
 * does not know the model. It must not take it for one that was dropped. */
static void test_leader_without_memory(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	uint32_t learned = 0;
	uint64_t last;

	(void)state;
	assert_non_null(c);
	crew_init(c, "elected");
	c->extra = "replicas=3";
	c->pause_us = 2000;
	cluster = cluster_start(3, NULL, QUORUM);
	for (int i = 0; i < 2; i++)
		crew_add(c, cluster->node[1].unix_address, 1)->reconnects = true;
	crew_start(c, UINT64_MAX);
	more(c, 5);
	for (int k = 0; k < 4; k++) {
		uint32_t before = led();

		cluster_kill(cluster, 0);
		cluster_kill(cluster, 2);
		cluster_signal(cluster, 1, SIGSTOP);
		cluster_spawn(cluster, 0);
		cluster_spawn(cluster, 2);
		await_leader(before);
		cluster_signal(cluster, 1, SIGCONT);
		learned++;
		cluster_wait_log(cluster, 0, "event=learned", learned);
		cluster_wait_log(cluster, 2, "event=learned", learned);
		more(c, 5);
	}
	last = crew_finish(c);
	for (int n = 0; n < 3; n++) {
		crew_check(c, cluster->node[n].unix_address, last);
		assert_int_equal(cluster_logged(cluster, n, "event=lost "), 0);
	}
	cluster_done(&cluster);
	free(c);
}

/* The coordinator has a view that no majority can answer for, and is told to stop. */
static void test_stops_without_majority(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	char words[300];
	int a;

	(void)state;
	assert_non_null(c);
	crew_init(c, "elected");
	cluster = cluster_start(3, NULL,
				"[cluster]\nmembership = quorum\nelection_timeout = 5s\n"
				"heartbeat_timeout = 5s\n[daemon]\nstop_timeout = 1s\n");
	crew_add(c, cluster->node[0].unix_address, 0)->reconnects = true;
	crew_start(c, UINT64_MAX);
	more(c, 2);
	(void)crew_finish(c);
	a = leader();
	for (int n = 0; n < 3; n++)
		if (n != a)
			cluster_signal(cluster, n, SIGSTOP);
	snprintf(words, sizeof(words), "model pause elected --timeout 1 --address %s",
		 cluster->node[a].unix_address);
	(void)tool_run(NULL, "shardctl", words);
	cluster_signal(cluster, a, SIGTERM);
	assert_int_equal(cluster_wait(cluster, a, 10000), 0);
	for (int n = 0; n < 3; n++)
		if (n != a)
			cluster_signal(cluster, n, SIGCONT);
	cluster_done(&cluster);
	free(c);
}

static void folder(int node, const char *how)
{
	char command[700];

	snprintf(command, sizeof(command), "cd '%s' && %s", cluster->node[node].state, how);
	assert_int_equal(system(command), 0);
}

/* Three nodes, and a trainer at the one `after` the one that coordinates, which is *leads. */
static struct crew *trains(int after, int *leads)
{
	struct crew *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	crew_init(c, "elected");
	c->extra = "replicas=2";
	c->pause_us = 2000;
	cluster = cluster_start(3, NULL, QUORUM);
	*leads = leader();
	crew_add(c, cluster->node[(*leads + after) % 3].unix_address, 1)->reconnects = true;
	crew_start(c, UINT64_MAX);
	more(c, 3);
	return c;
}

/* Each node has the weights of the last step. */
static void ends_exact(struct crew *c)
{
	uint64_t last;

	more(c, 3);
	last = crew_finish(c);
	for (int n = 0; n < 3; n++)
		crew_check(c, cluster->node[n].unix_address, last);
	cluster_done(&cluster);
	free(c);
}

/* A node that votes is started with an older copy of its folder. It ends by itself, with status 1,
 * and what the others hear of it is why. With an empty folder it comes back, as another node. */
static void test_older_folder(void **state)
{
	int a, victim;
	struct crew *c = trains(0, &a);

	(void)state;
	victim = (a + 1) % 3;
	cluster_kill(cluster, victim);
	folder(victim, "rm -rf ../older && cp -r . ../older");
	cluster_spawn(cluster, victim);
	cluster_wait_log(cluster, victim, "event=learned", 1);
	more(c, 3);
	cluster_kill(cluster, victim);
	folder(victim, "rm -rf ./* && cp -r ../older/. .");
	cluster_spawn(cluster, victim);
	assert_int_equal(cluster_wait(cluster, victim, 20000), 1 << 8);
	assert_true(cluster_logged(cluster, victim, "or with an empty one") > 0);
	assert_int_equal(cluster_logged(cluster, victim, "SIGTERM"), 0);
	assert_in_range(
		cluster_logged(cluster, a, " stops: the membership source has failed: another") +
			cluster_logged(cluster, 3 - a - victim,
				       " stops: the membership source has failed: another"),
		1, 8);
	folder(victim, "rm -rf ./*");
	cluster_spawn(cluster, victim);
	cluster_wait_log(cluster, victim, "event=learned", 2);
	ends_exact(c);
}

/* Two of three nodes are dead. Status and members of the third one name no coordinator, and say
 * what is missing, and so does a command that waits for chunks to move. */
static void test_nobody_coordinates(void **state)
{
	char words[300], *out;
	int a, left;
	struct crew *c = trains(1, &a);

	(void)state;
	left = (a + 1) % 3;
	(void)crew_finish(c);
	for (int n = 0; n < 3; n++)
		if (n != left)
			cluster_kill(cluster, n);
	cluster_says(cluster, left, "\"no_coordinator\":\"no node coordinates now: one is");
	cluster_says(cluster, left, "\"waits\":\"no node coordinates now: one is elected");
	snprintf(words, sizeof(words), "members --address %s", cluster->node[left].unix_address);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	assert_null(strstr(out, "  coordinates"));
	assert_non_null(strstr(out, "no node coordinates now"));
	assert_non_null(strstr(out, " yes ")); /* It remembers who votes. */
	free(out);
	cluster_kill(cluster, left); /* One that has only begun to run does not know. */
	cluster_spawn(cluster, left);
	cluster_ready(cluster, left);
	cluster_says(cluster, left, "\"no_coordinator\":\"no node coordinates now: one is");
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	assert_null(strstr(out, " no "));
	free(out);
	snprintf(words, sizeof(words), "drain --undo %s --timeout 8 --address %s",
		 cluster->node[left].name, cluster->node[left].unix_address);
	tool_expect(1, "no node coordinates now", "shardctl", words);
	cluster_done(&cluster);
	free(c);
}

/* The process may write nothing more into files, its log included. */
static void room(int node, bool is)
{
	pid_t pid = cluster->node[node].pid;
	struct rlimit limit;

	assert_int_equal(prlimit(pid, RLIMIT_FSIZE, NULL, &limit), 0);
	limit.rlim_cur = is ? limit.rlim_max : 16;
	assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

/* The disk of the coordinator refuses the view that the death of another node makes due. A node
 * whose disk takes it leads, and training goes on. */
static void test_full_disk(void **state)
{
	struct crew *c;
	uint32_t before;
	int a, dead;

	(void)state;
	signal(SIGXFSZ, SIG_IGN); /* The daemons inherit it: the limit plays a full disk. */
	c = trains(0, &a);
	before = led();
	dead = (a + 1) % 3;
	room(a, false);
	cluster_kill(cluster, dead);
	cluster_spawn(cluster, dead);
	await_leader(before);
	assert_int_not_equal(leader(), a);
	cluster_wait_log(cluster, dead, "event=learned", 1);
	more(c, 3);
	room(a, true);
	ends_exact(c);
}

static int teardown(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_warm_leader, teardown),
		cmocka_unit_test_teardown(test_cold_leader, teardown),
		cmocka_unit_test_teardown(test_leader_without_memory, teardown),
		cmocka_unit_test_teardown(test_stops_without_majority, teardown),
		cmocka_unit_test_teardown(test_older_folder, teardown),
		cmocka_unit_test_teardown(test_full_disk, teardown),
		cmocka_unit_test_teardown(test_nobody_coordinates, teardown),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
