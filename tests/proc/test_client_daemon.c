// SPDX-License-Identifier: Apache-2.0
/* Tests the library with real daemons: refusals in the daemon's words, a creator that dies,
 * deadlines that name who is missing, a trainer that leaves or detaches, a daemon that is killed,
 * and what waiting costs. */
#include "base/check.h"
#include "base/clock.h"
#include "client.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "lib/trainer.h"
#include "wire/dtype.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define MODEL_OF(min, max)                                                                         \
	"min_world = " #min "\nmax_world = " #max "\nchunk_elems = 1024\ntimeout = 120s\n"

static void commit_step(struct trainer *t, float g)
{
	trainer_begin(t);
	trainer_push_all(t, g);
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
}

static void finish_step(struct trainer *t, uint64_t step)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(10000), &r));
	assert_int_equal(r.step, step);
	assert_int_equal(r.outcome, SHARD_APPLIED);
}

static float weight_now(struct trainer *t)
{
	uint64_t step = 0;
	float back;

	EXPECT(SHARD_OK, shard_read(t->model, SHARD_MASTER, 0, 0, 1, SHARD_F32, &back, &step));
	return back;
}

static void test_refusals(void **state)
{
	struct cluster *c = cluster_start(2, MODEL_OF(1, 4), NULL);
	struct shard_tensor other[2] = {{.name = "wte", .ndim = 2, .shape = {30, 101}},
					{.name = "b", .ndim = 1, .shape = {4}}};
	struct shard_spec s;
	struct trainer t, u;
	shard_model *m;
	int created;
	float w = 1;

	(void)state;
	trainer_connect(&u, c->node[1].unix_address);
	trainer_connect(&t, c->node[0].unix_address);
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	s.settings = "optimizer=sgd lr=1 no_such_key=1";
	EXPECT(SHARD_BAD_ARG, shard_define(t.client, &s, &m, &created));
	EXPECT_TEXT("no_such_key");
	s.settings = "optimizer=sgd lr=1";
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	assert_int_equal(t.created, 1);
	EXPECT(SHARD_OK, shard_write(t.model, SHARD_MASTER, 0, 0, 1, SHARD_F32, &w));
	EXPECT(SHARD_MISSING, shard_seal(t.model, 0));
	EXPECT_TEXT("\"wte\"");
	EXPECT(SHARD_NOT_FOUND, shard_write(t.model, SHARD_EXP_AVG, 0, 0, 1, SHARD_F32, &w));
	s.tensors = other;
	s.tensors_nr = 2;
	EXPECT(SHARD_MISMATCH, shard_define(u.client, &s, &m, &created));
	EXPECT_TEXT("tensor \"wte\": shape [30, 101]");
	s.name = "huge";
	other[0].shape[0] = 1 << 19;
	other[0].shape[1] = 1 << 10;
	EXPECT(SHARD_BUDGET, shard_define(u.client, &s, &m, &created));
	EXPECT_TEXT("\"huge\"");
	EXPECT_TEXT("node");
	trainer_end(&t);
	trainer_end(&u);
	cluster_stop(c);
}

static void test_creator_dies(void **state)
{
	struct cluster *c = cluster_start(1, MODEL_OF(1, 4), NULL);
	struct shard_spec s;
	struct trainer t, u;
	uint64_t deadline = pace_by(10);

	(void)state;
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	trainer_connect(&t, c->node[0].unix_address);
	trainer_connect(&u, c->node[0].unix_address);
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	EXPECT(SHARD_OK, shard_define(u.client, &s, &u.model, &u.created));
	assert_int_equal(t.created, 1);
	assert_int_equal(u.created, 0);
	trainer_end(&t); /* It has not sealed the model. */
	do {
		shard_detach(&u.model);
		EXPECT(SHARD_OK,
		       shard_define(u.client, &s, &u.model,
				    &u.created)); /* Until the daemon has seen the socket close. */
	} while (!u.created && clock_ns() < deadline);
	assert_int_equal(u.created, 1);
	trainer_end(&u);
	trainer_join(&t, c->node[0].unix_address, SHARD_BF16,
		     SHARD_BF16); /* The same once more. After that it works. */
	commit_step(&t, 1);
	finish_step(&t, 1);
	trainer_end(&t);
	cluster_stop(c);
}

static void test_who_is_missing(void **state)
{
	struct cluster *c = cluster_start(2, MODEL_OF(2, 2), NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct trainer t, u;
	char wanted[80];

	(void)state;
	trainer_define(&t, c->node[0].unix_address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_TIMEOUT, shard_join(t.model, -1, 200, &t.world));
	EXPECT_TEXT("join of \"gpt\" waited ");
	assert_null(strstr(shard_error(), "did not say"));
	trainer_define(&u, c->node[1].unix_address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_OK, shard_join(u.model, -1, pace_ms(10000), &u.world));
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &t.world));
	commit_step(&t, 1);
	trainer_begin(&u);
	EXPECT(SHARD_TIMEOUT,
	       shard_result(t.model, 0, 700, &r)); /* Nodes report several times a second. */
	EXPECT_TEXT("step 1 attempt 1 of \"gpt\" waits ");
	snprintf(wanted, sizeof(wanted), " s for rank %u (pid %d, node b): ", u.world.rank,
		 (int)getpid());
	EXPECT_TEXT(wanted);
	assert_null(strstr(strstr(shard_error(), "rank ") + 1, "rank ")); /* It is said once. */
	cluster_signal(c, 0, SIGSTOP); /* It cannot answer for whom. */
	EXPECT(SHARD_TIMEOUT, shard_result(t.model, 0, 50, &r));
	EXPECT_TEXT(" s: shardd did not say for whom");
	cluster_signal(c, 0, SIGCONT);
	trainer_push_all(&u, 1);
	EXPECT(SHARD_OK, shard_commit(u.model, NULL));
	finish_step(&t, 1);
	finish_step(&u, 1);
	trainer_end(&t);
	trainer_end(&u);
	cluster_stop(c);
}

/* One of two trainers goes, in the middle of a step by detach, or at the boundary by leave. The
 * other one goes on. */
static void test_going(void **state)
{
	struct cluster *c = cluster_start(1, MODEL_OF(1, 2), NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	enum shard_status rc;
	struct trainer t, u;
	uint64_t step;

	(void)state;
	trainer_join(&t, c->node[0].unix_address, SHARD_BF16, SHARD_BF16);
	trainer_define(&u, c->node[0].unix_address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_TIMEOUT,
	       shard_join(u.model, -1, 0,
			  &u.world)); /* It gets in at a boundary, so the other has to train on. */
	commit_step(&t, 1);
	finish_step(&t, 1);
	EXPECT(SHARD_OK, shard_join(u.model, -1, pace_ms(10000), &u.world));
	assert_int_equal(u.world.world_size, 2);
	while ((rc = shard_begin(t.model, NULL, &t.step)) == SHARD_WORLD_CHANGED)
		EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	EXPECT(SHARD_OK, rc);
	trainer_begin(&u);
	step = t.step.step;
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	shard_detach(&u.model);
	EXPECT(SHARD_WORLD_CHANGED, shard_result(t.model, 0, pace_ms(10000), &r));
	do { /* It gave up the attempt, and then left. That may be two changes. */
		EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
		rc = shard_begin(t.model, NULL, &t.step);
		if (rc == SHARD_OK) {
			assert_int_equal(t.step.step, step);
			trainer_push_all(&t, 1);
			rc = shard_commit(t.model, NULL);
		}
		if (rc == SHARD_OK)
			rc = shard_result(t.model, 0, pace_ms(10000), &r);
	} while (rc == SHARD_WORLD_CHANGED);
	EXPECT(SHARD_OK, rc);
	assert_int_equal(r.step, step);
	assert_int_equal(t.step.world_size, 1);
	assert_true(weight_now(&t) == trainer_weight(0, 0) - (float)step);
	EXPECT(SHARD_OK, shard_leave(t.model, pace_ms(10000)));
	trainer_end(&t);
	trainer_end(&u);
	cluster_stop(c);
}

static void test_daemon_dies(void **state)
{
	struct cluster *c = cluster_start(2, MODEL_OF(2, 2), "[cluster]\nheartbeat_timeout = 1s\n");
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct trainer t, u;
	enum shard_status rc;
	shard_ticket ticket;
	uint64_t before;

	(void)state;
	trainer_define(&t, c->node[0].unix_address, SHARD_BF16, SHARD_BF16);
	trainer_define(&u, c->node[1].unix_address, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_TIMEOUT, shard_join(t.model, -1, 0, &t.world));
	EXPECT(SHARD_OK, shard_join(u.model, -1, pace_ms(10000), &u.world));
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &t.world));
	commit_step(&t, 1);
	trainer_begin(&u);
	EXPECT(SHARD_OK, shard_pull(u.model, 0, 0, 1, 1, NULL, SHARD_F32, &ticket));
	cluster_signal(c, 1, SIGKILL);
	(void)cluster_wait(c, 1, 5000);
	before = clock_ns();
	EXPECT(SHARD_CLOSED,
	       shard_wait(u.model, ticket, pace_ms(10000))); /* Its own daemon is gone. */
	assert_true(clock_ns() - before < pace_ns(NS_PER_SEC));
	EXPECT_TEXT(c->node[1].unix_address);
	while ((rc = shard_result(t.model, 0, pace_ms(10000), &r)) == SHARD_WORLD_CHANGED &&
	       clock_ns() - before < pace_ns(5 * NS_PER_SEC)) {
		EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
		if ((rc = shard_begin(t.model, NULL, &t.step)) == SHARD_LOST)
			break;
	}
	if (rc != SHARD_LOST)
		cluster_dump(c);
	EXPECT(SHARD_LOST, rc); /* Half of its chunks were on node b. */
	EXPECT_TEXT("node b");
	trainer_end(&u);
	trainer_end(&t);
	cluster_stop(c);
}

/* --- waiting costs nothing --- */

struct waiter {
	const char *address;
	int ready; /* A pipe. */
};

static int wait_for_ever(void *arg)
{
	const struct waiter *w = arg;
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct trainer t;
	enum shard_status rc;

	trainer_define(&t, w->address, SHARD_BF16, SHARD_BF16);
	rc = shard_join(t.model, -1, pace_ms(10000), &t.world);
	if (rc == SHARD_OK)
		rc = shard_begin(t.model, NULL, &t.step);
	if (rc == SHARD_OK &&
	    t.step.rank !=
		    0) { /* Rank 0 never commits. It waits for an image that does not come. */
		trainer_push_all(&t, 1);
		rc = shard_commit(t.model, NULL);
	}
	if (rc != SHARD_OK || write(w->ready, "x", 1) != 1) {
		fprintf(stderr, "%s: %s\n", shard_name(rc), shard_error());
		return 1;
	}
	if (t.step.rank != 0) {
		rc = shard_result(t.model, 0, pace_ms(60000), &r);
	} else {
		shard_ticket ticket;

		rc = shard_pull(t.model, 0, 0, 1, 1, NULL, SHARD_F32, &ticket);
		if (rc == SHARD_OK)
			rc = shard_wait(t.model, ticket, pace_ms(60000));
	}
	return rc == SHARD_OK;
}

static void test_idle(void **state)
{
	enum { SECONDS = 5, TRAINERS = 4 };
	struct cluster *c = cluster_start(2, MODEL_OF(4, 4), NULL);
	uint64_t before = 0, after = 0;
	struct waiter w[TRAINERS];
	pid_t pid[TRAINERS + 2];
	int ready[2];
	char byte;

	(void)state;
	CHECK(pipe(ready) == 0);
	for (int i = 0; i < TRAINERS; i++) {
		w[i] = (struct waiter){.address = i % 2 ? c->node[i / 2].unix_address
							: c->node[i / 2].tcp_address,
				       .ready = ready[1]};
		pid[i] = proc_fork(wait_for_ever, &w[i]);
	}
	for (int i = 0; i < TRAINERS; i++) {
		struct pollfd p = {.fd = ready[0], .events = POLLIN};

		assert_int_equal(poll(&p, 1, pace_ms(10000)), 1);
		assert_int_equal(read(ready[0], &byte, 1), 1);
	}
	pid[TRAINERS] = c->node[0].pid;
	pid[TRAINERS + 1] = c->node[1].pid;
	for (int i = 0; i < TRAINERS + 2; i++)
		before += proc_cpu_ns(pid[i]);
	(void)poll(NULL, 0, SECONDS * 1000); /* This is the measurement. */
	for (int i = 0; i < TRAINERS + 2; i++)
		after += proc_cpu_ns(pid[i]);
	print_message("%.1f ms of CPU in %d s\n", (double)(after - before) / 1e6, SECONDS);
	for (int i = 0; i < TRAINERS; i++) {
		kill(pid[i], SIGKILL);
		(void)proc_wait(pid[i], 5000);
	}
	close(ready[0]);
	close(ready[1]);
	cluster_stop(c);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	/* 50 ms in 10 s. A processor that others use, too, takes longer for the same work. */
	assert_true(after - before <= pace_ns(SECONDS * 5 * NS_PER_MS));
#endif
}

/* It says how long it waited, which is longer than it was told on a busy machine. */
static void gives_up(const char *words)
{
	char *out = NULL, *at;
	int rc = tool_run(&out, "shardctl", words);
	float waited = 0;

	at = strstr(out, "did not answer HELLO in ");
	if (rc != 3 || at == NULL || strstr(at, " s: is it stopped") == NULL ||
	    sscanf(at, "did not answer HELLO in %f", &waited) != 1 || waited < 0.3f)
		fail_msg("%s: %d: %s", words, rc, out);
	free(out);
}

/* A daemon that was stopped (SIGSTOP) answers nothing. Calls and tools give it up in their time and
 * say so, and they work again when it goes on. */
static void test_stopped(void **state)
{
	struct cluster *c = cluster_start(1, MODEL_OF(1, 4), NULL);
	uint64_t began;
	struct trainer t, u;
	struct shard_spec s;
	size_t bytes = 0;
	char words[200];
	shard_model *m;
	int created;

	(void)state;
	trainer_define(&t, c->node[0].unix_address, SHARD_BF16, SHARD_BF16);
	trainer_connect(&u, c->node[0].tcp_address);
	t.client->silent_ms = u.client->silent_ms = 300;
	cluster_signal(c, 0, SIGSTOP);
	began = clock_ns();
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_TIMEOUT, shard_define(u.client, &s, &m, &created));
	EXPECT_TEXT("define gpt waited ");
	EXPECT_TEXT("which does not answer a PING either");
	EXPECT(SHARD_TIMEOUT, shard_attach(u.client, "other", &m));
	EXPECT(SHARD_TIMEOUT, shard_stats(t.client, NULL, &bytes));
	EXPECT(SHARD_TIMEOUT, shard_drop(t.client, "gpt", 0));
	EXPECT_TEXT("manage gpt waited ");
	t.world = SHARD_INIT(struct shard_world);
	EXPECT(SHARD_TIMEOUT, shard_join(t.model, -1, 300, &t.world));
	snprintf(words, sizeof(words), "status --timeout 0.3 --address %s",
		 c->node[0].unix_address);
	gives_up(words);
	snprintf(words, sizeof(words), "model list --timeout 0.3 --address %s",
		 c->node[0].tcp_address);
	gives_up(words);
	assert_true(clock_ns() - began < pace_ns(60 * NS_PER_SEC)); /* Not 300 s each. */
	cluster_signal(c, 0, SIGCONT);
	trainer_end(&t);
	trainer_end(&u);
	trainer_join(&t, c->node[0].unix_address, SHARD_BF16, SHARD_BF16);
	commit_step(&t, 1);
	finish_step(&t, 1);
	trainer_end(&t);
	cluster_stop(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refusals),       cmocka_unit_test(test_creator_dies),
		cmocka_unit_test(test_who_is_missing), cmocka_unit_test(test_going),
		cmocka_unit_test(test_daemon_dies),    cmocka_unit_test(test_idle),
		cmocka_unit_test(test_stopped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
