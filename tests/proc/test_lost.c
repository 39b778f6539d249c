// SPDX-License-Identifier: Apache-2.0
/* Tests a model that is LOST and has no checkpoint. Nothing begins it anew by accident: define,
 * attach and write, seal, join and read are SHARD_LOST with what happened and the two ways on, also
 * after a restart of the coordinator. A drop makes room for a fresh definition, a restore brings
 * weights back, and with when_lost = reinitialize the model begins anew by itself. */
#include "base/check.h"
#include "client/ckpt.h"
#include "lib/drill.h"
#include "lib/keep.h"
#include "lib/tool.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SGD  "optimizer=sgd lr=1 chunk_elems=1024 timeout=20s"
#define BEAT "[cluster]\nheartbeat_timeout = 1s\n"

static const char *at(const struct drill_yard *y, int node)
{
	return y->cluster->node[node].unix_address;
}

static struct drill_cmd definition(const char *settings)
{
	struct drill_cmd define = {.op = DRILL_DEFINE};

	snprintf(define.text, sizeof(define.text), "%s", settings);
	return define;
}

/* A trainer on node a of two has trained some steps. Then node b starts with new memory. */
static struct drill *begin(struct drill_yard *y, const char *settings)
{
	struct drill *t;

	y->cluster = cluster_start(2, NULL, BEAT);
	t = drill_joining(y, at(y, 0), 0, settings);
	drill_get(t, SHARD_OK);
	DRILL(t, SHARD_OK, .op = DRILL_TRAIN, .step = 3);
	return t;
}

static void start_b_anew(struct drill_yard *y)
{
	cluster_kill(y->cluster, 1);
	cluster_spawn(y->cluster, 1);
	cluster_ready(y->cluster, 1);
}

static void ways_on(const char *text)
{
	drill_text(text, "node b started again, which held 3 of 6 chunks (lost: ");
	drill_text(text, ", of step 3): ");
	drill_text(text, "`shardctl restore DIR`");
	drill_text(text, "`shardctl model drop m`");
}

static void told(struct drill *t)
{
	struct drill_reply *r =
		drill_do(t, (struct drill_cmd){.op = DRILL_TRAIN, .step = DRILL_STEPS - 1});

	if (r->rc != SHARD_LOST)
		fail_msg("%s: %s", shard_name(r->rc), r->error);
	ways_on(r->error);
	DRILL(t, SHARD_OK, .op = DRILL_DETACH);
}

static void refused(struct drill_yard *y, int node)
{
	struct drill *t = drill_new(y, at(y, node));

	ways_on(drill_expect(t, SHARD_LOST, definition(SGD))->error);
	ways_on(drill_expect(t, SHARD_LOST, definition(SGD))
			->error);                            /* The connection still works. */
	DRILL(t, SHARD_OK, .op = DRILL_ATTACH, .text = "m"); /* As one would to look at it. */
	ways_on(DRILL(t, SHARD_LOST, .op = DRILL_WRITE)->error);
	ways_on(DRILL(t, SHARD_LOST, .op = DRILL_SEAL)->error);
	ways_on(DRILL(t, SHARD_LOST, .op = DRILL_JOIN)->error);
	ways_on(DRILL(t, SHARD_LOST, .op = DRILL_READ, .kind = SHARD_MASTER)->error);
	drill_end(t);
}

static void trains(struct drill_yard *y, int node, uint64_t first)
{
	struct drill *t = drill_joining(y, at(y, node), 0, SGD);

	assert_int_equal(drill_get(t, SHARD_OK)->world.step, first);
	DRILL(t, SHARD_OK, .op = DRILL_TRAIN, .step = first + 2);
	drill_end(t);
}

static void a_fresh_start_is_asked_for(void **state)
{
	struct drill_yard *y = *state;
	struct drill *t = begin(y, SGD);
	static const char *const commands[] = {"save m --dir /tmp/nowhere", "model pause m",
					       "model resume m", "model set m lr 0.5",
					       "model kick m 0"};
	char words[200];

	start_b_anew(y);
	told(t);
	refused(y, 0);
	refused(y, 1);
	/* The next start reads it in the file. */
	drill_end(t);
	cluster_kill(y->cluster, 0);
	cluster_spawn(y->cluster, 0);
	cluster_ready(y->cluster, 0);
	refused(y, 0);
	refused(y, 1); /* This waits for the link. */
	for (int n = 0; n < 2; n++)
		for (size_t i = 0; i < NR(commands); i++) {
			snprintf(words, sizeof(words), "%s --address %s", commands[i], at(y, n));
			tool_expect(5, "`shardctl restore DIR`", "shardctl", words);
			tool_expect(5, "`shardctl model drop m`", "shardctl", words);
			tool_expect(5, "\"m\" is lost: node b started again", "shardctl", words);
		}
	snprintf(words, sizeof(words), "status --address %s", at(y, 0));
	tool_expect(1, "lost: node b started again", "shardctl", words);
	snprintf(words, sizeof(words), "model drop m --address %s", at(y, 0));
	tool_expect(0, "", "shardctl", words);
	trains(y, 0, 1);
}

/* A node stays away. The others say for how long they wait for it. When it is back after the end of
 * that, it says why the model is lost, though it had no part in it. */
static void a_node_stays_away(void **state)
{
	struct drill_yard *y = *state;
	struct drill *t;

	y->cluster =
		cluster_start(3, NULL, "[cluster]\nheartbeat_timeout = 1s\nlost_timeout = 6s\n");
	t = drill_joining(y, at(y, 0), 0, SGD);
	drill_get(t, SHARD_OK);
	DRILL(t, SHARD_OK, .op = DRILL_TRAIN, .step = 3);
	cluster_kill(y->cluster, 2);
	for (int n = 0; n < 2; n++) {
		cluster_says(y->cluster, n, "node c has been away for ");
		cluster_says(y->cluster, n,
			     " s, with 2 chunks of which no node that is up has a copy: it is ");
		cluster_says(y->cluster, n, "\"awaited\":{\"node\":\"c\",\"chunks\":2,");
	}
	for (int n = 0; n < 2; n++)
		cluster_says(y->cluster, n, "\"lost\":\"node c stayed away, which held 2 of ");
	cluster_spawn(y->cluster, 2);
	cluster_ready(y->cluster, 2);
	cluster_says(y->cluster, 2, "\"lost\":\"node c stayed away, which held 2 of ");
	drill_end(t);
}

/* A model without weights has no copies that a drained node would have to hand on. */
static void a_drain_without_weights(void **state)
{
	struct drill_yard *y = *state;
	struct drill *t;
	char words[200];

	y->cluster =
		cluster_start(4, NULL, "[cluster]\nheartbeat_timeout = 1s\nlost_timeout = 1000s\n");
	t = drill_new(y, at(y, 0));
	drill_expect(t, SHARD_OK, definition(SGD));
	cluster_kill(y->cluster, 3);
	snprintf(words, sizeof(words), "drain d --timeout 10 --address %s", at(y, 0));
	tool_expect(0, "node d is drained, gone", "shardctl", words);
	snprintf(words, sizeof(words), "drain c --timeout 4 --address %s", at(y, 0));
	tool_expect(1, "\"m\": it has no weights, and its chunks move when it has", "shardctl",
		    words);
	drill_end(t);
}

static void a_checkpoint_is_brought(void **state)
{
	struct drill_yard *y = *state;
	struct drill *t, *early;
	struct keep keep;

	keep_init(&keep);
	t = begin(y, SGD);
	keep_must_save(at(y, 0), "m", keep.dir, "kept");
	DRILL(t, SHARD_OK, .op = DRILL_LEAVE);
	drill_end(t);
	cluster_stop(y->cluster);
	/* Another run of that name does not know of the folder. */
	t = begin(y, SGD);
	start_b_anew(y);
	told(t);
	drill_end(t);
	early = drill_new(y, at(y, 1));
	drill_expect(early, SHARD_LOST, definition(SGD));
	keep_must_restore(at(y, 1), keep.dir, "kept", NULL);
	assert_int_equal(drill_expect(early, SHARD_OK, definition(SGD))->created, 0);
	drill_end(early);
	trains(y, 1, 4);
	keep_free(&keep);
}

static void the_setting(void **state)
{
	struct drill_yard *y = *state;
	struct drill *t = begin(y, SGD " when_lost=reinitialize"), *u;
	struct drill_reply *r;

	start_b_anew(y);
	r = drill_do(t, (struct drill_cmd){.op = DRILL_TRAIN, .step = DRILL_STEPS - 1});
	assert_int_equal(r->rc, SHARD_LOST);
	drill_text(r->error, "node b started again");
	drill_text(r->error, "when_lost = reinitialize");
	DRILL(t, SHARD_OK, .op = DRILL_DETACH);
	u = drill_joining(y, at(y, 1), 0, SGD " when_lost=reinitialize");
	assert_int_equal(drill_get(u, SHARD_OK)->world.step, 1);
	DRILL(u, SHARD_OK, .op = DRILL_TRAIN, .step = 2);
	drill_replay(u, 2, 1);
}

/* A model that nobody has sealed yet cannot be lost. Whoever defines it next writes it. */
static void never_sealed(void **state)
{
	const struct drill_cmd seal = {.op = DRILL_SEAL};
	struct drill_yard *y = *state;
	struct drill_reply *r;
	struct drill *t;

	y->cluster = cluster_start(2, NULL, BEAT);
	t = drill_new(y, at(y, 0));
	assert_int_equal(drill_expect(t, SHARD_OK, definition(SGD))->created, 1);
	DRILL(t, SHARD_OK, .op = DRILL_WRITE);
	start_b_anew(y);
	do /* Node b is away, and half of the weights are missing. Then it is said. */
		r = drill_do(t, seal);
	while (r->rc == SHARD_UNREACHABLE || r->rc == SHARD_MISSING);
	assert_int_equal(r->rc, SHARD_LOST);
	drill_text(r->error, "define it again, write all weights and seal");
	drill_end(t);
	trains(y, 1, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_node_stays_away, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(a_drain_without_weights, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(a_fresh_start_is_asked_for, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(a_checkpoint_is_brought, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(the_setting, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(never_sealed, drill_setup, drill_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
