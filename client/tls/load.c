// SPDX-License-Identifier: Apache-2.0
/* The functions of tls.h, as libshard has them: each one is passed on to libshard-tls.so.0, which
 * is loaded when a trainer asks for TLS. The library is looked for beside libshard.so.0, and then
 * where the linker looks. Without TLS nothing is loaded, and every connection is plain. It fails in
 * tls_open(), if the library is not there, or is of another release. */
#include "net/tls_api.h"

#include "base/check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct tls_api *api; /* NULL: not loaded. */
static char why[256];             /* Then, why not. */

static void load(void)
{
	char path[4096];
	const char *slash = NULL;
	void *library = NULL, *table;
	Dl_info here;

	if (dladdr(&once, &here) != 0 && here.dli_fname != NULL)
		slash = strrchr(here.dli_fname, '/');
	if (slash != NULL &&
	    snprintf(path, sizeof(path), "%.*s/" TLS_LIBRARY, (int)(slash - here.dli_fname),
		     here.dli_fname) < (int)sizeof(path))
		library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (library == NULL)
		library = dlopen(TLS_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	table = library != NULL ? dlsym(library, TLS_SYMBOL) : NULL;
	if (table == NULL)
		snprintf(why, sizeof(why), "%s", dlerror());
	else if (strcmp(((const struct tls_api *)table)->release, SHARD_RELEASE) != 0)
		snprintf(why, sizeof(why), "it is of release %.20s, and libshard of " SHARD_RELEASE,
			 ((const struct tls_api *)table)->release);
	else
		api = table;
}

enum shard_status tls_open(struct tls **out, const struct tls_conf *conf, struct err *e)
{
	*out = NULL;
	pthread_once(&once, load);
	return api != NULL ? api->open(out, conf, e)
			   : err_set(e, SHARD_SYSTEM,
				     "TLS needs " TLS_LIBRARY ", and it cannot be loaded: %s", why);
}

void tls_close(struct tls **t)
{
	if (*t != NULL)
		api->close(t);
}

enum tls_mode tls_mode(const struct tls *t)
{
	return t != NULL ? api->mode(t) : TLS_OFF;
}

enum shard_status tls_io(struct stream_io **out, struct tls *t, enum tls_side side, int fd,
			 const char *peer, struct err *e)
{
	CHECK(t != NULL);
	return api->io(out, t, side, fd, peer, e);
}

void tls_io_undo(struct stream_io **io)
{
	if (*io != NULL)
		api->io_undo(io);
}

bool tls_is(const struct stream_io *io)
{
	return api != NULL && api->is(io);
}

bool tls_channel(const struct stream_io *io, unsigned char out[AUTH_BYTES])
{
	return api != NULL && api->channel(io, out);
}

bool tls_names(const struct stream_io *io, const char *name)
{
	return api != NULL && api->names(io, name);
}
