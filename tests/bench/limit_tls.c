/* SPDX-License-Identifier: Apache-2.0 */
/* The bare TLS transfer of limit_tls.h. bench_net.c calls it in turn with what it measures. Both
 * processes know one key, as with [net] tls = psk, so that no certificate has to be made. Reading
 * ahead is on, which is faster than without. It fails only where the system does. */
#include "bench/limit_tls.h"

#include "base/check.h"
#include "base/clock.h"
#include "bench/limit_tcp.h"
#include "wire/xxh.h"

#include <openssl/ssl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK  LIMIT_TCP_BLOCK
#define BEHIND (64 << 10) /* Bytes that are read ahead. */

struct limit_tls {
	SSL_CTX *ctx;
	SSL *ssl;
	int fd, pid;
	size_t bytes;
	unsigned char *buffer;
};

static SSL_SESSION *session(SSL *ssl)
{
	static const unsigned char suite[] = {0x13, 0x01}, key[32] = {7};
	SSL_SESSION *s = SSL_SESSION_new();

	CHECK(s && SSL_SESSION_set1_master_key(s, key, sizeof(key)) &&
	      SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, suite)) &&
	      SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION));
	return s;
}

static int use(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *nr, SSL_SESSION **s)
{
	(void)md;
	*id = (const unsigned char *)"bare";
	*nr = 4;
	*s = session(ssl);
	return 1;
}

static int find(SSL *ssl, const unsigned char *id, size_t nr, SSL_SESSION **s)
{
	(void)id, (void)nr;
	*s = session(ssl);
	return 1;
}

bool limit_tls_kernel(void)
{
	char text[200] = "";
	FILE *f = fopen("/proc/sys/net/ipv4/tcp_available_ulp", "re");
	bool has = f && fgets(text, sizeof(text), f) && strstr(text, "tls");

	if (f)
		fclose(f);
	return has;
}

static SSL *open_ssl(struct limit_tls *l, int fd, bool kernel, bool accepts)
{
	l->ctx = SSL_CTX_new(TLS_method());
	CHECK(l->ctx && SSL_CTX_set_min_proto_version(l->ctx, TLS1_3_VERSION) == 1 &&
	      SSL_CTX_set_ciphersuites(l->ctx, "TLS_AES_128_GCM_SHA256") == 1 &&
	      SSL_CTX_set_num_tickets(l->ctx, 0) == 1);
	SSL_CTX_set_psk_use_session_callback(l->ctx, use);
	SSL_CTX_set_psk_find_session_callback(l->ctx, find);
	SSL_CTX_set_read_ahead(l->ctx, 1);
	SSL_CTX_set_default_read_buffer_len(l->ctx, BEHIND);
	if (kernel)
		SSL_CTX_set_options(l->ctx, SSL_OP_ENABLE_KTLS);
	l->ssl = SSL_new(l->ctx);
	CHECK(l->ssl && SSL_set_fd(l->ssl, fd) == 1);
	CHECK((accepts ? SSL_accept(l->ssl) : SSL_connect(l->ssl)) == 1);
	return l->ssl;
}

static bool read_all(SSL *ssl, void *to, size_t bytes)
{
	size_t n;

	for (size_t at = 0; at < bytes; at += n)
		if (SSL_read_ex(ssl, (char *)to + at, bytes - at, &n) != 1)
			return false;
	return true;
}

static bool write_all(SSL *ssl, const void *from, size_t bytes)
{
	size_t n; /* A blocking socket takes all of it. */

	return SSL_write_ex(ssl, from, bytes, &n) == 1 && n == bytes;
}

static unsigned char *buffer(size_t bytes)
{
	unsigned char *p =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	memset(p, 0x5a, bytes);
	return p;
}

static void receiver(int fd, size_t bytes, bool kernel)
{
	const struct xxh_row *x = xxh_best();
	struct limit_tls l;
	SSL *ssl = open_ssl(&l, fd, kernel, true);
	unsigned char *p = buffer(bytes);
	uint64_t go;

	while (read_all(ssl, &go, sizeof(go))) {
		uint64_t sum = 0;

		for (size_t at = 0; at < bytes; at += BLOCK) {
			if (!read_all(ssl, p + at, BLOCK))
				_exit(1);
			sum ^= x->sum(p + at, BLOCK, 0);
		}
		if (!write_all(ssl, &sum, sizeof(sum)))
			_exit(1);
	}
	_exit(0);
}

struct limit_tls *limit_tls_begin(size_t bytes, bool kernel)
{
	struct limit_tls *l = calloc(1, sizeof(*l));
	int fds[2];

	CHECK(bytes % BLOCK == 0);
	if (!l || limit_tcp_pair(fds) != 0)
		return NULL;
	l->bytes = bytes;
	l->buffer = buffer(bytes);
	l->pid = fork();
	CHECK(l->pid >= 0);
	if (l->pid == 0) {
		close(fds[0]);
		receiver(fds[1], bytes, kernel);
	}
	close(fds[1]);
	l->fd = fds[0];
	(void)open_ssl(l, l->fd, kernel, false);
	return l;
}

double limit_tls_round(struct limit_tls *l)
{
	const struct xxh_row *x = xxh_best();
	uint64_t sum = 0, theirs = 0, start = clock_ns();

	CHECK(write_all(l->ssl, &start, sizeof(start)));
	for (size_t at = 0; at < l->bytes; at += BLOCK) {
		sum ^= x->sum(l->buffer + at, BLOCK, 0);
		CHECK(write_all(l->ssl, l->buffer + at, BLOCK));
	}
	CHECK(read_all(l->ssl, &theirs, sizeof(theirs)) && sum == theirs);
	return (double)l->bytes / (double)(clock_ns() - start);
}

void limit_tls_end(struct limit_tls **lp)
{
	struct limit_tls *l = *lp;
	int status;

	*lp = NULL;
	SSL_free(l->ssl);
	SSL_CTX_free(l->ctx);
	close(l->fd);
	CHECK(waitpid(l->pid, &status, 0) == l->pid);
	CHECK(munmap(l->buffer, l->bytes) == 0);
	free(l);
}
