// SPDX-License-Identifier: Apache-2.0
/* Clusters that restart warm, and the trainers of their models. Tests of tests/proc call it. Each
 * function makes its calls one after the other and does not wait for another rank's call unless its
 * comment says so. Failures end the test. */
#include "lib/warm.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/trainer.h"
#include "wire/dtype.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define QUIET_MS 15000
#define LIMIT_MS pace_ms(QUIET_MS)

enum { CHUNK = 32768, REST = 5000 };

int warm_setup(void **state)
{
	struct warm *w = calloc(1, sizeof(*w));

	CHECK(w != NULL);
	w->how = (enum cluster_warm)(uintptr_t)*state;
	*state = w;
	return 0;
}

int warm_teardown(void **state)
{
	struct warm *w = *state;

	for (uint32_t r = 0; r < WARM_RANKS; r++)
		shard_disconnect(&w->r[r].client);
	cluster_put_away(&w->cluster);
	free(w);
	return 0;
}

void warm_start(struct warm *w, int nodes, const int *on, const char *extra)
{
	w->cluster = cluster_make(nodes, NULL, extra);
	if (w->how != CLUSTER_WARM_NR)
		cluster_warm(w->cluster, w->how);
	if (w->between)
		cluster_between(w->cluster);
	warm_spawn(w, (1u << nodes) - 1);
	w->name = "m";
	w->settings = "optimizer=sgd chunk_elems=32768";
	w->numel = 2 * CHUNK * (uint32_t)nodes + REST;
	w->image = w->grad = SHARD_F32;
	w->ranks = 0;
	for (int n = 0; n < nodes; n++)
		for (int i = 0; i < on[n]; i++)
			w->r[w->ranks++].node = n;
}

void warm_finish(struct warm *w)
{
	for (uint32_t r = 0; r < WARM_RANKS; r++)
		shard_disconnect(&w->r[r].client);
	cluster_done(&w->cluster);
}

/* --- numbers --- */

static float start_weight(uint32_t i)
{
	return (float)(i % 97) - 48;
}

static float part(uint32_t rank, uint64_t step, uint32_t i)
{
	return (float)((i * 5 + i / 64 + step * 7 + rank * 3) % 7) - 3;
}

static float *right(const struct warm *w, uint64_t step)
{
	float *out = malloc(w->numel * sizeof(*out));

	CHECK(out != NULL && step < WARM_STEPS);
	for (uint32_t i = 0; i < w->numel; i++) {
		float moment = 0;

		out[i] = start_weight(i);
		for (uint64_t s = 1; s <= step; s++) {
			moment *= w->skipped[s] ? 1 : w->momentum;
			for (uint32_t r = 0; r < w->ranks && !w->skipped[s]; r++)
				moment += part(r, s, i);
			if (!w->skipped[s])
				out[i] -=
					moment *
					(w->halved_from != 0 && s >= w->halved_from ? 0.5f : 1.0f);
		}
	}
	return out;
}

/* --- trainers --- */

static void write_weights(struct warm *w, struct warm_rank *t)
{
	float *all = right(w, 0);

	EXPECT(SHARD_OK, shard_write(t->model, SHARD_MASTER, 0, 0, w->numel, SHARD_F32, all));
	EXPECT(SHARD_OK, shard_seal(t->model, 0));
	free(all);
}

static shard_client *connected(struct warm *w, int node)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *c = NULL;

	o.address =
		w->tcp ? w->cluster->node[node].tcp_address : w->cluster->node[node].unix_address;
	o.timeout_ms = LIMIT_MS;
	o.look_ms = -1; /* What broke is told, and not made again. */
	EXPECT(SHARD_OK, shard_connect(&c, &o));
	return c;
}

static void define_on(struct warm *w, shard_client *c, shard_model **m, int *created)
{
	struct shard_tensor tensor = {.name = "w", .ndim = 1};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	char settings[256];

	tensor.shape[0] = w->numel;
	snprintf(settings, sizeof(settings), "%s lr=1 timeout=120s min_world=%u max_world=%u",
		 w->settings, w->ranks, w->ranks);
	s.name = w->name;
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = w->image;
	s.grad = w->grad;
	s.settings = settings;
	EXPECT(SHARD_OK, shard_define(c, &s, m, created));
}

void warm_define(struct warm *w, uint32_t rank)
{
	struct warm_rank *t = &w->r[rank];

	if (t->client == NULL)
		t->client = connected(w, t->node);
	t->world = SHARD_INIT(struct shard_world);
	define_on(w, t->client, &t->model, &t->created);
	if (t->created)
		write_weights(w, t);
}

void warm_join(struct warm *w, unsigned ranks)
{
	/* The joins are sent and not awaited, because the last one makes the world. */
	for (uint32_t r = 0; r < w->ranks; r++)
		if (ranks >> r & 1)
			(void)!shard_join(w->r[r].model, (int)r, 0, &w->r[r].world);
	for (uint32_t r = 0; r < w->ranks; r++) {
		struct warm_rank *t = &w->r[r];

		if (!(ranks >> r & 1))
			continue;
		if (t->world.world_size == 0)
			EXPECT(SHARD_OK, shard_join(t->model, (int)r, LIMIT_MS, &t->world));
		assert_int_equal(t->world.rank, r);
		assert_int_equal(t->world.world_size, w->ranks);
	}
}

void warm_all(struct warm *w)
{
	for (uint32_t r = 0; r < w->ranks; r++)
		warm_define(w, r);
	warm_join(w, (1u << w->ranks) - 1);
}

/* The gradient is written in place. With one rank on a node this memory is all there is of its
 * gradient until the step is over. */
void warm_begin(struct warm *w, uint32_t rank)
{
	struct warm_rank *t = &w->r[rank];
	size_t elem = dtype_bytes(w->grad);
	char *g;

	t->step = SHARD_INIT(struct shard_step);
	EXPECT(SHARD_OK, shard_begin(t->model, NULL, &t->step));
	assert_int_equal(t->step.rank, rank);
	g = shard_grad(t->model, 0);
	assert_non_null(g);
	for (uint32_t i = 0; i < w->numel; i++) {
		float x = (float)w->ranks * part(rank, t->step.step, i) * (float)t->step.loss_scale;

		if (w->skipped[t->step.step] && rank == 0 && i == w->numel / 2)
			x = INFINITY;
		dtype_convert(g + i * elem, w->grad, &x, SHARD_F32, 1);
	}
	EXPECT(SHARD_OK, shard_push(t->model, 0, 0, w->numel, NULL, w->grad, 0, NULL));
}

shard_ticket warm_commit(struct warm *w, uint32_t rank)
{
	shard_ticket ticket;

	EXPECT(SHARD_OK, shard_commit(w->r[rank].model, &ticket));
	return ticket;
}

static enum shard_status result_within(struct warm *w, uint32_t rank, int ms)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	enum shard_status st = shard_result(w->r[rank].model, 0, ms, &r);

	if (st == SHARD_OK) {
		assert_int_equal(r.step, w->r[rank].step.step);
		assert_int_equal(r.outcome == SHARD_APPLIED, !w->skipped[r.step]);
	}
	return st;
}

enum shard_status warm_result(struct warm *w, uint32_t rank)
{
	return result_within(w, rank, LIMIT_MS);
}

/* With two images a commit may wait for weights that are on the way, and only calls of its own
 * trainer take them. So no rank is waited for alone. */
static void results(struct warm *w)
{
	uint64_t by = clock_ns() + (uint64_t)LIMIT_MS * NS_PER_MS;
	uint32_t open = (1u << w->ranks) - 1;

	while (open != 0)
		for (uint32_t r = 0; r < w->ranks; r++) {
			enum shard_status st;

			if (!(open >> r & 1))
				continue;
			st = result_within(w, r, 1);
			if (st == SHARD_TIMEOUT && clock_ns() < by)
				continue;
			EXPECT(SHARD_OK, st);
			open &= ~(1u << r);
		}
}

void warm_train(struct warm *w, uint64_t last)
{
	while (w->r[0].world.step <= last) {
		for (uint32_t r = 0; r < w->ranks; r++)
			warm_begin(w, r);
		for (uint32_t r = 0; r < w->ranks; r++)
			warm_commit(w, r);
		results(w);
		for (uint32_t r = 0; r < w->ranks; r++)
			EXPECT(SHARD_OK, shard_world_get(w->r[r].model, &w->r[r].world));
	}
}

void warm_end(struct warm *w, uint32_t rank)
{
	shard_disconnect(&w->r[rank].client);
	w->r[rank].model = NULL;
}

/* --- nodes --- */

void warm_spawn(struct warm *w, unsigned nodes)
{
	for (int n = 0; n < w->cluster->nodes_nr; n++)
		if (nodes >> n & 1)
			cluster_spawn(w->cluster, n);
	for (int n = 0; n < w->cluster->nodes_nr; n++)
		if (nodes >> n & 1)
			cluster_ready(w->cluster, n);
}

void warm_kill(struct warm *w, unsigned nodes)
{
	for (int n = 0; n < w->cluster->nodes_nr; n++)
		if (nodes >> n & 1)
			cluster_kill(w->cluster, n);
}

/* For a rank whose daemon stayed. Its step in hand is either decided or has ended without effect,
 * and both are fine here. */
static void give_up(struct warm *w, uint32_t rank)
{
	struct warm_rank *t = &w->r[rank];
	struct shard_result res = SHARD_INIT(struct shard_result);
	enum shard_status st;
	shard_ticket ticket;

	st = shard_commit(t->model, &ticket); /* If it has not committed yet. */
	if (st == SHARD_OK || st == SHARD_BAD_STATE)
		st = shard_result(t->model, 0, LIMIT_MS, &res);
	if (st != SHARD_OK && st != SHARD_WORLD_CHANGED && st != SHARD_BAD_STATE)
		fail_msg("rank %u: %s: %s", rank, shard_name(st), shard_error());
}

uint64_t warm_back(struct warm *w, unsigned nodes)
{
	unsigned again = 0;

	for (uint32_t r = 0; r < w->ranks; r++) {
		if (!(nodes >> w->r[r].node & 1))
			continue;
		again |= 1u << r;
		warm_end(w, r);
		warm_define(w, r);
		assert_int_equal(w->r[r].created, 0);
	}
	for (uint32_t r = 0; r < w->ranks; r++)
		if (again >> r & 1)
			(void)!shard_join(w->r[r].model, (int)r, 0, &w->r[r].world);
	for (uint32_t r = 0; r < w->ranks; r++)
		if (!(again >> r & 1))
			give_up(w, r);
	warm_join(w, again);
	for (uint32_t r = 0; r < w->ranks; r++)
		if (!(again >> r & 1))
			EXPECT(SHARD_OK, shard_world_get(w->r[r].model, &w->r[r].world));
	return w->r[0].world.step;
}

static void check_kind(struct warm *w, shard_model *m, enum shard_kind kind, const float *want,
		       uint64_t step)
{
	float *got = malloc(w->numel * sizeof(*got));

	CHECK(got != NULL);
	EXPECT(SHARD_OK, shard_read(m, kind, 0, 0, w->numel, SHARD_F32, got, &step));
	for (uint32_t i = 0; i < w->numel; i++) {
		float x = want[i];

		if (kind == SHARD_IMAGE) {
			char narrow[4];

			dtype_convert(narrow, w->image, &x, SHARD_F32, 1);
			dtype_convert(&x, SHARD_F32, narrow, w->image, 1);
		}
		if (memcmp(&x, &got[i], sizeof(x)) != 0)
			fail_msg("%s of step %lu, element %u: %a, expected %a",
				 kind == SHARD_IMAGE ? "image" : "master", (unsigned long)step, i,
				 (double)got[i], (double)x);
	}
	free(got);
}

void warm_check(struct warm *w, uint64_t step)
{
	float *want = right(w, step);

	for (int n = 0; n < w->cluster->nodes_nr; n++) {
		shard_client *c = connected(w, n);
		shard_model *m;
		int created;

		define_on(w, c, &m, &created);
		assert_int_equal(created, 0);
		check_kind(w, m, SHARD_MASTER, want, step);
		check_kind(w, m, SHARD_IMAGE, want, step);
		shard_disconnect(&c);
	}
	free(want);
}

bool warm_says(struct warm *w, int node, const char *text_of_it, int ms)
{
	uint64_t by = clock_ns() + pace_ns((uint64_t)ms * NS_PER_MS);
	struct raw eye;
	bool there;

	raw_connect(&eye, w->cluster->node[node].unix_address);
	raw_hello(&eye, ROLE_CTL);
	do {
		char *text = raw_status(&eye);

		there = strstr(text, text_of_it) != NULL;
		free(text);
		if (!there)
			(void)poll(NULL, 0, 1);
	} while (!there && clock_ns() < by);
	raw_close(&eye);
	return there;
}

bool warm_in_phase(struct warm *w, int node, const char *phase, int ms)
{
	char want[40];

	snprintf(want, sizeof(want), "\"phase\":\"%s\"", phase);
	return warm_says(w, node, want, ms);
}

void warm_phase(struct warm *w, int node, const char *phase)
{
	if (!warm_in_phase(w, node, phase, QUIET_MS))
		fail_msg("node %s is not %s", w->cluster->node[node].name, phase);
}

uint32_t warm_logged(struct warm *w, int node, const char *part)
{
	return cluster_logged(w->cluster, node, part);
}

void warm_wait_log(struct warm *w, int node, const char *part, uint32_t times)
{
	cluster_wait_log(w->cluster, node, part, times);
}
