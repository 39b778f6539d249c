// SPDX-License-Identifier: Apache-2.0
/* Tests what ranks give with a commit beside their gradients: numbers that shard_result() returns
 * summed over the ranks, and a clip for that step. Real daemons, and trainers over unix sockets or
 * tcp. One thread drives all trainers, because only begin and result wait for the others. */
#include "base/check.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "lib/trainer.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define OLDER "tests/older/shardd"

enum { RANKS = 3, NUMEL = 3000 };

static struct cluster *cluster;

struct gives { /* What a rank gives with a step. */
	const double *values;
	uint32_t values_nr;
	bool skip;
	const double *clip;
};

static void define(struct trainer *t, const char *address, const char *more)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {NUMEL}};
	static const float w[NUMEL];
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	char settings[256];

	snprintf(settings, sizeof(settings), "optimizer=sgd lr=1 chunk_elems=1024 %s", more);
	s.name = "values";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = settings;
	trainer_connect(t, address);
	EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
	if (!t->created)
		return;
	EXPECT(SHARD_OK, shard_write(t->model, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, w));
	EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

/* Ranks 0 and 2 are on node b, and rank 1 is on node a. So another order than that of ranks gives
 * another sum. */
static void start(struct trainer *t, bool tcp)
{
	for (int i = 0; i < RANKS; i++) {
		const struct cluster_node *n = &cluster->node[i != 1];

		define(&t[i], tcp ? n->tcp_address : n->unix_address, "min_world=3 max_world=3");
		if (i < RANKS - 1)
			EXPECT(SHARD_TIMEOUT, shard_join(t[i].model, i, 0, &t[i].world));
	}
	for (int i = RANKS - 1; i >= 0; i--)
		EXPECT(SHARD_OK, shard_join(t[i].model, i, pace_ms(20000), &t[i].world));
}

static void begin(struct trainer *t)
{
	static float g[NUMEL];
	struct shard_begin_opts b = SHARD_INIT(struct shard_begin_opts);

	for (int i = 0; i < NUMEL; i++)
		g[i] = 1;
	for (int i = 0; i < RANKS; i++) {
		EXPECT(SHARD_OK, shard_begin(t[i].model, &b, &t[i].step));
		assert_int_equal(t[i].step.rank, i);
		EXPECT(SHARD_OK, shard_push(t[i].model, 0, 0, NUMEL, g, SHARD_F32, 0, NULL));
	}
}

static void commit(struct trainer *t, const struct gives gives[RANKS])
{
	for (int i = 0; i < RANKS; i++) {
		struct shard_commit_opts o = SHARD_INIT(struct shard_commit_opts);

		o.values = gives[i].values;
		o.values_nr = gives[i].values_nr;
		o.clip = gives[i].clip;
		EXPECT(SHARD_OK, gives[i].skip ? shard_vote_skip(t[i].model, "test")
					       : shard_commit_opts(t[i].model, &o, NULL));
	}
}

static void expect_sums(struct trainer *t, const double want[SHARD_VALUES],
			enum shard_outcome outcome)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(20000), &r));
	assert_int_equal(r.outcome, outcome);
	assert_memory_equal(r.values, want, sizeof(r.values));
}

static double sum3(double a, double b, double c)
{
	return a + b + c;
}

/* Each rank gives another number of them. What one does not give is 0. A NaN is a NaN in its own
 * sum and nowhere else, and the step is applied. */
static void sums(void **state)
{
	static const double of0[] = {1e16, 0.1, 7}, of1[SHARD_VALUES] = {1, 0.2, [15] = -2.5},
			    of2[] = {-1e16, 0.3, (double)NAN, 1e308};
	static const struct gives all[RANKS] = {{.values = of0, .values_nr = 3},
						{.values = of1, .values_nr = 16},
						{.values = of2, .values_nr = 4}},
				  none[RANKS],
				  skip[RANKS] = {{.values = of0, .values_nr = 3},
						 {.skip = true},
						 {.values = of2, .values_nr = 2}};
	const double zeros[SHARD_VALUES] = {0},
		     want[SHARD_VALUES] = {sum3(1e16, 1, -1e16), sum3(0.1, 0.2, 0.3), (double)NAN,
					   1e308, [15] = -2.5},
		     skipped[SHARD_VALUES] = {0, sum3(0.1, 0, 0.3), 7};
	struct trainer t[RANKS];

	(void)state;
	for (int tcp = 0; tcp < 2; tcp++) {
		cluster = cluster_start(2, NULL, NULL);
		start(t, tcp);
		begin(t);
		commit(t, all);
		for (int i = 0; i < RANKS; i++)
			expect_sums(&t[i], want, SHARD_APPLIED);
		begin(t); /* Those of the step before are gone. */
		commit(t, none);
		for (int i = 0; i < RANKS; i++)
			expect_sums(&t[i], zeros, SHARD_APPLIED);
		begin(t);
		commit(t, skip);
		for (int i = 0; i < RANKS; i++)
			expect_sums(&t[i], skipped, SHARD_SKIPPED_VOTE);
		for (int i = 0; i < RANKS; i++)
			trainer_end(&t[i]);
		cluster_done(&cluster);
	}
}

/* All nodes have voted. The coordinator dies before it has heard the vote of node b, and comes back
 * with its memory. The step is decided from the votes, and the trainers of node b are told the sums
 * with what the rank of the dead node gave. The history of both nodes has them, too. */
static void after_a_recovery(void **state)
{
	static const double of0[] = {1e16, 0.1}, of1[] = {1, 0.2}, of2[] = {-1e16, 0.3};
	static const struct gives all[RANKS] = {{.values = of0, .values_nr = 2},
						{.values = of1, .values_nr = 2},
						{.values = of2, .values_nr = 2}};
	const double want[SHARD_VALUES] = {sum3(1e16, 1, -1e16), sum3(0.1, 0.2, 0.3)};
	struct trainer t[RANKS];
	char line[128], words[256], *out;

	(void)state;
	cluster = cluster_make(2, NULL, NULL);
	cluster_between(cluster);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	start(t, false);
	begin(t);
	cluster_votes(cluster, false);
	commit(t, all);
	for (int n = 0; n < 2; n++)
		cluster_phase(cluster, n, "prepared");
	cluster_kill(cluster, 0);
	cluster_votes(cluster, true);
	cluster_spawn(cluster, 0);
	cluster_ready(cluster, 0);
	expect_sums(&t[0], want, SHARD_APPLIED);
	expect_sums(&t[2], want, SHARD_APPLIED);
	snprintf(line, sizeof(line), "\"values\":[%.1f,%.17g]", want[0], want[1]);
	for (int n = 0; n < 2; n++) {
		snprintf(words, sizeof(words), "history values --json -a %s",
			 cluster->node[n].unix_address);
		assert_int_equal(tool_run(&out, "shardctl", words), 0);
		if (strstr(out, line) == NULL)
			fail_msg("node %d: %s is not in its history: %s", n, line, out);
		free(out);
	}
	for (int i = 0; i < RANKS; i++)
		trainer_end(&t[i]);
	cluster_done(&cluster);
}

static float weight_of(struct trainer *t)
{
	uint64_t at = 0;
	float w;

	EXPECT(SHARD_OK, shard_read(t->model, SHARD_MASTER, 0, 0, 1, SHARD_F32, &w, &at));
	return w;
}

/* The clip of a step comes before that of the settings, and is of that step alone. Ranks that give
 * different ones, or none, end the attempt without effect, and the text names both. */
static void clip(void **state)
{
	static const double norm = 0.5, other = 0.25, off = 0, bad = -1;
	static const struct gives given[] = {{.clip = &norm}, {.clip = &norm}, {.clip = &norm}},
				  none[RANKS],
				  unclipped[] = {{.clip = &off}, {.clip = &off}, {.clip = &off}},
				  odd[][RANKS] = {
					  {{.clip = &norm}, {.clip = &norm}, {.clip = &other}},
					  {{.clip = &norm}, {.clip = &norm}, {.clip = NULL}},
					  {{.clip = NULL}, {.clip = NULL}, {.clip = &off}}};
	const double whole = sqrt(9.0 * NUMEL) / 3; /* Of the mean, which is 1 everywhere. */
	struct shard_commit_opts o = SHARD_INIT(struct shard_commit_opts);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct trainer t[RANKS];
	float w = 0;

	(void)state;
	cluster = cluster_start(2, NULL, NULL);
	start(t, false);
	for (size_t i = 0; i < NR(odd); i++) {
		begin(t);
		commit(t, odd[i]);
		for (int k = 0; k < RANKS; k++) {
			EXPECT(SHARD_MISMATCH, shard_result(t[k].model, 0, pace_ms(20000), &r));
			EXPECT_TEXT("clip: rank ");
			EXPECT_TEXT("rank 2 (pid ");
			EXPECT_TEXT(i == 0   ? "gave 0.25"
				    : i == 1 ? "gave none: give clip at shard_commit_opts()"
					     : "gave 0, rank ");
			EXPECT(SHARD_OK, shard_world_get(t[k].model, &t[k].world));
		}
	}
	assert_true(weight_of(&t[0]) == 0);
	for (int i = 0; i < 3; i++) {
		double factor = i == 0 ? norm / (whole + 1e-6) : 1;

		begin(t);
		o.clip = &bad;
		EXPECT(SHARD_BAD_ARG, shard_commit_opts(t[0].model, &o, NULL));
		EXPECT_TEXT("clip is -1");
		commit(t, i == 0 ? given : i == 1 ? unclipped : none);
		for (int k = 0; k < RANKS; k++)
			EXPECT(SHARD_OK, shard_result(t[k].model, 0, pace_ms(20000), &r));
		assert_true(r.step == (uint64_t)i + 1 && r.clip_factor == factor);
		w = fmaf(-1, 3 * (float)(factor / 3), w);
		assert_true(weight_of(&t[1]) == w);
	}
	for (int i = 0; i < RANKS; i++)
		trainer_end(&t[i]);
	cluster_done(&cluster);
}

static void refused(void **state)
{
	static const double values[SHARD_VALUES + 1];
	struct shard_commit_opts o = SHARD_INIT(struct shard_commit_opts);
	struct trainer t[RANKS];

	(void)state;
	cluster = cluster_start(2, NULL, NULL);
	start(t, false);
	begin(t);
	o.values = values;
	o.values_nr = NR(values);
	EXPECT(SHARD_BAD_ARG, shard_commit_opts(t[0].model, &o, NULL));
	EXPECT_TEXT("17 values: at most 16 of them");
	o.values = NULL;
	o.values_nr = 1;
	EXPECT(SHARD_BAD_ARG, shard_commit_opts(t[0].model, &o, NULL));
	EXPECT_TEXT("1 values at NULL");
	for (int i = 0; i < RANKS; i++)
		trainer_end(&t[i]);
	cluster_done(&cluster);
}

/* No node may decide a step without what a rank gave. So it is refused while one is linked that
 * does not know of it, whether it is the trainer's own or another one. */
static void beside_an_older_release(void **state)
{
	static const double value[] = {1};
	struct shard_commit_opts o = SHARD_INIT(struct shard_commit_opts);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_begin_opts b = SHARD_INIT(struct shard_begin_opts);
	struct trainer t;

	(void)state;
	cluster = cluster_make(2, NULL, NULL);
	cluster_spawn(cluster, 0);
	cluster->daemon = OLDER;
	cluster_spawn(cluster, 1);
	cluster->daemon = NULL;
	cluster_ready(cluster, 0);
	cluster_ready(cluster, 1);
	cluster_wait_log(cluster, 0, "event=link_up", 1);
	for (int n = 0; n < 2; n++) {
		define(&t, cluster->node[n].unix_address, "min_world=1 max_world=1");
		EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(20000), &t.world));
		for (int with = 0; with < 2; with++) {
			EXPECT(SHARD_OK, shard_begin(t.model, &b, &t.step));
			EXPECT(SHARD_OK, shard_push_none(t.model, 0));
			o.values = with ? value : NULL;
			o.values_nr = (uint32_t)with;
			EXPECT(with && n == 1 ? SHARD_UNSUPPORTED : SHARD_OK,
			       shard_commit_opts(t.model, &o, NULL));
			if (with && n == 1)
				EXPECT_TEXT("does not know: upgrade it");
			else
				EXPECT(with ? SHARD_CLOSED : SHARD_OK,
				       shard_result(t.model, 0, pace_ms(20000), &r));
			if (with && n == 0)
				EXPECT_TEXT("values with a step, which node b (release ");
		}
		trainer_end(&t);
	}
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
		cmocka_unit_test_teardown(sums, put_away),
		cmocka_unit_test_teardown(after_a_recovery, put_away),
		cmocka_unit_test_teardown(clip, put_away),
		cmocka_unit_test_teardown(refused, put_away),
		cmocka_unit_test_teardown(beside_an_older_release, put_away),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
