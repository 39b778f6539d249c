// SPDX-License-Identifier: Apache-2.0
/* Tests max_staleness = 1 with a model that comes back from a checkpoint while its trainers are
 * ahead, because a daemon is killed or a restore is forced. Both steps that a trainer has in hand
 * are void, and the first two steps after the restored one are computed on its weights. The result
 * equals the reference bit by bit. */
#include "base/check.h"
#include "base/clock.h"
#include "client/ckpt.h"
#include "lib/crew.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/proc.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NUMEL = 5000, RANKS = 3 }; /* Node a has ranks 0 and 1, node b rank 2. */
#define LR 0.125f

struct yard;

struct rank {
	struct yard *yard;
	pthread_t thread;
	uint32_t nr;
	shard_client *client;
	shard_model *model;
	uint64_t next;
	/* `both` counts how often both steps in hand were void at once. */
	_Atomic uint64_t begun, ahead_nr, rolled_back, both;
	_Atomic bool held;
};

struct yard {
	struct cluster *cluster;
	struct keep keep;
	struct rank rank[RANKS];
	bool tcp;
	/* Rank 0 stays in the middle of step hold_at, and the others are one step ahead. */
	_Atomic uint64_t last, hold_at;
	_Atomic bool held_over;
};

static float weight(uint32_t i)
{
	return (float)(i % 97) * 0.25f - 10;
}

static float gradient(uint64_t step, uint32_t r, uint32_t i, float w)
{
	return w * (0.25f + 0.125f * (float)r) + (float)((step * 31 + r * 7 + i) % 13) * 0.0625f;
}

static bool must_go_on(enum shard_status rc, const char *what)
{
	bool gone = (rc >= SHARD_UNREACHABLE || rc == SHARD_TIMEOUT || rc == SHARD_BUSY) &&
		    rc != SHARD_LOST;

	if (!gone)
		crew_must(rc, SHARD_OK, what);
	return false;
}

static bool connect_rank(struct rank *r)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {NUMEL}};
	const struct cluster_node *n = &r->yard->cluster->node[r->nr == 2];
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_world world = SHARD_INIT(struct shard_world);
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	enum shard_status rc;
	int created = 0;
	float w[NUMEL];

	o.address = r->yard->tcp && r->nr == 1 ? n->tcp_address : n->unix_address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	o.timeout_ms = pace_ms(10000);
	s.name = "m";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd lr=0.125 max_staleness=1 min_world=3 max_world=3 "
		     "chunk_elems=1024 timeout=15s";
	if ((rc = shard_connect(&r->client, &o)) != SHARD_OK)
		return must_go_on(rc, "connect");
	if ((rc = shard_define(r->client, &s, &r->model, &created)) != SHARD_OK)
		return must_go_on(rc, "define");
	for (uint32_t i = 0; i < NUMEL; i++)
		w[i] = weight(i);
	if (created) {
		MUST(shard_write(r->model, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, w));
		MUST(shard_seal(r->model, 0));
	}
	while ((rc = shard_join(r->model, (int)r->nr, pace_ms(15000), &world)) == SHARD_ROLLED_BACK)
		r->rolled_back++;
	r->next = world.step;
	return rc == SHARD_OK ? true : must_go_on(rc, "join");
}

struct committed { /* Step 0 stands for no step. */
	uint64_t step;
	shard_ticket ticket;
};

static void hold(struct rank *r)
{
	r->held = true;
	while (!r->yard->held_over)
		usleep(500);
}

/* Begins, computes and commits one step. The result of the step before it is still to come. */
static enum shard_status one(struct rank *r, const struct committed *before, struct committed *now)
{
	struct shard_result res = SHARD_INIT(struct shard_result);
	struct shard_step step = SHARD_INIT(struct shard_step);
	enum shard_status rc = shard_begin(r->model, NULL, &step);
	const float *image;
	float *g;

	if (rc != SHARD_OK)
		return rc;
	CHECK(step.rank == r->nr);
	r->begun = step.step;
	r->ahead_nr += before->step != 0 &&
		       shard_result(r->model, before->ticket, 0, &res) == SHARD_TIMEOUT;
	if (r->nr == 0 && step.step == r->yard->hold_at)
		hold(r);
	image = shard_image(r->model, 0);
	g = shard_grad(r->model, 0);
	if (image == NULL || g == NULL)
		return SHARD_CLOSED; /* The connection has ended. */
	for (uint32_t i = 0; i < NUMEL; i++)
		g[i] = gradient(step.step, r->nr, i, image[i]);
	rc = shard_push(r->model, 0, 0, NUMEL, NULL, SHARD_F32, 0, NULL);
	if (rc == SHARD_OK)
		rc = shard_commit(r->model, &now->ticket);
	now->step = rc == SHARD_OK ? step.step : 0;
	return rc;
}

/* When no frames were read since, the result of each step in hand says what happened to the
 * model. */
static void both_void(struct rank *r, const struct committed *before, const struct committed *now)
{
	struct shard_result res = SHARD_INIT(struct shard_result);
	enum shard_status of_before = shard_result(r->model, before->ticket, pace_ms(15000), &res),
			  of_now = shard_result(r->model, now->ticket, pace_ms(15000), &res);

	CHECK(of_before == SHARD_ROLLED_BACK || of_before == SHARD_WORLD_CHANGED);
	CHECK(of_now == SHARD_ROLLED_BACK ||
	      (of_now == SHARD_WORLD_CHANGED && of_before == SHARD_WORLD_CHANGED));
	r->both += of_before == SHARD_ROLLED_BACK;
}

static void again(struct rank *r, enum shard_status rc)
{
	struct shard_world world = SHARD_INIT(struct shard_world);

	r->rolled_back += rc == SHARD_ROLLED_BACK;
	MUST(shard_world_get(r->model, &world));
	r->next = world.step;
}

/* Trains until the last step (true) or until the connection is lost (false). */
static bool session(struct rank *r)
{
	struct shard_result res = SHARD_INIT(struct shard_result);
	struct committed before = {0};

	if (!connect_rank(r))
		return false;
	while (r->next <= r->yard->last || before.step != 0) {
		struct committed now = {0};
		enum shard_status rc = SHARD_OK;

		if (r->next <= r->yard->last)
			rc = one(r, &before, &now);
		if (rc == SHARD_OK && before.step != 0 && before.step == r->yard->hold_at &&
		    now.step != 0) {
			hold(r);
			both_void(r, &before, &now);
		}
		if (rc == SHARD_OK && before.step != 0)
			rc = shard_result(r->model, before.ticket, pace_ms(15000), &res);
		before = now;
		if (rc == SHARD_WORLD_CHANGED || rc == SHARD_ROLLED_BACK) {
			before.step = 0;
			again(r, rc);
		} else if (rc != SHARD_OK) {
			return must_go_on(rc, "a step");
		} else {
			r->next += now.step != 0;
		}
	}
	MUST(shard_leave(r->model, pace_ms(15000)));
	return true;
}

static void *train(void *arg)
{
	struct rank *r = arg;
	bool done = false;

	while (!done) {
		done = session(r);
		shard_disconnect(&r->client);
		if (!done)
			usleep(500);
	}
	return NULL;
}

static int setup(void **state)
{
	struct yard *y = calloc(1, sizeof(*y));

	keep_init(&y->keep);
	y->last = UINT64_MAX;
	*state = y;
	return 0;
}

static int teardown(void **state)
{
	struct yard *y = *state;

	cluster_put_away(&y->cluster);
	keep_free(&y->keep);
	free(y);
	return 0;
}

static void wait_for(_Atomic uint64_t *what, uint64_t at_least, const char *name)
{
	uint64_t until = pace_by(15);

	while (*what < at_least) {
		if (clock_ns() > until)
			fail_msg("%s is %lu, not %lu", name, (unsigned long)*what,
				 (unsigned long)at_least);
		usleep(500);
	}
}

static uint64_t begin(struct yard *y, bool tcp)
{
	char tag[65];

	y->tcp = tcp;
	y->cluster = cluster_start(2, NULL, "[cluster]\nheartbeat_timeout = 1s\n");
	for (uint32_t i = 0; i < RANKS; i++) {
		y->rank[i].yard = y;
		y->rank[i].nr = i;
		CHECK(pthread_create(&y->rank[i].thread, NULL, train, &y->rank[i]) == 0);
	}
	wait_for(&y->rank[0].begun, 5, "step of rank 0");
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	return keep_newest(y->keep.dir, tag);
}

/* `late` is 2, or 1 to show that the check finds such an error. `from` tells whether the restored
 * weights replace both images. */
static void reference(uint64_t restored, uint64_t last, int late, bool from, float *p)
{
	/* The images after the previous step and after the one before it. */
	static float image[2][NUMEL], next[NUMEL];

	for (uint32_t i = 0; i < NUMEL; i++)
		p[i] = image[0][i] = image[1][i] = weight(i);
	for (uint64_t step = 1; step <= last; step++) {
		for (uint32_t i = 0; i < NUMEL; i++) {
			float w = image[late - 1][i],
			      g = gradient(step, 0, i, w) + gradient(step, 1, i, w);

			next[i] = fmaf(-LR, (g + gradient(step, 2, i, w)) * (1.0f / 3), p[i]);
		}
		memcpy(p, next, sizeof(next));
		memcpy(image[1], step == restored && from ? p : image[0], sizeof(next));
		memcpy(image[0], p, sizeof(next));
	}
}

static void finish(struct yard *y, uint64_t restored)
{
	static float want[NUMEL], got[NUMEL];
	uint64_t last = 0, at;
	shard_client *c;
	shard_model *m;

	wait_for(&y->rank[0].begun, restored + 6, "step of rank 0");
	for (int i = 0; i < RANKS; i++)
		last = y->rank[i].begun > last ? y->rank[i].begun : last;
	y->last = last += 50; /* Nobody has begun this step yet. */
	for (int i = 0; i < RANKS; i++)
		pthread_join(y->rank[i].thread, NULL);
	at = last;
	c = crew_connect(y->cluster->node[1].unix_address);
	MUST(shard_attach(c, "m", &m));
	MUST(shard_read(m, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, got, &at));
	shard_disconnect(&c);
	reference(restored, last, 2, true, want);
	for (uint32_t i = 0; i < NUMEL; i++)
		if (want[i] != got[i])
			fail_msg("element %u is %a, the reference has %a", i, (double)got[i],
				 (double)want[i]);
	reference(restored, last, 1, true, want);
	assert_memory_not_equal(want, got, sizeof(want));
	reference(restored, last, 2, false, want);
	assert_memory_not_equal(want, got, sizeof(want));
	for (int i = 0; i < RANKS; i++)
		assert_true(y->rank[i].ahead_nr > 0);
	cluster_done(&y->cluster);
}

static void given_up(struct yard *y, bool tcp)
{
	uint64_t restored = begin(y, tcp), until = pace_by(15);
	struct ckpt_ask ask = {.dir = y->keep.dir, .name = "m", .force = true, .timeout_ms = 15000};
	struct ckpt_answer answer;
	shard_client *c = crew_connect(y->cluster->node[0].unix_address);

	y->hold_at = y->rank[0].begun + 20;
	for (int i = 0; i < RANKS; i++)
		while (!y->rank[i].held) {
			if (clock_ns() > until)
				fail_msg("rank %d does not come to step %lu", i,
					 (unsigned long)y->hold_at);
			usleep(500);
		}
	MUST(ckpt_restore(c, &ask, &answer, NULL));
	shard_disconnect(&c);
	for (int i = 0; i < RANKS; i++)
		y->rank[i].begun = 0;
	y->hold_at = 0;
	y->held_over = true;
	for (int i = 0; i < RANKS; i++)
		wait_for(&y->rank[i].rolled_back, 1, "rolled_back");
	if (!tcp)
		assert_int_equal(y->rank[1].both, 1);
	finish(y, restored);
}

static void given_up_by_force(void **state)
{
	given_up(*state, false);
}

static void given_up_over_tcp(void **state)
{
	given_up(*state, true);
}

static void killed(struct yard *y, int node)
{
	uint64_t restored = begin(y, node == 1);

	wait_for(&y->rank[0].begun, restored + 4, "step of rank 0");
	cluster_signal(y->cluster, node, SIGKILL);
	cluster_wait(y->cluster, node, 5000);
	for (int i = 0; i < RANKS; i++)
		y->rank[i].begun = 0;
	cluster_spawn(y->cluster, node);
	cluster_ready(y->cluster, node);
	for (int i = 0; i < RANKS; i++)
		if ((i == 2) != (node == 1)) /* Trainers of the other node are told. */
			wait_for(&y->rank[i].rolled_back, 1, "rolled_back");
	finish(y, restored);
}

static void a_node_is_killed(void **state)
{
	killed(*state, 1);
}

static void the_coordinator_is_killed(void **state)
{
	killed(*state, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(given_up_by_force, setup, teardown),
		cmocka_unit_test_setup_teardown(given_up_over_tcp, setup, teardown),
		cmocka_unit_test_setup_teardown(a_node_is_killed, setup, teardown),
		cmocka_unit_test_setup_teardown(the_coordinator_is_killed, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
