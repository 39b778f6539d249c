// SPDX-License-Identifier: Apache-2.0
/* Tests HTTP beside [net] tls = mtls: the port speaks TLS with the node's certificate, a request
 * from elsewhere than loopback needs one of the CA unless http_allow lists its network, and SIGHUP
 * gives it the new certificate. A plain listener beyond loopback beside tls is refused. OpenSSL's
 * own program is the client. */
#include "lib/certs.h"
#include "lib/inproc.h"
#include "lib/ports.h"
#include "lib/secrets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct certs k;
static struct secrets f;
static char net[400];

static int files(void **state)
{
	(void)state;
	if (certs_make(&k) != 0 || secrets_make(&f) != 0)
		return 1;
	certs_put(&k, "a", "DNS:a,IP:127.0.0.1", CERTS_GOOD);
	certs_put(&k, "reader", NULL, CERTS_CLIENT);
	certs_put(&k, "foreign", NULL, CERTS_OTHER_CA);
	certs_put(&k, "server", NULL, CERTS_SERVER);
	snprintf(net, sizeof(net),
		 "tls = mtls\ntls_cert = %s/a/tls.crt\ntls_key = %s/a/tls.key\ntls_ca = "
		 "%s/a/ca.crt",
		 k.dir, k.dir, k.dir);
	return 0;
}

static int no_files(void **state)
{
	(void)state;
	return certs_remove(&k) | secrets_remove(&f);
}

/* Starts one node with HTTP at 0.0.0.0. Returns the port. */
static uint16_t serve(struct inproc *c, const struct inproc_conf *conf, enum shard_status want)
{
	struct inproc_node *n = &c->node[0];
	uint16_t port = ports_take();
	char *text, *at;

	inproc_prepare(c, conf);
	at = strstr(n->text, "http = off");
	assert_non_null(at);
	assert_true(asprintf(&text, "%.*shttp = 0.0.0.0:%u%s", (int)(at - n->text), n->text, port,
			     at + strlen("http = off")) > 0);
	free(n->text);
	n->text = text;
	if (inproc_node_start(n) != want)
		fail_msg("%s", n->why.text);
	return port;
}

/* What the port answers to a request that comes from that address. */
static char *get(uint16_t port, const char *from, const char *cert)
{
	char command[900], shows[300] = "", *text = calloc(1, 65536);
	size_t n = 0, got;
	FILE *p;

	if (cert)
		snprintf(shows, sizeof(shows), "-cert %s/%s/tls.crt -key %s/%s/tls.key", k.dir,
			 cert, k.dir, cert);
	snprintf(command, sizeof(command),
		 "printf 'GET /livez HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: "
		 "close\\r\\n\\r\\n' | timeout 20 openssl s_client -connect 127.0.0.1:%u -bind "
		 "%s:0 -CAfile %s/a/ca.crt -verify_return_error -verify_ip 127.0.0.1 -ign_eof %s "
		 "2>&1",
		 port, from, k.dir, shows);
	p = popen(command, "r");
	assert_non_null(p);
	while ((got = fread(text + n, 1, 65535 - n, p)) > 0)
		n += got;
	(void)pclose(p);
	return text;
}

static void answers(uint16_t port, const char *from, const char *cert, const char *part)
{
	char *text = get(port, from, cert);

	if (!strstr(text, part))
		fail_msg("from %s with %s: no \"%s\" in %s", from, cert ? cert : "none", part,
			 strlen(text) > 300 ? text + strlen(text) - 300 : text);
	free(text);
}

static void test_certificates(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .net = net, .cluster = f.line};
	struct inproc c;
	uint16_t port;

	(void)state;
	port = serve(&c, &conf, SHARD_OK);
	answers(port, "127.0.0.1", NULL, "New, TLSv1.3");
	answers(port, "127.0.0.1", NULL, "HTTP/1.1 200 ");
	answers(port, "127.0.0.2", NULL, "HTTP/1.1 403 ");
	answers(port, "127.0.0.2", NULL, "a certificate of the CA in [net] tls_ca is needed");
	answers(port, "127.0.0.2", "foreign", "HTTP/1.1 403 ");
	answers(port, "127.0.0.2", "server", "HTTP/1.1 403 ");
	answers(port, "127.0.0.2", "reader", "HTTP/1.1 200 ");
	inproc_stop(&c);
}

static void test_networks(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .net = net, .daemon = "http_allow = 127.0.0.2"};
	struct inproc c;
	uint16_t port;

	(void)state;
	port = serve(&c, &conf, SHARD_OK);
	answers(port, "127.0.0.2", NULL, "HTTP/1.1 200 ");
	inproc_stop(&c);
}

static int silent(uint16_t port, const char *from)
{
	struct sockaddr_in own = {.sin_family = AF_INET},
			   to = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(inet_pton(AF_INET, from, &own.sin_addr), 1);
	assert_int_equal(inet_pton(AF_INET, "127.0.0.1", &to.sin_addr), 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

/* Who opens connections and says nothing keeps himself out, and nobody else. */
static void test_silent(void **state)
{
	enum { NR = 256, KEPT = 128 };
	struct inproc_conf conf = {.nodes = 1, .net = net, .cluster = f.line};
	struct inproc c;
	int fd[NR];
	char byte;
	uint16_t port;

	(void)state;
	port = serve(&c, &conf, SHARD_OK);
	for (int i = 0; i < NR; i++)
		fd[i] = silent(port, "127.0.0.2");
	for (int i = KEPT; i < NR; i++) /* These are closed at once. */
		assert_true(recv(fd[i], &byte, 1, 0) <= 0);
	assert_int_equal(recv(fd[KEPT - 1], &byte, 1, MSG_DONTWAIT), -1);
	assert_int_equal(errno, EAGAIN);
	answers(port, "127.0.0.1", NULL, "HTTP/1.1 200 ");
	for (int i = 0; i < NR; i++)
		close(fd[i]);
	inproc_stop(&c);
}

static void test_plain(void **state)
{
	struct inproc_conf conf = {.nodes = 1,
				   .net = "tls = psk",
				   .cluster = f.line,
				   .daemon = "http_allow = 127.0.0.0/8"};
	struct inproc c;

	(void)state;
	serve(&c, &conf, SHARD_BAD_ARG);
	assert_non_null(
		strstr(c.node[0].why.text,
		       "beyond loopback beside [net] tls = psk, and browsers speak no psk"));
	inproc_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_certificates, files, no_files),
		cmocka_unit_test_setup_teardown(test_networks, files, no_files),
		cmocka_unit_test_setup_teardown(test_silent, files, no_files),
		cmocka_unit_test_setup_teardown(test_plain, files, no_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
