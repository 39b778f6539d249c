// SPDX-License-Identifier: Apache-2.0
/* `shardctl verify` on real daemons: all copies of each chunk are compared as of one step, while a
 * crew trains. A bit that is flipped in the memory of one daemon is found, and the chunk and the
 * node are named. A node that is missing, that dies in the middle, and a tool that is killed, end a
 * comparison with a sentence, and training goes on. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/pace.h"
#include "lib/poke.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* A node that is stopped is missed after the heartbeat_timeout, so it must be long. */
#define BEAT "[cluster]\nheartbeat_timeout = 30s\nlost_timeout = 60s\n"

static struct cluster *cluster;
static struct crew *crew;

static void more(uint64_t steps)
{
	crew_wait_step(crew, crew_step(crew) + steps);
}

/* Begins a training, with all trainers on node a. */
static void begin(int nodes, const char *extra)
{
	crew = test_calloc(1, sizeof(*crew));
	crew_init(crew, "verified");
	crew->extra = extra;
	if (nodes == 4)
		crew_larger(crew, CREW_SCALE_MAX);
	else
		crew->pause_us = 2000;
	cluster = cluster_start(nodes, NULL, BEAT);
	for (int i = 0; i < 2; i++)
		crew_add(crew, cluster->node[0].unix_address, 0);
	crew_start(crew, UINT64_MAX);
	more(5);
}

/* Ends it. The result is right on each of the nodes. */
static void end(int nodes)
{
	uint64_t last = crew_finish(crew);

	for (int n = 0; n < nodes; n++)
		if (cluster->node[n].pid != 0)
			crew_check(crew, cluster->node[n].unix_address, last);
	cluster_done(&cluster);
	test_free(crew);
	crew = NULL;
}

static const char *words(char out[320], int node, const char *rest)
{
	snprintf(out, 320, "verify --address %s %s", cluster->node[node].unix_address, rest);
	return out;
}

static json_t *ask(int node, int rc)
{
	char w[320], *out = NULL;
	json_error_t e;
	json_t *j, *m;

	assert_int_equal(tool_run(&out, "shardctl", words(w, node, "verified --json")), rc);
	j = json_loads(out, 0, &e);
	if (j == NULL)
		fail_msg("%s: %s", e.text, out);
	m = json_incref(json_array_get(json_object_get(j, "models"), 0));
	json_decref(j);
	free(out);
	assert_non_null(m);
	return m;
}

static json_int_t whole(const json_t *m, const char *key)
{
	const json_t *v = json_object_get(m, key);

	assert_true(json_is_integer(v));
	return json_integer_value(v);
}

/* Whatever node is asked, at whatever moment of the training. */
static void test_equal(void **state)
{
	json_int_t step = 0;
	char w[320];

	(void)state;
	begin(3, "replicas=2");
	for (int k = 0; k < 6; k++) {
		json_t *m = ask(k % 3, 0);

		assert_int_equal(whole(m, "chunks"), 6);
		assert_int_equal(whole(m, "copies"), 12);
		assert_int_equal(whole(m, "alone"), 0);
		assert_int_equal(whole(m, "differ"), 0);
		/* Masters and two moments, and two copies of them. Padding is not hashed. */
		assert_int_equal(whole(m, "bytes"), 2 * 3 * 4 * 5696);
		assert_int_equal(json_array_size(json_object_get(m, "nodes")), 3);
		assert_true(whole(m, "step") > step);
		step = whole(m, "step");
		json_decref(m);
		more(2);
	}
	tool_expect(0, "6 chunks, 12 copies on nodes a, b, c: all equal", "shardctl",
		    words(w, 0, "verified"));
	cluster_kill(cluster, 1);
	more(3);
	tool_expect(0, "which was compared with nothing: away or catching up: b", "shardctl",
		    words(w, 2, "verified"));
	end(3);
}

/* Without a pause between steps, a node that hashed while the next step was decided would refuse,
 * or hash another step than the others. */
static void test_held(void **state)
{
	(void)state;
	begin(4, "replicas=3 chunk_elems=16384");
	for (int k = 0; k < 30; k++) {
		json_t *m = ask(k % 4, 0);

		assert_int_equal(whole(m, "differ"), 0);
		json_decref(m);
	}
	end(4);
}

/* Flips a bit of moments of the crew that are on no other node's memory. Nobody trains. */
static void spoil(int node, uint32_t element)
{
	uint32_t nr = poke_flip(cluster->node[node].pid, crew->v + element, 16 * sizeof(float), 0);

	assert_true(nr >= 1);
}

/* Three copies: the odd one is named. */
static void test_odd(void **state)
{
	json_t *m, *d, *copies;
	uint64_t last;
	char w[320];

	(void)state;
	begin(3, "replicas=3");
	last = crew_finish(crew);
	crew_check(crew, cluster->node[0].unix_address, last);
	spoil(2, 100); /* In the first chunk. */
	m = ask(1, 1);
	assert_int_equal(whole(m, "differ"), 1);
	assert_int_equal(whole(m, "step"), (json_int_t)last);
	d = json_array_get(json_object_get(m, "differs"), 0);
	assert_int_equal(whole(d, "chunk"), 0);
	assert_true(json_is_true(json_object_get(d, "majority")));
	copies = json_object_get(d, "copies");
	assert_int_equal(json_array_size(copies), 3);
	for (size_t i = 0; i < 3; i++) {
		const json_t *c = json_array_get(copies, i);
		bool odd = json_is_true(json_object_get(c, "odd"));

		assert_int_equal(odd,
				 strcmp(json_string_value(json_object_get(c, "node")), "c") == 0);
	}
	json_decref(m);
	spoil(2, 3000);
	spoil(1, 3000);
	tool_expect(1, "  chunk 0 differs: the copy of node c is odd, those of a and b are equal",
		    "shardctl", words(w, 0, "verified"));
	cluster_wait_log(cluster, 0, "event=copy_differs model=verified chunk=0 ", 6);
	/* The same bit is flipped in both, so these two are equal, and have the majority. */
	tool_expect(1, "the copy of node a is odd, those of b and c are equal", "shardctl",
		    words(w, 0, "verified"));
	/* One more difference, and no two are equal. */
	assert_true(poke_flip(cluster->node[1].pid, crew->m + 3000, 16 * sizeof(float), 0) >= 1);
	tool_expect(1, "the copies of nodes a, b and c, of which no majority is equal", "shardctl",
		    words(w, 0, "verified"));
	cluster_done(&cluster);
	test_free(crew);
	crew = NULL;
}

/* Two copies: which one is wrong cannot be told. Several models are compared in one call. */
static void test_two(void **state)
{
	uint64_t last;
	char w[320];

	(void)state;
	begin(2, "replicas=2");
	last = crew_finish(crew);
	crew_check(crew, cluster->node[0].unix_address, last);
	spoil(0, 100);
	tool_expect(1,
		    "chunk 0 differs: the copies of nodes a and b, of which no majority is equal",
		    "shardctl", words(w, 1, "verified"));
	tool_expect(1, "no model \"other\" here", "shardctl", words(w, 1, "other verified"));
	tool_expect(5, "no model \"other\" here", "shardctl", words(w, 1, "other"));
	cluster_done(&cluster);
	test_free(crew);
	crew = NULL;
}

/* What cannot be compared is refused, by name. */
static void test_refused(void **state)
{
	char w[320];

	(void)state;
	begin(3, "replicas=2");
	(void)crew_finish(crew);
	cluster_kill(cluster, 2);
	cluster_says(cluster, 0, "\"members\":[\"a\",\"b\"]");
	cluster_kill(cluster, 1); /* It has the last copies of some chunks, so it stays a member. */
	cluster_wait_log(cluster, 0, "event=link_down peer=b", 1);
	tool_expect(3, "the copies of \"verified\" cannot be compared: node b is down", "shardctl",
		    words(w, 0, "verified"));
	cluster_done(&cluster);
	test_free(crew);
	begin(2, "replicas=1");
	tool_expect(5, "\"verified\" has one copy of each chunk (replicas = 1)", "shardctl",
		    words(w, 1, "verified"));
	end(2);
}

/* --- with a node that stands still --- */

struct tool {
	pid_t pid;
	char out[128];
};

static int exec_verify(void *arg)
{
	const struct tool *t = arg;
	char path[600];

	proc_beside(path, sizeof(path), "shardctl");
	if (freopen(t->out, "w", stdout) == NULL || dup2(1, 2) < 0)
		return 98;
	execl(path, path, "verify", "verified", (char *)NULL);
	return 97;
}

static void pauses(bool on)
{
	char w[320];

	snprintf(w, sizeof(w), "model %s verified --address %s", on ? "pause" : "resume",
		 cluster->node[0].unix_address);
	tool_expect(0, "", "shardctl", w);
}

/* Begins a comparison that waits for node b, which stands still. Meanwhile the model is paused, so
 * that no step is in hand whose vote would be waited for first. */
static void stands(struct tool *t, int asked)
{
	pauses(true);
	cluster_signal(cluster, 1, SIGSTOP);
	snprintf(t->out, sizeof(t->out), "%s/verify", cluster->dir);
	setenv("SHARD_ADDRESS", cluster->node[asked].unix_address, 1);
	t->pid = proc_fork(exec_verify, t);
	cluster_says(cluster, 0, "\"state\":\"verifying\"");
}

static void said(const struct tool *t, const char *part)
{
	char text[2000] = "";
	FILE *f = fopen(t->out, "re");

	assert_non_null(f);
	(void)!fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	if (strstr(text, part) == NULL)
		fail_msg("\"%s\" is not in: %s", part, text);
}

/* The node dies. The tool names it, and training goes on without it. */
static void test_dies(void **state)
{
	struct tool t;

	(void)state;
	begin(3, "replicas=2");
	stands(&t, 0);
	cluster_kill(cluster, 1);
	proc_expect_exit(t.pid, 3, 20000);
	said(&t, "node b");
	pauses(false);
	more(5);
	end(3);
}

/* The tool is killed, at the coordinator's node and at another one. The daemons stop comparing, and
 * training goes on. There is one comparison at a time, and no save beside it. */
static void test_cancelled(void **state)
{
	char w[320];

	(void)state;
	begin(3, "replicas=2");
	for (int k = 0; k < 2; k++) {
		struct tool t;

		stands(&t, 2 * k);
		tool_expect(5, "\"verified\" has its copies compared: one at a time", "shardctl",
			    words(w, 0, "verified"));
		snprintf(w, sizeof(w), "save verified --dir %s --address %s", cluster->dir,
			 cluster->node[2].unix_address);
		tool_expect(5, "has its copies compared: one at a time", "shardctl", w);
		kill(t.pid, SIGKILL);
		(void)proc_wait(t.pid, 20000);
		cluster_wait_log(cluster, 0, "why=\"who asked for it is gone\"", (uint32_t)k + 1);
		cluster_signal(cluster, 1, SIGCONT);
		pauses(false);
		more(5);
		json_decref(ask(2, 0));
	}
	end(3);
}

static int teardown(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_equal, teardown),
		cmocka_unit_test_teardown(test_held, teardown),
		cmocka_unit_test_teardown(test_odd, teardown),
		cmocka_unit_test_teardown(test_two, teardown),
		cmocka_unit_test_teardown(test_refused, teardown),
		cmocka_unit_test_teardown(test_dies, teardown),
		cmocka_unit_test_teardown(test_cancelled, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
