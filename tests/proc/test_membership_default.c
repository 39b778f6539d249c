// SPDX-License-Identifier: Apache-2.0
/* Who coordinates where nobody says it: of one node and of two the first, and three elect. A
 * cluster that has models does not change who says it, neither by itself nor because somebody sets
 * another `membership`: each node that has something to lose says what to set, and nothing of what
 * is in memory is lost meanwhile. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/fdstore.h"
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

/* Forgets the kept memory, as --forget-memory or a stop of the service does. */
static void give_up(struct warm *w, int node)
{
	char words[200];

	snprintf(words, sizeof(words), "--config %s --forget-memory", w->cluster->node[node].conf);
	if (w->how == CLUSTER_SYSTEMD)
		(void)fdstore_forget(w->cluster->node[node].store, NULL);
	else
		tool_expect(0, "", "shardd", words);
}

/* The `times`-th start of this node that ends because its models are of another source. */
static void refuses(struct warm *w, int node, const char *was, const char *now, uint32_t times)
{
	char text[200];

	cluster_spawn(w->cluster, node);
	warm_wait_log(w, node, "event=start_failed ", times);
	if (w->how == CLUSTER_SYSTEMD) /* Under a service manager it ends late. */
		cluster_kill(w->cluster, node);
	else
		assert_int_not_equal(cluster_wait(w->cluster, node, 10000), 0);
	snprintf(text, sizeof(text), ", of membership = %s, and now it is %s", was, now);
	assert_true(warm_logged(w, node, text) > 0);
	snprintf(text, sizeof(text), "Set membership = %s on all nodes, and they are there", was);
	assert_int_equal(warm_logged(w, node, text), times);
}

static const char set_static[] = "\nmembership = static", unset[] = "\n;embership = static",
		  set_quorum[] = "\nmembership = quorum";

static void begin(struct warm *w, const char *extra)
{
	warm_start(w, 3, (int[]){1, 1, 1}, extra);
	warm_all(w);
	warm_train(w, 2);
	warm_kill(w, ALL);
	for (uint32_t r = 0; r < 3; r++)
		warm_end(w, r);
}

static void end(struct warm *w)
{
	warm_spawn(w, ALL);
	assert_int_equal(warm_back(w, ALL), 3);
	warm_train(w, 4);
	warm_check(w, 4);
	warm_finish(w);
}

static void upgraded(void **state)
{
	struct warm *w = *state;
	char path[200];

	begin(w, "[cluster]\nlost_timeout = 120s\nmembership = static\n");
	edit(w, set_static, unset);
	for (int n = 0; n < 3; n++) { /* A release before this one has not written it. */
		snprintf(path, sizeof(path), "%s/membership", w->cluster->node[n].state);
		assert_int_equal(unlink(path), 0);
	}
	for (uint32_t times = 1; times <= 2; times++)
		for (int n = 0; n < 3; n++)
			refuses(w, n, "static", "quorum because nobody has set it", times);
	assert_int_equal(logged(w->cluster, LEADS), 0);
	edit(w, unset, set_static);
	end(w);
}

/* An operator who sets the source hears the same, in both directions. */
static void elected_now(void **state)
{
	struct warm *w = *state;

	begin(w, "[cluster]\nlost_timeout = 120s\nmembership = static\n");
	edit(w, set_static, set_quorum);
	for (int n = 2; n >= 0; n--)
		refuses(w, n, "static", "quorum, ", 1);
	assert_int_equal(logged(w->cluster, LEADS), 0);
	edit(w, set_quorum, set_static);
	end(w);
}

/* The first node has lost its memory meanwhile. As the coordinator of a list it knows no model, and
 * has the others drop theirs, if they let it. It may change, because it has nothing to lose, and
 * back again. */
static void listed_now(void **state)
{
	struct warm *w = *state;

	begin(w, "[cluster]\nlost_timeout = 120s\nmembership = quorum\n[model]\nreplicas = 2\n");
	give_up(w, 0);
	edit(w, set_quorum, set_static);
	warm_spawn(w, 1);
	for (int n = 1; n < 3; n++)
		refuses(w, n, "quorum", "static", 1);
	warm_kill(w, 1);
	edit(w, set_static, set_quorum);
	end(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(three_elect), WARM_BOTH(two_do_not), WARM_BOTH(upgraded),
		WARM_BOTH(elected_now),        WARM_BOTH(listed_now),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
