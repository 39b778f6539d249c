// SPDX-License-Identifier: Apache-2.0
/* Tests max_staleness = 1 with the library and real daemons. Each step is computed on the weights
 * of two steps before, whether a trainer goes ahead or waits for every result, over unix sockets or
 * TCP, on one node or two, with skipped steps, trainers that die and links that end. Gradients
 * depend on the weights that the trainer reads, so one wrong image changes the result. The result
 * is compared bit by bit with the same arithmetic in this file. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/ports.h"
#include "lib/proxy.h"
#include "lib/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NUMEL = 5000, TENSORS = 2, FROZEN = 1100, STEPS = 30, RANKS = 3 };
#define LR 0.125f

static const struct shard_tensor tensors[TENSORS + 1] = {
	{.name = "w", .ndim = 1, .shape = {NUMEL - 70}},
	{.name = "b", .ndim = 1, .shape = {70}},
	{.name = "frozen",
	 .ndim = 1,
	 .flags = SHARD_FROZEN,
	 .shape = {FROZEN}}, /* It fills chunks of its own. */
};

struct how {
	uint32_t nodes;
	unsigned tcp; /* Bits of the ranks that connect over TCP. */
	bool ahead, skips, dies, micro;
	const char *settings;
};

struct run;

struct rank {
	struct run *run;
	pthread_t thread;
	uint32_t nr;
	uint64_t died;             /* The last step at which it died. */
	_Atomic uint64_t ahead_nr; /* Steps that were begun before the previous step was decided. */
	_Atomic uint64_t changed_nr;
};

struct run {
	const struct how *how;
	struct inproc cluster;
	struct rank rank[RANKS];
	/* `restored` is the step at which the weights came back. 0: they did not. */
	uint64_t last, restored;
};

static float weight(uint32_t i)
{
	return (float)(i % 97) * 0.25f - 10;
}

/* The gradient that rank r computes for element i from weight w. */
static float gradient(uint64_t step, uint32_t r, uint32_t i, float w)
{
	return w * (0.25f + 0.125f * (float)r) + (float)((step * 31 + r * 7 + i) % 13) * 0.0625f;
}

static bool nonfinite(const struct how *h, uint64_t step)
{
	return h->skips && step % 7 == 3;
}

static bool votes_skip(const struct how *h, uint64_t step)
{
	return h->skips && step % 11 == 5;
}

static void connect_rank(struct rank *r, struct trainer *t)
{
	const struct how *h = r->run->how;
	const struct inproc_node *n = &r->run->cluster.node[h->nodes > 1 && r->nr > 0 ? 1 : 0];
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	char settings[256];
	float w[NUMEL];

	_Static_assert(FROZEN <= NUMEL, "its weights are the first of w");
	memset(t, 0, sizeof(*t));
	t->world = SHARD_INIT(struct shard_world);
	t->step = SHARD_INIT(struct shard_step);
	snprintf(settings, sizeof(settings),
		 "optimizer=sgd lr=0.125 max_staleness=1 min_world=%d max_world=%d "
		 "chunk_elems=1024 %s",
		 RANKS, RANKS, h->settings ? h->settings : "");
	o.address = h->tcp >> r->nr & 1 ? n->tcp_address : n->unix_address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	MUST(shard_connect(&t->client, &o));
	s.name = "stale";
	s.tensors = tensors;
	s.tensors_nr = TENSORS + 1;
	s.image = s.grad = SHARD_F32;
	s.settings = settings;
	MUST(shard_define(t->client, &s, &t->model, &t->created));
	for (uint32_t i = 0; i < NUMEL; i++)
		w[i] = weight(i);
	if (t->created) {
		MUST(shard_write(t->model, SHARD_MASTER, 0, 0, NUMEL - 70, SHARD_F32, w));
		MUST(shard_write(t->model, SHARD_MASTER, 1, 0, 70, SHARD_F32, w + NUMEL - 70));
		MUST(shard_write(t->model, SHARD_MASTER, TENSORS, 0, FROZEN, SHARD_F32, w));
		MUST(shard_seal(t->model, 0));
	}
	MUST(shard_join(t->model, (int)r->nr, pace_ms(20000), &t->world));
}

/* Both images have the weights that no step changes. */
static void check_frozen(const struct trainer *t)
{
	const float *image = shard_image(t->model, TENSORS);

	CHECK(image != NULL);
	for (uint32_t i = 0; i < FROZEN; i++)
		CHECK(image[i] == weight(i));
}

/* Reads the image, writes the gradient into the step's half of the arena, and pushes it. */
static enum shard_status compute(struct rank *r, struct trainer *t)
{
	uint64_t step = t->step.step;

	check_frozen(t);
	for (uint32_t k = 0; k < TENSORS; k++) {
		uint32_t n = k ? 70 : NUMEL - 70, at = k ? NUMEL - 70 : 0;
		const float *image = shard_image(t->model, k);
		float *g = shard_grad(t->model, k);
		enum shard_status rc;
		shard_ticket ticket;

		CHECK(image != NULL && g != NULL);
		for (uint32_t i = 0; i < n; i++)
			g[i] = gradient(step, r->nr, at + i, image[i]);
		if (k == 0 && r->nr == 1 && nonfinite(r->run->how, step))
			g[5] = INFINITY;
		if (!r->run->how->micro)
			rc = shard_push(t->model, k, 0, n, NULL, SHARD_F32, 0, &ticket);
		else if ((rc = shard_push(t->model, k, 0, n, NULL, SHARD_F32, SHARD_ADD,
					  &ticket)) == SHARD_OK)
			rc = shard_push_none(t->model, k); /* The second micro-step has none. */
		if (rc != SHARD_OK)
			return rc;
	}
	return SHARD_OK;
}

static bool dies(struct rank *r, uint64_t step)
{
	if (!r->run->how->dies || step % 8 != 2 * (uint64_t)r->nr || r->died >= step)
		return false;
	r->died = step;
	return true;
}

/* A committed step whose result is still to come. Step 0 stands for no step. */
struct committed {
	uint64_t step;
	shard_ticket ticket;
};

static enum shard_status one(struct rank *r, struct trainer *t, const struct committed *before,
			     struct committed *now)
{
	struct shard_result res = SHARD_INIT(struct shard_result);
	struct shard_begin_opts o = SHARD_INIT(struct shard_begin_opts);
	enum shard_status rc;

	o.micro_steps = r->run->how->micro ? 2 : 1;
	rc = shard_begin(t->model, &o, &t->step);
	if (rc != SHARD_OK)
		return rc;
	CHECK(t->step.rank == r->nr);
	r->ahead_nr += before->step != 0 &&
		       shard_result(t->model, before->ticket, 0, &res) == SHARD_TIMEOUT;
	if ((rc = compute(r, t)) != SHARD_OK)
		return rc;
	now->step = t->step.step;
	if (dies(r, now->step)) { /* To the daemon this is the same as kill -9. */
		shard_disconnect(&t->client);
		connect_rank(r, t);
		return SHARD_WORLD_CHANGED;
	}
	if (r->nr == 2 && votes_skip(r->run->how, now->step))
		return shard_vote_skip(t->model, "test");
	return shard_commit(t->model, &now->ticket);
}

static void *train(void *arg)
{
	struct rank *r = arg;
	struct committed before = {0};
	struct trainer t;
	uint64_t next;

	connect_rank(r, &t);
	for (next = t.world.step; next <= r->run->last || before.step != 0;) {
		struct shard_result res = SHARD_INIT(struct shard_result);
		struct committed now = {0};
		enum shard_status rc = SHARD_OK;

		if (next <= r->run->last)
			rc = one(r, &t, &before, &now);
		if (rc == SHARD_OK && before.step != 0)
			rc = shard_result(t.model, before.ticket, pace_ms(20000), &res);
		before.step = 0;
		if (rc == SHARD_OK && now.step != 0 && (!r->run->how->ahead || now.ticket == 0))
			rc = shard_result(t.model, now.ticket, pace_ms(20000), &res);
		else
			before = now;
		if (rc == SHARD_WORLD_CHANGED) {
			MUST(shard_world_get(t.model, &t.world));
			next = t.world.step;
			before.step = 0;
			r->changed_nr++;
			continue;
		}
		crew_must(rc, SHARD_OK, "a step");
		next += now.step != 0;
	}
	MUST(shard_leave(t.model, pace_ms(20000)));
	trainer_end(&t);
	return NULL;
}

/* Does the same arithmetic. `late` is 2, or another number to show that the check finds such an
 * error. */
static void reference(const struct how *h, uint64_t last, uint64_t restored, int late, float *p)
{
	static float image[3][NUMEL]; /* The images after the last three steps, the newest first. */

	for (uint32_t i = 0; i < NUMEL; i++)
		p[i] = image[0][i] = image[1][i] = weight(i);
	for (uint64_t step = 1; step <= last; step++) {
		const float *from = image[late - 1];
		bool skip = nonfinite(h, step) || votes_skip(h, step);

		for (uint32_t i = 0; i < NUMEL && !skip; i++) {
			float g = gradient(step, 0, i, from[i]),
			      rest = gradient(step, 1, i, from[i]);

			if (h->nodes > 1) { /* The ranks of node b are added first. */
				rest += gradient(step, 2, i, from[i]);
				g += rest;
			} else {
				g = g + rest + gradient(step, 2, i, from[i]);
			}
			image[2][i] = fmaf(-LR, g * (1.0f / 3), p[i]);
		}
		if (!skip)
			memcpy(p, image[2], sizeof(image[2]));
		memcpy(image[1], image[0], sizeof(image[0]));
		memcpy(image[0], p, sizeof(image[0]));
		if (step == restored) /* Both images have the restored weights. */
			memcpy(image[1], p, sizeof(image[0]));
	}
}

static void check(struct run *run, int late, bool equal)
{
	static float want[NUMEL], got[NUMEL], image[NUMEL];
	struct trainer t;
	struct rank r = run->rank[0];
	uint64_t at = 0;

	reference(run->how, run->last, run->restored, late, want);
	memset(&t, 0, sizeof(t));
	{
		struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);

		o.address = run->cluster.node[run->how->nodes > 1 ? 1 : 0].unix_address;
		o.look_ms = -1; /* What broke is told, and not made again. */
		EXPECT(SHARD_OK, shard_connect(&t.client, &o));
		EXPECT(SHARD_OK, shard_attach(t.client, "stale", &t.model));
	}
	(void)r;
	for (uint32_t k = 0; k < TENSORS; k++) {
		uint32_t n = k ? 70 : NUMEL - 70, first = k ? NUMEL - 70 : 0;

		EXPECT(SHARD_OK,
		       shard_read(t.model, SHARD_MASTER, k, 0, n, SHARD_F32, got + first, &at));
		at = 0;
		EXPECT(SHARD_OK,
		       shard_read(t.model, SHARD_IMAGE, k, 0, n, SHARD_F32, image + first, &at));
	}
	assert_int_equal(at, run->last);
	if (equal && memcmp(want, got, sizeof(want)) != 0)
		for (uint32_t i = 0; i < NUMEL; i++)
			if (want[i] != got[i])
				fail_msg("element %u is %a, the reference has %a", i,
					 (double)got[i], (double)want[i]);
	if (!equal)
		assert_memory_not_equal(want, got, sizeof(want));
	assert_memory_equal(got, image, sizeof(got));
	trainer_end(&t);
}

static void start_ranks(struct run *run)
{
	for (uint32_t i = 0; i < RANKS; i++) {
		run->rank[i].run = run;
		run->rank[i].nr = i;
		assert_int_equal(pthread_create(&run->rank[i].thread, NULL, train, &run->rank[i]),
				 0);
	}
}

static void start(struct run *run, const struct how *h, uint64_t last,
		  const struct inproc_conf *conf)
{
	memset(run, 0, sizeof(*run));
	run->how = h;
	run->last = last;
	inproc_start(&run->cluster, conf);
	start_ranks(run);
}

static void join_ranks(struct run *run)
{
	for (uint32_t i = 0; i < RANKS; i++)
		pthread_join(run->rank[i].thread, NULL);
}

static void stop(struct run *run)
{
	join_ranks(run);
	check(run, 2, true);
	check(run, 1, false); /* Shows that the check would find weights of one step before. */
	inproc_stop(&run->cluster);
}

static void every_way(void **state)
{
	static const struct how ways[] = {
		{.nodes = 1},
		{.nodes = 1, .ahead = true},
		{.nodes = 2},
		{.nodes = 2, .ahead = true},
		{.nodes = 2, .tcp = 7, .ahead = true},
		{.nodes = 2, .tcp = 2, .ahead = true, .skips = true},
		{.nodes = 1, .tcp = 1, .skips = true},
		{.nodes = 2, .ahead = true, .skips = true, .micro = true},
		{.nodes = 2, .tcp = 5, .ahead = true, .micro = true},
	};

	(void)state;
	for (size_t i = 0; i < NR(ways); i++) {
		const struct inproc_conf conf = {.nodes = ways[i].nodes};
		struct run run;

		if (i == 1) /* A late write into what was pushed would stop this process. */
			setenv("SHARD_GUARD", "1", 1);
		else
			unsetenv("SHARD_GUARD");

		start(&run, &ways[i], STEPS, &conf);
		stop(&run);
		if (ways[i].ahead)
			assert_true(run.rank[0].ahead_nr + run.rank[1].ahead_nr +
					    run.rank[2].ahead_nr >
				    STEPS);
		else
			assert_int_equal(run.rank[0].ahead_nr, 0);
	}
}

static void trainers_die(void **state)
{
	static const struct how ways[] = {
		{.nodes = 2, .ahead = true, .dies = true},
		{.nodes = 2, .tcp = 6, .ahead = true, .dies = true, .skips = true},
		{.nodes = 1, .tcp = 1, .dies = true, .skips = true},
	};

	(void)state;
	for (size_t i = 0; i < NR(ways); i++) {
		const struct inproc_conf conf = {.nodes = ways[i].nodes};
		struct run run;

		start(&run, &ways[i], STEPS, &conf);
		stop(&run);
		assert_true(run.rank[0].changed_nr > 2);
	}
}

/* The connection between the nodes is cut in the middle of a frame again and again. The nodes ask
 * for what they lack. */
static void links_fall(void **state)
{
	static const struct how ways[] = {
		{.nodes = 2, .ahead = true, .skips = true},
		{.nodes = 2, .tcp = 3, .ahead = true},
		{.nodes = 2},
	};
	static const uint32_t at[] = {40, 70, 55, 90, 33, 61, 75, 48};

	(void)state;
	for (size_t i = 0; i < NR(ways); i++) {
		struct inproc_conf conf = {.nodes = 2, .host_in_nodes = {"127.0.0.2"}};
		struct proxy_fault fault[NR(at)];
		struct proxy proxy;
		struct run run;

		for (size_t k = 0; k < NR(at); k++)
			fault[k] = (struct proxy_fault){.kind = PROXY_CUT,
							.back = (k + i) % 2,
							.frame = at[k] + (uint32_t)i * 3};
		conf.port[0] = ports_take();
		proxy_start(&proxy, "127.0.0.2", conf.port[0], conf.port[0], fault, NR(at));
		start(&run, &ways[i], 2 * STEPS, &conf);
		stop(&run);
		assert_true(atomic_load(&proxy.next) > 3);
		proxy_stop(&proxy);
	}
}

/* Both steps after a restored one are computed on its weights. */
static void restored(void **state)
{
	static const struct how ways[] = {{.nodes = 2, .ahead = true, .skips = true},
					  {.nodes = 1, .tcp = 2, .ahead = true}};
	struct keep keep;

	(void)state;
	keep_init(&keep);
	for (size_t i = 0; i < NR(ways); i++) {
		const struct inproc_conf conf = {.nodes = ways[i].nodes};
		char tag[16];
		struct run run;

		snprintf(tag, sizeof(tag), "run%zu", i);
		start(&run, &ways[i], STEPS, &conf);
		join_ranks(&run);
		keep_must_save(run.cluster.node[0].unix_address, "stale", keep.dir, tag);
		inproc_stop(&run.cluster);
		memset(&run, 0, sizeof(run));
		run.how = &ways[i];
		run.restored = STEPS;
		run.last = STEPS + 10;
		inproc_start(&run.cluster, &conf);
		keep_must_restore(run.cluster.node[0].unix_address, keep.dir, tag, "stale");
		start_ranks(&run);
		stop(&run);
	}
	keep_free(&keep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_way),
		cmocka_unit_test(trainers_die),
		cmocka_unit_test(links_fall),
		cmocka_unit_test(restored),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
