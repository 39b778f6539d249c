// SPDX-License-Identifier: Apache-2.0
/* Tests that shard_set() changes beta1, beta2, eps and weight_decay of all groups, or of one, from
 * the next step on. Three real daemons elect who coordinates. The weights are computed here once
 * more as ARITHMETIC.md says, and every bit has to be the same: also after each daemon was killed
 * and came back with its memory, after a restore of a checkpoint that has the changes, and by
 * `shardctl replay`. */
#include "base/check.h"
#include "ckpt/safetensors.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "lib/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define OLDER "tests/older/shardd"
#define QUORUM                                                                                     \
	"[cluster]\nmembership = quorum\nelection_timeout = 300ms\nheartbeat_timeout = 5s\n"       \
	"lost_timeout = 60s\n"

enum { W, B, TENSORS, NUMEL = 2500 };

static const struct shard_tensor tensors[TENSORS] = {
	{.name = "w", .ndim = 1, .shape = {NUMEL}},
	{.name = "b", .ndim = 1, .shape = {NUMEL}, .group = 1},
};
static const struct shard_group groups[] = {{"main", ""}, {"bias", "weight_decay=0"}};

static struct cluster *cluster;
static struct keep keep;

/* --- the weights, once more --- */

struct hyper {
	double beta1, beta2, eps, weight_decay;
};

static struct {
	struct hyper of[TENSORS];
	uint64_t step;
	float p[TENSORS][NUMEL], m[TENSORS][NUMEL], v[TENSORS][NUMEL];
} truth;

static const double lr = 0.01;

static float gradient(uint64_t step, uint32_t tensor, uint32_t i)
{
	return (float)((step * 7 + tensor * 3 + i) % 19) - 9;
}

static void truth_init(void)
{
	memset(&truth, 0, sizeof(truth));
	truth.of[W] = (struct hyper){0.9, 0.999, 1e-8, 0.01};
	truth.of[B] = (struct hyper){0.9, 0.999, 1e-8, 0};
	for (uint32_t t = 0; t < TENSORS; t++)
		for (uint32_t i = 0; i < NUMEL; i++)
			truth.p[t][i] = (float)(t + i % 50);
}

/* AdamW of ARITHMETIC.md, sections 5 and 6, with a multiplier of 1. */
static void truth_step(void)
{
	double t = (double)++truth.step;

	for (uint32_t k = 0; k < TENSORS; k++) {
		const struct hyper *h = &truth.of[k];
		float beta2 = (float)h->beta2, eps = (float)h->eps, omb1 = (float)(1 - h->beta1),
		      omb2 = (float)(1 - h->beta2), size = (float)(lr / (1 - pow(h->beta1, t))),
		      root = (float)sqrt(1 - pow(h->beta2, t)),
		      decay = (float)(1 - lr * h->weight_decay);

		for (uint32_t i = 0; i < NUMEL; i++) {
			float g = gradient(truth.step, k, i), p = truth.p[k][i] * decay,
			      *m = &truth.m[k][i], *v = &truth.v[k][i];

			*m = fmaf(omb1, g - *m, *m);
			*v = fmaf(omb2 * g, g, beta2 * *v);
			truth.p[k][i] = fmaf(-size, *m / (sqrtf(*v) / root + eps), p);
		}
	}
}

/* --- the trainer --- */

static void attach(struct trainer *t, int node)
{
	struct shard_spec s = SHARD_INIT(struct shard_spec);

	s.name = "set";
	s.tensors = tensors;
	s.tensors_nr = TENSORS;
	s.groups = groups;
	s.groups_nr = NR(groups);
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=adamw lr=0.01 chunk_elems=1024 min_world=1 max_world=1 replicas=2";
	trainer_connect(t, cluster->node[node].unix_address);
	EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
	for (uint32_t i = 0; t->created && i < TENSORS; i++)
		EXPECT(SHARD_OK,
		       shard_write(t->model, SHARD_MASTER, i, 0, NUMEL, SHARD_F32, truth.p[i]));
	if (t->created)
		EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

static void join(struct trainer *t)
{
	EXPECT(SHARD_OK, shard_join(t->model, -1, pace_ms(30000), &t->world));
	assert_int_equal(t->world.step, truth.step + 1);
}

/* Other nodes come and go meanwhile, so a step may take several attempts. */
static enum shard_status try_step(struct trainer *t)
{
	struct shard_begin_opts b = SHARD_INIT(struct shard_begin_opts);
	struct shard_result r = SHARD_INIT(struct shard_result);
	enum shard_status st = shard_begin(t->model, &b, &t->step);
	float g[NUMEL];

	for (uint32_t k = 0; st == SHARD_OK && k < TENSORS; k++) {
		assert_int_equal(t->step.step, truth.step + 1);
		for (uint32_t i = 0; i < NUMEL; i++)
			g[i] = gradient(t->step.step, k, i);
		st = shard_push(t->model, k, 0, NUMEL, g, SHARD_F32, 0, NULL);
	}
	if (st == SHARD_OK)
		st = shard_commit(t->model, NULL);
	if (st == SHARD_OK)
		st = shard_result(t->model, 0, pace_ms(30000), &r);
	assert_true(st != SHARD_OK || r.outcome == SHARD_APPLIED);
	return st;
}

static void train(struct trainer *t, int steps)
{
	for (int i = 0; i < steps; i++) {
		enum shard_status st;

		while ((st = try_step(t)) == SHARD_WORLD_CHANGED)
			EXPECT(SHARD_OK, shard_world_get(t->model, &t->world));
		EXPECT(SHARD_OK, st);
		truth_step();
	}
}

static void check(struct trainer *t)
{
	static float got[NUMEL];

	for (uint32_t k = 0; k < TENSORS; k++) {
		uint64_t at = truth.step;

		EXPECT(SHARD_OK,
		       shard_read(t->model, SHARD_MASTER, k, 0, NUMEL, SHARD_F32, got, &at));
		assert_int_equal(at, truth.step);
		for (uint32_t i = 0; i < NUMEL; i++)
			if (got[i] != truth.p[k][i])
				fail_msg("step %lu tensor %u element %u: %.9g, expected %.9g",
					 (unsigned long)truth.step, k, i, (double)got[i],
					 (double)truth.p[k][i]);
	}
}

/* Nobody trains meanwhile: a change would wait for the step in hand. */
static void change(struct trainer *t, const struct hyper *w, const struct hyper *b)
{
	const struct {
		const char *key;
		double value;
	} sets[] = {{"main/beta1", w->beta1},
		    {"bias/beta1", b->beta1},
		    {"main/beta2", w->beta2},
		    {"bias/beta2", b->beta2},
		    {"main/eps", w->eps},
		    {"bias/eps", b->eps},
		    {"weight_decay", 0.5}, /* Of both, and then of each. */
		    {"main/weight_decay", w->weight_decay},
		    {"bias/weight_decay", b->weight_decay}};
	char value[32];

	trainer_end(t);
	attach(t, 0);
	for (size_t i = 0; i < NR(sets); i++) {
		snprintf(value, sizeof(value), "%.17g", sets[i].value);
		EXPECT(SHARD_OK, shard_set(t->model, sets[i].key, value));
	}
	truth.of[W] = *w;
	truth.of[B] = *b;
	join(t);
}

/* --- replay --- */

static void write_gradients(const char *dir, uint64_t step)
{
	struct safetensors_entry entry[TENSORS];
	float g[NUMEL];
	void *head = NULL;
	size_t bytes = 0;
	char path[160];
	struct err e;
	FILE *f;

	for (uint32_t k = 0; k < TENSORS; k++)
		entry[k] = (struct safetensors_entry){.name = tensors[k].name,
						      .dtype_name = "F32",
						      .ndim = 1,
						      .shape = {NUMEL},
						      .bytes = sizeof(g)};
	assert_int_equal(safetensors_make(&head, &bytes, entry, TENSORS, NULL, 0, &e), SHARD_OK);
	snprintf(path, sizeof(path), "%s/step%lu-rank0.safetensors", dir, (unsigned long)step);
	assert_non_null(f = fopen(path, "w"));
	assert_int_equal(fwrite(head, 1, bytes, f), bytes);
	for (uint32_t k = 0; k < TENSORS; k++) {
		for (uint32_t i = 0; i < NUMEL; i++)
			g[i] = gradient(step, k, i);
		assert_int_equal(fwrite(g, sizeof(g), 1, f), 1);
	}
	assert_int_equal(fclose(f), 0);
	free(head);
}

static void replay(void)
{
	char dir[128], history[128], words[600], *out = NULL;
	FILE *f;

	snprintf(dir, sizeof(dir), "%s/gradients", keep.dir);
	snprintf(history, sizeof(history), "%s/history", keep.dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	for (uint64_t step = 1; step <= truth.step; step++)
		write_gradients(dir, step);
	snprintf(words, sizeof(words), "history set --node all --json --address %s",
		 cluster->node[0].unix_address);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	assert_non_null(f = fopen(history, "w"));
	assert_true(fputs(out, f) >= 0);
	assert_int_equal(fclose(f), 0);
	free(out);
	snprintf(words, sizeof(words), "replay --history %s --from %s/early --gradients %s %s/late",
		 history, keep.dir, dir, keep.dir);
	tool_expect(0, "", "shardctl", words);
}

/* --- tests --- */

/* The truth anew, up to that step: `set` came after step 2, and weight decay went before the last.
 */
static void truth_until(uint64_t late, const struct hyper set[2])
{
	truth_init();
	while (truth.step < late) {
		if (truth.step == 2) {
			truth.of[W] = set[0];
			truth.of[B] = set[1];
		}
		if (truth.step == late - 1)
			truth.of[B].weight_decay = 0;
		truth_step();
	}
}

static void kill_each(struct trainer *t)
{
	for (int n = 0; n < 3; n++) { /* One of them coordinates, and one has the trainer. */
		cluster_kill(cluster, n);
		cluster_spawn(cluster, n);
		cluster_ready(cluster, n);
		if (n == 0) {
			trainer_end(t);
			attach(t, 0);
			join(t);
		}
		train(t, 2);
		check(t);
	}
}

static void exact(void **state)
{
	static const struct hyper one[] = {{0.5, 0.75, 0.125, 0.3}, {0.25, 0.9, 1e-3, 0.1}},
				  two[] = {{0.8, 0.95, 1e-6, 0}, {0.95, 0.5, 0.5, 0.7}};
	struct trainer t;
	char words[256];
	uint64_t late;

	(void)state;
	truth_init();
	keep_init(&keep);
	cluster = cluster_make(3, NULL, QUORUM);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	attach(&t, 0);
	join(&t);
	train(&t, 2);
	keep_must_save(cluster->node[0].unix_address, "set", keep.dir, "early");
	change(&t, &one[0], &one[1]);
	train(&t, 2);
	check(&t);
	kill_each(&t);
	snprintf(words, sizeof(words), "model show set -a %s", cluster->node[0].unix_address);
	tool_expect(0, "tuned:      bias/weight_decay = 0.1", "shardctl", words);
	trainer_end(&t);
	attach(&t, 1);
	EXPECT(SHARD_OK, shard_set(t.model, "bias/weight_decay", "default"));
	truth.of[B].weight_decay = 0;
	join(&t);
	train(&t, 1);
	check(&t);
	late = truth.step;
	keep_must_save(cluster->node[0].unix_address, "set", keep.dir, "late");
	replay();
	/* What comes after the checkpoint is void, the changes after it, too. */
	change(&t, &two[0], &two[1]);
	train(&t, 2);
	check(&t);
	trainer_end(&t);
	snprintf(words, sizeof(words), "restore %s --tag late --name set --force --address %s",
		 keep.dir, cluster->node[1].unix_address);
	tool_expect(0, "", "shardctl", words);
	truth_until(late, one);
	attach(&t, 0);
	check(&t);
	join(&t);
	train(&t, 2);
	check(&t);
	trainer_end(&t);
	cluster_done(&cluster);
	keep_free(&keep);
}

static void refused(void **state)
{
	static const struct {
		const char *key, *value, *text;
	} wrong[] = {
		{"momentum", "0.5", "choose lr or clip or beta1 or beta2 or eps or weight_decay"},
		{"lr_factor", "0.5", "lr_factor cannot be set"},
		{"bias/lr", "0.5", "bias/lr cannot be set"},
		{"head/beta1", "0.5", "head/beta1: \"set\" has no group of that name"},
		{"/beta1", "0.5", "has no group of that name"},
		{"beta1", "1", "beta1 = 1: choose a number of at least 0 and below 1"},
		{"bias/beta2", "-0.5", "beta2 = -0.5"},
		{"eps", "inf", "eps = inf"},
		{"weight_decay", "much", "weight_decay = much"},
	};
	struct trainer t;

	(void)state;
	truth_init();
	cluster = cluster_start(3, NULL, NULL);
	attach(&t, 0);
	for (size_t i = 0; i < NR(wrong); i++) {
		EXPECT(SHARD_BAD_ARG, shard_set(t.model, wrong[i].key, wrong[i].value));
		EXPECT_TEXT(wrong[i].text);
	}
	join(&t);
	train(&t, 2);
	check(&t);
	trainer_end(&t);
	cluster_done(&cluster);
}

/* A node that does not know of it would go on without it, if it came to coordinate. */
static void beside_an_older_release(void **state)
{
	struct trainer t;

	(void)state;
	truth_init();
	cluster = cluster_make(3, NULL, NULL);
	for (int n = 0; n < 3; n++) {
		cluster->daemon = n == 2 ? OLDER : NULL;
		cluster_spawn(cluster, n);
	}
	for (int n = 0; n < 3; n++)
		cluster_ready(cluster, n);
	for (int n = 0; n < 2; n++)
		cluster_wait_log(cluster, n, "event=link_up", 2);
	attach(&t, 0);
	EXPECT(SHARD_UNSUPPORTED, shard_set(t.model, "beta1", "0.5"));
	EXPECT_TEXT("beta1 of \"set\": node c (release ");
	join(&t);
	train(&t, 2);
	check(&t);
	trainer_end(&t);
	cluster_done(&cluster);
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
		cmocka_unit_test_teardown(exact, put_away),
		cmocka_unit_test_teardown(refused, put_away),
		cmocka_unit_test_teardown(beside_an_older_release, put_away),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
