/* SPDX-License-Identifier: Apache-2.0 */
/* Opens plain files only. The sources of checkpoint.h, manifest.h and part.h call it. It opens
 * without waiting (O_NONBLOCK) and without following a link, and checks the file's type before
 * anybody reads from it. It fails with a sentence that says what is in the way and what to do. */
#include "ckpt/plain.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum shard_status plain_refuse(const char *path, struct err *e)
{
	return err_set(e, SHARD_PROTOCOL,
		       "%s: is no plain file, but a pipe, a device, a link or a folder: remove it, "
		       "or choose another folder",
		       path);
}

enum shard_status plain_open(int *fd, int dir, const char *path, int flags, mode_t mode,
			     struct err *e)
{
	struct stat s;

	CHECK(path[0] != 0);
	*fd = openat(dir, path, flags | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC, mode);
	if (*fd >= 0 && fstat(*fd, &s) == 0 && S_ISREG(s.st_mode))
		return SHARD_OK;
	if (*fd >= 0) {
		close(*fd);
		*fd = -1;
		errno = ENXIO; /* As open() says of a pipe without a reader. */
	}
	if (errno == ENOENT || errno == ENOTDIR)
		return err_set(e, SHARD_NOT_FOUND, "%s: is not there", path);
	if (errno == ENXIO || errno == ELOOP || errno == EISDIR)
		return plain_refuse(path, e);
	return err_sys(e, errno, "%s: cannot be opened: %s", path, strerror(errno));
}
