/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to one file, for tier_nvme.c. ring_file_open() makes the file and takes its lock, in a
 * thread. Happy path: a request takes a place in the table, the row (io_uring or threads) moves its
 * bytes and writes to an eventfd, the loop wakes, and done() gets the number of bytes. A row may
 * move a part, which is then continued, from the last whole block on. EAGAIN and EINTR are tried
 * again a bounded number of times. Anything else ends the request with its errno, and the caller
 * judges. Nothing allocates after ring_open(). */
#include "store/ring.h"

#include "base/check.h"
#include "base/clock.h"
#include "store/ring_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define TRIES_MAX  64 /* Of a request that the kernel says to try again. */
#define POLL_NS    (2 * 1000 * 1000)
#define MOVE_BYTES (1u << 30) /* At a time: what a result has room for. */

struct request {
	struct ring_io io;
	uint64_t bytes, moved;
	uint8_t *at;
	uint64_t offset;
	uint32_t tries, next; /* next: of the free ones. */
	bool used;
	ring_done *done;
	void *owner;
	uint64_t tag;
};

struct ring {
	const struct ring_row *row;
	void *self; /* Of the row. */
	int fd, event;
	uv_poll_t *poll;                /* NULL: not started, or stopped. */
	uint32_t entries, flying, free; /* free: the first one. entries: there is none. */
	struct iovec *buffer;
	uint32_t buffers_nr;
	bool stopped;
	char why[128];
	struct request request[];
};

/* --- the file --- */

/* Who has the lock, as /proc/locks says. 0: not known. */
static int holder(int fd)
{
	unsigned int major_nr, minor_nr;
	unsigned long inode;
	char line[256];
	struct stat s;
	int pid = 0, found = 0;
	FILE *in = fopen("/proc/locks", "r");

	if (in == NULL)
		return 0;
	if (fstat(fd, &s) == 0)
		while (found == 0 && fgets(line, sizeof(line), in) != NULL)
			if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%lu", &pid, &major_nr,
				   &minor_nr, &inode) == 4 &&
			    major_nr == major(s.st_dev) && minor_nr == minor(s.st_dev) &&
			    inode == s.st_ino)
				found = pid;
	(void)fclose(in);
	return found > 0 ? found : 0;
}

static enum shard_status fence(int fd, const char *path, uint64_t wait_ns, struct err *e)
{
	static const struct timespec pause = {.tv_nsec = POLL_NS};
	uint64_t began = clock_ns();
	char who[40] = "";
	int pid;

	while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return err_sys(e, errno, "%s: locking it: %s", path, strerror(errno));
		if (clock_ns() - began < wait_ns) {
			nanosleep(&pause, NULL); /* There is no lock with a deadline. */
			continue;
		}
		if ((pid = holder(fd)) > 0)
			snprintf(who, sizeof(who), " (pid %d)", pid);
		return err_set(e, SHARD_BUSY,
			       "%s: another process%s has it locked, or the disk has not finished "
			       "what a killed one asked for: end that process, or choose another "
			       "folder",
			       path, who);
	}
	return SHARD_OK;
}

static enum shard_status no_room(const char *path, int fd, uint64_t bytes, int error, struct err *e)
{
	struct statvfs v = {.f_bsize = 0};

	/* It may have got a part. */
	if (ftruncate(fd, 0) != 0 || fstatvfs(fd, &v) != 0)
		v.f_bavail = 0;
	return err_set(e, SHARD_BUDGET,
		       "%s needs %.1f MiB, and %.1f MiB are free there: %s: make room, or choose "
		       "another folder",
		       path, (double)bytes / (1 << 20),
		       (double)v.f_bavail * (double)v.f_frsize / (1 << 20), strerror(error));
}

static enum shard_status reserve(int fd, const struct ring_file *f, const char *path, struct err *e)
{
	struct stat s;

	if (fstat(fd, &s) != 0)
		return err_sys(e, errno, "%s: %s", path, strerror(errno));
	if (!S_ISREG(s.st_mode) || s.st_uid != geteuid())
		return err_set(e, SHARD_DENIED,
			       "%s is not a file of uid %u: somebody else can write in that "
			       "folder: choose one of this user alone",
			       path, (unsigned)geteuid());
	if (f->there && ((uint64_t)s.st_size == f->bytes || f->bytes == 0))
		return SHARD_OK;
	if (f->there)
		return err_set(e, SHARD_MISMATCH, "%s has %llu bytes instead of %llu", path,
			       (unsigned long long)s.st_size, (unsigned long long)f->bytes);
	/* What an earlier model has left goes first. */
	if (ftruncate(fd, 0) != 0)
		return err_sys(e, errno, "%s: emptying it: %s", path, strerror(errno));
	if (fallocate(fd, 0, 0, (off_t)f->bytes) == 0)
		return SHARD_OK;
	if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
		return no_room(path, fd, f->bytes, errno, e);
	if (errno != EOPNOTSUPP)
		return err_sys(e, errno, "%s: reserving %llu bytes: %s", path,
			       (unsigned long long)f->bytes, strerror(errno));
	return ftruncate(fd, (off_t)f->bytes) == 0
		       ? SHARD_OK
		       : err_sys(e, errno, "%s: %s", path, strerror(errno));
}

enum shard_status ring_file_open(int *out, const struct ring_file *f, struct err *e)
{
	char path[4096];
	int n = snprintf(path, sizeof(path), "%s/%s", f->dir, f->name), fd;
	enum shard_status st;

	CHECK((f->bytes > 0 || f->there) && f->bytes % RING_ALIGN == 0);
	if (n < 0 || (size_t)n >= sizeof(path))
		return err_set(e, SHARD_RANGE, "%.200s/%.100s: the path is too long", f->dir,
			       f->name);
	fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC | O_NOFOLLOW | (f->there ? 0 : O_CREAT),
		  0600);
	if (fd < 0 && errno == ENOENT && f->there)
		return err_set(e, SHARD_NOT_FOUND, "%s is gone", path);
	if (fd < 0 && errno == EINVAL)
		return err_set(e, SHARD_UNSUPPORTED,
			       "%s: this file system has no O_DIRECT: choose a folder on another "
			       "one",
			       path);
	if (fd < 0)
		return err_sys(e, errno, "%s: %s", path, strerror(errno));
	if ((st = fence(fd, path, f->fence_ns, e)) == SHARD_OK)
		st = reserve(fd, f, path, e);
	if (st == SHARD_OK) {
		*out = fd;
		return SHARD_OK;
	}
	if (!f->there)
		(void)unlink(path);
	(void)close(fd);
	return st;
}

/* --- a ring --- */

static enum shard_status make(struct ring **out, const struct ring_conf *conf, struct err *e)
{
	struct ring *r = calloc(1, sizeof(*r) + conf->entries * sizeof(r->request[0]));

	CHECK(conf->entries > 0 && conf->buffers_nr > 0);
	if (r != NULL)
		r->buffer = calloc(conf->buffers_nr, sizeof(*r->buffer));
	if (r == NULL || r->buffer == NULL) {
		free(r);
		return err_set(e, SHARD_SYSTEM, "no memory for a ring of %u requests",
			       conf->entries);
	}
	r->fd = -1; /* The caller's until ring_open() returns. */
	r->entries = conf->entries;
	r->buffers_nr = conf->buffers_nr;
	memcpy(r->buffer, conf->buffer, conf->buffers_nr * sizeof(*r->buffer));
	for (uint32_t i = 0; i < conf->entries; i++)
		r->request[i].next = i + 1;
	for (uint32_t i = 0; i < conf->buffers_nr; i++)
		CHECK((uintptr_t)conf->buffer[i].iov_base % RING_ALIGN == 0 &&
		      conf->buffer[i].iov_len % RING_ALIGN == 0);
	r->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (r->event < 0) {
		int error = errno;

		free(r->buffer);
		free(r);
		return err_sys(e, error, "an eventfd for a ring: %s", strerror(error));
	}
	*out = r;
	return SHARD_OK;
}

static void unmake(struct ring *r)
{
	(void)close(r->event);
	if (r->fd >= 0)
		(void)close(r->fd);
	free(r->buffer);
	free(r);
}

enum shard_status ring_open_row(struct ring **out, const struct ring_row *row,
				const struct ring_conf *conf, struct err *e)
{
	enum shard_status st = make(out, conf, e);
	struct ring *r = *out;

	if (st != SHARD_OK)
		return st;
	r->row = row;
	if (!row->open(&r->self, conf, r->event, r->why)) {
		st = err_set(e, SHARD_SYSTEM, "a ring of %u requests: %s", conf->entries, r->why);
		unmake(r);
		*out = NULL;
		return st;
	}
	r->fd = conf->fd;
	return SHARD_OK;
}

enum shard_status ring_open(struct ring **out, const struct ring_conf *conf, struct err *e)
{
	struct err why = {.text = ""};

	if (!conf->threads && ring_open_row(out, &ring_uring, conf, &why) == SHARD_OK)
		return SHARD_OK;
	if (ring_open_row(out, &ring_threads, conf, e) != SHARD_OK)
		return e->status;
	snprintf((*out)->why, sizeof((*out)->why), "%.120s", why.text);
	return SHARD_OK;
}

static void woken(uv_poll_t *poll, int status, int events)
{
	struct ring *r = poll->data;
	uint64_t nr;

	(void)events;
	CHECK(status == 0);
	if (read(r->event, &nr, sizeof(nr)) < 0)
		CHECK(errno == EAGAIN || errno == EINTR);
	r->row->reap(r->self, r, false);
}

enum shard_status ring_start(struct ring *r, uv_loop_t *loop, struct err *e)
{
	int rc;

	CHECK(r->poll == NULL && !r->stopped);
	if ((r->poll = calloc(1, sizeof(*r->poll))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a ring");
	if ((rc = uv_poll_init(loop, r->poll, r->event)) != 0) {
		free(r->poll);
		r->poll = NULL;
		return err_sys(e, -rc, "a ring on the loop: %s", uv_strerror(rc));
	}
	r->poll->data = r;
	rc = uv_poll_start(r->poll, UV_READABLE, woken);
	CHECK(rc == 0);
	return SHARD_OK;
}

/* Asks the row for what is left of a request. */
static void submit(struct ring *r, struct request *q)
{
	uint64_t left = q->bytes - q->moved;

	q->io.at = q->at + q->moved;
	q->io.offset = q->offset + q->moved;
	q->io.bytes = (uint32_t)(left < MOVE_BYTES ? left : MOVE_BYTES);
	r->row->submit(r->self, &q->io);
}

static enum shard_status begin(struct ring *r, const struct request *as)
{
	uint32_t nr = r->free;
	struct request *q;

	CHECK(r->poll != NULL && as->done != NULL);
	if (nr == r->entries)
		return SHARD_AGAIN;
	q = &r->request[nr];
	r->free = q->next;
	CHECK(!q->used);
	*q = *as;
	q->used = true;
	q->io.nr = nr;
	r->flying++;
	submit(r, q);
	return SHARD_OK;
}

static enum shard_status move(struct ring *r, enum ring_what what, uint32_t buffer, uint64_t at,
			      const struct request *as)
{
	struct request q = *as;

	CHECK(buffer < r->buffers_nr && at <= r->buffer[buffer].iov_len &&
	      as->bytes <= r->buffer[buffer].iov_len - at);
	CHECK(as->bytes > 0 && (at | as->bytes | as->offset) % RING_ALIGN == 0);
	q.io.what = what;
	q.io.buffer = buffer;
	q.at = (uint8_t *)r->buffer[buffer].iov_base + at;
	return begin(r, &q);
}

enum shard_status ring_read(struct ring *r, uint32_t buffer, uint64_t at, uint64_t bytes,
			    uint64_t offset, ring_done *done, void *owner, uint64_t tag)
{
	return move(r, RING_READ, buffer, at,
		    &(struct request){.bytes = bytes,
				      .offset = offset,
				      .done = done,
				      .owner = owner,
				      .tag = tag});
}

enum shard_status ring_write(struct ring *r, uint32_t buffer, uint64_t at, uint64_t bytes,
			     uint64_t offset, ring_done *done, void *owner, uint64_t tag)
{
	return move(r, RING_WRITE, buffer, at,
		    &(struct request){.bytes = bytes,
				      .offset = offset,
				      .done = done,
				      .owner = owner,
				      .tag = tag});
}

enum shard_status ring_sync(struct ring *r, ring_done *done, void *owner, uint64_t tag)
{
	return begin(r, &(struct request){
				.io.what = RING_SYNC, .done = done, .owner = owner, .tag = tag});
}

static void end(struct ring *r, struct request *q, int64_t result)
{
	struct request was = *q;

	CHECK(q->used && r->flying > 0);
	q->used = false;
	q->next = r->free;
	r->free = q->io.nr;
	r->flying--;
	if (!r->stopped)
		was.done(was.owner, was.tag, result);
}

void ring_moved(struct ring *r, uint32_t nr, int64_t result)
{
	struct request *q = &r->request[nr];
	uint64_t whole;

	CHECK(nr < r->entries && q->used);
	if ((result == -EAGAIN || result == -EINTR) && ++q->tries < TRIES_MAX && !r->stopped) {
		submit(r, q);
		return;
	}
	if (result < 0 || q->io.what == RING_SYNC) {
		end(r, q, result < 0 ? result : 0);
		return;
	}
	CHECK((uint64_t)result <= q->io.bytes);
	/* Of a block that came in part, nothing counts. */
	whole = (uint64_t)result / RING_ALIGN * RING_ALIGN;
	q->moved += whole;
	if (q->moved == q->bytes)
		end(r, q, (int64_t)q->bytes);
	else if (whole == 0)
		end(r, q, q->io.what == RING_READ ? -ENODATA : -EIO);
	else if (r->stopped)
		end(r, q, -ECANCELED);
	else
		submit(r, q);
}

uint32_t ring_flying(const struct ring *r)
{
	return r->flying;
}

const char *ring_kind(const struct ring *r)
{
	return r->row->name;
}

const char *ring_why(const struct ring *r)
{
	return r->why;
}

static void poll_closed(uv_handle_t *h)
{
	free(h);
}

void ring_stop(struct ring *r)
{
	r->stopped = true;
	if (r->poll == NULL)
		return;
	uv_close((uv_handle_t *)r->poll, poll_closed);
	r->poll = NULL;
}

void ring_close(struct ring **rp)
{
	struct ring *r = *rp;

	*rp = NULL;
	if (r == NULL)
		return;
	CHECK(r->poll == NULL);
	r->stopped = true;
	while (r->flying > 0)
		r->row->reap(r->self, r, true);
	r->row->close(r->self);
	unmake(r);
}
