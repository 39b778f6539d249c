// SPDX-License-Identifier: Apache-2.0
/* Nodes that are killed -9, without memory that outlives them, while a crew trains on two copies of
 * each chunk. Training goes on without them, at once. A node that comes back fetches its copies and
 * counts again, and then another one may be killed. At the end masters, moments and image equal the
 * reference of the crew bit by bit. All trainers are on node a, so the world is the same one all
 * the time. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/cutter.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BEAT "[cluster]\nheartbeat_timeout = 5s\nlost_timeout = 60s\n"

static struct cluster *cluster;

struct plan {
	int nodes;
	uint32_t scale, kills;
	const char *extra;
};

/* Waits until the crew has begun so many more steps. */
static void more(struct crew *c, uint64_t steps)
{
	crew_wait_step(c, crew_step(c) + steps);
}

static void elastic(const struct plan *p)
{
	struct crew *c = test_calloc(1, sizeof(*c));
	uint32_t learned[CLUSTER_NODES_MAX] = {0};
	uint64_t last;

	crew_init(c, "elastic");
	if (p->scale > 1)
		crew_larger(c, p->scale);
	c->extra = p->extra;
	c->pause_us = 2000;
	cluster = cluster_start(p->nodes, NULL, BEAT);
	for (int i = 0; i < 2; i++)
		crew_add(c, cluster->node[0].unix_address, 0);
	crew_start(c, UINT64_MAX);
	more(c, 5);
	for (uint32_t k = 0; k < p->kills; k++) {
		int victim = 1 + (int)(k % (uint32_t)(p->nodes - 1));

		cluster_kill(cluster, victim);
		more(c, 5); /* Without it. */
		cluster_spawn(cluster, victim);
		cluster_wait_log(cluster, victim, "event=learned", ++learned[victim]);
		more(c, 5); /* With it. */
	}
	last = crew_finish(c);
	crew_check(c, cluster->node[0].unix_address, last);
	for (int n = 0; n < p->nodes; n++)
		assert_int_equal(cluster_logged(cluster, n, "event=lost"), 0);
	cluster_done(&cluster);
	test_free(c);
}

static void test_two_nodes(void **state)
{
	(void)state;
	elastic(&(struct plan){.nodes = 2, .scale = 1, .kills = 4, .extra = "replicas=2"});
}

static void test_three_nodes(void **state)
{
	(void)state;
	elastic(&(struct plan){.nodes = 3, .scale = 1, .kills = 6, .extra = "replicas=2"});
}

static void test_large_chunks(void **state)
{
	(void)state;
	elastic(&(struct plan){
		.nodes = 3, .scale = 12, .kills = 4, .extra = "replicas=2 chunk_elems=32768"});
}

static void test_three_copies(void **state)
{
	(void)state;
	elastic(&(struct plan){
		.nodes = 4, .scale = 4, .kills = 4, .extra = "replicas=3 image_codec=int4"});
}

static void test_staleness(void **state)
{
	(void)state;
	elastic(&(struct plan){.nodes = 3,
			       .scale = 4,
			       .kills = 4,
			       .extra = "replicas=2 max_staleness=1 image_codec=int8"});
}

/* The step that was committed last, as node a says. */
static uint64_t committed(void)
{
	char words[200], *out = NULL, *at;
	uint64_t step;

	snprintf(words, sizeof(words), "status --json --address %s", cluster->node[0].unix_address);
	assert_true(tool_run(&out, "shardctl", words) <= 1); /* 1: something is ill. */
	at = strstr(out, "\"step\":");
	if (at == NULL)
		fail_msg("%s", out);
	step = strtoull(at + strlen("\"step\":"), NULL, 10);
	free(out);
	return step;
}

/* With min_copies no step begins on too few copies, and every node says why. Training goes on when
 * the node is back and has fetched its copies, which are those of the step before the pause. */
static void least_copies(int nodes)
{
	struct crew *c = test_calloc(1, sizeof(*c));
	uint64_t last;
	char words[200];

	crew_init(c, "elastic");
	c->extra = "replicas=2 min_copies=2";
	c->pause_us = 2000;
	cluster = cluster_start(nodes, NULL, BEAT);
	for (int i = 0; i < 2; i++)
		crew_add(c, cluster->node[0].unix_address, 0);
	crew_start(c, UINT64_MAX);
	more(c, 5);
	for (uint32_t k = 1; k <= 2; k++) {
		cluster_kill(cluster, 1);
		for (int n = 0; n < nodes; n++) {
			if (n != 1)
				cluster_says(
					cluster, n,
					"of which 1 counts and min_copies = 2: node b is away");
		}
		last = committed();
		snprintf(words, sizeof(words), "status --address %s",
			 cluster->node[0].unix_address);
		tool_expect(1, "no step begins with fewer than 2", "shardctl", words);
		cluster_spawn(cluster, 1);
		cluster_wait_log(cluster, 1, "event=learned", k);
		snprintf(words, sizeof(words), "event=learned model=elastic step=%llu",
			 (unsigned long long)last);
		assert_int_equal(cluster_logged(cluster, 1, words), 1);
		more(c, 5);
	}
	last = crew_finish(c);
	for (int n = 0; n < nodes; n++)
		crew_check(c, cluster->node[n].unix_address, last);
	cluster_done(&cluster);
	test_free(c);
}

static void test_least_copies_of_two(void **state)
{
	(void)state;
	least_copies(2);
}

static void test_least_copies_of_three(void **state)
{
	(void)state;
	least_copies(3);
}

/* What `shardctl status` prints at that node. The caller frees it. */
static char *looks(int node)
{
	char words[200], *out = NULL;

	snprintf(words, sizeof(words), "status --address %s", cluster->node[node].unix_address);
	assert_true(tool_run(&out, "shardctl", words) <= 1); /* 1: something is ill. */
	return out;
}

/* Waits until it prints that node c has been catching up for so long. */
static void looks_behind(int node, double seconds)
{
	static const char is[] = "copies: 1 of 2 of the chunk that has fewest; catching up: c for ";
	uint64_t until = pace_by(20);
	bool there;

	do {
		char *out = looks(node), *at = strstr(out, is);

		there = at != NULL && strtod(at + strlen(is), NULL) >= seconds;
		if (!there && clock_ns() > until)
			fail_msg("node %c does not say so of %.1f s: %s", 'a' + node, seconds, out);
		free(out);
	} while (!there);
}

/* The status of each node tells of the view, of copies that are missing, who catches up, and for
 * how long. */
static void test_seen(void **state)
{
	struct crew *c = test_calloc(1, sizeof(*c));
	uint64_t last;

	(void)state;
	crew_init(c, "elastic");
	c->extra = "replicas=2";
	c->pause_us = 2000;
	cluster = cluster_make(3, NULL, BEAT);
	cluster_between(cluster);
	cluster_up(cluster);
	for (int i = 0; i < 2; i++)
		crew_add(c, cluster->node[0].unix_address, 0);
	crew_start(c, UINT64_MAX);
	more(c, 5);
	cluster_kill(cluster, 2);
	more(c, 5);
	for (int n = 0; n < 2; n++) {
		char *out = looks(n);

		if (strstr(out, " of a, b\n  copies: 1 of 2 of the chunk that has fewest\n") ==
		    NULL)
			fail_msg("node %c: %s", 'a' + n, out);
		free(out);
	}
	cutter_lose(cluster->cutter, OP_COPY_DATA);
	cluster_spawn(cluster, 2);
	for (int n = 0; n < 3; n++)
		looks_behind(n, 0.1);
	for (int n = 0; n < 3; n++)
		looks_behind(n, 1.0);
	cutter_lose(cluster->cutter, 0);
	cluster_wait_log(cluster, 2, "event=learned", 1);
	for (int n = 0; n < 3; n++)
		cluster_says(cluster, n, "\"catching_up\":[],\"catching_up_s\":{}");
	for (int n = 0; n < 3; n++) {
		char *out = looks(n), *view = strstr(out, "  view ");

		if (view == NULL || strstr(view, " of a, b, c\n") == NULL ||
		    strstr(out, "copies: ") != NULL)
			fail_msg("node %c: %s", 'a' + n, out);
		free(out);
	}
	last = crew_finish(c);
	for (int n = 0; n < 3; n++)
		crew_check(c, cluster->node[n].unix_address, last);
	cluster_done(&cluster);
	test_free(c);
}

/* The first node coordinates. While it is away nothing is decided. It comes back without its
 * memory, and recovers from what the others answer. */
static void test_first_node(void **state)
{
	struct crew *c = test_calloc(1, sizeof(*c));
	uint64_t last;

	(void)state;
	crew_init(c, "elastic");
	c->extra = "replicas=2";
	c->pause_us = 2000;
	cluster = cluster_start(3, NULL, BEAT);
	for (int i = 0; i < 2; i++)
		crew_add(c, cluster->node[1].unix_address, 1);
	crew_start(c, UINT64_MAX);
	more(c, 5);
	for (uint32_t k = 1; k <= 3; k++) {
		cluster_kill(cluster, 0);
		cluster_spawn(cluster, 0);
		cluster_wait_log(cluster, 0, "event=learned", k);
		more(c, 5);
	}
	last = crew_finish(c);
	crew_check(c, cluster->node[1].unix_address, last);
	cluster_done(&cluster);
	test_free(c);
}

/* The first node starts again, with its memory, while another one is away. The view on its disk has
 * two of the three nodes of the list. */
static void test_first_node_without_another(void **state)
{
	struct crew *c = test_calloc(1, sizeof(*c));
	uint64_t last;

	(void)state;
	crew_init(c, "elastic");
	c->extra = "replicas=2";
	c->pause_us = 2000;
	cluster = cluster_make(3, NULL, BEAT);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	for (int i = 0; i < 2; i++)
		crew_add(c, cluster->node[1].unix_address, 1);
	crew_start(c, UINT64_MAX);
	more(c, 5);
	cluster_kill(cluster, 2);
	more(c, 5);
	cluster_kill(cluster, 0);
	cluster_spawn(cluster, 0);
	more(c, 5);
	cluster_spawn(cluster, 2);
	cluster_wait_log(cluster, 2, "event=learned", 1);
	more(c, 5);
	last = crew_finish(c);
	for (int n = 0; n < 3; n++)
		crew_check(c, cluster->node[n].unix_address, last);
	cluster_done(&cluster);
	test_free(c);
}

static void wait_late(void)
{
	uint64_t until = pace_by(30);

	/* One of them may have got all chunks of the step before any was lost. */
	while (cluster_logged(cluster, 0, "event=image_late") +
		       cluster_logged(cluster, 2, "event=image_late") ==
	       0) {
		if (clock_ns() > until)
			fail_msg("no node lacks a chunk of the image");
		usleep(10000);
	}
}

/* Node b dies before the others have its part of the image. Trainers on a and c cannot begin
 * without it. A view makes another node the primary of these chunks, and it is asked at once: what
 * repeats the question each second has just asked, so the trainers would wait for that long. */
static void test_image_of_the_dead(void **state)
{
	struct crew *c = test_calloc(1, sizeof(*c));
	uint64_t killed_ns, ms, last;

	(void)state;
	crew_init(c, "elastic");
	c->extra = "replicas=2 chunk_elems=1024";
	cluster = cluster_make(3, NULL, BEAT);
	cluster_between(cluster);
	cluster_up(cluster);
	for (int n = 0; n < 3; n += 2)
		crew_add(c, cluster->node[n].unix_address, (uint32_t)n);
	crew_start(c, UINT64_MAX);
	more(c, 5);
	cutter_lose(cluster->cutter, OP_IMAGE_DATA);
	wait_late();
	cutter_lose(cluster->cutter, 0);
	killed_ns = clock_ns();
	cluster_kill(cluster, 1);
	more(c, 1);
	ms = (clock_ns() - killed_ns) / NS_PER_MS;
	if (ms > (uint64_t)pace_ms(600))
		fail_msg("the next step was begun after %lu ms", (unsigned long)ms);
	cluster_spawn(cluster, 1);
	cluster_wait_log(cluster, 1, "event=learned", 1);
	last = crew_finish(c);
	for (int n = 0; n < 3; n++)
		crew_check(c, cluster->node[n].unix_address, last);
	cluster_done(&cluster);
	test_free(c);
}

static int teardown(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_two_nodes, teardown),
		cmocka_unit_test_teardown(test_three_nodes, teardown),
		cmocka_unit_test_teardown(test_image_of_the_dead, teardown),
		cmocka_unit_test_teardown(test_large_chunks, teardown),
		cmocka_unit_test_teardown(test_three_copies, teardown),
		cmocka_unit_test_teardown(test_staleness, teardown),
		cmocka_unit_test_teardown(test_least_copies_of_two, teardown),
		cmocka_unit_test_teardown(test_least_copies_of_three, teardown),
		cmocka_unit_test_teardown(test_seen, teardown),
		cmocka_unit_test_teardown(test_first_node, teardown),
		cmocka_unit_test_teardown(test_first_node_without_another, teardown),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
