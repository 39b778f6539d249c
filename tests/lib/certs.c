// SPDX-License-Identifier: Apache-2.0
/* Makes certificates by libcrypto. Tests of TLS call it. Keys are of P-256, which are made at once.
 * What cannot be made or written fails the test. */
#include "lib/certs.h"

#include "base/check.h"
#include "lib/rmtree.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
	X509V3_CTX ctx;
	X509_EXTENSION *e;

	X509V3_set_ctx_nodb(&ctx);
	X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
	e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
	CHECK(e && X509_add_ext(cert, e, -1) == 1);
	X509_EXTENSION_free(e);
}

static X509 *new_cert(EVP_PKEY *key, const char *name, int64_t from_s, int64_t to_s)
{
	X509 *cert = X509_new();
	X509_NAME *subject;
	uint32_t serial;

	CHECK(cert && RAND_bytes((unsigned char *)&serial, sizeof(serial)) == 1);
	CHECK(X509_set_version(cert, 2) && X509_set_pubkey(cert, key));
	CHECK(ASN1_INTEGER_set(X509_get_serialNumber(cert), serial & 0x7fffffff));
	CHECK(X509_gmtime_adj(X509_getm_notBefore(cert), from_s));
	CHECK(X509_gmtime_adj(X509_getm_notAfter(cert), to_s));
	subject = X509_get_subject_name(cert);
	CHECK(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name,
					 -1, -1, 0));
	return cert;
}

static void sign(X509 *cert, X509 *ca, EVP_PKEY *ca_key)
{
	CHECK(X509_set_issuer_name(cert, X509_get_subject_name(ca)));
	CHECK(X509_sign(cert, ca_key, EVP_sha256()) > 0);
}

/* A file that readers never see half written. */
static void put_file(const char *folder, const char *name, X509 *cert, EVP_PKEY *key)
{
	char path[200], fresh[220];
	FILE *f;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	snprintf(fresh, sizeof(fresh), "%s.new", path);
	fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, key ? 0600 : 0644);
	f = fdopen(fd, "w");
	CHECK(fd >= 0 && f);
	CHECK(key ? PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL)
		  : PEM_write_X509(f, cert));
	CHECK(fclose(f) == 0 && rename(fresh, path) == 0);
}

static void make_ca(const char *folder, const char *name)
{
	EVP_PKEY *key = EVP_EC_gen("P-256");
	X509 *cert = new_cert(key, name, -3600 * 48, 86400 * 30);

	extension(cert, cert, NID_basic_constraints, "critical,CA:TRUE");
	extension(cert, cert, NID_key_usage, "critical,keyCertSign");
	extension(cert, cert, NID_subject_key_identifier, "hash");
	sign(cert, cert, key);
	CHECK(mkdir(folder, 0700) == 0 || errno == EEXIST);
	put_file(folder, "ca.crt", cert, NULL);
	put_file(folder, "ca.key", NULL, key);
	X509_free(cert);
	EVP_PKEY_free(key);
}

static void read_ca(const char *folder, X509 **cert, EVP_PKEY **key)
{
	char path[200];
	FILE *f;

	snprintf(path, sizeof(path), "%s/ca.crt", folder);
	CHECK((f = fopen(path, "r")) && (*cert = PEM_read_X509(f, NULL, NULL, NULL)));
	fclose(f);
	snprintf(path, sizeof(path), "%s/ca.key", folder);
	CHECK((f = fopen(path, "r")) && (*key = PEM_read_PrivateKey(f, NULL, NULL, NULL)));
	fclose(f);
}

int certs_make(struct certs *c)
{
	char folder[80];

	strcpy(c->dir, "/tmp/shardd-certs.XXXXXX");
	if (mkdtemp(c->dir) == NULL)
		return 1;
	snprintf(folder, sizeof(folder), "%s/.ca", c->dir);
	make_ca(folder, "tests");
	snprintf(folder, sizeof(folder), "%s/.other", c->dir);
	make_ca(folder, "others");
	unsetenv("SHARD_TLS");
	return 0;
}

int certs_remove(struct certs *c)
{
	unsetenv("SHARD_TLS");
	rmtree(c->dir);
	return 0;
}

void certs_put_times(struct certs *c, const char *name, const char *names, enum certs_how how,
		     int64_t from_s, int64_t to_s)
{
	char folder[120], authority[80];
	EVP_PKEY *key = EVP_EC_gen(how == CERTS_CURVE ? "brainpoolP256r1" : "P-256"), *ca_key;
	X509 *cert = new_cert(key, name, from_s, to_s), *ca;

	snprintf(folder, sizeof(folder), "%s/%s", c->dir, name);
	snprintf(authority, sizeof(authority), "%s/%s", c->dir,
		 how == CERTS_OTHER_CA ? ".other" : ".ca");
	read_ca(authority, &ca, &ca_key);
	extension(cert, ca, NID_basic_constraints, "CA:FALSE");
	if (how == CERTS_CLIENT)
		extension(cert, ca, NID_ext_key_usage, "clientAuth");
	if (how == CERTS_SERVER)
		extension(cert, ca, NID_ext_key_usage, "serverAuth");
	if (names)
		extension(cert, ca, NID_subject_alt_name, names);
	sign(cert, ca, ca_key);
	CHECK(mkdir(folder, 0700) == 0 || errno == EEXIST);
	put_file(folder, "tls.key", NULL, key);
	put_file(folder, "tls.crt", cert, NULL);
	put_file(folder, "ca.crt", ca, NULL);
	X509_free(cert);
	X509_free(ca);
	EVP_PKEY_free(key);
	EVP_PKEY_free(ca_key);
}

void certs_put(struct certs *c, const char *name, const char *names, enum certs_how how)
{
	certs_put_times(c, name, names, how, -3600, 86400);
}
