// SPDX-License-Identifier: Apache-2.0
/* Tests SIGTERM in PREPARED and in APPLYING. A test cannot hit these phases by chance, so chunks
 * are large enough for workers, and the workers are held. A decided step is complete on every node
 * before its process ends. A node that has voted waits for the verdict, and names the coordinator
 * that did not send one. A coordinator that stops ends the attempt itself. With warm_restart the
 * next start of any node goes on with exact weights. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/drill.h"
#include "lib/hold.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { A, B, NODES, CHUNK = 32768, NUMEL = NODES * CHUNK };

/* There is one trainer on each of two nodes, and each node has a chunk. */
struct duo {
	struct drill_yard *y;
	struct trainer t[NODES];
	struct hold still; /* The workers of a node that must not vote yet. */
	float w[NUMEL];
};

static float weight(uint32_t i)
{
	return (float)(i % 97) - 48.0f;
}

static void define(struct duo *d, int node)
{
	static const struct shard_tensor tensor[] = {
		{.name = "w", .ndim = 2, .shape = {NODES, CHUNK}}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	struct trainer *t = &d->t[node];

	s.name = "m";
	s.tensors = tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd lr=1 chunk_elems=32768 timeout=20s min_world=2 max_world=2";
	trainer_connect(t, d->y->cluster->node[node].unix_address);
	EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
	if (!t->created)
		return;
	for (uint32_t i = 0; i < NUMEL; i++)
		d->w[i] = weight(i);
	EXPECT(SHARD_OK, shard_write(t->model, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, d->w));
	EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

static void joined(struct duo *d)
{
	/* Rank 0 joins first. The world is complete with rank 1. */
	EXPECT(SHARD_TIMEOUT, shard_join(d->t[A].model, 0, 0, &d->t[A].world));
	EXPECT(SHARD_OK, shard_join(d->t[B].model, 1, pace_ms(10000), &d->t[B].world));
	EXPECT(SHARD_OK, shard_join(d->t[A].model, 0, pace_ms(10000), &d->t[A].world));
}

/* Pushes gradients whose mean is 2. Nobody commits. */
static void pushed(struct duo *d)
{
	for (int n = 0; n < NODES; n++) {
		shard_ticket ticket;

		trainer_begin(&d->t[n]);
		for (uint32_t i = 0; i < NUMEL; i++)
			d->w[i] = n == A ? 1.0f : 3.0f;
		EXPECT(SHARD_OK,
		       shard_push(d->t[n].model, 0, 0, NUMEL, d->w, SHARD_F32, 0, &ticket));
		EXPECT(SHARD_OK, shard_wait(d->t[n].model, ticket, pace_ms(10000)));
	}
}

static struct duo *begun(void **state, bool warm, const char *conf)
{
	struct duo *d = calloc(1, sizeof(*d));

	CHECK(d != NULL);
	d->y = *state;
	d->y->cluster = cluster_make(NODES, NULL, conf);
	if (warm)
		cluster_warm(d->y->cluster, CLUSTER_TMPFS);
	for (int n = 0; n < NODES; n++)
		cluster_spawn(d->y->cluster, n);
	for (int n = 0; n < NODES; n++) {
		cluster_ready(d->y->cluster, n);
		define(d, n);
	}
	joined(d);
	return d;
}

static void commit(struct duo *d, int node)
{
	shard_ticket ticket;

	EXPECT(SHARD_OK, shard_commit(d->t[node].model, &ticket));
}

static void in_phase(struct duo *d, int node, const char *phase)
{
	cluster_phase(d->y->cluster, node, phase);
}

/* All ranks have committed, and `node` has voted. The other node has not, because its workers stand
 * still. */
static struct duo *prepared(void **state, int node, bool warm, const char *conf)
{
	struct duo *d = begun(state, warm, conf);

	hold_threads(&d->still, d->y->cluster->node[!node].pid, "shardd-w");
	pushed(d);
	commit(d, A);
	commit(d, B);
	in_phase(d, node, "prepared");
	return d;
}

static void wait_logged(struct duo *d, int node, const char *part)
{
	cluster_wait_log(d->y->cluster, node, part, 1);
}

static void ended(struct duo *d, int node)
{
	int status = cluster_wait(d->y->cluster, node, 15000);

	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void result_is(struct duo *d, int node, enum shard_status want, const char *text,
		      uint64_t step)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	EXPECT(want, shard_result(d->t[node].model, 0, pace_ms(10000), &r));
	if (text != NULL)
		EXPECT_TEXT(text);
	if (want == SHARD_OK) {
		assert_int_equal(r.outcome, SHARD_APPLIED);
		assert_int_equal(r.step, step);
	}
}

/* Checks the image of a step. Its chunks come from both nodes. */
static void whole(struct duo *d, int node, uint64_t step)
{
	shard_ticket ticket;

	EXPECT(SHARD_OK, shard_pull(d->t[node].model, 0, 0, NUMEL, step, d->w, SHARD_F32, &ticket));
	EXPECT(SHARD_OK, shard_wait(d->t[node].model, ticket, pace_ms(10000)));
	for (uint32_t i = 0; i < NUMEL; i++)
		assert_true(d->w[i] == weight(i) - 2.0f * (float)step);
}

/* The memory outlives the process. The node comes back with the weights of `step`, and the next
 * step is right, too. */
static void goes_on(struct duo *d, int node, uint64_t step)
{
	struct cluster *c = d->y->cluster;
	uint64_t at = step;

	cluster_spawn(c, node);
	cluster_ready(c, node);
	wait_logged(d, node, "event=warm_start");
	for (int n = 0; n < NODES; n++) {
		trainer_end(&d->t[n]);
		define(d, n);
		assert_false(d->t[n].created);
	}
	joined(d); /* Afterwards all nodes are linked. */
	for (int n = 0; n < NODES; n++) {
		EXPECT(SHARD_OK,
		       shard_read(d->t[n].model, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, d->w, &at));
		for (uint32_t i = 0; i < NUMEL; i++)
			assert_true(d->w[i] == weight(i) - 2.0f * (float)step);
	}
	pushed(d);
	commit(d, A);
	commit(d, B);
	for (int n = 0; n < NODES; n++)
		result_is(d, n, SHARD_OK, NULL, step + 1);
	whole(d, A, step + 1);
	whole(d, B, step + 1);
}

static void finish(struct duo *d)
{
	for (int n = 0; n < NODES; n++)
		trainer_end(&d->t[n]);
	cluster_done(&d->y->cluster);
	free(d);
}

/* `node` has voted, and its workers stand still when the vote of the other node decides the step.
 * It is told to stop before its chunk is updated. */
static void applying(void **state, int node, bool warm)
{
	struct duo *d = prepared(state, node, warm, NULL);
	struct cluster *c = d->y->cluster;
	int other = !node;
	char text[64];
	struct hold h;

	hold_threads(&h, c->node[node].pid, "shardd-w");
	hold_release(&d->still);
	for (int n = 0; n < NODES; n++)
		result_is(d, n, SHARD_OK, NULL, 1);
	in_phase(d, node, "applying");
	cluster_signal(c, node, SIGTERM);
	wait_logged(d, node, "applying: the decided step is finished first");
	assert_int_equal(waitpid(c->node[node].pid, NULL, WNOHANG), 0);
	hold_release(&h);
	ended(d, node);
	wait_logged(d, node, "event=stopped");
	whole(d, other, 1); /* `node` sent its chunk before it ended. */
	snprintf(text, sizeof(text), "why=\"node %s stops: SIGTERM\"", c->node[node].name);
	wait_logged(d, other, text);
	wait_logged(d, node, warm ? "kept=1" : "kept=0");
	if (warm)
		goes_on(d, node, 1);
	finish(d);
}

static void test_applying_coordinator(void **state)
{
	applying(state, A, false);
}

static void test_applying_other(void **state)
{
	applying(state, B, false);
}

static void test_applying_coordinator_warm(void **state)
{
	applying(state, A, true);
}

static void test_applying_other_warm(void **state)
{
	applying(state, B, true);
}

/* Nothing is decided yet. The attempt ends, and the weights stay. */
static void staging_warm(void **state, int node)
{
	struct duo *d = begun(state, true, NULL);

	pushed(d);
	cluster_signal(d->y->cluster, node, SIGTERM);
	wait_logged(d, node, "not decided, it is aborted");
	ended(d, node);
	goes_on(d, node, 0);
	finish(d);
}

static void test_staging_coordinator_warm(void **state)
{
	staging_warm(state, A);
}

static void test_staging_other_warm(void **state)
{
	staging_warm(state, B);
}

/* A node that has voted ends without the verdict, and gets it when it is back. */
static void test_prepared_warm(void **state)
{
	struct duo *d = prepared(state, B, true, "[daemon]\nstop_timeout = 200ms\n");

	cluster_signal(d->y->cluster, B, SIGTERM);
	ended(d, B);
	wait_logged(d, B, "means=\"the vote is kept: the next start hears the verdict\"");
	hold_release(&d->still);
	goes_on(d, B, 0);
	finish(d);
}

/* The verdict does not come. The node ends after stop_timeout, and the log says what it leaves. */
static void test_no_verdict(void **state)
{
	struct duo *d = prepared(state, B, false, "[daemon]\nstop_timeout = 700ms");
	uint64_t at;

	at = clock_ns();
	cluster_signal(d->y->cluster, B, SIGTERM);
	wait_logged(d, B, "prepared: step 1 is voted for, the verdict of node a is waited for");
	ended(d, B);
	assert_true(clock_ns() - at >= 700 * NS_PER_MS);
	wait_logged(
		d, B,
		"event=stop_undecided model=m step=1 why=\"no verdict of node a within 0.7 s\"");
	result_is(d, B, SHARD_CLOSED, "node b stops: SIGTERM", 0);
	wait_logged(d, A, "event=attempt_ended model=m step=1 attempt=1");
	result_is(d, A, SHARD_WORLD_CHANGED, "node b stops: SIGTERM", 0);
	hold_release(&d->still);
	finish(d);
}

/* The coordinator has not decided, so its stop ends the attempt and nobody waits. */
static void test_coordinator_is_the_verdict(void **state)
{
	struct duo *d = prepared(state, B, false, "[daemon]\nstop_timeout = 60s");
	uint64_t at;

	at = clock_ns();
	cluster_signal(d->y->cluster, B, SIGTERM);
	wait_logged(d, B, "the verdict of node a is waited for");
	cluster_signal(d->y->cluster, A, SIGTERM);
	wait_logged(d, A, "not decided, it is aborted");
	hold_release(&d->still);
	ended(d, A);
	ended(d, B);
	assert_true(clock_ns() - at < pace_ns(10 * NS_PER_SEC));
	wait_logged(d, B,
		    "event=attempt_ended model=m step=1 attempt=1 why=\"node a stops: SIGTERM\"");
	finish(d);
}

/* The node waits for longer than heartbeat_timeout. It must not be taken for a silent node. */
static void test_long_wait(void **state)
{
	char conf[120], *text;
	int silent_ms = pace_ms(1000); /* A loaded machine must not make a node silent. */
	struct duo *d;

	snprintf(conf, sizeof(conf),
		 "[cluster]\nheartbeat_timeout = %dms\n[daemon]\nstop_timeout = 600s", silent_ms);
	d = prepared(state, B, false, conf);
	cluster_signal(d->y->cluster, B, SIGTERM);
	wait_logged(d, B, "the verdict of node a is waited for");
	(void)poll(NULL, 0, 3 * silent_ms); /* Nothing must happen in this time. */
	hold_release(&d->still);
	for (int n = 0; n < NODES; n++)
		result_is(d, n, SHARD_OK, NULL, 1);
	ended(d, B);
	whole(d, A, 1);
	text = cluster_log(d->y->cluster, A);
	assert_null(strstr(text, "silent"));
	free(text);
	finish(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_applying_coordinator, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_applying_other, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_applying_coordinator_warm, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_applying_other_warm, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_staging_coordinator_warm, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_staging_other_warm, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_prepared_warm, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_no_verdict, drill_setup, drill_teardown),
		cmocka_unit_test_setup_teardown(test_coordinator_is_the_verdict, drill_setup,
						drill_teardown),
		cmocka_unit_test_setup_teardown(test_long_wait, drill_setup, drill_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
