/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes bulk files. The other sources of part.h call it. It uses O_DIRECT where the file
 * system has it, and ordinary I/O where that is refused (tmpfs). A few threads take one piece after
 * the other and end before the call returns. The first failure stops all of them, and the caller
 * gets its text and errno. */
#include "ckpt/plain.h"
#include "ckpt/part_impl.h"

#include "base/check.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGE_PAGE ((size_t)2 << 20)

static_assert(PART_PIECE_BYTES % LARGE_PAGE == 0, "a piece is whole large pages");

enum shard_status part_no_memory(struct err *e, const char *what)
{
	errno = ENOMEM;
	return err_sys(e, ENOMEM, "no memory for %s", what);
}

enum shard_status part_open(struct part_fd *f, const char *path, int flags, struct err *e)
{
	enum shard_status st = plain_open(&f->fd, AT_FDCWD, path, flags | O_DIRECT, 0600, e);

	f->direct = true;
	if (st != SHARD_OK && errno == EINVAL) {
		f->direct = false;
		if (flags & O_EXCL)
			/* Some file systems create the file before they refuse. */
			(void)unlink(path);
		st = plain_open(&f->fd, AT_FDCWD, path, flags, 0600, e);
	}
	if (st == SHARD_NOT_FOUND && !(flags & O_CREAT))
		return err_set(
			e, SHARD_NOT_FOUND,
			"%s: is not there: is the folder of checkpoints shared by all nodes?",
			path);
	return st;
}

void part_close(struct part_fd *f)
{
	int error = errno;

	if (f->fd >= 0)
		close(f->fd);
	f->fd = -1;
	errno = error;
}

static size_t padded(size_t bytes)
{
	return (bytes + PART_ALIGN - 1) & ~(size_t)(PART_ALIGN - 1);
}

/* O_DIRECT was refused for this access. All accesses go on without it. */
static bool buffered_instead(struct part_fd *f)
{
	int flags = fcntl(f->fd, F_GETFL);

	if (errno != EINVAL || !f->direct || flags < 0 ||
	    fcntl(f->fd, F_SETFL, flags & ~O_DIRECT) != 0)
		return false;
	f->direct = false;
	return true;
}

ssize_t part_pread(struct part_fd *f, void *to, size_t bytes, uint64_t offset)
{
	size_t got = 0;

	while (got < bytes) {
		ssize_t n =
			pread(f->fd, (char *)to + got,
			      f->direct ? padded(bytes - got) : bytes - got, (off_t)(offset + got));

		if (n > 0)
			got += (size_t)n;
		else if (n == 0)
			break;
		else if (errno != EINTR && !buffered_instead(f))
			return -1;
	}
	return (ssize_t)(got < bytes ? got : bytes);
}

ssize_t part_pwrite(struct part_fd *f, const void *from, size_t bytes, uint64_t offset)
{
	size_t put = 0;

	while (put < bytes) {
		ssize_t n = pwrite(f->fd, (const char *)from + put,
				   f->direct ? padded(bytes - put) : bytes - put,
				   (off_t)(offset + put));

		if (n > 0)
			put += (size_t)n;
		else if (n == 0)
			return errno = ENOSPC, -1;
		else if (errno != EINTR && !buffered_instead(f))
			return -1;
	}
	return (ssize_t)bytes;
}

bool part_share(const struct part_fd *to, const struct part_fd *from, uint64_t offset,
		uint64_t bytes)
{
	struct file_clone_range r = {.src_fd = from->fd,
				     .src_offset = offset,
				     .src_length = bytes,
				     .dest_offset = offset};

	CHECK(to->fd >= 0 && from->fd >= 0);
	return ioctl(to->fd, FICLONERANGE, &r) == 0;
}

/* --- threads --- */

/* In large pages where there are any. A device then moves it in a few long runs, not in thousands
 * of short ones. */
static void *piece_buffer(size_t pieces)
{
	void *buffer = aligned_alloc(LARGE_PAGE, pieces * PART_PIECE_BYTES);

	if (buffer)
		(void)madvise(buffer, pieces * PART_PIECE_BYTES, MADV_HUGEPAGE);
	return buffer;
}

static void failed(struct part_job *j, enum shard_status st, int error, const struct err *e)
{
	pthread_mutex_lock(&j->lock);
	if (j->st == SHARD_OK) {
		j->st = st;
		j->error = error;
		j->err = *e;
	}
	pthread_mutex_unlock(&j->lock);
	j->stop = true;
}

static void *work(void *arg)
{
	struct part_job *j = arg;
	struct err e = {.status = SHARD_OK};
	void *buffer = piece_buffer(j->twice ? 2 : 1);

	if (!buffer)
		failed(j, part_no_memory(&e, "a buffer of 8 MiB"), ENOMEM, &e);
	while (!j->stop) {
		enum shard_status st = SHARD_OK;
		uint64_t done = 0, i = j->next++;

		if (i >= j->nr)
			break;
		if (j->progress && j->progress->cancel)
			st = err_set(&e, SHARD_INTERRUPTED,
				     "given up, because another node's share failed or the "
				     "coordinator's link ended");
		errno = 0;
		if (st == SHARD_OK)
			st = j->item(j, i, buffer, &done, &e);
		if (st != SHARD_OK)
			failed(j, st, errno, &e);
		else if (j->progress)
			j->progress->done_bytes += done;
	}
	free(buffer);
	return NULL;
}

enum shard_status part_run(struct part_job *j, struct err *e)
{
	pthread_t thread[PART_THREADS - 1];
	uint32_t threads = 0;
	sigset_t all, before;

	CHECK(j->item != NULL && j->st == SHARD_OK);
	pthread_mutex_init(&j->lock, NULL);
	sigfillset(&all); /* Signals are for the threads that the program knows of. */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (threads < PART_THREADS - 1 && threads + 1 < j->nr &&
	       pthread_create(&thread[threads], NULL, work, j) == 0)
		threads++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	work(j);
	while (threads > 0)
		pthread_join(thread[--threads], NULL);
	pthread_mutex_destroy(&j->lock);
	if (j->st != SHARD_OK) {
		err_set(e, j->st, "%s", j->err.text);
		errno = j->error;
	}
	return j->st;
}
