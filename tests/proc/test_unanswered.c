// SPDX-License-Identifier: Apache-2.0
/* Tests requests that are under way on several nodes when the coordinator is killed or a link
 * falls: a drop, a seal and a definition. Each is stopped at one certain point. Either the
 * coordinator's disk stands still (the threads that write to it are held), or a link is cut behind
 * a certain frame. Afterwards the model is either as before or as requested, every waiting caller
 * hears of it, and the model can be used. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/cutter.h"
#include "lib/drill.h"
#include "lib/hold.h"
#include "lib/pace.h"
#include "wire/ops.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* The time after which a call gives up is longer than the test waits for its answer. */
#define SGD  "optimizer=sgd lr=1 chunk_elems=1024 timeout=120s"
#define BEAT "[cluster]\nheartbeat_timeout = 30s\n"

static const char *at(const struct drill_yard *y, int node)
{
	return y->cluster->node[node].unix_address;
}

static struct drill_cmd definition(void)
{
	return (struct drill_cmd){.op = DRILL_DEFINE, .text = SGD};
}

static void start(struct drill_yard *y)
{
	for (int n = 0; n < y->cluster->nodes_nr; n++)
		cluster_spawn(y->cluster, n);
	for (int n = 0; n < y->cluster->nodes_nr; n++)
		cluster_ready(y->cluster, n);
	for (int n = 1; n < y->cluster->nodes_nr; n++) {
		char up[40];

		snprintf(up, sizeof(up), "event=link_up peer=%s ", y->cluster->node[n].name);
		cluster_wait_log(y->cluster, 0, up, 1);
	}
}

static void await_frame(struct cutter *k)
{
	uint64_t until = pace_by(20);

	while (!cutter_fired(k)) {
		if (clock_ns() > until)
			fail_msg("the frame was never sent");
		usleep(1000);
	}
}

static void kill_held(struct drill_yard *y, int node, struct hold *h)
{
	hold_kill(h, y->cluster->node[node].pid);
	(void)cluster_wait(y->cluster, node, 10000);
}

static void start_again(struct drill_yard *y, int node)
{
	cluster_spawn(y->cluster, node);
	cluster_ready(y->cluster, node);
}

/* --- a drop --- */

static shard_client *connected(const char *address)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *c;

	o.address = address;
	CHECK(shard_connect(&c, &o) == SHARD_OK);
	return c;
}

static int sets(void *arg)
{
	shard_client *c = connected(arg);
	shard_model *m;

	CHECK(shard_attach(c, "m", &m) == SHARD_OK);
	return shard_set(m, "clip", "1") == SHARD_OK; /* Its daemon dies before it answers. */
}

static int drops(void *arg)
{
	shard_client *c = connected(arg);

	return shard_drop(c, "m", 0) == SHARD_OK; /* Its daemon dies before it answers. */
}

/* A drop is requested while the coordinator's file of the model is being written. As long as that
 * file is there, the next start of the coordinator finds the model and must find all of it. So no
 * other node may have given up its part. */
static void dropped_while_its_file_is_written(void **state)
{
	struct cutter_rule request = {
		.low = 0, .high = 1, .op = OP_DEFINE, .nth = 1, .cut_high = 1};
	struct drill_yard *y = *state;
	struct drill_truth truth;
	char address[140], file[160];
	pid_t setter, dropper;
	struct cutter *k;
	struct drill *t;
	struct hold h;

	y->cluster = cluster_make(2, NULL, BEAT);
	cluster_warm(y->cluster, CLUSTER_TMPFS);
	k = cutter_start(y->cluster);
	start(y);
	snprintf(address, sizeof(address), "%s", at(y, 0));
	snprintf(file, sizeof(file), "%s/model-00000001", y->cluster->node[0].state);
	t = drill_new(y, at(y, 1));
	drill_define(t, SGD);
	cluster_says(y->cluster, 0, "\"state\":\"waiting\"");
	hold_disk(&h, y->cluster->node[0].pid);
	setter = proc_fork(sets, address);
	cluster_says(y->cluster, 0, "\"state\":\"recovering\""); /* A view is being written. */
	dropper = proc_fork(drops, address);
	cluster_wait_log(y->cluster, 0, "event=drop model=m ", 1);
	/* A link that comes up compares what both ends have. Node b must not be told of the drop
	 * then, either. */
	DRILL(t, SHARD_OK, .op = DRILL_DETACH);
	cutter_rule(k, &request);
	drill_do(t, definition());
	await_frame(k);
	cluster_wait_log(y->cluster, 1, "event=link_up peer=a ", 2);
	cluster_wait_log(y->cluster, 0, "event=link_up peer=b ", 2);
	cluster_says(y->cluster, 1, "{");
	cluster_says(y->cluster, 0, "{"); /* Everything that there was to send is sent. */
	assert_int_equal(access(file, F_OK), 0);
	kill_held(y, 0, &h);
	proc_expect_exit(setter, 0, 20000);
	proc_expect_exit(dropper, 0, 20000);
	start_again(y, 0);
	assert_int_equal(drill_expect(t, SHARD_OK, definition())->created, 0);
	drill_truth_init(&truth);
	drill_check(t, &truth, 0);
	assert_int_equal(cluster_logged(y->cluster, 0, "event=lost"), 0);
	drill_end(t);
	cluster_done(&y->cluster);
	cutter_stop(&k);
}

/* --- a seal --- */

/* The coordinator has accepted a seal, and dies before the view with the sealed model is on its
 * disk. */
static void sealed_and_not_written(void **state)
{
	struct cutter_rule answer = {
		.low = 0, .high = 1, .op = OP_SEAL, .reply = true, .nth = 1, .cut_high = 1};
	struct drill_yard *y = *state;
	struct drill *t;
	struct cutter *k;
	struct hold h;

	y->cluster = cluster_make(2, NULL, BEAT);
	k = cutter_start(y->cluster);
	start(y);
	t = drill_new(y, at(y, 1));
	assert_int_equal(drill_expect(t, SHARD_OK, definition())->created, 1);
	DRILL(t, SHARD_OK, .op = DRILL_WRITE);
	cluster_wait_log(y->cluster, 0, "event=view model=m ", 1);
	cluster_says(y->cluster, 0, "\"state\":\"unsealed\"");
	hold_disk(&h, y->cluster->node[0].pid);
	cutter_rule(k, &answer);
	DRILL_SEND(t, .op = DRILL_SEAL);
	await_frame(k); /* Node b reads the answer and then the end of the link. */
	kill_held(y, 0, &h);
	drill_get(t, SHARD_UNREACHABLE); /* Not only after timeout=120s. */
	drill_text(t->last.error, "node a");
	cutter_rule(k, NULL);
	start_again(y, 0);
	/* Only then may the model be defined again. */
	cluster_wait_log(y->cluster, 1, "event=lost model=m ", 1);
	drill_end(t);
	t = drill_new(y, at(y, 1));
	drill_define(t, SGD);
	DRILL(t, SHARD_OK, .op = DRILL_JOIN);
	DRILL(t, SHARD_OK, .op = DRILL_TRAIN, .step = 2);
	drill_replay(t, 2, 1);
	drill_end(t);
	cluster_done(&y->cluster);
	cutter_stop(&k);
}

/* --- a definition --- */

/* The trainer's node loses its link to the coordinator while node c has not answered yet, so the
 * trainer is told that its definition failed. A moment later the model exists and has no writer.
 * The same trainer defines again and is the one that writes it. */
static void defined_after_the_link_fell(void **state)
{
	struct cutter_rule answer = {
		.low = 0, .high = 1, .op = OP_MODEL, .reply = true, .nth = 1, .cut_high = 1};
	struct drill_yard *y = *state;
	struct cutter *k;
	struct drill *t;

	y->cluster = cluster_make(3, NULL, BEAT);
	k = cutter_start(y->cluster);
	start(y);
	cluster_wait_log(y->cluster, 1, "event=link_up peer=c ", 1);
	t = drill_new(y, at(y, 1));
	cluster_signal(y->cluster, 2, SIGSTOP);
	cutter_rule(k, &answer);
	drill_send(t, definition());
	await_frame(k);
	drill_get(t, SHARD_UNREACHABLE);
	drill_text(t->last.error, "node a");
	cluster_wait_log(y->cluster, 0, "event=link_up peer=b ", 2);
	cluster_wait_log(y->cluster, 1, "event=link_up peer=a ", 2);
	cluster_signal(y->cluster, 2, SIGCONT);
	cluster_wait_log(y->cluster, 0, "event=model model=m ", 1);
	assert_int_equal(drill_expect(t, SHARD_OK, definition())->created, 1);
	DRILL(t, SHARD_OK, .op = DRILL_WRITE);
	DRILL(t, SHARD_OK, .op = DRILL_SEAL);
	DRILL(t, SHARD_OK, .op = DRILL_JOIN);
	DRILL(t, SHARD_OK, .op = DRILL_TRAIN, .step = 2);
	drill_replay(t, 2, 1);
	drill_end(t);
	cluster_done(&y->cluster);
	cutter_stop(&k);
}

/* --- memory on a node that stands still --- */

/* Node b stands still. The request is answered when the link has been silent for heartbeat_timeout,
 * and the model is as before when node b goes on. */
static void asked_of_a_stopped_node(void **state)
{
	struct drill_yard *y = *state;
	struct shard_model *m;
	shard_ticket ticket;
	shard_client *c;
	struct drill *t;

	y->cluster =
		cluster_make(2, NULL, "[cluster]\nheartbeat_timeout = 1s\nlost_timeout = 60s\n");
	start(y);
	t = drill_new(y, at(y, 0));
	drill_expect(t, SHARD_OK, definition());
	DRILL(t, SHARD_OK, .op = DRILL_WRITE);
	DRILL(t, SHARD_OK, .op = DRILL_SEAL);
	DRILL(t, SHARD_OK, .op = DRILL_READ, .kind = SHARD_MASTER);
	c = connected(at(y, 0));
	CHECK(shard_attach(c, "m", &m) == SHARD_OK);
	cluster_signal(y->cluster, 1, SIGSTOP);
	DRILL_SEND(t, .op = DRILL_READ, .kind = SHARD_MASTER);
	if (shard_save(m, y->cluster->dir, "t", &ticket) != SHARD_OK ||
	    shard_wait(m, ticket, pace_ms(20000)) != SHARD_UNREACHABLE)
		fail_msg("save: %s", shard_error());
	drill_text(shard_error(), "node b");
	drill_get(t, SHARD_UNREACHABLE);
	drill_text(t->last.error, "node b is down: "); /* It was asked for again. */
	cluster_signal(y->cluster, 1, SIGCONT);
	cluster_wait_log(y->cluster, 0, "event=link_up peer=b ", 2);
	DRILL(t, SHARD_OK, .op = DRILL_READ, .kind = SHARD_MASTER);
	DRILL(t, SHARD_OK, .op = DRILL_JOIN);
	DRILL(t, SHARD_OK, .op = DRILL_TRAIN, .step = 2);
	drill_replay(t, 2, 1);
	shard_disconnect(&c);
	drill_end(t);
	cluster_done(&y->cluster);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, drill_setup, drill_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(dropped_while_its_file_is_written), T(sealed_and_not_written),
		T(defined_after_the_link_fell), T(asked_of_a_stopped_node)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
