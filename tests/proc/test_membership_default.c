// SPDX-License-Identifier: Apache-2.0
/* Who coordinates where nobody says it: of one node and of two the first, and three elect. A
 * cluster of three nodes that the list coordinated until now, and that has models, does not begin
 * elections by itself: its first node says what to set, and nothing of what is in memory is lost
 * meanwhile. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/moved.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "lib/warm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* With the word `membership` in it the harness leaves the choice to the daemon. */
#define DEFAULT "; membership\n[cluster]\nheartbeat_timeout = 5s\nlost_timeout = 60s\n"
#define LEADS   "event=leading term="

enum { ALL = 7, OTHERS = 6 };

static uint32_t logged(struct cluster *c, const char *part)
{
	uint32_t nr = 0;

	for (int n = 0; n < c->nodes_nr; n++)
		nr += cluster_logged(c, n, part);
	return nr;
}

static void await(struct cluster *c, const char *part, uint32_t times)
{
	uint64_t until = pace_by(20);

	while (logged(c, part) < times) {
		if (clock_ns() > until)
			fail_msg("%s: %u times, not %u", part, logged(c, part), times);
		usleep(10000);
	}
}

static void three_elect(void **state)
{
	struct cluster *c = cluster_start(3, NULL, DEFAULT);
	int first = 0;

	(void)state;
	await(c, LEADS, 1);
	while (cluster_logged(c, first, LEADS) == 0)
		first++;
	moved_voters(c, first);
	cluster_kill(c, first);
	await(c, LEADS, 2);
	cluster_stop(c);
}

static void two_do_not(void **state)
{
	struct warm *w = *state;

	warm_start(w, 2, (int[]){1, 1}, DEFAULT);
	warm_all(w);
	warm_train(w, 2);
	assert_int_equal(logged(w->cluster, LEADS), 0);
	warm_finish(w);
}

/* Replaces a text in the configuration of each node by one of the same length. */
static void edit(struct warm *w, const char *from, const char *to)
{
	CHECK(strlen(from) == strlen(to));
	for (int n = 0; n < w->cluster->nodes_nr; n++) {
		FILE *f = fopen(w->cluster->node[n].conf, "r+e");
		char text[4096], *at;

		CHECK(f != NULL);
		text[fread(text, 1, sizeof(text) - 1, f)] = 0;
		at = strstr(text, from);
		CHECK(at != NULL && fseek(f, at - text, SEEK_SET) == 0 && fputs(to, f) >= 0 &&
		      fclose(f) == 0);
	}
}

static void first_refuses(struct warm *w, uint32_t times)
{
	cluster_spawn(w->cluster, 0);
	warm_wait_log(w, 0, "event=start_failed ", times);
	if (w->how == CLUSTER_SYSTEMD) /* Under a service manager it ends late. */
		cluster_kill(w->cluster, 0);
	else
		assert_int_not_equal(cluster_wait(w->cluster, 0, 10000), 0);
	assert_int_equal(warm_logged(w, 0, "as the coordinator of membership = static"), times);
	assert_int_equal(warm_logged(w, 0, "Set membership = static on all nodes"), times);
}

static void upgraded(void **state)
{
	static const char set[] = "\nmembership = static", unset[] = "\n;embership = static";
	struct warm *w = *state;

	warm_start(w, 3, (int[]){1, 1, 1}, "[cluster]\nlost_timeout = 120s\nmembership = static\n");
	warm_all(w);
	warm_train(w, 2);
	warm_kill(w, ALL);
	for (uint32_t r = 0; r < 3; r++)
		warm_end(w, r);
	edit(w, set, unset);
	first_refuses(w, 1);
	/* The others wait for it, with what they have in memory. */
	warm_spawn(w, OTHERS);
	first_refuses(w, 2);
	warm_kill(w, OTHERS);
	assert_int_equal(logged(w->cluster, LEADS), 0);
	edit(w, unset, set);
	warm_spawn(w, ALL);
	assert_int_equal(warm_back(w, ALL), 3);
	warm_train(w, 4);
	warm_check(w, 4);
	warm_finish(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(three_elect),
		WARM_BOTH(two_do_not),
		WARM_BOTH(upgraded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
