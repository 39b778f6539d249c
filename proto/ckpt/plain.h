/* SPDX-License-Identifier: Apache-2.0 */
/* plain.h: opens files that somebody else may have put there. Any user who may write in a folder of
 * checkpoints may put a pipe or a device there, and open() or read() of those may wait for ever.
 * Any thread may call this. */
#ifndef SHARD_CKPT_PLAIN_H
#define SHARD_CKPT_PLAIN_H

#include "base/status.h"

#include <sys/types.h>

/* Opens a plain file and nothing else. A link is not followed. If it fails, *fd is -1 and errno
 * says why, too. SHARD_NOT_FOUND: it is not there. SHARD_PROTOCOL: it is not a plain file. */
enum shard_status plain_open(int *fd, int dir, const char *path, int flags, mode_t mode,
			     struct err *e);
/* Sets the error for something that is not a plain file. */
enum shard_status plain_refuse(const char *path, struct err *e);

#endif
