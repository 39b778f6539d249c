// SPDX-License-Identifier: Apache-2.0
/* Tests `shardctl save` and `shardctl restore` on two nodes while a trainer trains: what they
 * print, how they are refused, and what the trainer sees. It sees nothing of a save. A forced
 * restore gives it SHARD_ROLLED_BACK, with the weights and the blob of the checkpoint. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "lib/trainer.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void one_step(struct trainer *t)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	trainer_begin(t);
	trainer_push_all(t, 1);
	EXPECT(SHARD_OK, shard_set_blob(t->model, &t->step.step, sizeof(t->step.step)));
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(20000), &r));
}

static void expect_blob(struct trainer *t, uint64_t want)
{
	uint64_t got = 0, step = 0;
	size_t bytes = sizeof(got);

	EXPECT(SHARD_OK, shard_blob(t->model, 0, &got, &bytes, &step));
	assert_int_equal(step, want);
	assert_int_equal(got, want);
}

static json_t *ask(const char *words)
{
	json_error_t wrong;
	json_t *o;
	char *out;

	if (tool_run(&out, "shardctl", words) != 0)
		fail_msg("%s: %s", words, out);
	if ((o = json_loads(out, 0, &wrong)) == NULL)
		fail_msg("%s: %s:\n%s", words, wrong.text, out);
	free(out);
	return o;
}

#define RUN(rc, text, ...)                                                                         \
	do {                                                                                       \
		snprintf(words, sizeof(words), __VA_ARGS__);                                       \
		tool_expect(rc, text, "shardctl", words);                                          \
	} while (0)

/* Saves of steps 2 to 5, with a step between them, and what is refused. */
static void save_often(struct cluster *c, struct trainer *t, const char *dir)
{
	char words[400];
	json_t *o;

	RUN(0, "global_step2: step 2 of \"gpt\"", "save gpt --dir %s --address %s", dir,
	    c->node[0].unix_address);
	one_step(t); /* The save has not affected it. */
	snprintf(words, sizeof(words), "save gpt --json --dir %s --tag three --address %s", dir,
		 c->node[1].unix_address);
	o = ask(words);
	assert_int_equal(json_integer_value(json_object_get(o, "step")), 3);
	assert_true(json_integer_value(json_object_get(o, "bytes")) >= 5508 * 4);
	assert_true(json_number_value(json_object_get(o, "seconds")) > 0);
	assert_non_null(strstr(json_string_value(json_object_get(o, "path")), "/ckpt/three"));
	json_decref(o);
	/* The same save once more. */
	RUN(0, "three: step 3", "save gpt --dir %s --tag three --address %s", dir,
	    c->node[0].unix_address);
	one_step(t);
	RUN(5, "three: is there already, of step 3, not 4: choose another tag, or --force",
	    "save gpt --dir %s --tag three --address %s", dir, c->node[0].unix_address);
	RUN(0, "best: step 4", "save gpt --dir %s --tag best --address %s", dir,
	    c->node[0].unix_address);
	one_step(t);
	RUN(0, "best: step 5", "save gpt --dir %s --tag best --force --address %s", dir,
	    c->node[1].unix_address);
	RUN(5, "EXISTS", "restore %s --address %s", dir, c->node[0].unix_address);
	RUN(5, "NOT_FOUND", "save nobody --dir %s --address %s", dir, c->node[0].unix_address);
	RUN(5, "NOT_FOUND", "restore %s --tag nowhere --address %s", dir, c->node[0].unix_address);
	RUN(2, "", "save --address %s", c->node[0].unix_address);
	RUN(3, "", "save gpt --dir %s --address unix:%s/nobody", dir, c->dir);
	one_step(t);
}

static void test_save_restore(void **state)
{
	struct cluster *c =
		cluster_start(2, "min_world = 1\nmax_world = 2\nchunk_elems = 1024", NULL);
	char dir[100], words[400];
	struct trainer t;
	json_t *o;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/ckpt", c->dir);
	assert_int_equal(mkdir(dir, 0777), 0);
	/* The other node coordinates. */
	trainer_join(&t, c->node[1].unix_address, SHARD_BF16, SHARD_BF16);
	one_step(&t);
	one_step(&t);
	save_often(c, &t, dir);
	RUN(0, "\"gpt\" is at step 2", "restore %s --force --tag global_step2 --address %s", dir,
	    c->node[0].unix_address);
	EXPECT(SHARD_ROLLED_BACK, shard_begin(t.model, NULL, &t.step));
	EXPECT(SHARD_OK, shard_world_get(t.model, &t.world));
	assert_int_equal(t.world.step, 3);
	expect_blob(&t, 2);
	trainer_begin(&t);
	assert_int_equal(t.step.step, 3);
	trainer_check_image(&t, SHARD_BF16, 2);
	EXPECT(SHARD_OK, shard_abandon(t.model, "only to look"));
	one_step(&t);
	trainer_begin(&t);
	trainer_check_image(&t, SHARD_BF16, 3);
	expect_blob(&t, 3);
	trainer_end(&t);
	snprintf(words, sizeof(words), "restore %s --json --force --tag three --address %s", dir,
		 c->node[1].unix_address);
	o = ask(words);
	assert_int_equal(json_integer_value(json_object_get(o, "step")), 3);
	assert_string_equal(json_string_value(json_object_get(o, "name")), "gpt");
	/* However fast it was, it counts the bytes. */
	assert_true(json_integer_value(json_object_get(o, "bytes")) > 0);
	json_decref(o);
	/* What somebody asked for is no error, on no node, and neither is a wrong name. */
	RUN(5, "", "restore %s --force --tag none --address %s", dir, c->node[1].unix_address);
	for (int n = 0; n < 2; n++)
		assert_int_equal(cluster_logged(c, n, "level=error"), 0);
	assert_true(cluster_logged(c, 0, "event=lost model=gpt") > 0);
	cluster_stop(c);
}

/* A tool does not wait for a node for ever. The model does. */
static void test_away(void **state)
{
	struct cluster *c = cluster_start(2, "min_world = 1\nmax_world = 2\nchunk_elems = 1024",
					  "[cluster]\nheartbeat_timeout = 1s\n");
	char dir[100], words[400];
	struct trainer t;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/ckpt", c->dir);
	assert_int_equal(mkdir(dir, 0777), 0);
	trainer_join(&t, c->node[0].unix_address, SHARD_BF16, SHARD_BF16);
	one_step(&t);
	RUN(0, "step 1 of", "save gpt --dir %s --address %s", dir, c->node[0].unix_address);
	trainer_end(&t);
	cluster_signal(c, 1, SIGKILL);
	(void)cluster_wait(c, 1, 5000);
	RUN(3, "\"gpt\" waits for node ", "restore %s --force --address %s", dir,
	    c->node[0].unix_address);
	cluster_stop(c);
}

/* A coordinator that comes back with its models knows the earlier saves. */
static void test_known(void **state)
{
	struct cluster *c =
		cluster_make(1, "min_world = 1\nmax_world = 1\nchunk_elems = 1024", NULL);
	uint64_t by = pace_by(10);
	char dir[100], words[400], want[200];
	struct trainer t;
	bool known;
	char *out;

	(void)state;
	cluster_warm(c, CLUSTER_TMPFS);
	cluster_spawn(c, 0);
	cluster_ready(c, 0);
	snprintf(dir, sizeof(dir), "%s/ckpt", c->dir);
	trainer_join(&t, c->node[0].unix_address, SHARD_BF16, SHARD_BF16);
	one_step(&t);
	RUN(0, "step 1 of", "save gpt --dir %s --address %s", dir, c->node[0].unix_address);
	one_step(&t);
	trainer_end(&t);
	cluster_signal(c, 0, SIGKILL);
	(void)cluster_wait(c, 0, 5000);
	cluster_spawn(c, 0);
	cluster_ready(c, 0);
	snprintf(words, sizeof(words), "status --json --address %s", c->node[0].unix_address);
	snprintf(want, sizeof(want), "%s/global_step1", dir);
	/* A thread reads the file. */
	do {
		assert_int_equal(tool_run(&out, "shardctl", words), 0);
		known = strstr(out, want) != NULL;
		free(out);
	} while (!known && clock_ns() < by);
	assert_true(known);
	cluster_stop(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_save_restore),
					   cmocka_unit_test(test_away),
					   cmocka_unit_test(test_known)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
