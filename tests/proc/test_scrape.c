// SPDX-License-Identifier: Apache-2.0
/* Tests what /metrics says of a training's progress, as real daemons say it: what set a model back,
 * how long a step takes, whether a reload was taken. Models of `shardctl bench` are not in it. */
#include "lib/proc.h"
#include "lib/tool.h"
#include "lib/trainer.h"
#include "lib/web.h"

#include "base/clock.h"
#include "lib/pace.h"
#include "wire/bench.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void train(struct trainer *t, int steps)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;

	for (int i = 0; i < steps; i++) {
		trainer_begin(t);
		trainer_push_all(t, 0.5f);
		EXPECT(SHARD_OK, shard_commit(t->model, &ticket));
		EXPECT(SHARD_OK, shard_result(t->model, ticket, pace_ms(10000), &r));
		assert_int_equal(r.outcome, SHARD_APPLIED);
		EXPECT(SHARD_OK, shard_world_get(t->model, &t->world));
	}
}

static void named(struct trainer *t, const char *address, const char *name)
{
	struct shard_spec spec;

	trainer_spec(&spec, SHARD_F32, SHARD_F32);
	spec.name = name;
	trainer_define_as(t, address, &spec);
	EXPECT(SHARD_OK, shard_join(t->model, -1, pace_ms(10000), &t->world));
	train(t, 1);
}

/* A restore takes milliseconds, and no scrape sees that the model was lost. */
static void what_set_it_back(void **state)
{
	char dir[] = "/tmp/shard-scrape-XXXXXX", words[300];
	struct trainer t;
	struct web s;
	const char *at;

	(void)state;
	assert_non_null(mkdtemp(dir));
	web_serve(&s, 1);
	at = s.c->node[0].unix_address;
	trainer_join(&t, at, SHARD_F32, SHARD_F32);
	train(&t, 3);
	snprintf(words, sizeof(words), "save gpt --dir %s --address %s", dir, at);
	tool_expect(0, "", "shardctl", words);
	train(&t, 4);
	web_await(s.port[0], "/metrics", "shardd_step{model=\"gpt\"} 7\n");
	WEB_EXPECT(s.port[0], "GET", "/metrics", "shardd_rollbacks_total{model=\"gpt\"} 0\n",
		   "shardd_steps_lost_total{model=\"gpt\"} 0\n",
		   "shardd_model_losses_total{model=\"gpt\"} 0\n");
	snprintf(words, sizeof(words), "restore %s --force --address %s", dir, at);
	tool_expect(0, "", "shardctl", words);
	web_await(s.port[0], "/metrics", "shardd_rollbacks_total{model=\"gpt\"} 1\n");
	WEB_EXPECT(s.port[0], "GET", "/metrics", "shardd_steps_lost_total{model=\"gpt\"} 4\n",
		   "shardd_model_losses_total{model=\"gpt\"} 1\n", "shardd_step{model=\"gpt\"} 3\n",
		   "\nshardd_last_rollback_timestamp_seconds{model=\"gpt\"} ");
	trainer_end(&t);
	cluster_stop(s.c);
	snprintf(words, sizeof(words), "rm -r %s", dir);
	assert_int_equal(system(words), 0);
}

/* The median counts the time between steps of a model that the beat has seen train. */
static void how_it_goes(void **state)
{
	static const char median[] = "\nshardd_step_median_seconds{model=\"gpt\"} ";
	uint64_t until = pace_by(20);
	time_t before = time(NULL);
	struct trainer t;
	struct web s;
	char *text;
	const char *at;
	bool found = false;

	(void)state;
	web_serve(&s, 1);
	trainer_define(&t, s.c->node[0].unix_address, SHARD_F32, SHARD_F32);
	web_await(s.port[0], "/metrics", "shardd_model_state{model=\"gpt\",state=\"waiting\"} 1\n");
	text = web_fetch(s.port[0], "GET", "/metrics");
	assert_null(strstr(text, "\nshardd_last_step_timestamp_seconds{"));
	assert_null(strstr(text, median));
	assert_non_null(strstr(text, "\nshardd_joined{model=\"gpt\"} 0\n"));
	free(text);
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &t.world));
	while (!found && clock_ns() < until) {
		train(&t, 1);
		text = web_fetch(s.port[0], "GET", "/metrics");
		found = strstr(text, median) != NULL;
		free(text);
		/* This avoids thousands of requests. Nothing is synchronised by it. */
		(void)poll(NULL, 0, 50);
	}
	assert_true(found);
	text = web_fetch(s.port[0], "GET", "/metrics");
	at = strstr(text, "\nshardd_last_step_timestamp_seconds{model=\"gpt\"} ");
	assert_non_null(at);
	assert_true(strtoll(strchr(at, ' '), NULL, 10) >= before);
	assert_true(strtoll(strchr(at, ' '), NULL, 10) <= time(NULL));
	at = strstr(text, "\nprocess_open_fds ");
	assert_non_null(at);
	assert_true(strtoll(strchr(at, ' '), NULL, 10) >= 8);
	at = strstr(text, "\nprocess_start_time_seconds ");
	assert_non_null(at);
	assert_true(strtoll(strchr(at, ' '), NULL, 10) >= before);
	assert_non_null(strstr(text, "\nprocess_max_fds "));
	free(text);
	trainer_end(&t);
	cluster_stop(s.c);
}

static void without_bench(void **state)
{
	struct trainer bench, like;
	char name[65], *text;
	struct web s;

	(void)state;
	bench_name(name, sizeof(name), 4711, 0x200ebd93229);
	assert_string_equal(name, "bench-4711-200ebd93229");
	assert_true(bench_is(name));
	assert_false(bench_is("bench-large") || bench_is("bench-7") || bench_is("bench-7-") ||
		     bench_is("bench-7-2024") || bench_is("bench-7-200ebd93229-x") ||
		     bench_is("bench--200ebd93229") || bench_is("my-bench-7-200ebd93229"));
	web_serve(&s, 1);
	named(&bench, s.c->node[0].unix_address, name);
	named(&like, s.c->node[0].unix_address, "bench-large");
	web_await(s.port[0], "/metrics", "shardd_steps_applied_total{model=\"bench-large\"} 1\n");
	text = web_fetch(s.port[0], "GET", "/metrics");
	assert_null(strstr(text, "bench-4711"));
	free(text);
	text = web_fetch(s.port[0], "GET", "/status"); /* Whoever asks what runs is told. */
	assert_non_null(strstr(text, "bench-4711"));
	free(text);
	trainer_end(&bench);
	trainer_end(&like);
	cluster_stop(s.c);
}

static void reloads(void **state)
{
	static const char good[] = "\nshardd_config_last_reload_successful 1\n",
			  bad[] = "\nshardd_config_last_reload_successful 0\n";
	char saved[160], words[600];
	struct web s;

	(void)state;
	web_serve(&s, 1);
	web_await(s.port[0], "/metrics", good);
	snprintf(saved, sizeof(saved), "%s.saved", s.c->node[0].conf);
	snprintf(words, sizeof(words), "cp %s %s && echo 'log_lvel = info' >>%s", s.c->node[0].conf,
		 saved, s.c->node[0].conf);
	assert_int_equal(system(words), 0);
	cluster_signal(s.c, 0, SIGHUP);
	web_await(s.port[0], "/metrics", bad);
	WEB_EXPECT(s.port[0], "GET", "/metrics", "shardd_log_lines_total{level=\"error\"} 1\n");
	assert_int_equal(rename(saved, s.c->node[0].conf), 0);
	cluster_signal(s.c, 0, SIGHUP);
	web_await(s.port[0], "/metrics", good);
	cluster_stop(s.c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_set_it_back),
		cmocka_unit_test(how_it_goes),
		cmocka_unit_test(without_bench),
		cmocka_unit_test(reloads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
