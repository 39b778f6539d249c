/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: an error that the outside can cause is an enum shard_status and one sentence. A
 * function that can fail takes a struct err *, fills it with err_set() and returns its status. err
 * may be NULL where the caller has no use for the text. */
#ifndef SHARD_BASE_STATUS_H
#define SHARD_BASE_STATUS_H

#include "shard.h"
#include <stdarg.h>

#define ERR_TEXT_BYTES 512

struct err {
	enum shard_status status;
	char text[ERR_TEXT_BYTES]; /* One sentence without a newline, always terminated. */
	/* The errno of a SHARD_SYSTEM. EAGAIN marks a SHARD_BUSY or SHARD_UNREACHABLE that passes
	 * by itself: the same request may be sent again a little later. 0 means none. */
	int sys;
};

/* These functions return st. A text that does not fit is cut. */
__attribute__((format(printf, 3, 4))) enum shard_status err_set(struct err *e, enum shard_status st,
								const char *fmt, ...);
__attribute__((format(printf, 3, 0))) enum shard_status err_setv(struct err *e,
								 enum shard_status st,
								 const char *fmt, va_list ap);
/* Sets SHARD_SYSTEM with this errno. */
__attribute__((format(printf, 3, 4))) enum shard_status err_sys(struct err *e, int error,
								const char *fmt, ...);
/* Marks it with EAGAIN, if it is a SHARD_BUSY or a SHARD_UNREACHABLE. Returns st. */
enum shard_status err_passes(struct err *e, enum shard_status st);
/* Takes status and errno from another error and gives them a new text. Returns the status. */
__attribute__((format(printf, 3, 4))) enum shard_status err_wrap(struct err *e,
								 const struct err *from,
								 const char *fmt, ...);

/* The name, such as "SHARD_OK". It is "SHARD_?" for a number that this version does not know, which
 * may come from a newer peer. */
const char *status_name(enum shard_status st);

#endif
