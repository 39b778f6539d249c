// SPDX-License-Identifier: Apache-2.0
/* Three real daemons whose coordinator a real etcd knows (membership = etcd), with a crew that
 * trains on two copies of each chunk. The coordinator is killed -9, and etcd too. No step is lost
 * or done twice: weights, moments and image equal the reference bit by bit. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/drill.h"
#include "lib/etcds.h"
#include "lib/moved.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct cluster *cluster;
static struct etcds etcd;

static void begin(struct crew *c, int etcd_nr)
{
	char extra[600];

	if (!etcds_here())
		skip();
	etcds_make(&etcd, etcd_nr, 0);
	snprintf(extra, sizeof(extra),
		 "[cluster]\nmembership = etcd\netcd_endpoints = %s\nelection_timeout = 2s\n"
		 "heartbeat_timeout = 5s\nlost_timeout = 60s\n",
		 etcd.endpoints);
	crew_init(c, "elected");
	c->extra = "replicas=2";
	c->pause_us = 2000;
	cluster = cluster_start(3, NULL, extra);
	for (int i = 0; i < 2; i++)
		crew_add(c, cluster->node[1].unix_address, 1)->reconnects = true;
	crew_start(c, UINT64_MAX);
}

static void more(struct crew *c, uint64_t steps)
{
	crew_wait_step(c, crew_step(c) + steps);
}

static void end(struct crew *c)
{
	uint64_t last = crew_finish(c);

	for (int n = 0; n < 3; n++) {
		crew_check(c, cluster->node[n].unix_address, last);
		assert_int_equal(cluster_logged(cluster, n, "event=lost "), 0);
	}
	cluster_done(&cluster);
	etcds_end(&etcd);
}

static int leader(void)
{
	static const char part[] = "event=leading term=";
	uint64_t best = 0;
	int found = -1;

	for (int n = 0; n < 3; n++) {
		char *log = cluster_log(cluster, n);

		for (char *at = log; (at = strstr(at, part)) != NULL; at++) {
			uint64_t term = strtoull(at + sizeof(part) - 1, NULL, 10);

			if (term <= best)
				continue;
			best = term;
			found = n;
		}
		free(log);
	}
	assert_true(found >= 0);
	return found;
}

static void test_leader_dies(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	uint32_t learned[3] = {0};

	(void)state;
	assert_non_null(c);
	begin(c, 1);
	more(c, 5);
	for (int k = 0; k < 3; k++) {
		int victim = leader();

		cluster_kill(cluster, victim);
		if (victim != 1) {
			more(c, 5);
			assert_int_not_equal(leader(), victim);
		}
		cluster_spawn(cluster, victim);
		cluster_wait_log(cluster, victim, "event=learned", ++learned[victim]);
		more(c, 5);
	}
	end(c);
	free(c);
}

/* etcd dies and comes back. Meanwhile training goes on, since the view need not change. Then a node
 * dies, which only a new view can leave out: it is written as soon as etcd is back. */
static void test_etcd_dies(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	int victim;

	(void)state;
	assert_non_null(c);
	begin(c, 1);
	more(c, 5);
	etcds_kill(&etcd, 0);
	more(c, 200);
	victim = leader() == 0 ? 2 : 0;
	cluster_kill(cluster, victim);
	etcds_start(&etcd, 0);
	etcds_ready(&etcd, 0);
	more(c, 5);
	cluster_spawn(cluster, victim);
	cluster_wait_log(cluster, victim, "event=learned", 1);
	more(c, 5);
	end(c);
	free(c);
}

/* A trainer dies while etcd is down. Who trains is not part of a view, so nobody needs etcd for it:
 * the other trainer goes on alone, and the dead one joins again. */
static void test_trainer_dies_without_etcd(void **state)
{
	static const char settings[] =
		"optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=2 timeout=20s";
	struct drill_yard *y = *state;
	struct drill *t[2];
	uint64_t step;
	char extra[600];

	if (!etcds_here())
		skip();
	etcds_make(&etcd, 1, 0);
	snprintf(extra, sizeof(extra),
		 "[cluster]\nmembership = etcd\netcd_endpoints = %s\nelection_timeout = 2s\n",
		 etcd.endpoints);
	y->cluster = cluster_start(2, NULL, extra);
	t[0] = drill_joining(y, y->cluster->node[0].unix_address, 0, settings);
	drill_get(t[0], SHARD_OK);
	for (int round = 0; round < 2; round++) {
		t[1] = drill_joining(y, y->cluster->node[1].unix_address, 1, settings);
		drill_asked(y, t[1]);
		DRILL_SEND(t[0], .op = DRILL_TRAIN, .step = DRILL_STEPS - 1, .count = 2);
		drill_get(t[0], SHARD_OK);
		step = drill_get(t[1], SHARD_OK)->world.step;
		for (int i = 0; i < 2; i++)
			DRILL_SEND(t[i], .op = DRILL_TRAIN, .step = step + 2);
		for (int i = 0; i < 2; i++)
			assert_int_equal(drill_get(t[i], SHARD_OK)->world.world_size, 2);
		if (round == 0)
			etcds_kill(&etcd, 0);
		drill_kill(t[1]);
		DRILL(t[0], SHARD_OK, .op = DRILL_TRAIN, .step = step + 8);
		assert_int_equal(t[0]->last.world.world_size, 1);
	}
	drill_end(t[0]);
	cluster_done(&y->cluster);
	etcds_end(&etcd);
}

/* The first save of a model has to be noted at etcd, which is down. The checkpoint is there all the
 * same, and training goes on, however long etcd is down. */
static void test_save_without_etcd(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	char words[512], *out;
	int first;

	(void)state;
	assert_non_null(c);
	begin(c, 1);
	more(c, 5);
	first = leader();
	etcds_kill(&etcd, 0);
	for (int k = 0; k < 2; k++) {
		snprintf(words, sizeof(words), "save %s --dir %s/ckpt --tag t%d --address %s",
			 c->name, cluster->dir, k, cluster->node[1].unix_address);
		tool_expect(0, "ckpt/t", "shardctl", words);
	}
	assert_int_equal(cluster_logged(cluster, first, "event=views_not_durable"), 1);
	more(c, 500);
	assert_int_equal(cluster_logged(cluster, first, "event=not_leading"), 0);
	etcds_start(&etcd, 0);
	etcds_ready(&etcd, 0);
	more(c, 5);
	for (int n = 0; n < 3; n++)
		assert_true(cluster_logged(cluster, n, "event=model_not_durable") < 10);
	snprintf(words, sizeof(words), "checkpoints %s/ckpt --verify --json", cluster->dir);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	assert_non_null(strstr(out, "\"t0\""));
	assert_non_null(strstr(out, "\"t1\""));
	free(out);
	end(c);
	free(c);
}

static void drains(char node, const char *how, const char *says)
{
	char words[256];

	snprintf(words, sizeof(words), "drain %c %s --address %s", node, how,
		 cluster->node[1].unix_address);
	tool_expect(0, says, "shardctl", words);
}

/* A node is drained while etcd is down. Training goes on, and the chunks move when etcd is back. */
static void test_drain_without_etcd(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	uint64_t late;
	int first;

	(void)state;
	assert_non_null(c);
	begin(c, 1);
	more(c, 5);
	first = leader();
	etcds_kill(&etcd, 0);
	late = pace_by(4); /* Longer than a lease. */
	while (clock_ns() < late)
		more(c, 5);
	drains(first == 0 ? 'c' : 'a', "--no-wait", "drained");
	cluster_wait_log(cluster, first, "event=moving model=elected", 1);
	more(c, 500);
	assert_int_equal(cluster_logged(cluster, first, "event=not_leading"), 0);
	etcds_start(&etcd, 0);
	etcds_ready(&etcd, 0);
	drains(first == 0 ? 'c' : 'a', "--timeout 30", "may be stopped");
	more(c, 5);
	end(c);
	free(c);
}

/* A node that joins hears from the one that it asks where etcd is, and keeps that for its restarts
 * and for those that join by it. */
static void test_joins_with_one_line(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	int node[2];

	(void)state;
	assert_non_null(c);
	begin(c, 1);
	more(c, 5);
	for (int i = 0; i < 2; i++) {
		node[i] = cluster_joiner(cluster, i == 0 ? 1 : node[0], NULL);
		cluster_spawn(cluster, node[i]);
		cluster_ready(cluster, node[i]);
		moved_wait(cluster, 1, node[i], 1, 1000);
	}
	for (int i = 0; i < 2; i++) {
		cluster_kill(cluster, node[i]);
		more(c, 5);
		cluster_spawn(cluster, node[i]);
		cluster_ready(cluster, node[i]);
		moved_wait(cluster, 1, node[i], 1, 1000);
		moved_copied(cluster, 1);
	}
	end(c);
	free(c);
}

/* All nodes lose their memory at once, and etcd has the model's view alone. Each node has its
 * definition, so it comes back from its checkpoint without a trainer that defines it. */
static void test_all_start_cold(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	struct keep keep;
	uint64_t last;

	(void)state;
	assert_non_null(c);
	begin(c, 1);
	more(c, 5);
	last = crew_finish(c);
	keep_init(&keep);
	keep_must_save(cluster->node[0].unix_address, c->name, keep.dir, NULL);
	for (int n = 0; n < 3; n++)
		cluster_kill(cluster, n);
	cluster_up(cluster);
	for (int n = 0; n < 3; n++)
		cluster_says(cluster, n, "\"generation\":2,\"state\":\"waiting\"");
	crew_start(c, last + 4);
	last = crew_finish(c);
	for (int n = 0; n < 3; n++)
		crew_check(c, cluster->node[n].unix_address, last);
	cluster_done(&cluster);
	etcds_end(&etcd);
	keep_free(&keep);
	free(c);
}

/* Nobody coordinates before etcd answers, and `define` says what is missing. */
static void test_no_etcd(void **state)
{
	char words[300];

	(void)state;
	cluster = cluster_start(3, NULL,
				"[cluster]\nmembership = etcd\n"
				"etcd_endpoints = http://127.0.0.1:1\n");
	snprintf(words, sizeof(words), "model pause x --address %s", cluster->node[1].unix_address);
	tool_expect(5,
		    "no node coordinates now: one does when etcd says so "
		    "(http://127.0.0.1:1: ",
		    "shardctl", words);
	cluster_wait_log(cluster, 2, "event=no_coordinator why=\"no node coordinates now", 1);
	cluster_done(&cluster);
}

/* A source that cannot start ends the daemon, as a failure. */
static void test_fails(void **state)
{
	char extra[600] = "[cluster]\nmembership = etcd\netcd_endpoints = http://a";
	int status;

	(void)state;
	for (int i = 0; i < 16; i++)
		strcat(extra, ",http://a");
	cluster = cluster_make(3, NULL, strcat(extra, "\n"));
	cluster_spawn(cluster, 0);
	status = cluster_wait(cluster, 0, 10000);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	assert_int_equal(cluster_logged(cluster, 0, "event=membership_failed"), 1);
	assert_true(cluster_logged(cluster, 0, "more than 16 endpoints") > 0);
	cluster_done(&cluster);
}

static int teardown(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	if (etcd.nr > 0)
		etcds_end(&etcd);
	return 0;
}

static int drill_etcd_teardown(void **state)
{
	if (etcd.nr > 0)
		etcds_end(&etcd);
	return drill_teardown(state);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_leader_dies, teardown),
		cmocka_unit_test_teardown(test_etcd_dies, teardown),
		cmocka_unit_test_setup_teardown(test_trainer_dies_without_etcd, drill_setup,
						drill_etcd_teardown),
		cmocka_unit_test_teardown(test_save_without_etcd, teardown),
		cmocka_unit_test_teardown(test_drain_without_etcd, teardown),
		cmocka_unit_test_teardown(test_joins_with_one_line, teardown),
		cmocka_unit_test_teardown(test_all_start_cold, teardown),
		cmocka_unit_test_teardown(test_no_etcd, teardown),
		cmocka_unit_test_teardown(test_fails, teardown),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
