// SPDX-License-Identifier: Apache-2.0
/* Copies the files of trainers into a checkpoint, and checks them. The coordinator's save calls it
 * after the nodes have written their parts. Happy path: the folder is opened by its descriptor,
 * each entry is judged before anybody opens it and again when it is open, copied in pieces with a
 * sum each, and synced. Who asks is another user than this process, so nothing is read that does
 * not belong to him, and no link is followed. It fails with a sentence that names what is in the
 * way. */
#include "ckpt/client.h"
#include "ckpt/part_impl.h"
#include "ckpt/plain.h"

#include "base/check.h"
#include "wire/xxh.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool client_name_ok(const char *name)
{
	size_t n = strlen(name);

	return n > 0 && n < sizeof(((struct part_file *)0)->name) && name[0] != '.' &&
	       strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
		       n;
}

uint64_t client_bytes(const struct manifest *m)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < m->client_nr; i++)
		bytes += m->client[i].bytes;
	return bytes;
}

/* --- what somebody gave --- */

/* Says the same whatever is there, because who asks may not be allowed to know. */
static enum shard_status not_his(const struct client_from *from, struct err *e)
{
	return err_set(e, SHARD_DENIED,
		       "client folder %.600s: is no folder of uid %u that the daemon (uid %u) can "
		       "read on the node that coordinates: choose one there, no link, and let the "
		       "daemon's user or group read it",
		       from->path, from->uid, (unsigned)geteuid());
}

static enum shard_status open_from(const struct client_from *from, int *fd, struct err *e)
{
	struct stat s;

	if (from->path[0] != '/')
		return err_set(e, SHARD_BAD_ARG, "client folder %.600s: choose an absolute path",
			       from->path);
	*fd = open(from->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (*fd >= 0 && fstat(*fd, &s) == 0 && (from->anyones || s.st_uid == from->uid))
		return SHARD_OK;
	if (*fd >= 0)
		close(*fd);
	if (!from->anyones)
		return not_his(from, e);
	return err_set(
		e, errno == ENOENT ? SHARD_NOT_FOUND : SHARD_DENIED,
		"client folder %.600s: is no folder that the daemon can read on the node that "
		"coordinates: %s",
		from->path, errno == ELOOP ? "it is a link" : strerror(errno));
}

static enum shard_status denied(const struct client_from *from, const char *name, const char *why,
				struct err *e)
{
	return err_set(e, SHARD_DENIED, "client folder %.600s: %.255s %s", from->path, name, why);
}

/* Judges what a name leads to. */
static enum shard_status judge(const struct client_from *from, const char *name,
			       const struct stat *s, struct err *e)
{
	if (!S_ISREG(s->st_mode))
		return denied(from, name,
			      "is no plain file, but a link, a folder, a pipe or a device: only "
			      "plain files are taken",
			      e);
	if (!from->anyones && s->st_uid != from->uid)
		return denied(from, name, "belongs to another user than who saves", e);
	return SHARD_OK;
}

/* The files of the folder, by their names. bytes counts them. */
struct files {
	int fd;
	char (*name)[80];
	uint32_t nr;
	uint64_t bytes;
};

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

static enum shard_status take_entry(const struct client_from *from, struct files *f,
				    const char *name, struct err *e)
{
	enum shard_status st;
	struct stat s;

	if (!client_name_ok(name))
		return err_set(e, SHARD_BAD_ARG,
			       "client folder %.600s: \"%.80s\": a name has 1 to 79 of "
			       "[A-Za-z0-9._-] and does not begin with a dot",
			       from->path, name);
	if (f->nr == CLIENT_FILES_MAX)
		return err_set(e, SHARD_RANGE, "client folder %.600s: has more than %d files",
			       from->path, CLIENT_FILES_MAX);
	if (fstatat(f->fd, name, &s, AT_SYMLINK_NOFOLLOW) != 0)
		return denied(from, name, "cannot be looked at", e);
	if ((st = judge(from, name, &s, e)) != SHARD_OK)
		return st;
	if (faccessat(f->fd, name, R_OK, AT_EACCESS) != 0)
		return denied(from, name,
			      "cannot be read by the daemon: let its user or group read it", e);
	f->bytes += (uint64_t)s.st_size;
	if ((uint64_t)s.st_size > CLIENT_BYTES_MAX || f->bytes > CLIENT_BYTES_MAX)
		return err_set(e, SHARD_RANGE, "client folder %.600s: has more than %llu bytes",
			       from->path, CLIENT_BYTES_MAX);
	strcpy(f->name[f->nr++], name);
	return SHARD_OK;
}

static void files_close(struct files *f)
{
	close(f->fd);
	free(f->name);
}

static enum shard_status files_open(const struct client_from *from, struct files *f, struct err *e)
{
	enum shard_status st = open_from(from, &f->fd, e);
	const struct dirent *entry;
	DIR *d;
	int fd;

	if (st != SHARD_OK)
		return st;
	f->nr = 0;
	f->bytes = 0;
	f->name = calloc(CLIENT_FILES_MAX, sizeof(*f->name));
	fd = f->name != NULL ? dup(f->fd) : -1;
	d = fd >= 0 ? fdopendir(fd) : NULL;
	if (d == NULL) {
		st = err_sys(e, errno, "client folder %.600s: %s", from->path, strerror(errno));
		if (fd >= 0)
			close(fd);
	}
	while (st == SHARD_OK && (entry = readdir(d)) != NULL)
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
		    strncmp(entry->d_name, ".nfs", 4) != 0)
			st = take_entry(from, f, entry->d_name, e);
	if (d != NULL)
		closedir(d);
	if (st == SHARD_OK)
		qsort(f->name, f->nr, sizeof(*f->name), by_name);
	else
		files_close(f);
	return st;
}

enum shard_status client_look(const struct client_from *from, struct err *e)
{
	struct files f;
	enum shard_status st = files_open(from, &f, e);

	if (st == SHARD_OK)
		files_close(&f);
	return st;
}

/* --- copies --- */

static enum shard_status changed(const struct client_from *from, const char *name, struct err *e)
{
	return err_set(e, SHARD_STALE,
		       "client folder %.600s: %.79s changed while it was copied: leave the folder "
		       "alone until the save has ended",
		       from->path, name);
}

/* Reads so many bytes, or fewer at the end of the file. */
static ssize_t read_piece(int fd, void *to, size_t bytes, uint64_t offset)
{
	size_t got = 0;

	while (got < bytes) {
		ssize_t n = pread(fd, (char *)to + got, bytes - got, (off_t)(offset + got));

		if (n < 0 && errno != EINTR)
			return -1;
		if (n == 0)
			break;
		got += n > 0 ? (size_t)n : 0;
	}
	return (ssize_t)got;
}

static bool write_piece(int fd, const char *at, size_t bytes)
{
	errno = ENOSPC; /* For a write of nothing. */
	while (bytes > 0) {
		ssize_t n = write(fd, at, bytes);

		if (n == 0 || (n < 0 && errno != EINTR))
			return false;
		at += n > 0 ? n : 0;
		bytes -= n > 0 ? (size_t)n : 0;
	}
	return true;
}

struct copy {
	const struct client_from *from;
	const char *to; /* The folder client. */
	struct part_progress *progress;
	void *buffer;
};

static enum shard_status copy_pieces(const struct copy *c, int in, int out, struct part_file *f,
				     struct err *e)
{
	for (uint64_t at = 0; at < f->bytes;) {
		uint64_t rest = f->bytes - at;
		size_t want = rest < PART_PIECE_BYTES ? (size_t)rest : PART_PIECE_BYTES;
		ssize_t n = read_piece(in, c->buffer, want, at);

		if (c->progress->cancel)
			return err_set(e, SHARD_INTERRUPTED, "the save was given up");
		if (n < 0)
			return err_sys(e, errno, "client folder %.600s: %s: %s", c->from->path,
				       f->name, strerror(errno));
		if ((size_t)n < want)
			return changed(c->from, f->name, e);
		f->sums[f->sums_nr++] = xxh_sum(c->buffer, want, 0);
		if (!write_piece(out, c->buffer, want))
			return err_sys(e, errno, "%s/%s: cannot be written: %s", c->to, f->name,
				       strerror(errno));
		c->progress->done_bytes += want;
		at += want;
	}
	return SHARD_OK;
}

static bool same_time(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* What was judged by name may be something else by now. */
static enum shard_status open_again(const struct copy *c, int folder, const char *name, int *fd,
				    struct stat *s, struct err *e)
{
	enum shard_status st;

	if (plain_open(fd, folder, name, O_RDONLY, 0, NULL) != SHARD_OK || fstat(*fd, s) != 0)
		st = changed(c->from, name, e);
	else
		st = judge(c->from, name, s, e);
	if (st == SHARD_OK && (uint64_t)s->st_size > CLIENT_BYTES_MAX)
		st = changed(c->from, name, e);
	if (st != SHARD_OK && *fd >= 0)
		close(*fd);
	return st;
}

static enum shard_status copy_file(const struct copy *c, int folder, const char *name,
				   struct part_file *f, struct err *e)
{
	char path[PART_PATH_BYTES];
	enum shard_status st;
	struct stat s, after;
	int in = -1, out;

	if ((st = open_again(c, folder, name, &in, &s, e)) != SHARD_OK)
		return st;
	*f = (struct part_file){.bytes = (uint64_t)s.st_size, .piece_bytes = PART_PIECE_BYTES};
	strcpy(f->name, name);
	f->sums = malloc((f->bytes / PART_PIECE_BYTES + 1) * sizeof(*f->sums));
	part_path(path, c->to, name);
	if (f->sums == NULL) {
		close(in);
		return part_no_memory(e, "the sums of a file");
	}
	st = plain_open(&out, AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL, 0600, e);
	if (st == SHARD_OK)
		st = copy_pieces(c, in, out, f, e);
	if (st == SHARD_OK && (fstat(in, &after) != 0 || !same_time(&s, &after)))
		st = changed(c->from, name, e);
	if (st == SHARD_OK && fsync(out) != 0)
		st = err_sys(e, errno, "%s: cannot be written: %s", path, strerror(errno));
	if (out >= 0 && close(out) != 0 && st == SHARD_OK)
		st = err_sys(e, errno, "%s: cannot be written: %s", path, strerror(errno));
	close(in);
	return st;
}

static enum shard_status sync_folder(const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
	int error = errno;

	if (fd >= 0)
		close(fd);
	return ok ? SHARD_OK : err_sys(e, error, "%s: cannot be synced: %s", path, strerror(error));
}

enum shard_status client_copy(const struct client_from *from, const char *path, struct manifest *m,
			      struct part_progress *p, struct err *e)
{
	struct copy c = {.from = from, .progress = p};
	char to[PART_PATH_BYTES];
	enum shard_status st;
	struct files f;

	CHECK(m->client == NULL && m->client_nr == 0);
	part_path(to, path, CLIENT_FOLDER);
	c.to = to;
	if ((st = files_open(from, &f, e)) != SHARD_OK)
		return st;
	m->client = calloc((size_t)f.nr + 1, sizeof(*m->client));
	c.buffer = malloc(PART_PIECE_BYTES);
	if (m->client == NULL || c.buffer == NULL)
		st = part_no_memory(e, "the files of trainers");
	else if (mkdir(to, 0700) != 0)
		st = err_sys(e, errno, "%s: cannot be made: %s", to, strerror(errno));
	for (uint32_t i = 0; st == SHARD_OK && i < f.nr; i++)
		st = copy_file(&c, f.fd, f.name[i], &m->client[m->client_nr++], e);
	if (st == SHARD_OK && client_bytes(m) > CLIENT_BYTES_MAX)
		st = changed(from, "it", e);
	if (st == SHARD_OK)
		st = sync_folder(to, e);
	free(c.buffer);
	files_close(&f);
	return st;
}

/* --- what a checkpoint has --- */

static enum shard_status open_kept(const char *path, const struct part_file *f, int *fd,
				   struct err *e)
{
	char file[PART_PATH_BYTES + 80];
	enum shard_status st;
	struct stat s;

	snprintf(file, sizeof(file), "%s/" CLIENT_FOLDER "/%s", path, f->name);
	if ((st = plain_open(fd, AT_FDCWD, file, O_RDONLY, 0, e)) != SHARD_OK)
		return st;
	if (fstat(*fd, &s) == 0 && (uint64_t)s.st_size == f->bytes)
		return SHARD_OK;
	close(*fd);
	return err_set(e, SHARD_PROTOCOL,
		       "%s: has not the %" PRIu64 " bytes that the manifest says: it is damaged",
		       file, f->bytes);
}

enum shard_status client_lengths(const char *path, const struct manifest *m, struct err *e)
{
	enum shard_status st = SHARD_OK;
	int fd;

	for (uint32_t i = 0; st == SHARD_OK && i < m->client_nr; i++)
		if ((st = open_kept(path, &m->client[i], &fd, e)) == SHARD_OK)
			close(fd);
	return st;
}

static enum shard_status verify_file(const char *path, const struct part_file *f, void *buffer,
				     struct part_progress *p, struct err *e)
{
	enum shard_status st;
	int fd;

	if ((st = open_kept(path, f, &fd, e)) != SHARD_OK)
		return st;
	for (uint32_t i = 0; st == SHARD_OK && i < f->sums_nr; i++) {
		uint64_t at = (uint64_t)i * f->piece_bytes, rest = f->bytes - at;
		size_t want = rest < f->piece_bytes ? (size_t)rest : f->piece_bytes;

		if (read_piece(fd, buffer, want, at) != (ssize_t)want ||
		    xxh_sum(buffer, want, 0) != f->sums[i])
			st = err_set(e, SHARD_PROTOCOL,
				     "%s/" CLIENT_FOLDER "/%s: damaged: its bytes from %" PRIu64
				     " on are not those that the manifest says",
				     path, f->name, at);
		p->done_bytes += want;
	}
	close(fd);
	return st;
}

enum shard_status client_verify(const char *path, const struct manifest *m, struct part_progress *p,
				struct err *e)
{
	void *buffer = malloc(PART_PIECE_BYTES);
	enum shard_status st = SHARD_OK;

	if (buffer == NULL)
		return part_no_memory(e, "a buffer of 8 MiB");
	for (uint32_t i = 0; st == SHARD_OK && i < m->client_nr; i++)
		st = verify_file(path, &m->client[i], buffer, p, e);
	free(buffer);
	return st;
}
