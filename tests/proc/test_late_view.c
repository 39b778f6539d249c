// SPDX-License-Identifier: Apache-2.0
/* Tests a node that starts again and is told of a model with the generation in force, but has no
 * view of it yet. That generation ends before the first view comes. Another node had started again
 * a moment earlier, and the view that says what was lost with it is still being written to a slow
 * disk. The first view of the node then says nothing of a loss, but has a newer generation. The
 * node must follow it: the restore gets its share, and trainers that have attached and joined there
 * meanwhile hear of the loss. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/drill.h"
#include "lib/hold.h"
#include "lib/keep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SGD  "optimizer=sgd lr=1 chunk_elems=1024 timeout=120s"
#define BEAT "[cluster]\nheartbeat_timeout = 30s\n"

enum { STEPS = 3 };

static const char *at(const struct drill_yard *y, int node)
{
	return y->cluster->node[node].unix_address;
}

static void spawn(struct drill_yard *y, int node)
{
	cluster_spawn(y->cluster, node);
	cluster_ready(y->cluster, node);
	/* It has been told of the model. */
	cluster_wait_log(y->cluster, node, "event=model model=m ", 2);
}

/* Brings node b to where it has started again and has no view. It was away when the view in
 * question was made, so that view is not sent to it. */
static void without_a_view(struct drill_yard *y, struct hold *h)
{
	hold_disk(h, y->cluster->node[0].pid);
	cluster_kill(y->cluster, 1);
	cluster_wait_log(y->cluster, 0, "event=link_down peer=b ", 1);
	cluster_kill(y->cluster, 2);
	spawn(y, 2);
	cluster_says(y->cluster, 0, "\"state\":\"recovering\""); /* A view is being written. */
	spawn(y, 1);
}

static void begin(struct drill_yard *y)
{
	struct drill *t;

	y->cluster = cluster_start(3, NULL, BEAT);
	t = drill_joining(y, at(y, 0), 0, SGD);
	drill_get(t, SHARD_OK);
	DRILL(t, SHARD_OK, .op = DRILL_TRAIN, .step = STEPS);
	DRILL(t, SHARD_OK, .op = DRILL_LEAVE);
	drill_end(t);
}

static void comes_back(void **state)
{
	struct drill_yard *y = *state;
	struct drill *t;
	struct keep keep;
	struct hold h;

	keep_init(&keep);
	begin(y);
	keep_must_save(at(y, 0), "m", keep.dir, "kept");
	without_a_view(y, &h);
	t = drill_new(y, at(y, 1));
	DRILL(t, SHARD_OK, .op = DRILL_ATTACH, .text = "m");
	DRILL_SEND(t, .op = DRILL_JOIN);
	cluster_wait_log(y->cluster, 1, "event=join model=m ", 1);
	hold_release(&h);
	cluster_wait_log(y->cluster, 0, "event=restored model=m ", 1);
	assert_int_equal(drill_get(t, SHARD_OK)->world.step, STEPS + 1);
	DRILL(t, SHARD_OK, .op = DRILL_TRAIN, .step = STEPS + 2);
	drill_replay(t, STEPS + 2, 1);
	drill_end(t);
	cluster_done(&y->cluster);
	keep_free(&keep);
}

static void is_lost(void **state)
{
	struct drill_yard *y = *state;
	struct drill *t;
	struct hold h;

	begin(y);
	without_a_view(y, &h);
	t = drill_new(y, at(y, 1));
	DRILL(t, SHARD_OK, .op = DRILL_ATTACH, .text = "m");
	DRILL_SEND(t, .op = DRILL_JOIN);
	cluster_wait_log(y->cluster, 1, "event=join model=m ", 1);
	hold_release(&h);
	drill_get(t, SHARD_LOST);
	drill_text(t->last.error, "`shardctl restore DIR`");
	drill_end(t);
	cluster_done(&y->cluster);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, drill_setup, drill_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {T(comes_back), T(is_lost)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
