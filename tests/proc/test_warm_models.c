// SPDX-License-Identifier: Apache-2.0
/* Tests what else comes back with a daemon beside weights: what operators changed, that a model is
 * paused, two models at once, a model that is not sealed yet, blobs, and the loss scale. A stop is
 * a restart, too: SIGTERM and a new start of the same daemon lose nothing, on one node after the
 * other or on all. What is not needed any more is given back, as after trainers left and models
 * were dropped. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/fdstore.h"
#include "lib/pace.h"
#include "lib/tool.h"
#include "lib/trainer.h"
#include "lib/warm.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void ctl(struct warm *w, int node, const char *words, const char *want)
{
	char all[256];

	snprintf(all, sizeof(all), "--address %s %s", w->cluster->node[node].unix_address, words);
	tool_expect(0, want, "shardctl", all);
}

/* Waits until the model is paused, because a coordinator that has just come back recovers first. */
static void paused(struct warm *w, int node)
{
	uint64_t by = pace_by(10);
	char words[256], *out = NULL;
	bool is;

	snprintf(words, sizeof(words), "--address %s model list",
		 w->cluster->node[node].unix_address);
	do {
		assert_int_equal(tool_run(&out, "shardctl", words), 0);
		is = strstr(out, " paused ") != NULL;
		if (!is && clock_ns() > by)
			fail_msg("not paused: %s", out);
		free(out);
	} while (!is);
}

static int run_ctl(void *words)
{
	return tool_run(NULL, "shardctl", words);
}

/* Makes a change that takes effect at a step boundary: asks for it, and then trains a step. */
static void change(struct warm *w, const char *what, const char *heard)
{
	char words[256];
	pid_t pid;

	snprintf(words, sizeof(words), "model %s --timeout 120 -a %s", what,
		 w->cluster->node[w->cluster->nodes_nr - 1].unix_address);
	pid = proc_fork(run_ctl, words);
	warm_wait_log(w, 0, heard, 1);
	warm_train(w, w->r[0].world.step);
	proc_expect_exit(pid, 0, 15000);
}

static void killed(struct warm *w, unsigned nodes)
{
	warm_kill(w, nodes);
	warm_spawn(w, nodes);
}

static void test_paused(void **state)
{
	struct warm *w = *state;

	warm_start(w, 2, (int[]){1, 1}, NULL);
	warm_all(w);
	warm_train(w, 2);
	change(w, "pause m", "action=pause ");
	killed(w, 1);
	paused(w, 0);
	killed(w, 2);
	paused(w, 1);
	killed(w, 3);
	paused(w, 1);
	ctl(w, 0, "model resume m", "");
	assert_int_equal(warm_back(w, 3), 4);
	warm_train(w, 5);
	warm_check(w, 5);
	warm_finish(w);
}

static void test_tuned(void **state)
{
	struct warm *w = *state;

	warm_start(w, 1, (int[]){2}, NULL);
	warm_all(w);
	warm_train(w, 2);
	change(w, "set m lr 0.5", "action=set key=lr value=0.5 ");
	w->halved_from = 4;
	killed(w, 1);
	ctl(w, 0, "model show m", "lr = 0.5");
	assert_int_equal(warm_back(w, 1), 4);
	warm_train(w, 5);
	warm_check(w, 5);
	warm_finish(w);
}

static void test_two_models(void **state)
{
	struct warm *w = *state, other;

	warm_start(w, 2, (int[]){1, 1}, NULL);
	other = *w;
	other.name = "n";
	other.numel = 3000;
	other.settings = "optimizer=sgd chunk_elems=1024";
	warm_all(w);
	warm_all(&other);
	warm_train(w, 2);
	warm_train(&other, 5);
	for (unsigned nodes = 1; nodes <= 3; nodes++) {
		/* One model is killed in the middle of a step, the other between two. */
		for (uint32_t r = 0; r < 2; r++)
			warm_begin(w, r);
		killed(w, nodes);
		assert_int_equal(warm_back(w, nodes), 2 * nodes + 1);
		assert_int_equal(warm_back(&other, nodes), 5 + nodes);
		warm_train(w, 2 * nodes + 2);
		warm_train(&other, 5 + nodes);
		warm_check(w, 2 * nodes + 2);
		warm_check(&other, 5 + nodes);
	}
	for (uint32_t r = 0; r < 2; r++)
		warm_end(&other, r);
	warm_finish(w);
}

/* The session that writes the weights ends with its daemon, and the next session is the writer. The
 * other model, which trains, is not affected. */
static void test_not_sealed(void **state)
{
	struct warm *w = *state, other;
	shard_client *c;
	shard_model *m;
	float *part;
	int created;
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {100000}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);

	warm_start(w, 1, (int[]){1}, NULL);
	warm_all(w);
	warm_train(w, 2);
	other = *w;
	memset(other.r, 0, sizeof(other.r));
	other.name = s.name = "n";
	other.numel = 100000;
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd chunk_elems=32768 lr=1 timeout=120s min_world=1 max_world=1";
	o.address = w->cluster->node[0].unix_address;
	part = calloc(50000, sizeof(*part));
	CHECK(part != NULL);
	EXPECT(SHARD_OK, shard_connect(&c, &o));
	EXPECT(SHARD_OK, shard_define(c, &s, &m, &created));
	assert_int_equal(created, 1);
	EXPECT(SHARD_OK, shard_write(m, SHARD_MASTER, 0, 0, 50000, SHARD_F32, part));
	free(part);
	killed(w, 1);
	shard_disconnect(&c);
	assert_int_equal(warm_back(w, 1), 3);
	warm_train(w, 3);
	warm_check(w, 3);
	warm_define(&other, 0); /* It writes everything and seals. */
	assert_int_equal(other.r[0].created, 1);
	warm_join(&other, 1);
	warm_train(&other, 2);
	killed(w, 1);
	assert_int_equal(warm_back(&other, 1), 3);
	assert_int_equal(warm_back(w, 1), 4);
	warm_check(&other, 2);
	warm_check(w, 3);
	warm_end(&other, 0);
	warm_finish(w);
}

static void test_blobs(void **state)
{
	struct warm *w = *state;
	char text[64];
	uint64_t step;
	size_t bytes;

	warm_start(w, 2, (int[]){1, 1}, NULL);
	warm_all(w);
	for (uint64_t s = 1; s <= 3; s++) {
		for (uint32_t r = 0; r < 2; r++) {
			warm_begin(w, r);
			bytes = (size_t)snprintf(text, sizeof(text), "rank %u at step %lu", r,
						 (unsigned long)s);
			EXPECT(SHARD_OK, shard_set_blob(w->r[r].model, text, bytes));
		}
		for (uint32_t r = 0; r < 2; r++)
			warm_commit(w, r);
		for (uint32_t r = 0; r < 2; r++) {
			EXPECT(SHARD_OK, warm_result(w, r));
			EXPECT(SHARD_OK, shard_world_get(w->r[r].model, &w->r[r].world));
		}
		killed(w, (unsigned)s);
		assert_int_equal(warm_back(w, (unsigned)s), s + 1);
		for (uint32_t r = 0; r < 4; r++) { /* Each blob is read from each node. */
			char want[64];

			bytes = sizeof(text);
			EXPECT(SHARD_OK, shard_blob(w->r[r / 2].model, r % 2, text, &bytes, &step));
			assert_int_equal(step, s);
			snprintf(want, sizeof(want), "rank %u at step %lu", r % 2,
				 (unsigned long)s);
			assert_int_equal(bytes, strlen(want));
			assert_memory_equal(text, want, bytes);
		}
	}
	warm_finish(w);
}

/* With fp16, an overflow is a step that changes nothing but the scale. */
static void test_loss_scale(void **state)
{
	struct warm *w = *state;
	double scale;

	warm_start(w, 2, (int[]){1, 1}, NULL);
	w->grad = SHARD_F16;
	w->image = SHARD_BF16;
	w->settings = "optimizer=sgd chunk_elems=32768 loss_scale=0 hysteresis=1 "
		      "initial_scale_power=8 loss_scale_window=1000";
	for (int s = 2; s < WARM_STEPS; s += 2)
		w->skipped[s] = true;
	warm_all(w);
	warm_train(w, 1);
	scale = w->r[0].step.loss_scale;
	assert_true(scale == 256);
	for (unsigned nodes = 1; nodes <= 3; nodes++) {
		warm_train(w, 2 * nodes); /* It ends with a skipped step. */
		killed(w, nodes);
		assert_int_equal(warm_back(w, nodes), 2 * nodes + 1);
		warm_check(w, 2 * nodes);
		warm_train(w, 2 * nodes + 1);
		scale /= 2;
		for (uint32_t r = 0; r < 2; r++)
			assert_true(w->r[r].step.loss_scale == scale);
		warm_check(w, 2 * nodes + 1);
	}
	warm_finish(w);
}

static void upgraded(struct warm *w, unsigned nodes)
{
	for (int n = 0; n < w->cluster->nodes_nr; n++)
		if (nodes >> n & 1)
			cluster_signal(w->cluster, n, SIGTERM);
	for (int n = 0; n < w->cluster->nodes_nr; n++)
		if (nodes >> n & 1)
			assert_int_equal(cluster_wait(w->cluster, n, 15000), 0);
	warm_spawn(w, nodes);
}

static void test_upgrade(void **state)
{
	static const unsigned order[] = {2, 1, 3, 1};
	struct warm *w = *state;
	uint64_t step = 3;

	warm_start(w, 2, (int[]){1, 1}, NULL);
	warm_all(w);
	warm_train(w, 2);
	for (size_t i = 0; i < NR(order); i++, step++) {
		/* Every second time it is in the middle of a step, which begins again. */
		if (i & 1)
			for (uint32_t r = 0; r < 2; r++)
				warm_begin(w, r);
		upgraded(w, order[i]);
		assert_int_equal(warm_back(w, order[i]), step);
		warm_check(w, step - 1);
		warm_train(w, step);
		warm_check(w, step);
	}
	for (int n = 0; n < 2; n++)
		assert_int_equal(warm_logged(w, n, "event=lost"), 0);
	warm_finish(w);
}

/* Returns how many memory regions are kept for the node. */
static uint32_t pieces(struct warm *w, int node)
{
	char path[512];
	uint32_t nr = 0;
	DIR *dir;

	if (w->how == CLUSTER_SYSTEMD)
		return fdstore_count(w->cluster->node[node].store);
	dir = opendir(w->cluster->warm_dir);
	CHECK(dir != NULL);
	for (struct dirent *d; (d = readdir(dir)) != NULL;) {
		DIR *in;

		if (d->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", w->cluster->warm_dir, d->d_name);
		in = opendir(path);
		for (struct dirent *f; in != NULL && (f = readdir(in)) != NULL;)
			nr += f->d_name[0] != '.';
		if (in != NULL)
			closedir(in);
	}
	closedir(dir);
	return nr;
}

static void test_given_back(void **state)
{
	struct warm *w = *state;
	uint32_t before, with_model;

	warm_start(w, 1, (int[]){2}, NULL);
	before = pieces(w, 0);
	warm_all(w);
	warm_train(w, 1);
	with_model = pieces(w, 0);
	assert_true(with_model > before);
	for (uint32_t r = 0; r < 2; r++)
		warm_end(w, r);
	/* Neither restarts nor trainers that come and go leave anything behind. */
	for (int i = 0; i < 6; i++) {
		killed(w, 1);
		if (i > 0)
			for (uint32_t r = 0; r < 2; r++)
				warm_end(w, r);
		warm_all(w);
		warm_train(w, w->r[0].world.step);
		assert_in_range(pieces(w, 0), before + 1, with_model + 2);
	}
	for (uint32_t r = 0; r < 2; r++)
		warm_end(w, r);
	ctl(w, 0, "model drop m --force", "");
	assert_int_equal(pieces(w, 0), before);
	killed(w, 1);
	assert_int_equal(pieces(w, 0), before);
	ctl(w, 0, "status", "16.0 MiB of 256.0 MiB promised to models and queues");
	warm_finish(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {WARM_BOTH(test_paused),     WARM_BOTH(test_tuned),
					   WARM_BOTH(test_two_models), WARM_BOTH(test_not_sealed),
					   WARM_BOTH(test_blobs),      WARM_BOTH(test_loss_scale),
					   WARM_BOTH(test_upgrade),    WARM_BOTH(test_given_back)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
