// SPDX-License-Identifier: Apache-2.0
/* Nodes that join a running cluster ([cluster] join) while a crew trains: they get their share of
 * the chunks, trainers train there, other nodes are lost afterwards, everything starts again, and
 * those that may not join are refused by name. At the end masters, moments and image equal the
 * reference of the crew bit by bit on each node. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/cutter.h"
#include "lib/drill.h"
#include "lib/moved.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "wire/ops.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SGD  "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=2"
#define BEAT "[cluster]\nheartbeat_timeout = 5s\nlost_timeout = 60s\n"

static const char quorum[] =
	"[cluster]\nmembership = quorum\nelection_timeout = 300ms\nheartbeat_timeout = 5s\n"
	"lost_timeout = 60s\n";

static struct cluster *cluster;
static struct crew *crew;

static void more(uint64_t steps)
{
	crew_wait_step(crew, crew_step(crew) + steps);
}

static void begin(const struct moved_plan *p)
{
	moved_begin(&cluster, &crew, p);
}

static void ends(bool copied)
{
	moved_ends(&cluster, &crew, copied);
}

static void wait_share(int at, int node)
{
	moved_wait(cluster, at, node, 1, 1000);
}

static int join(int by, const char *extra)
{
	int node = cluster_joiner(cluster, by, extra);

	cluster_spawn(cluster, node);
	cluster_ready(cluster, node);
	return node;
}

/* --- it works --- */

static void joins(const struct moved_plan *p)
{
	int node;

	begin(p);
	node = join(p->nodes - 1, NULL);
	wait_share(0, node);
	more(5);
	ends(strstr(p->extra, "replicas=1") == NULL);
}

static void test_two_copies(void **state)
{
	(void)state;
	joins(&(struct moved_plan){.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 1});
}

static void test_one_copy(void **state)
{
	(void)state;
	joins(&(struct moved_plan){.nodes = 2, .conf = BEAT, .extra = "replicas=1", .scale = 1});
}

static void test_large_warm(void **state)
{
	(void)state;
	joins(&(struct moved_plan){.nodes = 2,
				   .conf = BEAT,
				   .extra = "replicas=2 chunk_elems=32768",
				   .scale = 12,
				   .warm = true});
}

static void test_stale(void **state)
{
	(void)state;
	joins(&(struct moved_plan){.nodes = 2,
				   .conf = BEAT,
				   .extra = "replicas=2 max_staleness=1",
				   .scale = 4,
				   .warm = true});
}

static void test_elected(void **state)
{
	(void)state;
	joins(&(struct moved_plan){.nodes = 3, .conf = quorum, .extra = "replicas=2", .scale = 1});
}

/* A node that is alone is joined by a second one and a third one, and then has copies there. */
static void test_alone(void **state)
{
	(void)state;
	begin(&(struct moved_plan){.nodes = 1, .conf = BEAT, .extra = "replicas=1", .scale = 1});
	wait_share(0, join(0, NULL));
	wait_share(0, join(1, NULL));
	more(5);
	ends(false);
}

/* --- and then --- */

static void wait_copies(int at)
{
	moved_copied(cluster, at);
}

/* With the new node any other one may be lost for good, and then the next one. */
static void test_takes_over(void **state)
{
	int node;

	(void)state;
	begin(&(struct moved_plan){.nodes = 3, .conf = quorum, .extra = "replicas=2", .scale = 1});
	node = join(1, NULL);
	wait_share(0, node);
	wait_copies(0);
	cluster_kill(cluster, 1);
	more(5);
	ends(false);
}

/* A node that has joined is killed, and starts again with its memory or without it. */
static void test_again(bool warm)
{
	int node;

	begin(&(struct moved_plan){
		.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 1, .warm = warm});
	node = join(1, NULL);
	wait_share(0, node);
	wait_copies(0);
	for (int i = 0; i < 2; i++) {
		cluster_kill(cluster, node);
		more(5);
		cluster_spawn(cluster, node);
		cluster_ready(cluster, node);
		more(5);
		wait_copies(0);
	}
	assert_true(moved_held(cluster, 0, node) > 0);
	ends(true);
}

static void test_again_cold(void **state)
{
	(void)state;
	test_again(false);
}

static void test_again_warm(void **state)
{
	(void)state;
	test_again(true);
}

/* All nodes start again with their memory, and know each other. */
static void test_all_again(void **state)
{
	int node;

	(void)state;
	begin(&(struct moved_plan){
		.nodes = 2, .conf = BEAT, .extra = "replicas=2", .scale = 1, .warm = true});
	for (int i = 0; i < 2; i++)
		crew->member[i].reconnects = true;
	node = join(1, NULL);
	wait_share(0, node);
	wait_copies(0);
	for (int n = 0; n <= node; n++)
		cluster_kill(cluster, n);
	for (int n = 0; n <= node; n++)
		cluster_spawn(cluster, n);
	for (int n = 0; n <= node; n++)
		cluster_ready(cluster, n);
	more(5);
	assert_true(moved_held(cluster, 0, node) > 0);
	ends(true);
}

/* A node that was away while another one joined hears of it when it is back. */
static void test_was_away(void **state)
{
	int node;

	(void)state;
	begin(&(struct moved_plan){
		.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 1, .warm = true});
	cluster_kill(cluster, 2);
	node = join(0, NULL);
	more(3);
	cluster_spawn(cluster, 2);
	cluster_ready(cluster, 2);
	cluster_wait_log(cluster, 2, "event=node_added node=d", 1);
	cluster_wait_log(cluster, 2, "event=link_up peer=d", 1);
	wait_share(0, node);
	wait_copies(0);
	ends(true);
}

/* The state folder of a node that has joined is wiped. It asks again, and has its number. */
static void test_wiped(void **state)
{
	char words[200];
	int node;

	(void)state;
	begin(&(struct moved_plan){.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 1});
	node = join(2, NULL);
	wait_share(0, node);
	wait_copies(0);
	cluster_kill(cluster, node);
	snprintf(words, sizeof(words), "-rf %s", cluster->node[node].state);
	assert_int_equal(tool_run(NULL, "/bin/rm", words), 0);
	cluster_spawn(cluster, node);
	cluster_ready(cluster, node);
	cluster_wait_log(cluster, node, "event=enrolled", 2);
	more(5);
	wait_copies(0);
	ends(true);
}

/* Two nodes ask at the same time, two different nodes. */
static void test_two_at_once(void **state)
{
	int d, e;

	(void)state;
	begin(&(struct moved_plan){.nodes = 3, .conf = quorum, .extra = "replicas=2", .scale = 4});
	d = cluster_joiner(cluster, 1, NULL);
	e = cluster_joiner(cluster, 2, NULL);
	cluster_spawn(cluster, d);
	cluster_spawn(cluster, e);
	cluster_ready(cluster, d);
	cluster_ready(cluster, e);
	wait_share(0, d);
	wait_share(0, e);
	wait_copies(0);
	ends(true);
}

/* The coordinator is killed at many moments while a node joins, and starts again, or another one is
 * elected. The node asks until it is in, once, and so are all others. */
static void killed_meanwhile(const char *conf)
{
	struct moved_plan p = {
		.nodes = 3, .conf = conf, .extra = "replicas=2", .scale = 1, .warm = true};
	char *out;
	int rc;

	begin(&p);
	for (int i = 0; i < 2; i++)
		crew->member[i].reconnects = true;
	for (int i = 0; i < 3; i++) {
		int node = cluster_joiner(cluster, 1, NULL);

		cluster_spawn(cluster, node);
		usleep((useconds_t)(20000 + 37000 * i));
		cluster_kill(cluster, 0);
		cluster_spawn(cluster, 0);
		cluster_ready(cluster, 0);
		cluster_ready(cluster, node);
		more(3);
	}
	for (int n = 0; n < cluster->nodes_nr; n++) {
		moved_elected(cluster, n);
		out = moved_said(cluster, n, "members --json", &rc);
		assert_int_equal(rc, 0);
		for (int i = 0; i < cluster->nodes_nr; i++) {
			char name[24];

			snprintf(name, sizeof(name), "\"name\":\"%c\"", 'a' + i);
			if (strstr(out, name) == NULL)
				fail_msg("node %c does not know node %c: %s", 'a' + n, 'a' + i,
					 out);
		}
		free(out);
	}
	wait_copies(0);
	ends(true);
}

static void test_killed_static(void **state)
{
	(void)state;
	killed_meanwhile(BEAT);
}

static void test_killed_elected(void **state)
{
	(void)state;
	killed_meanwhile(quorum);
}

/* Node d has made room for its chunks, and the coordinator never hears that, so that no view takes
 * the room. Node e joins meanwhile, and the next view names it. Node d knows node e by then: it
 * gave the room back, in favour of the gradients of one more node. */
static void test_room_without_a_view(void **state)
{
	const struct cutter_rule rule = {
		.high = 3, .op = OP_ROOM, .reply = true, .nth = 1, .cut_high = 3, .instead = true};
	const uint64_t by = pace_by(20);
	int d, e;

	(void)state;
	begin(&(struct moved_plan){
		.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 1, .between = true});
	cutter_rule(cluster->cutter, &rule);
	d = join(1, NULL);
	while (!cutter_fired(cluster->cutter)) {
		assert_true(clock_ns() < by);
		usleep(1000);
	}
	e = join(2, NULL);
	cluster_wait_log(cluster, d, "event=node_added node=e", 1);
	cutter_rule(cluster->cutter, NULL);
	wait_share(0, d);
	wait_share(0, e);
	more(5);
	ends(true);
}

/* Chunks were to move away from node c. The coordinator has made room for its part of them, and
 * node b dies before it has, so that nothing moves. A node that joins then does not wait until the
 * coordinator would have given that room back by itself, which is a minute. */
static void test_order_failed(void **state)
{
	uint64_t began;
	int d;

	(void)state;
	begin(&(struct moved_plan){.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 1});
	cluster_signal(cluster, 1, SIGSTOP);
	assert_int_equal(moved_ctl(cluster, 0, "drain c --no-wait"), 0);
	cluster_wait_log(cluster, 0, "event=moving model=moved", 1);
	cluster_kill(cluster, 1);
	cluster_wait_log(cluster, 0, "event=not_moved model=moved", 1);
	began = clock_ns();
	d = join(2, NULL);
	cluster_wait_log(cluster, 0, "event=node_added node=d", 1);
	assert_true(clock_ns() - began < 45 * NS_PER_SEC);
	wait_share(0, d);
	more(5);
	ends(true);
}

/* --- trainers --- */

/* A trainer of the new node brings gradients for chunks of all nodes, which made their memory
 * before there was this node. */
static void test_trainer(void **state)
{
	struct drill_yard *y = *state;
	struct drill *t[2];
	int node;

	y->cluster = cluster_start(2, NULL, BEAT);
	t[0] = drill_joining(y, y->cluster->node[0].unix_address, 0, SGD);
	drill_get(t[0], SHARD_OK);
	DRILL(t[0], SHARD_OK, .op = DRILL_TRAIN, .step = 3);
	node = cluster_joiner(y->cluster, 1, NULL);
	cluster_spawn(y->cluster, node);
	cluster_ready(y->cluster, node);
	cluster_wait_log(y->cluster, 0, "event=link_up peer=c", 1);
	t[1] = drill_joining(y, y->cluster->node[node].unix_address, 1, SGD);
	DRILL_SEND(t[0], .op = DRILL_TRAIN, .step = DRILL_STEPS - 40, .count = 2);
	drill_get(t[1], SHARD_OK);
	drill_get(t[0], SHARD_OK);
	for (int i = 0; i < 2; i++)
		DRILL_SEND(t[i], .op = DRILL_TRAIN, .step = t[0]->last.world.step + 20);
	for (int i = 0; i < 2; i++)
		drill_get(t[i], SHARD_OK);
	drill_replay(t[0], t[0]->last.step.step, 1);
	for (int i = 0; i < 2; i++)
		drill_end(t[i]);
	cluster_stop(y->cluster);
	y->cluster = NULL;
}

/* --- it is refused --- */

/* Starts node `node` with more words, which must end with this sentence. */
static void refused(int node, const char *more_words, int want, const char *part)
{
	char words[400], *out = NULL;
	int rc;

	snprintf(words, sizeof(words), "--config %s %s", cluster->node[node].conf, more_words);
	rc = tool_run(&out, "shardd", words);
	if (rc != want || strstr(out, part) == NULL)
		fail_msg("%d: %s: no \"%s\"", rc, out, part);
	free(out);
}

static void test_refused(void **state)
{
	char taken[64];
	int d;

	(void)state;
	begin(&(struct moved_plan){.nodes = 2, .conf = BEAT, .extra = "replicas=1", .scale = 1});
	d = cluster_joiner(cluster, 1, NULL);
	refused(d, "--set daemon.node=b", 1, "node b is at 127.0.0.1:");
	refused(d, "--set daemon.listen=x#y:29999", 4, "no host has such a name");
	refused(d, "--set cluster.run_id=other", 1,
		"cluster.run_id is test on node b, other on node c");
	refused(d, "--set cluster.step_timeout=77s", 1, "77s on node c: it must be equal");
	snprintf(taken, sizeof(taken), "--set daemon.listen=127.0.0.1:%u", cluster->node[0].port);
	refused(d, taken, 1, "is in use (EADDRINUSE)");
	refused(d, "--set daemon.listen=off", 4, "the other nodes could not connect");
	refused(d, "--set daemon.allow_unauthenticated=no", 4, "there is no [cluster] node_secret");
	cluster->nodes_nr--; /* It never ran. */
	assert_int_equal(cluster_logged(cluster, 0, "event=node_added"), 0);
	more(3);
	ends(false);
}

/* A node may have the name of an option that the list of the cluster has, too. */
static void test_named_like_an_option(void **state)
{
	int d;

	(void)state;
	begin(&(struct moved_plan){.nodes = 2, .conf = BEAT, .extra = "replicas=1", .scale = 1});
	d = cluster_joiner(cluster, 1, NULL);
	setenv("SHARD_NODE", "run_id", 1);
	cluster_spawn(cluster, d);
	unsetenv("SHARD_NODE");
	cluster_ready(cluster, d);
	cluster_wait_log(cluster, 0, "node=run_id", 1);
	more(5);
	ends(false);
}

/* A coordinator that cannot keep the list does not add the node, says so, and adds it later. */
static void test_disk(void **state)
{
	char path[200];
	int d;

	(void)state;
	begin(&(struct moved_plan){.nodes = 2, .conf = BEAT, .extra = "replicas=1", .scale = 1});
	snprintf(path, sizeof(path), "%s/cluster.tmp", cluster->node[0].state);
	assert_int_equal(mkdir(path, 0700), 0);
	d = cluster_joiner(cluster, 1, NULL);
	refused(d, "", 1, "cluster.tmp: cannot be made: Is a directory");
	assert_int_equal(cluster_logged(cluster, 1, "event=node_added"), 0);
	assert_int_equal(rmdir(path), 0);
	cluster_spawn(cluster, d);
	cluster_ready(cluster, d);
	wait_share(0, d);
	ends(false);
}

/* The memory of a node is enough for the model, and not for gradients of one more node. The new
 * node waits, and hears for what. Training goes on, and with room it would be taken in. */
static void test_no_room(void **state)
{
	struct moved_plan p = {.nodes = 2, .conf = BEAT, .extra = "replicas=2", .scale = 12};
	char conf[200], *log, *out;
	unsigned long long bytes = 0;
	int d, rc;

	(void)state;
	begin(&p);
	log = cluster_log(cluster, 1);
	assert_non_null(strstr(log, " event=model model=moved "));
	assert_int_equal(sscanf(strstr(strstr(log, " event=model model=moved "), " bytes="),
				" bytes=%llu", &bytes),
			 1);
	free(log);
	ends(false);
	/* A sixteenth of the budget is for what waits to be sent. */
	snprintf(conf, sizeof(conf), BEAT "[daemon]\nmemory = %lluKiB\n",
		 (bytes + (64 << 10)) * 16 / 15 / 1024);
	p.conf = conf;
	begin(&p);
	d = cluster_joiner(cluster, 1, NULL);
	cluster_spawn(cluster, d);
	cluster_wait_log(cluster, 0, "gets no room for gradients of 3 nodes", 1);
	cluster_wait_log(cluster, d, "event=joining", 1);
	out = moved_said(cluster, 1, "members", &rc);
	assert_int_equal(rc, 0);
	if (strstr(out, "joining") == NULL || strstr(out, "no room for gradients") == NULL)
		fail_msg("%s", out);
	free(out);
	more(5);
	assert_int_equal(cluster_logged(cluster, 0, "event=node_added"), 0);
	cluster_kill(cluster, d);
	ends(true);
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
		cmocka_unit_test_teardown(test_two_copies, cleanup),
		cmocka_unit_test_teardown(test_one_copy, cleanup),
		cmocka_unit_test_teardown(test_large_warm, cleanup),
		cmocka_unit_test_teardown(test_stale, cleanup),
		cmocka_unit_test_teardown(test_elected, cleanup),
		cmocka_unit_test_teardown(test_alone, cleanup),
		cmocka_unit_test_teardown(test_takes_over, cleanup),
		cmocka_unit_test_teardown(test_again_cold, cleanup),
		cmocka_unit_test_teardown(test_again_warm, cleanup),
		cmocka_unit_test_teardown(test_all_again, cleanup),
		cmocka_unit_test_teardown(test_was_away, cleanup),
		cmocka_unit_test_teardown(test_wiped, cleanup),
		cmocka_unit_test_teardown(test_two_at_once, cleanup),
		cmocka_unit_test_teardown(test_killed_static, cleanup),
		cmocka_unit_test_teardown(test_killed_elected, cleanup),
		cmocka_unit_test_teardown(test_room_without_a_view, cleanup),
		cmocka_unit_test_teardown(test_order_failed, cleanup),
		cmocka_unit_test_setup_teardown(test_trainer, drill_setup, drill_teardown),
		cmocka_unit_test_teardown(test_refused, cleanup),
		cmocka_unit_test_teardown(test_named_like_an_option, cleanup),
		cmocka_unit_test_teardown(test_disk, cleanup),
		cmocka_unit_test_teardown(test_no_room, cleanup),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
