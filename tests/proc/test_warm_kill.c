// SPDX-License-Identifier: Apache-2.0
/* Sends kill -9 to daemons at random instants of hundreds of steps and of their starts. Their
 * memory is kept on a tmpfs or by a service manager. The victims are a node that does not
 * coordinate, the coordinator, both at once, or the only node. Chunks are computed by the loop or
 * by workers, and steps may overlap. No model is ever lost: the trainers go on where they were, and
 * every weight and moment equals the reference bit by bit. SEED=n repeats the instants of a run. */
#include "base/clock.h"
#include "base/rng.h"
#include "lib/yard.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* The scale of the crew, for chunks of 1024 and of 32768 elements. */
enum { LOOP = 1, WORKERS = 12 };

struct plan {
	enum cluster_warm how;
	int nodes, per[CLUSTER_NODES_MAX];
	unsigned victims[3]; /* Sets of nodes, killed in turn. 0: none. */
	uint32_t scale, kills;
	uint64_t within_us; /* How long after the nodes are there again the next kill may come. */
	const char *extra;
};

static void logged(struct cluster *c, int node, const char *part, bool want)
{
	char *text = cluster_log(c, node);

	if ((strstr(text, part) != NULL) != want)
		fail_msg("the log of node %s %s \"%s\"", c->node[node].name, want ? "lacks" : "has",
			 part);
	free(text);
}

static uint64_t seed(void)
{
	const char *given = getenv("SEED");
	uint64_t at = given != NULL ? strtoull(given, NULL, 0) : clock_ns();

	print_message("SEED=%lu\n", (unsigned long)at);
	return at;
}

static void kill_all(struct cluster *c, unsigned nodes)
{
	for (int n = 0; n < c->nodes_nr; n++)
		if (nodes >> n & 1)
			cluster_signal(c, n, SIGKILL);
	for (int n = 0; n < c->nodes_nr; n++)
		if (nodes >> n & 1)
			cluster_wait(c, n, 10000);
	for (int n = 0; n < c->nodes_nr; n++)
		if (nodes >> n & 1)
			cluster_spawn(c, n);
}

/* With `again` the victims are killed once more while they start. */
static void kill_some(struct cluster *c, unsigned nodes, struct rng *r, bool again)
{
	kill_all(c, nodes);
	if (again) {
		usleep((useconds_t)rng_below(r, 40000));
		kill_all(c, nodes);
	}
	for (int n = 0; n < c->nodes_nr; n++)
		if (nodes >> n & 1)
			cluster_ready(c, n);
}

static void kills(void **state, const struct plan *p)
{
	struct yard *y = *state;
	struct rng r = {.state = seed()};
	uint64_t step;
	int sets = 1;

	while (sets < 3 && p->victims[sets] != 0)
		sets++;
	y->cluster = cluster_make(p->nodes, NULL, "[cluster]\nheartbeat_timeout = 2s");
	cluster_warm(y->cluster, p->how);
	for (int n = 0; n < p->nodes; n++)
		cluster_spawn(y->cluster, n);
	for (int n = 0; n < p->nodes; n++)
		cluster_ready(y->cluster, n);
	crew_init(&y->crew, "m");
	crew_larger(&y->crew, p->scale);
	y->crew.extra = p->extra;
	yard_add(&y->crew, y->cluster, p->per, true);
	crew_start(&y->crew, UINT64_MAX);
	crew_wait_step(&y->crew, 3);
	for (uint32_t k = 0; k < p->kills; k++) {
		step = crew_step(&y->crew);
		/* Otherwise the kill comes at once, while the nodes join the cluster again. */
		if (k % 4 != 2)
			crew_wait_step(&y->crew, step + 2);
		usleep((useconds_t)rng_below(&r, p->within_us));
		kill_some(y->cluster, p->victims[k % (uint32_t)sets], &r, k % 4 == 3);
	}
	crew_wait_step(&y->crew, crew_step(&y->crew) + 3);
	step = crew_finish(&y->crew);
	for (int n = 0; n < p->nodes; n++)
		crew_check(&y->crew, y->cluster->node[n].unix_address, step);
	print_message("%u kills in %lu steps\n", p->kills, (unsigned long)step);
	for (int n = 0; n < p->nodes; n++)
		logged(y->cluster, n, "event=lost", false);
	cluster_done(&y->cluster);
}

static void test_member(void **state)
{
	kills(state, &(struct plan){.how = CLUSTER_TMPFS,
				    .nodes = 2,
				    .per = {2, 1},
				    .victims = {2},
				    .scale = LOOP,
				    .kills = 12,
				    .within_us = 20000});
}

static void test_coordinator(void **state)
{
	kills(state, &(struct plan){.how = CLUSTER_TMPFS,
				    .nodes = 2,
				    .per = {1, 2},
				    .victims = {1},
				    .scale = LOOP,
				    .kills = 12,
				    .within_us = 20000});
}

static void test_all(void **state)
{
	kills(state, &(struct plan){.how = CLUSTER_SYSTEMD,
				    .nodes = 2,
				    .per = {1, 2},
				    .victims = {3, 1, 2},
				    .scale = WORKERS,
				    .kills = 15,
				    .within_us = 30000,
				    .extra = "chunk_elems=32768"});
}

static void test_only_node(void **state)
{
	kills(state, &(struct plan){.how = CLUSTER_SYSTEMD,
				    .nodes = 1,
				    .per = {1},
				    .victims = {1},
				    .scale = WORKERS,
				    .kills = 15,
				    .within_us = 30000,
				    .extra = "chunk_elems=32768"});
}

static void test_only_node_of_two_ranks(void **state)
{
	kills(state, &(struct plan){.how = CLUSTER_TMPFS,
				    .nodes = 1,
				    .per = {2},
				    .victims = {1},
				    .scale = WORKERS,
				    .kills = 15,
				    .within_us = 30000,
				    .extra = "chunk_elems=32768"});
}

static void test_ahead(void **state)
{
	kills(state, &(struct plan){.how = CLUSTER_SYSTEMD,
				    .nodes = 2,
				    .per = {2, 1},
				    .victims = {1, 2, 3},
				    .scale = WORKERS,
				    .kills = 12,
				    .within_us = 30000,
				    .extra = "chunk_elems=32768 max_staleness=1"});
}

static void test_copies(void **state)
{
	kills(state, &(struct plan){.how = CLUSTER_TMPFS,
				    .nodes = 2,
				    .per = {1, 2},
				    .victims = {1, 2, 3},
				    .scale = LOOP,
				    .kills = 12,
				    .within_us = 20000,
				    .extra = "replicas=2"});
}

/* Two copies on three nodes, of which one has no ranks. */
static void test_copies_on_three(void **state)
{
	kills(state, &(struct plan){.how = CLUSTER_SYSTEMD,
				    .nodes = 3,
				    .per = {2, 0, 1},
				    .victims = {2, 4, 7},
				    .scale = WORKERS,
				    .kills = 12,
				    .within_us = 30000,
				    .extra = "chunk_elems=32768 replicas=2 max_staleness=1"});
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, yard_setup, yard_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {T(test_member),
					   T(test_coordinator),
					   T(test_all),
					   T(test_only_node),
					   T(test_only_node_of_two_ranks),
					   T(test_ahead),
					   T(test_copies),
					   T(test_copies_on_three)};

	if (argc > 1) /* One of them, by its name. */
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
