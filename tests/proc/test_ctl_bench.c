/* SPDX-License-Identifier: Apache-2.0 */
/* Tests `shardctl bench` on one node, on two, and with a daemon that it starts itself. Its figures
 * must be consistent, and it leaves nothing behind, also after Ctrl-C in the middle. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static json_t *run_json(const char *words)
{
	json_error_t wrong;
	char *out;
	json_t *o;
	int rc = tool_run(&out, "shardctl", words);

	o = json_loads(out, 0, &wrong);
	if (rc != 0 || !o)
		fail_msg("shardctl %s: exit %d: %s", words, rc, out);
	free(out);
	return o;
}

static double number(const json_t *o, const char *object, const char *key)
{
	const json_t *n = json_object_get(json_object_get(o, object), key);

	if (!json_is_number(n))
		fail_msg("%s.%s is not there", object, key);
	return json_number_value(n);
}

static json_t *models(const char *address)
{
	char words[300];
	json_t *o, *list;

	snprintf(words, sizeof(words), "status --json -a %s", address);
	o = run_json(words);
	list = json_incref(json_object_get(o, "models"));
	json_decref(o);
	return list;
}

static void no_models(const char *address)
{
	json_t *list = models(address);

	assert_int_equal(json_array_size(list), 0);
	json_decref(list);
}

static void test_figures(void **state)
{
	struct cluster *c = cluster_start(2, NULL, NULL);
	char words[300];
	double step, moved, used;
	json_t *o;

	(void)state;
	snprintf(words, sizeof(words),
		 "bench --json --params 1.5Mi --steps 5 --ranks 2 --grad fp32 -a %s",
		 c->node[0].unix_address);
	o = run_json(words);
	step = number(o, "step_ms", "median") / 1e3;
	moved = number(o, "transfer", "gb_per_s");
	used = number(o, "update", "gb_per_s");
	assert_true(step > 0 && number(o, "step_ms", "min") / 1e3 <= step &&
		    step <= number(o, "step_ms", "max") / 1e3);
	assert_int_equal(number(o, "transfer", "pushed_bytes"), 6 << 20);
	assert_int_equal(number(o, "transfer", "pulled_bytes"), 3 << 20);
	assert_true(moved > 0.999 * 2 * (9 << 20) / step / 1e9 &&
		    moved < 1.001 * 2 * (9 << 20) / step / 1e9);
	/* 4 in, 24 of state, 2 out. */
	assert_int_equal(number(o, "update", "bytes_per_param"), 30);
	assert_true(used > 0.999 * 30 * 1.5 * (1 << 20) / step / 1e9 &&
		    used < 1.001 * 30 * 1.5 * (1 << 20) / step / 1e9);
	assert_true(number(o, "update", "limit_gb_per_s") > 0.1 &&
		    number(o, "update", "ratio") > 0);
	assert_true(number(o, "latency_us", "median") > 0);
	json_decref(o);
	no_models(c->node[0].unix_address);
	no_models(c->node[1].unix_address);
	snprintf(words, sizeof(words), "bench --params 100K --steps 3 --optimizer sgd -a %s",
		 c->node[1].tcp_address);
	tool_expect(0, "bytes per parameter and step; memory of this machine", "shardctl", words);
	no_models(c->node[0].unix_address);
	cluster_stop(c);
}

struct running {
	const char *address;
	int out;
};

static int exec_bench(void *arg)
{
	const struct running *r = arg;
	char path[600];

	proc_beside(path, sizeof(path), "shardctl");
	if (dup2(r->out, 1) < 0 || dup2(r->out, 2) < 0)
		return 98;
	execl(path, "shardctl", "bench", "--params", "200K", "--steps", "100000", "--ranks", "2",
	      "-a", r->address, (char *)NULL);
	return 97;
}

static void interrupted_by(struct cluster *c, int number_of_signal)
{
	uint64_t until = pace_by(15);
	char name[] = "/tmp/shard-bench-XXXXXX", text[400];
	struct running r = {c->node[0].unix_address, mkstemp(name)};
	bool trains = false;
	pid_t pid;
	ssize_t n;

	CHECK(r.out >= 0);
	pid = proc_fork(exec_bench, &r);
	/* Waits until its larger model makes steps. */
	while (!trains) {
		json_t *list = models(r.address), *m;
		size_t i;

		json_array_foreach(list, i, m)
			trains |= json_integer_value(json_object_get(m, "numel")) == 200000 &&
				  json_integer_value(json_object_get(m, "step")) > 2;
		json_decref(list);
		CHECK(clock_ns() < until);
	}
	CHECK(kill(pid, number_of_signal) == 0);
	proc_expect_exit(pid, 130, 10000);
	n = pread(r.out, text, sizeof(text) - 1, 0);
	text[n > 0 ? n : 0] = 0;
	if (!strstr(text, "SHARD_INTERRUPTED: interrupted at step "))
		fail_msg("%s", text);
	no_models(r.address);
	close(r.out);
	unlink(name);
}

static void test_interrupted(void **state)
{
	struct cluster *c = cluster_start(1, NULL, NULL);

	(void)state;
	interrupted_by(c, SIGINT);
	interrupted_by(c, SIGTERM);
	cluster_stop(c);
}

static void test_refused(void **state)
{
	struct cluster *c = cluster_start(1, NULL, NULL);
	char words[300];

	(void)state;
	tool_expect(2, "--params 0: choose a number from 1", "shardctl", "bench --params 0");
	tool_expect(2, "--ranks 65: choose a number from 1 to 64", "shardctl", "bench --ranks 65");
	tool_expect(2, "--image int8: choose fp32, bf16 or fp16", "shardctl", "bench --image int8");
	tool_expect(2, "--optimizer adan: choose adamw", "shardctl", "bench --optimizer adan");
	tool_expect(2, "a name has 1 to 64", "shardctl", "bench -a spawn:X");
	tool_expect(3, "SHARD_UNREACHABLE: connect: no shardd at", "shardctl",
		    "bench -a unix:/nonexistent/x.sock");
	snprintf(words, sizeof(words), "bench --params 1Gi -a %s", c->node[0].unix_address);
	tool_expect(5, "SHARD_BUDGET: define: \"bench-", "shardctl", words);
	no_models(c->node[0].unix_address);
	cluster_stop(c);
}

/* It may start its daemon, as a trainer may. */
static void test_spawn(void **state)
{
	char dir[] = "/tmp/shard-bench-XXXXXX", shardd[600], command[100];

	(void)state;
	proc_beside(shardd, sizeof(shardd), "shardd");
	CHECK(mkdtemp(dir) && setenv("XDG_RUNTIME_DIR", dir, 1) == 0 &&
	      setenv("SHARD_DAEMON", shardd, 1) == 0);
	CHECK(setenv("SHARD_LINGER", "100ms", 1) == 0 && setenv("SHARD_MEMORY", "64MiB", 1) == 0);
	tool_expect(0, "1 rank, 2 steps, spawn:bench", "shardctl",
		    "--timeout 10 bench --params 100K --steps 2 -a spawn:bench");
	CHECK(setenv("SHARD_DAEMON", "/nonexistent", 1) == 0);
	tool_expect(5, "SHARD_NOT_FOUND", "shardctl", "bench --params 100K -a spawn:none");
	unsetenv("XDG_RUNTIME_DIR");
	unsetenv("SHARD_DAEMON");
	unsetenv("SHARD_LINGER");
	unsetenv("SHARD_MEMORY");
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	assert_int_equal(system(command), 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_figures), cmocka_unit_test(test_interrupted),
		cmocka_unit_test(test_refused), cmocka_unit_test(test_spawn)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
