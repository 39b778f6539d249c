/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, syncs, exchanges and removes folders. The sources of checkpoint.h call it. Nothing here
 * follows a symbolic link below the folder that it was given. Removal takes only the files of a
 * checkpoint. A folder that holds anything else stays as it is, and the error names it. It fails
 * with what the file system says. */
#include "ckpt/client.h"
#include "ckpt/folder_impl.h"
#include "ckpt/manifest_impl.h"

#include "base/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
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
	/* EINVAL: the file system has nothing to sync. */
	return rc == 0 || errno == EINVAL ? SHARD_OK : failed(e, path, "cannot be synced");
}

/* Makes the name of a new folder durable. A parent that may not be opened is skipped, because the
 * writer syncs what is in the folder itself. */
static void sync_parent(const char *path)
{
	char parent[CHECKPOINT_PATH_MAX];
	char *slash;

	snprintf(parent, sizeof(parent), "%s", path);
	slash = strrchr(parent, '/');
	if (slash == NULL)
		strcpy(parent, ".");
	else
		slash[slash == parent] = 0;
	(void)folder_sync(parent, NULL);
}

enum shard_status folder_make(const char *path, struct err *e)
{
	char part[CHECKPOINT_PATH_MAX];
	size_t n = strlen(path);

	if (n == 0 || n >= sizeof(part))
		return err_set(e, SHARD_BAD_ARG, "a folder of checkpoints has 1 to %zu characters",
			       sizeof(part) - 1);
	for (size_t i = 1; i <= n; i++) {
		if (path[i] != '/' && path[i] != 0)
			continue;
		memcpy(part, path, i);
		part[i] = 0;
		if (mkdir(part, 0755) == 0)
			sync_parent(part);
		else if (errno != EEXIST && (path[i] == 0 || access(part, F_OK) != 0))
			return failed(e, part, "cannot be made");
	}
	return SHARD_OK;
}

void checkpoint_temporary(char path[CHECKPOINT_PATH_MAX], const char *dir, const char *tag)
{
	snprintf(path, CHECKPOINT_PATH_MAX, "%s/.%s.tmp", dir, tag);
}

/* --- removal --- */

/* The file that names the folder's model is removed last, so that the folder still names it after a
 * crash in between. */
static bool says_whose(const char *name)
{
	return strcmp(name, MANIFEST_NAME) == 0 || strcmp(name, FOLDER_OWNER) == 0;
}

static bool ends_with(const char *name, const char *end)
{
	size_t n = strlen(name), m = strlen(end);

	return n > m && strcmp(name + n - m, end) == 0;
}

/* The names that a checkpoint has, finished or not. */
static bool of_checkpoint(const char *name)
{
	return says_whose(name) || strcmp(name, FOLDER_OWNER ".tmp") == 0 ||
	       strcmp(name, FOLDER_LATEST) == 0 || strcmp(name, FOLDER_COPIED) == 0 ||
	       strcmp(name, FOLDER_COPIED ".tmp") == 0 || ends_with(name, ".safetensors");
}

/* True if the manifest in this folder begins like one of shardd. Damage after that does not
 * matter. */
static bool claims(int dir)
{
	static const char begin[] = "{\"format\":\"" MANIFEST_FORMAT "\"";
	char text[sizeof(begin)];
	ssize_t n;
	int fd;

	if (plain_open(&fd, dir, MANIFEST_NAME, O_RDONLY, 0, NULL) != SHARD_OK)
		return false;
	n = read(fd, text, sizeof(begin) - 1);
	close(fd);
	return n == (ssize_t)sizeof(begin) - 1 && memcmp(text, begin, sizeof(begin) - 1) == 0;
}

/* The folder of the files of trainers has plain files with their names, and nothing else. Looks, or
 * removes all of it. SHARD_OK also if there is none. */
static enum shard_status client_folder(int dir, const char *path, bool remove, struct err *e)
{
	int fd = openat(dir, CLIENT_FOLDER, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	enum shard_status st = SHARD_OK;
	const struct dirent *entry;
	struct stat s;

	if (d == NULL) {
		st = fd < 0 && errno == ENOENT ? SHARD_OK : failed(e, path, "cannot be looked at");
		if (fd >= 0)
			close(fd);
		return st;
	}
	while (st == SHARD_OK && (entry = readdir(d)) != NULL) {
		const char *name = entry->d_name;

		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
		    strncmp(name, ".nfs", 4) == 0)
			continue;
		if (fstatat(fd, name, &s, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(s.st_mode) ||
		    !client_name_ok(name))
			st = err_set(e, SHARD_EXISTS,
				     "%s: is no checkpoint, " CLIENT_FOLDER
				     "/%.64s in it is no file of trainers: choose another tag or "
				     "folder, or remove it",
				     path, name);
		else if (remove && unlinkat(fd, name, 0) != 0)
			st = failed(e, path, "cannot be emptied");
	}
	closedir(d);
	if (st == SHARD_OK && remove && unlinkat(dir, CLIENT_FOLDER, AT_REMOVEDIR) != 0 &&
	    errno != ENOENT)
		st = failed(e, path, "cannot be emptied");
	return st;
}

/* Refuses a folder unless all of it belongs to a checkpoint. It must have only names of a
 * checkpoint, only plain files, but for the folder of the files of trainers, and one file that says
 * that it is a checkpoint. */
static enum shard_status look(DIR *d, const char *path, struct err *e)
{
	bool said = claims(dirfd(d)), any = false;
	const struct dirent *entry;
	struct stat s;

	rewinddir(d);
	while ((entry = readdir(d))) {
		const char *name = entry->d_name;

		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
		    strncmp(name, ".nfs", 4) == 0)
			continue; /* .nfs* is a file that was removed while it was open. */
		if (fstatat(dirfd(d), name, &s, AT_SYMLINK_NOFOLLOW) != 0)
			return failed(e, path, "cannot be looked at");
		if (S_ISDIR(s.st_mode) && strcmp(name, CLIENT_FOLDER) == 0) {
			enum shard_status st = client_folder(dirfd(d), path, false, e);

			if (st != SHARD_OK)
				return st;
			any = true;
			continue;
		}
		if (!S_ISREG(s.st_mode))
			return err_set(e, SHARD_EXISTS,
				       "%s: is no checkpoint, %.64s in it is no plain file: choose "
				       "another tag or "
				       "folder, or remove it",
				       path, name);
		if (!of_checkpoint(name))
			return err_set(e, SHARD_EXISTS,
				       "%s: is no checkpoint, for it holds %.64s: choose another "
				       "tag or folder, or "
				       "remove it",
				       path, name);
		/* Its draft counts, too. */
		said = said || strncmp(name, FOLDER_OWNER, strlen(FOLDER_OWNER)) == 0;
		any = true;
	}
	if (any && !said)
		return err_set(e, SHARD_EXISTS,
			       "%s: is there and is no checkpoint: choose another tag or folder, "
			       "or remove it",
			       path);
	return SHARD_OK;
}

static enum shard_status empty(DIR *d, const char *path, bool last, struct err *e)
{
	const struct dirent *entry;
	enum shard_status st;

	if (!last && (st = client_folder(dirfd(d), path, true, e)) != SHARD_OK)
		return st;
	rewinddir(d);
	while ((entry = readdir(d))) {
		const char *name = entry->d_name;

		if (of_checkpoint(name) && says_whose(name) == last &&
		    unlinkat(dirfd(d), name, 0) != 0)
			return failed(e, path, "cannot be emptied");
	}
	return SHARD_OK;
}

/* SHARD_NOT_FOUND: it is not there. */
static enum shard_status open_folder(DIR **d, const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 && errno == ENOENT)
		return SHARD_NOT_FOUND;
	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
		return err_set(
			e, SHARD_EXISTS,
			"%s: is there and is no folder: choose another tag or folder, or remove it",
			path);
	if (fd < 0)
		return failed(e, path, "cannot be opened");
	if ((*d = fdopendir(fd)) != NULL)
		return SHARD_OK;
	close(fd);
	return failed(e, path, "cannot be opened");
}

enum shard_status folder_ours(const char *path, struct err *e)
{
	enum shard_status st;
	DIR *d;

	if ((st = open_folder(&d, path, e)) != SHARD_OK)
		return st == SHARD_NOT_FOUND ? SHARD_OK : st;
	st = look(d, path, e);
	closedir(d);
	return st;
}

enum shard_status folder_remove(const char *path, struct err *e)
{
	enum shard_status st;
	DIR *d;

	if ((st = open_folder(&d, path, e)) != SHARD_OK)
		return st == SHARD_NOT_FOUND ? SHARD_OK : st;
	st = look(d, path, e);
	if (st == SHARD_OK)
		st = empty(d, path, false, e);
	if (st == SHARD_OK)
		st = empty(d, path, true, e);
	closedir(d);
	if (st == SHARD_OK && rmdir(path) != 0 && errno != ENOENT)
		st = failed(e, path, "cannot be removed");
	return st;
}

int folder_move(const char *from, const char *to)
{
	struct stat s;

	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -1;
	if (lstat(to, &s) != 0 && errno == ENOENT)
		return rename(from, to);
	errno = EEXIST;
	return -1;
}

enum shard_status folder_swap(const char *from, const char *to, bool *exchanged, struct err *e)
{
	char aside[CHECKPOINT_PATH_MAX + 8];
	bool was = false;

	if (exchanged == NULL)
		exchanged = &was;
	*exchanged = false;
	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
		return SHARD_OK;
	if (errno == EEXIST && renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
		*exchanged = true;
		return SHARD_OK;
	}
	if (errno != EINVAL && errno != ENOSYS)
		return failed(e, to, "cannot be renamed to");
	/* A file system that cannot exchange two names. For a moment no folder has the name
	 * `to`. */
	snprintf(aside, sizeof(aside), "%s.old", from);
	(void)folder_remove(aside, NULL);
	*exchanged = rename(to, aside) == 0;
	if (!*exchanged && errno != ENOENT)
		return failed(e, to, "cannot be renamed");
	if (rename(from, to) != 0)
		return failed(e, to, "cannot be renamed to");
	if (*exchanged && rename(aside, from) != 0)
		return failed(e, aside, "cannot be renamed");
	return SHARD_OK;
}

/* --- short texts --- */

enum shard_status folder_put_draft(const char *temporary, const char *text, struct err *e)
{
	ssize_t n = (ssize_t)strlen(text);
	enum shard_status st;
	int fd, error;
	bool ok;

	st = plain_open(&fd, AT_FDCWD, temporary, O_WRONLY | O_CREAT | O_TRUNC, 0640, e);
	if (st != SHARD_OK)
		return st;
	errno = ENOSPC; /* For a write that is short. */
	ok = write(fd, text, (size_t)n) == n && fsync(fd) == 0;
	error = errno;
	if (close(fd) == 0 && ok)
		return SHARD_OK;
	errno = ok ? errno : error;
	return failed(e, temporary, "cannot be written");
}

enum shard_status folder_put_text(const char *path, const char *temporary, const char *text,
				  struct err *e)
{
	enum shard_status st = folder_put_draft(temporary, text, e);

	if (st != SHARD_OK || rename(temporary, path) == 0)
		return st;
	return failed(e, path, "cannot be written");
}

enum shard_status folder_get_text(const char *path, char *text, size_t room, struct err *e)
{
	enum shard_status st;
	ssize_t n;
	int fd;

	if ((st = plain_open(&fd, AT_FDCWD, path, O_RDONLY, 0, e)) != SHARD_OK)
		return st;
	n = read(fd, text, room - 1);
	close(fd);
	if (n < 0)
		return failed(e, path, "cannot be read");
	text[n] = 0;
	text[strcspn(text, "\n")] = 0;
	return SHARD_OK;
}

/* A file that was unlinked meanwhile is not the one that has the name now. */
static int hold_file(const char *path, const char *name)
{
	char file[CHECKPOINT_PATH_MAX + 16];
	struct stat s;
	int fd, error;

	snprintf(file, sizeof(file), "%s/%s", path, name);
	if (plain_open(&fd, AT_FDCWD, file, O_RDWR, 0, NULL) != SHARD_OK)
		return -1; /* Not O_RDONLY, because NFS locks only files opened for writing. */
	if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &s) == 0) {
		if (s.st_nlink > 0)
			return fd;
		errno = EWOULDBLOCK;
	}
	error = errno;
	close(fd);
	errno = error;
	return -1;
}

int folder_hold(const char *path)
{
	static const char *const names[] = {FOLDER_OWNER, FOLDER_OWNER ".tmp", MANIFEST_NAME};
	int fd = -1;

	for (size_t i = 0; fd < 0 && i < NR(names); i++)
		if ((fd = hold_file(path, names[i])) < 0 && errno != ENOENT)
			break;
	return fd;
}

int folder_hold_manifest(const char *path)
{
	return hold_file(path, MANIFEST_NAME);
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
