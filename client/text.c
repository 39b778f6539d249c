// SPDX-License-Identifier: Apache-2.0
/* The texts of the library: names, the version, and the one sentence that a failing call leaves in
 * its thread. The sentence is the only variable that outlives a call outside of a handle, but for
 * those of fault.c. It is thread-local and fixed in size, and setting it can neither fail nor
 * overrun it. Structs that grow between versions are copied here, too. The size of the older side
 * limits what is read and written. */
#include "client.h"

#include <errno.h>
#include <string.h>

static _Thread_local struct err last;

const char *shard_version(void)
{
	static_assert(WIRE_VERSION == 1, "the text below names the wire range");
	return SHARD_RELEASE " wire 1-1 abi 0";
}

const char *shard_name(enum shard_status st)
{
	return status_name(st);
}

const char *shard_error(void)
{
	return last.text;
}

enum shard_status text_fail(enum shard_status st, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	err_setv(&last, st, fmt, ap);
	va_end(ap);
	return st;
}

enum shard_status text_fail_err(const struct err *e)
{
	last = *e;
	if (e->status == SHARD_SYSTEM && e->sys > 0) /* As if the call had failed here. */
		errno = e->sys;
	return e->status;
}

enum shard_status text_no_memory(const char *what)
{
	errno = ENOMEM;
	return text_fail(SHARD_SYSTEM, "out of memory for %s", what);
}

enum shard_status text_struct_ok(const void *theirs, const char *name)
{
	size_t size;

	if (theirs == NULL)
		return text_fail(SHARD_BAD_ARG, "struct %s is NULL", name);
	memcpy(&size, theirs, sizeof(size));
	if (size < sizeof(size) || size > 4096)
		return text_fail(SHARD_BAD_ARG,
				 "struct %s has size %zu: start it with SHARD_INIT(struct %s)",
				 name, size, name);
	return SHARD_OK;
}

enum shard_status text_struct_in(void *ours, size_t ours_bytes, const void *theirs,
				 const char *name)
{
	enum shard_status rc = text_struct_ok(theirs, name);
	size_t size;

	memset(ours, 0, ours_bytes);
	if (rc != SHARD_OK)
		return rc;
	memcpy(&size, theirs, sizeof(size));
	memcpy(ours, theirs, size < ours_bytes ? size : ours_bytes);
	return SHARD_OK;
}

void text_struct_out(void *theirs, const void *ours, size_t ours_bytes)
{
	size_t size, n;

	memcpy(&size, theirs, sizeof(size));
	n = size < ours_bytes ? size : ours_bytes;
	memcpy((char *)theirs + sizeof(size), (const char *)ours + sizeof(size), n - sizeof(size));
}
