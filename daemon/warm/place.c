/* SPDX-License-Identifier: Apache-2.0 */
/* The two places where memory outlives a process. warm.c decides what is in them. In systemd's
 * place, a sealed memfd goes to the descriptor store by FDSTORE=1 under a name and comes back by
 * LISTEN_FDS at the next start; FDSTOREREMOVE=1 gives it back. On a tmpfs, memory is a file of mode
 * 0600 in the folder <warm_dir>/shardd-<random> of mode 0700. The state folder keeps the random
 * name, and warm_dir as it was then, so that a new warm_dir does not hide what is there. Another
 * user who has seen the name can make such a folder while there is none. Then a new name is drawn,
 * so that the node still gets memory that outlives it. Fails for lack of room, for a folder that is
 * not on a tmpfs, belongs to another user or is open to others, for a folder that a running daemon
 * has locked because the state folder is a copy of its own, and for a name that is there twice. The
 * store does not say when it refuses a descriptor (FileDescriptorStoreMax): the next start finds
 * the memory missing. */
#include "warm/place.h"

#include "base/check.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define STORE_PREFIX   "shardd-" /* Prefix of names in systemd's store. */
#define TMPFS_TYPE     0x01021994
#define HUGETLBFS_TYPE 0x958458f6

static bool name_ok(const char *name) /* A name that this or another release may have given. */
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");

	return n > 0 && n < WARM_NAME_BYTES && name[n] == 0;
}

/* --- systemd --- */

bool warm_parked(void)
{
	static const char page[] = STORE_PREFIX WARM_PAGE_NAME;
	const char *nr = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID"),
		   *at = getenv("LISTEN_FDNAMES");
	size_t n;

	if (nr == NULL || atoi(nr) <= 0 || pid == NULL || atol(pid) != (long)getpid())
		return false;
	if (at == NULL)
		return true;
	for (; *at != 0; at += n + (at[n] == ':')) {
		n = strcspn(at, ":");
		if (n != sizeof(page) - 1 || memcmp(at, page, n) != 0)
			return true;
	}
	return false;
}

#ifdef SHARD_SYSTEMD
#include <systemd/sd-daemon.h>

static bool add_found(struct warm_place *p, const char *name, int fd)
{
	struct warm_found *more = realloc(p->found, (p->found_nr + 1) * sizeof(*more));

	if (more == NULL)
		return false;
	p->found = more;
	more[p->found_nr].fd = fd;
	snprintf(more[p->found_nr++].name, WARM_NAME_BYTES, "%s", name);
	return true;
}

static void take_passed(struct warm_place *p)
{
	size_t prefix = strlen(STORE_PREFIX);
	char **names = NULL;
	int nr = sd_listen_fds_with_names(1, &names);

	for (int i = 0; i < nr; i++) {
		int fd = SD_LISTEN_FDS_START + i;

		if (names != NULL && strncmp(names[i], STORE_PREFIX, prefix) == 0 &&
		    name_ok(names[i] + prefix) && !add_found(p, names[i] + prefix, fd))
			close(fd);
	}
	for (int i = 0; names != NULL && i < nr; i++)
		free(names[i]);
	free(names);
}

static int store(const char *name, int fd)
{
	char text[WARM_NAME_BYTES + 64];

	/* Of a device's memory it would otherwise be asked whether that has an event, and some
	 * say so. */
	snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=" STORE_PREFIX "%s", name);
	return sd_pid_notify_with_fds(0, 0, text, &fd, 1);
}

static void unstore(const char *name)
{
	char text[WARM_NAME_BYTES + 64];

	snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=" STORE_PREFIX "%s", name);
	(void)sd_notify(0, text);
}

/* systemd before version 254 does not say whether the unit has a store. Then it is assumed to have
 * one. */
bool warm_place_systemd(const struct config *conf)
{
	const char *max = getenv("FDSTORE");

	(void)conf;
	return getenv("NOTIFY_SOCKET") != NULL && (max == NULL || strcmp(max, "0") != 0);
}
#else
static void take_passed(struct warm_place *p)
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

bool warm_place_systemd(const struct config *conf)
{
	(void)conf;
	return false;
}
#endif

static enum shard_status store_make(struct warm_place *p, const char *name, size_t bytes,
				    size_t room, enum shm_huge huge, struct shm *m, struct err *e)
{
	char full[WARM_NAME_BYTES + 16];
	enum shard_status st;
	int rc;

	(void)p;
	snprintf(full, sizeof(full), STORE_PREFIX "%s", name);
	if ((st = shm_keep(m, full, bytes, room, huge, e)) != SHARD_OK)
		return st;
	if ((rc = store(name, m->fd)) > 0)
		return SHARD_OK;
	shm_unmap(m);
	return err_set(e, SHARD_SYSTEM, "systemd does not take %s: %s", full,
		       rc < 0 ? strerror(-rc) : "there is no NOTIFY_SOCKET");
}

static enum shard_status store_take(struct warm_place *p, const char *name, uint64_t bytes,
				    uint64_t room, enum shm_huge huge, struct shm *m, struct err *e)
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
	return shm_again(m, mine, 1, bytes || room ? bytes : (uint64_t)info.st_size, room, huge, e);
}

enum shard_status warm_place_keep_fd(struct warm_place *p, const char *name, int fd, struct err *e)
{
	int rc;

	CHECK(name_ok(name) && p->mode == WARM_SYSTEMD);
	if ((rc = store(name, fd)) > 0)
		return SHARD_OK;
	return err_set(e, SHARD_SYSTEM, "systemd does not take %s: %s", name,
		       rc < 0 ? strerror(-rc) : "there is no NOTIFY_SOCKET");
}

uint32_t warm_place_fds(const struct warm_place *p, const char *name, int *fd, uint32_t max)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < p->found_nr && nr < max; i++)
		if (strcmp(p->found[i].name, name) == 0 &&
		    (fd[nr] = fcntl(p->found[i].fd, F_DUPFD_CLOEXEC, 3)) >= 0)
			nr++;
	return nr;
}

static void store_remove(struct warm_place *p, const char *name)
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
		return err_set(
			e, SHARD_BAD_ARG,
			"%s is not on a tmpfs or hugetlbfs: choose a warm_dir that is, as /dev/shm",
			path);
	if (not_allowed != 0 && (st.st_uid != geteuid() || (st.st_mode & not_allowed) != 0))
		return err_set(e, SHARD_DENIED,
			       "%s belongs to uid %u and has mode %04o: it must be this daemon's "
			       "alone: remove it",
			       path, (unsigned)st.st_uid, (unsigned)st.st_mode & 07777);
	return SHARD_OK;
}

static void name_folder(struct warm_place *p, const uint8_t name[STATIC_UUID_BYTES])
{
	char text[2 * STATIC_UUID_BYTES + 1];

	for (int i = 0; i < STATIC_UUID_BYTES; i++)
		snprintf(text + 2 * i, 3, "%02x", name[i]);
	snprintf(p->path, sizeof(p->path), "%s/shardd-%s", p->root, text);
}

/* Opens the folder that the state folder knows. */
static enum shard_status open_folder(struct warm_place *p, struct err *e)
{
	enum shard_status st;

	if (p->dir >= 0)
		return SHARD_OK;
	p->dir = open(p->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (p->dir < 0)
		return err_set(e, SHARD_SYSTEM, "%s: cannot be opened: %s", p->path,
			       strerror(errno));
	if ((st = check_folder(p->dir, p->path, 077, e)) != SHARD_OK) {
		close(p->dir);
		p->dir = -1;
		return st;
	}
	/* The lock ends with the process, however that ends. A copy of the state folder names the
	 * same folder here, although each copy has its own lock on itself. */
	p->busy = flock(p->dir, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
	return p->busy ? err_set(e, SHARD_BUSY, "%s belongs to a daemon that runs now", p->path)
		       : SHARD_OK;
}

static_assert(STATIC_ROOT_BYTES == CONFIG_PATH_BYTES, "warm_dir fits the state folder's note");

/* The state folder gets the name only when everything else is right, so that a wrong warm_dir
 * changes nothing there. */
static enum shard_status make_folder(struct warm_place *p, bool anew, struct err *e)
{
	struct static_warm w = p->warm;
	enum shard_status st;

	memcpy(w.boot, p->boot, sizeof(w.boot));
	memcpy(w.root, p->root, sizeof(w.root));
	if (anew && getrandom(w.name, sizeof(w.name), 0) != (ssize_t)sizeof(w.name))
		return err_set(e, SHARD_SYSTEM, "no random bytes: %s", strerror(errno));
	name_folder(p, w.name);
	if (mkdir(p->path, 0700) != 0)
		return err_set(e, SHARD_SYSTEM,
			       "%s: cannot be made: %s: set warm_dir to a tmpfs that this daemon "
			       "may write, or "
			       "warm_restart = off",
			       p->path, strerror(errno));
	if ((st = open_folder(p, e)) == SHARD_OK &&
	    (st = static_set_warm(p->state, &w, e)) == SHARD_OK) {
		p->warm = w;
		return SHARD_OK;
	}
	if (p->dir >= 0)
		close(p->dir);
	p->dir = -1;
	(void)rmdir(p->path);
	return st;
}

/* Writes down the folder's root. It differs if an older release made the folder without keeping
 * warm_dir, or if the folder was moved with its tmpfs. */
static enum shard_status note_root(struct warm_place *p, struct err *e)
{
	if (strcmp(p->warm.root, p->root) == 0)
		return SHARD_OK;
	memcpy(p->warm.root, p->root, sizeof(p->warm.root));
	return static_set_warm(p->state, &p->warm, e);
}

/* A folder that another user made while this daemon has none is left alone, and another name is
 * drawn. If this daemon has a folder, what is wrong with it is an error. */
static enum shard_status use_folder(struct warm_place *p, struct err *e)
{
	bool mine = p->boot[0] != 0 && memcmp(p->warm.boot, p->boot, sizeof(p->boot)) == 0;
	struct stat st;

	if (p->unknown.status != SHARD_OK) {
		*e = p->unknown;
		return e->status;
	}
	if (p->dir >= 0)
		return note_root(p, e);
	if (p->path[0] == 0)
		return make_folder(p, true, e);
	if (lstat(p->path, &st) != 0)
		return errno == ENOENT ? make_folder(p, false, e) : open_folder(p, e);
	return !mine && st.st_uid != geteuid() ? make_folder(p, true, e) : open_folder(p, e);
}

static enum shard_status file_take(struct warm_place *p, const char *name, uint64_t bytes,
				   uint64_t room, enum shm_huge huge, struct shm *m, struct err *e)
{
	int fd = openat(p->dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat info;

	if (fd < 0)
		return err_set(e, errno == ENOENT ? SHARD_NOT_FOUND : SHARD_MISMATCH, "%s",
			       errno == ENOENT ? "it is not there" : strerror(errno));
	if (fstat(fd, &info) != 0 || info.st_size < 0)
		info.st_size = 0;
	return shm_again(m, fd, 0, bytes || room ? bytes : (uint64_t)info.st_size, room, huge, e);
}

static void sweep_folder(struct warm_place *p, bool (*keep)(void *arg, const char *name), void *arg)
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

static void sweep_store(struct warm_place *p, bool (*keep)(void *arg, const char *name), void *arg)
{
	for (uint32_t i = 0; i < p->found_nr;) {
		char name[WARM_NAME_BYTES];

		memcpy(name, p->found[i].name, sizeof(name));
		if (keep != NULL && keep(arg, name))
			i++;
		else
			store_remove(p, name);
	}
}

static void remove_folder(struct warm_place *p)
{
	if (p->dir < 0)
		return;
	sweep_folder(p, NULL, NULL);
	close(p->dir);
	p->dir = -1;
	(void)rmdir(p->path);
	memset(p->warm.boot, 0, sizeof(p->warm.boot));
	/* Another user may take that name from now on. */
	(void)static_set_warm(p->state, &p->warm, NULL);
}

/* Looks for the folder below an earlier warm_dir. */
static void look_before(struct warm_place *p, const char *warm_dir)
{
	struct stat s;

	if (p->warm.root[0] == 0 || memcmp(p->warm.boot, p->boot, sizeof(p->boot)) != 0 ||
	    lstat(p->path, &s) == 0)
		return;
	snprintf(p->root, sizeof(p->root), "%s", p->warm.root);
	name_folder(p, p->warm.name);
	p->moved = strcmp(p->root, warm_dir) != 0 && lstat(p->path, &s) == 0;
	if (p->moved) {
		(void)open_folder(p, NULL);
		return;
	}
	snprintf(p->root, sizeof(p->root), "%s", warm_dir);
	name_folder(p, p->warm.name);
}

/* --- both --- */

void warm_place_open(struct warm_place *p, const struct config *conf, struct static_dir *state,
		     const char *boot)
{
	enum shard_status st;

	*p = (struct warm_place){.dir = -1, .state = state};
	snprintf(p->root, sizeof(p->root), "%s", conf->warm_dir);
	memcpy(p->boot, boot, sizeof(p->boot));
	take_passed(p);
	st = static_warm(state, &p->warm, &p->unknown);
	if (st == SHARD_NOT_FOUND)
		p->unknown.status = SHARD_OK;
	if (st != SHARD_OK)
		return;
	p->warm.root[STATIC_ROOT_BYTES - 1] = 0;
	name_folder(p, p->warm.name);
	(void)open_folder(p, NULL); /* Whoever uses it says what is wrong. */
	if (p->dir < 0)
		look_before(p, conf->warm_dir);
}

void warm_place_follow(struct warm_place *p, const char *root)
{
	CHECK(p->moved);
	p->moved = false;
	remove_folder(p);
	snprintf(p->root, sizeof(p->root), "%s", root);
	name_folder(p, p->warm.name);
}

enum shard_status warm_place_use(struct warm_place *p, enum warm_mode mode, struct err *e)
{
	p->mode = mode;
	if (mode == WARM_SYSTEMD) {
		remove_folder(p);
		return SHARD_OK;
	}
	sweep_store(p, NULL, NULL);
	return use_folder(p, e);
}

void warm_place_empty(struct warm_place *p)
{
	sweep_store(p, NULL, NULL);
	remove_folder(p);
}

void warm_place_close(struct warm_place *p)
{
	for (uint32_t i = 0; i < p->found_nr; i++)
		close(p->found[i].fd);
	free(p->found);
	if (p->dir >= 0)
		close(p->dir);
	*p = (struct warm_place){.dir = -1};
}

enum shard_status warm_place_make(struct warm_place *p, const char *name, size_t bytes, size_t room,
				  enum shm_huge huge, struct shm *m, struct err *e)
{
	CHECK(name_ok(name));
	if (p->mode == WARM_SYSTEMD)
		return store_make(p, name, bytes, room, huge, m, e);
	return shm_file(m, p->dir, name, bytes, room, huge, e);
}

enum shard_status warm_place_take(struct warm_place *p, const char *name, uint64_t bytes,
				  uint64_t room, enum shm_huge huge, struct shm *m, struct err *e)
{
	return p->mode == WARM_SYSTEMD ? store_take(p, name, bytes, room, huge, m, e)
				       : file_take(p, name, bytes, room, huge, m, e);
}

void warm_place_remove(struct warm_place *p, const char *name)
{
	if (p->mode == WARM_SYSTEMD)
		store_remove(p, name);
	else
		(void)unlinkat(p->dir, name, 0);
}

void warm_place_sweep(struct warm_place *p, bool (*keep)(void *arg, const char *name), void *arg)
{
	if (p->mode == WARM_SYSTEMD)
		sweep_store(p, keep, arg);
	else
		sweep_folder(p, keep, arg);
}

uint64_t warm_place_taken(const struct warm_place *p, const char *name)
{
	struct stat st;

	CHECK(name_ok(name));
	if (p->mode == WARM_SYSTEMD || fstatat(p->dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
		return 0;
	return (uint64_t)st.st_blocks * 512;
}

uint64_t warm_place_free(const struct warm_place *p)
{
	struct statfs fs;

	if (p->mode == WARM_SYSTEMD || fstatfs(p->dir, &fs) != 0)
		return UINT64_MAX;
	return (fs.f_blocks == 0) ? UINT64_MAX : (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
}
