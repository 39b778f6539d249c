/* SPDX-License-Identifier: Apache-2.0 */
/* tls_impl.h: what tls.c (keys and certificates) and tls_io.c (one connection) share. Nobody else
 * includes it. */
#ifndef SHARD_NET_TLS_IMPL_H
#define SHARD_NET_TLS_IMPL_H

#include "net/openssl.h"
#include "net/tls.h"

enum {
	TLS_KEYS_MAX = 2 * AUTH_KEYS_MAX,
	TLS_IDENTITY_BYTES = 64, /* "shardd-tls-1 " and 32 hex digits. */
};

/* A name counts as subjectAltName only, and as it is. */
#define TLS_HOSTFLAGS (X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_WILDCARDS)

struct tls_key { /* An external PSK. */
	char identity[TLS_IDENTITY_BYTES];
	unsigned char key[AUTH_BYTES];
};

struct tls {
	const struct openssl *ssl;
	uint32_t users; /* Who opened it, and each connection. */
	enum tls_mode mode;
	bool kernel;
	uint64_t rekey_bytes;
	SSL_CTX *ctx;
	BIO_METHOD *method;
	uint32_t keys_nr; /* The first one is the dialler's. */
	struct tls_key keys[TLS_KEYS_MAX];
	int64_t expires;
};

/* What the callbacks of a context note about a connection. They find it by SSL_get_ex_data(). */
struct tls_seen {
	struct tls *tls;
	bool offered;      /* The other end has named a key. */
	bool known;        /* And it is one of ours. */
	uint32_t messages; /* Of its handshake, and keys that it changed since. */
};

BIO_METHOD *tls_io_method(const struct openssl *ssl);
/* What X509_V_ERR_* means for an operator. whose is "its certificate", say. */
void tls_wrong_cert(const struct openssl *ssl, long code, const char *whose, struct err *e);

#endif
