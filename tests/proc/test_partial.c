// SPDX-License-Identifier: Apache-2.0
/* Three real nodes, of which two lose the link between them while both keep the one to the
 * coordinator: it ends, or nothing passes in both directions, or in one of them. The coordinator
 * goes on without exactly one of the two, in about heartbeat_timeout, and stays with that as long
 * as the link is cut. When it may be made again, the node comes back and catches up. Masters,
 * moments and image equal the reference bit by bit. With one copy of each chunk nobody can leave,
 * and the status says which link the step waits for. */
#include "base/clock.h"
#include "lib/cutter.h"
#include "lib/etcds.h"
#include "lib/loss.h"
#include "lib/pace.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define BEAT "heartbeat_timeout = 2s\nlost_timeout = 60s\n"
/* The coordinator must stay one, on a busy machine too. */
#define QUORUM "[cluster]\nmembership = quorum\nelection_timeout = 2s\n"
/* Silence is heard after heartbeat_timeout, and a link gets 2.5 s to be made anew. */
#define GOES_ON_MS 8000

static struct etcds etcd;

static uint32_t left_nr(struct loss *l, const char *what)
{
	uint32_t nr = 0;

	for (int n = 0; n < LOSS_NODES; n++)
		nr += cluster_logged(l->cluster, n, what);
	return nr;
}

/* Two members by the word of the coordinator. */
static bool goes_without(struct loss *l, int leader, int a, int b)
{
	char without[32];

	snprintf(without, sizeof(without), "\"members\":[\"%c\",\"%c\"]",
		 'a' + (leader < a ? leader : a), 'a' + (leader < a ? a : leader));
	if (loss_says(l, leader, without))
		return true;
	snprintf(without, sizeof(without), "\"members\":[\"%c\",\"%c\"]",
		 'a' + (leader < b ? leader : b), 'a' + (leader < b ? b : leader));
	return loss_says(l, leader, without);
}

static void cut(struct loss *l, enum cutter_part how, unsigned stays_s)
{
	int leader = loss_leader(l), low = leader == 0 ? 1 : 0, high = leader == 2 ? 1 : 2;
	uint32_t before = left_nr(l, "event=member_cut_off ");
	uint64_t began = clock_ns(), told = atomic_load(&l->crew.told);

	fprintf(stderr, "node %c coordinates, %c and %c lose their link (%d)\n", 'a' + leader,
		'a' + low, 'a' + high, how);
	/* What the trainer of the one that leaves hears is old, until its node is back. */
	atomic_fetch_or(&l->crew.away, 1ull << low | 1ull << high);
	cutter_part(l->cluster->cutter, low, high, how);
	crew_wait_told(&l->crew, told + 3, LOSS_NODES - 1, began + pace_ns(GOES_ON_MS * NS_PER_MS));
	fprintf(stderr, "steps again after %.1f s\n", (double)(clock_ns() - began) / NS_PER_SEC);
	assert_true(goes_without(l, leader, low, high));
	/* For so long that it would have come back, left again, and come back once more. */
	told = atomic_load(&l->crew.told);
	crew_wait_told(&l->crew, told + 3, LOSS_NODES - 1, pace_by(10));
	began = clock_ns();
	while (clock_ns() < began + stays_s * NS_PER_SEC) { /* The test is about this time. */
		assert_true(goes_without(l, leader, low, high));
		(void)poll(NULL, 0, 100);
	}
	assert_int_equal(left_nr(l, "event=member_cut_off "), before + 1);
	assert_int_equal(loss_leader(l), leader);
	cutter_part(l->cluster->cutter, low, high, CUTTER_WHOLE);
	loss_whole(l);
	atomic_store(&l->crew.away, 0);
	loss_check(l);
	assert_int_equal(left_nr(l, "event=member_cut_off "), before + 1);
}

static void test_ends(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.lines = QUORUM BEAT, .between = true});
	cut(l, CUTTER_ENDS, 4);
	cut(l, CUTTER_SILENT, 4);
	loss_finish(l);
}

static void test_one_way(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.lines = QUORUM BEAT, .between = true});
	cut(l, CUTTER_TO_LOW, 8);
	cut(l, CUTTER_TO_HIGH, 8);
	loss_finish(l);
}

/* The first node of the list coordinates. */
static void test_static(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.lines = "[cluster]\nmembership = static\n" BEAT,
					  .between = true});
	cut(l, CUTTER_ENDS, 4);
	loss_finish(l);
}

static void part(struct loss *l, int a, int b, enum cutter_part how)
{
	cutter_part(l->cluster->cutter, a < b ? a : b, a < b ? b : a, how);
}

/* The coordinator keeps its lease, and loses its links to both others. They go on without it. */
static void test_yields(void **state)
{
	struct loss *l = *state;
	char lines[600];
	int leader, x, y;
	uint64_t began;

	if (!etcds_here())
		skip();
	etcds_make(&etcd, 1, 0);
	snprintf(lines, sizeof(lines),
		 "[cluster]\nmembership = etcd\netcd_endpoints = %s\nelection_timeout = "
		 "2s\n" BEAT,
		 etcd.endpoints);
	loss_begin(l, &(struct loss_conf){.lines = lines, .between = true});
	leader = loss_leader(l);
	x = (leader + 1) % LOSS_NODES;
	y = (leader + 2) % LOSS_NODES;
	l->known = atomic_load(&l->crew.told);
	atomic_fetch_or(&l->crew.away, 1ull << leader);
	began = clock_ns();
	part(l, leader, x, CUTTER_ENDS);
	part(l, leader, y, CUTTER_ENDS);
	crew_wait_told(&l->crew, l->known + 3, LOSS_NODES - 1,
		       began + pace_ns(GOES_ON_MS * NS_PER_MS));
	fprintf(stderr, "steps again after %.1f s\n", (double)(clock_ns() - began) / NS_PER_SEC);
	assert_int_equal(cluster_logged(l->cluster, leader, "event=resigns "), 1);
	assert_int_not_equal(loss_leader(l), leader);
	part(l, leader, x, CUTTER_WHOLE);
	part(l, leader, y, CUTTER_WHOLE);
	loss_whole(l);
	atomic_store(&l->crew.away, 0);
	loss_check(l);
	loss_finish(l);
	etcds_end(&etcd);
}

/* One copy of each chunk: it waits for the link. */
static void test_one_copy(void **state)
{
	struct loss *l = *state;
	struct crew *c = &l->crew;
	uint64_t told;

	l->cluster = cluster_make(LOSS_NODES, NULL, "[cluster]\n" BEAT);
	cluster_between(l->cluster);
	cluster_up(l->cluster);
	crew_init(c, "loss");
	c->extra = "replicas=1";
	c->pause_us = 2000;
	for (uint32_t n = 0; n < LOSS_NODES; n++)
		crew_add(c, l->cluster->node[n].unix_address, n)->reconnects = true;
	crew_start(c, UINT64_MAX);
	l->trains = true;
	crew_wait_step(c, 5);
	cutter_part(l->cluster->cutter, 1, 2, CUTTER_ENDS);
	cluster_says(l->cluster, 0, "has no link to node ");
	assert_false(loss_says(l, 0, "\"members\":[\"a\",\"b\"]"));
	cutter_part(l->cluster->cutter, 1, 2, CUTTER_WHOLE);
	told = crew_step(c);
	crew_wait_step(c, told + 3);
	told = crew_finish(c);
	l->trains = false;
	for (int n = 0; n < LOSS_NODES; n++)
		crew_check(c, l->cluster->node[n].unix_address, told);
	assert_int_equal(left_nr(l, "event=member_cut_off "), 0);
	cluster_done(&l->cluster);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_ends, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_one_way, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_static, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_yields, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_one_copy, loss_setup, loss_teardown)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
