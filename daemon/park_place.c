/* SPDX-License-Identifier: Apache-2.0 */
/* The two places where memory outlives a process; park.c decides what is in them. Happy path in systemd's: a sealed memfd goes to the store
 * by FDSTORE=1 under a name, and comes back by LISTEN_FDS at the next start; FDSTOREREMOVE=1 gives it back. In a tmpfs: a file, mode
 * 0600, in <warm_dir>/shardd-<uuid>, mode 0700. Ways to fail: no room; a folder that is not on a tmpfs, not ours or open to others;
 * a name that is there twice. What the store refuses (FileDescriptorStoreMax) it does not say: the next start finds it missing. */
#include "park_place.h"

#include "base/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define STORE_PREFIX   "shardd-" /* of names in systemd's store */
#define TMPFS_TYPE     0x01021994
#define HUGETLBFS_TYPE 0x958458f6

static bool name_ok(const char *name) /* one that this release, or another, gave */
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");

	return n > 0 && n < PARK_NAME_BYTES && name[n] == 0;
}

/* --- systemd --- */

#ifdef SHARD_SYSTEMD
#include <systemd/sd-daemon.h>

static bool add_found(struct park_place *p, const char *name, int fd)
{
	struct park_found *more = realloc(p->found, (p->found_nr + 1) * sizeof(*more));

	if (more == NULL)
		return false;
	p->found = more;
	more[p->found_nr].fd = fd;
	snprintf(more[p->found_nr++].name, PARK_NAME_BYTES, "%s", name);
	return true;
}

static void take_passed(struct park_place *p)
{
	size_t prefix = strlen(STORE_PREFIX);
	char **names = NULL;
	int nr = sd_listen_fds_with_names(1, &names);

	for (int i = 0; i < nr; i++) {
		int fd = SD_LISTEN_FDS_START + i;

		if (names != NULL && strncmp(names[i], STORE_PREFIX, prefix) == 0 && name_ok(names[i] + prefix) &&
		    !add_found(p, names[i] + prefix, fd))
			close(fd);
	}
	for (int i = 0; names != NULL && i < nr; i++)
		free(names[i]);
	free(names);
}

static int store(const char *name, int fd)
{
	char text[PARK_NAME_BYTES + 64];

	snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=" STORE_PREFIX "%s", name);
	return sd_pid_notify_with_fds(0, 0, text, &fd, 1);
}

static void unstore(const char *name)
{
	char text[PARK_NAME_BYTES + 64];

	snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=" STORE_PREFIX "%s", name);
	(void)sd_notify(0, text);
}

/* systemd before 254 does not say whether the unit has a store: then it is believed to. */
bool park_place_systemd(const struct config *conf)
{
	const char *max = getenv("FDSTORE");

	(void)conf;
	return getenv("NOTIFY_SOCKET") != NULL && (max == NULL || strcmp(max, "0") != 0);
}
#else
static void take_passed(struct park_place *p)
{
	(void)p;
}

static int store(const char *name, int fd)
{
	(void)name;
	(void)fd;
	return -ENOSYS;
}

static void unstore(const char *name)
{
	(void)name;
}

bool park_place_systemd(const struct config *conf)
{
	(void)conf;
	return false;
}
#endif

static enum shard_status store_make(struct park_place *p, const char *name, size_t bytes, enum shm_huge huge, struct shm *m,
				    struct err *e)
{
	char full[PARK_NAME_BYTES + 16];
	enum shard_status st;
	int rc;

	(void)p;
	snprintf(full, sizeof(full), STORE_PREFIX "%s", name);
	if ((st = shm_create(m, full, bytes, 1, huge, e)) != SHARD_OK)
		return st;
	if ((rc = store(name, m->fd)) > 0)
		return SHARD_OK;
	shm_unmap(m);
	return err_set(e, SHARD_SYSTEM, "systemd does not take %s: %s", full, rc < 0 ? strerror(-rc) : "there is no NOTIFY_SOCKET");
}

static enum shard_status store_take(struct park_place *p, const char *name, uint64_t bytes, enum shm_huge huge, struct shm *m,
				    struct err *e)
{
	int fd = -1, mine;
	struct stat info;

	for (uint32_t i = 0; i < p->found_nr; i++) {
		if (strcmp(p->found[i].name, name) != 0)
			continue;
		if (fd >= 0)
			return err_set(e, SHARD_MISMATCH, "it is there twice");
		fd = p->found[i].fd;
	}
	if (fd < 0)
		return err_set(e, SHARD_NOT_FOUND, "it is not there");
	if (fstat(fd, &info) != 0 || (mine = fcntl(fd, F_DUPFD_CLOEXEC, 3)) < 0)
		return err_set(e, SHARD_SYSTEM, "%s", strerror(errno));
	return shm_again(m, mine, 1, bytes ? bytes : (uint64_t)info.st_size, huge, e);
}

static void store_remove(struct park_place *p, const char *name)
{
	unstore(name);
	for (uint32_t i = 0; i < p->found_nr;) {
		if (strcmp(p->found[i].name, name) != 0) {
			i++;
			continue;
		}
		close(p->found[i].fd);
		p->found[i] = p->found[--p->found_nr];
	}
}

/* --- a folder --- */

static enum shard_status check_folder(int fd, const char *path, mode_t not_allowed, struct err *e)
{
	struct stat st;
	struct statfs fs;

	if (fstat(fd, &st) != 0 || fstatfs(fd, &fs) != 0)
		return err_set(e, SHARD_SYSTEM, "%s: %s", path, strerror(errno));
	if (fs.f_type != TMPFS_TYPE && fs.f_type != HUGETLBFS_TYPE)
		return err_set(e, SHARD_BAD_ARG, "%s is not on a tmpfs or hugetlbfs: choose a warm_dir that is, as /dev/shm", path);
	if (not_allowed != 0 && (st.st_uid != geteuid() || (st.st_mode & not_allowed) != 0))
		return err_set(e, SHARD_DENIED, "%s belongs to uid %u and has mode %04o: it must be this daemon's alone: remove it",
			       path, (unsigned)st.st_uid, (unsigned)st.st_mode & 07777);
	return SHARD_OK;
}

static enum shard_status open_folder(struct park_place *p, bool make, struct err *e)
{
	enum shard_status st;

	if (p->dir >= 0)
		return SHARD_OK;
	if (make && mkdir(p->path, 0700) != 0 && errno != EEXIST)
		return err_set(e, SHARD_SYSTEM,
			       "%s: cannot be made: %s: set warm_dir to a tmpfs that this daemon may write, or "
			       "warm_restart = off",
			       p->path, strerror(errno));
	p->dir = open(p->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (p->dir < 0)
		return err_set(e, SHARD_SYSTEM, "%s: cannot be opened: %s", p->path, strerror(errno));
	if ((st = check_folder(p->dir, p->path, 077, e)) != SHARD_OK) {
		close(p->dir);
		p->dir = -1;
		if (make)
			(void)rmdir(p->path); /* if it was made here it is empty */
	}
	return st;
}

static enum shard_status file_take(struct park_place *p, const char *name, uint64_t bytes, enum shm_huge huge, struct shm *m,
				   struct err *e)
{
	int fd = openat(p->dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat info;

	if (fd < 0)
		return err_set(e, errno == ENOENT ? SHARD_NOT_FOUND : SHARD_MISMATCH, "%s",
			       errno == ENOENT ? "it is not there" : strerror(errno));
	if (fstat(fd, &info) != 0 || info.st_size < 0)
		info.st_size = 0;
	return shm_again(m, fd, 0, bytes ? bytes : (uint64_t)info.st_size, huge, e);
}

static void sweep_folder(struct park_place *p, bool (*keep)(void *arg, const char *name), void *arg)
{
	int fd = p->dir >= 0 ? openat(p->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;

	if (dir == NULL) {
		if (fd >= 0)
			close(fd);
		return;
	}
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
		    (keep == NULL || !keep(arg, entry->d_name)))
			(void)unlinkat(p->dir, entry->d_name, 0);
	closedir(dir);
}

static void sweep_store(struct park_place *p, bool (*keep)(void *arg, const char *name), void *arg)
{
	for (uint32_t i = 0; i < p->found_nr;) {
		char name[PARK_NAME_BYTES];

		memcpy(name, p->found[i].name, sizeof(name));
		if (keep != NULL && keep(arg, name))
			i++;
		else
			store_remove(p, name);
	}
}

static void remove_folder(struct park_place *p)
{
	if (p->dir < 0)
		return;
	sweep_folder(p, NULL, NULL);
	close(p->dir);
	p->dir = -1;
	(void)rmdir(p->path);
}

/* --- both --- */

void park_place_open(struct park_place *p, const struct config *conf, const uint8_t *uuid)
{
	char text[2 * STATIC_UUID_BYTES + 1];

	*p = (struct park_place){.dir = -1};
	for (int i = 0; i < STATIC_UUID_BYTES; i++)
		snprintf(text + 2 * i, 3, "%02x", uuid[i]);
	snprintf(p->path, sizeof(p->path), "%s/shardd-%s", conf->warm_dir, text);
	take_passed(p);
	(void)open_folder(p, false, NULL); /* most often there is none */
}

enum shard_status park_place_use(struct park_place *p, enum park_mode mode, struct err *e)
{
	p->mode = mode;
	if (mode == PARK_SYSTEMD) {
		remove_folder(p);
		return SHARD_OK;
	}
	sweep_store(p, NULL, NULL);
	return open_folder(p, true, e);
}

void park_place_empty(struct park_place *p)
{
	sweep_store(p, NULL, NULL);
	remove_folder(p);
}

void park_place_close(struct park_place *p)
{
	for (uint32_t i = 0; i < p->found_nr; i++)
		close(p->found[i].fd);
	free(p->found);
	if (p->dir >= 0)
		close(p->dir);
	*p = (struct park_place){.dir = -1};
}

enum shard_status park_place_make(struct park_place *p, const char *name, size_t bytes, enum shm_huge huge, struct shm *m,
				  struct err *e)
{
	CHECK(name_ok(name));
	if (p->mode == PARK_SYSTEMD)
		return store_make(p, name, bytes, huge, m, e);
	return shm_file(m, p->dir, name, bytes, huge, e);
}

enum shard_status park_place_take(struct park_place *p, const char *name, uint64_t bytes, enum shm_huge huge, struct shm *m,
				  struct err *e)
{
	return p->mode == PARK_SYSTEMD ? store_take(p, name, bytes, huge, m, e) : file_take(p, name, bytes, huge, m, e);
}

void park_place_remove(struct park_place *p, const char *name)
{
	if (p->mode == PARK_SYSTEMD)
		store_remove(p, name);
	else
		(void)unlinkat(p->dir, name, 0);
}

void park_place_sweep(struct park_place *p, bool (*keep)(void *arg, const char *name), void *arg)
{
	if (p->mode == PARK_SYSTEMD)
		sweep_store(p, keep, arg);
	else
		sweep_folder(p, keep, arg);
}

uint64_t park_place_free(const struct park_place *p)
{
	struct statfs fs;

	if (p->mode == PARK_SYSTEMD || fstatfs(p->dir, &fs) != 0)
		return UINT64_MAX;
	return (fs.f_blocks == 0) ? UINT64_MAX : (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
}
