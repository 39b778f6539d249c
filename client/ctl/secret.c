/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl secret new` makes a cluster secret. It prints the secret for a pipe, or writes it into
 * a file that only its owner may read. That file is written under another name beside the path and
 * moved there whole. An existing file is replaced only with --force, because nodes that lose the
 * secret that they use cannot reach each other after their next start. It fails where the file
 * cannot be written, or where the kernel gives no random numbers. */
#include "ctl/ctl.h"

#include "net/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FORCE };

const struct argp_option ctl_secret_options[] = {
	{"force", CTL_KEY + FORCE, NULL, 0, "replace a secret that is there", 0},
	{0},
};

static bool write_all(int fd, const char *text)
{
	size_t n = strlen(text);

	while (n > 0) {
		ssize_t w = write(fd, text, n);

		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return false;
		text += w;
		n -= (size_t)w;
	}
	return true;
}

static enum ctl_exit put(const char *path, const char *text, bool force)
{
	char part[4096];
	bool there, good;
	int fd;

	if (snprintf(part, sizeof(part), "%s.new", path) >= (int)sizeof(part))
		return ctl_fail(CTL_USAGE, "secret new: a path of at most %zu bytes",
				sizeof(part) - 5);
	if (!force && access(path, F_OK) == 0)
		return ctl_fail(CTL_FAILED, "secret new: %s is there already: --force replaces it",
				path);
	fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return ctl_fail(CTL_FAILED, "secret new: %s cannot be made: %s", part,
				strerror(errno));
	good = write_all(fd, text) && fsync(fd) == 0;
	good = close(fd) == 0 && good;
	/* link() fails if another process made the file meanwhile. */
	good = good && (force ? rename(part, path) : link(part, path)) == 0;
	there = !good && errno == EEXIST;
	if (!good)
		(void)ctl_fail(CTL_FAILED, "secret new: %s cannot be written: %s", path,
			       there ? "it is there already" : strerror(errno));
	if (!good || !force)
		unlink(part);
	return good ? CTL_OK : CTL_FAILED;
}

enum ctl_exit ctl_secret(const struct ctl_options *o)
{
	char text[2 * AUTH_BYTES + 2];
	enum ctl_exit rc = CTL_OK;
	struct err e;

	if (strcmp(o->words[0], "new") != 0)
		return ctl_fail(CTL_USAGE, "secret %s: write secret new [FILE]", o->words[0]);
	if (auth_new_secret(text, &e) != SHARD_OK)
		return ctl_fail(CTL_FAILED, "secret new: %s", e.text);
	if (o->words_nr == 2)
		rc = put(o->words[1], text, o->value[FORCE] != NULL);
	else if (fputs(text, stdout) < 0 || fflush(stdout) != 0)
		rc = ctl_fail(CTL_FAILED, "secret new: it cannot be printed: %s", strerror(errno));
	explicit_bzero(text, sizeof(text));
	return rc;
}
