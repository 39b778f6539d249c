/* SPDX-License-Identifier: Apache-2.0 */
/* Holds the names of the statuses, and the functions that attach a sentence to a status. */
#include "base/status.h"

#include <errno.h>
#include <stdio.h>

// clang-format off
#define ROW(name) case name: return #name

const char *status_name(enum shard_status st)
{
	switch (st) {
	ROW(SHARD_OK);
	ROW(SHARD_AGAIN);
	ROW(SHARD_TIMEOUT);
	ROW(SHARD_INTERRUPTED);
	ROW(SHARD_WORLD_CHANGED);
	ROW(SHARD_ROLLED_BACK);
	ROW(SHARD_BAD_ARG);
	ROW(SHARD_BAD_STATE);
	ROW(SHARD_RANGE);
	ROW(SHARD_DUPLICATE);
	ROW(SHARD_DTYPE);
	ROW(SHARD_MISSING);
	ROW(SHARD_STALE);
	ROW(SHARD_MISMATCH);
	ROW(SHARD_BUDGET);
	ROW(SHARD_DENIED);
	ROW(SHARD_NOT_FOUND);
	ROW(SHARD_EXISTS);
	ROW(SHARD_BUSY);
	ROW(SHARD_UNSUPPORTED);
	ROW(SHARD_SYSTEM);
	ROW(SHARD_DIVERGED);
	ROW(SHARD_UNREACHABLE);
	ROW(SHARD_CLOSED);
	ROW(SHARD_VERSION);
	ROW(SHARD_PROTOCOL);
	ROW(SHARD_LOST);
	ROW(SHARD_FORKED);
	}
	return "SHARD_?";
}
// clang-format on

enum shard_status err_setv(struct err *e, enum shard_status st, const char *fmt, va_list ap)
{
	if (e != NULL) {
		e->status = st;
		e->sys = 0;
		vsnprintf(e->text, sizeof(e->text), fmt, ap);
	}
	return st;
}

enum shard_status err_set(struct err *e, enum shard_status st, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	err_setv(e, st, fmt, ap);
	va_end(ap);
	return st;
}

enum shard_status err_passes(struct err *e, enum shard_status st)
{
	if (e != NULL && (st == SHARD_BUSY || st == SHARD_UNREACHABLE))
		e->sys = EAGAIN;
	return st;
}

enum shard_status err_sys(struct err *e, int error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	err_setv(e, SHARD_SYSTEM, fmt, ap);
	va_end(ap);
	if (e != NULL)
		e->sys = error;
	return SHARD_SYSTEM;
}

enum shard_status err_wrap(struct err *e, const struct err *from, const char *fmt, ...)
{
	enum shard_status st = from->status;
	int error = from->sys;
	va_list ap;

	va_start(ap, fmt);
	err_setv(e, st, fmt, ap);
	va_end(ap);
	if (e != NULL)
		e->sys = error;
	return st;
}
