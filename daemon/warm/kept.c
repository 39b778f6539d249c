/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on a tmpfs that no node will ask for again: that of a node which was given up, or whose
 * state folder is gone. `shardd --forget-memory --list` and --forget-memory=FOLDER call it. Happy
 * path: each folder of warm_dir with the name of such memory is opened, the page in it says which
 * state folder it belongs to, and that folder says whether it still knows of it. Nothing is locked
 * and nothing is changed by looking, because a daemon may be starting meanwhile. Only an orphan is
 * given back, under the lock that a daemon would hold. What cannot be read is no orphan. */
#include "warm/page.h"
#include "warm/warm.h"

#include "base/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define PREFIX   "shardd-"
#define NAME_HEX (2 * STATIC_UUID_BYTES)

static const char orphan[] = "orphan", runs[] = "runs", kept[] = "kept", unknown[] = "unknown";

/* shardd-<hex> as place.c names it. */
static bool parse_name(const char *text, uint8_t name[STATIC_UUID_BYTES])
{
	const char *hex = text + sizeof(PREFIX) - 1;

	if (strncmp(text, PREFIX, sizeof(PREFIX) - 1) != 0 || strlen(hex) != NAME_HEX ||
	    strspn(hex, "0123456789abcdef") != NAME_HEX)
		return false;
	for (int i = 0; i < STATIC_UUID_BYTES; i++) {
		unsigned byte = 0;

		CHECK(sscanf(hex + 2 * i, "%2x", &byte) == 1);
		name[i] = (uint8_t)byte;
	}
	return true;
}

/* The process that holds the lock on a folder, as the kernel lists it, or 0. To take the lock for a
 * moment would tell a daemon that starts right now that another one runs. */
static long locked_by(const struct stat *st)
{
	FILE *f = fopen("/proc/locks", "re");
	char line[200], want[64];
	long pid = 0, found = 0;

	snprintf(want, sizeof(want), "%02x:%02x:%llu ", major(st->st_dev), minor(st->st_dev),
		 (unsigned long long)st->st_ino);
	while (f && !found && fgets(line, sizeof(line), f))
		if (strstr(line, want) && sscanf(line, "%*s FLOCK %*s %*s %ld", &pid) == 1)
			found = pid;
	if (f)
		fclose(f);
	return found;
}

static void add_up(int fd, struct warm_kept *k)
{
	int mine = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = mine >= 0 ? fdopendir(mine) : NULL;
	time_t newest = 0, now = time(NULL);
	struct stat st;

	if (dir == NULL && mine >= 0)
		close(mine);
	for (struct dirent *d; dir && (d = readdir(dir)) != NULL;) {
		if (fstatat(fd, d->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
			continue;
		k->bytes += (uint64_t)st.st_blocks * 512;
		if (st.st_mtime > newest)
			newest = st.st_mtime;
	}
	if (dir)
		closedir(dir);
	if (newest == 0 && fstat(fd, &st) == 0)
		newest = st.st_mtime;
	k->age_s = now > newest ? (uint64_t)(now - newest) : 0;
}

/* A copy, because the daemon it belongs to may be writing. False: there is none that can be read.
 */
static bool read_page(int dir, struct warm_page *g)
{
	int fd = openat(dir, "node", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	ssize_t n = fd >= 0 ? pread(fd, g, sizeof(*g), 0) : -1;

	if (fd >= 0)
		close(fd);
	if (n < (ssize_t)offsetof(struct warm_page, row) || g->magic != WARM_MAGIC)
		return false;
	memset((char *)g + n, 0, sizeof(*g) - (size_t)n);
	g->members[sizeof(g->members) - 1] = 0;
	g->state[sizeof(g->state) - 1] = 0;
	return true;
}

static void set(struct warm_kept *k, const char *verdict, const char *why)
{
	k->verdict = verdict;
	snprintf(k->why, sizeof(k->why), "%s", why);
}

static void judge_page(struct warm_kept *k, const uint8_t name[STATIC_UUID_BYTES],
		       const struct warm_page *g)
{
	enum shard_status st;
	struct err e = {.text = ""};

	for (uint32_t i = 0; i < WARM_MODELS_MAX; i++)
		k->models += g->row[i].kept == 1;
	snprintf(k->whose, sizeof(k->whose), "%s", g->members);
	snprintf(k->state, sizeof(k->state), "%s", g->state);
	if (k->state[0] == 0) {
		set(k, unknown, "an older release made it, which did not note the state folder");
		return;
	}
	st = static_keeps(k->state, g->uuid, name, &e);
	if (st == SHARD_OK)
		err_set(&e, st, "the next start with the state folder %.400s takes it up",
			k->state);
	set(k,
	    st == SHARD_OK                                  ? kept
	    : st == SHARD_NOT_FOUND || st == SHARD_MISMATCH ? orphan
							    : unknown,
	    e.text);
}

/* Looks at one folder, which is open. */
static void judge(struct warm_kept *k, int fd, const uint8_t name[STATIC_UUID_BYTES])
{
	struct warm_page page;
	struct stat st;
	char why[80];
	long pid;

	if (fstat(fd, &st) != 0) {
		set(k, unknown, strerror(errno));
		return;
	}
	k->uid = st.st_uid;
	k->seen = true;
	add_up(fd, k);
	if (read_page(fd, &page))
		judge_page(k, name, &page);
	else
		set(k, unknown, "there is no page in it that says whose it is");
	if ((pid = locked_by(&st)) != 0) {
		snprintf(why, sizeof(why), "it belongs to the daemon with pid %ld", pid);
		set(k, runs, why);
	}
}

static int look(const struct config *conf, const char *text, struct warm_kept *k)
{
	uint8_t name[STATIC_UUID_BYTES];
	struct stat st;
	int fd;

	*k = (struct warm_kept){.verdict = unknown};
	if (!parse_name(text, name) || snprintf(k->path, sizeof(k->path), "%s/%s", conf->warm_dir,
						text) >= (int)sizeof(k->path))
		return -1;
	fd = open(k->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0) {
		judge(k, fd, name);
		return fd;
	}
	snprintf(k->why, sizeof(k->why), "%s%s", strerror(errno),
		 errno == EACCES ? ": ask as root or as that user" : "");
	if (lstat(k->path, &st) == 0 && S_ISDIR(st.st_mode)) {
		k->uid = st.st_uid;
		return -1;
	}
	k->path[0] = 0; /* It is no folder, or went away. */
	return -1;
}

enum shard_status warm_kept_list(const struct config *conf,
				 void (*fn)(void *arg, const struct warm_kept *k), void *arg,
				 struct err *e)
{
	DIR *dir = opendir(conf->warm_dir);
	struct warm_kept k;

	if (!dir)
		return err_set(e, SHARD_SYSTEM, "%s: cannot be read: %s", conf->warm_dir,
			       strerror(errno));
	for (struct dirent *d; (d = readdir(dir)) != NULL;) {
		int fd = look(conf, d->d_name, &k);

		if (fd >= 0)
			close(fd);
		if (k.path[0])
			fn(arg, &k);
	}
	closedir(dir);
	return SHARD_OK;
}

/* Removes the files of a folder that is locked, and the folder. */
static enum shard_status remove_all(int fd, const char *path, struct err *e)
{
	int mine = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = mine >= 0 ? fdopendir(mine) : NULL;

	if (dir == NULL && mine >= 0)
		close(mine);
	for (struct dirent *d; dir && (d = readdir(dir)) != NULL;)
		if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
			(void)unlinkat(fd, d->d_name, 0);
	if (dir)
		closedir(dir);
	return rmdir(path) == 0 ? SHARD_OK
				: err_set(e, SHARD_SYSTEM, "%s: cannot be removed: %s", path,
					  strerror(errno));
}

enum shard_status warm_kept_forget(const struct config *conf, const char *path, struct err *e)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	enum shard_status st;
	struct warm_kept k;
	int fd = look(conf, name, &k);

	if (k.path[0] == 0 || (slash && strcmp(k.path, path) != 0))
		st = err_set(e, SHARD_NOT_FOUND,
			     "%.300s: there is no such memory in %.200s: --forget-memory --list "
			     "names what there is",
			     path, conf->warm_dir);
	else if (k.verdict != orphan)
		st = err_set(e, SHARD_BUSY, "%s stays: %s%s", k.path, k.why,
			     k.verdict == kept
				     ? ": --forget-memory with its configuration gives it back"
			     : k.verdict == unknown ? ": remove the folder if you know whose it was"
						    : "");
	else if (flock(fd, LOCK_EX | LOCK_NB) != 0)
		st = err_set(e, SHARD_BUSY, "%s belongs to a daemon that runs now", k.path);
	else
		st = remove_all(fd, k.path, e);
	if (fd >= 0)
		close(fd);
	return st;
}
