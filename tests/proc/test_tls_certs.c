// SPDX-License-Identifier: Apache-2.0
/* Tests [net] tls = mtls: nodes, trainers and tools that show a certificate of one CA train without
 * any secret. A certificate that is of another CA, expired, not valid yet, or without the right
 * name is refused with a sentence, whichever end has it, and one that names no node is no node's.
 */
#include "lib/certs.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/ports.h"
#include "lib/secrets.h"
#include "lib/tool.h"

#include "net/tls.h"
#include "base/clock.h"
#include "client.h"
#include "secure.h"
#include "shard.pb-c.h"
#include "wire/ops.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct secrets f;
static struct certs k;
static char net[400];

static int files(void **state)
{
	(void)state;
	if (secrets_make(&f) != 0 || certs_make(&k) != 0)
		return 1;
	/* own_certs() puts the name of a folder in for @. */
	snprintf(net, sizeof(net),
		 "tls = mtls\ntls_cert = %s/@/tls.crt\ntls_key = %s/@/tls.key\n"
		 "tls_ca = %s/@/ca.crt",
		 k.dir, k.dir, k.dir);
	certs_put(&k, "a", "DNS:a", CERTS_GOOD);
	certs_put(&k, "b", "DNS:b,DNS:b.example", CERTS_GOOD);
	certs_put(&k, "c", "DNS:x,DNS:c", CERTS_GOOD);
	certs_put(&k, "trainer", NULL, CERTS_CLIENT);
	certs_put(&k, "foreign", "DNS:a", CERTS_OTHER_CA);
	return 0;
}

static int no_files(void **state)
{
	(void)state;
	return secrets_remove(&f) | certs_remove(&k);
}

static const char *folder(const char *name)
{
	static char path[8][80];
	static unsigned next;
	char *to = path[next++ % 8];

	snprintf(to, sizeof(path[0]), "%s/%s", k.dir, name);
	return to;
}

/* Each node gets a certificate of its own. */
static void own_certs(struct inproc_node *n, const char *name)
{
	for (char *at; (at = strstr(n->text, "/@/")) != NULL;) {
		char *text = NULL;
		int head = (int)(at - n->text);

		assert_true(asprintf(&text, "%.*s/%s/%s", head, n->text, name, at + 3) > 0);
		free(n->text);
		n->text = text;
	}
}

static void start(struct inproc *c, const struct inproc_conf *conf)
{
	inproc_prepare(c, conf);
	for (uint32_t i = 0; i < c->nodes; i++) {
		own_certs(&c->node[i], c->node[i].name);
		if (inproc_node_start(&c->node[i]) != SHARD_OK)
			fail_msg("node %s: %s", c->node[i].name, c->node[i].why.text);
	}
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
		fail_msg("%s with tls %s: %s %s, not %s with \"%s\"", address, tls ? tls : "none",
			 shard_name(got), shard_error(), shard_name(want), part);
}

/* --- all is right --- */

/* It reads the files of the node's configuration, and asks the others with them. */
static void doctor(struct inproc *c)
{
	char path[100], words[200], *out;

	snprintf(path, sizeof(path), "%s/a.conf", c->dir);
	secrets_put(path, c->node[0].text);
	snprintf(words, sizeof(words), "doctor --config %s", path);
	tool_run(&out, "shardctl", words);
	assert_non_null(strstr(out, "warn  tls           mtls: the certificate expires on "));
	if (!strstr(out, "2 of 2 others answer, with the same shared options"))
		fail_msg("%s", out);
	free(out);
}

static void train(const char *cluster, const char *secret)
{
	struct inproc_conf conf = {
		.nodes = 3, .net = net, .cluster = cluster, .daemon = "allow_unauthenticated = no"};
	struct inproc c;
	struct crew crew;
	char words[200];

	setenv("SHARD_TLS", folder("trainer"), 1);
	if (secret)
		setenv("SHARD_SECRET", secret, 1);
	start(&c, &conf);
	crew_init(&crew, "shown");
	crew_larger(&crew, 4);
	crew_add(&crew, c.node[0].unix_address, 0);
	crew_add(&crew, c.node[1].tcp_address, 1);
	crew_add(&crew, c.node[2].tcp_address, 2);
	crew_start(&crew, 6);
	crew_finish(&crew);
	crew_check(&crew, c.node[1].tcp_address, 6);
	snprintf(words, sizeof(words), "-a 127.0.0.1:%u status", c.node[2].port);
	tool_expect(0, "TLSv1.3 TLS_AES_128_GCM_SHA256 mtls", "shardctl", words);
	doctor(&c);
	unsetenv("SHARD_SECRET");
	unsetenv("SHARD_TLS");
	inproc_stop(&c);
}

static void test_train(void **state)
{
	(void)state;
	train(NULL, NULL);
}

/* With secrets AUTH is there as well, inside. */
static void test_train_with_secrets(void **state)
{
	(void)state;
	train(f.line, f.right);
}

/* --- who comes --- */

static void test_clients(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .net = net, .daemon = "allow_unauthenticated = no"},
			   psk = {.nodes = 1, .net = "tls = psk", .cluster = f.line},
			   both = {.nodes = 1, .net = net, .cluster = f.line};
	struct inproc c, d, g;
	const char *at;

	(void)state;
	start(&c, &conf);
	start(&d, &psk);
	start(&g, &both);
	at = c.node[0].tcp_address;
	meet(SHARD_OK, at, NULL, folder("trainer"), "");
	meet(SHARD_OK, at, NULL, folder("b"), ""); /* A tool of node b's host. */
	meet(SHARD_OK, c.node[0].unix_address, NULL, NULL, "");
	meet(SHARD_DENIED, at, NULL, NULL, "it speaks no TLS, and [net] tls = mtls at this node");
	meet(SHARD_DENIED, at, NULL, folder("foreign"), "is signed by another CA");
	meet(SHARD_DENIED, at, f.right, "psk", "it shows a certificate, and tls = psk at this end");
	meet(SHARD_DENIED, d.node[0].tcp_address, f.right, folder("trainer"),
	     "it speaks no TLS with this end: is [net] tls = mtls there, too?");
	inproc_wait_log(&d.node[0], "it names no secret, and [net] tls = psk at this node", 1);
	meet(SHARD_OK, g.node[0].tcp_address, f.right, folder("trainer"), "");
	meet(SHARD_DENIED, g.node[0].tcp_address, f.wrong, folder("trainer"),
	     "did not prove that it knows the secret of node a");
	meet(SHARD_DENIED, g.node[0].tcp_address, NULL, folder("trainer"),
	     "asks over tcp for the cluster secret");
	inproc_stop(&c);
	inproc_stop(&d);
	inproc_stop(&g);
}

/* What tls_open() finds wrong in one's own files. */
static void test_own_files(void **state)
{
	static const struct {
		const char *name, *part;
	} rows[] = {
		{"expired", "it has expired: put a new one there"},
		{"early", "it is not valid yet: compare the clocks"},
		{"mixed", "is not signed by the CA of this end"},
		{"unlike", "tls_key"},
		{"open", "so that others may read or change it: chmod 600"},
		{"absent", ": No such file or directory: correct the path or who may read"},
	};
	char path[100], from[120], cmd[300];

	(void)state;
	certs_put_times(&k, "expired", "DNS:a", CERTS_GOOD, -7200, -60);
	certs_put_times(&k, "early", "DNS:a", CERTS_GOOD, 3600, 7200);
	certs_put(&k, "mixed", "DNS:a", CERTS_OTHER_CA);
	certs_put(&k, "unlike", "DNS:a", CERTS_GOOD);
	certs_put(&k, "open", "DNS:a", CERTS_GOOD);
	snprintf(cmd, sizeof(cmd), "cd %s && cp a/ca.crt mixed && cp a/tls.key unlike", k.dir);
	assert_int_equal(system(cmd), 0);
	snprintf(path, sizeof(path), "%s/tls.key", folder("open"));
	snprintf(from, sizeof(from), "chmod 640 %s", path);
	assert_int_equal(system(from), 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		meet(SHARD_BAD_ARG, "tcp://127.0.0.1:1", NULL, folder(rows[i].name), rows[i].part);
}

/* A node whose certificate does not name it, or has expired, does not start. */
static void test_start(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .net = net};
	static const struct {
		const char *cert, *part;
	} rows[] = {
		{"b", "does not name node a: it needs DNS:a in subjectAltName"},
		{"client", "is not for this: a node's needs serverAuth and clientAuth"},
		{"expired", "it has expired"},
	};

	(void)state;
	certs_put_times(&k, "expired", "DNS:a", CERTS_GOOD, -7200, -60);
	certs_put(&k, "client", "DNS:a", CERTS_CLIENT);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct inproc c;

		inproc_prepare(&c, &conf);
		own_certs(&c.node[0], rows[i].cert);
		assert_int_equal(inproc_node_start(&c.node[0]), SHARD_BAD_ARG);
		if (!strstr(c.node[0].why.text, rows[i].part))
			fail_msg("%s: %s", rows[i].cert, c.node[0].why.text);
		inproc_stop(&c);
	}
}

/* --- a trainer's certificate and the role of a node --- */

struct heard {
	enum shard_status status;
	char text[512];
};

static enum shard_status any_head(void *owner, struct stream *s, const struct wire_head *h,
				  void **to, struct err *e)
{
	(void)owner, (void)s, (void)h, (void)to, (void)e;
	return SHARD_OK;
}

static enum shard_status any_frame(void *owner, struct stream *s, const struct wire_head *h,
				   const void *body, struct err *e)
{
	struct heard *heard = owner;
	Shard__Error *said;

	(void)s, (void)e;
	heard->status = SHARD_AGAIN;
	if (h->op != OP_ERROR)
		return SHARD_OK;
	said = shard__error__unpack(NULL, h->body_bytes, body);
	heard->status = (enum shard_status)said->status;
	snprintf(heard->text, sizeof(heard->text), "%s", said->text);
	shard__error__free_unpacked(said, NULL);
	return SHARD_OK;
}

/* Says over TLS with this certificate that it is node b, and returns what is answered. */
static void claim(uint16_t port, const char *how, struct heard *heard)
{
	static const struct stream_handler handler = {.on_head = any_head, .on_frame = any_frame};
	struct stream_conf conf = {
		.queue_max = 4, .body_max = 65536, .handler = &handler, .owner = heard};
	struct wire_head h = {.op = OP_HELLO, .attempt = 1};
	Shard__Hello hello = SHARD__HELLO__INIT;
	uint64_t until = pace_by(10);
	struct stream *s;
	struct tls *tls;
	char name[32];
	struct err e;

	assert_int_equal(secure_open(&tls, how, NULL, &e), SHARD_OK);
	snprintf(name, sizeof(name), "tcp://127.0.0.1:%u", port);
	assert_int_equal(dial(name, until, &conf.fd), SHARD_OK);
	assert_int_equal(secure_stream(&s, tls, &conf, &e), SHARD_OK);
	tls_close(&tls);
	hello.wire_min = hello.wire_max = WIRE_VERSION;
	hello.features = FEATURE_BODY_SUM;
	hello.role = ROLE_NODE;
	hello.node = (char *)(uintptr_t) "b";
	assert_int_equal(stream_send_control(s, &h, &hello.base), SHARD_OK);
	heard->status = SHARD_OK;
	while (heard->status == SHARD_OK) {
		struct pollfd p = {.fd = stream_fd(s), .events = POLLIN};
		enum shard_status st = stream_write(s, &e);

		assert_true(clock_ns() < until);
		assert_true(st == SHARD_OK || st == SHARD_AGAIN);
		p.events |= stream_wants_out(s) ? POLLOUT : 0;
		(void)poll(&p, 1, 100);
		st = stream_read(s, 1 << 20, &e);
		if (st != SHARD_OK && heard->status == SHARD_OK)
			fail_msg("%s", e.text);
	}
	stream_free(&s);
}

static void test_stolen_name(void **state)
{
	struct inproc_conf conf = {.nodes = 2, .net = net};
	struct inproc c;
	struct heard heard;

	(void)state;
	certs_put(&k, "near", "DNS:bb,DNS:*", CERTS_GOOD);
	inproc_prepare(&c, &conf);
	own_certs(&c.node[0], "a");
	own_certs(&c.node[1], "b");
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_OK);
	claim(c.node[0].port, folder("trainer"), &heard);
	assert_int_equal(heard.status, SHARD_DENIED);
	assert_non_null(strstr(heard.text, "says that it is node b, and its certificate does not "
					   "name that node"));
	claim(c.node[0].port, folder("c"), &heard);
	assert_int_equal(heard.status, SHARD_DENIED);
	claim(c.node[0].port, folder("near"), &heard);
	assert_int_equal(heard.status, SHARD_DENIED);
	assert_non_null(strstr(heard.text, "its certificate does not name that node"));
	/* The one that has the name comes as far as the checks of a node. */
	claim(c.node[0].port, folder("b"), &heard);
	assert_null(strstr(heard.text, "certificate"));
	assert_int_equal(inproc_node_start(&c.node[1]), SHARD_OK);
	inproc_wait_log(&c.node[0], "event=link_up", 1);
	inproc_stop(&c);
}

/* --- OpenSSL's own program at the other end --- */

/* Runs `openssl words` with an empty input, and returns what it printed. */
static char *openssl(const char *words)
{
	char command[900], *text = calloc(1, 65536);
	size_t n = 0, got;
	FILE *p;

	snprintf(command, sizeof(command), "timeout 20 openssl %s </dev/null 2>&1", words);
	p = popen(command, "r");
	assert_non_null(p);
	while ((got = fread(text + n, 1, 65535 - n, p)) > 0)
		n += got;
	(void)pclose(p);
	return text;
}

static void test_outside_client(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .net = net};
	struct inproc c;
	char words[700], *text;

	(void)state;
	certs_put_times(&k, "expired", NULL, CERTS_GOOD, -7200, -60);
	start(&c, &conf);
	snprintf(words, sizeof(words),
		 "s_client -connect 127.0.0.1:%u -cert %s/tls.crt -key %s/tls.key -CAfile "
		 "%s/ca.crt -verify_return_error -verify_hostname a",
		 c.node[0].port, folder("trainer"), folder("trainer"), folder("a"));
	text = openssl(words);
	assert_non_null(strstr(text, "Verify return code: 0 (ok)"));
	assert_non_null(strstr(text, "New, TLSv1.3, Cipher is TLS_AES_128_GCM_SHA256"));
	free(text);
	/* Nothing older, and no certificate: refused, and said. */
	snprintf(words, sizeof(words), "s_client -connect 127.0.0.1:%u -tls1_2", c.node[0].port);
	text = openssl(words);
	assert_non_null(strstr(text, "alert protocol version"));
	free(text);
	snprintf(words, sizeof(words), "s_client -connect 127.0.0.1:%u -CAfile %s/ca.crt",
		 c.node[0].port, folder("a"));
	free(openssl(words));
	inproc_wait_log(&c.node[0], "it shows no certificate, and [net] tls = mtls at this node",
			1);
	snprintf(words, sizeof(words),
		 "s_client -connect 127.0.0.1:%u -cert %s/tls.crt -key %s/tls.key", c.node[0].port,
		 folder("expired"), folder("expired"));
	free(openssl(words));
	inproc_wait_log(&c.node[0], "its certificate has expired: put a new one there", 1);
	snprintf(words, sizeof(words),
		 "s_client -connect 127.0.0.1:%u -cert %s/tls.crt -key %s/tls.key", c.node[0].port,
		 folder("foreign"), folder("foreign"));
	free(openssl(words));
	inproc_wait_log(&c.node[0], "its certificate is not signed by the CA of this end", 1);
	inproc_stop(&c);
}

/* Something with a certificate of the CA listens where node a should be. */
static pid_t listen_as(uint16_t port, const char *cert)
{
	char at[16], crt[100], key[100], ca[100];
	pid_t pid;

	snprintf(at, sizeof(at), "%u", port);
	snprintf(crt, sizeof(crt), "%s/tls.crt", folder(cert));
	snprintf(key, sizeof(key), "%s/tls.key", folder(cert));
	snprintf(ca, sizeof(ca), "%s/ca.crt", folder(cert));
	pid = fork();
	if (pid == 0) {
		(void)!freopen("/dev/null", "w", stdout);
		(void)!freopen("/dev/null", "w", stderr);
		execlp("openssl", "openssl", "s_server", "-accept", at, "-cert", crt, "-key", key,
		       "-CAfile", ca, "-Verify", "1", "-tls1_3", "-quiet", NULL);
		_exit(127);
	}
	assert_true(pid > 0);
	return pid;
}

static void test_impostor(void **state)
{
	struct inproc_conf conf = {.nodes = 2, .net = net};
	static const struct {
		const char *cert, *part;
	} rows[] = {
		{"c", "its certificate does not name the node that was dialled"},
		{"foreign", "by another CA than that of this end"},
		{"client", "is not for this: a node's needs serverAuth"},
	};

	(void)state;
	certs_put(&k, "client", "DNS:a", CERTS_CLIENT);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct inproc c;
		pid_t pid;

		inproc_prepare(&c, &conf);
		pid = listen_as(c.node[0].port, rows[i].cert);
		own_certs(&c.node[1], "b");
		assert_int_equal(inproc_node_start(&c.node[1]), SHARD_OK);
		inproc_wait_log(&c.node[1], rows[i].part, 1);
		inproc_stop(&c);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_train, files, no_files),
		cmocka_unit_test_setup_teardown(test_train_with_secrets, files, no_files),
		cmocka_unit_test_setup_teardown(test_clients, files, no_files),
		cmocka_unit_test_setup_teardown(test_own_files, files, no_files),
		cmocka_unit_test_setup_teardown(test_start, files, no_files),
		cmocka_unit_test_setup_teardown(test_stolen_name, files, no_files),
		cmocka_unit_test_setup_teardown(test_outside_client, files, no_files),
		cmocka_unit_test_setup_teardown(test_impostor, files, no_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
