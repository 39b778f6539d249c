/* SPDX-License-Identifier: Apache-2.0 */
/* Folders: made, synced, exchanged and removed. Nothing here follows a symbolic link below the folder that it was given, and removal takes
 * plain files only: a folder that holds anything else stays, and is named. Fails with what the file system says. */
#include "ckpt/folder_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum shard_status failed(struct err *e, const char *path, const char *what)
{
	return err_sys(e, errno, "%s: %s: %s", path, what, strerror(errno));
}

enum shard_status folder_sync(const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc, error;

	if (fd < 0)
		return failed(e, path, "cannot be opened");
	rc = fsync(fd);
	error = errno;
	close(fd);
	errno = error;
	return rc == 0 || errno == EINVAL ? SHARD_OK : failed(e, path, "cannot be synced"); /* EINVAL: it has nothing to sync */
}

enum shard_status folder_make(const char *path, struct err *e)
{
	char part[CHECKPOINT_PATH_MAX];
	size_t n = strlen(path);

	if (n == 0 || n >= sizeof(part))
		return err_set(e, SHARD_BAD_ARG, "a folder of checkpoints has 1 to %zu characters", sizeof(part) - 1);
	for (size_t i = 1; i <= n; i++) {
		if (path[i] != '/' && path[i] != 0)
			continue;
		memcpy(part, path, i);
		part[i] = 0;
		if (mkdir(part, 0755) != 0 && errno != EEXIST && (path[i] == 0 || access(part, F_OK) != 0))
			return failed(e, part, "cannot be made");
	}
	return SHARD_OK;
}

void folder_temporary(char path[CHECKPOINT_PATH_MAX], const char *dir, const char *tag)
{
	snprintf(path, CHECKPOINT_PATH_MAX, "%s/.%s.tmp", dir, tag);
}

/* --- removal --- */

/* What says whose the folder is goes last, so that a crash in between leaves something that can be told. */
static bool says_whose(const char *name)
{
	return strcmp(name, MANIFEST_NAME) == 0 || strcmp(name, FOLDER_OWNER) == 0;
}

static enum shard_status empty(DIR *d, const char *path, bool last, struct err *e)
{
	const struct dirent *entry;
	struct stat s;

	rewinddir(d);
	while ((entry = readdir(d))) {
		const char *name = entry->d_name;

		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || says_whose(name) != last)
			continue;
		if (fstatat(dirfd(d), name, &s, AT_SYMLINK_NOFOLLOW) != 0)
			return failed(e, path, "cannot be looked at");
		if (!S_ISREG(s.st_mode))
			return err_set(e, SHARD_SYSTEM, "%s: is not removed: %.64s in it is no plain file", path, name);
		if (unlinkat(dirfd(d), name, 0) != 0)
			return failed(e, path, "cannot be emptied");
	}
	return SHARD_OK;
}

enum shard_status folder_remove(const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	enum shard_status st;
	DIR *d;

	if (fd < 0)
		return errno == ENOENT ? SHARD_OK : failed(e, path, "cannot be removed");
	if (!(d = fdopendir(fd))) {
		close(fd);
		return failed(e, path, "cannot be removed");
	}
	st = empty(d, path, false, e);
	if (st == SHARD_OK)
		st = empty(d, path, true, e);
	closedir(d);
	if (st == SHARD_OK && rmdir(path) != 0)
		st = failed(e, path, "cannot be removed");
	return st;
}

enum shard_status folder_swap(const char *from, const char *to, struct err *e)
{
	char aside[CHECKPOINT_PATH_MAX + 8];

	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
		return SHARD_OK;
	if (errno == EEXIST && renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
		return SHARD_OK;
	if (errno != EINVAL && errno != ENOSYS)
		return failed(e, to, "cannot be renamed to");
	/* A file system that cannot exchange: for a moment neither has the name. */
	snprintf(aside, sizeof(aside), "%s.old", from);
	(void)folder_remove(aside, NULL);
	if (rename(to, aside) != 0 && errno != ENOENT)
		return failed(e, to, "cannot be renamed");
	if (rename(from, to) != 0)
		return failed(e, to, "cannot be renamed to");
	if (rename(aside, from) != 0 && errno != ENOENT)
		return failed(e, aside, "cannot be renamed");
	return SHARD_OK;
}

/* --- short texts --- */

enum shard_status folder_put_text(const char *path, const char *temporary, const char *text, struct err *e)
{
	int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	ssize_t n = (ssize_t)strlen(text);
	bool ok;
	int error;

	if (fd < 0)
		return failed(e, temporary, "cannot be made");
	errno = ENOSPC; /* of a write that is short */
	ok = write(fd, text, (size_t)n) == n && fsync(fd) == 0;
	error = errno;
	ok = close(fd) == 0 && ok;
	if (ok && rename(temporary, path) == 0)
		return SHARD_OK;
	errno = ok ? errno : error;
	return failed(e, path, "cannot be written");
}

enum shard_status folder_get_text(const char *path, char *text, size_t room, struct err *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	ssize_t n;

	if (fd < 0 && errno == ENOENT)
		return err_set(e, SHARD_NOT_FOUND, "%s: is not there", path);
	if (fd < 0)
		return failed(e, path, "cannot be read");
	n = read(fd, text, room - 1);
	close(fd);
	if (n < 0)
		return failed(e, path, "cannot be read");
	text[n] = 0;
	text[strcspn(text, "\n")] = 0;
	return SHARD_OK;
}

bool folder_owner(const char *path, char name[65])
{
	char file[CHECKPOINT_PATH_MAX + 16];
	struct manifest *m;

	snprintf(file, sizeof(file), "%s/%s", path, FOLDER_OWNER);
	if (folder_get_text(file, name, 65, NULL) == SHARD_OK && name[0])
		return true;
	if (manifest_read(path, &m, NULL) != SHARD_OK)
		return false;
	memcpy(name, m->name, 65);
	manifest_free(&m);
	return true;
}
