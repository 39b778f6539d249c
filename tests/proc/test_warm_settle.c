// SPDX-License-Identifier: Apache-2.0
/* Tests a warm start whose workers stand still, so that the images are not made again yet.
 * Meanwhile the daemon answers tools, trainers and other nodes, its links stay, and its status and
 * the coordinator's say by name what a step waits for. The node does not vote before the images are
 * there. Then training goes on with weights that are right to the last bit, both after the workers
 * go on and after another kill -9 or a SIGTERM before that. */
#include "lib/hold.h"
#include "lib/trainer.h"
#include "lib/warm.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { A, B, WORKERS = 1 /* As cluster_make() sets it. */, HEARTBEAT_MS = 2000, LIMIT_MS = 15000 };

#define CONF "[cluster]\nheartbeat_timeout = 2s\n"

static void says(struct warm *w, int node, const char *text)
{
	if (!warm_says(w, node, text, LIMIT_MS))
		fail_msg("node %s does not say: %s", w->cluster->node[node].name, text);
}

static void spawn_held(struct warm *w, int node, struct hold *h)
{
	cluster_spawn(w->cluster, node);
	hold_start(h, w->cluster->node[node].pid, "shardd-w", WORKERS);
	cluster_ready(w->cluster, node);
}

/* Makes two steps and kills these nodes. Then all are there again, and the workers of B are
 * held. */
static void held(struct warm *w, unsigned victims, struct hold *h)
{
	warm_all(w);
	warm_train(w, 2);
	for (int n = 0; n < w->cluster->nodes_nr; n++)
		warm_phase(w, n, "staging"); /* In step 3, so all decided steps are applied. */
	warm_kill(w, victims);
	if (victims & 1u << A)
		warm_spawn(w, 1u << A);
	spawn_held(w, B, h);
	says(w, B, "\"state\":\"resuming\"");
	says(w, B, "\"resuming\":{\"done\":0,\"chunks\":");
}

/* Makes step 3, whose world is there already, and two more. */
static void goes_on(struct warm *w)
{
	warm_train(w, 5);
	warm_check(w, 5);
	says(w, B, "\"state\":\"training\"");
	for (int n = 0; n < w->cluster->nodes_nr; n++) {
		assert_int_equal(warm_logged(w, n, "event=lost"), 0);
		assert_int_equal(warm_logged(w, n, "silent"), 0);
		assert_int_equal(warm_logged(w, n, "event=model_void"), 0);
	}
	warm_finish(w);
}

static void test_answers(void **state)
{
	struct warm *w = *state;
	struct hold h;

	warm_start(w, 2, (int[]){1, 1}, CONF);
	held(w, 1u << B, &h);
	assert_int_equal(warm_back(w, 1u << B), 3); /* Its trainer defines and joins. */
	warm_begin(w, A);
	warm_commit(w, A);
	says(w, B, "which waits for its image, which is being made again after a restart: 0 of ");
	says(w, A, "node b), which waits there for chunk ");
	says(w, A, " of the image of step 2, which is being made again after a restart");
	(void)poll(NULL, 0, HEARTBEAT_MS * 3 / 2); /* Nothing must happen in this time. */
	says(w, B, "\"resuming\":{\"done\":0,\"chunks\":");
	assert_true(warm_in_phase(w, B, "staging", 0));
	says(w, A, "\"state\":\"up\"");
	hold_release(&h);
	warm_begin(w, B);
	warm_commit(w, B);
	for (uint32_t r = 0; r < w->ranks; r++) {
		EXPECT(SHARD_OK, warm_result(w, r));
		EXPECT(SHARD_OK, shard_world_get(w->r[r].model, &w->r[r].world));
	}
	warm_check(w, 3);
	goes_on(w);
}

/* All trainers are on the other node, and the loop reduces the gradients. So only the image keeps
 * this node from its vote. */
static void test_no_vote(void **state)
{
	struct warm *w = *state;
	struct hold h;

	warm_start(w, 2, (int[]){1, 0}, CONF);
	w->numel = 5000;
	w->settings = "optimizer=sgd chunk_elems=1024";
	held(w, 1u << B, &h);
	assert_int_equal(warm_back(w, 1u << B), 3);
	warm_begin(w, A);
	warm_commit(w, A);
	says(w, A, "node b, whose image is being made again after a restart");
	assert_true(warm_in_phase(w, B, "staging", 0));
	assert_true(warm_in_phase(w, A, "prepared", LIMIT_MS));
	hold_release(&h);
	EXPECT(SHARD_OK, warm_result(w, A));
	EXPECT(SHARD_OK, shard_world_get(w->r[A].model, &w->r[A].world));
	warm_check(w, 3);
	goes_on(w);
}

/* The other node lacks these chunks, too, and asks for them before they are made. */
static void test_asked(void **state)
{
	struct warm *w = *state;
	struct hold h;

	warm_start(w, 2, (int[]){1, 1}, CONF);
	held(w, 1u << A | 1u << B, &h);
	assert_int_equal(warm_back(w, 1u << A | 1u << B), 3);
	says(w, A, "of the image of step 2, which node b holds");
	hold_release(&h);
	goes_on(w);
}

/* A trainer that reads the image over TCP computes on the image before the newest. Both are sent to
 * it when they are made. */
static void test_two_images(void **state)
{
	struct warm *w = *state;
	struct hold h;

	warm_start(w, 2, (int[]){1, 1}, CONF);
	w->settings = "optimizer=sgd chunk_elems=32768 max_staleness=1";
	w->tcp = true;
	held(w, 1u << B, &h);
	assert_int_equal(warm_back(w, 1u << B), 3);
	hold_release(&h);
	goes_on(w);
}

static void test_killed(void **state)
{
	struct warm *w = *state;
	struct hold h;

	warm_start(w, 2, (int[]){1, 1}, CONF);
	held(w, 1u << B, &h);
	hold_kill(&h, w->cluster->node[B].pid);
	cluster_wait(w->cluster, B, 10000);
	warm_spawn(w, 1u << B);
	assert_int_equal(warm_back(w, 1u << B), 3);
	goes_on(w);
}

static void test_stopped(void **state)
{
	struct warm *w = *state;
	struct hold h;
	int status;

	warm_start(w, 2, (int[]){1, 1}, CONF);
	held(w, 1u << B, &h);
	cluster_signal(w->cluster, B, SIGTERM);
	warm_wait_log(w, B, "event=stopping model=m", 1);
	hold_release(&h);
	status = cluster_wait(w->cluster, B, 15000);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	warm_spawn(w, 1u << B);
	assert_int_equal(warm_back(w, 1u << B), 3);
	goes_on(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {WARM_BOTH(test_answers), WARM_BOTH(test_no_vote),
					   WARM_BOTH(test_asked),   WARM_BOTH(test_two_images),
					   WARM_BOTH(test_killed),  WARM_BOTH(test_stopped)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
