/* SPDX-License-Identifier: Apache-2.0 */
/* certs.h: certificates for tests, made when they run. Each one has a folder of its own below one
 * folder, with tls.crt, tls.key and ca.crt. */
#ifndef SHARD_TESTS_CERTS_H
#define SHARD_TESTS_CERTS_H

#include <stdint.h>

struct certs {
	char dir[40];
};

enum certs_how {
	CERTS_GOOD,
	CERTS_OTHER_CA, /* Signed by a CA that nobody else knows. Its own ca.crt is that one. */
	CERTS_CURVE,    /* Of a curve that OpenSSL knows and GnuTLS does not. */
	CERTS_SERVER,   /* extendedKeyUsage = serverAuth: it cannot be shown by who dials. */
	CERTS_CLIENT,   /* extendedKeyUsage = clientAuth: it cannot be shown by a listener. */
};

int certs_make(struct certs *c);   /* The folder and a CA. 0, or the setup has failed. */
int certs_remove(struct certs *c); /* The same for a teardown. */
/* Makes folder `name`, or replaces what is there. names: subjectAltName, as in "DNS:a,DNS:b". NULL:
 * there is none. It is valid from `from_s` to `to_s` seconds from now. */
void certs_put_times(struct certs *c, const char *name, const char *names, enum certs_how how,
		     int64_t from_s, int64_t to_s);
/* Valid from an hour ago, for a day. */
void certs_put(struct certs *c, const char *name, const char *names, enum certs_how how);

#endif
