// SPDX-License-Identifier: Apache-2.0
/* A model that does not fit one node's budget is refused with figures wherever it is defined, on
 * the coordinator or because of the other node. Nothing stays reserved on any node, and a smaller
 * model is accepted afterwards. The queues for other processes have their place in the budget,
 * too. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/drill.h"
#include "lib/pace.h"
#include "lib/rawpeer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SMALL "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=2 timeout=20s"
/* Its arenas are for 60 trainers per node. */
#define CROWDED "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=60 timeout=20s"

static void memory(struct cluster *c, int node, const char *is)
{
	char text[4096], *at;
	FILE *f = fopen(c->node[node].conf, "r+e");
	size_t n;

	CHECK(f != NULL);
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	at = strstr(text, "memory = 256MiB");
	CHECK(at != NULL && strlen(is) <= 6);
	memcpy(at + 9, "      ", 6);
	memcpy(at + 9, is, strlen(is));
	rewind(f);
	CHECK(fwrite(text, 1, n, f) == n && fclose(f) == 0);
}

static uint64_t of_budget(const char *address, const char *what)
{
	char key[24];
	struct raw r;
	char *json, *at;
	uint64_t n;

	raw_connect(&r, address);
	raw_hello(&r, ROLE_CTL);
	snprintf(key, sizeof(key), "\"%s\":", what);
	json = raw_status(&r);
	at = strstr(json, key);
	CHECK(at != NULL);
	n = strtoull(at + strlen(key), NULL, 10);
	free(json);
	raw_close(&r);
	return n;
}

/* Returns what models use of the budget. */
static uint64_t used(const char *address)
{
	return of_budget(address, "used") - of_budget(address, "queues");
}

/* Waits until nothing is reserved, because a thread first gives back what it had begun to make. */
static void nothing_reserved(struct cluster *c)
{
	uint64_t by = pace_by(20);

	for (int i = 0; i < 2; i++)
		while (used(c->node[i].unix_address) != 0) {
			if (clock_ns() > by)
				fail_msg("node %s keeps %lu bytes", c->node[i].name,
					 (unsigned long)used(c->node[i].unix_address));
			usleep(1000);
		}
}

/* Memory for what waits to be read by trainers, tools and nodes is in the budget before there is a
 * model. In a large budget it is all of it, and in a small one a share. */
static void test_queues(void **state)
{
	static const struct {
		const char *memory;
		uint64_t queues;
	} at[] = {
		{"1MiB", 64 << 10}, {"256MiB", 16 << 20}, {"8GiB", (64 << 20) + 256 * (256 << 10)}};
	struct drill_yard *y = *state;

	for (size_t i = 0; i < NR(at); i++) {
		const char *address;

		y->cluster = cluster_make(1, NULL, NULL);
		memory(y->cluster, 0, at[i].memory);
		cluster_spawn(y->cluster, 0);
		cluster_ready(y->cluster, 0);
		address = y->cluster->node[0].unix_address;
		assert_int_equal(of_budget(address, "queues"), at[i].queues);
		assert_int_equal(of_budget(address, "used"), at[i].queues);
		cluster_done(&y->cluster);
	}
}

static void test_refused(void **state)
{
	struct drill_cmd big = {
		.op = DRILL_DEFINE, .layout = DRILL_HUGE, .text = "optimizer=adamw"};
	struct drill_cmd crowded = {.op = DRILL_DEFINE, .text = CROWDED};
	struct drill_yard *y = *state;
	struct drill *t[2];

	y->cluster = cluster_make(2, NULL, NULL);
	memory(y->cluster, 1, "1MiB");
	for (int i = 0; i < 2; i++)
		cluster_spawn(y->cluster, i);
	for (int i = 0; i < 2; i++)
		cluster_ready(y->cluster, i);
	for (int i = 0; i < 2; i++)
		t[i] = drill_new(y, y->cluster->node[i].unix_address);
	for (int i = 0; i < 2; i++) { /* It is too large for the coordinator. */
		drill_expect(t[i], SHARD_BUDGET, big);
		drill_text(t[i]->last.error,
			   "needs at least 4.5 GiB on node a (state 1.5, image 1.0, ");
		drill_text(t[i]->last.error, "GiB are free");
		nothing_reserved(y->cluster);
	}
	/* It is too large for node b only. Node a gives back what it had reserved. */
	for (int i = 0; i < 2; i++) {
		drill_expect(t[i], SHARD_BUDGET, crowded);
		drill_text(t[i]->last.error, "node b");
		drill_text(t[i]->last.error, "are free");
		nothing_reserved(y->cluster);
	}
	for (int i = 0; i < 2; i++)
		drill_define(t[i], SMALL);
	for (int i = 0; i < 2; i++)
		assert_in_range(used(y->cluster->node[i].unix_address), 1, 1 << 20);
	DRILL(t[1], SHARD_OK, .op = DRILL_JOIN, .hint = 0);
	DRILL(t[1], SHARD_OK, .op = DRILL_TRAIN, .step = 3);
	drill_replay(t[1], 3, 1);
	cluster_stop(y->cluster);
	y->cluster = NULL;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_queues, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_refused, drill_setup, drill_teardown)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
