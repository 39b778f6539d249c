// SPDX-License-Identifier: Apache-2.0
/* Tests reads of weights that other nodes hold while every link is cut again and again. No read
 * fails, because each link is back at once. A node that is stopped for good is named. */
#include "base/clock.h"
#include "lib/cutter.h"
#include "lib/pace.h"
#include "lib/yard.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { STEPS = 4, ROUNDS = 60 };

static void test_reads_while_cut(void **state)
{
	struct yard *y = *state;
	struct cutter *k;

	y->cluster = cluster_make(3, "replicas = 1\n", "[cluster]\nheartbeat_timeout = 30s\n");
	k = cutter_start(y->cluster);
	cluster_up(y->cluster);
	crew_init(&y->crew, "m");
	yard_train(&y->crew, y->cluster, (const int[]){1, 1, 1}, STEPS);
	for (int i = 0; i < ROUNDS; i++) {
		cutter_cut(k);
		crew_check(&y->crew, y->cluster->node[i % 3].unix_address, STEPS);
	}
	cluster_done(&y->cluster);
	cutter_stop(&k);
}

/* No sooner than the link could be back, and long before the call's own timeout. */
static void test_node_stays_away(void **state)
{
	struct yard *y = *state;
	enum shard_status st = SHARD_OK;
	uint64_t at, step;
	shard_client *c;
	shard_model *m;
	float w[4096];

	y->cluster = cluster_make(2, "replicas = 1\n", "[cluster]\nheartbeat_timeout = 30s\n");
	cluster_up(y->cluster);
	crew_init(&y->crew, "m");
	yard_train(&y->crew, y->cluster, (const int[]){1, 1}, STEPS);
	c = crew_connect(y->cluster->node[0].unix_address);
	assert_int_equal(shard_attach(c, "m", &m), SHARD_OK);
	cluster_kill(y->cluster, 1);
	at = clock_ns();
	for (uint32_t t = 0; t < CREW_TENSORS && st == SHARD_OK; t++)
		st = shard_read(m, SHARD_MASTER, t, 0, y->crew.numel[t], SHARD_F32, w,
				(step = STEPS, &step));
	assert_int_equal(st, SHARD_UNREACHABLE);
	assert_non_null(strstr(shard_error(), "node b"));
	assert_true(clock_ns() - at < pace_ns(10 * NS_PER_SEC));
	shard_disconnect(&c);
	cluster_done(&y->cluster);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_reads_while_cut, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(test_node_stays_away, yard_setup, yard_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
