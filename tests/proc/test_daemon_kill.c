// SPDX-License-Identifier: Apache-2.0
/* A daemon that is killed -9 in each phase of a step. Its own trainers lose their connection; those
 * of the other node are told which node is out of reach and why, unless their node has voted: that
 * waits for the coordinator. When the dead node is back, or stays away, all are told that the model
 * is LOST, with node and chunks; one of them writes and seals it again, and training goes on. A
 * model that has nothing on the dead node loses nothing. A coordinator may also die between telling
 * its own trainers of a commit and telling the other node: when its memory comes back the step
 * stands, and without it the model is LOST. */
#include "base/clock.h"
#include "core/msg.h"
#include "lib/cutter.h"
#include "lib/drill.h"
#include "lib/pace.h"
#include "wire/ops.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SETTINGS                                                                                   \
	"optimizer=sgd lr=1 chunk_elems=1024 min_world=3 max_world=3 timeout=20s "                 \
	"when_lost=reinitialize"
#define HEARTBEAT_S 5
#define BEAT        "[cluster]\nheartbeat_timeout = 5s\n"

enum phase { IDLE, STAGING, PREPARED, DECIDED, TOLD, PHASES };

struct crowd {
	struct drill_yard *y;
	struct drill *t[3]; /* By rank. 0 and 1 are on node a. */
	uint64_t step;
};

static const char *address(const struct crowd *c, int i)
{
	return c->y->cluster->node[i / 2].unix_address;
}

static void join_all(struct crowd *c)
{
	for (int i = 0; i < 3; i++)
		c->t[i] = drill_joining(c->y, address(c, i), i, SETTINGS);
	for (int i = 0; i < 3; i++)
		drill_get(c->t[i], SHARD_OK);
}

static void start_as(struct crowd *c, void **state, const char *extra, bool warm)
{
	*c = (struct crowd){.y = *state};
	c->y->cluster = cluster_make(2, NULL, extra);
	if (warm)
		cluster_warm(c->y->cluster, CLUSTER_TMPFS);
	cluster_between(c->y->cluster);
	cluster_up(c->y->cluster);
	join_all(c);
}

static void start(struct crowd *c, void **state, const char *extra)
{
	start_as(c, state, extra, false);
}

static void finish(struct crowd *c)
{
	cluster_done(&c->y->cluster);
}

static void train_to(struct crowd *c, uint64_t step)
{
	for (int i = 0; i < 3; i++)
		DRILL_SEND(c->t[i], .op = DRILL_TRAIN, .step = step);
	for (int i = 0; i < 3; i++)
		drill_get(c->t[i], SHARD_OK);
	c->step = step;
}

/* STAGING: rank 2 has begun, and the others have committed and wait. PREPARED: both nodes have
 * voted, and node a does not hear the vote of node b. DECIDED: rank 0 knows the commit, and node b
 * may know it. TOLD: rank 2 knows it, too. */
static void advance(struct crowd *c, enum phase phase)
{
	cluster_votes(c->y->cluster, phase != PREPARED);
	for (int i = 0; i < 3 && phase != IDLE; i++) {
		DRILL(c->t[i], SHARD_OK, .op = DRILL_BEGIN);
		if (phase != STAGING || i != 2)
			DRILL(c->t[i], SHARD_OK, .op = DRILL_PUSH);
	}
	for (int i = 2; i >= 0 && phase != IDLE; i--) {
		if (phase == STAGING && i == 2)
			continue;
		DRILL(c->t[i], SHARD_OK, .op = DRILL_COMMIT);
		DRILL_SEND(c->t[i], .op = DRILL_RESULT);
	}
	if (phase == PREPARED)
		cluster_phase(c->y->cluster, 1, "prepared");
	if (phase >= DECIDED) {
		drill_get(c->t[0], SHARD_OK);
		c->step++;
	}
	if (phase == TOLD)
		drill_get(c->t[2], SHARD_OK);
}

static void await_frame(struct crowd *c)
{
	uint64_t until = pace_by(20);

	while (!cutter_fired(c->y->cluster->cutter)) {
		if (clock_ns() > until)
			fail_msg("the frame was never sent");
		usleep(1000);
	}
}

/* The same as DECIDED, but COMMIT does not reach node b, which has sent its vote. */
static void advance_untold(struct crowd *c)
{
	struct cutter_rule commit = {.low = 0,
				     .high = 1,
				     .op = OP_CORE + CORE_COMMIT,
				     .nth = 1,
				     .cut_high = 1,
				     .instead = true};

	advance(c, PREPARED);
	cutter_rule(c->y->cluster->cutter, &commit);
	cluster_votes(c->y->cluster, true);
	drill_get(c->t[0], SHARD_OK);
	await_frame(c);
	c->step++;
}

static uint64_t kill_node(struct crowd *c, int node)
{
	uint64_t at = clock_ns();

	cluster_signal(c->y->cluster, node, SIGKILL);
	assert_true(WIFSIGNALED(cluster_wait(c->y->cluster, node, 10000)));
	return at;
}

/* Whatever these calls return, a begin is legal after them. */
static void let_go(struct drill *t)
{
	drill_do(t, (struct drill_cmd){.op = DRILL_PUSH});
	drill_do(t, (struct drill_cmd){.op = DRILL_COMMIT});
}

/* A trainer of the other node that is in a call returns at once. One that is not hears of the death
 * in its next call. */
static void told(struct crowd *c, int i, const char *node, uint64_t at_ns)
{
	struct drill_reply *r = drill_recv(c->t[i], 20000);

	if (r->rc != SHARD_WORLD_CHANGED)
		fail_msg("rank %d: %s: %s, expected SHARD_WORLD_CHANGED", i, shard_name(r->rc),
			 r->error);
	drill_text(r->error, node);
	drill_text(r->error, "closed");
	assert_true(r->ended_ns - at_ns < HEARTBEAT_S * NS_PER_SEC / 2); /* Before silence
									    could tell. */
	DRILL(c->t[i], SHARD_OK, .op = DRILL_WORLD);
}

static void lost(struct crowd *c, int i, enum phase phase, const char *node, const char *how)
{
	struct drill_reply *r = drill_recv(c->t[i], 20000);

	/* The end of the attempt comes first. COMMIT may have left before the coordinator died. */
	if (r->rc == SHARD_WORLD_CHANGED || (r->rc == SHARD_OK && phase == DECIDED))
		r = drill_do(c->t[i],
			     (struct drill_cmd){.op = DRILL_TRAIN, .step = DRILL_STEPS - 1});
	if (r->rc != SHARD_LOST)
		fail_msg("rank %d: %s: %s, expected SHARD_LOST", i, shard_name(r->rc), r->error);
	drill_text(r->error, "\" is lost: node "); /* It is said once. */
	drill_text(r->error, node);
	drill_text(r->error, how);
	drill_text(r->error, "3 of 6 chunks");
	DRILL(c->t[i], SHARD_OK, .op = DRILL_DETACH);
}

/* The trainers of a dead daemon lose their connection, and the error names it. They connect
 * again. */
static void reconnect(struct crowd *c, int i)
{
	if (c->t[i]->out)
		drill_recv(c->t[i], 20000);
	let_go(c->t[i]);
	drill_do(c->t[i], (struct drill_cmd){.op = DRILL_TRAIN, .step = DRILL_STEPS - 1});
	if (c->t[i]->last.rc != SHARD_CLOSED)
		fail_msg("rank %d: %s: %s, expected SHARD_CLOSED", i, shard_name(c->t[i]->last.rc),
			 c->t[i]->last.error);
	drill_text(c->t[i]->last.error, ".sock");
	drill_end(c->t[i]);
	c->t[i] = drill_new(c->y, address(c, i));
}

/* Everybody defines the model. One creates, writes and seals it, and all train from step 0. */
static void begin_anew(struct crowd *c)
{
	struct drill_cmd define = {.op = DRILL_DEFINE, .text = SETTINGS};
	int created = 0;

	for (int i = 0; i < 3; i++)
		drill_send(c->t[i], define);
	for (int i = 0; i < 3; i++)
		created += drill_get(c->t[i], SHARD_OK)->created;
	assert_int_equal(created, 1);
	for (int i = 0; i < 3; i++) {
		if (!c->t[i]->last.created)
			continue;
		DRILL(c->t[i], SHARD_OK, .op = DRILL_WRITE);
		DRILL(c->t[i], SHARD_OK, .op = DRILL_SEAL);
		break; /* DRILL overwrites `last`. */
	}
	for (int i = 0; i < 3; i++)
		DRILL_SEND(c->t[i], .op = DRILL_JOIN, .hint = i);
	for (int i = 0; i < 3; i++) {
		drill_get(c->t[i], SHARD_OK);
		assert_int_equal(c->t[i]->last.world.step, 1);
		assert_int_equal(c->t[i]->last.world.rank, i);
	}
	train_to(c, 3);
	for (int i = 0; i < 3; i++)
		drill_replay(c->t[i], 3, 3);
}

static void await_loss(struct crowd *c, int dead, enum phase phase, uint64_t at_ns)
{
	for (int i = 2; i >= 0;
	     i--) { /* Those that wait come first, because rank 0 could still decide the step. */
		if (i / 2 == dead)
			continue;
		if ((phase == PREPARED || phase == DECIDED) && dead == 0)
			continue; /* Only the coordinator's verdict ends PREPARED. */
		else if (phase >= DECIDED && c->t[i]->out)
			drill_get(c->t[i], SHARD_OK); /* Its own node has decided so. */
		else if (c->t[i]->out)
			told(c, i, dead ? "node b" : "node a", at_ns);
		else if (phase != IDLE)
			let_go(c->t[i]);
		DRILL_SEND(c->t[i], .op = DRILL_TRAIN, .step = DRILL_STEPS - 1);
	}
}

static void come_back(struct crowd *c, int dead, enum phase phase, bool stays_away)
{
	const char *name = dead ? "node b" : "node a";

	if (!stays_away)
		cluster_spawn(c->y->cluster, dead);
	for (int i = 0; i < 3; i++)
		if (i / 2 != dead)
			lost(c, i, phase, name, stays_away ? "stayed away" : "started again");
	if (stays_away)
		cluster_spawn(c->y->cluster, dead);
	cluster_ready(c->y->cluster, dead);
	for (int i = 0; i < 3; i++)
		if (i / 2 == dead)
			reconnect(c, i);
	begin_anew(c);
}

static void one_death(struct crowd *c, int dead, enum phase phase, bool stays_away)
{
	uint64_t at;

	train_to(c, c->step + 2);
	advance(c, phase);
	at = kill_node(c, dead);
	cluster_votes(c->y->cluster, true);
	await_loss(c, dead, phase, at);
	come_back(c, dead, phase, stays_away);
}

static void test_member(void **state)
{
	struct crowd c;

	start(&c, state, BEAT);
	for (int phase = IDLE; phase < PHASES; phase++)
		one_death(&c, 1, (enum phase)phase, false);
	finish(&c);
}

static void test_member_stays_away(void **state)
{
	struct crowd c;

	start(&c, state, BEAT "lost_timeout = 1s\n");
	one_death(&c, 1, STAGING, true);
	finish(&c);
}

static void test_coordinator(void **state)
{
	struct crowd c;

	start(&c, state, BEAT);
	for (int phase = IDLE; phase < PHASES; phase++)
		one_death(&c, 0, (enum phase)phase, false);
	finish(&c);
}

/* Rank 0 knows of a commit that node b has not heard of, and the memory of node a is gone. */
static void test_untold(void **state)
{
	struct crowd c;

	start_as(&c, state, BEAT, false);
	train_to(&c, 2);
	advance_untold(&c);
	kill_node(&c, 0);
	cutter_rule(c.y->cluster->cutter, NULL);
	come_back(&c, 0, PREPARED, false); /* Rank 2 is not told that the step counts. */
	finish(&c);
}

/* The same, but the memory of node a comes back. What rank 0 was told still holds. */
static void test_untold_warm(void **state)
{
	struct crowd c;

	start_as(&c, state, BEAT, true);
	train_to(&c, 2);
	advance_untold(&c);
	kill_node(&c, 0);
	cutter_rule(c.y->cluster->cutter, NULL);
	cluster_spawn(c.y->cluster, 0);
	assert_int_equal(drill_get(c.t[2], SHARD_OK)->result.step, c.step);
	cluster_ready(c.y->cluster, 0);
	drill_replay(c.t[2], c.step, 3);
	finish(&c);
}

/* All chunks are on node a. The death of node b costs the attempt in hand, and the time until it is
 * back. */
static void test_nothing_there(void **state)
{
	struct drill_cmd define = {
		.op = DRILL_DEFINE,
		.layout = DRILL_ONE_CHUNK,
		.text = "optimizer=sgd lr=1 chunk_elems=1024 min_world=2 max_world=2 timeout=20s"};
	struct drill_yard *y = *state;
	struct drill *t[2];

	y->cluster = cluster_start(2, NULL, BEAT);
	for (int i = 0; i < 2; i++) {
		t[i] = drill_new(y, y->cluster->node[0].unix_address);
		drill_expect(t[i], SHARD_OK, define);
		if (t[i]->last.created) {
			DRILL(t[i], SHARD_OK, .op = DRILL_WRITE);
			DRILL(t[i], SHARD_OK, .op = DRILL_SEAL);
		}
		DRILL_SEND(t[i], .op = DRILL_JOIN, .hint = i);
	}
	for (int i = 0; i < 2; i++)
		drill_get(t[i], SHARD_OK);
	for (int i = 0; i < 2; i++)
		DRILL_SEND(t[i], .op = DRILL_TRAIN, .step = 400, .notify = 3);
	drill_get(t[0], SHARD_OK);
	t[0]->out = true; /* Its call to train has not returned yet. */
	cluster_signal(y->cluster, 1, SIGKILL);
	cluster_wait(y->cluster, 1, 10000);
	cluster_spawn(y->cluster, 1);
	cluster_ready(y->cluster, 1);
	drill_get(t[0], SHARD_OK);
	drill_get(t[1], SHARD_OK);
	t[1]->out = true;
	drill_get(t[1], SHARD_OK);
	drill_replay(t[0], 400, 2);
	drill_replay(t[1], 400, 2);
	cluster_stop(y->cluster);
	y->cluster = NULL;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_member, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_member_stays_away, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_coordinator, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_untold, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_untold_warm, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_nothing_there, drill_setup, drill_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
