// SPDX-License-Identifier: Apache-2.0
/* Tests [net] tls = psk: nodes, trainers and tools over TCP that know a secret train with exactly
 * the same bits, and a peer that speaks no TLS, knows another secret, says garbage or stalls is
 * refused with a sentence on both sides. A proxy between two nodes sees nothing of what they say.
 */
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/secrets.h"
#include "lib/tool.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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
	unsetenv("SHARD_TLS");
	return secrets_remove(&f);
}

static void meet(enum shard_status want, const char *address, const char *secret, const char *tls,
		 const char *part)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *c = NULL;
	enum shard_status got;

	o.address = address;
	o.secret = secret;
	o.tls = tls;
	got = shard_connect(&c, &o);
	shard_disconnect(&c);
	if (got != want || (want != SHARD_OK && strstr(shard_error(), part) == NULL))
		fail_msg("%s with %s and tls %s: %s %s, not %s with \"%s\"", address,
			 secret ? secret : "none", tls ? tls : "none", shard_name(got),
			 shard_error(), shard_name(want), part);
}

static void test_train(void **state)
{
	struct inproc_conf conf = {
		.nodes = 3, .cluster = f.line, .net = "connections = 3\ntls = psk"};
	struct inproc c;
	struct crew crew;

	(void)state;
	setenv("SHARD_SECRET", f.right, 1);
	setenv("SHARD_TLS", "psk", 1);
	inproc_start(&c, &conf);
	crew_init(&crew, "hidden");
	crew_larger(&crew, 4);
	crew_add(&crew, c.node[0].unix_address, 0);
	crew_add(&crew, c.node[0].tcp_address, 0);
	crew_add(&crew, c.node[1].tcp_address, 1);
	crew_add(&crew, c.node[2].tcp_address, 2);
	crew_start(&crew, 6);
	crew_finish(&crew);
	crew_check(&crew, c.node[1].tcp_address, 6);
	inproc_wait_log(&c.node[0], "tls=\"TLSv1.3 TLS_AES_128_GCM_SHA256 psk", 2);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(inproc_count(&c.node[i], "refused_frames"), 0);
		assert_int_equal(inproc_logged(&c.node[i], "event=auth_refused"), 0);
	}
	unsetenv("SHARD_SECRET");
	unsetenv("SHARD_TLS");
	inproc_stop(&c);
}

static void test_clients(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .cluster = f.line, .net = "tls = psk"},
			   open_conf = {.nodes = 1, .cluster = f.line};
	struct inproc c, d;
	char words[256];
	const char *at;

	(void)state;
	inproc_start(&c, &conf);
	inproc_start(&d, &open_conf);
	at = c.node[0].tcp_address;
	meet(SHARD_OK, at, f.right, "psk", "");
	meet(SHARD_OK, at, f.node, "psk", "");
	meet(SHARD_OK, c.node[0].unix_address, NULL, "psk", "");
	meet(SHARD_DENIED, at, f.wrong, "psk", "it does not know the secret of this end");
	inproc_wait_log(&c.node[0], "it has another secret than this node", 1);
	meet(SHARD_DENIED, at, f.right, NULL,
	     "it speaks no TLS, and [net] tls = psk at this node: set that on the other node, or "
	     "give the trainer or tool tls = psk (SHARD_TLS, --tls)");
	meet(SHARD_DENIED, d.node[0].tcp_address, f.right, "psk",
	     "it speaks no TLS, and this end does: set [net] tls = psk there");
	inproc_wait_log(&d.node[0], "it opened the connection with TLS, and this end speaks none",
			1);
	meet(SHARD_BAD_ARG, at, NULL, "psk", "makes its keys of the secret, and there is none");
	meet(SHARD_BAD_ARG, at, f.right, "yes", "off, psk, or the path of a folder");
	snprintf(words, sizeof(words), "-a 127.0.0.1:%u --secret %s --tls psk status",
		 c.node[0].port, f.right);
	tool_expect(0, "node a", "shardctl", words);
	snprintf(words, sizeof(words), "model list -a 127.0.0.1:%u --secret %s --tls psk",
		 c.node[0].port, f.right);
	tool_expect(0, "NAME", "shardctl", words);
	snprintf(words, sizeof(words), "-a 127.0.0.1:%u --secret %s status", c.node[0].port,
		 f.right);
	tool_expect(5, "it speaks no TLS, and [net] tls = psk at this node", "shardctl", words);
	inproc_stop(&c);
	inproc_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_train, files, no_files),
		cmocka_unit_test_setup_teardown(test_clients, files, no_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
