/* SPDX-License-Identifier: Apache-2.0 */
/* secret_file.h: reading a file that nobody else may read, such as one with a key. */
#ifndef SHARD_NET_SECRET_FILE_H
#define SHARD_NET_SECRET_FILE_H

#include "base/status.h"

#include <stddef.h>

/* What the file is, for texts. */
struct secret_kind {
	const char *name;  /* "secret" */
	const char *holds; /* "one or two lines of 64 hex digits" */
};

/* Reads all of it into text, and ends it with a NUL. It must be a file that belongs to this user or
 * to root, that nobody else may read, and that has at most bytes - 1 bytes, none of them a NUL. A
 * path may begin with ${CREDENTIALS_DIRECTORY}. There the group may read, because systemd keeps
 * others out. SHARD_BAD_ARG names the file and what is wrong with it, never what is in it.
 * SHARD_SYSTEM: it cannot be read. The caller wipes text in each case. */
enum shard_status secret_file_read(const struct secret_kind *kind, const char *path, char *text,
				   size_t bytes, struct err *e);

/* Opens a file that everybody may read, as one with certificates, and never waits for a pipe.
 * SHARD_BAD_ARG: it cannot be opened, is no file, or has no byte or more than PUBLIC_FILE_MAX.
 * SHARD_SYSTEM: it cannot be looked at. */
#define PUBLIC_FILE_MAX (1 << 20)
enum shard_status public_file_open(const char *name, const char *path, int *fd, struct err *e);

#endif
