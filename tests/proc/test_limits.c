// SPDX-License-Identifier: Apache-2.0
/* Tests daemons with few descriptors and little address space (ulimit -n, -v). A daemon logs at its
 * start what it needs and has, raises its limit to the hard limit, and refuses with a sentence what
 * does not fit. It keeps some descriptors for its own files, and never ends because of the
 * limits. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/keep.h"
#include "lib/proc.h"
#include "lib/sanitized.h"
#include "lib/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct start {
	int which;
	rlim_t most;
	int rc;
	const char *text;
	char words[300];
};

static int start_limited(void *arg)
{
	const struct start *s = arg;
	struct rlimit r = {s->most, s->most};
	char *out;
	int rc;

	if (setrlimit((__rlimit_resource_t)s->which, &r) != 0)
		return 99;
	rc = tool_run(&out, "shardd", s->words);
	if (rc == s->rc && strstr(out, s->text) != NULL)
		return 0;
	fprintf(stderr, "exit %d, expected %d with \"%s\":\n%s", rc, s->rc, s->text, out);
	return 1;
}

/* Starts a daemon that ends by itself, at once if it cannot start. */
static void start(int which, rlim_t most, int rc, const char *text)
{
	struct start s = {.which = which, .most = most, .rc = rc, .text = text};
	struct keep keep;

	keep_init(&keep);
	snprintf(s.words, sizeof(s.words),
		 "--config /dev/null --node a --listen off --state %s/state --socket %s/s --linger "
		 "50ms --set daemon.http=off --set daemon.memory=64MiB --set "
		 "daemon.warm_restart=off",
		 keep.dir, keep.dir);
	proc_expect_exit(proc_fork(start_limited, &s), 0, 20000);
	keep_free(&keep);
}

static void test_start(void **state)
{
	(void)state;
	start(RLIMIT_NOFILE, 20, 1, "20 descriptors may be open");
	start(RLIMIT_NOFILE, 40, 1,
	      "40 descriptors may be open, and at least 62 are needed: raise `ulimit -n`");
	start(RLIMIT_NOFILE, 100, 0, "event=few_descriptors has=100 needs=310");
	if (SANITIZED) /* It uses terabytes of address space. */
		return;
	start(RLIMIT_AS, 48 << 20, 1, "raise `ulimit -v`");
	start(RLIMIT_AS, 0x70000000, 0, "event=stopped");
}

/* A budget above what the machine has is taken, and a line says so. */
static void test_memory(void **state)
{
	struct cluster *c = cluster_start(1, NULL, "[daemon]\nmemory = 640TiB\n");

	(void)state;
	assert_int_equal(cluster_logged(c, 0, "level=warn node=a event=little_memory has="), 1);
	assert_int_equal(cluster_logged(c, 0, " memory=703687441776640 why="), 1);
	cluster_stop(c);
	c = cluster_start(1, NULL, NULL);
	assert_int_equal(cluster_logged(c, 0, "event=little_memory"), 0);
	cluster_stop(c);
}

static uint64_t soft_limit(pid_t pid)
{
	struct rlimit r;

	CHECK(prlimit(pid, RLIMIT_NOFILE, NULL, &r) == 0);
	return r.rlim_cur;
}

static void test_raised(void **state)
{
	struct rlimit old, low;
	struct cluster *c;

	(void)state;
	CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
	low = old;
	low.rlim_cur = old.rlim_max > 256 ? 256 : old.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
	c = cluster_start(1, NULL, NULL);
	CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
	assert_int_equal(soft_limit(c->node[0].pid), old.rlim_max);
	cluster_stop(c);
}

enum { CROWD = 120, LIMIT = 80 };

static bool knock(shard_client **client, const char *address)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	enum shard_status rc;

	o.address = address;
	rc = shard_connect(client, &o);
	if (rc != SHARD_OK &&
	    (rc != SHARD_BUSY || strstr(shard_error(), "80 descriptors may be open there") == NULL))
		fail_msg("%s: %s", shard_name(rc), shard_error());
	return rc == SHARD_OK;
}

/* A crowd takes all descriptors that are available to it and is told so. A crew trains on, views
 * and checkpoints are written, a tool is answered, and no loop spins. */
static void test_crowd(void **state)
{
	struct crew *crew = test_malloc(sizeof(*crew));
	struct rlimit few = {LIMIT, LIMIT};
	shard_client *crowd[CROWD] = {NULL};
	uint32_t in = 0;
	struct cluster *c;
	struct keep keep;
	uint64_t cpu_ns;
	char words[200];

	(void)state;
	keep_init(&keep);
	c = cluster_start(1, NULL, NULL);
	crew_init(crew, "honest");
	crew->pause_us = 5000;
	crew_add(crew, c->node[0].unix_address, 0);
	crew_add(crew, c->node[0].tcp_address, 0);
	crew_start(crew, UINT64_MAX);
	crew_wait_step(crew, 2);
	CHECK(prlimit(c->node[0].pid, RLIMIT_NOFILE, &few, NULL) == 0);
	for (int i = 0; i < CROWD; i++)
		in += knock(&crowd[i], c->node[0].tcp_address);
	if (in < 4 || in > LIMIT / 2)
		fail_msg("%u of %d connections were let in", in, CROWD);
	crew_wait_step(crew, crew_step(crew) + 3);
	keep_must_save(c->node[0].unix_address, "honest", keep.dir, "t");
	snprintf(words, sizeof(words), "model list --address %s", c->node[0].unix_address);
	tool_expect(0, "honest", "shardctl", words);
	crew_check(crew, c->node[0].unix_address, crew_finish(crew));
	cpu_ns = proc_cpu_ns(c->node[0].pid);
	usleep(500000); /* Measures what the daemon uses while nothing happens. */
	assert_true(proc_cpu_ns(c->node[0].pid) - cpu_ns < 400000000);
	/* Only root gets the reserved connections. The remaining descriptors are for files, so
	 * views are still written. */
	for (int i = 0; i < CROWD; i++)
		if (crowd[i] == NULL)
			(void)knock(&crowd[i], c->node[0].unix_address);
	snprintf(words, sizeof(words), "status --address %s", c->node[0].unix_address);
	tool_expect(5, "80 descriptors may be open there", "shardctl", words);
	for (int i = 0; i < CROWD; i++)
		shard_disconnect(&crowd[i]);
	assert_int_equal(cluster_logged(c, 0, "event=view_not_durable"), 0);
	cluster_stop(c);
	keep_free(&keep);
	test_free(crew);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_start), cmocka_unit_test(test_memory),
		cmocka_unit_test(test_raised), cmocka_unit_test(test_crowd)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
