// SPDX-License-Identifier: Apache-2.0
/* Trains five models of different size and placement on three nodes. Two train, and the others
 * rest. The daemons are killed with kill -9 in turn, at random instants of steps and of each
 * other's starts, and their memory is kept. One model must never cost another its memory: no model
 * is lost, every weight and moment equals the reference bit by bit, and each restart is warm.
 * SEED=n repeats the instants of a run. */
#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "lib/crew.h"
#include "lib/pace.h"
#include "lib/proc.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NODES = 3, MODELS = 5, KILLS = 15, ALL = 7 };

struct beside {
	struct cluster *cluster;
	struct crew crew[MODELS];
};

/* `on` has the bits of nodes with one trainer each. A model with steps = 0 trains as long as the
 * test does. Any other model rests after so many steps. */
static const struct plan {
	const char *name, *extra;
	uint32_t scale;
	unsigned on;
	uint64_t steps;
} plans[MODELS] = {
	{"big", "chunk_elems=4096", 8, 7, 8}, /* It has chunks on every node. */
	/* It has one chunk, so two nodes hold nothing of it. One of them has no trainer either. */
	{"probe", "chunk_elems=8192", 1, 3, 0},
	/* It has chunks on every node, and no trainer on the coordinator. */
	{"wide", "chunk_elems=1024", 2, 6, 0},
	{"idle", "chunk_elems=2048", 1, 1, 5},      /* It has one chunk per node. */
	{"reward", "chunk_elems=131072", 12, 4, 2}, /* It has one chunk, which workers compute. */
};

static int setup(void **state)
{
	*state = calloc(1, sizeof(struct beside));
	return *state == NULL;
}

static int teardown(void **state)
{
	struct beside *b = *state;

	if (b->cluster == NULL)
		free(b);
	else /* The test failed. Its trainers still run, and end with the program. */
		cluster_put_away(&b->cluster);
	return 0;
}

static uint64_t seed(void)
{
	const char *given = getenv("SEED");
	uint64_t at = given != NULL ? strtoull(given, NULL, 0) : clock_ns();

	print_message("SEED=%lu\n", (unsigned long)at);
	return at;
}

static void begin(struct beside *b, enum cluster_warm how)
{
	b->cluster = cluster_make(NODES, NULL, "[cluster]\nheartbeat_timeout = 2s");
	cluster_warm(b->cluster, how);
	for (int n = 0; n < NODES; n++)
		cluster_spawn(b->cluster, n);
	for (int n = 0; n < NODES; n++)
		cluster_ready(b->cluster, n);
	for (int i = 0; i < MODELS; i++) {
		struct crew *c = &b->crew[i];

		crew_init(c, plans[i].name);
		crew_larger(c, plans[i].scale);
		c->extra = plans[i].extra;
		c->pause_us = 2000;
		for (uint32_t n = 0; n < NODES; n++)
			if (plans[i].on >> n & 1)
				crew_add(c, b->cluster->node[n].unix_address, n)->reconnects = true;
		crew_start(c, plans[i].steps != 0 ? plans[i].steps : UINT64_MAX);
		if (plans[i].steps != 0)
			crew_finish(c);
		else
			crew_wait_step(c, 3);
	}
}

static void kill_one(struct beside *b, int node)
{
	cluster_signal(b->cluster, node, SIGKILL);
	cluster_wait(b->cluster, node, 10000);
	cluster_spawn(b->cluster, node);
}

/* Waits until each model that trains has made so many steps. A trainer that waits for ever is found
 * here. */
static void go_on(struct beside *b, uint64_t steps)
{
	for (int i = 0; i < MODELS; i++)
		if (plans[i].steps == 0)
			crew_wait_step(&b->crew[i], crew_step(&b->crew[i]) + steps);
}

static uint32_t logged(struct cluster *c, int node, const char *part)
{
	char *text = cluster_log(c, node);
	uint32_t nr = 0;

	for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
		nr++;
	free(text);
	return nr;
}

/* Waits until the node reaches every other node, because it answers trainers before its links are
 * up. */
static void linked(struct cluster *c, int node)
{
	uint64_t by = pace_by(15);
	shard_client *client = crew_connect(c->node[node].unix_address);
	enum shard_status st;
	shard_model *m;
	float all[256];
	uint64_t step;

	MUST(shard_attach(client, plans[0].name, &m));
	/* Its first tensor has chunks on every node. */
	do {
		st = SHARD_OK;
		step = 0;
		for (uint64_t at = 0; at < 37 * 64 * plans[0].scale && st == SHARD_OK; at += 8192)
			st = shard_read(m, SHARD_MASTER, 0, at, 256, SHARD_F32, all, &step);
		if (st == SHARD_UNREACHABLE)
			usleep(2000);
	} while (st == SHARD_UNREACHABLE && clock_ns() < by);
	crew_must(st, SHARD_OK, "reading from every node");
	shard_disconnect(&client);
}

static void whole(struct beside *b)
{
	for (int n = 0; n < NODES; n++)
		linked(b->cluster, n);
	for (int n = 0; n < NODES; n++) {
		assert_int_equal(logged(b->cluster, n, "event=lost"), 0);
		assert_int_equal(logged(b->cluster, n, "event=model_void"), 0);
		/* Only its first start is cold. */
		assert_int_equal(logged(b->cluster, n, "event=cold_start"), 1);
	}
	for (int i = 0; i < MODELS; i++) {
		uint64_t last = plans[i].steps != 0 ? plans[i].steps : crew_finish(&b->crew[i]);

		for (int n = 0; n < NODES; n++)
			crew_check(&b->crew[i], b->cluster->node[n].unix_address, last);
		print_message("\"%s\": %lu steps\n", plans[i].name, (unsigned long)last);
	}
	cluster_done(&b->cluster);
}

static void test_in_turn(void **state)
{
	struct beside *b = *state;
	struct rng r = {.state = seed()};

	begin(b, CLUSTER_TMPFS);
	for (int k = 0; k < KILLS; k++) {
		/* Otherwise the next node is killed while the previous one is still starting. */
		if (k % 5 != 4)
			go_on(b, 1);
		usleep((useconds_t)rng_below(&r, 20000));
		kill_one(b, k % NODES);
		if (k % 5 != 3)
			cluster_ready(b->cluster, k % NODES);
	}
	for (int n = 0; n < NODES; n++)
		cluster_ready(b->cluster, n);
	go_on(b, 2);
	whole(b);
}

/* Kills the whole cluster at once, with memory in the other place. */
static void test_all_at_once(void **state)
{
	struct beside *b = *state;
	struct rng r = {.state = seed()};

	begin(b, CLUSTER_SYSTEMD);
	for (int k = 0; k < 3; k++) {
		go_on(b, 1);
		usleep((useconds_t)rng_below(&r, 20000));
		for (int n = 0; n < NODES; n++)
			cluster_signal(b->cluster, n, SIGKILL);
		for (int n = 0; n < NODES; n++)
			cluster_wait(b->cluster, n, 10000);
		for (int n = 0; n < NODES; n++)
			cluster_spawn(b->cluster, n);
		for (int n = 0; n < NODES; n++)
			cluster_ready(b->cluster, n);
	}
	go_on(b, 2);
	whole(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_in_turn, setup, teardown),
		cmocka_unit_test_setup_teardown(test_all_at_once, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
