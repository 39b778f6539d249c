/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a model's history. obs/history.c calls from the thread of its job. Happy path: the
 * first append opens the last file and walks over its entries, which gives the number of the next
 * one. Each append writes behind the last whole entry and syncs. A file that has its share of the
 * limit is closed and the next one begun. What was half written when a process or a machine died
 * is at the end of the last file, with no whole entry behind it: it is cut off. Damage with whole
 * entries behind it is another matter: that file stays as it is, a new one is begun, and both are
 * said. Fails with SHARD_SYSTEM and the path. A full disk also fails before the last byte is taken,
 * because a node needs it for its views. */
#include "cluster/history_file.h"

#include "base/check.h"
#include "wire/history.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define NAME_BYTES    24
#define FILE_MAX      (16ull << 20) /* Of one file. */
#define FILE_READ_MAX (4 * FILE_MAX)
#define FILE_FLAGS    (O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)

static uint64_t share(const struct history_file *f)
{
	return f->limit / HISTORY_FILES < FILE_MAX ? f->limit / HISTORY_FILES : FILE_MAX;
}

static void name_of(char name[NAME_BYTES], uint32_t model, uint32_t file)
{
	snprintf(name, NAME_BYTES, "%08x.%08x", model, file);
}

static bool is_name(const char *name, uint32_t model, uint32_t *file)
{
	char again[NAME_BYTES];

	if (strlen(name) != 17 || name[8] != '.')
		return false;
	*file = (uint32_t)strtoul(name + 9, NULL, 16);
	name_of(again, model, *file);
	return *file > 0 && strcmp(again, name) == 0;
}

static enum shard_status sys_error(const struct history_file *f, const char *name, const char *what,
				   struct err *e)
{
	enum shard_status st =
		err_set(e, SHARD_SYSTEM, "%s/%s: %s: %s", f->dir, name, what, strerror(errno));

	if (e != NULL)
		e->sys = errno;
	return st;
}

void history_file_init(struct history_file *f, const char *state, uint32_t model, uint64_t limit)
{
	CHECK(limit >= HISTORY_LIMIT_MIN);
	*f = (struct history_file){.model = model, .limit = limit, .fd = -1, .number = 1};
	snprintf(f->dir, sizeof(f->dir), "%s/history", state);
}

void history_file_close(struct history_file *f)
{
	if (f->fd >= 0)
		close(f->fd);
	f->fd = -1;
}

/* --- the folder --- */

typedef void each_fn(struct history_file *f, int dir, const char *name, uint32_t file, void *arg);

/* Calls fn for each file of the model. A folder that is not there has none. */
static enum shard_status each(struct history_file *f, each_fn *fn, void *arg, struct err *e)
{
	int fd = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	uint32_t file;

	if (dir == NULL && errno == ENOENT)
		return SHARD_OK;
	if (dir == NULL) {
		enum shard_status st = sys_error(f, ".", "cannot be listed", e);

		if (fd >= 0)
			close(fd);
		return st;
	}
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
		if (is_name(entry->d_name, f->model, &file))
			fn(f, dirfd(dir), entry->d_name, file, arg);
	closedir(dir);
	return SHARD_OK;
}

struct listed {
	uint32_t oldest, newest, from, least; /* 0: none. least: the first one at or after from. */
	uint64_t bytes;                       /* Of all but the newest. */
	uint64_t newest_bytes;
};

static void list_one(struct history_file *f, int dir, const char *name, uint32_t file, void *arg)
{
	struct listed *l = arg;
	struct stat s;

	(void)f;
	if (fstatat(dir, name, &s, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(s.st_mode))
		return;
	if (l->oldest == 0 || file < l->oldest)
		l->oldest = file;
	if (file >= l->from && (l->least == 0 || file < l->least))
		l->least = file;
	if (file < l->newest) {
		l->bytes += (uint64_t)s.st_size;
		return;
	}
	l->bytes += l->newest_bytes;
	l->newest = file;
	l->newest_bytes = (uint64_t)s.st_size;
}

static void remove_one(struct history_file *f, int dir, const char *name, uint32_t file, void *arg)
{
	int *wrong = arg;

	(void)f, (void)file;
	if (unlinkat(dir, name, 0) != 0 && errno != ENOENT)
		*wrong = errno;
}

enum shard_status history_file_remove(struct history_file *f, struct err *e)
{
	int wrong = 0;
	enum shard_status st = each(f, remove_one, &wrong, e);

	history_file_close(f);
	if (st == SHARD_OK && wrong != 0) {
		errno = wrong;
		return sys_error(f, ".", "a file of a dropped model cannot be removed", e);
	}
	return st;
}

/* --- bytes --- */

static bool write_all(int fd, const void *bytes, size_t nr, uint64_t at)
{
	const char *from = bytes;

	while (nr > 0) {
		ssize_t n = pwrite(fd, from, nr, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		from += n;
		at += (uint64_t)n;
		nr -= (size_t)n;
	}
	return true;
}

/* Returns how many bytes there were, or -1. */
static ssize_t read_all(int fd, void *to, size_t nr, uint64_t at)
{
	size_t got = 0;

	while (got < nr) {
		ssize_t n = pread(fd, (char *)to + got, nr - got, (off_t)(at + got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		if (n == 0)
			break;
		got += (size_t)n;
	}
	return (ssize_t)got;
}

/* Walks over the entries of a file in memory. Returns where the whole ones end. *more: there is a
 * whole one behind the damage. */
static uint64_t walk(const unsigned char *bytes, size_t nr, uint64_t *number, bool *more)
{
	struct history_entry e;
	size_t at = 0, skip;

	*more = false;
	while (history_next(bytes + at, nr - at, &e) == HISTORY_WHOLE) {
		*number = e.number + 1;
		at += e.bytes;
	}
	for (size_t from = at; from < nr; from += skip) {
		skip = history_resync(bytes + from, nr - from);
		if (history_next(bytes + from + skip, nr - from - skip, &e) != HISTORY_WHOLE)
			break;
		*more = true;
		*number = e.number + 1;
		skip += e.bytes;
	}
	return at;
}

static int open_file(const struct history_file *f, uint32_t file, int flags)
{
	char path[HISTORY_PATH_BYTES + NAME_BYTES + 1], name[NAME_BYTES];

	name_of(name, f->model, file);
	snprintf(path, sizeof(path), "%s/%s", f->dir, name);
	return open(path, flags | FILE_FLAGS, 0600);
}

/* Reads a file that is not larger than ours are. *bytes is from malloc(). */
static enum shard_status read_file(const struct history_file *f, int fd, const char *name,
				   uint64_t size, unsigned char **bytes, size_t *nr, struct err *e)
{
	ssize_t got;

	CHECK(size <= FILE_READ_MAX);
	if ((*bytes = malloc(size + 1)) == NULL)
		return err_set(e, SHARD_SYSTEM, "%s/%s: no memory to read it", f->dir, name);
	if ((got = read_all(fd, *bytes, size, 0)) < 0) {
		free(*bytes);
		return sys_error(f, name, "cannot be read", e);
	}
	*nr = (size_t)got;
	return SHARD_OK;
}

/* Looks at the last file. *fresh: it is not written on. */
static enum shard_status settle(struct history_file *f, uint64_t size, bool *fresh, struct err *e)
{
	char name[NAME_BYTES];
	unsigned char *bytes;
	bool more;
	size_t nr = 0;

	name_of(name, f->model, f->file);
	*fresh = true;
	if (size > FILE_READ_MAX) {
		snprintf(f->damage, sizeof(f->damage), "%s has %lu bytes", name,
			 (unsigned long)size);
		f->bytes = size;
		return SHARD_OK;
	}
	if (read_file(f, f->fd, name, size, &bytes, &nr, e) != SHARD_OK)
		return SHARD_SYSTEM;
	f->bytes = walk(bytes, nr, &f->number, &more);
	free(bytes);
	if (more) {
		snprintf(f->damage, sizeof(f->damage), "%s is damaged from byte %lu on", name,
			 (unsigned long)f->bytes);
		f->bytes = nr;
		return SHARD_OK;
	}
	*fresh = false;
	f->cut = nr - f->bytes;
	if (f->cut > 0 && ftruncate(f->fd, (off_t)f->bytes) != 0)
		return sys_error(f, name, "its end cannot be cut off", e);
	return SHARD_OK;
}

/* The last file has no whole entry, so one before it says which number is next. */
static void number_before(struct history_file *f)
{
	for (uint32_t file = f->file - 1; f->number == 1 && file >= f->oldest && file > 0; file--) {
		int fd = open_file(f, file, O_RDONLY);
		unsigned char *bytes;
		struct stat s;
		bool more;
		size_t nr = 0;

		if (fd < 0)
			continue;
		if (fstat(fd, &s) == 0 && (uint64_t)s.st_size <= FILE_READ_MAX &&
		    read_file(f, fd, "", (uint64_t)s.st_size, &bytes, &nr, NULL) == SHARD_OK) {
			(void)walk(bytes, nr, &f->number, &more);
			free(bytes);
		}
		close(fd);
	}
}

static enum shard_status sync_dir(struct history_file *f, const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	enum shard_status st = SHARD_OK;

	if (fd < 0 || fdatasync(fd) != 0)
		st = sys_error(f, ".", "cannot be synced", e);
	if (fd >= 0)
		close(fd);
	return st;
}

static enum shard_status make_dir(struct history_file *f, struct err *e)
{
	char state[HISTORY_PATH_BYTES];

	if (mkdir(f->dir, 0700) != 0)
		return errno == EEXIST ? SHARD_OK : sys_error(f, ".", "cannot be made", e);
	snprintf(state, sizeof(state), "%s", f->dir);
	*strrchr(state, '/') = 0;
	return sync_dir(f, state, e);
}

static bool unlink_file(struct history_file *f, uint32_t file)
{
	char path[HISTORY_PATH_BYTES + NAME_BYTES + 1], name[NAME_BYTES];

	name_of(name, f->model, file);
	snprintf(path, sizeof(path), "%s/%s", f->dir, name);
	return unlink(path) == 0;
}

/* Begins the file after the current one. */
static enum shard_status begin(struct history_file *f, struct err *e)
{
	char name[NAME_BYTES];

	name_of(name, f->model, f->file + 1);
	history_file_close(f);
	f->fd = open_file(f, f->file + 1, O_RDWR | O_CREAT | O_TRUNC);
	if (f->fd < 0)
		return sys_error(f, name, "cannot be made", e);
	if (sync_dir(f, f->dir, e) != SHARD_OK) {
		history_file_close(f);
		return SHARD_SYSTEM;
	}
	f->older += f->bytes;
	f->file++;
	f->bytes = 0;
	if (f->oldest == 0)
		f->oldest = f->file;
	return SHARD_OK;
}

/* Removes the oldest files, so that all of them and one more of full size are within the limit. */
static void prune(struct history_file *f, struct err *e)
{
	struct listed l = {.from = 0};

	while (each(f, list_one, &l, e) == SHARD_OK && l.oldest < f->file &&
	       l.bytes + share(f) > f->limit && unlink_file(f, l.oldest))
		l = (struct listed){.from = 0};
	f->oldest = l.oldest;
	f->older = l.bytes;
}

enum shard_status history_file_open(struct history_file *f, struct err *e)
{
	struct listed l = {.from = 0};
	enum shard_status st;
	bool fresh = true;

	CHECK(f->fd < 0);
	if ((st = make_dir(f, e)) != SHARD_OK || (st = each(f, list_one, &l, e)) != SHARD_OK)
		return st;
	f->file = l.newest;
	f->oldest = l.oldest;
	f->older = l.bytes;
	f->bytes = f->cut = 0;
	f->damage[0] = 0;
	if (l.newest != 0) {
		char name[NAME_BYTES];

		name_of(name, f->model, l.newest);
		if ((f->fd = open_file(f, l.newest, O_RDWR)) < 0)
			return sys_error(f, name, "cannot be opened", e);
		st = settle(f, l.newest_bytes, &fresh, e);
	}
	if (l.newest != 0)
		number_before(f);
	if (st == SHARD_OK && fresh)
		st = begin(f, e);
	if (st != SHARD_OK)
		history_file_close(f);
	return st;
}

/* --- appending --- */

static enum shard_status room(struct history_file *f, size_t nr, struct err *e)
{
	uint64_t all, left, spare;
	struct statvfs s;

	if (fstatvfs(f->fd, &s) != 0)
		return SHARD_OK; /* Then writing says what is wrong. */
	all = (uint64_t)s.f_blocks * s.f_frsize;
	left = (uint64_t)s.f_bavail * s.f_frsize;
	spare = all / 8 < HISTORY_SPARE_MAX ? all / 8 : HISTORY_SPARE_MAX;
	if (all == 0 || left >= spare + nr)
		return SHARD_OK;
	return err_set(e, SHARD_SYSTEM,
		       "%s: %lu bytes are free, and the history leaves %lu to what the node needs "
		       "more: make room, or set a smaller [daemon] history",
		       f->dir, (unsigned long)left, (unsigned long)spare);
}

/* Numbers the entries. They are those of this process, so they are whole. */
static uint64_t number_all(void *bytes, size_t nr, uint64_t number)
{
	unsigned char *p = bytes;

	for (size_t at = 0; at < nr;) {
		uint32_t body;

		CHECK(nr - at > HISTORY_HEAD_BYTES);
		memcpy(&body, p + at + 4, sizeof(body));
		CHECK(body > 0 && body <= nr - at - HISTORY_HEAD_BYTES);
		history_seal(p + at, number++, body);
		at += HISTORY_HEAD_BYTES + body;
	}
	return number;
}

static enum shard_status put(struct history_file *f, void *bytes, size_t nr, struct err *e)
{
	uint64_t number = number_all(bytes, nr, f->number);
	char name[NAME_BYTES];
	enum shard_status st;

	name_of(name, f->model, f->file);
	if ((st = room(f, nr, e)) != SHARD_OK)
		return st;
	if (write_all(f->fd, bytes, nr, f->bytes) && fdatasync(f->fd) == 0) {
		f->bytes += nr;
		f->number = number;
		return SHARD_OK;
	}
	st = sys_error(f, name, "cannot be written", e);
	/* What is half written there is cut off now, or when the file is opened again. */
	if (ftruncate(f->fd, (off_t)f->bytes) != 0)
		history_file_close(f);
	return st;
}

enum shard_status history_file_append(struct history_file *f, void *bytes, size_t nr, struct err *e)
{
	enum shard_status st = SHARD_OK;

	CHECK(nr > 0);
	if (f->fd < 0)
		st = history_file_open(f, e);
	if (st == SHARD_OK && f->bytes > 0 && f->bytes + nr > share(f)) {
		st = begin(f, e);
		prune(f, NULL);
	}
	if (st == SHARD_OK && f->bytes == 0 && f->first != NULL)
		st = put(f, f->first, f->first_bytes, e);
	return st == SHARD_OK ? put(f, bytes, nr, e) : st;
}

/* --- reading --- */

enum shard_status history_file_read(const struct history_file *f, struct history_span *at, void *to,
				    size_t room_bytes, struct err *e)
{
	struct history_file copy = *f;
	struct listed l = {.from = at->file};
	uint64_t most = room_bytes;
	enum shard_status st;
	ssize_t got;
	int fd;

	at->nr = 0;
	at->end = true;
	if ((st = each(&copy, list_one, &l, e)) != SHARD_OK)
		return st;
	if (at->last == 0) { /* The caller knows of no end, so it is where the last file ends. */
		at->last = l.newest;
		at->last_bytes = l.newest_bytes;
	}
	if (l.least == 0 || l.least > at->last) {
		at->file = at->next_file = at->last;
		at->offset = at->next_offset = at->last_bytes;
		return SHARD_OK;
	}
	if (l.least != at->file)
		at->offset = 0;
	at->file = l.least;
	if (at->file == at->last && at->offset > at->last_bytes)
		at->offset = at->last_bytes;
	if (at->file == at->last && most > at->last_bytes - at->offset)
		most = at->last_bytes - at->offset;
	if ((fd = open_file(f, at->file, O_RDONLY)) < 0)
		return sys_error(f, ".", "a file of the history cannot be opened", e);
	got = at->offset > INT64_MAX / 2 ? 0 : read_all(fd, to, most, at->offset);
	close(fd);
	if (got < 0)
		return sys_error(f, ".", "a file of the history cannot be read", e);
	at->nr = (size_t)got;
	at->next_file = at->file;
	at->next_offset = at->offset + at->nr;
	at->end = at->file == at->last && at->next_offset >= at->last_bytes;
	if (at->file < at->last && at->nr < most) { /* That file is at its end. */
		at->next_file = at->file + 1;
		at->next_offset = 0;
	}
	return SHARD_OK;
}
