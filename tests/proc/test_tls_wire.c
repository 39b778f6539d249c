// SPDX-License-Identifier: Apache-2.0
/* Tests what passes between two nodes with [net] tls = psk: somebody on the way finds neither
 * frames nor names nor gradients in it, and finds all of them without TLS. Who begins a handshake
 * and does not go on is closed in time, on either side, and OpenSSL's own program with the right
 * key is another end of it. */
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/ports.h"
#include "lib/secrets.h"

#include "base/clock.h"
#include "net/auth.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { KEPT_BYTES = 32 << 20, LINKS_MAX = 16 };

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
	unsetenv("SHARD_SECRET");
	return secrets_remove(&f);
}

static int socket_at(const char *host, uint16_t port, bool listens)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	assert_true(fd >= 0 && inet_pton(AF_INET, host, &at.sin_addr) == 1);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
	if (!listens)
		return connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0 ? fd : (close(fd), -1);
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(fd, 16), 0);
	return fd;
}

/* --- somebody on the way --- */

struct tap {
	int listen_fd, stop[2];
	uint16_t port; /* Of the node behind it. */
	pthread_t thread;
	unsigned char *kept; /* All bytes of both directions, in pieces as they came. */
	size_t kept_nr;
};

static bool carry(struct tap *t, int from, int to)
{
	unsigned char piece[65536];
	ssize_t n = recv(from, piece, sizeof(piece), 0);

	if (n <= 0)
		return false;
	if (t->kept_nr + (size_t)n <= KEPT_BYTES) {
		memcpy(t->kept + t->kept_nr, piece, (size_t)n);
		t->kept_nr += (size_t)n;
	}
	for (ssize_t at = 0; at < n;) {
		ssize_t sent = send(to, piece + at, (size_t)(n - at), MSG_NOSIGNAL);

		if (sent <= 0)
			return false;
		at += sent;
	}
	return true;
}

static void *tap_run(void *arg)
{
	struct tap *t = arg;
	struct pollfd p[2 + 2 * LINKS_MAX] = {{.fd = t->stop[0], .events = POLLIN},
					      {.fd = t->listen_fd, .events = POLLIN}};
	nfds_t nr = 2;

	while (poll(p, nr, -1) >= 0 && !p[0].revents) {
		if (p[1].revents && nr + 2 <= 2 + 2 * LINKS_MAX) {
			int in = accept(t->listen_fd, NULL, NULL);
			int out = socket_at("127.0.0.1", t->port, false);

			if (in >= 0 && out >= 0) {
				p[nr++] = (struct pollfd){.fd = in, .events = POLLIN};
				p[nr++] = (struct pollfd){.fd = out, .events = POLLIN};
			} else {
				close(in);
				close(out);
			}
		}
		for (nfds_t i = 2; i < nr; i++) {
			nfds_t other = i ^ 1;

			if (p[i].fd < 0 || !p[i].revents || carry(t, p[i].fd, p[other].fd))
				continue;
			close(p[i].fd);
			close(p[other].fd);
			p[i].fd = p[other].fd = -1;
		}
	}
	for (nfds_t i = 2; i < nr; i++)
		if (p[i].fd >= 0)
			close(p[i].fd);
	return NULL;
}

static void tap_start(struct tap *t, uint16_t port)
{
	*t = (struct tap){.port = port, .kept = malloc(KEPT_BYTES)};
	t->listen_fd = socket_at("127.0.0.2", port, true);
	assert_int_equal(pipe(t->stop), 0);
	assert_int_equal(pthread_create(&t->thread, NULL, tap_run, t), 0);
}

static void tap_stop(struct tap *t)
{
	close(t->stop[1]);
	pthread_join(t->thread, NULL);
	close(t->stop[0]);
	close(t->listen_fd);
	free(t->kept);
}

static bool tap_has(const struct tap *t, const void *what, size_t bytes)
{
	return memmem(t->kept, t->kept_nr, what, bytes) != NULL;
}

/* Trains five steps on two nodes with somebody between them. */
static void overheard(const char *net, bool readable)
{
	struct inproc_conf conf = {.nodes = 2,
				   .net = net,
				   .cluster = f.line,
				   .host_in_nodes = {"127.0.0.2"},
				   .port = {ports_take()}};
	struct crew *crew = test_malloc(sizeof(*crew));
	uint16_t *gradient;
	struct inproc c;
	struct tap t;

	tap_start(&t, conf.port[0]);
	inproc_start(&c, &conf);
	crew_init(crew, "overheard-model");
	crew_larger(crew, 8);
	crew_add(crew, c.node[0].unix_address, 0);
	crew_add(crew, c.node[1].unix_address, 1);
	crew_start(crew, 5);
	crew_finish(crew);
	crew_check(crew, c.node[1].unix_address, 5);
	inproc_stop(&c);
	gradient = malloc(2 * crew->numel[0]);
	crew_gradient(crew, 5, 1, 0, gradient);
	assert_true(t.kept_nr > 100000);
	assert_int_equal(tap_has(&t, "SHRD", 4), readable);
	assert_int_equal(tap_has(&t, "overheard-model", 15), readable);
	/* A piece of what rank 1 has pushed. */
	assert_int_equal(tap_has(&t, gradient, 24) || tap_has(&t, gradient + 4096, 24), readable);
	tap_stop(&t);
	free(gradient);
	test_free(crew);
}

static void test_overheard(void **state)
{
	(void)state;
	overheard("transport = tcp", true);
	overheard("transport = tcp\ntls = psk", false);
}

/* --- who does not go on --- */

static void closed_in_time(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	uint64_t until = pace_by(15);
	char text[4096];
	ssize_t n = 1;

	while (n > 0) {
		assert_true(clock_ns() < until);
		(void)poll(&p, 1, 100);
		n = p.revents ? recv(fd, text, sizeof(text), 0) : 1;
	}
	close(fd);
}

static void test_stalls(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .net = "tls = psk", .cluster = f.line};
	static const char begun[] = "\x16\x03\x01\x00\xf0\x01\x00\x00";
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct inproc c;
	shard_client *client;
	int silent, half, listening;
	char address[40];
	uint16_t port;

	(void)state;
	inproc_start(&c, &conf);
	silent = socket_at("127.0.0.1", c.node[0].port, false);
	half = socket_at("127.0.0.1", c.node[0].port, false);
	assert_int_equal(send(half, begun, sizeof(begun) - 1, MSG_NOSIGNAL), sizeof(begun) - 1);
	closed_in_time(half);
	closed_in_time(silent);
	inproc_wait_log(&c.node[0], "no end of the handshake of TLS within 5 s", 2);
	/* A library waits as long as it was told. */
	port = ports_take();
	listening = socket_at("127.0.0.1", port, true);
	snprintf(address, sizeof(address), "tcp://127.0.0.1:%u", port);
	o.address = address;
	o.secret = f.right;
	o.tls = "psk";
	o.timeout_ms = 300;
	assert_int_equal(shard_connect(&client, &o), SHARD_TIMEOUT);
	close(listening);
	inproc_stop(&c);
}

/* Node b dials where nobody answers the handshake. */
static void test_dialled_stalls(void **state)
{
	char cluster[300];
	struct inproc_conf conf = {.nodes = 2, .net = "tls = psk", .cluster = cluster};
	struct inproc c;
	int fd;

	(void)state;
	snprintf(cluster, sizeof(cluster), "%s\nheartbeat_timeout = 1s", f.line);
	inproc_prepare(&c, &conf);
	fd = socket_at("127.0.0.1", c.node[0].port, true);
	assert_int_equal(inproc_node_start(&c.node[1]), SHARD_OK);
	inproc_wait_log(&c.node[1], "did not answer the handshake of TLS for 1.0 s", 1);
	close(fd);
	inproc_stop(&c);
}

/* --- OpenSSL's own program --- */

static void hex_of(char *out, const unsigned char *bytes, int nr)
{
	for (int i = 0; i < nr; i++)
		snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* The key and the identity as README of proto/wire says, and one bit of the key wrong. */
static void test_outside(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .net = "tls = psk", .cluster = f.line};
	unsigned char key[AUTH_BYTES], identity[AUTH_BYTES];
	char key_hex[65], identity_hex[65], command[500], *text = malloc(65536);
	struct inproc c;
	struct auth *a;
	struct err e;

	(void)state;
	inproc_start(&c, &conf);
	assert_int_equal(auth_open(&a, f.right, &e), SHARD_OK);
	assert_true(auth_derive(a, 0, "shardd tls 1 key", key));
	assert_true(auth_derive(a, 0, "shardd tls 1 identity", identity));
	auth_close(&a);
	for (int wrong = 0; wrong < 2; wrong++) {
		FILE *p;
		size_t n;

		key[0] ^= (unsigned char)wrong;
		hex_of(key_hex, key, AUTH_BYTES);
		hex_of(identity_hex, identity, AUTH_BYTES / 2);
		snprintf(command, sizeof(command),
			 "timeout 20 openssl s_client -connect 127.0.0.1:%u -tls1_3 -psk %s "
			 "-psk_identity 'shardd-tls-1 %s' -ciphersuites TLS_AES_128_GCM_SHA256 "
			 "</dev/null 2>&1",
			 c.node[0].port, key_hex, identity_hex);
		p = popen(command, "r");
		assert_non_null(p);
		n = fread(text, 1, 65535, p);
		text[n] = 0;
		(void)pclose(p);
		if (!strstr(text, wrong ? "alert illegal parameter"
					: "Reused, TLSv1.3, Cipher is TLS_AES_128_GCM_SHA256"))
			fail_msg("%s", text);
	}
	free(text);
	inproc_stop(&c);
}

/* HKDF of RFC 5869, as `openssl kdf` computes it. */
static void test_derived(void **state)
{
	unsigned char key[AUTH_BYTES];
	char hex[65], want[200] = "", command[300];
	struct auth *a;
	struct err e;
	size_t n = 0;
	FILE *p;

	(void)state;
	assert_int_equal(auth_open(&a, f.right, &e), SHARD_OK);
	assert_true(auth_derive(a, 0, "shardd tls 1 key", key));
	auth_close(&a);
	hex_of(hex, key, AUTH_BYTES);
	snprintf(command, sizeof(command),
		 "openssl kdf -keylen 32 -kdfopt digest:SHA256 -kdfopt hexkey:%.64s -kdfopt "
		 "info:'shardd tls 1 key' HKDF | tr -d ':\\n' | tr A-F a-f",
		 SECRETS_RIGHT);
	p = popen(command, "r");
	assert_non_null(p);
	n = fread(want, 1, sizeof(want) - 1, p);
	want[n] = 0;
	(void)pclose(p);
	assert_string_equal(hex, want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_overheard, files, no_files),
		cmocka_unit_test_setup_teardown(test_stalls, files, no_files),
		cmocka_unit_test_setup_teardown(test_dialled_stalls, files, no_files),
		cmocka_unit_test_setup_teardown(test_outside, files, no_files),
		cmocka_unit_test_setup_teardown(test_derived, files, no_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
