// SPDX-License-Identifier: Apache-2.0
/* Each node holds more chunks than a model may have at one worker, and the workers stand still, so
 * that chunks of an update, or sums, wait for a place when something else happens: the model is
 * dropped, its weights are given up, the daemon stops or dies, or the attempt ends. Nothing may
 * wait for ever for chunks that nobody hands out, and no weight may be wrong afterwards. */
#include "base/check.h"
#include "client/ckpt.h"
#include "lib/drill.h"
#include "lib/hold.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { A, B, NODES, CHUNK = 32768, CHUNKS = 80, NUMEL = CHUNKS * CHUNK };

struct feed {
	struct drill_yard *y;
	struct cluster *c;
	struct trainer t[NODES]; /* One trainer on each node. */
	struct hold h, other;    /* Of the node that the test is about, and of the other one. */
	float w[NUMEL];
};

static float weight(uint32_t i)
{
	return (float)(i % 97) - 48.0f;
}

static void define(struct feed *f, int node)
{
	static const struct shard_tensor tensor[] = {
		{.name = "w", .ndim = 2, .shape = {CHUNKS, CHUNK}}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	struct trainer *t = &f->t[node];

	s.name = "m";
	s.tensors = tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd lr=1 chunk_elems=32768 timeout=20s min_world=2 max_world=2";
	trainer_connect(t, f->c->node[node].unix_address);
	EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
	if (!t->created)
		return;
	for (uint32_t i = 0; i < NUMEL; i++)
		f->w[i] = weight(i);
	EXPECT(SHARD_OK, shard_write(t->model, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, f->w));
	EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

static void joined(struct feed *f)
{
	/* Rank 0 joins first. The world is complete with rank 1. */
	EXPECT(SHARD_TIMEOUT, shard_join(f->t[A].model, 0, 0, &f->t[A].world));
	EXPECT(SHARD_OK, shard_join(f->t[B].model, 1, pace_ms(10000), &f->t[B].world));
	EXPECT(SHARD_OK, shard_join(f->t[A].model, 0, pace_ms(10000), &f->t[A].world));
}

/* The mean of the gradients is 2. */
static void push(struct feed *f, int node)
{
	shard_ticket ticket;

	trainer_begin(&f->t[node]);
	for (uint32_t i = 0; i < NUMEL; i++)
		f->w[i] = node == A ? 1.0f : 3.0f;
	EXPECT(SHARD_OK, shard_push(f->t[node].model, 0, 0, NUMEL, f->w, SHARD_F32, 0, &ticket));
	EXPECT(SHARD_OK, shard_wait(f->t[node].model, ticket, pace_ms(10000)));
}

static void commit(struct feed *f, int node)
{
	shard_ticket ticket;

	EXPECT(SHARD_OK, shard_commit(f->t[node].model, &ticket));
}

static void decided(struct feed *f, int node, uint64_t step)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	EXPECT(SHARD_OK, shard_result(f->t[node].model, 0, pace_ms(20000), &r));
	assert_int_equal(r.outcome, SHARD_APPLIED);
	assert_int_equal(r.step, step);
}

/* The image of a step, whose chunks come from both nodes. */
static void whole(struct feed *f, int node, uint64_t step)
{
	shard_ticket ticket;

	EXPECT(SHARD_OK, shard_pull(f->t[node].model, 0, 0, NUMEL, step, f->w, SHARD_F32, &ticket));
	EXPECT(SHARD_OK, shard_wait(f->t[node].model, ticket, pace_ms(20000)));
	for (uint32_t i = 0; i < NUMEL; i++)
		assert_true(f->w[i] == weight(i) - 2.0f * (float)step);
}

static void step(struct feed *f, uint64_t nr)
{
	for (int n = 0; n < NODES; n++)
		push(f, n);
	for (int n = 0; n < NODES; n++)
		commit(f, n);
	for (int n = 0; n < NODES; n++) {
		decided(f, n, nr);
		whole(f, n, nr);
	}
}

static struct feed *begin(void **state, bool warm, const char *conf)
{
	struct feed *f = calloc(1, sizeof(*f));

	CHECK(f != NULL);
	f->y = *state;
	f->y->cluster = f->c = cluster_make(NODES, NULL, conf);
	if (warm)
		cluster_warm(f->c, CLUSTER_TMPFS);
	for (int n = 0; n < NODES; n++)
		cluster_spawn(f->c, n);
	for (int n = 0; n < NODES; n++) {
		cluster_ready(f->c, n);
		define(f, n);
	}
	joined(f);
	return f;
}

static void again(struct feed *f) /* The trainers come back. */
{
	for (int n = 0; n < NODES; n++) {
		trainer_end(&f->t[n]);
		define(f, n);
	}
	joined(f);
}

static void end(struct feed *f)
{
	for (int n = 0; n < NODES; n++)
		trainer_end(&f->t[n]);
	cluster_done(&f->y->cluster);
	free(f);
}

static void hold(struct feed *f, int node)
{
	hold_threads(&f->h, f->c->node[node].pid, "shardd-w");
}

/* The step is decided, and `node`, whose worker stands still, has most of its chunks to hand out.
 * The worker of the other node stands still until `node` has voted, so that nothing is decided
 * before. */
static void applying(struct feed *f, int node)
{
	hold_threads(&f->other, f->c->node[!node].pid, "shardd-w");
	for (int n = 0; n < NODES; n++)
		push(f, n);
	for (int n = 0; n < NODES; n++)
		commit(f, n);
	cluster_phase(f->c, node, "prepared");
	hold(f, node);
	hold_release(&f->other);
	for (int n = 0; n < NODES; n++)
		decided(f, n, 1);
	cluster_phase(f->c, node, "applying");
}

/* --- the model is dropped --- */

struct dropper {
	const char *address;
	enum shard_status st;
	char text[512];
};

static void *drop(void *arg)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct dropper *d = arg;
	shard_client *c;

	o.address = d->address;
	d->st = shard_connect(&c, &o);
	if (d->st == SHARD_OK) {
		d->st = shard_drop(c, "m", 1);
		shard_disconnect(&c);
	}
	strncpy(d->text, shard_error(), sizeof(d->text) - 1);
	return NULL;
}

static void dropped(void **state, int node, bool warm)
{
	struct feed *f = begin(state, warm, NULL);
	struct dropper d = {.address = f->c->node[A].unix_address};
	pthread_t thread;

	applying(f, node);
	assert_int_equal(pthread_create(&thread, NULL, drop, &d), 0);
	cluster_wait_log(f->c, node, "event=drop", 1);
	hold_release(&f->h);
	pthread_join(thread, NULL);
	if (d.st != SHARD_OK)
		fail_msg("%s: %s", shard_name(d.st), d.text);
	again(f); /* A model of the same name. */
	step(f, 1);
	end(f);
}

static void test_dropped_at_coordinator(void **state)
{
	dropped(state, A, false);
}

static void test_dropped_at_other(void **state)
{
	dropped(state, B, false);
}

static void test_dropped_warm(void **state)
{
	dropped(state, B, true);
}

/* --- the daemon stops --- */

static void stopped(void **state, int node, bool warm)
{
	struct feed *f = begin(state, warm, NULL);
	int status;

	applying(f, node);
	cluster_signal(f->c, node, SIGTERM);
	cluster_wait_log(f->c, node, "applying: the decided step is finished first", 1);
	hold_release(&f->h);
	status = cluster_wait(f->c, node, 15000);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	whole(f, !node, 1); /* It got every chunk. */
	if (warm) {
		cluster_spawn(f->c, node);
		cluster_ready(f->c, node);
		again(f);
		step(f, 2);
	}
	end(f);
}

static void test_stopped(void **state)
{
	stopped(state, A, false);
}

static void test_stopped_warm(void **state)
{
	stopped(state, B, true);
}

/* The time for the step is over before the worker goes on. What memory outlives the process is
 * finished by the next start. */
static void test_stopped_late(void **state)
{
	struct feed *f = begin(state, true, "[daemon]\nstop_timeout = 100ms\n");
	int status;

	applying(f, B);
	cluster_signal(f->c, B, SIGTERM);
	cluster_wait_log(f->c, B, "event=stop_unfinished", 1);
	hold_release(&f->h);
	status = cluster_wait(f->c, B, 15000);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	cluster_spawn(f->c, B);
	cluster_ready(f->c, B);
	again(f);
	step(f, 2);
	end(f);
}

/* --- the daemon dies --- */

static void test_killed(void **state)
{
	struct feed *f = begin(state, true, NULL);

	applying(f, B);
	hold_kill(&f->h, f->c->node[B].pid);
	(void)cluster_wait(f->c, B, 15000);
	cluster_spawn(f->c, B);
	cluster_ready(f->c, B);
	again(f);
	step(f, 2);
	end(f);
}

/* --- the weights are given up --- */

struct restorer {
	const char *address, *dir;
	enum shard_status st;
	char text[512];
};

static void *restore(void *arg)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct restorer *r = arg;
	struct ckpt_ask ask = {
		.dir = r->dir, .name = "m", .force = true, .timeout_ms = pace_ms(20000)};
	struct ckpt_answer answer;
	shard_client *c;

	o.address = r->address;
	r->st = shard_connect(&c, &o);
	if (r->st == SHARD_OK) {
		r->st = ckpt_restore(c, &ask, &answer, NULL);
		strncpy(r->text, shard_error(), sizeof(r->text) - 1);
		shard_disconnect(&c);
	}
	return NULL;
}

/* The worker has not made the images of a warm start again when an operator gives the weights up
 * for those of a checkpoint. */
static void test_given_up(void **state)
{
	struct feed *f = begin(state, true, NULL);
	struct restorer r = {.address = f->c->node[A].unix_address};
	shard_ticket ticket;
	char dir[100];
	pthread_t thread;

	step(f, 1);
	snprintf(dir, sizeof(dir), "%s/saved", f->c->dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	r.dir = dir;
	EXPECT(SHARD_OK, shard_save(f->t[A].model, dir, "one", &ticket));
	EXPECT(SHARD_OK, shard_wait(f->t[A].model, ticket, pace_ms(20000)));
	cluster_kill(f->c, B);
	cluster_spawn(f->c, B);
	hold_start(&f->h, f->c->node[B].pid, "shardd-w", 1);
	cluster_ready(f->c, B);
	cluster_says(f->c, B, "\"state\":\"resuming\"");
	assert_int_equal(pthread_create(&thread, NULL, restore, &r), 0);
	cluster_wait_log(f->c, B, "event=lost ", 1);
	hold_release(&f->h);
	pthread_join(thread, NULL);
	if (r.st != SHARD_OK)
		fail_msg("%s: %s", shard_name(r.st), r.text);
	again(f);
	step(f, 2);
	end(f);
}

/* --- the attempt ends --- */

/* Sums wait when a trainer goes. Those of the next attempt are other ones. */
static void test_attempt_ends(void **state)
{
	struct feed *f = begin(state, false, NULL);

	push(f, A);
	hold(f, A);
	push(f, B); /* Now A has the contributions of both nodes for all of its chunks. */
	trainer_end(&f->t[B]);
	cluster_wait_log(f->c, A, "event=attempt_ended", 1);
	hold_release(&f->h);
	again(f);
	step(f, 1);
	step(f, 2);
	end(f);
}

int main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, drill_setup, drill_teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_dropped_at_coordinator),
		CASE(test_dropped_at_other),
		CASE(test_dropped_warm),
		CASE(test_stopped),
		CASE(test_stopped_warm),
		CASE(test_stopped_late),
		CASE(test_killed),
		CASE(test_given_up),
		CASE(test_attempt_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
