// SPDX-License-Identifier: Apache-2.0
/* Tests a cluster with a secret. Nodes and trainers that know it train. A peer with another secret
 * or none is refused with a sentence, counted and logged. The secret can be changed while it is in
 * use, and `shardctl secret new` makes one. */
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/proc.h"
#include "lib/secrets.h"
#include "lib/tool.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct secrets f;

static int files(void **state)
{
	(void)state;
	return secrets_make(&f);
}

static int no_files(void **state)
{
	(void)state;
	return secrets_remove(&f);
}

/* --- peers that know the secret --- */

static void test_train(void **state)
{
	struct inproc_conf conf = {.nodes = 2, .cluster = f.line, .net = "connections = 3"};
	struct inproc c;
	struct crew crew;

	(void)state;
	secrets_put(f.used, SECRETS_RIGHT);
	setenv("SHARD_SECRET", f.right, 1);
	inproc_start(&c, &conf);
	crew_init(&crew, "known");
	crew_add(&crew, c.node[0].unix_address, 0);
	crew_add(&crew, c.node[0].tcp_address, 0);
	crew_add(&crew, c.node[1].tcp_address, 1);
	crew_start(&crew, 6);
	crew_finish(&crew);
	crew_check(&crew, c.node[1].tcp_address, 6);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(inproc_count(&c.node[i], "refused_frames"), 0);
		assert_int_equal(inproc_logged(&c.node[i], "event=auth_refused"), 0);
	}
	unsetenv("SHARD_SECRET");
	inproc_stop(&c);
}

static void tool(int rc, const char *text, const char *secret, const struct inproc_node *n)
{
	char words[256];

	snprintf(words, sizeof(words), "-a 127.0.0.1:%u%s%s status", n->port,
		 secret != NULL ? " --secret " : "", secret != NULL ? secret : "");
	tool_expect(rc, text, "shardctl", words);
	snprintf(words, sizeof(words), "model list -a 127.0.0.1:%u%s%s", n->port,
		 secret != NULL ? " --secret " : "", secret != NULL ? secret : "");
	tool_expect(rc, rc == 0 ? "NAME" : text, "shardctl", words);
}

static void test_clients(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .cluster = f.line}, open_conf = {.nodes = 1};
	struct inproc c, d;
	const char *at;

	(void)state;
	secrets_put(f.used, SECRETS_WRONG SECRETS_RIGHT);
	inproc_start(&c, &conf);
	inproc_start(&d, &open_conf);
	at = c.node[0].tcp_address;
	secrets_meet(SHARD_OK, at, f.right, "");
	secrets_meet(SHARD_OK, at, f.wrong, ""); /* Both secrets are accepted for a while. */
	secrets_put(f.other, "cc00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n");
	secrets_meet(SHARD_DENIED, at, f.other, "did not prove that it knows the secret of node a");
	secrets_meet(SHARD_DENIED, at, NULL,
		     "node a asks over tcp for the cluster secret, 127.0.0.1:");
	secrets_meet(SHARD_SYSTEM, at, "/nowhere/s", "secret /nowhere/s: cannot be opened");
	secrets_meet(SHARD_BAD_ARG, at, "/etc/hostname", "others may read or change it: chmod 600");
	secrets_meet(SHARD_OK, c.node[0].unix_address, NULL, "");
	secrets_meet(SHARD_OK, c.node[0].unix_address, "/nowhere/s", "");
	secrets_meet(SHARD_DENIED, d.node[0].tcp_address, f.right,
		     "has a cluster secret, node a has none");
	secrets_meet(SHARD_OK, d.node[0].tcp_address, NULL, "");
	setenv("SHARD_SECRET", f.right, 1);
	secrets_meet(SHARD_OK, at, NULL, "");
	unsetenv("SHARD_SECRET");
	assert_int_equal(inproc_logged(&c.node[0], "event=auth_refused"), 2);
	assert_int_equal(inproc_logged(&c.node[0], "event=hello_failed"), 0);
	/* Their frames were in order. */
	assert_int_equal(inproc_count(&c.node[0], "refused_frames"), 0);
	assert_int_equal(inproc_logged(&d.node[0], "event=auth_refused"), 1);
	tool(0, "127.0.0.1", f.right, &c.node[0]);
	tool(5, "asks over tcp for the cluster secret", NULL, &c.node[0]);
	tool(5, "has a cluster secret, node a has none", f.right, &d.node[0]);
	secrets_put(f.used, SECRETS_RIGHT);
	inproc_node_stop(&c.node[0]);
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_OK);
	tool(5, "did not prove that it knows the secret", f.wrong, &c.node[0]);
	inproc_stop(&c);
	inproc_stop(&d);
}

static void must_start(struct inproc_node *n)
{
	if (inproc_node_start(n) != SHARD_OK)
		fail_msg("%s", n->why.text);
}

/* Returns the same configuration with a line that accepts trainers without a secret. */
static char *allow(char *text)
{
	static const char line[] = "allow_unauthenticated = yes\n";
	char *more = malloc(strlen(text) + sizeof(line)), *at = strstr(text, "workers = ");

	assert_true(more != NULL && at != NULL);
	sprintf(more, "%.*s%s%s", (int)(at - text), text, line, at);
	free(text);
	return more;
}

static void test_nodes(void **state)
{
	struct inproc_conf conf = {.nodes = 2, .cluster = f.line};
	struct inproc c;
	char *with, *without;

	(void)state;
	secrets_put(f.used, SECRETS_RIGHT);
	inproc_prepare(&c, &conf);
	must_start(&c.node[0]);
	secrets_put(f.node, SECRETS_WRONG);
	must_start(&c.node[1]);
	inproc_wait_log(&c.node[0], "did not prove that it knows the secret of node a", 2);
	inproc_wait_log(&c.node[1], "node a refused: ", 1);
	inproc_node_stop(&c.node[1]);

	with = c.node[1].text; /* Node b without a node secret. */
	without = strdup(with);
	assert_non_null(without);
	/* Neither secret is set on b, and any node may connect. */
	memcpy(strstr(without, "\nsecret") + 1, ";ecret", 6);
	memcpy(strstr(without, "node_secret"), ";ode_secret", 11);
	without = allow(without);
	c.node[1].text = without;
	must_start(&c.node[1]);
	inproc_wait_log(&c.node[0], "has none: set [cluster] node_secret on both nodes", 1);
	inproc_node_stop(&c.node[1]);
	assert_int_equal(inproc_logged(&c.node[0], "event=link_up"), 0);

	c.node[1].text = with;
	secrets_put(f.node, SECRETS_NODES);
	must_start(&c.node[1]);
	inproc_wait_log(&c.node[0], "event=link_up", 1);
	inproc_node_stop(&c.node[0]); /* Node a without a node secret. */
	free(without);
	with = c.node[0].text;
	memcpy(strstr(with, "\nsecret") + 1, ";ecret", 6);
	memcpy(strstr(with, "node_secret"), ";ode_secret", 11);
	c.node[0].text = allow(with);
	must_start(&c.node[0]);
	inproc_wait_log(&c.node[0],
			"has a nodes' secret, node a has none: set [cluster] node_secret on node a",
			1);
	assert_int_equal(inproc_logged(&c.node[1], "event=link_up"), 1);
	inproc_stop(&c);
}

#define NEW_NODES "ee00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"

/* Starts node b again with this secret and waits for the link. These are real daemons, so that
 * SIGHUP reaches one of them alone. */
static void link_again(struct cluster *c, const char *secret)
{
	char words[192];

	secrets_put(f.node, secret);
	cluster_signal(c, 1, SIGTERM);
	cluster_wait(c, 1, 10000);
	cluster_spawn(c, 1);
	cluster_ready(c, 1);
	for (int i = 0; i < 500; i++) {
		char *out;

		snprintf(words, sizeof(words), "-a %s status", c->node[0].unix_address);
		tool_run(&out, "shardctl", words);
		if (strstr(out, " up ") != NULL && strstr(out, " down ") == NULL &&
		    strstr(out, "127.0.0.1") != NULL) {
			free(out);
			return;
		}
		free(out);
		usleep(20000);
	}
	fail_msg("the nodes do not meet");
}

static uint32_t lines(struct cluster *c, const char *part, uint32_t want)
{
	uint32_t nr = 0;

	for (int i = 0; i < 500; i++) {
		char *log = cluster_log(c, 0);

		nr = 0;
		for (char *at = log; (at = strstr(at, part)) != NULL; at++)
			nr++;
		free(log);
		if (nr >= want)
			break;
		usleep(10000);
	}
	assert_int_equal(nr, want);
	return nr;
}

static void reload(struct cluster *c, const char *secret, const char *nodes, uint32_t times)
{
	secrets_put(f.used, secret);
	secrets_put(f.node, nodes);
	cluster_signal(c, 0, SIGHUP);
	lines(c, "event=reload taken", times);
}

/* shardctl uses the node's own secret, and so sees what the other node tells only to nodes. */
static void doctor(struct cluster *c)
{
	char words[192], *out;

	snprintf(words, sizeof(words), "doctor --config %s", c->node[0].conf);
	tool_run(&out, "shardctl", words);
	assert_non_null(strstr(out, "1 of 1 others answer, with the same shared options"));
	free(out);
}

static void test_rotation(void **state)
{
	char extra[192];
	struct cluster *c;
	const char *at;

	(void)state;
	snprintf(extra, sizeof(extra), "[cluster]\n%s", f.line);
	secrets_put(f.used, SECRETS_RIGHT);
	c = cluster_start(2, NULL, extra);
	at = c->node[0].tcp_address;
	secrets_meet(SHARD_OK, at, f.right, "");
	secrets_meet(SHARD_DENIED, at, f.wrong, "did not prove");
	doctor(c);
	reload(c, SECRETS_RIGHT SECRETS_WRONG, SECRETS_NODES NEW_NODES, 1);
	secrets_meet(SHARD_OK, at, f.right, "");
	secrets_meet(SHARD_OK, at, f.wrong, "");
	link_again(c, SECRETS_NODES); /* The old secret, and a has both. */
	link_again(c, NEW_NODES);     /* The new secret, and a has both. */
	reload(c, SECRETS_WRONG, NEW_NODES, 2);
	secrets_meet(SHARD_DENIED, at, f.right, "did not prove");
	secrets_meet(SHARD_OK, at, f.wrong, "");
	secrets_put(f.used, "nonsense\n");
	cluster_signal(c, 0, SIGHUP);
	lines(c, "event=reload_failed", 1);
	secrets_meet(SHARD_OK, at, f.wrong, "");      /* It keeps the secret that it had. */
	secrets_put(f.used, NEW_NODES SECRETS_WRONG); /* Trainers must not use a key of nodes. */
	cluster_signal(c, 0, SIGHUP);
	lines(c, "have a key in common", 1);
	secrets_put(f.used, SECRETS_WRONG);
	link_again(c, NEW_NODES);
	secrets_put(f.node, SECRETS_NODES);
	cluster_stop(c);
}

/* Both nodes read their files again, while the crew trains on. */
static void reload_both(struct cluster *c, struct crew *crew, uint32_t times)
{
	for (int n = 0; n < 2; n++)
		cluster_signal(c, n, SIGHUP);
	for (int n = 0; n < 2; n++)
		cluster_wait_log(c, n, "event=reload taken", times);
	crew_wait_step(crew, crew_step(crew) + 3);
}

/* Both secrets are changed while trainers push over TCP to two nodes. No attempt of theirs is begun
 * again, and no link ends. New connections need the new secrets: a node that was killed comes back
 * with them, and so do its trainers, and no step is lost. */
static void test_rotation_in_training(void **state)
{
	struct crew *crew = test_malloc(sizeof(*crew));
	char extra[224];
	struct cluster *c;
	uint64_t last;

	(void)state;
	snprintf(extra, sizeof(extra), "[cluster]\n%s\nheartbeat_timeout = 2s\n", f.line);
	secrets_put(f.used, SECRETS_RIGHT);
	secrets_put(f.node, SECRETS_NODES);
	secrets_put(f.other, SECRETS_RIGHT);
	setenv("SHARD_SECRET", f.other, 1); /* The trainers have a file of their own. */
	c = cluster_make(2, NULL, extra);
	cluster_warm(c, CLUSTER_TMPFS);
	for (int n = 0; n < 2; n++)
		cluster_spawn(c, n);
	for (int n = 0; n < 2; n++)
		cluster_ready(c, n);
	crew_init(crew, "rotates");
	crew->pause_us = 2000;
	for (uint32_t n = 0; n < 2; n++)
		crew_add(crew, c->node[n].tcp_address, n)->reconnects = true;
	crew_start(crew, UINT64_MAX);
	crew_wait_step(crew, 3);
	secrets_put(f.used, SECRETS_RIGHT SECRETS_WRONG);
	secrets_put(f.node, SECRETS_NODES NEW_NODES);
	reload_both(c, crew, 1);
	secrets_put(f.used, SECRETS_WRONG SECRETS_RIGHT);
	secrets_put(f.node, NEW_NODES SECRETS_NODES);
	reload_both(c, crew, 2);
	secrets_put(f.used, SECRETS_WRONG);
	secrets_put(f.node, NEW_NODES);
	reload_both(c, crew, 3);
	for (int n = 0; n < 2; n++) {
		assert_int_equal(crew->member[n].retries + crew->member[n].reconnected +
					 crew->member[n].rolled_back,
				 0);
		assert_int_equal(cluster_logged(c, n, "event=link_down"), 0);
		secrets_meet(SHARD_DENIED, c->node[n].tcp_address, f.right, "did not prove");
		secrets_meet(SHARD_OK, c->node[n].tcp_address, f.wrong, "");
	}
	secrets_put(f.other, SECRETS_WRONG);
	cluster_kill(c, 1);
	cluster_spawn(c, 1);
	cluster_wait_log(c, 0, "event=link_up", 2);
	crew_wait_step(crew, crew_step(crew) + 3);
	last = crew_finish(crew);
	assert_true(crew->member[1].reconnected > 0);
	assert_int_equal(crew->member[0].rolled_back + crew->member[1].rolled_back, 0);
	crew_check(crew, c->node[0].tcp_address, last);
	unsetenv("SHARD_SECRET");
	cluster_stop(c);
	secrets_put(f.node, SECRETS_NODES);
	test_free(crew);
}

static void test_new(void **state)
{
	char words[128], *one, *two;

	(void)state;
	unlink(f.other);
	snprintf(words, sizeof(words), "secret new %s", f.other);
	tool_expect(0, "", "shardctl", words);
	/* The file can be read, so the address is next. */
	secrets_meet(SHARD_UNREACHABLE, "tcp://127.0.0.1:1", f.other, "ECONNREFUSED");
	tool_expect(1, "is there already: --force replaces it", "shardctl", words);
	snprintf(words, sizeof(words), "secret new %s --force", f.other);
	tool_expect(0, "", "shardctl", words);
	tool_expect(1, "cannot be written", "shardctl", "secret new /nowhere/s");
	tool_expect(2, "choose new or rotate", "shardctl", "secret old");
	assert_int_equal(tool_run(&one, "shardctl", "secret new"), 0);
	assert_int_equal(tool_run(&two, "shardctl", "secret new"), 0);
	assert_int_equal(strlen(one), 65);
	assert_string_not_equal(one, two);
	free(one);
	free(two);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_train),
		cmocka_unit_test(test_clients),
		cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_rotation),
		cmocka_unit_test(test_rotation_in_training),
		cmocka_unit_test(test_new),
	};

	return cmocka_run_group_tests(tests, files, no_files);
}
