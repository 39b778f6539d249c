// SPDX-License-Identifier: Apache-2.0
/* Tests links that fall. The link between the nodes falls in the middle of a step, again and again,
 * or carries nothing any more. Trainers come over tcp and over unix sockets. The attempt is made
 * again, nothing is lost, and the bits are the same. */
#include "base/clock.h"
#include "lib/cutter.h"
#include "lib/drill.h"
#include "lib/pace.h"
#include "lib/rawpeer.h"
#include "wire/ops.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SGD   "optimizer=sgd lr=1 chunk_elems=1024 timeout=20s "
#define WORLD SGD "min_world=4 max_world=4"
#define BEAT  "[cluster]\nheartbeat_timeout = 1s\n"

struct crowd {
	struct drill_yard *y;
	struct drill *t[4]; /* 0 and 1 are on node a. */
};

static void all(struct crowd *c, enum shard_status want, struct drill_cmd cmd)
{
	for (int i = 0; i < 4; i++)
		drill_send(c->t[i], cmd);
	for (int i = 0; i < 4; i++)
		drill_get(c->t[i], want);
}
#define ALL(c, want, ...) all((c), (want), (struct drill_cmd){__VA_ARGS__})

static void start(struct crowd *c, void **state, bool proxy, unsigned tcp, const char *settings)
{
	*c = (struct crowd){.y = *state};
	c->y->cluster = cluster_make(2, NULL, BEAT);
	if (proxy)
		cluster_between(c->y->cluster);
	cluster_up(c->y->cluster);
	for (int i = 0; i < 4; i++) {
		struct cluster_node *n = &c->y->cluster->node[i / 2];

		c->t[i] = drill_joining(c->y, tcp >> i & 1 ? n->tcp_address : n->unix_address, i,
					settings);
	}
	if (strstr(settings, "min_world=4") ==
	    NULL) { /* The others train until the last one is in. */
		for (int i = 0; i < 3; i++)
			drill_get(c->t[i], SHARD_OK);
		drill_asked(c->y, c->t[3]);
		for (int i = 0; i < 3; i++)
			DRILL_SEND(c->t[i], .op = DRILL_TRAIN, .step = DRILL_STEPS - 1, .count = 4);
	}
	for (int i = 0; i < 4; i++)
		drill_get(c->t[i], SHARD_OK);
}

static void finish(struct crowd *c)
{
	cluster_stop(c->y->cluster);
	c->y->cluster = NULL;
}

/* STAGING: two ranks have not committed. Otherwise both nodes have voted, and node a does not hear
 * the vote of node b. */
static void fall(struct crowd *c, bool prepared, bool deaf, uint64_t step)
{
	uint64_t at;

	ALL(c, SHARD_OK, .op = DRILL_TRAIN, .step = step - 1);
	ALL(c, SHARD_OK, .op = DRILL_BEGIN);
	ALL(c, SHARD_OK, .op = DRILL_PUSH);
	cluster_votes(c->y->cluster, false);
	for (int i = 0; i < 4; i++) {
		if (!prepared && (i == 0 || i == 3))
			continue;
		DRILL(c->t[i], SHARD_OK, .op = DRILL_COMMIT);
		DRILL_SEND(c->t[i], .op = DRILL_RESULT);
	}
	if (prepared)
		cluster_phase(c->y->cluster, 1, "prepared");
	at = clock_ns();
	if (deaf)
		cutter_deaf(c->y->cluster->cutter, true);
	else
		cutter_cut(c->y->cluster->cutter);
	drill_get(c->t[1], SHARD_WORLD_CHANGED); /* Trainers of node a. The ranks of node b are out
						    of reach. */
	drill_text(c->t[1]->last.error, "node b");
	/* The kernel tells the nodes of a link that ends. A deaf link shows by its silence. */
	drill_text(c->t[1]->last.error, deaf ? "silent for 1.0 s" : "closed");
	if (deaf)
		assert_true(c->t[1]->last.ended_ns - at < pace_ns(2 * NS_PER_SEC));
	if (deaf)
		cutter_deaf(c->y->cluster->cutter, false);
	drill_get(c->t[2],
		  SHARD_WORLD_CHANGED); /* Trainers of node b, when the coordinator is back. */
	if (prepared) {
		drill_get(c->t[0], SHARD_WORLD_CHANGED);
		drill_get(c->t[3], SHARD_WORLD_CHANGED);
	}
	cluster_votes(c->y->cluster, true);
	for (int i = 0; i < 4; i++) {
		drill_do(c->t[i],
			 (struct drill_cmd){.op = DRILL_COMMIT}); /* Of an attempt that is over.
								     A begin is legal now. */
		DRILL(c->t[i], SHARD_OK, .op = DRILL_WORLD);
	}
	ALL(c, SHARD_OK, .op = DRILL_TRAIN, .step = step + 1);
}

static void test_falls_in_each_phase(void **state)
{
	struct crowd c;

	start(&c, state, true, 0, WORLD);
	for (int round = 0; round < 4; round++)
		fall(&c, round & 1, round & 2, 3 * (uint64_t)round + 2);
	for (int i = 0; i < 4; i++)
		drill_replay(c.t[i], 12, 4);
	finish(&c);
}

/* The link falls at any moment of a step. */
static void test_falls_while_training(void **state)
{
	struct crowd c;

	start(&c, state, true, 0x8, WORLD);
	for (uint64_t round = 0; round < 12; round++) {
		for (int i = 0; i < 4; i++)
			DRILL_SEND(c.t[i], .op = DRILL_TRAIN, .step = (round + 1) * 20,
				   .notify = round * 20 + 3 + round % 7);
		drill_get(c.t[round % 4], SHARD_OK);
		cutter_cut(c.y->cluster->cutter);
		c.t[round % 4]->out = true;
		for (int i = 0; i < 4; i++) {
			drill_get(c.t[i], SHARD_OK);
			if (i == (int)(round % 4))
				continue;
			c.t[i]->out = true;
			drill_get(c.t[i], SHARD_OK);
		}
	}
	for (int i = 0; i < 4; i++)
		drill_replay(c.t[i], 240, 4);
	finish(&c);
}

static uint64_t counter(const char *address, const char *key)
{
	struct raw r;
	char *json, *at;
	uint64_t n;

	raw_connect(&r, address);
	raw_hello(&r, ROLE_CTL);
	json = raw_status(&r);
	at = strstr(json, key);
	if (at == NULL)
		fail_msg("no %s in %s", key, json);
	n = strtoull(at + strlen(key) + 2, NULL, 10);
	free(json);
	raw_close(&r);
	return n;
}

/* Both nodes have both kinds of trainers. No tensor bytes of a step are copied between socket and
 * memory. */
static void test_mixed_trainers(void **state)
{
	struct crowd c;
	uint64_t before[2];

	start(&c, state, false, 0xa, WORLD);
	for (int i = 0; i < 2; i++)
		before[i] = counter(c.y->cluster->node[i].unix_address, "\"copied_bytes\"");
	ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = 20);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(counter(c.y->cluster->node[i].unix_address, "\"copied_bytes\""),
				 before[i]);
		assert_int_equal(counter(c.y->cluster->node[i].unix_address, "\"refused_frames\""),
				 0);
	}
	for (int i = 0; i < 4; i++)
		drill_replay(c.t[i], 20, 4);
	finish(&c);
}

/* A trainer keeps its socket open and says nothing. Its node gives it up within heartbeat_timeout +
 * 1 s, whichever node that is. */
static void silent(void **state, int sleeper)
{
	struct crowd c;
	char who[32];
	uint64_t at, step;

	start(&c, state, false, 0xa, SGD "min_world=3 max_world=4");
	step = c.t[3]->last.world.step + 1;
	ALL(&c, SHARD_OK, .op = DRILL_TRAIN, .step = step);
	for (int i = 0; i < 4; i++) {
		if (i == sleeper)
			continue;
		DRILL(c.t[i], SHARD_OK, .op = DRILL_BEGIN);
		DRILL(c.t[i], SHARD_OK, .op = DRILL_PUSH);
		DRILL(c.t[i], SHARD_OK, .op = DRILL_COMMIT);
		DRILL_SEND(c.t[i], .op = DRILL_RESULT);
	}
	at = clock_ns();
	proc_signal(c.t[sleeper]->pid, SIGSTOP);
	snprintf(who, sizeof(who), "rank %d (pid %d", sleeper, (int)c.t[sleeper]->pid);
	for (int i = 0; i < 4; i++) {
		if (i == sleeper)
			continue;
		drill_get(c.t[i], SHARD_WORLD_CHANGED);
		drill_text(c.t[i]->last.error, who);
		drill_text(c.t[i]->last.error, "silent");
		assert_true(c.t[i]->last.ended_ns - at < pace_ns(2 * NS_PER_SEC));
		DRILL(c.t[i], SHARD_OK, .op = DRILL_WORLD);
	}
	for (int i = 0; i < 4; i++)
		if (i != sleeper)
			DRILL_SEND(c.t[i], .op = DRILL_TRAIN, .step = step + 2);
	for (int i = 0; i < 4; i++)
		if (i != sleeper)
			drill_get(c.t[i], SHARD_OK);
	kill(c.t[sleeper]->pid, SIGCONT);
	DRILL(c.t[sleeper], SHARD_CLOSED, .op = DRILL_TRAIN, .step = step + 9);
	drill_replay(c.t[0], step + 2, 0);
	finish(&c);
}

static void test_silent_trainer(void **state)
{
	silent(state, 3);
}

/* A definition waits for the links over which its trainer writes. Here that is the link of node b
 * to node c, while all links of the coordinator are up. */
static void test_writer_waits(void **state)
{
	struct cutter_rule none = {.low = 1,
				   .high = 2,
				   .op = OP_HELLO,
				   .nth = 1,
				   .cut_low = 1,
				   .cut_high = 2,
				   .instead = true};
	struct drill_cmd define = {.op = DRILL_DEFINE, .text = SGD "min_world=1 max_world=1"};
	uint64_t until = pace_by(20);
	struct drill_yard *y = *state;
	struct cutter *k;
	struct drill *t;

	y->cluster = cluster_make(3, NULL, "[cluster]\nheartbeat_timeout = 30s\n");
	k = cutter_start(y->cluster);
	cutter_rule(k, &none);
	for (int n = 0; n < 3; n++)
		cluster_spawn(y->cluster, n);
	for (int n = 0; n < 3; n++)
		cluster_ready(y->cluster, n);
	while (!cutter_fired(k) && clock_ns() < until)
		usleep(1000);
	assert_true(cutter_fired(k));
	t = drill_new(y, y->cluster->node[1].unix_address);
	drill_send(t, define);
	if (poll(&(struct pollfd){.fd = t->fd, .events = POLLIN}, 1, 300) != 0)
		fail_msg("defined, and node b has no link to node c to write over");
	cutter_rule(k, NULL);
	assert_true(drill_get(t, SHARD_OK)->created);
	DRILL(t, SHARD_OK, .op = DRILL_WRITE);
	DRILL(t, SHARD_OK, .op = DRILL_SEAL);
	cluster_done(&y->cluster);
	cutter_stop(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_falls_in_each_phase, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_falls_while_training, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_mixed_trainers, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_silent_trainer, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_writer_waits, drill_setup, drill_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
