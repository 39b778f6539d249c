// SPDX-License-Identifier: Apache-2.0
/* Tests a warm start in the middle of a step, and orders that come while the daemon makes its
 * images again. The workers stand still, so that the images are not there yet. The daemon answers
 * meanwhile: it takes the verdict about what it voted for, tells another coordinator what it voted
 * for, gives out weights, saves, drops and restores. Nobody is expelled for the time that this
 * takes. Then training goes on with weights that are right to the last bit. */
#include "base/check.h"
#include "client/ckpt.h"
#include "lib/hold.h"
#include "lib/keep.h"
#include "lib/trainer.h"
#include "lib/warm.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { A, B, WORKERS = 1 /* As cluster_make() sets it. */, STEP_MS = 2000, LIMIT_MS = 15000 };

#define CONF "[cluster]\nheartbeat_timeout = 2s\nstep_timeout = 2s\nlost_timeout = 60s\n"

static void says(struct warm *w, int node, const char *text)
{
	if (!warm_says(w, node, text, LIMIT_MS))
		fail_msg("node %s does not say: %s", w->cluster->node[node].name, text);
}

static void spawn_held(struct warm *w, struct hold *h)
{
	cluster_spawn(w->cluster, B);
	hold_start(h, w->cluster->node[B].pid, "shardd-w", WORKERS);
	cluster_ready(w->cluster, B);
	says(w, B, "\"resuming\":{\"done\":0,\"chunks\":");
}

static void ready(struct warm *w, const int *on, const char *settings)
{
	warm_start(w, 2, on, CONF);
	if (settings != NULL)
		w->settings = settings;
	warm_all(w);
	warm_train(w, 2);
	for (int n = 0; n < w->cluster->nodes_nr; n++)
		warm_phase(w, n, "staging"); /* In step 3, so all decided steps are applied. */
}

/* Makes steps 1 and 2. B votes for step 3, dies, and starts again with its workers held. The only
 * trainer is on A, whose workers stand still, too, so the attempt outlives B's process. */
static void prepared(struct warm *w, const char *settings, struct hold *h, struct hold *still)
{
	ready(w, (int[]){1, 0}, settings);
	hold_threads(still, w->cluster->node[A].pid, "shardd-w");
	warm_begin(w, A);
	warm_commit(w, A);
	warm_phase(w, B, "prepared");
	says(w, A, " s for node a: ");
	warm_kill(w, 1u << B);
	spawn_held(w, h);
	warm_phase(w, B, "prepared");
}

static void goes_on(struct warm *w, uint64_t last)
{
	warm_train(w, last);
	warm_check(w, last);
	for (int n = 0; n < w->cluster->nodes_nr; n++) {
		assert_int_equal(warm_logged(w, n, "event=model_void"), 0);
		assert_int_equal(warm_logged(w, n, "silent"), 0);
	}
}

static void nothing_lost(struct warm *w)
{
	for (int n = 0; n < w->cluster->nodes_nr; n++)
		assert_int_equal(warm_logged(w, n, "event=lost"), 0);
	warm_finish(w);
}

/* The verdict comes before the images are made, and then the node is killed once more. */
static void verdict(struct warm *w, const char *settings)
{
	struct hold h, still;

	prepared(w, settings, &h, &still);
	hold_release(&still);
	EXPECT(SHARD_OK, warm_result(w, A));
	warm_phase(w, B, "applying");
	says(w, B, "\"resuming\":{\"done\":0,\"chunks\":");
	hold_kill(&h, w->cluster->node[B].pid);
	cluster_wait(w->cluster, B, 10000);
	spawn_held(w, &h);
	warm_phase(w, B, "applying");
	hold_release(&h);
	assert_int_equal(warm_back(w, 1u << B), 4);
	warm_check(w, 3);
	goes_on(w, 5);
	nothing_lost(w);
}

static void test_verdict(void **state)
{
	verdict(*state, NULL);
}

static void test_verdict_of_two_images(void **state)
{
	verdict(*state, "optimizer=sgd chunk_elems=32768 max_staleness=1");
}

/* The coordinator dies, too. Its next process asks what B voted for, and ends the attempt. */
static void test_asked_what_it_voted(void **state)
{
	struct warm *w = *state;
	struct hold h, still;

	prepared(w, NULL, &h, &still);
	hold_kill(&still, w->cluster->node[A].pid);
	cluster_wait(w->cluster, A, LIMIT_MS);
	warm_spawn(w, 1u << A);
	says(w, A, "\"state\":\"waiting\"");
	assert_true(warm_says(w, B, "\"resuming\":{\"done\":0,\"chunks\":", 0));
	hold_release(&h);
	assert_int_equal(warm_back(w, 1u << A | 1u << B), 3);
	goes_on(w, 4);
	nothing_lost(w);
}

/* Kills B while it applies a step, so some tiles have the step and others do not. */
static void applying(struct warm *w, const char *settings)
{
	struct hold h, still;

	ready(w, (int[]){1, 1}, settings);
	hold_threads(&still, w->cluster->node[A].pid, "shardd-w");
	warm_begin(w, A);
	warm_begin(w, B);
	warm_commit(w, A);
	warm_commit(w, B);
	warm_phase(w, B, "prepared");
	hold_threads(&h, w->cluster->node[B].pid, "shardd-w");
	hold_release(&still);
	warm_phase(w, B, "applying");
	EXPECT(SHARD_OK, warm_result(w, A));
	hold_kill(&h, w->cluster->node[B].pid);
	cluster_wait(w->cluster, B, 10000);
	spawn_held(w, &h);
	warm_phase(w, B, "applying");
	says(w, B, "\"state\":\"resuming\"");
	hold_release(&h);
	assert_int_equal(warm_back(w, 1u << B), 4);
	warm_check(w, 3);
	goes_on(w, 4);
	nothing_lost(w);
}

static void test_applying(void **state)
{
	applying(*state, NULL);
}

static void test_applying_two_images(void **state)
{
	applying(*state, "optimizer=sgd chunk_elems=32768 max_staleness=1");
}

/* The next attempt waits for longer than step_timeout for a node that has no trainer. */
static void test_nobody_is_expelled(void **state)
{
	struct warm *w = *state;
	struct hold h, still;
	uint32_t ended;

	prepared(w, NULL, &h, &still);
	ended = warm_logged(w, A, "event=attempt_ended");
	hold_release(&still);
	EXPECT(SHARD_OK, warm_result(w, A));
	says(w, A, "of the image of step 3, which node b holds");
	(void)poll(NULL, 0, STEP_MS * 4 / 3); /* Nothing must happen in this time. */
	assert_int_equal(warm_logged(w, A, "event=attempt_ended"), ended);
	hold_release(&h);
	EXPECT(SHARD_OK, shard_world_get(w->r[A].model, &w->r[A].world));
	goes_on(w, 5);
	nothing_lost(w);
}

/* The same between two steps, when the node holds back its vote. */
static void test_nobody_is_expelled_before_a_vote(void **state)
{
	struct warm *w = *state;
	uint32_t ended;
	struct hold h;

	ready(w, (int[]){1, 0}, NULL);
	warm_kill(w, 1u << B);
	spawn_held(w, &h);
	assert_int_equal(warm_back(w, 1u << B), 3);
	warm_begin(w, A);
	warm_commit(w, A);
	says(w, A, "node b, whose image is being made again after a restart");
	ended = warm_logged(w, A, "event=attempt_ended");
	(void)poll(NULL, 0, STEP_MS * 4 / 3);
	assert_int_equal(warm_logged(w, A, "event=attempt_ended"), ended);
	hold_release(&h);
	EXPECT(SHARD_OK, warm_result(w, A));
	EXPECT(SHARD_OK, shard_world_get(w->r[A].model, &w->r[A].world));
	goes_on(w, 4);
	nothing_lost(w);
}

/* --- orders while the images are being made, between two steps --- */

static void resuming(struct warm *w, struct hold *h)
{
	warm_kill(w, 1u << B);
	spawn_held(w, h);
	says(w, A, "\"state\":\"training\"");
	says(w, B, "\"state\":\"resuming\"");
}

/* The master weights are complete, so neither a read of them nor a save needs the image. */
static void test_read_and_saved(void **state)
{
	struct warm *w = *state;
	float *got, *again;
	uint64_t step = 0;
	struct keep keep;
	struct hold h;
	char tag[65];

	keep_init(&keep);
	ready(w, (int[]){1, 0}, NULL);
	got = malloc(w->numel * sizeof(*got));
	again = malloc(w->numel * sizeof(*again));
	CHECK(got != NULL && again != NULL);
	resuming(w, &h);
	EXPECT(SHARD_OK,
	       shard_read(w->r[A].model, SHARD_MASTER, 0, 0, w->numel, SHARD_F32, got, &step));
	assert_int_equal(step, 2);
	keep_must_save(w->cluster->node[B].unix_address, "m", keep.dir, NULL);
	assert_int_equal(keep_newest(keep.dir, tag), 2);
	assert_true(warm_says(w, B, "\"resuming\":{\"done\":0,\"chunks\":", 0));
	hold_release(&h);
	EXPECT(SHARD_OK,
	       shard_read(w->r[A].model, SHARD_MASTER, 0, 0, w->numel, SHARD_F32, again, &step));
	assert_memory_equal(got, again, w->numel * sizeof(*got));
	free(got);
	free(again);
	assert_int_equal(warm_back(w, 1u << B), 3);
	goes_on(w, 4);
	nothing_lost(w);
	keep_free(&keep);
}

/* An order of a tool, which runs in a thread of its own. */
struct order {
	pthread_t thread;
	const char *address;
	const struct keep *keep; /* NULL: a drop. */
	enum shard_status st;
	char text[256];
};

static enum shard_status restore(shard_client *c, const struct order *o)
{
	struct ckpt_ask ask = {
		.dir = o->keep->dir, .name = "m", .force = true, .timeout_ms = LIMIT_MS};
	struct ckpt_answer answer;

	return ckpt_restore(c, &ask, &answer, NULL);
}

static void *order_run(void *arg)
{
	struct shard_connect_opts opts = SHARD_INIT(struct shard_connect_opts);
	struct order *o = arg;
	shard_client *c = NULL;

	opts.address = o->address;
	opts.timeout_ms = LIMIT_MS;
	o->st = shard_connect(&c, &opts);
	if (o->st == SHARD_OK)
		o->st = o->keep != NULL ? restore(c, o) : shard_drop(c, "m", 1);
	snprintf(o->text, sizeof(o->text), "%s", shard_error());
	shard_disconnect(&c);
	return NULL;
}

static void order_begin(struct order *o, struct warm *w, const struct keep *keep)
{
	*o = (struct order){.address = w->cluster->node[A].unix_address, .keep = keep};
	assert_int_equal(pthread_create(&o->thread, NULL, order_run, o), 0);
}

static void order_end(struct order *o)
{
	assert_int_equal(pthread_join(o->thread, NULL), 0);
	if (o->st != SHARD_OK)
		fail_msg("%s: %s", shard_name(o->st), o->text);
}

static void anew(struct warm *w)
{
	for (uint32_t r = 0; r < w->ranks; r++) {
		warm_end(w, r);
		warm_define(w, r);
	}
	warm_join(w, (1u << w->ranks) - 1);
}

static void test_dropped(void **state)
{
	struct warm *w = *state;
	struct order o;
	struct hold h;

	ready(w, (int[]){1, 0}, NULL);
	resuming(w, &h);
	order_begin(&o, w, NULL);
	warm_wait_log(w, B, "event=drop model=m", 1);
	hold_release(&h);
	order_end(&o);
	assert_true(warm_says(w, B, "\"models\":[]", LIMIT_MS));
	anew(w);
	goes_on(w, 2);
	warm_finish(w);
}

static void test_restored(void **state)
{
	struct warm *w = *state;
	struct keep keep;
	struct order o;
	struct hold h;

	keep_init(&keep);
	ready(w, (int[]){1, 0}, NULL);
	keep_must_save(w->cluster->node[A].unix_address, "m", keep.dir, NULL);
	warm_train(w, 3);
	warm_phase(w, B, "staging");
	resuming(w, &h);
	order_begin(&o, w, &keep);
	warm_wait_log(w, B, "event=lost model=m", 1);
	hold_release(&h);
	order_end(&o);
	warm_check(w, 2);
	anew(w);
	assert_int_equal(w->r[A].world.step, 3);
	goes_on(w, 4);
	warm_finish(w);
	keep_free(&keep);
}

/* The place of the memory makes no difference here, so each test uses one of the two places. */
#define ON_SYSTEMD(fn)                                                                             \
	{                                                                                          \
#fn, fn, warm_setup, warm_teardown, (void *)(uintptr_t)CLUSTER_SYSTEMD             \
	}
#define ON_TMPFS(fn)                                                                               \
	{                                                                                          \
#fn, fn, warm_setup, warm_teardown, (void *)(uintptr_t)CLUSTER_TMPFS               \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_SYSTEMD(test_verdict),
		ON_TMPFS(test_verdict_of_two_images),
		ON_SYSTEMD(test_asked_what_it_voted),
		ON_TMPFS(test_applying),
		ON_SYSTEMD(test_applying_two_images),
		ON_TMPFS(test_nobody_is_expelled),
		ON_SYSTEMD(test_nobody_is_expelled_before_a_vote),
		ON_TMPFS(test_read_and_saved),
		ON_SYSTEMD(test_dropped),
		ON_TMPFS(test_restored),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
