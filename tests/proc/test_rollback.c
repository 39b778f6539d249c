// SPDX-License-Identifier: Apache-2.0
/* A model that loses weights comes back from its newest checkpoint by itself. Trainers stay, get
 * ROLLED_BACK, and their further steps equal the reference. Tests a killed node, a restart of all
 * nodes, a damaged newest checkpoint, no good checkpoint, weights that are given up on request, and
 * a model that is dropped while it is saved. */
#include "base/check.h"
#include "base/clock.h"
#include "client/ckpt.h"
#include "lib/pace.h"
#include "lib/yard.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BEAT "[cluster]\nheartbeat_timeout = 1s\n"

/* Starts trainers that train until finish(). Over TCP they do not connect again. */
static void begin(struct yard *y, int nodes, const int *per, bool tcp)
{
	y->cluster = cluster_start(nodes, NULL, BEAT);
	crew_init(&y->crew, "m");
	y->crew.extra = y->extra;
	yard_add(&y->crew, y->cluster, per, !tcp);
	for (uint32_t i = 0; tcp && i < y->crew.nr; i++)
		y->crew.member[i].address = y->cluster->node[y->crew.member[i].node].tcp_address;
	crew_start(&y->crew, UINT64_MAX);
	crew_wait_step(&y->crew, 4);
}

/* Makes five steps. Afterwards nobody trains. */
static void five_steps(struct yard *y, const char *extra)
{
	y->cluster = cluster_start(2, NULL, extra);
	crew_init(&y->crew, "m");
	yard_train(&y->crew, y->cluster, (const int[]){1, 0}, 5);
}

static void kill_and_start(struct yard *y, int node)
{
	cluster_signal(y->cluster, node, SIGKILL);
	cluster_wait(y->cluster, node, 5000);
	cluster_spawn(y->cluster, node);
	cluster_ready(y->cluster, node);
}

static void wait_rolled_back(struct yard *y, uint32_t rank, uint32_t times)
{
	uint64_t until = pace_by(15);

	while (atomic_load(&y->crew.member[rank].rolled_back) < times) {
		if (clock_ns() > until)
			fail_msg("rank %u was told ROLLED_BACK %u times, not %u", rank,
				 atomic_load(&y->crew.member[rank].rolled_back), times);
		usleep(2000);
	}
}

static uint64_t saved_step(struct yard *y)
{
	char tag[65];

	return keep_newest(y->keep.dir, tag);
}

/* Checks the weights some steps after all trainers are back. */
static void finish(struct yard *y)
{
	uint64_t last;

	crew_wait_step(&y->crew, saved_step(y) + 8);
	last = crew_finish(&y->crew);
	crew_check(&y->crew, y->cluster->node[0].unix_address, last);
	cluster_done(&y->cluster);
}

/* Begins, saves by way of node `by`, and trains on. */
static void begin_saved(struct yard *y, int nodes, const int *per, bool tcp, int by)
{
	begin(y, nodes, per, tcp);
	keep_must_save(y->cluster->node[by].unix_address, "m", y->keep.dir, NULL);
	crew_wait_step(&y->crew, saved_step(y) + 4);
}

/* Kills one of two nodes. `told` is the first of the two ranks that must get ROLLED_BACK. */
static void killed(struct yard *y, const int *per, bool tcp, int by, int node, uint32_t told)
{
	begin_saved(y, 2, per, tcp, by);
	kill_and_start(y, node);
	wait_rolled_back(y, told, 1);
	wait_rolled_back(y, told + 1, 1);
	finish(y);
}

static void a_node_is_killed(void **state)
{
	killed(*state, (const int[]){2, 1}, false, 0, 1, 0);
}

/* What comes back is not the image that the codes went by. */
static void with_codes(void **state)
{
	struct yard *y = *state;

	y->extra = "image_codec=int4";
	killed(*state, (const int[]){2, 1}, false, 0, 1, 0);
}

static void the_coordinator_is_killed(void **state)
{
	killed(*state, (const int[]){1, 2}, false, 1, 0, 1);
}

/* Over TCP the whole image is sent to the trainers again. */
static void trainers_over_tcp(void **state)
{
	killed(*state, (const int[]){2, 0}, true, 0, 1, 0);
}

/* Restarts all nodes at once. The trainers connect again and find the model there. */
static void all_are_restarted(void **state)
{
	struct yard *y = *state;

	begin_saved(y, 3, (const int[]){1, 1, 0}, false, 0);
	for (int n = 0; n < 3; n++)
		cluster_signal(y->cluster, n, SIGKILL);
	for (int n = 0; n < 3; n++)
		cluster_wait(y->cluster, n, 5000);
	for (int n = 0; n < 3; n++)
		cluster_spawn(y->cluster, n);
	for (int n = 0; n < 3; n++)
		cluster_ready(y->cluster, n);
	finish(y);
}

static void killed_while_it_comes_back(void **state)
{
	struct yard *y = *state;

	begin_saved(y, 3, (const int[]){2, 0, 0}, false, 0);
	for (int n = 2; n > 0; n--)
		kill_and_start(y, n);
	kill_and_start(y, 2);
	wait_rolled_back(y, 0, 1);
	finish(y);
}

static void a_damaged_one(void **state)
{
	struct yard *y = *state;
	uint64_t good;
	char tag[65];

	begin(y, 2, (const int[]){2, 0}, false);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	good = saved_step(y);
	crew_wait_step(&y->crew, good + 3);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	assert_true(keep_newest(y->keep.dir, tag) > good);
	keep_flip(y->keep.dir, tag, "node-b.safetensors", -7);
	kill_and_start(y, 1);
	wait_rolled_back(y, 0, 1);
	{
		char *log = cluster_log(y->cluster, 0);

		assert_non_null(strstr(log, "event=checkpoint_bad"));
		free(log);
	}
	finish(y);
}

static void none_is_good(void **state)
{
	struct yard *y = *state;
	shard_client *c;
	shard_model *m;
	struct shard_spec s;
	uint64_t until = pace_by(15);
	char tag[65], settings[256];
	enum shard_status rc;
	int created = 0;

	five_steps(y, BEAT);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	keep_newest(y->keep.dir, tag);
	keep_flip(y->keep.dir, tag, "node-b.safetensors", -7);
	kill_and_start(y, 1);
	c = crew_connect(y->cluster->node[0].unix_address);
	crew_spec(&s, "m", settings, sizeof(settings), 1);
	while ((rc = shard_define(c, &s, &m, &created)) == SHARD_OK && clock_ns() < until) {
		assert_int_equal(created, 0); /* Nobody becomes its writer by accident. */
		/* Tries again at once, because the first refusal comes while the view is being
		 * written. */
		shard_detach(&m);
	}
	crew_must(rc, SHARD_LOST, "a model without a good checkpoint");
	assert_non_null(strstr(shard_error(), "no checkpoint of it is good"));
	assert_non_null(strstr(shard_error(), "`shardctl model drop m`"));
	shard_disconnect(&c);
	cluster_done(&y->cluster);
}

/* A model that was never saved stays lost, as always. */
static void nothing_saved(void **state)
{
	struct yard *y = *state;
	char *log;

	five_steps(y, BEAT);
	kill_and_start(y, 1);
	for (int i = 0; i < 300; i++) {
		log = cluster_log(y->cluster, 0);
		if (strstr(log, "event=lost") != NULL && strstr(log, "restoring=0") != NULL)
			break;
		free(log);
		log = NULL;
		usleep(20000);
	}
	assert_non_null(log);
	free(log);
	cluster_done(&y->cluster);
}

static enum shard_status ask_restore(const char *at, const struct yard *y, bool force)
{
	struct ckpt_ask ask = {
		.dir = y->keep.dir, .name = "m", .force = force, .timeout_ms = 15000};
	struct ckpt_answer answer;
	shard_client *c = crew_connect(at);
	enum shard_status rc = ckpt_restore(c, &ask, &answer, NULL);

	shard_disconnect(&c);
	return rc;
}

static void given_up_by_force(void **state)
{
	struct yard *y = *state;
	const char *at;

	begin_saved(y, 2, (const int[]){2, 1}, false, 1);
	at = y->cluster->node[1].unix_address;
	assert_int_equal(ask_restore(at, y, false), SHARD_EXISTS);
	/* A checkpoint with damaged data must not replace the weights. */
	keep_must_save(at, "m", y->keep.dir, "later");
	keep_flip(y->keep.dir, "later", "node-b.safetensors", -5);
	if (ask_restore(at, y, true) != SHARD_PROTOCOL ||
	    strstr(shard_error(), "nothing has changed") == NULL ||
	    strstr(shard_error(), "the newest complete checkpoint") == NULL)
		fail_msg("%s", shard_error());
	for (uint32_t r = 0; r < 3; r++)
		assert_int_equal(atomic_load(&y->crew.member[r].rolled_back), 0);
	/* The checkpoint is good again. */
	keep_flip(y->keep.dir, "later", "node-b.safetensors", -5);
	if (ask_restore(at, y, true) != SHARD_OK)
		fail_msg("%s", shard_error());
	for (uint32_t r = 0; r < 3; r++)
		wait_rolled_back(y, r, 1);
	finish(y);
}

/* Node b stands still, so the save does not end. */
static void dropped_while_it_is_saved(void **state)
{
	struct yard *y = *state;
	struct yard_save a;
	shard_client *c;

	five_steps(y, "[cluster]\nheartbeat_timeout = 3s\n");
	/* No step is in hand any more. */
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	yard_save_stuck(y, "second", &a);
	c = crew_connect(y->cluster->node[0].unix_address);
	/* Node b gives its memory back later. */
	if (shard_drop(c, "m", true) != SHARD_OK && strstr(shard_error(), "dropped") == NULL)
		fail_msg("%s", shard_error());
	yard_save_failed(&a);
	if (strstr(a.text, "dropped") == NULL)
		fail_msg("%s", a.text);
	assert_int_equal(keep_count(y->keep.dir), 1);
	shard_disconnect(&c);
	cluster_signal(y->cluster, 1, SIGCONT);
	cluster_done(&y->cluster);
}

/* The model waits for node b, which is away, when an operator drops it. After that nobody tries to
 * bring it back. */
static void dropped_while_it_comes_back(void **state)
{
	struct yard *y = *state;
	shard_client *c;
	shard_model *m;

	five_steps(y, BEAT "lost_timeout = 1s\n");
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	cluster_signal(y->cluster, 1, SIGKILL);
	cluster_wait(y->cluster, 1, 5000);
	cluster_wait_log(y->cluster, 0, "event=restore_waits", 1);
	c = crew_connect(y->cluster->node[0].unix_address);
	if (shard_drop(c, "m", true) != SHARD_OK)
		fail_msg("%s", shard_error());
	assert_int_equal(shard_attach(c, "m", &m), SHARD_NOT_FOUND);
	shard_disconnect(&c);
	assert_int_equal(keep_count(y->keep.dir), 1);
	cluster_spawn(y->cluster, 1);
	cluster_ready(y->cluster, 1);
	cluster_done(&y->cluster);
}

/* SIGTERM comes in the middle of a save. The daemon ends as it should, and nothing that looks
 * complete is left. */
static void stopped_while_it_is_saved(void **state)
{
	struct yard *y = *state;
	struct yard_save a;

	five_steps(y, "[cluster]\nheartbeat_timeout = 5s\n");
	yard_save_stuck(y, "second", &a);
	cluster_signal(y->cluster, 0, SIGTERM);
	assert_int_equal(cluster_wait(y->cluster, 0, 10000), 0);
	yard_save_failed(&a);
	assert_int_equal(keep_count(y->keep.dir), 0);
	cluster_signal(y->cluster, 1, SIGCONT);
	cluster_done(&y->cluster);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_node_is_killed, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(with_codes, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(the_coordinator_is_killed, yard_setup,
						yard_teardown),
		cmocka_unit_test_setup_teardown(all_are_restarted, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(killed_while_it_comes_back, yard_setup,
						yard_teardown),
		cmocka_unit_test_setup_teardown(a_damaged_one, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(none_is_good, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(nothing_saved, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(given_up_by_force, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(trainers_over_tcp, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(dropped_while_it_is_saved, yard_setup,
						yard_teardown),
		cmocka_unit_test_setup_teardown(dropped_while_it_comes_back, yard_setup,
						yard_teardown),
		cmocka_unit_test_setup_teardown(stopped_while_it_is_saved, yard_setup,
						yard_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
