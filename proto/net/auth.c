/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's secret and the proofs made with it. The daemon, the client library and shardctl
 * call it, and each loads the secret once. Happy path: open the file, note both HELLOs, prove,
 * check. HMAC-SHA256, SHA-256 and the comparison come from libcrypto, which is loaded at run time,
 * so that libshard does not depend on it where no secret is used. It fails with a sentence about
 * the file, or one that says that libcrypto cannot be loaded. */
#include "net/auth.h"

#include "base/check.h"
#include "net/secret_file.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define TEXT(x)    TEXT_OF(x)
#define TEXT_OF(x) #x
#define LIBCRYPTO  "libcrypto.so." TEXT(OPENSSL_SHLIB_VERSION)
#define FILE_MAX   512 /* Bytes. Two secrets and generous line breaks fit. */

/* The terminating NUL of a label is hashed too, so that no label is a prefix of other hashed
 * data. */
static const char labels[AUTH_FOR_NR][2][32] = {
	[AUTH_FOR_CLIENT] = {"shardd auth 2 client dialler", "shardd auth 2 client listener"},
	[AUTH_FOR_NODE] = {"shardd auth 2 node dialler", "shardd auth 2 node listener"},
};

struct auth {
	void *library; /* Stays loaded, because others in the process may use it too. */
	__typeof__(&HMAC) hmac;
	__typeof__(&SHA256) sha256;
	__typeof__(&EVP_sha256) evp_sha256;
	__typeof__(&CRYPTO_memcmp) compare;
	uint32_t keys_nr;
	unsigned char key[AUTH_KEYS_MAX][AUTH_BYTES];
};

static bool symbol(struct auth *a, const char *name, void *to, size_t bytes)
{
	void *p = dlsym(a->library, name);

	CHECK(bytes == sizeof(p));
	memcpy(to, &p, sizeof(p)); /* C has no conversion from void * to a pointer to a function. */
	return p != NULL;
}

static enum shard_status load(struct auth *a, const char *path, struct err *e)
{
	a->library = dlopen(LIBCRYPTO, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (a->library && symbol(a, "HMAC", &a->hmac, sizeof(a->hmac)) &&
	    symbol(a, "SHA256", &a->sha256, sizeof(a->sha256)) &&
	    symbol(a, "EVP_sha256", &a->evp_sha256, sizeof(a->evp_sha256)) &&
	    symbol(a, "CRYPTO_memcmp", &a->compare, sizeof(a->compare)))
		return SHARD_OK;
	return err_set(e, SHARD_SYSTEM,
		       "secret %.200s: %s cannot be loaded (%.150s): install libssl%s", path,
		       LIBCRYPTO, a->library ? "it lacks HMAC or SHA256" : dlerror(),
		       TEXT(OPENSSL_SHLIB_VERSION));
}

/* --- the file --- */

static int hex(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
				      : -1;
}

static bool parse_key(unsigned char key[AUTH_BYTES], const char *line, size_t n)
{
	bool good = n == 2 * AUTH_BYTES;

	for (size_t i = 0; good && i < n; i++) {
		int digit = hex(line[i]);

		good = digit >= 0;
		key[i / 2] = (unsigned char)(i % 2 ? key[i / 2] | (digit & 15) : (digit & 15) << 4);
	}
	return good;
}

/* Random bytes repeat less. That 32 of them have fewer different values than this has a chance
 * below 1 in 10^30. */
#define DIFFERENT_MIN 8

static bool typed_in(const unsigned char key[AUTH_BYTES])
{
	uint32_t different = 0;

	for (int i = 0; i < AUTH_BYTES; i++)
		different += memchr(key, key[i], (size_t)i) == NULL;
	return different < DIFFERENT_MIN;
}

static enum shard_status check_key(const struct auth *a, const char *path, uint32_t line,
				   struct err *e)
{
	const unsigned char *key = a->key[a->keys_nr];

	if (typed_in(key))
		return err_set(e, SHARD_BAD_ARG,
			       "secret %.200s:%u: fewer than %d different bytes, which nobody "
			       "draws: `shardctl secret new FILE` "
			       "makes one",
			       path, line, DIFFERENT_MIN);
	for (uint32_t i = 0; i < a->keys_nr; i++)
		if (memcmp(a->key[i], key, AUTH_BYTES) == 0)
			return err_set(e, SHARD_BAD_ARG,
				       "secret %.200s:%u: the same secret twice: one line, or a "
				       "new and an old one",
				       path, line);
	return SHARD_OK;
}

static enum shard_status parse(struct auth *a, const char *path, const char *text, struct err *e)
{
	uint32_t line = 0;

	for (const char *at = text; *at; line++) {
		size_t n = strcspn(at, "\r\n");

		if (n > 0 && a->keys_nr == AUTH_KEYS_MAX)
			return err_set(e, SHARD_BAD_ARG,
				       "secret %.200s:%u: more than %d secrets: keep the newest, "
				       "and the one before it",
				       path, line + 1, AUTH_KEYS_MAX);
		if (n > 0 && !parse_key(a->key[a->keys_nr], at, n))
			return err_set(e, SHARD_BAD_ARG,
				       "secret %.200s:%u: not a secret of 64 hex digits: `shardctl "
				       "secret new FILE` makes one",
				       path, line + 1);
		if (n > 0 && check_key(a, path, line + 1, e) != SHARD_OK)
			return e->status;
		a->keys_nr += n > 0;
		at += n;
		at += *at == '\r';
		at += *at == '\n';
	}
	if (a->keys_nr == 0)
		return err_set(
			e, SHARD_BAD_ARG,
			"secret %.200s: there is none in it: `shardctl secret new FILE` makes one",
			path);
	return SHARD_OK;
}

static enum shard_status read_file(struct auth *a, const char *path, struct err *e)
{
	static const struct secret_kind kind = {"secret", "one or two lines of 64 hex digits"};
	char text[FILE_MAX + 1];
	enum shard_status st = secret_file_read(&kind, path, text, sizeof(text), e);

	if (st == SHARD_OK)
		st = parse(a, path, text, e);
	explicit_bzero(text, sizeof(text));
	return st;
}

enum shard_status auth_open(struct auth **out, const char *path, struct err *e)
{
	struct auth *a = calloc(1, sizeof(*a));
	enum shard_status st;

	*out = NULL;
	if (a == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a secret");
	st = read_file(a, path, e);
	if (st == SHARD_OK)
		st = load(a, path, e);
	if (st != SHARD_OK) {
		auth_close(&a);
		return st;
	}
	*out = a;
	return SHARD_OK;
}

void auth_close(struct auth **a)
{
	if (*a != NULL) {
		if ((*a)->library)
			dlclose((*a)->library);
		explicit_bzero(*a, sizeof(**a));
	}
	free(*a);
	*a = NULL;
}

uint32_t auth_keys(const struct auth *a)
{
	return a->keys_nr;
}

bool auth_share(const struct auth *a, const struct auth *b)
{
	bool share = false;

	for (uint32_t i = 0; i < a->keys_nr; i++)
		for (uint32_t k = 0; k < b->keys_nr; k++)
			share |= a->compare(a->key[i], b->key[k], AUTH_BYTES) == 0;
	return share;
}

enum shard_status auth_random(unsigned char out[AUTH_BYTES], struct err *e)
{
	ssize_t n;

	do
		n = getrandom(out, AUTH_BYTES, 0);
	while (n < 0 && errno == EINTR);
	return n == AUTH_BYTES ? SHARD_OK
			       : err_set(e, SHARD_SYSTEM, "no random numbers: %s",
					 n < 0 ? strerror(errno) : "too few");
}

enum shard_status auth_new_secret(char out[2 * AUTH_BYTES + 2], struct err *e)
{
	unsigned char key[AUTH_BYTES];
	enum shard_status st = auth_random(key, e);

	for (size_t i = 0; i < 2 * AUTH_BYTES; i++)
		out[i] = "0123456789abcdef"[i % 2 ? key[i / 2] & 15 : key[i / 2] >> 4];
	memcpy(out + 2 * AUTH_BYTES, "\n", 2);
	explicit_bzero(key, sizeof(key));
	return st;
}

static bool hmac(const struct auth *a, const unsigned char *key, const void *text, size_t bytes,
		 unsigned char out[AUTH_BYTES])
{
	unsigned got = 0;

	return a->hmac(a->evp_sha256(), key, AUTH_BYTES, text, bytes, out, &got) != NULL &&
	       got == AUTH_BYTES;
}

bool auth_derive(const struct auth *a, uint32_t key, const char *label,
		 unsigned char out[AUTH_BYTES])
{
	static const unsigned char salt[AUTH_BYTES];
	unsigned char info[64], extract[AUTH_BYTES];
	size_t n = strlen(label);
	bool good;

	CHECK(key < a->keys_nr && n < sizeof(info));
	memcpy(info, label, n);
	info[n++] = 1; /* The first block, which is all that is asked for. */
	good = hmac(a, salt, a->key[key], AUTH_BYTES, extract) && hmac(a, extract, info, n, out);
	explicit_bzero(extract, sizeof(extract));
	return good;
}

/* --- proofs --- */

bool auth_said(const struct auth *a, struct auth_talk *t, enum auth_side side, const void *body,
	       size_t bytes)
{
	return a->sha256(body, bytes, t->said[side]) != NULL;
}

static bool prove_with(const struct auth *a, const struct auth_talk *t, enum auth_side side,
		       uint32_t key, const unsigned char hello[AUTH_BYTES],
		       unsigned char proof[AUTH_BYTES])
{
	const char *label = labels[t->what][side == AUTH_DIALLER ? 0 : 1];
	size_t n = strlen(label) + 1;
	unsigned char text[sizeof(labels[0][0]) + 6 * AUTH_BYTES];

	CHECK(key < AUTH_KEYS_MAX);
	memcpy(text, label, n);
	memcpy(text + n, t->nonce, sizeof(t->nonce));
	n += sizeof(t->nonce);
	memcpy(text + n, t->said, sizeof(t->said));
	n += sizeof(t->said);
	if (t->bound) {
		memcpy(text + n, t->channel, AUTH_BYTES);
		n += AUTH_BYTES;
	}
	memcpy(text + n, hello, AUTH_BYTES);
	n += AUTH_BYTES;
	CHECK(n <= sizeof(text));
	return hmac(a, a->key[key], text, n, proof);
}

bool auth_prove(const struct auth *a, const struct auth_talk *t, enum auth_side side,
		const void *hello, size_t hello_bytes, unsigned char proof[AUTH_BYTES])
{
	unsigned char sum[AUTH_BYTES];

	return a->sha256(hello, hello_bytes, sum) != NULL &&
	       prove_with(a, t, side, side == AUTH_LISTENER ? t->key : 0, sum, proof);
}

bool auth_right(const struct auth *a, struct auth_talk *t, enum auth_side side, const void *hello,
		size_t hello_bytes, const void *proof, size_t proof_bytes)
{
	unsigned char sum[AUTH_BYTES], want[AUTH_BYTES];
	bool right = false;

	if (proof_bytes != AUTH_BYTES || a->sha256(hello, hello_bytes, sum) == NULL)
		return false;
	for (uint32_t k = 0; k < a->keys_nr && !right; k++) {
		if (side == AUTH_LISTENER && k != t->key)
			/* The listener answers with the key that the dialler proved with. */
			continue;
		right = prove_with(a, t, side, k, sum, want) &&
			a->compare(want, proof, AUTH_BYTES) == 0;
		if (right)
			t->key = k;
	}
	explicit_bzero(want, sizeof(want));
	return right;
}
