// SPDX-License-Identifier: Apache-2.0
/* Tests what changes while connections with TLS stand: new certificates by SIGHUP under load, files
 * that are wrong and change nothing, the HTTP port's certificate, and the rotation of the secrets
 * where TLS has its keys from them. */
#include "lib/certs.h"
#include "lib/crew.h"
#include "lib/proc.h"
#include "lib/secrets.h"
#include "lib/tool.h"
#include "lib/web.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define NEW_NODES "ee00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"

static struct certs k;
static struct secrets f;
static struct cluster *c;
static char extra[500];

static int files(void **state)
{
	(void)state;
	if (certs_make(&k) != 0 || secrets_make(&f) != 0)
		return 1;
	/* Both nodes have one configuration, so one certificate names both. */
	certs_put(&k, "nodes", "DNS:a,DNS:b", CERTS_GOOD);
	certs_put(&k, "trainer", NULL, CERTS_CLIENT);
	snprintf(extra, sizeof(extra),
		 "[net]\ntls = mtls\ntls_cert = %s/nodes/tls.crt\ntls_key = %s/nodes/tls.key\n"
		 "tls_ca = %s/nodes/ca.crt\n[cluster]\nheartbeat_timeout = 2s\n",
		 k.dir, k.dir, k.dir);
	return 0;
}

static int no_files(void **state)
{
	(void)state;
	cluster_put_away(&c);
	unsetenv("SHARD_SECRET");
	return certs_remove(&k) | secrets_remove(&f);
}

static void hangup(const char *part, uint32_t times)
{
	for (int n = 0; n < 2; n++)
		cluster_signal(c, n, SIGHUP);
	for (int n = 0; n < 2; n++)
		cluster_wait_log(c, n, part, times);
}

/* The certificate that a port shows. The caller frees the text. */
static char *shown(uint16_t port)
{
	char command[500], *text = calloc(1, 8192);
	FILE *p;

	snprintf(command, sizeof(command),
		 "timeout 20 openssl s_client -connect 127.0.0.1:%u -cert %s/trainer/tls.crt -key "
		 "%s/trainer/tls.key </dev/null 2>/dev/null | sed -n '/BEGIN CERT/,/END CERT/p'",
		 port, k.dir, k.dir);
	p = popen(command, "r");
	assert_non_null(p);
	assert_true(fread(text, 1, 8191, p) > 100);
	(void)pclose(p);
	return text;
}

static void test_certificates(void **state)
{
	struct crew *crew = test_malloc(sizeof(*crew));
	char tls[100], *before[2], *after[2];
	uint16_t web[2] = {0, 0};
	uint64_t last;

	(void)state;
	snprintf(tls, sizeof(tls), "%s/trainer", k.dir);
	setenv("SHARD_TLS", tls, 1);
	c = cluster_make(2, NULL, extra);
	web_spawn_all(c, web);
	crew_init(crew, "reloads");
	crew->pause_us = 1000;
	for (uint32_t n = 0; n < 2; n++)
		crew_add(crew, c->node[n].tcp_address, n)->reconnects = true;
	crew_start(crew, UINT64_MAX);
	crew_wait_step(crew, 3);
	before[0] = shown(c->node[0].port);
	before[1] = shown(web[0]);
	assert_string_equal(before[0], before[1]);
	certs_put(&k, "nodes", "DNS:a,DNS:b", CERTS_GOOD);
	hangup("event=tls mode=mtls", 2);
	after[0] = shown(c->node[0].port);
	after[1] = shown(web[0]);
	assert_string_equal(after[0], after[1]);
	assert_string_not_equal(before[0], after[0]);
	/* What is wrong changes nothing: an expired one, and one without the name. */
	certs_put_times(&k, "nodes", "DNS:a,DNS:b", CERTS_GOOD, -7200, -60);
	hangup("it has expired: put a new one there", 1);
	certs_put(&k, "nodes", "DNS:x", CERTS_GOOD);
	hangup("event=reload_failed", 2);
	/* The library of the HTTP port refuses it, so the nodes do not take it either. */
	certs_put(&k, "nodes", "DNS:a,DNS:b", CERTS_CURVE);
	hangup("its thread cannot start: libmicrohttpd refuses", 1);
	free(before[0]);
	before[0] = shown(c->node[0].port);
	assert_string_equal(before[0], after[0]);
	crew_wait_step(crew, crew_step(crew) + 3);
	for (int n = 0; n < 2; n++) {
		assert_int_equal(crew->member[n].retries + crew->member[n].reconnected, 0);
		assert_int_equal(cluster_logged(c, n, "event=link_down"), 0);
	}
	last = crew_finish(crew);
	crew_check(crew, c->node[0].tcp_address, last);
	for (int n = 0; n < 2; n++) {
		free(before[n]);
		free(after[n]);
	}
	cluster_done(&c);
	test_free(crew);
}

/* The loop reads the files, so it must not wait for one. */
static void test_pipes(void **state)
{
	static const char *const names[] = {"tls.crt", "ca.crt"};
	char path[100], words[160];

	(void)state;
	c = cluster_start(1, NULL, extra);
	for (uint32_t i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/nodes/%s", k.dir, names[i]);
		assert_int_equal(unlink(path), 0);
		assert_int_equal(mkfifo(path, 0600), 0);
		cluster_signal(c, 0, SIGHUP);
		snprintf(words, sizeof(words), "%s: not a file", path);
		cluster_wait_log(c, 0, words, 1);
		certs_put(&k, "nodes", "DNS:a,DNS:b", CERTS_GOOD);
	}
	snprintf(words, sizeof(words), "-a %s status", c->node[0].unix_address);
	tool_expect(0, "node a: shardd", "shardctl", words);
	cluster_done(&c);
}

/* A node that is in no list joins, over TLS of either kind. */
static void joins(const char *lines)
{
	char words[160];
	int node;

	c = cluster_make(2, NULL, lines);
	cluster_up(c);
	node = cluster_joiner(c, 0, lines);
	cluster_spawn(c, node);
	cluster_wait_log(c, node, "event=enrolled", 1);
	for (int n = 0; n < 2; n++)
		cluster_wait_log(c, n, "event=link_up peer=c", 1);
	snprintf(words, sizeof(words), "-a %s status", c->node[node].unix_address);
	tool_expect(0, "TLSv1.3", "shardctl", words);
	cluster_done(&c);
}

static void test_joins(void **state)
{
	char net[500];

	(void)state;
	certs_put(&k, "nodes", "DNS:a,DNS:b,DNS:c", CERTS_GOOD);
	joins(extra);
	snprintf(net, sizeof(net), "[net]\ntls = psk\n[cluster]\n%s\n", f.line);
	joins(net);
}

static void meet(enum shard_status want, const char *secret)
{
	for (int n = 0; n < 2; n++)
		secrets_meet(want, c->node[n].tcp_address, secret,
			     "it does not know the secret of this end");
}

/* As the rotation of test_secret, with TLS of the same keys: old and new, new and old, new. */
static void test_rotation(void **state)
{
	struct crew *crew = test_malloc(sizeof(*crew));
	uint64_t last;

	(void)state;
	snprintf(extra, sizeof(extra), "[net]\ntls = psk\n[cluster]\n%s\nheartbeat_timeout = 2s\n",
		 f.line);
	secrets_put(f.other, SECRETS_RIGHT);
	setenv("SHARD_SECRET", f.other, 1); /* The trainers have a file of their own. */
	setenv("SHARD_TLS", "psk", 1);
	c = cluster_make(2, NULL, extra);
	cluster_warm(c, CLUSTER_TMPFS);
	cluster_up(c);
	meet(SHARD_OK, f.right);
	meet(SHARD_DENIED, f.wrong);
	crew_init(crew, "rotates");
	crew->pause_us = 2000;
	for (uint32_t n = 0; n < 2; n++)
		crew_add(crew, c->node[n].tcp_address, n)->reconnects = true;
	crew_start(crew, UINT64_MAX);
	crew_wait_step(crew, 3);
	secrets_put(f.used, SECRETS_RIGHT SECRETS_WRONG);
	secrets_put(f.node, SECRETS_NODES NEW_NODES);
	hangup("event=tls mode=psk", 2);
	meet(SHARD_OK, f.right);
	meet(SHARD_OK, f.wrong);
	secrets_put(f.used, SECRETS_WRONG SECRETS_RIGHT);
	secrets_put(f.node, NEW_NODES SECRETS_NODES);
	cluster_signal(c, 1, SIGHUP); /* b dials with the new key, and a has both. */
	cluster_wait_log(c, 1, "event=tls mode=psk", 3);
	cluster_kill(c, 1);
	cluster_spawn(c, 1);
	cluster_wait_log(c, 0, "event=link_up", 2);
	crew_wait_step(crew, crew_step(crew) + 2);
	secrets_put(f.other, SECRETS_WRONG);
	secrets_put(f.used, SECRETS_WRONG);
	secrets_put(f.node, NEW_NODES);
	hangup("event=reload taken", 2);
	cluster_wait_log(c, 0, "event=tls mode=psk", 3);
	cluster_wait_log(c, 1, "event=tls mode=psk", 5);
	meet(SHARD_DENIED, f.right);
	meet(SHARD_OK, f.wrong);
	cluster_kill(c, 1);
	cluster_spawn(c, 1);
	cluster_wait_log(c, 0, "event=link_up", 3);
	crew_wait_step(crew, crew_step(crew) + 2);
	last = crew_finish(crew);
	assert_int_equal(crew->member[0].reconnected, 0);
	crew_check(crew, c->node[0].tcp_address, last);
	cluster_done(&c);
	test_free(crew);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_certificates, files, no_files),
		cmocka_unit_test_setup_teardown(test_pipes, files, no_files),
		cmocka_unit_test_setup_teardown(test_joins, files, no_files),
		cmocka_unit_test_setup_teardown(test_rotation, files, no_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
