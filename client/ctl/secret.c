/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl secret new` makes a cluster secret. It prints the secret for a pipe, or writes it into
 * a file that only its owner may read. `secret rotate` changes the keys of such a file in three
 * steps: it adds a new key behind the old one, swaps the two, and drops the second. A file is
 * written under another name beside the path and moved there whole. An existing file is replaced by
 * `new` only with --force, because nodes that lose the secret that they use cannot reach each other
 * after their next start. It fails where the file cannot be written, has not the keys that a step
 * needs, or where the kernel gives no random numbers. */
#include "ctl/ctl.h"
#include "ctl/json.h"

#include "net/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FORCE, SWAP, DROP };

#define HEX       "0123456789abcdefABCDEF"
#define KEY_BYTES (2 * AUTH_BYTES + 2) /* Of a key as auth_new_secret() writes it. */

const struct argp_option ctl_new_options[] = {
	{"force", CTL_KEY + FORCE, NULL, 0, "replace a secret that is there", 0},
	{0},
};

const struct argp_option ctl_rotate_options[] = {
	{"swap", CTL_KEY + SWAP, NULL, 0, "the second step: the new key comes first, and proves",
	 0},
	{"drop", CTL_KEY + DROP, NULL, 0, "the third step: the key that is second goes", 0},
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

/* Writes text beside path and moves it there. Fails with errno: EEXIST if there is a file that must
 * not be replaced. It gets the owner of old, or else of this process. */
static bool put(const char *path, const char *text, bool replace, const struct stat *old)
{
	char part[PATH_MAX];
	int fd, why;
	bool good;

	if (snprintf(part, sizeof(part), "%s.XXXXXX", path) >= (int)sizeof(part)) {
		errno = ENAMETOOLONG;
		return false;
	}
	fd = mkostemp(part, O_CLOEXEC); /* With mode 0600. */
	if (fd < 0)
		return false;
	good = !old || fchown(fd, old->st_uid, old->st_gid) == 0;
	good = good && write_all(fd, text) && fsync(fd) == 0;
	good = close(fd) == 0 && good;
	/* link() fails if another process made the file meanwhile. */
	good = good && (replace ? rename(part, path) : link(part, path)) == 0;
	why = errno;
	if (!good || !replace)
		unlink(part);
	errno = why;
	return good;
}

static enum ctl_exit new_file(const struct ctl_options *o, const char *path, const char *text,
			      bool force)
{
	struct stat info;
	bool there = stat(path, &info) == 0;

	if (there && S_ISDIR(info.st_mode))
		return ctl_fail(o, CTL_FAILED, "secret new: %s is a folder: name a file in it",
				path);
	if (there && !force)
		return ctl_fail(o, CTL_FAILED,
				"secret new: %s is there already: --force replaces it", path);
	if (!put(path, text, force, NULL))
		return ctl_fail(o, CTL_FAILED, "secret new: %s cannot be written: %s", path,
				errno == EEXIST ? "it is there already" : strerror(errno));
	return CTL_OK;
}

static enum ctl_exit make(const struct ctl_options *o)
{
	enum ctl_exit rc = CTL_OK;
	char text[KEY_BYTES];
	struct err e;

	if (auth_new_secret(text, &e) != SHARD_OK)
		return ctl_fail(o, CTL_FAILED, "secret new: %s", e.text);
	if (o->words_nr == 2)
		rc = new_file(o, o->words[1], text, o->value[FORCE] != NULL);
	else if (o->json)
		rc = ctl_print(json_pack("{s:s%}", "secret", text, 2 * (size_t)AUTH_BYTES));
	else if (fputs(text, stdout) < 0 || fflush(stdout) != 0)
		rc = CTL_FAILED;
	explicit_bzero(text, sizeof(text));
	if (rc == CTL_OK && o->json && o->words_nr == 2)
		rc = ctl_print(json_pack("{s:s}", "file", o->words[1]));
	return rc;
}

/* --- rotate --- */

/* Reads the keys of a file that auth_open() takes, each with a line break and a NUL. Returns how
 * many there are, or 0 where the file has changed meanwhile. */
static uint32_t read_keys(const char *path, char key[AUTH_KEYS_MAX][KEY_BYTES], struct stat *info)
{
	char text[AUTH_KEYS_MAX * KEY_BYTES + 16], *at = text;
	FILE *f = fopen(path, "re");
	uint32_t nr = 0;

	text[f ? fread(text, 1, sizeof(text) - 1, f) : 0] = 0;
	if (!f || fstat(fileno(f), info) != 0)
		text[0] = 0;
	if (f)
		fclose(f);
	while (nr < AUTH_KEYS_MAX && *(at += strcspn(at, HEX)) != 0) {
		size_t n = strspn(at, HEX);

		if (n != 2 * AUTH_BYTES)
			break;
		snprintf(key[nr++], KEY_BYTES, "%.*s\n", (int)n, at);
		at += n;
	}
	explicit_bzero(text, sizeof(text));
	return nr;
}

static enum ctl_exit rotate(const struct ctl_options *o)
{
	bool swap = o->value[SWAP] != NULL, drop = o->value[DROP] != NULL;
	char key[AUTH_KEYS_MAX][KEY_BYTES] = {"", ""}, text[AUTH_KEYS_MAX * KEY_BYTES];
	char path[PATH_MAX];
	enum ctl_exit rc = CTL_OK;
	struct auth *a = NULL;
	struct stat info;
	uint32_t nr;
	struct err e = {.text = ""};

	if (swap && drop)
		return ctl_fail(o, CTL_USAGE, "secret rotate: --swap and --drop are two steps");
	/* What a symbolic link leads to is replaced, and not the link. */
	if (!realpath(o->words[1], path))
		return ctl_fail(o, CTL_FAILED,
				"secret rotate: %s: %s: name the file of [cluster] secret or "
				"node_secret; `shardctl secret new FILE` makes one",
				o->words[1], strerror(errno));
	if (auth_open(&a, path, &e) != SHARD_OK)
		return ctl_fail(o, CTL_FAILED, "secret rotate: %s", e.text);
	auth_close(&a);
	nr = read_keys(path, key, &info);
	if (nr == 1 && !swap && !drop) {
		if (auth_new_secret(key[1], &e) != SHARD_OK)
			rc = ctl_fail(o, CTL_FAILED, "secret rotate: %s", e.text);
		snprintf(text, sizeof(text), "%s%s", key[0], key[1]);
	} else if (nr == 1) {
		rc = ctl_fail(o, CTL_FAILED,
			      "secret rotate: %s has one key: without an option a new one is added",
			      path);
	} else if (nr == 2 && (swap || drop)) {
		snprintf(text, sizeof(text), "%s%s", swap ? key[1] : key[0], swap ? key[0] : "");
	} else {
		rc = ctl_fail(o, CTL_FAILED,
			      "secret rotate: %s has two keys: --swap lets the new one prove, and "
			      "after that --drop takes the old one out",
			      path);
	}
	if (rc == CTL_OK && !put(path, text, true, &info))
		rc = ctl_fail(o, CTL_FAILED, "secret rotate: %s cannot be written: %s", path,
			      strerror(errno));
	if (rc == CTL_OK && o->json)
		rc = ctl_print(json_pack("{s:s, s:i}", "file", path, "keys", drop ? 1 : 2));
	else if (rc == CTL_OK)
		printf("%s: %s\n", path,
		       drop   ? "it has the first key alone. Put it on every node, and reload."
		       : swap ? "the other key is first now. Put the file on every node, reload, "
				"and then `secret rotate --drop`."
			      : "a new key is behind the old one. Put the file on every node, "
				"reload, and then `secret rotate --swap`.");
	explicit_bzero(key, sizeof(key));
	explicit_bzero(text, sizeof(text));
	return rc;
}

enum ctl_exit ctl_secret(const struct ctl_options *o)
{
	return strcmp(o->words[0], "new") == 0 ? make(o) : rotate(o);
}
