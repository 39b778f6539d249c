// SPDX-License-Identifier: Apache-2.0
/* Tests nodes that are away for longer than a heartbeat with the default settings: a daemon that
 * stands still (SIGSTOP) for 12 s and goes on, and one that its service manager killed and started
 * again meanwhile. Attempts end, and nothing is decided in that time. No model is lost, because the
 * memory is complete. The trainers go on, and every bit equals the reference. The coordinator
 * stands still in one cluster and another node in a second one, at the same time. If CHECK_ALL is
 * set, a daemon also stands still for 35 s, which is longer than the watchdog of the service. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/proc.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { CLUSTERS = 2, NODES = 2 };

struct away {
	struct cluster *cluster[CLUSTERS]; /* Node i of cluster i stands still. */
	struct crew crew[CLUSTERS];
};

static int setup(void **state)
{
	*state = calloc(1, sizeof(struct away));
	return *state == NULL;
}

static int teardown(void **state)
{
	struct away *a = *state;

	for (int i = 0; i < CLUSTERS; i++)
		cluster_put_away(&a->cluster[i]);
	return 0; /* Trainers of a test that failed still use it. */
}

static void begin(struct away *a, int i)
{
	struct crew *c = &a->crew[i];

	a->cluster[i] = cluster_make(
		NODES, NULL, "[cluster]\nlost_timeout = 120s ; the default, which tests shorten\n");
	cluster_warm(a->cluster[i], CLUSTER_TMPFS);
	for (int n = 0; n < NODES; n++)
		cluster_spawn(a->cluster[i], n);
	for (int n = 0; n < NODES; n++)
		cluster_ready(a->cluster[i], n);
	crew_init(c, "m");
	c->pause_us = 2000;
	for (uint32_t n = 0; n < NODES; n++)
		crew_add(c, a->cluster[i]->node[n].unix_address, n)->reconnects = true;
	crew_start(c, UINT64_MAX);
	crew_wait_step(c, 3);
}

static void end(struct away *a, int i)
{
	uint64_t last;

	crew_wait_step(&a->crew[i], crew_step(&a->crew[i]) + 3);
	last = crew_finish(&a->crew[i]);
	for (int n = 0; n < NODES; n++) {
		char *text;

		crew_check(&a->crew[i], a->cluster[i]->node[n].unix_address, last);
		text = cluster_log(a->cluster[i], n);
		assert_null(strstr(text, "event=lost"));
		assert_null(strstr(text, "event=model_void"));
		free(text);
	}
	cluster_done(&a->cluster[i]);
}

/* With `killed` it does not go on, but is started again. */
static void away_for(struct away *a, unsigned seconds, bool killed)
{
	for (int i = 0; i < CLUSTERS; i++)
		begin(a, i);
	for (int i = 0; i < CLUSTERS; i++)
		cluster_signal(a->cluster[i], i, SIGSTOP);
	sleep(seconds); /* The test is about this time. */
	for (int i = 0; i < CLUSTERS; i++) {
		if (killed) {
			cluster_kill(a->cluster[i], i);
			cluster_spawn(a->cluster[i], i);
			cluster_ready(a->cluster[i], i);
		} else {
			cluster_signal(a->cluster[i], i, SIGCONT);
		}
	}
	for (int i = 0; i < CLUSTERS; i++)
		end(a, i);
}

static void test_stands_still(void **state)
{
	away_for(*state, 12, false);
}

static void test_long(void **state)
{
	if (getenv("CHECK_ALL") == NULL)
		skip();
	away_for(*state, 35, false);
}

/* As the service does it: nothing is heard for 30 s, then come SIGKILL and a new start. */
static void test_watchdog(void **state)
{
	if (getenv("CHECK_ALL") == NULL)
		skip();
	away_for(*state, 30, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_stands_still, setup, teardown),
		cmocka_unit_test_setup_teardown(test_long, setup, teardown),
		cmocka_unit_test_setup_teardown(test_watchdog, setup, teardown)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
