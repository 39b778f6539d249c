/* SPDX-License-Identifier: Apache-2.0 */
/* What one end of TLS connections shows and accepts. The daemon opens one at its start and at
 * SIGHUP, libshard and shardctl one for a connection. With psk there are no certificates: each
 * secret gives an external PSK of TLS 1.3 and a name for it, both by HKDF, so that neither says
 * anything of the secret. The handshake adds a key exchange, so that who learns the secret later
 * cannot read what was sent. With mtls both ends show a certificate and check the other's. A
 * connection is tls_io.c's. It fails with a sentence about the file that is wrong. */
#include "net/tls.h"

#include "base/check.h"
#include "net/secret_file.h"
#include "net/tls_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LABEL_KEY      "shardd tls 1 key"
#define LABEL_IDENTITY "shardd tls 1 identity"
#define SUITE_PSK      "TLS_AES_128_GCM_SHA256"
#define SUITES_MTLS    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384"
#define FILE_MAX       (64 << 10) /* Bytes of a key in PEM. */

/* OpenSSL wants sessions of a listener that verifies to have one. */
static const unsigned char context[] = {'s', 'h', 'a', 'r', 'd', 'd'};
static const unsigned char suite_psk[] = {0x13, 0x01}; /* SUITE_PSK, as it travels. */

/* --- external PSK --- */

static bool add_keys(struct tls *t, const struct auth *a)
{
	unsigned char identity[AUTH_BYTES];

	for (uint32_t i = 0; a && i < auth_keys(a); i++) {
		struct tls_key *k = &t->keys[t->keys_nr++];
		int n = snprintf(k->identity, sizeof(k->identity), "shardd-tls-1 ");

		CHECK(t->keys_nr <= TLS_KEYS_MAX);
		if (!auth_derive(a, i, LABEL_KEY, k->key) ||
		    !auth_derive(a, i, LABEL_IDENTITY, identity))
			return false;
		for (int b = 0; b < AUTH_BYTES / 2; b++)
			n += snprintf(k->identity + n, sizeof(k->identity) - (size_t)n, "%02x",
				      identity[b]);
	}
	return true;
}

/* A session that stands for the key. NULL: no memory. */
static SSL_SESSION *session_of(const struct tls *t, SSL *ssl, const struct tls_key *k)
{
	const struct openssl *o = t->ssl;
	SSL_SESSION *session = o->SSL_SESSION_new();

	if (session && o->SSL_SESSION_set1_id_context(session, context, sizeof(context)) &&
	    o->SSL_SESSION_set1_master_key(session, k->key, sizeof(k->key)) &&
	    o->SSL_SESSION_set_cipher(session, o->SSL_CIPHER_find(ssl, suite_psk)) &&
	    o->SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
		return session;
	o->SSL_SESSION_free(session);
	return NULL;
}

static struct tls_seen *seen_by(SSL *ssl, const struct openssl *o)
{
	return o->SSL_get_ex_data(ssl, 0);
}

/* The table is the same for all, and a callback has nothing else to find it by. */
static const struct openssl *loaded(void)
{
	const struct openssl *o;

	CHECK(openssl_load(&o, NULL) == SHARD_OK);
	return o;
}

static int dialler_key(SSL *ssl, const EVP_MD *md, const unsigned char **identity, size_t *bytes,
		       SSL_SESSION **session)
{
	const struct tls *t = seen_by(ssl, loaded())->tls;

	(void)md; /* There is one suite, so its hash is that of the session. */
	*identity = (const unsigned char *)t->keys[0].identity;
	*bytes = strlen(t->keys[0].identity);
	*session = session_of(t, ssl, &t->keys[0]);
	return *session != NULL;
}

/* Without a session OpenSSL would go on to certificates, of which there is none, so that the
 * handshake ends. */
static int listener_key(SSL *ssl, const unsigned char *identity, size_t bytes,
			SSL_SESSION **session)
{
	struct tls_seen *seen = seen_by(ssl, loaded());
	const struct tls *t = seen->tls;

	*session = NULL;
	seen->offered = true;
	for (uint32_t i = 0; i < t->keys_nr && !seen->known; i++) {
		const struct tls_key *k = &t->keys[i];

		if (strlen(k->identity) != bytes || memcmp(k->identity, identity, bytes) != 0)
			continue;
		seen->known = true;
		*session = session_of(t, ssl, k);
	}
	return !seen->known || *session != NULL;
}

/* OpenSSL's, of each message of a handshake, and of those that come later: new keys and tickets. */
static void on_message(int sent, int version, int type, const void *bytes, size_t nr, SSL *ssl,
		       void *arg)
{
	struct tls_seen *seen = seen_by(ssl, loaded());

	(void)version, (void)bytes, (void)nr, (void)arg;
	if (!sent && type == SSL3_RT_HANDSHAKE && seen)
		seen->messages++;
}

static enum shard_status open_psk(struct tls *t, const struct tls_conf *conf, struct err *e)
{
	const struct openssl *o = t->ssl;

	if (!conf->dials || auth_keys(conf->dials) == 0)
		return err_set(e, SHARD_BAD_ARG,
			       "tls = psk makes its keys of the secret, and there is none");
	if (!add_keys(t, conf->dials) || !add_keys(t, conf->takes) ||
	    o->SSL_CTX_set_ciphersuites(t->ctx, SUITE_PSK) != 1)
		return err_set(e, SHARD_SYSTEM, "libcrypto does not make keys for TLS");
	o->SSL_CTX_set_psk_use_session_callback(t->ctx, dialler_key);
	o->SSL_CTX_set_psk_find_session_callback(t->ctx, listener_key);
	/* A listener that shows a certificate is refused, because nobody's is trusted. */
	o->SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER, NULL);
	return SHARD_OK;
}

/* --- certificates --- */

static const char *reason(const struct openssl *o)
{
	const char *why = o->ERR_reason_error_string(o->ERR_peek_last_error());

	return why ? why : "unknown";
}

void tls_wrong_cert(const struct openssl *o, long code, const char *whose, struct err *e)
{
	static const struct {
		long code;
		const char *what;
	} rows[] = {
		{X509_V_ERR_CERT_HAS_EXPIRED, "has expired: put a new one there"},
		{X509_V_ERR_CERT_NOT_YET_VALID, "is not valid yet: compare the clocks"},
		{X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY,
		 "is not signed by the CA of this end: both ends need one CA in tls_ca"},
		{X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT,
		 "is not signed by the CA of this end: both ends need one CA in tls_ca"},
		{X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE,
		 "is not signed by the CA of this end: both ends need one CA in tls_ca"},
		{X509_V_ERR_CERT_SIGNATURE_FAILURE,
		 "is not signed by the CA of this end: both ends need one CA in tls_ca"},
		{X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT,
		 "is signed by itself, and not by the CA of this end (tls_ca)"},
		{X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN,
		 "is signed by another CA than that of this end (tls_ca)"},
		{X509_V_ERR_INVALID_PURPOSE,
		 "is not for this: a node's needs serverAuth and clientAuth in extendedKeyUsage, "
		 "a trainer's clientAuth"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (rows[i].code == code) {
			err_set(e, SHARD_DENIED, "%s %s", whose, rows[i].what);
			return;
		}
	}
	err_set(e, SHARD_DENIED, "%s is refused: %s", whose,
		o->X509_verify_cert_error_string(code));
}

static int no_password(char *out, int bytes, int writes, void *arg)
{
	(void)out, (void)bytes, (void)writes, (void)arg;
	return -1;
}

static enum shard_status use_key(struct tls *t, const char *path, struct err *e)
{
	static const struct secret_kind kind = {"tls_key", "a private key in PEM"};
	const struct openssl *o = t->ssl;
	char *text = malloc(FILE_MAX + 1);
	EVP_PKEY *key = NULL;
	enum shard_status st;
	BIO *bio;

	if (!text)
		return err_set(e, SHARD_SYSTEM, "no memory for a key");
	st = secret_file_read(&kind, path, text, FILE_MAX + 1, e);
	if (st == SHARD_OK) {
		bio = o->BIO_new_mem_buf(text, -1);
		key = bio ? o->PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL) : NULL;
		(void)o->BIO_free(bio);
		if (!key)
			st = err_set(e, SHARD_BAD_ARG,
				     "tls_key %.200s: not a private key in PEM without a password "
				     "(%s)",
				     path, reason(o));
	}
	if (st == SHARD_OK && (o->SSL_CTX_use_PrivateKey(t->ctx, key) != 1 ||
			       o->SSL_CTX_check_private_key(t->ctx) != 1))
		st = err_set(e, SHARD_BAD_ARG, "tls_key %.200s: not the key of the certificate: %s",
			     path, reason(o));
	o->EVP_PKEY_free(key);
	explicit_bzero(text, FILE_MAX + 1);
	free(text);
	return st;
}

/* Would another end with the same CA accept this certificate? */
static enum shard_status check_own(struct tls *t, const struct tls_conf *conf, struct err *e)
{
	const struct openssl *o = t->ssl;
	X509 *cert = o->SSL_CTX_get0_certificate(t->ctx);
	X509_STORE_CTX *check = o->X509_STORE_CTX_new();
	STACK_OF(X509) *chain = NULL;
	char whose[300];
	struct tm tm;
	bool good;
	struct err why;
	long code;

	snprintf(whose, sizeof(whose), "tls_cert %.200s: it", conf->cert);
	(void)o->SSL_CTX_ctrl(t->ctx, SSL_CTRL_GET_CHAIN_CERTS, 0, &chain);
	good = check &&
	       o->X509_STORE_CTX_init(check, o->SSL_CTX_get_cert_store(t->ctx), cert, chain) == 1;
	if (!good) {
		o->X509_STORE_CTX_free(check);
		return err_set(e, SHARD_SYSTEM, "%s cannot be checked", whose);
	}
	good = o->X509_verify_cert(check) == 1;
	code = o->X509_STORE_CTX_get_error(check);
	o->X509_STORE_CTX_free(check);
	if (good && (o->X509_check_purpose(cert, X509_PURPOSE_SSL_CLIENT, 0) != 1 ||
		     (conf->name && o->X509_check_purpose(cert, X509_PURPOSE_SSL_SERVER, 0) != 1)))
		code = X509_V_ERR_INVALID_PURPOSE, good = false;
	if (!good) {
		tls_wrong_cert(o, code, whose, &why);
		return err_set(e, SHARD_BAD_ARG, "%s", why.text);
	}
	if (conf->name && o->X509_check_host(cert, conf->name, 0, TLS_HOSTFLAGS, NULL) != 1)
		return err_set(e, SHARD_BAD_ARG,
			       "%s does not name node %s: it needs DNS:%s in subjectAltName", whose,
			       conf->name, conf->name);
	if (o->ASN1_TIME_to_tm(o->X509_get0_notAfter(cert), &tm) == 1)
		t->expires = timegm(&tm);
	return SHARD_OK;
}

/* OpenSSL opens a file by its path, waits for a pipe, and does not say why it cannot. */
static enum shard_status look_at(const char *name, const char *path, struct err *e)
{
	int fd;
	enum shard_status st = public_file_open(name, path, &fd, e);

	if (st == SHARD_OK)
		close(fd);
	return st;
}

static enum shard_status open_mtls(struct tls *t, const struct tls_conf *conf, struct err *e)
{
	const struct openssl *o = t->ssl;
	enum shard_status st;

	if (!conf->cert || !conf->cert[0] || !conf->key || !conf->key[0] || !conf->ca ||
	    !conf->ca[0])
		return err_set(e, SHARD_BAD_ARG, "tls = mtls needs tls_cert, tls_key and tls_ca");
	if ((st = look_at("tls_cert", conf->cert, e)) != SHARD_OK ||
	    (st = look_at("tls_ca", conf->ca, e)) != SHARD_OK)
		return st;
	if (o->SSL_CTX_set_ciphersuites(t->ctx, SUITES_MTLS) != 1)
		return err_set(e, SHARD_SYSTEM, "OpenSSL does not have %s", SUITES_MTLS);
	o->ERR_clear_error();
	if (o->SSL_CTX_use_certificate_chain_file(t->ctx, conf->cert) != 1)
		return err_set(e, SHARD_BAD_ARG, "tls_cert %.200s: not a certificate in PEM: %s",
			       conf->cert, reason(o));
	if (o->SSL_CTX_load_verify_file(t->ctx, conf->ca) != 1)
		return err_set(e, SHARD_BAD_ARG, "tls_ca %.200s: no certificates in PEM: %s",
			       conf->ca, reason(o));
	if ((st = use_key(t, conf->key, e)) != SHARD_OK || (st = check_own(t, conf, e)) != SHARD_OK)
		return st;
	o->SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	return SHARD_OK;
}

/* --- life --- */

static enum shard_status open_context(struct tls *t, struct err *e)
{
	const struct openssl *o = t->ssl;

	t->method = tls_io_method(o);
	t->ctx = o->SSL_CTX_new(o->TLS_method());
	if (!t->method || !t->ctx ||
	    o->SSL_CTX_ctrl(t->ctx, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL) != 1 ||
	    o->SSL_CTX_ctrl(t->ctx, SSL_CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION, NULL) != 1 ||
	    o->SSL_CTX_set_num_tickets(t->ctx, 0) != 1 ||
	    o->SSL_CTX_set_session_id_context(t->ctx, context, sizeof(context)) != 1)
		return err_set(e, SHARD_SYSTEM, "OpenSSL cannot speak TLS 1.3: %s", reason(o));
	(void)o->SSL_CTX_ctrl(t->ctx, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, NULL);
	(void)o->SSL_CTX_ctrl(t->ctx, SSL_CTRL_MODE, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, NULL);
	o->SSL_CTX_set_msg_callback(t->ctx, on_message);
	(void)o->SSL_CTX_set_options(t->ctx, SSL_OP_CIPHER_SERVER_PREFERENCE |
						     (t->kernel ? SSL_OP_ENABLE_KTLS : 0));
	return SHARD_OK;
}

enum shard_status tls_open(struct tls **out, const struct tls_conf *conf, struct err *e)
{
	struct tls *t = calloc(1, sizeof(*t));
	enum shard_status st;

	CHECK(conf->mode == TLS_PSK || conf->mode == TLS_MTLS);
	*out = NULL;
	if (!t)
		return err_set(e, SHARD_SYSTEM, "no memory for TLS");
	t->users = 1;
	t->mode = conf->mode;
	t->kernel = conf->kernel;
	t->rekey_bytes = conf->rekey_bytes ? conf->rekey_bytes : TLS_REKEY_BYTES;
	if ((st = openssl_load(&t->ssl, e)) != SHARD_OK) {
		free(t);
		return st;
	}
	if ((st = open_context(t, e)) == SHARD_OK)
		st = t->mode == TLS_PSK ? open_psk(t, conf, e) : open_mtls(t, conf, e);
	t->ssl->ERR_clear_error();
	if (st != SHARD_OK)
		tls_close(&t);
	*out = t;
	return st;
}

struct tls *tls_use(struct tls *t)
{
	if (t)
		t->users++;
	return t;
}

void tls_close(struct tls **tp)
{
	struct tls *t = *tp;

	*tp = NULL;
	if (!t || --t->users > 0)
		return;
	t->ssl->SSL_CTX_free(t->ctx);
	t->ssl->BIO_meth_free(t->method);
	explicit_bzero(t, sizeof(*t));
	free(t);
}

enum tls_mode tls_mode(const struct tls *t)
{
	return t ? t->mode : TLS_OFF;
}

int64_t tls_expires(const struct tls *t)
{
	return t ? t->expires : 0;
}
