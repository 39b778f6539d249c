/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: what the outside can cause travels as an enum shard_status plus one sentence. A
 * function that can fail takes a struct err *, fills it with err_set() and returns its status. err
 * may be NULL where the caller has no use for the text. */
#ifndef SHARD_BASE_STATUS_H
#define SHARD_BASE_STATUS_H

#include "shard.h"
#include <stdarg.h>

#define ERR_TEXT_BYTES 512

struct err {
	enum shard_status status;
	char text[ERR_TEXT_BYTES]; /* one sentence, no newline, always terminated */
	int sys; /* errno of a SHARD_SYSTEM; EAGAIN: a SHARD_BUSY that passes; 0: none */
};

/* These return st. A text that does not fit is cut, never overrun. */
__attribute__((format(printf, 3, 4))) enum shard_status err_set(struct err *e, enum shard_status st,
								const char *fmt, ...);
enum shard_status err_setv(struct err *e, enum shard_status st, const char *fmt, va_list ap);
/* SHARD_SYSTEM with its errno. */
__attribute__((format(printf, 3, 4))) enum shard_status err_sys(struct err *e, int error,
								const char *fmt, ...);
/* Status and errno of another one, in other words; returns its status. */
__attribute__((format(printf, 3, 4))) enum shard_status err_wrap(struct err *e,
								 const struct err *from,
								 const char *fmt, ...);

/* "SHARD_OK", ...; "SHARD_?" for a number that this version does not know (it may come from a newer
 * peer). */
const char *status_name(enum shard_status st);

#endif
