/* SPDX-License-Identifier: Apache-2.0 */
/* The state folder. The server opens it at its start and saves a model's view here before any
 * member hears of it. A file is replaced as a whole: it is written beside the old one, synced and
 * renamed, and then the folder is synced. So after a crash it is the old file or the new one. Each
 * file begins with a magic number, its length and a sum, so that damage by a disk or an editor is
 * found and named instead of used. Fails with SHARD_BUSY (the folder is locked), SHARD_PROTOCOL (a
 * file is damaged) or SHARD_SYSTEM (what the file system says, with the path). */
#include "cluster/static.h"

#include "base/check.h"
#include "wire/xxh.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAGIC 0x3154415453524853ull /* "SHRSTAT1" in memory order */
#define PATH_BYTES 512
#define NAME_BYTES 32
#define FILE_FLAGS (O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) /* O_NONBLOCK: a pipe cannot block us. */

struct file_head {
	uint64_t magic, bytes, sum;
};

struct static_dir {
	int fd, lock;
	uint64_t start, member;
	uint8_t uuid[STATIC_UUID_BYTES];
	char path[PATH_BYTES];
};

static enum shard_status sys_error(const struct static_dir *d, const char *name, const char *what,
				   struct err *e)
{
	return err_set(e, SHARD_SYSTEM, "%s/%s: %s: %s", d->path, name, what, strerror(errno));
}

static bool write_all(int fd, const void *bytes, size_t nr)
{
	const char *at = bytes;

	while (nr > 0) {
		ssize_t n = write(fd, at, nr);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		at += n;
		nr -= (size_t)n;
	}
	return true;
}

static bool read_all(int fd, void *bytes, size_t nr)
{
	char *at = bytes;

	while (nr > 0) {
		ssize_t n = read(fd, at, nr);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		nr -= (size_t)n;
	}
	return true;
}

static enum shard_status save(const struct static_dir *d, const char *name, const void *bytes,
			      size_t nr, struct err *e)
{
	struct file_head h = {
		.magic = FILE_MAGIC, .bytes = nr, .sum = xxh_sum(bytes, nr, FILE_MAGIC)};
	char tmp[NAME_BYTES + 4];
	int fd;

	snprintf(tmp, sizeof(tmp), "%s.tmp", name);
	fd = openat(d->fd, tmp, O_WRONLY | O_CREAT | O_TRUNC | FILE_FLAGS, 0600);
	if (fd < 0)
		return sys_error(d, tmp, "cannot be made", e);
	if (!write_all(fd, &h, sizeof(h)) || !write_all(fd, bytes, nr) || fsync(fd) != 0) {
		enum shard_status st = sys_error(d, tmp, "cannot be written", e);

		close(fd);
		unlinkat(d->fd, tmp, 0);
		return st;
	}
	close(fd);
	if (renameat(d->fd, tmp, d->fd, name) != 0)
		return sys_error(d, name, "cannot be replaced", e);
	if (fsync(d->fd) != 0)
		return sys_error(d, ".", "cannot be synced", e);
	return SHARD_OK;
}

static enum shard_status damaged(const struct static_dir *d, const char *name, const char *what,
				 struct err *e)
{
	return err_set(e, SHARD_PROTOCOL,
		       "%s/%s is damaged (%s): restore it from a copy, or move it away if what it "
		       "held is not needed",
		       d->path, name, what);
}

/* Allocates *bytes. SHARD_NOT_FOUND, without a text: there is no such file. */
static enum shard_status load(const struct static_dir *d, const char *name, void **bytes,
			      size_t *nr, struct err *e)
{
	enum shard_status st = SHARD_OK;
	struct file_head h;
	struct stat info;
	void *at = NULL;
	int fd = openat(d->fd, name, O_RDONLY | FILE_FLAGS);

	if (fd < 0)
		return errno == ENOENT ? SHARD_NOT_FOUND
				       : sys_error(d, name, "cannot be opened", e);
	if (fstat(fd, &info) != 0) {
		st = sys_error(d, name, "cannot be read", e);
		goto out;
	}
	if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size < sizeof(h) ||
	    !read_all(fd, &h, sizeof(h))) {
		st = damaged(d, name, "too short", e);
		goto out;
	}
	if (h.magic != FILE_MAGIC) {
		st = damaged(d, name, "its first bytes are not shardd's", e);
		goto out;
	}
	if (h.bytes > STATIC_FILE_MAX || h.bytes != (uint64_t)info.st_size - sizeof(h)) {
		st = damaged(d, name, "its length is wrong", e);
		goto out;
	}
	at = malloc(h.bytes + 1);
	if (!at)
		st = err_set(e, SHARD_SYSTEM, "%s/%s: no memory for %llu bytes", d->path, name,
			     (unsigned long long)h.bytes);
	else if (!read_all(fd, at, h.bytes))
		st = damaged(d, name, "it cannot be read to its end", e);
	else if (xxh_sum(at, h.bytes, FILE_MAGIC) != h.sum)
		st = damaged(d, name, "its sum is wrong", e);
out:
	close(fd);
	if (st != SHARD_OK) {
		free(at);
		return st;
	}
	*bytes = at;
	*nr = h.bytes;
	return SHARD_OK;
}

/* Loads a small file of nr bytes, or of `least` bytes if an older release wrote it. The missing
 * bytes are zeros. */
static enum shard_status load_small(const struct static_dir *d, const char *name, void *to,
				    size_t least, size_t nr, struct err *e)
{
	void *bytes = NULL;
	size_t got = 0;
	enum shard_status st = load(d, name, &bytes, &got, e);

	CHECK(least <= nr);
	if (st != SHARD_OK)
		return st;
	if (got != nr && got != least) {
		st = damaged(d, name, "its length is wrong", e);
	} else {
		memset(to, 0, nr);
		memcpy(to, bytes, got);
	}
	free(bytes);
	return st;
}

static enum shard_status load_exactly(const struct static_dir *d, const char *name, void *to,
				      size_t nr, struct err *e)
{
	return load_small(d, name, to, nr, nr, e);
}

/* Syncs the parent folder, so that the new name survives a crash. Not every file system can sync a
 * folder or lets us open it. The state folder is used all the same. */
static void sync_parent(const char *path)
{
	char parent[PATH_BYTES];
	char *slash;
	int fd;

	snprintf(parent, sizeof(parent), "%s", path);
	slash = strrchr(parent, '/');
	if (slash == NULL)
		strcpy(parent, ".");
	else
		slash[slash == parent] = 0;
	fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	(void)fsync(fd);
	close(fd);
}

static enum shard_status make_dirs(const char *path, struct err *e)
{
	char part[PATH_BYTES];
	size_t n = strlen(path);

	if (n == 0 || n >= sizeof(part))
		return err_set(e, SHARD_BAD_ARG,
			       "state directory \"%.64s\": a path has 1 to %d bytes", path,
			       PATH_BYTES - 1);
	for (size_t i = 1; i <= n; i++) {
		if (path[i] != '/' && path[i] != 0)
			continue;
		memcpy(part, path, i);
		part[i] = 0;
		if (mkdir(part, i == n ? 0700 : 0755) == 0)
			sync_parent(part);
		else if (errno != EEXIST)
			return err_set(e, SHARD_SYSTEM, "state directory %s cannot be made: %s: %s",
				       path, part, strerror(errno));
	}
	return SHARD_OK;
}

static enum shard_status in_use(int lock, const char *path, struct err *e)
{
	char pid[24] = "";
	ssize_t n = pread(lock, pid, sizeof(pid) - 1, 0);

	pid[n > 0 ? strspn(pid, "0123456789") : 0] = 0;
	return err_set(e, SHARD_BUSY,
		       "state directory %s is in use by pid %s: stop that daemon, or give this one "
		       "another folder by [daemon] state",
		       path, pid[0] ? pid : "?");
}

enum shard_status static_in_use(const char *path, struct err *e)
{
	char name[PATH_BYTES + 8];
	enum shard_status st = SHARD_OK;
	int lock;

	snprintf(name, sizeof(name), "%.*s/lock", PATH_BYTES - 1, path);
	lock = open(name, O_RDWR | FILE_FLAGS);
	if (lock < 0)
		return SHARD_OK; /* static_open() says what is wrong. */
	if (flock(lock, LOCK_EX | LOCK_NB) != 0)
		st = in_use(lock, path, e);
	close(lock);
	return st;
}

static enum shard_status take_lock(struct static_dir *d, struct err *e)
{
	char pid[24];
	int n;

	d->lock = openat(d->fd, "lock", O_RDWR | O_CREAT | FILE_FLAGS, 0600);
	if (d->lock < 0)
		return sys_error(d, "lock", "cannot be opened", e);
	if (flock(d->lock, LOCK_EX | LOCK_NB) != 0)
		return in_use(d->lock, d->path, e);
	n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
	if (ftruncate(d->lock, 0) != 0 || pwrite(d->lock, pid, (size_t)n, 0) != n)
		return sys_error(d, "lock", "cannot be written", e);
	return SHARD_OK;
}

static enum shard_status take_uuid(struct static_dir *d, struct err *e)
{
	enum shard_status st = load_exactly(d, "uuid", d->uuid, sizeof(d->uuid), e);

	if (st != SHARD_NOT_FOUND)
		return st;
	if (getrandom(d->uuid, sizeof(d->uuid), 0) != (ssize_t)sizeof(d->uuid))
		return sys_error(d, "uuid", "no random bytes", e);
	d->uuid[6] = (uint8_t)((d->uuid[6] & 0x0f) | 0x40); /* RFC 4122, version 4 */
	d->uuid[8] = (uint8_t)((d->uuid[8] & 0x3f) | 0x80);
	return save(d, "uuid", d->uuid, sizeof(d->uuid), e);
}

/* The file has this name because every start used to be an incarnation. */
static enum shard_status take_start(struct static_dir *d, struct err *e)
{
	enum shard_status st = load_exactly(d, "incarnation", &d->start, sizeof(d->start), e);

	if (st != SHARD_OK && st != SHARD_NOT_FOUND)
		return st;
	d->start++;
	return SHARD_OK;
}

static enum shard_status take_member(struct static_dir *d, struct err *e)
{
	enum shard_status st = load_exactly(d, "member", &d->member, sizeof(d->member), e);

	return st == SHARD_NOT_FOUND ? SHARD_OK : st;
}

enum shard_status static_open(struct static_dir **out, const char *path, struct err *e)
{
	enum shard_status st = make_dirs(path, e);
	struct static_dir *d;

	if (st != SHARD_OK)
		return st;
	d = calloc(1, sizeof(*d));
	if (!d)
		return err_set(e, SHARD_SYSTEM, "no memory for the state directory");
	d->lock = -1;
	snprintf(d->path, sizeof(d->path), "%s", path);
	d->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (d->fd < 0) {
		st = err_set(e, SHARD_SYSTEM, "state directory %s cannot be opened: %s", path,
			     strerror(errno));
		goto err_dir;
	}
	if ((st = take_lock(d, e)) != SHARD_OK || (st = take_uuid(d, e)) != SHARD_OK ||
	    (st = take_start(d, e)) != SHARD_OK || (st = take_member(d, e)) != SHARD_OK)
		goto err_dir;
	*out = d;
	return SHARD_OK;
err_dir:
	static_close(&d);
	return st;
}

/* The number is on disk before anybody hears of it, because a term that is used twice would undo
 * what it protects. A start that is refused earlier does not count, so that it is refused for the
 * same reason again. */
enum shard_status static_count(struct static_dir *d, struct err *e)
{
	return save(d, "incarnation", &d->start, sizeof(d->start), e);
}

enum shard_status static_count_more(const struct static_dir *d, uint64_t number, struct err *e)
{
	CHECK(number > d->start);
	return save(d, "incarnation", &number, sizeof(number), e);
}

void static_close(struct static_dir **dp)
{
	struct static_dir *d = *dp;

	*dp = NULL;
	if (!d)
		return;
	if (d->lock >= 0)
		/* Closing releases the lock. The file stays, because removing it would race with
		 * the next owner. */
		close(d->lock);
	if (d->fd >= 0)
		close(d->fd);
	free(d);
}

const uint8_t *static_uuid(const struct static_dir *d)
{
	return d->uuid;
}

bool static_twin(const struct static_dir *d, const char *path)
{
	struct static_dir other = {.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
				   .lock = -1};
	struct stat here, there;
	bool twin;

	if (other.fd < 0)
		return false;
	twin = fstat(d->fd, &here) == 0 && fstat(other.fd, &there) == 0 &&
	       (here.st_dev != there.st_dev || here.st_ino != there.st_ino) &&
	       load_exactly(&other, "uuid", other.uuid, sizeof(other.uuid), NULL) == SHARD_OK &&
	       memcmp(d->uuid, other.uuid, sizeof(d->uuid)) == 0;
	close(other.fd);
	return twin;
}

uint64_t static_start(const struct static_dir *d)
{
	return d->start;
}

uint64_t static_member(const struct static_dir *d)
{
	return d->member;
}

enum shard_status static_set_member(struct static_dir *d, uint64_t incarnation, struct err *e)
{
	enum shard_status st = incarnation == d->member
				       ? SHARD_OK
				       : save(d, "member", &incarnation, sizeof(incarnation), e);

	if (st == SHARD_OK)
		d->member = incarnation;
	return st;
}

bool static_drained(const struct static_dir *d)
{
	return faccessat(d->fd, "drained", F_OK, 0) == 0;
}

enum shard_status static_set_drained(struct static_dir *d, bool drained, struct err *e)
{
	uint8_t one = 1;

	if (drained)
		return save(d, "drained", &one, sizeof(one), e);
	if (unlinkat(d->fd, "drained", 0) != 0 && errno != ENOENT)
		return sys_error(d, "drained", "cannot be removed", e);
	return fsync(d->fd) == 0 ? SHARD_OK : sys_error(d, "drained", "cannot be synced", e);
}

enum shard_status static_gone(struct static_dir *d, uint32_t gone[STATIC_GONE_NR], struct err *e)
{
	enum shard_status st;

	memset(gone, 0, STATIC_GONE_NR * sizeof(*gone));
	st = load_exactly(d, "gone", gone, STATIC_GONE_NR * sizeof(*gone), e);
	return st == SHARD_NOT_FOUND ? SHARD_OK : st;
}

enum shard_status static_set_gone(struct static_dir *d, const uint32_t gone[STATIC_GONE_NR],
				  struct err *e)
{
	return save(d, "gone", gone, STATIC_GONE_NR * sizeof(*gone), e);
}

enum shard_status static_source(struct static_dir *d, char name[STATIC_SOURCE_BYTES], struct err *e)
{
	enum shard_status st = load_exactly(d, "membership", name, STATIC_SOURCE_BYTES, e);

	if (st == SHARD_NOT_FOUND)
		memset(name, 0, STATIC_SOURCE_BYTES);
	name[STATIC_SOURCE_BYTES - 1] = 0;
	return st == SHARD_NOT_FOUND ? SHARD_OK : st;
}

enum shard_status static_set_source(struct static_dir *d, const char *name, struct err *e)
{
	char bytes[STATIC_SOURCE_BYTES] = "";

	CHECK(strlen(name) < sizeof(bytes));
	memcpy(bytes, name, strlen(name));
	return save(d, "membership", bytes, sizeof(bytes), e);
}

enum shard_status static_cluster(const char *path, char **text, struct err *e)
{
	struct static_dir d = {.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), .lock = -1};
	void *bytes = NULL;
	enum shard_status st;
	size_t nr;

	*text = NULL;
	if (d.fd < 0)
		return SHARD_OK;
	snprintf(d.path, sizeof(d.path), "%s", path);
	st = load(&d, "cluster", &bytes, &nr, e);
	if (st == SHARD_OK) {
		*text = bytes; /* It has room for one byte more. */
		(*text)[nr] = 0;
	}
	close(d.fd);
	return st == SHARD_NOT_FOUND ? SHARD_OK : st;
}

enum shard_status static_set_cluster(struct static_dir *d, const char *text, struct err *e)
{
	return save(d, "cluster", text, strlen(text), e);
}

enum shard_status static_warm(struct static_dir *d, struct static_warm *w, struct err *e)
{
	return load_small(d, "warm", w, offsetof(struct static_warm, root), sizeof(*w), e);
}

enum shard_status static_set_warm(struct static_dir *d, const struct static_warm *w, struct err *e)
{
	return save(d, "warm", w, sizeof(*w), e);
}

enum shard_status static_keeps(const char *path, const uint8_t uuid[], const uint8_t name[],
			       struct err *e)
{
	struct static_dir d = {.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), .lock = -1};
	struct static_warm w = {.name = {0}};
	enum shard_status st;

	if (d.fd < 0 && (errno == ENOENT || errno == ENOTDIR))
		return err_set(e, SHARD_NOT_FOUND,
			       "the state folder %.300s is not there: unless it was moved, nobody "
			       "asks for this memory again",
			       path);
	if (d.fd < 0)
		return err_set(e, SHARD_SYSTEM, "the state folder %.300s: %s", path,
			       strerror(errno));
	snprintf(d.path, sizeof(d.path), "%s", path);
	st = load_exactly(&d, "uuid", d.uuid, sizeof(d.uuid), e);
	if (st == SHARD_OK && memcmp(d.uuid, uuid, sizeof(d.uuid)) != 0)
		st = err_set(e, SHARD_MISMATCH, "the state folder %.300s is of another node now",
			     path);
	if (st == SHARD_OK)
		st = static_warm(&d, &w, e);
	if (st == SHARD_NOT_FOUND || (st == SHARD_OK && memcmp(w.name, name, sizeof(w.name)) != 0))
		st = err_set(e, SHARD_MISMATCH, "the state folder %.300s does not know of it",
			     path);
	close(d.fd);
	return st;
}

static const char model_kind[] = "model", definition_kind[] = "definition";

static void file_name(char name[NAME_BYTES], const char *kind, uint32_t model)
{
	snprintf(name, NAME_BYTES, "%s-%08x", kind, model);
}

static enum shard_status save_kind(const struct static_dir *d, const char *kind, uint32_t model,
				   const void *bytes, size_t bytes_nr, struct err *e)
{
	char name[NAME_BYTES];

	CHECK(bytes || bytes_nr == 0);
	file_name(name, kind, model);
	if (bytes_nr > STATIC_FILE_MAX)
		return err_set(e, SHARD_RANGE, "%s/%s: %zu bytes, at most %u are kept", d->path,
			       name, bytes_nr, STATIC_FILE_MAX);
	return save(d, name, bytes, bytes_nr, e);
}

static enum shard_status drop_kind(const struct static_dir *d, const char *kind, uint32_t model,
				   struct err *e)
{
	char name[NAME_BYTES];

	file_name(name, kind, model);
	/* It may be absent after an earlier call whose sync failed. */
	if (unlinkat(d->fd, name, 0) != 0 && errno != ENOENT)
		return sys_error(d, name, "cannot be removed", e);
	if (fsync(d->fd) != 0)
		return sys_error(d, ".", "cannot be synced", e);
	return SHARD_OK;
}

enum shard_status static_save(struct static_dir *d, uint32_t model, const void *bytes,
			      size_t bytes_nr, struct err *e)
{
	return save_kind(d, model_kind, model, bytes, bytes_nr, e);
}

enum shard_status static_drop(struct static_dir *d, uint32_t model, struct err *e)
{
	return drop_kind(d, model_kind, model, e);
}

enum shard_status static_define(struct static_dir *d, uint32_t model, const void *bytes,
				size_t bytes_nr, struct err *e)
{
	return save_kind(d, definition_kind, model, bytes, bytes_nr, e);
}

enum shard_status static_undefine(struct static_dir *d, uint32_t model, struct err *e)
{
	return drop_kind(d, definition_kind, model, e);
}

static void left_name(char *name, size_t bytes, uint32_t model)
{
	char from[NAME_BYTES];

	file_name(from, model_kind, model);
	snprintf(name, bytes, "left-%s", from);
}

bool static_left(const struct static_dir *d, uint32_t model)
{
	char name[2 * NAME_BYTES];
	struct stat s;

	left_name(name, sizeof(name), model);
	return fstatat(d->fd, name, &s, AT_SYMLINK_NOFOLLOW) == 0;
}

enum shard_status static_leave(struct static_dir *d, uint32_t model, char *name, size_t name_bytes,
			       struct err *e)
{
	char from[NAME_BYTES];

	file_name(from, model_kind, model);
	left_name(name, name_bytes, model);
	if (renameat(d->fd, from, d->fd, name) != 0)
		return sys_error(d, from, "cannot be renamed", e);
	if (fsync(d->fd) != 0)
		return sys_error(d, ".", "cannot be synced", e);
	return SHARD_OK;
}

static bool is_name(const char *name, const char *kind, uint32_t *model)
{
	size_t n = strlen(kind);
	char again[NAME_BYTES];

	if (strncmp(name, kind, n) != 0 || name[n] != '-')
		return false;
	*model = (uint32_t)strtoul(name + n + 1, NULL, 16);
	file_name(again, kind, *model);
	return strcmp(name, again) == 0;
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* Anything but a regular file is not ours. A folder that somebody made here must not keep a daemon
 * from starting. */
static bool is_file(const struct static_dir *d, const char *name)
{
	struct stat s;

	return fstatat(d->fd, name, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode);
}

/* Lists the numbers of the models with such a file in ascending order. Allocates *out. */
static enum shard_status list_models(const struct static_dir *d, const char *kind, uint32_t **out,
				     size_t *nr, struct err *e)
{
	int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	size_t room = 0;

	*out = NULL;
	*nr = 0;
	if (!dir) {
		enum shard_status st = sys_error(d, ".", "cannot be listed", e);

		if (fd >= 0)
			close(fd);
		return st;
	}
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
		uint32_t model;

		if (!is_name(entry->d_name, kind, &model) || !is_file(d, entry->d_name))
			continue;
		if (*nr == room) {
			uint32_t *more =
				realloc(*out, (room = room ? 2 * room : 16) * sizeof(**out));

			if (!more) {
				closedir(dir);
				return err_set(e, SHARD_SYSTEM,
					       "no memory for the list of models in %s", d->path);
			}
			*out = more;
		}
		(*out)[(*nr)++] = model;
	}
	closedir(dir);
	if (*nr > 1)
		qsort(*out, *nr, sizeof(**out), by_number);
	return SHARD_OK;
}

enum shard_status static_load(struct static_dir *d, static_load_fn *fn, void *arg, struct err *e)
{
	uint32_t *models;
	size_t nr;
	enum shard_status st = list_models(d, model_kind, &models, &nr, e);

	for (size_t i = 0; i < nr && st == SHARD_OK; i++) {
		char name[NAME_BYTES];
		void *bytes = NULL;
		size_t bytes_nr = 0;

		file_name(name, model_kind, models[i]);
		st = load(d, name, &bytes, &bytes_nr, e);
		if (st != SHARD_OK)
			break;
		st = fn(arg, models[i], bytes, bytes_nr, e);
		free(bytes);
	}
	free(models);
	return st;
}

enum shard_status static_load_definitions(struct static_dir *d, static_load_fn *fn, void *arg,
					  struct err *e)
{
	uint32_t *models;
	size_t nr;
	enum shard_status st = list_models(d, definition_kind, &models, &nr, e);

	for (size_t i = 0; i < nr && st == SHARD_OK; i++) {
		char name[NAME_BYTES];
		void *bytes = NULL;
		size_t bytes_nr = 0;
		struct err why;

		file_name(name, definition_kind, models[i]);
		if (load(d, name, &bytes, &bytes_nr, &why) == SHARD_OK)
			st = fn(arg, models[i], bytes, bytes_nr, e);
		else
			st = fn(arg, models[i], NULL, 0, &why);
		free(bytes);
	}
	free(models);
	return st;
}
