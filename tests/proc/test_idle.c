// SPDX-License-Identifier: Apache-2.0
// check: alone
/* Tests what waiting costs. There are two daemons with a model and four joined trainers, three of
 * them in a call that waits for the fourth. All six processes together may use at most 50 ms of
 * processor time in 10 s. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/drill.h"
#include "lib/pace.h"

#include <poll.h>
#include <time.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SETTINGS "optimizer=adamw chunk_elems=1024 timeout=60s min_world=4 max_world=4"

/* Returns the time of all threads of a process. */
static uint64_t cpu_ns(pid_t pid)
{
	struct timespec t;
	clockid_t clock;

	CHECK(clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &t) == 0);
	return (uint64_t)t.tv_sec * NS_PER_SEC + (uint64_t)t.tv_nsec;
}

static void test_idle(void **state)
{
	struct drill_yard *y = *state;
	uint64_t before = 0, after = 0;
	struct drill *t[4];
	pid_t pid[6];

	y->cluster = cluster_start(2, NULL, NULL);
	for (int i = 0; i < 4; i++) /* One of them connects over TCP. */
		t[i] = drill_joining(y,
				     i == 3 ? y->cluster->node[1].tcp_address
					    : y->cluster->node[i / 2].unix_address,
				     i, SETTINGS);
	for (int i = 0; i < 4; i++)
		pid[i] = t[i]->pid;
	for (int i = 0; i < 2; i++)
		pid[4 + i] = y->cluster->node[i].pid;
	for (int i = 0; i < 4; i++)
		drill_get(t[i], SHARD_OK);
	for (int i = 1; i < 4; i++) {
		DRILL(t[i], SHARD_OK, .op = DRILL_BEGIN);
		DRILL(t[i], SHARD_OK, .op = DRILL_PUSH);
		DRILL(t[i], SHARD_OK, .op = DRILL_COMMIT);
		DRILL_SEND(t[i], .op = DRILL_RESULT);
	}
	for (int i = 0; i < 6; i++)
		before += cpu_ns(pid[i]);
	(void)poll(NULL, 0, 10000); /* This is the time that is measured. */
	for (int i = 0; i < 6; i++)
		after += cpu_ns(pid[i]);
	print_message("10 s of waiting took %.1f ms\n", (double)(after - before) / 1e6);
	/* Other processes run on this machine, too; see pace.h. */
	assert_true(after - before <= pace_ns(50 * NS_PER_MS));
	DRILL(t[0], SHARD_OK, .op = DRILL_BEGIN);
	DRILL(t[0], SHARD_OK, .op = DRILL_PUSH);
	DRILL(t[0], SHARD_OK, .op = DRILL_COMMIT);
	for (int i = 1; i < 4; i++)
		drill_get(t[i], SHARD_OK);
	cluster_stop(y->cluster);
	y->cluster = NULL;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_idle, drill_setup, drill_teardown)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
