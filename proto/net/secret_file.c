/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the files that hold keys: auth.c the secrets, tls.c the key of a certificate. Happy path:
 * the path is expanded, the file is opened and looked at by its descriptor, and read whole. So
 * nobody can exchange it between the look and the read. It fails with a sentence that names the
 * file. */
#include "net/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CREDENTIALS "${CREDENTIALS_DIRECTORY}"

static enum shard_status expand(const struct secret_kind *kind, char *out, size_t bytes,
				const char *path, bool *credential, struct err *e)
{
	const char *folder = secure_getenv("CREDENTIALS_DIRECTORY");
	bool named = strncmp(path, CREDENTIALS, strlen(CREDENTIALS)) == 0;
	int n;

	if (named && (folder == NULL || folder[0] == 0))
		return err_set(e, SHARD_BAD_ARG,
			       "%s %.200s: CREDENTIALS_DIRECTORY is not set: systemd sets it "
			       "for a unit with LoadCredential=",
			       kind->name, path);
	n = snprintf(out, bytes, "%s%s", named ? folder : "",
		     path + (named ? strlen(CREDENTIALS) : 0));
	if (n < 0 || (size_t)n >= bytes)
		return err_set(e, SHARD_BAD_ARG, "%s %.200s: a path of at most %zu bytes",
			       kind->name, path, bytes - 1);
	*credential = folder != NULL && folder[0] != 0 &&
		      strncmp(out, folder, strlen(folder)) == 0 && out[strlen(folder)] == '/';
	return SHARD_OK;
}

static enum shard_status check_file(const struct secret_kind *kind, int fd, const char *path,
				    bool credential, size_t most, struct err *e)
{
	mode_t others = credential ? S_IRWXO : S_IRWXG | S_IRWXO;
	struct stat info;

	if (fstat(fd, &info) != 0)
		return err_set(e, SHARD_SYSTEM, "%s %.200s: %s", kind->name, path, strerror(errno));
	if (!S_ISREG(info.st_mode))
		return err_set(e, SHARD_BAD_ARG, "%s %.200s: not a file", kind->name, path);
	if (info.st_mode & others)
		return err_set(e, SHARD_BAD_ARG,
			       "%s %.200s: its mode is %04o, so that others may read or change "
			       "it: chmod 600",
			       kind->name, path, (unsigned)(info.st_mode & 07777));
	if (info.st_uid != geteuid() && info.st_uid != 0)
		return err_set(e, SHARD_BAD_ARG,
			       "%s %.200s: it belongs to user %u, who may change it: chown it "
			       "to user %u",
			       kind->name, path, (unsigned)info.st_uid, (unsigned)geteuid());
	if (info.st_size > (long long)most)
		return err_set(e, SHARD_BAD_ARG, "%s %.200s: %lld bytes: %s are expected",
			       kind->name, path, (long long)info.st_size, kind->holds);
	return SHARD_OK;
}

enum shard_status secret_file_read(const struct secret_kind *kind, const char *given, char *text,
				   size_t bytes, struct err *e)
{
	char path[4096];
	bool credential = false;
	enum shard_status st = expand(kind, path, sizeof(path), given, &credential, e);
	size_t got = 0, most = bytes - 1;
	ssize_t n = 0;
	int fd;

	text[0] = 0;
	if (st != SHARD_OK)
		return st;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK |
				O_NOCTTY); /* It may be a pipe, and open() must not wait for one. */
	if (fd < 0)
		return err_set(e, SHARD_SYSTEM, "%s %.200s: cannot be opened: %s", kind->name, path,
			       strerror(errno));
	st = check_file(kind, fd, path, credential, most, e);
	while (st == SHARD_OK && got < most && (n = read(fd, text + got, most - got)) > 0)
		got += (size_t)n;
	if (st == SHARD_OK && n < 0)
		st = err_set(e, SHARD_SYSTEM, "%s %.200s: cannot be read: %s", kind->name, path,
			     strerror(errno));
	close(fd);
	text[got] = 0;
	if (st == SHARD_OK && strlen(text) != got)
		st = err_set(e, SHARD_BAD_ARG, "%s %.200s: not a text: %s are expected", kind->name,
			     path, kind->holds);
	return st;
}

enum shard_status public_file_open(const char *name, const char *path, int *fd, struct err *e)
{
	struct stat info;
	enum shard_status st;

	*fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (*fd < 0)
		return err_set(e, SHARD_BAD_ARG,
			       "%s %.200s: cannot be opened by uid %u: %s: correct the path or who "
			       "may read the file",
			       name, path, (unsigned)geteuid(), strerror(errno));
	if (fstat(*fd, &info) != 0)
		st = err_set(e, SHARD_SYSTEM, "%s %.200s: %s", name, path, strerror(errno));
	else if (!S_ISREG(info.st_mode))
		st = err_set(e, SHARD_BAD_ARG, "%s %.200s: not a file", name, path);
	else if (info.st_size == 0 || info.st_size > PUBLIC_FILE_MAX)
		st = err_set(e, SHARD_BAD_ARG,
			     "%s %.200s: %lld bytes: certificates in PEM are expected", name, path,
			     (long long)info.st_size);
	else
		return SHARD_OK;
	close(*fd);
	*fd = -1;
	return st;
}
