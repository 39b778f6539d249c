// SPDX-License-Identifier: Apache-2.0
// check: all
/* Nodes that join at the wrong moment: the new node or one that it asks is killed or stands still,
 * again and again, chunks are moved, saved and compared meanwhile, and all start
 * again with the old configuration. At the end masters, moments and image equal the reference of
 * the crew bit by bit on each node. */
#include "lib/crew.h"
#include "lib/moved.h"
#include "lib/proc.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BEAT "[cluster]\nheartbeat_timeout = 5s\nlost_timeout = 60s\n"

static const char quorum[] =
	"[cluster]\nmembership = quorum\nelection_timeout = 300ms\nheartbeat_timeout = 5s\n"
	"lost_timeout = 60s\n";

static const char brief[] =
	"[cluster]\nmembership = quorum\nelection_timeout = 300ms\nheartbeat_timeout = 5s\n"
	"lost_timeout = 8s\n";

static struct cluster *cluster;
static struct crew *crew;

static void more(uint64_t steps)
{
	crew_wait_step(crew, crew_step(crew) + steps);
}

static void begin(int nodes, const char *conf, const char *extra, uint32_t scale, bool warm)
{
	moved_begin(&cluster, &crew,
		    &(struct moved_plan){.nodes = nodes,
					 .conf = conf,
					 .extra = extra,
					 .scale = scale,
					 .warm = warm,
					 .reconnects = true});
}

static void wait_share(int at, int node)
{
	moved_wait(cluster, at, node, 1, 1000);
}

static void wait_copies(int at)
{
	moved_copied(cluster, at);
}

/* The new node is killed at many moments, and starts again. */
static void joiner_killed(const char *conf, bool warm)
{
	int node;

	begin(3, conf, "replicas=2", 2, warm);
	node = cluster_joiner(cluster, 1, NULL);
	for (int i = 0; i < 20; i++) {
		cluster_spawn(cluster, node);
		usleep((useconds_t)(3000 + 17000 * i));
		cluster_kill(cluster, node);
	}
	cluster_spawn(cluster, node);
	cluster_ready(cluster, node);
	wait_share(0, node);
	more(3);
	wait_copies(0);
	moved_ends(&cluster, &crew, true);
}

static void test_joiner_killed_static(void **state)
{
	(void)state;
	joiner_killed(BEAT, true);
}

static void test_joiner_killed_elected(void **state)
{
	(void)state;
	joiner_killed(quorum, false);
}

/* A node stands still while another one joins by it. */
static void stands_still(const char *conf, int which, int ms)
{
	int node;

	begin(3, conf, "replicas=2", 1, false);
	for (int i = 0; i < 2; i++) {
		node = cluster_joiner(cluster, 1, NULL);
		cluster_spawn(cluster, node);
		usleep((useconds_t)(5000 + 40000 * i));
		cluster_signal(cluster, which, SIGSTOP);
		usleep((useconds_t)ms * 1000);
		cluster_signal(cluster, which, SIGCONT);
		cluster_ready(cluster, node);
		wait_share(1, node);
	}
	wait_copies(1);
	moved_ends(&cluster, &crew, false);
}

static void test_coordinator_stands(void **state)
{
	(void)state;
	stands_still(BEAT, 0, 1200);
}

static void test_coordinator_stands_long(void **state)
{
	(void)state;
	stands_still(BEAT, 0, 7000);
}

static void test_asked_stands(void **state)
{
	(void)state;
	stands_still(BEAT, 1, 1200);
}

static void test_leader_stands(void **state)
{
	(void)state;
	stands_still(quorum, 0, 1500);
}

static void test_leader_stands_long(void **state)
{
	(void)state;
	stands_still(quorum, 0, 7000);
}

/* Chunks move, are saved and compared while nodes join. */
static void test_at_work(void **state)
{
	char words[200];
	int d, e;

	(void)state;
	begin(3, BEAT, "replicas=2", 6, true);
	d = cluster_joiner(cluster, 1, NULL);
	e = cluster_joiner(cluster, 2, NULL);
	assert_int_equal(moved_ctl(cluster, 0, "drain c"), 0);
	cluster_spawn(cluster, d);
	snprintf(words, sizeof(words), "save moved --dir %s/ckpt", cluster->dir);
	(void)moved_ctl(cluster, 1, words);
	cluster_spawn(cluster, e);
	for (int i = 0; i < 6; i++) {
		(void)moved_ctl(cluster, i % 3, "verify moved");
		(void)moved_ctl(cluster, 0, i % 2 ? "rebalance moved" : "drain c");
		snprintf(words, sizeof(words), "save moved --dir %s/ckpt%d", cluster->dir, i);
		(void)moved_ctl(cluster, 1, words);
	}
	cluster_ready(cluster, d);
	cluster_ready(cluster, e);
	wait_share(0, d);
	wait_share(0, e);
	wait_copies(0);
	moved_ends(&cluster, &crew, true);
}

/* Each node starts again, one after the other, with the file that it had. */
static void one_by_one(bool warm, const char *conf)
{
	int node;

	begin(3, conf, "replicas=2", 2, warm);
	for (int k = 0; k < 2; k++) {
		node = cluster_joiner(cluster, k + 1, NULL);
		cluster_spawn(cluster, node);
		cluster_ready(cluster, node);
	}
	wait_share(0, node);
	wait_copies(0);
	for (int n = cluster->nodes_nr - 1; n >= 0; n--) {
		cluster_kill(cluster, n);
		usleep(50000);
		cluster_spawn(cluster, n);
		cluster_ready(cluster, n);
		more(3);
		wait_copies((n + 1) % cluster->nodes_nr);
	}
	wait_share(0, node);
	moved_ends(&cluster, &crew, true);
}

static void test_one_by_one_cold(void **state)
{
	(void)state;
	one_by_one(false, quorum);
}

static void test_one_by_one_warm(void **state)
{
	(void)state;
	one_by_one(true, BEAT);
}

static void test_one_by_one_warm_elected(void **state)
{
	(void)state;
	one_by_one(true, quorum);
}

/* Five nodes join one at the same time, and all know each other in the end: a node may be taken in
 * while a link to it comes up. Then all start again. */
static void many(bool again)
{
	enum { MORE = 5 };

	begin(1, BEAT, "replicas=1", 4, true);
	for (int k = 0; k < MORE; k++)
		(void)cluster_joiner(cluster, 0, NULL);
	for (int n = 1; n <= MORE; n++)
		cluster_spawn(cluster, n);
	for (int n = 1; n <= MORE; n++)
		cluster_ready(cluster, n);
	for (int n = 1; n <= MORE; n++)
		wait_share(0, n);
	more(5);
	for (int n = 0; n <= MORE && again; n++)
		cluster_kill(cluster, n);
	for (int n = 0; n <= MORE && again; n++)
		cluster_spawn(cluster, n);
	for (int n = 0; n <= MORE && again; n++)
		cluster_ready(cluster, n);
	more(5);
	moved_ends(&cluster, &crew, false);
}

static void test_many(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++)
		many(false);
	many(true);
}

/* While chunks go to the new node, another one is killed. */
static void other_dies(const char *extra, int which, bool back)
{
	int node;

	for (int i = 0; i < 3; i++) {
		begin(3, back ? quorum : brief, extra, 6, false);
		node = cluster_joiner(cluster, 1, NULL);
		cluster_spawn(cluster, node);
		cluster_ready(cluster, node);
		usleep((useconds_t)(60000 * i));
		cluster_kill(cluster, which);
		if (back) {
			cluster_spawn(cluster, which);
			cluster_ready(cluster, which);
		}
		more(3);
		wait_share(0, node);
		more(3);
		wait_copies(0);
		moved_ends(&cluster, &crew, false);
	}
}

static void test_other_dies(void **state)
{
	(void)state;
	other_dies("replicas=2", 2, false);
}

static void test_other_dies_stale(void **state)
{
	(void)state;
	other_dies("replicas=2 max_staleness=1", 1, true);
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
		cmocka_unit_test_teardown(test_joiner_killed_static, cleanup),
		cmocka_unit_test_teardown(test_joiner_killed_elected, cleanup),
		cmocka_unit_test_teardown(test_coordinator_stands, cleanup),
		cmocka_unit_test_teardown(test_coordinator_stands_long, cleanup),
		cmocka_unit_test_teardown(test_asked_stands, cleanup),
		cmocka_unit_test_teardown(test_leader_stands, cleanup),
		cmocka_unit_test_teardown(test_leader_stands_long, cleanup),
		cmocka_unit_test_teardown(test_at_work, cleanup),
		cmocka_unit_test_teardown(test_one_by_one_cold, cleanup),
		cmocka_unit_test_teardown(test_one_by_one_warm, cleanup),
		cmocka_unit_test_teardown(test_one_by_one_warm_elected, cleanup),
		cmocka_unit_test_teardown(test_many, cleanup),
		cmocka_unit_test_teardown(test_other_dies, cleanup),
		cmocka_unit_test_teardown(test_other_dies_stale, cleanup),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
