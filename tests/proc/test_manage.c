// SPDX-License-Identifier: Apache-2.0
/* Tests what operators change about a model that trains on two real nodes (lr and clip, pause,
 * resume after it diverged, a trainer that is expelled), and who may do which of these. */
#include "base/check.h"
#include "cluster/static.h"
#include "lib/pair.h"
#include "lib/tool.h"
#include "shard.pb-c.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* PAIR_SGD with weights that add up to 4: ../proto/wire/ARITHMETIC.md. */
static void reference(float *w, uint64_t step, double lr, double clip)
{
	double sumsq = 0, norm, factor = 1;
	float mult;

	for (uint32_t i = 0; i < DRILL_NUMEL; i++) {
		double g = (double)drill_gradient(0, step, i) + (double)drill_gradient(1, step, i);

		sumsq += g * g; /* Whole numbers, so the order does not matter. */
	}
	norm = sqrt(sumsq) / 4;
	if (clip > 0 && clip / (norm + 1e-6) < 1)
		factor = clip / (norm + 1e-6);
	mult = (float)(factor / 4);
	for (uint32_t i = 0; i < DRILL_NUMEL; i++)
		w[i] = fmaf(-(float)lr,
			    (drill_gradient(0, step, i) + drill_gradient(1, step, i)) * mult, w[i]);
}

static enum shard_status check_file(void *arg, uint32_t id, const void *bytes, size_t bytes_nr,
				    struct err *e)
{
	Shard__ModelFile *f = shard__model_file__unpack(NULL, bytes_nr, bytes);

	(void)e;
	assert_non_null(f);
	assert_true(id > 0 && f->view->tune != NULL && f->view->tune->has_lr &&
		    !f->view->tune->has_clip && !f->view->tune->paused);
	assert_true(f->view->tune->lr == 0.375);
	assert_true(f->model->owner != NULL && f->model->owner->known &&
		    f->model->owner->uid == geteuid());
	shard__model_file__free_unpacked(f, NULL);
	++*(int *)arg;
	return SHARD_OK;
}

static void test_set(void **state)
{
	char words[3][256];
	struct drill_truth r;
	struct static_dir *dir;
	struct pair p;
	pid_t pid[3];
	int files = 0;

	pair_start(&p, state, NULL);
	pair_join(&p, PAIR_TWO);
	drill_truth_init(&r);
	BOTH(&p, .op = DRILL_TRAIN, .step = 2);
	BOTH(&p, .op = DRILL_BEGIN);
	pid[0] = pair_change(&p, words[0], "set m lr 0.5", "action=set key=lr value=0.5 ");
	pid[1] = pair_change(&p, words[1], "set m clip 3", "action=set key=clip value=3 ");
	pid[2] = pair_change(&p, words[2], "set m lr 0.25",
			     "action=set key=lr value=0.25 "); /* The last word counts. */
	pair_rest_of_step(&p);
	for (int i = 0; i < 3; i++)
		proc_expect_exit(pid[i], 0, 10000);
	BOTH(&p, .op = DRILL_TRAIN, .step = 6);
	for (uint64_t s = 1; s <= 6; s++)
		reference(r.w, s, s <= 3 ? 1 : 0.25, s <= 3 ? 0 : 3);
	drill_check(p.t[1], &r, 6);
	tool_expect(0, "tuned:      lr = 0.25", "shardctl", pair_model(&p, words[0], "show m"));
	BOTH(&p, .op = DRILL_BEGIN);
	pid[0] = pair_change(&p, words[0], "set m clip default", "key=clip value=default ");
	pid[1] = pair_change(&p, words[1], "set m lr 0.375", "key=lr value=0.375 ");
	pair_rest_of_step(&p);
	proc_expect_exit(pid[0], 0, 10000);
	proc_expect_exit(pid[1], 0, 10000);
	pair_await_log(&p, 0, " by=\"uid ");
	pair_await_log(&p, 0, "event=tuned model=m paused=0 lr=0.375 clip=default\n");
	BOTH(&p, .op = DRILL_TRAIN, .step = 9);
	for (uint64_t s = 7; s <= 9; s++)
		reference(r.w, s, s <= 7 ? 0.25 : 0.375, s <= 7 ? 3 : 0);
	drill_check(p.t[0], &r, 9);
	cluster_signal(p.y->cluster, 0, SIGKILL); /* A restarted coordinator has to find it. */
	(void)cluster_wait(p.y->cluster, 0, 5000);
	assert_int_equal(static_open(&dir, p.y->cluster->node[0].state, NULL), SHARD_OK);
	assert_int_equal(static_load(dir, check_file, &files, NULL), SHARD_OK);
	assert_int_equal(files, 1);
	static_close(&dir);
	pair_finish(&p);
}

static void test_set_refused(void **state)
{
	char words[256];
	struct pair p;
	shard_model *m;

	pair_start(&p, state, NULL);
	p.t[0] = drill_new(p.y, p.y->cluster->node[0].unix_address);
	drill_define(p.t[0], PAIR_SGD "schedule=WarmupLR warmup_num_steps=10");
	assert_int_equal(shard_attach(p.c[1], "m", &m), SHARD_OK);
	pair_fails(shard_set(m, "lr", "0.5"), SHARD_BAD_STATE,
		   "lr of \"m\" comes from schedule = WarmupLR");
	pair_fails(shard_set(m, "beta1", "0.5"), SHARD_BAD_ARG,
		   "choose lr or clip or weight_decay or momentum");
	pair_fails(shard_set(m, "clip", "-1"), SHARD_BAD_ARG, "clip = -1");
	pair_fails(shard_set(m, "clip", "many"), SHARD_BAD_ARG, "clip = many");
	pair_fails(shard_set(m, NULL, "1"), SHARD_BAD_ARG, "lr or clip");
	assert_int_equal(shard_set(m, "clip", "0.5"),
			 SHARD_OK); /* Nobody trains, so it is in force at once. */
	assert_int_equal(shard_set(m, "clip", "0.5"), SHARD_OK);
	tool_expect(0, "m: clip 0.5 -> 2 from the next step on; it is at step ", "shardctl",
		    pair_model(&p, words, "set m clip 2"));
	tool_expect(0, "m: clip 2 -> 0 from", "shardctl",
		    pair_model(&p, words, "set m clip default"));
	tool_expect(0, "\"key\":\"clip\",\"from\":\"0\",\"to\":\"7\",\"step\":", "shardctl",
		    pair_model(&p, words, "set m clip 7 --json"));
	pair_finish(&p);
}

/* No node takes a view with such a rate: the model would never train again. */
static void test_lr_out_of_range(void **state)
{
	struct pair p;
	shard_model *m;

	pair_start(&p, state, NULL);
	pair_join(&p, PAIR_TWO);
	BOTH(&p, .op = DRILL_TRAIN, .step = 2);
	assert_int_equal(shard_attach(p.c[1], "m", &m), SHARD_OK);
	pair_fails(shard_set(m, "lr", "-1"), SHARD_BAD_ARG,
		   "lr = -1: choose a finite number of at least 0");
	pair_fails(shard_set(m, "lr", "1e39"), SHARD_BAD_ARG, "lr = 1e+39: choose a finite number");
	BOTH(&p, .op = DRILL_TRAIN, .step = 4);
	pair_finish(&p);
}

static void test_pause(void **state)
{
	char words[256];
	struct pair p;
	pid_t pid;

	pair_start(&p, state, NULL);
	pair_join(&p, PAIR_TWO);
	BOTH(&p, .op = DRILL_TRAIN, .step = 2);
	BOTH(&p, .op = DRILL_BEGIN);
	tool_expect(0, "training", "shardctl", pair_model(&p, words, "list"));
	pid = pair_change(&p, words, "pause m", "action=pause ");
	pair_rest_of_step(&p);
	proc_expect_exit(pid, 0, 10000);
	for (int i = 0; i < 2; i++)
		DRILL_SEND(p.t[i], .op = DRILL_TRAIN, .step = 6); /* They wait. */
	tool_expect(0, " 3 ", "shardctl", pair_model(&p, words, "list"));
	tool_expect(0, "paused", "shardctl", pair_model(&p, words, "list"));
	tool_expect(0, "m is paused", "shardctl",
		    pair_model(&p, words, "pause m")); /* It is paused already. */
	assert_true(p.t[0]->out && p.t[1]->out);
	tool_expect(0, "\"paused\":true", "shardctl", pair_model(&p, words, "show m --json"));
	tool_expect(0, "m resumed at step ", "shardctl", pair_model(&p, words, "resume m"));
	for (int i = 0; i < 2; i++)
		drill_get(p.t[i], SHARD_OK);
	drill_replay(p.t[0], 6, 2);
	tool_expect(0, "m was not paused at step 6", "shardctl", pair_model(&p, words, "resume m"));
	pair_finish(&p);
}

/* max_skips skips in a row pause the model. When it is resumed it has as many again. */
static void test_diverged(void **state)
{
	char words[256];
	struct pair p;

	pair_start(&p, state, NULL);
	pair_join(&p, PAIR_TWO " max_skips=2");
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 2; i++) {
			BOTH(&p, .op = DRILL_BEGIN);
			DRILL(p.t[0], SHARD_OK, .op = DRILL_PUSH, .spoil = true, .bad = INFINITY);
			DRILL(p.t[1], SHARD_OK, .op = DRILL_PUSH);
			BOTH(&p, .op = DRILL_COMMIT);
			for (int k = 0; k < 2; k++)
				DRILL(p.t[k], i == 0 ? SHARD_OK : SHARD_DIVERGED,
				      .op = DRILL_RESULT);
			if (i == 1)
				drill_text(p.t[0]->last.error,
					   ": 2 steps skipped in a row, loss scale 1, the gradient "
					   "of \"wte\" of rank 0 is Inf or NaN: the model is "
					   "paused: lower lr, or restore a checkpoint, then "
					   "`shardctl model resume m`");
			BOTH(&p, .op = DRILL_WORLD);
		}
		DRILL(p.t[0], SHARD_TIMEOUT, .op = DRILL_BEGIN, .timeout_ms = 50);
		drill_text(p.t[0]->last.error, "the model is paused since step ");
		drill_text(p.t[0]->last.error, "then `shardctl model resume` lets it go on");
		tool_expect(0, "diverged", "shardctl", pair_model(&p, words, "list"));
		tool_expect(0, "m resumed at step ", "shardctl", pair_model(&p, words, "resume m"));
		BOTH(&p, .op = DRILL_TRAIN, .step = (uint64_t)round * 4 + 4);
	}
	drill_replay(p.t[1], 8, 2);
	pair_finish(&p);
}

static void test_kick(void **state)
{
	char words[256];
	struct pair p;

	pair_start(&p, state, NULL);
	pair_join(&p, PAIR_SGD "min_world=2 max_world=2");
	BOTH(&p, .op = DRILL_TRAIN, .step = 2);
	BOTH(&p, .op = DRILL_BEGIN);
	tool_expect(5, "\"m\" has no rank 2: its world has 2", "shardctl",
		    pair_model(&p, words, "kick m 2"));
	tool_expect(0, "rid of that rank", "shardctl",
		    pair_model(&p, words, "kick m 1 --why=slow"));
	for (int i = 0; i < 2; i++) { /* Whatever each knows of it yet, a begin is legal now. */
		drill_do(p.t[i], (struct drill_cmd){.op = DRILL_PUSH});
		drill_do(p.t[i], (struct drill_cmd){.op = DRILL_COMMIT});
	}
	DRILL(p.t[1], SHARD_CLOSED, .op = DRILL_TRAIN, .step = 3);
	drill_text(p.t[1]->last.error, "put out by uid ");
	drill_text(p.t[1]->last.error, ": slow");
	drill_end(p.t[1]);
	DRILL_SEND(p.t[0], .op = DRILL_TRAIN,
		   .step = 5); /* Its attempt is over, and another trainer takes its place. */
	p.t[1] = drill_joining(p.y, p.y->cluster->node[1].unix_address, -1, PAIR_TWO);
	drill_get(p.t[1], SHARD_OK);
	DRILL(p.t[1], SHARD_OK, .op = DRILL_TRAIN, .step = 5);
	drill_get(p.t[0], SHARD_OK);
	drill_replay(p.t[0], 5, 2);
	pair_finish(&p);
}

/* A trainer is named by its node and process: one of the world, and one that waits to join and has
 * no rank. Each hears who put it out, and may join again. */
static void test_kick_process(void **state)
{
	struct drill *waits;
	char words[256], what[64];
	struct pair p;

	pair_start(&p, state, NULL);
	pair_join(&p, PAIR_SGD "min_world=2 max_world=2 local_world=2");
	BOTH(&p, .op = DRILL_TRAIN, .step = 2);
	waits = drill_new(p.y, p.y->cluster->node[1].unix_address);
	drill_define(waits, PAIR_SGD "min_world=2 max_world=2 local_world=2");
	DRILL_SEND(waits, .op = DRILL_JOIN, .hint = -1);
	drill_asked(p.y, waits);
	BOTH(&p, .op = DRILL_TRAIN, .step = 4); /* The coordinator knows of it now. */
	BOTH(&p, .op = DRILL_BEGIN);
	tool_expect(5, "no node \"nobody\": `shardctl members` shows them", "shardctl",
		    pair_model(&p, words, "kick m nobody:7"));
	tool_expect(5, "no process 1 of node b has joined \"m\"", "shardctl",
		    pair_model(&p, words, "kick m b:1"));
	snprintf(what, sizeof(what), "kick m a:%d", (int)waits->pid); /* It is on another node. */
	tool_expect(5, "of node a has joined", "shardctl", pair_model(&p, words, what));
	snprintf(what, sizeof(what), "kick m b:%d --why=spare", (int)waits->pid);
	tool_expect(0, "m is rid of that trainer", "shardctl", pair_model(&p, words, what));
	drill_get(waits, SHARD_CLOSED);
	drill_text(waits->last.error, "put out by uid ");
	drill_text(waits->last.error, ": spare");
	drill_end(waits);
	/* The attempt in hand had no part of it. */
	pair_rest_of_step(&p);
	assert_int_equal(p.t[0]->shared->world_of[5], 2);
	BOTH(&p, .op = DRILL_BEGIN);
	snprintf(words, sizeof(words), "-a %s kick m b:%d --why=slow --json",
		 p.y->cluster->node[0].unix_address, (int)p.t[1]->pid);
	tool_expect(0, "\"kick\"", "shardctl", words);
	for (int i = 0; i < 2; i++) { /* Whatever each knows of it yet, a begin is legal now. */
		drill_do(p.t[i], (struct drill_cmd){.op = DRILL_PUSH});
		drill_do(p.t[i], (struct drill_cmd){.op = DRILL_COMMIT});
	}
	DRILL(p.t[0], SHARD_WORLD_CHANGED, .op = DRILL_RESULT);
	drill_text(p.t[0]->last.error, "rank 1 (pid ");
	drill_text(p.t[0]->last.error, "is out: put out by uid ");
	drill_text(p.t[0]->last.error, ": slow");
	tool_expect(5, "of \"m\" is out already", "shardctl", pair_model(&p, words, "kick m 1"));
	DRILL(p.t[1], SHARD_CLOSED, .op = DRILL_TRAIN, .step = 7);
	drill_text(p.t[1]->last.error, ": slow");
	drill_end(p.t[1]);
	DRILL(p.t[0], SHARD_OK, .op = DRILL_WORLD);
	DRILL_SEND(p.t[0], .op = DRILL_TRAIN, .step = 8);
	p.t[1] = drill_joining(p.y, p.y->cluster->node[1].unix_address, -1,
			       PAIR_SGD "min_world=2 max_world=2 local_world=2");
	drill_get(p.t[1], SHARD_OK);
	DRILL(p.t[1], SHARD_OK, .op = DRILL_TRAIN, .step = 8);
	drill_get(p.t[0], SHARD_OK);
	drill_replay(p.t[0], 8, 2);
	pair_finish(&p);
}

/* --- who may --- */

static void denied(enum shard_status got, const char *verb)
{
	pair_fails(got, SHARD_DENIED, "\"m\" belongs to uid ");
	drill_text(shard_error(), verb);
	drill_text(shard_error(), " with mode 06");
}

/* Over TCP no user is known, so `mode` decides as for others. Where the test runs as root, another
 * user shows the same through the socket. */
static void test_denied(void **state)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_world w = SHARD_INIT(struct shard_world);
	static const float zero[64];
	float back[64];
	shard_client *tcp;
	shard_model *m = NULL;
	char words[256], *out;
	uint64_t step = 0;
	struct pair p;

	pair_start(&p, state, NULL);
	for (int i = 0; i < 2; i++) {
		bool readable = i == 1;

		p.t[0] = drill_new(p.y, p.y->cluster->node[0].unix_address);
		drill_define(p.t[0], readable ? PAIR_SGD "mode=0644" : PAIR_SGD "mode=0600");
		o.address = p.y->cluster->node[1].tcp_address;
		assert_int_equal(shard_connect(&tcp, &o), SHARD_OK);
		if (readable)
			assert_int_equal(shard_attach(tcp, "m", &m), SHARD_OK);
		else
			denied(shard_attach(tcp, "m", &m), "somebody over TCP asks to read it");
		denied(shard_drop(tcp, "m", 1), "somebody over TCP asks to change it");
		if (readable) {
			assert_int_equal(
				shard_read(m, SHARD_MASTER, 1, 0, 50, SHARD_F32, back, &step),
				SHARD_OK);
			denied(shard_set(m, "clip", "1"), "change");
			denied(shard_join(m, -1, 1000, &w), "change");
			pair_fails(shard_write(m, SHARD_MASTER, 1, 0, 50, SHARD_F32, zero),
				   SHARD_BAD_STATE, "");
		}
		shard_disconnect(&tcp);
		if (geteuid() ==
		    0) { /* For this test the socket's folder and mode let anybody in. */
			CHECK(chmod(p.y->cluster->dir, 0755) == 0 &&
			      chmod(p.y->cluster->node[1].socket, 0666) == 0);
			if (tool_run_as(65534, &out, "shardctl",
					pair_model(&p, words, "pause m")) != 97) {
				drill_text(out, "SHARD_DENIED: \"m\" belongs to uid 0 (gid 0)");
				drill_text(out, "and uid 65534 (gid ");
			}
			free(out);
			denied(shard_drop(p.c[1], "m", 0),
			       "uid 0 (gid 0) of node b asks to change it");
		}
		assert_int_equal(shard_drop(p.c[geteuid() != 0], "m", 0),
				 SHARD_OK); /* Its owner may on any node, unless it is root. */
		drill_end(p.t[0]);
	}
	pair_finish(&p);
}

/* Who defines a model on a node that does not coordinate manages it from there, also root. Root of
 * the coordinating node may always. With trust_remote_root = yes root of any node may. */
static void test_owner_elsewhere(void **state)
{
	char words[256];
	struct pair p;

	for (int trust = 0; trust < 2; trust++) {
		pair_start(&p, state, trust ? "[cluster]\ntrust_remote_root = yes" : NULL);
		for (int from = 0; from < 2; from++) {
			p.t[0] = drill_new(p.y, p.y->cluster->node[1].unix_address);
			drill_define(p.t[0], PAIR_SGD "mode=0600");
			tool_expect(0, "", "shardctl", pair_model(&p, words, "set m clip 1"));
			assert_int_equal(shard_drop(p.c[1 - from], "m", 1), SHARD_OK);
			drill_end(p.t[0]);
		}
		p.t[0] = drill_new(p.y, p.y->cluster->node[0].unix_address);
		drill_define(p.t[0], PAIR_SGD "mode=0600");
		if (geteuid() == 0 && !trust)
			denied(shard_drop(p.c[1], "m", 1), "root of another node is not root here");
		assert_int_equal(shard_drop(p.c[trust], "m", 1), SHARD_OK);
		drill_end(p.t[0]);
		pair_finish(&p);
	}
}

int main(void)
{
#define TEST(t) cmocka_unit_test_setup_teardown(t, drill_setup, drill_teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_set),
		TEST(test_pause),
		TEST(test_set_refused),
		TEST(test_lr_out_of_range),
		TEST(test_diverged),
		TEST(test_kick),
		TEST(test_kick_process),
		TEST(test_denied),
		TEST(test_owner_elsewhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
