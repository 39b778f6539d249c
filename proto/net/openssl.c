/* SPDX-License-Identifier: Apache-2.0 */
/* Loads OpenSSL at run time. tls.c calls it when TLS is asked for. Happy path: libssl is loaded,
 * which brings libcrypto along, and each name of openssl.h is found in one of the two. The table is
 * the same for all who ask, and is filled once. It fails where the library is missing, or lacks a
 * function because it is older than OpenSSL 3. */
#include "net/openssl.h"

#include "base/check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define TEXT(x)    TEXT_OF(x)
#define TEXT_OF(x) #x
#define LIBSSL     "libssl.so." TEXT(OPENSSL_SHLIB_VERSION)

#define OPENSSL_NAME(name) #name "\0"
static const char names[] = OPENSSL_NAMES(OPENSSL_NAME);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct openssl table;
static const char *missing; /* What is not there. NULL: all is loaded. */

static void load(void)
{
	void *library = dlopen(LIBSSL, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	unsigned char *to = (unsigned char *)&table;

	missing = library ? NULL : LIBSSL;
	for (const char *name = names; !missing && name[0] != 0; name += strlen(name) + 1) {
		void *p = dlsym(library, name);

		CHECK(to + sizeof(p) <= (unsigned char *)(&table + 1));
		memcpy(to, &p, sizeof(p)); /* C cannot convert it to a pointer to a function. */
		to += sizeof(p);
		if (!p)
			missing = name;
	}
}

enum shard_status openssl_load(const struct openssl **out, struct err *e)
{
	pthread_once(&once, load);
	*out = &table;
	return missing ? err_set(e, SHARD_SYSTEM,
				 "TLS needs OpenSSL 3, and %s cannot be loaded: install libssl%s",
				 missing, TEXT(OPENSSL_SHLIB_VERSION))
		       : SHARD_OK;
}
