// SPDX-License-Identifier: Apache-2.0
/* The texts of the library: names, the version, and the one sentence that a failing call leaves in
 * its thread. The sentence is the only variable that outlives a call outside of a handle, but for
 * those of fault.c. It is thread-local and fixed in size, and setting it can neither fail nor
 * overrun it. A call that enters a handle makes it old (text_begin()), so that nobody takes it for
 * a sentence about a call that succeeded. Structs that grow between versions are copied here, too.
 * The size of the older side limits what is read and written. */
#include "client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct {
	struct err err;
	bool old;                        /* A call has begun since and has not failed. */
	char shown[ERR_TEXT_BYTES + 80]; /* The sentence as it is shown when it is old. */
} last;

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
	if (!last.old || last.err.text[0] == 0)
		return last.err.text;
	snprintf(last.shown, sizeof(last.shown),
		 "the last call did not fail; an earlier one did: %s", last.err.text);
	return last.shown;
}

void text_begin(void)
{
	last.old = true;
}

enum shard_status text_fail(enum shard_status st, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	err_setv(&last.err, st, fmt, ap);
	last.old = false;
	va_end(ap);
	return st;
}

enum shard_status text_fail_err(const struct err *e)
{
	last.err = *e;
	last.old = false;
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
