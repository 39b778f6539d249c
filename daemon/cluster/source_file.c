/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a membership source. A source opens it at its start, and from then on hands over one
 * body at a time, which a thread of libuv's pool writes. After a crash the file is the old one or
 * the new one. A disk that is full leaves the old one, and the source may try again. Any other
 * failure of a write, or one after the rename, leaves it open what a restart would find, so the
 * source has to end. Damage is found by the checksum when the file is read. */
#include "cluster/source_file.h"

#include "base/check.h"
#include "wire/xxh.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAGIC 0x314352534452485full /* "_HRDSRC1" in memory order */
#define FILE_NAME  "source"
#define FILE_TEMP  "source.tmp"
#define FILE_FLAGS (O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) /* O_NONBLOCK: a pipe cannot block us. */

struct file_head {
	uint64_t magic;
	char name[16]; /* Of the source, padded with zeros. */
	uint8_t cluster[MEMBER_UUID_BYTES];
	uint8_t self[MEMBER_UUID_BYTES];
	uint64_t body_bytes;
	uint64_t sum; /* Of head and body while it is zero. */
};
static_assert(sizeof(struct file_head) == 72, "frozen");

struct source_file {
	uv_loop_t *loop;
	uv_work_t work;
	bool busy;
	int dir;
	char path[512];
	struct file_head owner; /* What every head of this file has. */
	size_t body_max, nr;
	source_saved_fn *fn;
	void *arg;
	enum source_saved how; /* Written by the thread, as e is. */
	struct err e;
	unsigned char *bytes; /* Head and body. */
};

static uint64_t sum_of(const struct source_file *f, size_t nr)
{
	return xxh_sum(f->bytes, sizeof(struct file_head) + nr, FILE_MAGIC);
}

/* --- reading --- */

static enum shard_status damaged(const struct source_file *f, const char *what, struct err *e)
{
	return err_set(
		e, SHARD_PROTOCOL,
		"%s/" FILE_NAME " is damaged (%s): an older copy must not take its place. Let "
		"the other members put this node out, and start it with an empty state folder",
		f->path, what);
}

static enum shard_status sys_error(const struct source_file *f, const char *name, const char *what,
				   struct err *e)
{
	int error = errno;

	return err_sys(e, error, "%s/%s %s: %s", f->path, name, what, strerror(error));
}

/* The bytes are whole. Do they belong to this node? */
static enum shard_status belongs(const struct source_file *f, const struct file_head *h,
				 struct err *e)
{
	if (memcmp(h->name, f->owner.name, sizeof(h->name)) != 0)
		return err_set(e, SHARD_MISMATCH,
			       "%s/" FILE_NAME
			       " was written by the membership source \"%.15s\", and "
			       "this node is told to use \"%s\": members would refuse its terms",
			       f->path, h->name, f->owner.name);
	if (memcmp(h->cluster, f->owner.cluster, sizeof(h->cluster)) != 0)
		return err_set(e, SHARD_MISMATCH, "%s/" FILE_NAME " belongs to another cluster",
			       f->path);
	if (memcmp(h->self, f->owner.self, sizeof(h->self)) != 0)
		return err_set(e, SHARD_MISMATCH,
			       "%s/" FILE_NAME " was copied from the state folder of another node",
			       f->path);
	return SHARD_OK;
}

static ssize_t read_all(int fd, unsigned char *to, size_t nr)
{
	size_t got = 0;

	while (got < nr) {
		ssize_t n = read(fd, to + got, nr - got);

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

static enum shard_status judge(struct source_file *f, size_t got, size_t *nr, struct err *e)
{
	struct file_head h;
	uint64_t sum;

	if (got < sizeof(h))
		return damaged(f, "it is too short", e);
	memcpy(&h, f->bytes, sizeof(h));
	if (h.magic != FILE_MAGIC)
		return damaged(f, "its first bytes are not shardd's", e);
	if (h.body_bytes == 0 || h.body_bytes != got - sizeof(h))
		return damaged(f, "its length is wrong", e);
	sum = h.sum;
	h.sum = 0;
	memcpy(f->bytes, &h, sizeof(h));
	if (sum_of(f, got - sizeof(h)) != sum)
		return damaged(f, "its sum is wrong", e);
	*nr = got - sizeof(h);
	return belongs(f, &h, e);
}

static enum shard_status load(struct source_file *f, size_t *nr, struct err *e)
{
	size_t max = sizeof(struct file_head) + f->body_max;
	int fd = openat(f->dir, FILE_NAME, O_RDONLY | FILE_FLAGS);
	enum shard_status st = SHARD_OK;
	struct stat info;
	ssize_t got;

	*nr = 0;
	if (fd < 0)
		return errno == ENOENT ? SHARD_OK : sys_error(f, FILE_NAME, "cannot be opened", e);
	if (fstat(fd, &info) != 0) {
		st = sys_error(f, FILE_NAME, "cannot be read", e);
	} else if (!S_ISREG(info.st_mode) || info.st_size > (off_t)max) {
		st = damaged(f, "it is no such file", e);
	} else {
		got = read_all(fd, f->bytes, max);
		st = got < 0 ? sys_error(f, FILE_NAME, "cannot be read", e)
			     : judge(f, (size_t)got, nr, e);
	}
	close(fd);
	return st;
}

enum shard_status source_file_open(struct source_file **out, const struct member_config *c,
				   const char *name, size_t body_max, size_t *nr, struct err *e)
{
	struct source_file *f = calloc(1, sizeof(*f));
	enum shard_status st;

	CHECK(strlen(name) < sizeof(f->owner.name));
	if (f == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a membership source");
	f->dir = -1;
	f->loop = c->loop;
	f->body_max = body_max;
	f->work.data = f;
	f->owner.magic = FILE_MAGIC;
	snprintf(f->owner.name, sizeof(f->owner.name), "%s", name);
	memcpy(f->owner.cluster, c->cluster, sizeof(f->owner.cluster));
	memcpy(f->owner.self, c->self, sizeof(f->owner.self));
	snprintf(f->path, sizeof(f->path), "%s", c->dir);
	f->bytes = malloc(sizeof(struct file_head) + body_max);
	if (f->bytes == NULL) {
		st = err_set(e, SHARD_SYSTEM, "no memory for a membership source");
		goto err_file;
	}
	f->dir = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->dir < 0) {
		st = sys_error(f, "", "cannot be opened", e);
		goto err_file;
	}
	st = load(f, nr, e);
	if (st != SHARD_OK)
		goto err_file;
	*out = f;
	return SHARD_OK;
err_file:
	source_file_close(&f);
	return st;
}

/* --- writing, in a thread of the pool --- */

static bool write_all(int fd, const unsigned char *from, size_t nr)
{
	while (nr > 0) {
		ssize_t n = write(fd, from, nr);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		from += n;
		nr -= (size_t)n;
	}
	return true;
}

/* What passes by itself, or when an operator makes room. EFBIG is a limit of the process. */
static bool is_full(int error)
{
	return error == ENOSPC || error == EDQUOT || error == EFBIG || error == EMFILE ||
	       error == ENFILE || error == ENOMEM;
}

/* Writes the file beside the old one. False: errno says why, and nothing of it is left. */
static bool write_temp(const struct source_file *f)
{
	int fd = openat(f->dir, FILE_TEMP, O_WRONLY | O_CREAT | O_TRUNC | FILE_FLAGS, 0600);
	bool done;
	int error;

	if (fd < 0)
		return false;
	done = write_all(fd, f->bytes, sizeof(struct file_head) + f->nr) && fsync(fd) == 0;
	error = errno;
	close(fd);
	if (!done)
		unlinkat(f->dir, FILE_TEMP, 0);
	errno = error;
	return done;
}

static void run(uv_work_t *w)
{
	struct source_file *f = w->data;

	f->how = SOURCE_SAVED;
	if (!write_temp(f)) {
		f->how = is_full(errno) ? SOURCE_REFUSED : SOURCE_BROKEN;
		sys_error(f, FILE_TEMP, "cannot be written", &f->e);
	} else if (renameat(f->dir, FILE_TEMP, f->dir, FILE_NAME) != 0) {
		f->how = SOURCE_BROKEN;
		sys_error(f, FILE_NAME, "cannot be replaced", &f->e);
	} else if (fsync(f->dir) != 0) {
		f->how = SOURCE_BROKEN;
		sys_error(f, "", "cannot be synced", &f->e);
	}
}

static void after(uv_work_t *w, int status)
{
	struct source_file *f = w->data;

	CHECK(f->busy && status == 0); /* Nobody cancels it. */
	f->busy = false;
	f->fn(f->arg, f->how, &f->e);
}

void *source_file_body(struct source_file *f)
{
	CHECK(!f->busy);
	return f->bytes + sizeof(struct file_head);
}

void source_file_save(struct source_file *f, size_t nr, source_saved_fn *fn, void *arg)
{
	struct file_head h = f->owner;

	CHECK(!f->busy && nr > 0 && nr <= f->body_max);
	h.body_bytes = nr;
	memcpy(f->bytes, &h, sizeof(h));
	h.sum = sum_of(f, nr);
	memcpy(f->bytes, &h, sizeof(h));
	f->busy = true;
	f->nr = nr;
	f->fn = fn;
	f->arg = arg;
	CHECK(uv_queue_work(f->loop, &f->work, run, after) == 0);
}

void source_file_close(struct source_file **fp)
{
	struct source_file *f = *fp;

	*fp = NULL;
	if (f == NULL)
		return;
	CHECK(!f->busy);
	if (f->dir >= 0)
		close(f->dir);
	free(f->bytes);
	free(f);
}
