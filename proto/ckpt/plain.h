/* SPDX-License-Identifier: Apache-2.0 */
/* plain.h: opening what somebody else may have put there. Whoever may write in a folder of
 * checkpoints may put a pipe or a device there, and an open() or a read() of those waits, for ever
 * if need be. Any thread. */
#ifndef SHARD_CKPT_PLAIN_H
#define SHARD_CKPT_PLAIN_H

#include "base/status.h"

#include <sys/types.h>

/* A plain file and nothing else; a link is not followed. *fd is -1 if it fails; errno says why,
 * too. SHARD_NOT_FOUND: it is not there; SHARD_PROTOCOL: it is something else. */
enum shard_status plain_open(int *fd, int dir, const char *path, int flags, mode_t mode,
			     struct err *e);
/* The refusal of what is something else. */
enum shard_status plain_refuse(const char *path, struct err *e);

#endif
