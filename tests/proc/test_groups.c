// SPDX-License-Identifier: Apache-2.0
/* A model of 256 groups, each with its own learning rate and weight decay, as layer-wise decay of
 * the learning rate needs them. Two trainers on two nodes train it with the rates of its settings,
 * with rates that begin and that commit give, over unix sockets and TCP, with a coordinator of the
 * list and an elected one. Masters and moments equal a reference that is computed here, bit by bit,
 * also after a restore. A rate that differs in one group alone is found. */
#include "base/check.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { GROUPS = 256, NUMEL = 100, RANKS = 2 };

#define LR    0.01
#define BETA1 0.9
#define BETA2 0.95
#define EPS   1e-6

struct model {
	struct shard_tensor tensor[GROUPS];
	struct shard_group group[GROUPS];
	char name[GROUPS][24], settings[GROUPS][80];
	struct shard_spec spec;
	float p[GROUPS][NUMEL], m[GROUPS][NUMEL], v[GROUPS][NUMEL]; /* The reference. */
};

static double factor(uint32_t g)
{
	return pow(0.97, GROUPS - 1 - g);
}

static double decay_of(uint32_t g)
{
	return g % 3 == 0 ? 0 : 0.1 / (g + 1);
}

static struct model *model_new(void)
{
	struct model *x = calloc(1, sizeof(*x));

	CHECK(x != NULL);
	for (uint32_t g = 0; g < GROUPS; g++) {
		snprintf(x->name[g], sizeof(x->name[g]), "layer.%u", g);
		snprintf(x->settings[g], sizeof(x->settings[g]),
			 "lr_factor=%.17g weight_decay=%.17g", factor(g), decay_of(g));
		x->group[g] = (struct shard_group){x->name[g], x->settings[g]};
		/* Tensors are not in the order of their groups. */
		x->tensor[g] = (struct shard_tensor){
			.name = x->name[g], .ndim = 1, .shape = {NUMEL}, .group = g * 77 % GROUPS};
		for (uint32_t i = 0; i < NUMEL; i++)
			x->p[g][i] = (float)((g + i) % 64) * 0.125f - 3;
	}
	x->spec = (struct shard_spec){
		.size = sizeof(x->spec),
		.name = "m",
		.tensors = x->tensor,
		.tensors_nr = GROUPS,
		.groups = x->group,
		.groups_nr = GROUPS,
		.image = SHARD_BF16,
		.grad = SHARD_F32,
		.settings = "optimizer=adamw lr=0.01 betas=0.9,0.95 eps=1e-6 chunk_elems=1024 "
			    "replicas=1 min_world=2 max_world=2",
	};
	return x;
}

static float grad(uint32_t rank, uint32_t t, uint32_t i, uint64_t step)
{
	return (float)((rank * 3 + t + i + step) % 16) * 0.0625f - 0.4f;
}

/* Steps 3 and 4 have learning rates of the trainers. */
static double lr_of(uint32_t g, uint64_t step)
{
	return step == 3 ? 0.02 / (g + 1) : step == 4 ? 0.001 * (g + 1) : LR * factor(g);
}

/* As wire/ARITHMETIC.md says it: the nodes' sums in node order, then adamw. */
static void reference_step(struct model *x, uint64_t step)
{
	float one1 = (float)(1 - BETA1), one2 = (float)(1 - BETA2), b2 = (float)BETA2;
	float bc2 = (float)sqrt(1 - pow(BETA2, (double)step)), mult = 0.5f;

	for (uint32_t t = 0; t < GROUPS; t++) {
		uint32_t g = x->tensor[t].group;
		double lr = lr_of(g, step);
		float step_size = (float)(lr / (1 - pow(BETA1, (double)step)));
		float decay = (float)(1 - lr * decay_of(g));

		for (uint32_t i = 0; i < NUMEL; i++) {
			float n = (grad(0, t, i, step) + grad(1, t, i, step)) * mult;
			float m = fmaf(one1, n - x->m[t][i], x->m[t][i]);
			float v = fmaf(one2 * n, n, b2 * x->v[t][i]);

			x->p[t][i] = fmaf(-step_size, m / (sqrtf(v) / bc2 + (float)EPS),
					  x->p[t][i] * decay);
			x->m[t][i] = m;
			x->v[t][i] = v;
		}
	}
}

static void same(struct trainer *t, enum shard_kind kind, float (*want)[NUMEL], uint64_t step)
{
	float got[NUMEL];

	for (uint32_t k = 0; k < GROUPS; k++) {
		uint64_t at = step;

		EXPECT(SHARD_OK, shard_read(t->model, kind, k, 0, NUMEL, SHARD_F32, got, &at));
		if (memcmp(got, want[k], sizeof(got)) != 0)
			fail_msg("kind %d of tensor %u after step %lu: %a, not %a", (int)kind, k,
				 (unsigned long)step, (double)got[0], (double)want[k][0]);
	}
}

static void check(struct trainer *t, struct model *x, uint64_t step)
{
	same(t, SHARD_MASTER, x->p, step);
	same(t, SHARD_EXP_AVG, x->m, step);
	same(t, SHARD_EXP_AVG_SQ, x->v, step);
}

static void define(struct trainer *t, struct model *x, const char *address)
{
	trainer_connect(t, address);
	EXPECT(SHARD_OK, shard_define(t->client, &x->spec, &t->model, &t->created));
	for (uint32_t k = 0; t->created && k < GROUPS; k++)
		EXPECT(SHARD_OK,
		       shard_write(t->model, SHARD_MASTER, k, 0, NUMEL, SHARD_F32, x->p[k]));
	if (t->created)
		EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

static void join(struct trainer *t)
{
	EXPECT(SHARD_TIMEOUT, shard_join(t[0].model, 0, 0, &t[0].world));
	EXPECT(SHARD_OK, shard_join(t[1].model, 1, pace_ms(20000), &t[1].world));
	EXPECT(SHARD_OK, shard_join(t[0].model, 0, pace_ms(20000), &t[0].world));
}

static void push(struct trainer *t, uint32_t rank, uint64_t step)
{
	float g[NUMEL];

	for (uint32_t k = 0; k < GROUPS; k++) {
		for (uint32_t i = 0; i < NUMEL; i++)
			g[i] = grad(rank, k, i, step);
		EXPECT(SHARD_OK, shard_push(t->model, k, 0, NUMEL, g, SHARD_F32, 0, NULL));
	}
}

/* odd: rank 1 gives another rate in the last group. */
static void commit(struct trainer *t, uint32_t rank, uint64_t step, bool odd)
{
	struct shard_begin_opts b = SHARD_INIT(struct shard_begin_opts);
	struct shard_commit_opts c = SHARD_INIT(struct shard_commit_opts);
	double lr[GROUPS];

	for (uint32_t g = 0; g < GROUPS; g++)
		lr[g] = lr_of(g, step) * (odd && rank == 1 && g == GROUPS - 1 ? 2 : 1);
	b.lr = step == 3 ? lr : NULL;
	c.lr = step == 4 ? lr : NULL;
	t->step = SHARD_INIT(struct shard_step);
	EXPECT(SHARD_OK, shard_begin(t->model, &b, &t->step));
	assert_int_equal(t->step.step, step);
	push(t, rank, step);
	EXPECT(SHARD_OK, shard_commit_opts(t->model, &c, NULL));
}

static void one_step(struct trainer *t, uint64_t step)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	for (uint32_t i = 0; step == 3 && i < RANKS; i++)
		commit(&t[i], i, step, true);
	for (uint32_t i = 0; step == 3 && i < RANKS; i++) {
		EXPECT(SHARD_MISMATCH, shard_result(t[i].model, 0, pace_ms(20000), &r));
		EXPECT_TEXT("lr of group 255: rank ");
		EXPECT(SHARD_OK, shard_world_get(t[i].model, &t[i].world));
	}
	for (uint32_t i = 0; i < RANKS; i++)
		commit(&t[i], i, step, false);
	for (uint32_t i = 0; i < RANKS; i++) {
		EXPECT(SHARD_OK, shard_result(t[i].model, 0, pace_ms(20000), &r));
		assert_int_equal(r.outcome, SHARD_APPLIED);
		assert_true(r.lr == lr_of(0, step));
	}
}

static const char *address_of(struct cluster *c, int node, bool tcp)
{
	return tcp ? c->node[node].tcp_address : c->node[node].unix_address;
}

static void train(struct cluster *c, struct model *x, bool tcp, uint64_t first, uint64_t last)
{
	struct trainer t[RANKS];

	for (int i = 0; i < RANKS; i++)
		define(&t[i], x, address_of(c, i, tcp));
	join(t);
	for (uint64_t step = first; step <= last; step++) {
		one_step(t, step);
		reference_step(x, step);
		check(&t[step % RANKS], x, step);
	}
	for (int i = 0; i < RANKS; i++)
		trainer_end(&t[i]);
}

static struct cluster *cluster;

static void saved_and_restored(bool tcp, int nodes, const char *extra)
{
	struct model *x = model_new();
	struct keep keep;

	keep_init(&keep);
	cluster = cluster_start(nodes, NULL, extra);
	train(cluster, x, tcp, 1, 5);
	keep_must_save(cluster->node[0].unix_address, "m", keep.dir, NULL);
	cluster_done(&cluster);
	cluster = cluster_start(nodes, NULL, extra);
	keep_must_restore(cluster->node[1].unix_address, keep.dir, NULL, NULL);
	train(cluster, x, tcp, 6, 7);
	cluster_done(&cluster);
	keep_free(&keep);
	free(x);
}

static void two_nodes(void **state)
{
	saved_and_restored(*state != NULL, 2, NULL);
}

static void elected(void **state)
{
	(void)state;
	saved_and_restored(false, 3, "[cluster]\nmembership = quorum\nelection_timeout = 3s\n");
}

/* What outlives a daemon has the rates of the step, too. */
static void killed(void **state)
{
	struct model *x = model_new();

	(void)state;
	cluster = cluster_make(2, NULL, NULL);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	train(cluster, x, false, 1, 4);
	for (int n = 0; n < 2; n++)
		cluster_kill(cluster, n);
	for (int n = 0; n < 2; n++)
		cluster_spawn(cluster, n);
	for (int n = 0; n < 2; n++)
		cluster_ready(cluster, n);
	train(cluster, x, false, 5, 6);
	cluster_done(&cluster);
	free(x);
}

static void too_many(void **state)
{
	struct model *x = model_new();
	struct shard_group *more = calloc(GROUPS + 1, sizeof(*more));
	struct trainer t;

	(void)state;
	memcpy(more, x->group, sizeof(x->group));
	more[GROUPS].name = "one.more";
	x->spec.groups = more;
	x->spec.groups_nr++;
	cluster = cluster_start(1, NULL, NULL);
	trainer_connect(&t, cluster->node[0].unix_address);
	EXPECT(SHARD_BAD_ARG, shard_define(t.client, &x->spec, &t.model, &t.created));
	EXPECT_TEXT("257 tensor groups: at most 256");
	trainer_end(&t);
	cluster_done(&cluster);
	free(more);
	free(x);
}

static int put_away(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		{"two_nodes unix", two_nodes, NULL, put_away, NULL},
		{"two_nodes tcp", two_nodes, NULL, put_away, (void *)1},
		cmocka_unit_test_teardown(elected, put_away),
		cmocka_unit_test_teardown(killed, put_away),
		cmocka_unit_test_teardown(too_many, put_away),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
