// SPDX-License-Identifier: Apache-2.0
/* Two nodes, two trainers and two connections. Tests of tests/proc call it. pair_start() starts the
 * nodes and connects, pair_join() adds the trainers, and pair_finish() stops everything. Whatever
 * goes wrong fails the test. */
#include "lib/pair.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/tool.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define WAIT_S 10

void pair_await_log(struct pair *p, int node, const char *part)
{
	uint64_t until = pace_by(WAIT_S);

	for (;;) {
		char *log = cluster_log(p->y->cluster, node);
		bool there = strstr(log, part) != NULL;

		free(log);
		if (there)
			return;
		if (clock_ns() > until)
			fail_msg("\"%s\" is not in the log of node %d", part, node);
		usleep(2000);
	}
}

void pair_start(struct pair *p, void **state, const char *extra)
{
	*p = (struct pair){.y = *state};
	p->y->cluster = cluster_start(2, NULL, extra);
	for (int i = 0; i < 2; i++) {
		struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);

		o.address = p->y->cluster->node[i].unix_address;
		o.look_ms = -1; /* What broke is told, and not made again. */
		assert_int_equal(shard_connect(&p->c[i], &o), SHARD_OK);
		pair_await_log(p, i, "event=link_up");
	}
}

void pair_join(struct pair *p, const char *settings)
{
	for (int i = 0; i < 2; i++)
		p->t[i] = drill_joining(p->y, p->y->cluster->node[i].unix_address, i, settings);
	for (int i = 0; i < 2; i++)
		drill_get(p->t[i], SHARD_OK);
}

void pair_finish(struct pair *p)
{
	for (int i = 0; i < 2; i++)
		shard_disconnect(&p->c[i]);
	cluster_stop(p->y->cluster);
	p->y->cluster = NULL;
}

void pair_both(struct pair *p, struct drill_cmd cmd)
{
	for (int i = 0; i < 2; i++)
		drill_send(p->t[i], cmd);
	for (int i = 0; i < 2; i++)
		drill_get(p->t[i], SHARD_OK);
}

static json_t *status(shard_client *c)
{
	size_t bytes = 1 << 16;
	char *text = malloc(bytes);
	json_t *o;

	assert_int_equal(shard_stats(c, text, &bytes), SHARD_OK);
	assert_int_equal(strlen(text) + 1, bytes);
	o = json_loads(text, 0, NULL);
	free(text);
	assert_non_null(o);
	return o;
}

long long pair_used(struct pair *p, int node)
{
	json_t *o = status(p->c[node]), *budget = json_object_get(o, "budget");
	long long n = json_integer_value(json_object_get(budget, "used")) -
		      json_integer_value(json_object_get(budget, "queues"));

	json_decref(o);
	return n;
}

int pair_files(struct pair *p)
{
	DIR *d = opendir(p->y->cluster->node[0].state);
	int nr = 0;

	CHECK(d != NULL);
	for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
		nr += strncmp(e->d_name, "model-", 6) == 0;
	closedir(d);
	return nr;
}

void pair_fails(enum shard_status got, enum shard_status want, const char *part)
{
	if (got != want)
		fail_msg("%s: %s, expected %s", shard_name(got), shard_error(), shard_name(want));
	drill_text(shard_error(), part);
}

static int run_ctl(void *words)
{
	return tool_run(NULL, "shardctl", words);
}

char *pair_model(struct pair *p, char words[256], const char *what)
{
	snprintf(words, 256, "model %s -a %s", what, p->y->cluster->node[1].unix_address);
	return words;
}

pid_t pair_change(struct pair *p, char words[256], const char *what, const char *heard)
{
	pid_t pid;

	snprintf(words, 256, "model %s --timeout 120 -a %s", what,
		 p->y->cluster->node[1].unix_address);
	pid = proc_fork(run_ctl, words);
	pair_await_log(p, 0, heard);
	return pid;
}

void pair_rest_of_step(struct pair *p)
{
	BOTH(p, .op = DRILL_PUSH);
	BOTH(p, .op = DRILL_COMMIT);
	BOTH(p, .op = DRILL_RESULT);
	BOTH(p, .op = DRILL_WORLD);
}
