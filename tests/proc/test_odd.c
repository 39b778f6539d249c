// SPDX-License-Identifier: Apache-2.0
/* Real daemons, one of which has bad memory (tests/odd/lies.c), while a crew trains. With three
 * copies it is named, leaves, gives its memory up and ends with status 1, whether it is a primary
 * or a follower, whether it notices or not, and whether it coordinates. The others go on without
 * it. With two copies on two nodes nobody can say which one is wrong, and the model waits for an
 * operator. With two copies on three nodes the other copies say it. No step is lost or done with a
 * wrong norm: weights, moments and image equal the reference bit by bit. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define STATIC "[cluster]\nheartbeat_timeout = 20s\nlost_timeout = 60s\n"
#define QUORUM                                                                                     \
	"[cluster]\nmembership = quorum\nelection_timeout = 300ms\nheartbeat_timeout = 5s\n"       \
	"lost_timeout = 60s\n"

enum { ANY = -1 };

static struct cluster *cluster;
static struct crew *crew;

static void more(uint64_t steps)
{
	crew_wait_step(crew, crew_step(crew) + steps);
}

static void up(int nodes, const char *conf)
{
	cluster = cluster_make(nodes, NULL, conf);
	cluster->daemon = "tests/odd/shardd";
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
}

/* All trainers are at this node, which must not be the one that ends. */
static void train(int at, const char *extra)
{
	crew = test_calloc(1, sizeof(*crew));
	crew_init(crew, "judged");
	crew->extra = extra;
	crew->pause_us = 2000;
	for (int i = 0; i < 2; i++)
		crew_add(crew, cluster->node[at].unix_address, (uint32_t)at)->reconnects = true;
	crew_start(crew, UINT64_MAX);
	more(5);
}

static void end(void)
{
	uint64_t last = crew_finish(crew);

	for (int n = 0; n < cluster->nodes_nr; n++) {
		crew_check(crew, cluster->node[n].unix_address, last);
		assert_int_equal(cluster_logged(cluster, n, "event=lost "), 0);
	}
	cluster_done(&cluster);
	test_free(crew);
	crew = NULL;
}

/* what: as tests/odd/lies.c reads it. NULL: the node is as it should be. */
static void lie(int node, const char *what)
{
	char path[200], next[200];
	FILE *f;

	snprintf(path, sizeof(path), "%s/lie", cluster->node[node].state);
	if (what == NULL) {
		assert_int_equal(unlink(path), 0);
		return;
	}
	snprintf(next, sizeof(next), "%s/lie.next", cluster->node[node].state);
	f = fopen(next, "we");
	assert_non_null(f);
	fputs(what, f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(rename(next, path), 0);
}

/* The node ends by itself, and says why. It comes back without what it had, and is one of the
 * holders again. coordinator: the node that finds out. ANY: an elected one, and another may have
 * been elected meanwhile. goes_on: without the node another one can coordinate. */
static void leaves(int node, int coordinator, bool goes_on)
{
	char *log, name[32];
	int status = cluster_wait(cluster, node, pace_ms(20000)), found = 0;

	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
	snprintf(name, sizeof(name), " odd=%s ", cluster->node[node].name);
	assert_int_equal(cluster_logged(cluster, node, "event=odd model=judged step="), 1);
	log = cluster_log(cluster, node);
	assert_non_null(strstr(log, "votes for copies of chunk "));
	assert_non_null(strstr(log, "sums of squares: node "));
	free(log);
	for (int n = 0; n < cluster->nodes_nr; n++)
		if (coordinator == ANY || coordinator == n)
			found += cluster_logged(cluster, n, name);
	assert_true(found >= 1);
	for (int n = 0; n < cluster->nodes_nr; n++)
		if (n != node)
			assert_int_equal(cluster_logged(cluster, n, "event=odd "), 0);
	if (goes_on)
		more(5);
	lie(node, NULL);
	cluster_spawn(cluster, node);
	cluster_wait_log(cluster, node, "its votes differed from those of the other copies", 1);
	cluster_wait_log(cluster, node, "event=learned", 1);
	more(5);
}

/* A follower or a primary among three copies, in a cluster with a list of nodes. */
static void test_three(void **state)
{
	static const char *const ways[] = {"copied", "voted", "reduced"};

	(void)state;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		up(3, STATIC);
		train(0, "replicas=3");
		lie(2, ways[i]);
		leaves(2, 0, true);
		end();
	}
}

/* The first node of the list coordinates, and is the one that is wrong. The others wait for it,
 * and it begins with what they have. Each chunk has three copies, or two, on all pairs of nodes. */
static void test_first(void **state)
{
	static const char *const ways[][2] = {
		{"copied", "replicas=3"}, {"reduced", "replicas=3"}, {"all", "replicas=2"}};

	(void)state;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		up(3, STATIC);
		train(1, ways[i][1]);
		lie(0, ways[i][0]);
		leaves(0, 0, false);
		end();
	}
}

/* Who coordinates, by what the nodes have logged last. */
static int leader(void)
{
	uint64_t best = 0, until = pace_by(20);
	int found = -1;

	while (found < 0) {
		for (int n = 0; n < cluster->nodes_nr; n++) {
			char *log = cluster_log(cluster, n), *at = log;

			while ((at = strstr(at, "event=leading term=")) != NULL) {
				uint64_t term =
					strtoull(at + strlen("event=leading term="), NULL, 10);

				at++;
				if (term <= best)
					continue;
				best = term;
				found = n;
			}
			free(log);
		}
		if (found < 0 && clock_ns() > until)
			fail_msg("nobody coordinates");
		if (found < 0)
			usleep(10000);
	}
	return found;
}

/* Elected coordinators: one that is wrong, and one that finds out about another node. */
static void test_elected(void **state)
{
	static const char *const ways[][2] = {
		{"reduced", "replicas=3"}, {"voted", "replicas=3"}, {"all", "replicas=2"}};

	(void)state;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		for (int other = 0; other < 2; other++) {
			int coordinator, odd;

			up(3, QUORUM);
			coordinator = leader();
			odd = (coordinator + other) % 3;
			train((odd + 1) % 3, ways[i][1]);
			lie(odd, ways[i][0]);
			leaves(odd, ANY, true);
			end();
		}
	}
}

/* Each chunk has two copies, on different pairs of three nodes. What the pairs say of each other
 * clears all but one. */
static void test_pairs(void **state)
{
	(void)state;
	up(3, STATIC);
	train(0, "replicas=2");
	lie(2, "all");
	leaves(2, 0, true);
	end();
}

static void tool(int rc, const char *text, const char *what)
{
	char words[320];

	snprintf(words, sizeof(words), "%s --address %s", what, cluster->node[0].unix_address);
	tool_expect(rc, text, "shardctl", words);
}

/* Two copies, and nobody can say which one is wrong. */
static void test_two(void **state)
{
	static const struct {
		int node;
		const char *way;
	} ways[] = {{1, "copied"}, {1, "voted"}, {1, "reduced"}, {0, "all"}, {1, "copied 0"}};

	(void)state;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		uint64_t step;

		up(2, STATIC);
		train(0, "replicas=2");
		lie(ways[i].node, ways[i].way);
		cluster_says(cluster, 0, "Nobody can say which is wrong");
		assert_int_equal(cluster_logged(cluster, 0, "event=votes_differ model=judged"), 3);
		assert_int_equal(cluster_logged(cluster, 0, " odd=? "), 3);
		cluster_says(cluster, 0, "\"votes_differed\":3");
		step = crew_step(crew);
		tool(0, "all equal", "verify judged"); /* Nothing was committed with it. */
		assert_int_equal(crew_step(crew), step);
		for (int n = 0; n < 2; n++)
			assert_int_equal(cluster_logged(cluster, n, "event=odd "), 0);
		lie(ways[i].node, NULL);
		tool(0, "", "model resume judged");
		more(5);
		assert_int_equal(cluster_logged(cluster, 0, "event=votes_differ model=judged"), 3);
		end();
	}
}

static int teardown(void **state)
{
	(void)state;
	if (cluster != NULL)
		cluster_dump(cluster);
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_three, teardown),
		cmocka_unit_test_teardown(test_first, teardown),
		cmocka_unit_test_teardown(test_elected, teardown),
		cmocka_unit_test_teardown(test_pairs, teardown),
		cmocka_unit_test_teardown(test_two, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
