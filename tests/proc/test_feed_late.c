/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon stops while its images are made again, after a decision came that waits for them. The
 * time for the step is over before the last image is made. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/drill.h"
#include "lib/hold.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { A, B, NODES, CHUNK = 32768, CHUNKS = 4, NUMEL = CHUNKS * CHUNK };

struct feed {
	struct drill_yard *y;
	struct cluster *c;
	struct trainer t[NODES]; /* One trainer on each node. */
	struct hold h;
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

static uint64_t turns(pid_t pid) /* So often the loop has waited. It ticks while it stops. */
{
	char path[64], line[128];
	unsigned long nr = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	in = fopen(path, "r");
	assert_non_null(in);
	while (fgets(line, sizeof(line), in) != NULL)
		if (sscanf(line, "voluntary_ctxt_switches: %lu", &nr) == 1)
			break;
	fclose(in);
	return nr;
}

static void test_stopped_late(void **state)
{
	struct feed *f = begin(state, true, "[daemon]\nstop_timeout = 100ms\n");
	struct hold other;
	int status;

	step(f, 1);
	hold_threads(&other, f->c->node[A].pid, "shardd-w"); /* A does not vote before B. */
	for (int n = 0; n < NODES; n++)
		push(f, n);
	for (int n = 0; n < NODES; n++)
		commit(f, n);
	cluster_phase(f->c, B, "prepared");
	hold_main(&f->h, f->c->node[B].pid);
	hold_release(&other);
	decided(f, A, 2);
	hold_kill(&f->h, f->c->node[B].pid);
	(void)cluster_wait(f->c, B, 15000);
	cluster_spawn(f->c, B);
	hold_start(&f->h, f->c->node[B].pid, "shardd-w", 1);
	cluster_ready(f->c, B);
	cluster_phase(f->c, B, "applying"); /* The verdict is here. */
	cluster_signal(f->c, B, SIGTERM);
	cluster_wait_log(f->c, B, "event=stop_unfinished", 1);
	cluster_wait_log(f->c, B, "event=left", 1);
	for (uint64_t from = turns(f->c->node[B].pid); turns(f->c->node[B].pid) < from + 50;)
		sched_yield(); /* The links end, and then the daemon would close the workers. */
	hold_release(&f->h);
	status = cluster_wait(f->c, B, 15000);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	cluster_spawn(f->c, B);
	cluster_ready(f->c, B);
	whole(f, A, 2);
	again(f);
	step(f, 3);
	end(f);
}

int main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, drill_setup, drill_teardown)
	const struct CMUnitTest tests[] = {CASE(test_stopped_late)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
