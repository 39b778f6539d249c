// SPDX-License-Identifier: Apache-2.0
/* A cluster is upgraded node by node while it trains. Each node runs an older release first, which
 * does not know the newest fields of the wire, and comes back as this release with its memory: the
 * steps go on, and the result equals the reference bit by bit. A release that shares no wire
 * version is refused, and the text names both releases and versions. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define OLDER "tests/older/shardd"
#define NEWER "tests/newer/shardd"

static struct cluster *cluster;

static void expect_minor(int asked, const char *text, bool there)
{
	char words[256], *out;

	snprintf(words, sizeof(words), "members --json -a %s", cluster->node[asked].unix_address);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	assert_int_equal(strstr(out, text) != NULL, there);
	free(out);
}

static void upgrade(const char *extra)
{
	struct crew *c = calloc(1, sizeof(*c));
	uint64_t last;

	assert_non_null(c);
	crew_init(c, "upgraded");
	c->pause_us = 2000;
	cluster = cluster_make(3, NULL, extra);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster->daemon = OLDER;
	cluster_up(cluster);
	for (int n = 0; n < 3; n++)
		crew_add(c, cluster->node[n].unix_address, (uint32_t)n)->reconnects = true;
	crew_start(c, UINT64_MAX);
	crew_wait_step(c, 5);
	expect_minor(0, "\"wire_minor\":0", true);
	cluster->daemon = NULL;
	for (int n = 2; n >= 0; n--) {
		cluster_signal(cluster, n, SIGTERM);
		assert_int_equal(cluster_wait(cluster, n, pace_ms(20000)), 0);
		cluster_spawn(cluster, n);
		cluster_ready(cluster, n);
		crew_wait_step(c, crew_step(c) + 5);
	}
	last = crew_finish(c);
	for (int n = 0; n < 3; n++) {
		crew_check(c, cluster->node[n].unix_address, last);
		assert_int_equal(cluster_logged(cluster, n, "event=lost "), 0);
		expect_minor(n, "\"wire_minor\":0", false);
	}
	cluster_done(&cluster);
	free(c);
}

static void test_static(void **state)
{
	(void)state;
	upgrade("[model]\nreplicas = 1\n[cluster]\nmembership = static\n");
}

static void test_quorum(void **state)
{
	(void)state;
	upgrade("[model]\nreplicas = 2\n[cluster]\nmembership = quorum\n"
		"election_timeout = 300ms\nlost_timeout = 60s\n");
}

static void train(struct crew *c, uint64_t last)
{
	c->nr = 0;
	for (int n = 0; n < 3; n++)
		crew_add(c, cluster->node[n].unix_address, (uint32_t)n)->reconnects = true;
	crew_start(c, last);
	crew_finish(c);
	for (int n = 0; n < 3; n++)
		crew_check(c, cluster->node[n].unix_address, last);
}

/* Takes the state of model 1 from the place that outlives node b. */
static void lose_piece(void)
{
	char *text = cluster_log(cluster, 1), *at = strstr(text, "place="), file[300];

	assert_non_null(at);
	at += strlen("place=");
	snprintf(file, sizeof(file), "%.*s/00000001-state", (int)strcspn(at, " \n"), at);
	free(text);
	assert_int_equal(unlink(file), 0);
}

/* Node b starts without its copy. It tells no node of an older release, which would take that for
 * an error and end the link. Node a, which coordinates, comes when b and c are linked. */
static void test_void_beside(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));

	(void)state;
	assert_non_null(c);
	crew_init(c, "void");
	cluster = cluster_make(3, NULL, "[model]\nreplicas = 2\n[cluster]\nmembership = static\n");
	cluster_warm(cluster, CLUSTER_TMPFS);
	for (int n = 0; n < 3; n++) {
		cluster->daemon = n == 2 ? OLDER : NULL;
		cluster_spawn(cluster, n);
	}
	for (int n = 0; n < 3; n++)
		cluster_ready(cluster, n);
	cluster->daemon = NULL;
	train(c, 5);
	cluster_kill(cluster, 0);
	cluster_kill(cluster, 1);
	lose_piece();
	cluster_spawn(cluster, 1);
	cluster_wait_log(cluster, 1, "event=link_up peer=c", 2);
	cluster_wait_log(cluster, 2, "event=link_up peer=b", 2);
	cluster_spawn(cluster, 0);
	train(c, 10);
	assert_int_equal(cluster_logged(cluster, 1, "event=model_void "), 1);
	assert_int_equal(cluster_logged(cluster, 1, "event=link_down peer=c"), 0);
	cluster_done(&cluster);
	free(c);
}

static void test_other_version(void **state)
{
	(void)state;
	cluster = cluster_make(2, NULL, NULL);
	cluster_spawn(cluster, 0);
	cluster_ready(cluster, 0);
	cluster->daemon = NEWER;
	cluster_spawn(cluster, 1);
	/* Each end names the other release. */
	cluster_wait_log(cluster, 0, "speaks wire version", 1);
	cluster_wait_log(cluster, 1, "speaks wire version", 1);
	cluster_says(cluster, 0, "\"state\":\"down\"");
	cluster_signal(cluster, 1, SIGTERM);
	assert_int_equal(cluster_wait(cluster, 1, pace_ms(20000)), 0);
	cluster_done(&cluster);
}

static int put_away(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_static, put_away),
					   cmocka_unit_test_teardown(test_quorum, put_away),
					   cmocka_unit_test_teardown(test_void_beside, put_away),
					   cmocka_unit_test_teardown(test_other_version, put_away)};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
