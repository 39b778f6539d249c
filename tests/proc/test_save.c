// SPDX-License-Identifier: Apache-2.0
/* Tests saves while trainers train. The files hold the reference's state of that step bit by bit,
 * and training goes on as if nothing had been saved. There are two saves at once, saves that the
 * daemon makes by itself, a full disk, a killed coordinator, and a node that is lost meanwhile. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/yard.h"

#include <signal.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BEAT "[cluster]\nheartbeat_timeout = 1s\n"

static void crew_of(struct yard *y, const int *per)
{
	crew_init(&y->crew, "m");
	yard_add(&y->crew, y->cluster, per, true);
}

/* Restores the checkpoint on another cluster and compares it with the reference of its step, bit by
 * bit. */
static void check_saved(struct yard *y, const char *dir, uint64_t step)
{
	y->next = y->crew;
	y->other = cluster_start(1, NULL, NULL);
	keep_must_restore(y->other->node[0].unix_address, dir, NULL, NULL);
	crew_check(&y->next, y->other->node[0].unix_address, step);
	cluster_done(&y->other);
}

static void saves_while_training(void **state)
{
	struct yard *y = *state;
	uint64_t step, last;
	char tag[65];

	y->cluster = cluster_start(2, NULL, BEAT);
	crew_of(y, (const int[]){2, 1});
	crew_start(&y->crew, UINT64_MAX);
	crew_wait_step(&y->crew, 5);
	/* The save is requested at a node that does not coordinate. */
	keep_must_save(y->cluster->node[1].unix_address, "m", y->keep.dir, NULL);
	step = keep_newest(y->keep.dir, tag);
	assert_true(step >= 4);
	crew_wait_step(&y->crew, step + 5);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, "mine");
	assert_int_equal(keep_count(y->keep.dir), 2);
	last = crew_finish(&y->crew);
	assert_true(keep_newest(y->keep.dir, tag) > step);
	assert_string_equal(tag, "mine");
	check_saved(y, y->keep.dir, keep_newest(y->keep.dir, tag));
	crew_check(&y->crew, y->cluster->node[0].unix_address, last);
	cluster_done(&y->cluster);
}

static void saves_by_itself(void **state)
{
	struct yard *y = *state;
	char model[256], dir[128], tag[65];
	uint64_t last;

	snprintf(model, sizeof(model),
		 "checkpoint_dir = %s\ncheckpoint_every = 5\nkeep_latest = 2\n", y->keep.dir);
	snprintf(dir, sizeof(dir), "%s/m", y->keep.dir);
	y->cluster = cluster_start(2, model, BEAT);
	crew_of(y, (const int[]){1, 1});
	crew_start(&y->crew, 60);
	last = crew_finish(&y->crew);
	crew_check(&y->crew, y->cluster->node[0].unix_address, last);
	/* The first save may still be under way. */
	for (int i = 0; i < 500 && keep_count(dir) == 0; i++)
		usleep(20000);
	/* This also ends a save that is being written or removes an older one. */
	cluster_done(&y->cluster);
	assert_int_equal(keep_newest(dir, tag) % 5, 0);
	assert_true(keep_count(dir) >= 1 && keep_count(dir) <= 2);
}

static void two_at_once(void **state)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct yard *y = *state;
	uint32_t ok = 0, busy = 0;
	shard_client *client;
	shard_ticket t[8];
	shard_model *m;

	y->cluster = cluster_start(2, NULL, BEAT);
	crew_of(y, (const int[]){1, 1});
	crew_start(&y->crew, UINT64_MAX);
	crew_wait_step(&y->crew, 2);
	o.address = y->cluster->node[0].unix_address;
	MUST(shard_connect(&client, &o));
	MUST(shard_attach(client, "m", &m));
	for (int i = 0; i < 8; i++)
		MUST(shard_save(m, y->keep.dir, NULL, &t[i]));
	for (int i = 0; i < 8; i++) {
		enum shard_status rc = shard_wait(m, t[i], pace_ms(20000));

		ok += rc == SHARD_OK;
		busy += rc == SHARD_BUSY;
		if (rc == SHARD_BUSY && strstr(shard_error(), "is being saved to") == NULL)
			fail_msg("%s", shard_error());
	}
	assert_int_equal(ok + busy, 8);
	assert_true(ok >= 1 && busy >= 1);
	shard_disconnect(&client);
	crew_finish(&y->crew);
	cluster_done(&y->cluster);
}

/* The file system has 160 KiB, and the model needs more. */
static void full_disk(void **state)
{
	struct yard *y = *state;
	char small[128], tag[65];
	enum shard_status rc;
	uint64_t step, last;

	snprintf(small, sizeof(small), "%s/small", y->keep.dir);
	if (mkdir(small, 0755) != 0 || mount("none", small, "tmpfs", 0, "size=160k") != 0)
		skip();
	y->cluster = cluster_start(2, NULL, BEAT);
	crew_of(y, (const int[]){1, 1});
	crew_start(&y->crew, UINT64_MAX);
	crew_wait_step(&y->crew, 3);
	keep_must_save(y->cluster->node[0].unix_address, "m", small, NULL);
	step = keep_newest(small, tag);
	crew_wait_step(&y->crew, step + 3);
	rc = keep_save(y->cluster->node[0].unix_address, "m", small, NULL);
	assert_int_equal(rc, SHARD_SYSTEM);
	assert_int_equal(errno, ENOSPC);
	if (strstr(shard_error(), small) == NULL || strstr(shard_error(), "No space left") == NULL)
		fail_msg("%s", shard_error());
	crew_wait_step(&y->crew, step + 10); /* Training goes on. */
	last = crew_finish(&y->crew);
	assert_int_equal(keep_count(small), 1);
	assert_int_equal(keep_newest(small, tag), step);
	check_saved(y, small, step);
	crew_check(&y->crew, y->cluster->node[0].unix_address, last);
	cluster_done(&y->cluster);
	umount(small);
}

/* A node that is stopped in the middle of a save keeps it from ending. Then the node is killed. */
static void a_node_is_lost(void **state)
{
	struct yard *y = *state;
	struct yard_save a;

	y->cluster = cluster_start(2, NULL, BEAT);
	crew_of(y, (const int[]){2, 0});
	crew_start(&y->crew, 20);
	crew_finish(&y->crew);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, "first");
	yard_save_stuck(y, NULL, &a);
	cluster_signal(y->cluster, 1, SIGKILL);
	cluster_wait(y->cluster, 1, 5000);
	yard_save_failed(&a);
	if (strstr(a.text, "node b") == NULL)
		fail_msg("%s", a.text);
	assert_int_equal(keep_count(y->keep.dir), 1);
	cluster_done(&y->cluster);
}

static uint32_t unfinished(const char *dir)
{
	uint32_t nr = 0;
	glob_t found;
	char text[160];

	snprintf(text, sizeof(text), "%s/.*.tmp/.model", dir);
	if (glob(text, 0, NULL, &found) == 0) {
		nr = (uint32_t)found.gl_pathc;
		globfree(&found);
	}
	return nr;
}

/* The coordinator is killed with kill -9. Nothing that looks complete is left, and the next save
 * works, which has another tag, and removes what is left. */
static void the_coordinator_is_killed(void **state)
{
	struct yard *y = *state;
	struct yard_save a;
	uint64_t last;

	y->cluster = cluster_start(2, NULL, BEAT);
	crew_of(y, (const int[]){2, 0});
	crew_start(&y->crew, 20);
	last = crew_finish(&y->crew);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, "first");
	yard_save_stuck(y, NULL, &a);
	for (uint64_t by = pace_by(20); unfinished(y->keep.dir) == 0;) {
		if (clock_ns() > by)
			fail_msg("the save has not begun");
		usleep(1000);
	}
	cluster_signal(y->cluster, 0, SIGKILL);
	cluster_wait(y->cluster, 0, 5000);
	assert_int_equal(unfinished(y->keep.dir), 1);
	cluster_signal(y->cluster, 1, SIGCONT);
	yard_save_failed(&a);
	assert_int_equal(keep_count(y->keep.dir), 1);
	cluster_spawn(y->cluster, 0);
	cluster_ready(y->cluster, 0);
	/* Its chunks are gone, so the model is lost, and comes back from "first" by itself. */
	for (int i = 0; i < 200; i++) {
		if (keep_save(y->cluster->node[0].unix_address, "m", y->keep.dir, "second") ==
		    SHARD_OK)
			break;
		usleep(50000);
	}
	assert_int_equal(keep_count(y->keep.dir), 2);
	assert_int_equal(unfinished(y->keep.dir), 0);
	crew_check(&y->crew, y->cluster->node[0].unix_address, last);
	cluster_done(&y->cluster);
}

static void bad_arguments(void **state)
{
	struct yard *y = *state;
	const char *at;

	y->cluster = cluster_start(1, NULL, BEAT);
	at = y->cluster->node[0].unix_address;
	crew_of(y, (const int[]){1, 0});
	crew_start(&y->crew, 3);
	crew_finish(&y->crew);
	assert_int_equal(keep_save(at, "m", NULL, NULL), SHARD_BAD_ARG);
	assert_non_null(strstr(shard_error(), "checkpoint_dir"));
	assert_int_equal(keep_save(at, "m", "here", NULL), SHARD_BAD_ARG);
	assert_non_null(strstr(shard_error(), "absolute"));
	assert_int_equal(keep_save(at, "m", y->keep.dir, ".x/y"), SHARD_BAD_ARG);
	assert_int_equal(keep_save(at, "m", "/proc/nowhere", NULL), SHARD_SYSTEM);
	assert_non_null(strstr(shard_error(), "/proc/nowhere"));
	keep_must_save(at, "m", y->keep.dir, NULL);
	cluster_done(&y->cluster);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(saves_while_training, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(saves_by_itself, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(two_at_once, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(full_disk, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(a_node_is_lost, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(the_coordinator_is_killed, yard_setup,
						yard_teardown),
		cmocka_unit_test_setup_teardown(bad_arguments, yard_setup, yard_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
