// SPDX-License-Identifier: Apache-2.0
/* The disk of a coordinator that the list names is full when a view has to be written. Training
 * waits, and every node says for what, and what to do: status, members, /healthz, and what a
 * trainer hears. With room on the disk it goes on by itself, and nobody says so any more. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/moved.h"
#include "lib/pace.h"
#include "lib/proc.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct cluster *cluster;
static struct crew *crew;
static uint16_t http_port[CLUSTER_NODES_MAX];

/* The process may write nothing more into files, its log included. */
static void room(int node, bool is)
{
	pid_t pid = cluster->node[node].pid;
	struct rlimit limit;

	assert_int_equal(prlimit(pid, RLIMIT_FSIZE, NULL, &limit), 0);
	limit.rlim_cur = is ? limit.rlim_max : 16;
	assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

/* Waits until the node says it, or does not say it any more. */
static void wait_said(int at, const char *what, const char *part, bool is)
{
	uint64_t until = pace_by(20);

	for (;;) {
		int rc;
		char *out = moved_said(cluster, at, what, &rc);

		assert_true(rc <= 1); /* 1: something is ill. */
		if ((strstr(out, part) != NULL) == is) {
			free(out);
			return;
		}
		if (clock_ns() > until)
			fail_msg("%s at node %c: %s \"%s\": %s", what, 'a' + at,
				 is ? "no" : "still", part, out);
		free(out);
		usleep(50000);
	}
}

static void test_static(void **state)
{
	static const char *const words[] = {
		"  ill: its disk does not take a view of \"moved\", which waits for it: ",
		"waits: node a, which coordinates: its disk does not take a view of",
		"make room there, and it goes on by itself"};

	(void)state;
	signal(SIGXFSZ, SIG_IGN); /* The daemons inherit it: the limit plays a full disk. */
	moved_begin(&cluster, &crew,
		    &(struct moved_plan){.nodes = 3,
					 .conf = "[cluster]\nheartbeat_timeout = 1s\n"
						 "lost_timeout = 1000s\n",
					 .extra = "replicas=2",
					 .scale = 1,
					 .http_port = http_port});
	room(0, false);
	cluster_kill(cluster, 2);
	for (int n = 0; n < 2; n++) {
		for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
			wait_said(n, "status", words[i], true);
		wait_said(n, "members", words[0], true);
		assert_non_null(strstr(moved_http(http_port[n], "/healthz"),
				       "node a: its disk does not take a view of"));
	}
	room(0, true);
	crew_wait_step(crew, crew_step(crew) + 5);
	for (int n = 0; n < 2; n++) {
		wait_said(n, "status", "its disk does not take", false);
		wait_said(n, "members", "its disk does not take", false);
	}
	moved_ends(&cluster, &crew, false);
}

static int cleanup(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_static, cleanup)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
