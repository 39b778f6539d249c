// SPDX-License-Identifier: Apache-2.0
/* Tests requests to a file. What is written comes back, by io_uring and by threads. A row that
 * moves parts, late and in another order, still makes whole requests, and one that fails ends them
 * with its errno. A full table says so. A ring that is freed waits for what is under way. A file
 * that does not fit, has another length or is locked by another process is refused with figures and
 * names. */
#include "base/check.h"
#include "lib/fault.h"
#include "store/ring_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { BUFFERS = 3, ENTRIES = 4, BUFFER = 4 * RING_ALIGN, FILE_BYTES = 16 * RING_ALIGN };

struct bench {
	char dir[64];
	uint8_t *memory;
	struct iovec iov[BUFFERS];
	uv_loop_t loop;
	int fd;
	struct ring *ring;
	uint32_t done;
	int64_t result[8];
};

static void done(void *owner, uint64_t tag, int64_t result)
{
	struct bench *b = owner;

	assert_in_range(tag, 0, 7);
	assert_int_equal(b->result[tag], 1); /* Once. */
	b->result[tag] = result;
	b->done++;
}

static struct ring_file file_of(struct bench *b)
{
	return (struct ring_file){.dir = b->dir, .name = "f", .bytes = FILE_BYTES};
}

/* Not in /tmp, which may have no O_DIRECT. */
static void setup(struct bench *b)
{
	*b = (struct bench){.dir = "build/ring-XXXXXX", .fd = -1};
	assert_non_null(mkdtemp(b->dir));
	b->memory = aligned_alloc(RING_ALIGN, BUFFERS * BUFFER);
	assert_non_null(b->memory);
	memset(b->memory, 0, BUFFERS * BUFFER);
	for (int i = 0; i < BUFFERS; i++)
		b->iov[i] = (struct iovec){b->memory + i * BUFFER, BUFFER};
	for (int i = 0; i < 8; i++)
		b->result[i] = 1;
	assert_int_equal(uv_loop_init(&b->loop), 0);
}

static void teardown(struct bench *b)
{
	char path[80];

	if (b->ring != NULL)
		ring_stop(b->ring);
	ring_close(&b->ring);
	assert_null(b->ring);
	uv_run(&b->loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&b->loop), 0);
	snprintf(path, sizeof(path), "%s/f", b->dir);
	(void)unlink(path);
	assert_int_equal(rmdir(b->dir), 0);
	free(b->memory);
}

static struct ring_conf conf_of(struct bench *b, bool threads)
{
	return (struct ring_conf){.fd = b->fd,
				  .buffer = b->iov,
				  .buffers_nr = BUFFERS,
				  .entries = ENTRIES,
				  .threads = threads};
}

static void open_file(struct bench *b)
{
	struct ring_file f = file_of(b);
	struct err e = {.text = ""};

	if (ring_file_open(&b->fd, &f, &e) != SHARD_OK)
		fail_msg("%s", e.text);
}

static void start(struct bench *b, const struct ring_row *row)
{
	struct ring_conf conf = conf_of(b, row == &ring_threads);
	struct err e = {.text = ""};

	assert_int_equal(row != NULL ? ring_open_row(&b->ring, row, &conf, &e)
				     : ring_open(&b->ring, &conf, &e),
			 SHARD_OK);
	assert_int_equal(ring_start(b->ring, &b->loop, &e), SHARD_OK);
}

static void until(struct bench *b, uint32_t nr)
{
	while (b->done < nr)
		uv_run(&b->loop, UV_RUN_ONCE);
	assert_int_equal(b->done, nr);
}

/* --- rows that there are --- */

static void there_and_back(const struct ring_row *row)
{
	struct bench b;

	setup(&b);
	open_file(&b);
	start(&b, row);
	for (int i = 0; i < BUFFER; i++)
		b.memory[i] = (uint8_t)(i * 7 + i / 256);
	assert_int_equal(ring_write(b.ring, 0, 0, BUFFER, BUFFER, done, &b, 0), SHARD_OK);
	assert_int_equal(ring_flying(b.ring), 1);
	until(&b, 1);
	assert_int_equal(b.result[0], BUFFER);
	assert_int_equal(ring_sync(b.ring, done, &b, 1), SHARD_OK);
	until(&b, 2);
	assert_int_equal(b.result[1], 0);
	/* A part of it, and what nobody has written. */
	assert_int_equal(
		ring_read(b.ring, 1, RING_ALIGN, RING_ALIGN, BUFFER + RING_ALIGN, done, &b, 2),
		SHARD_OK);
	assert_int_equal(ring_read(b.ring, 2, 0, BUFFER, 0, done, &b, 3), SHARD_OK);
	/* The file ends in the middle of it, or before. */
	assert_int_equal(ring_read(b.ring, 1, 2 * RING_ALIGN, 2 * RING_ALIGN,
				   FILE_BYTES - RING_ALIGN, done, &b, 4),
			 SHARD_OK);
	assert_int_equal(ring_read(b.ring, 1, 0, RING_ALIGN, FILE_BYTES, done, &b, 5), SHARD_OK);
	assert_int_equal(ring_sync(b.ring, done, &b, 6), SHARD_AGAIN);
	until(&b, 6);
	assert_int_equal(b.result[2], RING_ALIGN);
	assert_memory_equal(b.memory + BUFFER + RING_ALIGN, b.memory + RING_ALIGN, RING_ALIGN);
	assert_int_equal(b.result[3], BUFFER);
	for (int i = 0; i < BUFFER; i++)
		assert_int_equal(b.memory[2 * BUFFER + i], 0);
	assert_int_equal(b.result[4], -ENODATA);
	assert_int_equal(b.result[5], -ENODATA);
	assert_int_equal(ring_flying(b.ring), 0);
	assert_string_equal(ring_kind(b.ring), row != NULL ? row->name : ring_kind(b.ring));
	/* What is under way when it stops is waited for, and nobody hears of it. */
	assert_int_equal(ring_write(b.ring, 0, 0, BUFFER, 0, done, &b, 6), SHARD_OK);
	teardown(&b);
	assert_int_equal(b.done, 6);
}

static void by_threads(void **state)
{
	(void)state;
	there_and_back(&ring_threads);
}

static void by_what_there_is(void **state)
{
	(void)state;
	there_and_back(NULL);
}

/* Where io_uring cannot be had, the threads say why. */
static void threads_instead(void **state)
{
	struct bench b;
	struct ring_conf conf;
	struct err e;

	(void)state;
	setup(&b);
	open_file(&b);
	conf = conf_of(&b, false);
	conf.entries = 1 << 20; /* More than a ring may have. */
	assert_int_equal(ring_open(&b.ring, &conf, &e), SHARD_OK);
	assert_string_equal(ring_kind(b.ring), "threads");
	assert_string_not_equal(ring_why(b.ring), "");
	teardown(&b);
}

/* --- a row that does what the test says --- */

static struct fake {
	struct ring_io io[ENTRIES];
	uint32_t nr;
	int event;
	bool closed;
} fake;

static bool fake_open(void **self, const struct ring_conf *conf, int event, char why[128])
{
	(void)conf;
	(void)why;
	fake = (struct fake){.event = event};
	*self = &fake;
	return true;
}

static void fake_submit(void *self, const struct ring_io *io)
{
	(void)self;
	assert_in_range(fake.nr, 0, ENTRIES - 1);
	fake.io[fake.nr++] = *io;
}

static void fake_reap(void *self, struct ring *r, bool wait)
{
	(void)self;
	while (wait && fake.nr > 0)
		ring_moved(r, fake.io[--fake.nr].nr, -EAGAIN);
}

static void fake_close(void *self)
{
	(void)self;
	fake.closed = true;
}

static const struct ring_row fake_row = {.name = "fake",
					 .open = fake_open,
					 .submit = fake_submit,
					 .reap = fake_reap,
					 .close = fake_close};

/* The i-th request under way ends so. */
static void ends(struct bench *b, uint32_t i, int64_t result)
{
	struct ring_io io = fake.io[i];

	assert_in_range(i, 0, fake.nr - 1);
	fake.nr--;
	memmove(&fake.io[i], &fake.io[i + 1], (fake.nr - i) * sizeof(io));
	ring_moved(b->ring, io.nr, result);
}

static void short_and_late(void **state)
{
	struct bench b;

	(void)state;
	setup(&b);
	open_file(&b);
	start(&b, &fake_row);
	assert_int_equal(ring_write(b.ring, 0, 0, BUFFER, 0, done, &b, 0), SHARD_OK);
	assert_int_equal(ring_read(b.ring, 1, 0, BUFFER, BUFFER, done, &b, 1), SHARD_OK);
	/* The second one is done first, after two parts. Of the first part one block counts. */
	ends(&b, 1, RING_ALIGN + 512);
	assert_int_equal(b.done, 0);
	assert_ptr_equal(fake.io[1].at, b.memory + BUFFER + RING_ALIGN);
	assert_int_equal(fake.io[1].bytes, BUFFER - RING_ALIGN);
	assert_int_equal(fake.io[1].offset, BUFFER + RING_ALIGN);
	ends(&b, 1, -EINTR);
	ends(&b, 1, -EAGAIN);
	ends(&b, 1, BUFFER - RING_ALIGN);
	assert_int_equal(b.result[1], BUFFER);
	assert_int_equal(b.done, 1);
	/* Nothing was moved: the disk is full, or the file ends. */
	ends(&b, 0, 0);
	assert_int_equal(b.result[0], -EIO);
	assert_int_equal(ring_read(b.ring, 1, 0, BUFFER, BUFFER, done, &b, 2), SHARD_OK);
	ends(&b, 0, 512);
	assert_int_equal(b.result[2], -ENODATA);
	assert_int_equal(ring_read(b.ring, 1, 0, BUFFER, BUFFER, done, &b, 3), SHARD_OK);
	ends(&b, 0, RING_ALIGN);
	ends(&b, 0, -EIO);
	assert_int_equal(b.result[3], -EIO);
	assert_int_equal(ring_flying(b.ring), 0);
	assert_int_equal(ring_sync(b.ring, done, &b, 4), SHARD_OK);
	assert_int_equal(fake.io[0].what, RING_SYNC);
	ends(&b, 0, -ENOSPC);
	assert_int_equal(b.result[4], -ENOSPC);
	/* It is not tried again for ever. */
	assert_int_equal(ring_sync(b.ring, done, &b, 5), SHARD_OK);
	for (int i = 0; b.done < 6; i++) {
		assert_in_range(i, 0, 1000);
		ends(&b, 0, -EAGAIN);
	}
	assert_int_equal(b.result[5], -EAGAIN);
	assert_int_equal(ring_sync(b.ring, done, &b, 6), SHARD_OK);
	teardown(&b);
	assert_true(fake.closed);
	assert_int_equal(b.done, 6);
}

static void counts(void *owner, uint64_t tag, int64_t result)
{
	struct bench *b = owner;

	(void)tag;
	assert_int_equal(result, RING_ALIGN);
	b->done++;
}

/* Requests that end in any order leave every place of the table usable. */
static void any_order(void **state)
{
	struct bench b;
	uint32_t made = 0, seed = 1;

	(void)state;
	setup(&b);
	open_file(&b);
	start(&b, &fake_row);
	for (int i = 0; i < 2000; i++) {
		seed = seed * 1664525 + 1013904223;
		if ((seed >> 20) % 2 == 0 && b.done + ENTRIES > made) {
			assert_int_equal(ring_read(b.ring, 0, 0, RING_ALIGN, 0, counts, &b, 0),
					 SHARD_OK);
			made++;
		} else if (fake.nr > 0) {
			ends(&b, (seed >> 8) % fake.nr, RING_ALIGN);
		}
		assert_int_equal(ring_flying(b.ring), made - b.done);
		if (ring_flying(b.ring) == ENTRIES)
			assert_int_equal(ring_sync(b.ring, done, &b, 0), SHARD_AGAIN);
	}
	teardown(&b);
}

/* --- what is refused --- */

static void refused_files(void **state)
{
	struct bench b;
	struct ring_file f;
	struct err e;
	int fd = -1;

	(void)state;
	setup(&b);
	f = file_of(&b);
	f.there = true;
	assert_int_equal(ring_file_open(&fd, &f, &e), SHARD_NOT_FOUND);
	f.there = false;
	f.bytes = 1ull << 50;
	assert_int_equal(ring_file_open(&fd, &f, &e), SHARD_BUDGET);
	assert_non_null(strstr(e.text, "1073741824.0 MiB"));
	assert_non_null(strstr(e.text, "MiB are free there"));
	assert_non_null(strstr(e.text, b.dir));
	f.bytes = FILE_BYTES;
	assert_int_equal(ring_file_open(&fd, &f, &e), SHARD_OK);
	assert_int_equal(close(fd), 0);
	f.there = true;
	assert_int_equal(ring_file_open(&fd, &f, &e), SHARD_OK);
	assert_int_equal(close(fd), 0);
	f.bytes = 2 * FILE_BYTES;
	assert_int_equal(ring_file_open(&fd, &f, &e), SHARD_MISMATCH);
	f.dir = "build/there-is-no-such-folder";
	assert_int_equal(ring_file_open(&fd, &f, &e), SHARD_NOT_FOUND);
	f.there = false;
	assert_int_equal(ring_file_open(&fd, &f, &e), SHARD_SYSTEM);
	assert_non_null(strstr(e.text, f.dir));
	assert_int_equal(fd == -1 || fcntl(fd, F_GETFD) == -1, true);
	teardown(&b);
}

/* The text names the path and the process that has the lock. */
static void locked(void **state)
{
	struct bench b;
	struct ring_file f;
	struct err e;
	int ready[2], status;
	char pid[32], x;
	pid_t child;

	(void)state;
	setup(&b);
	open_file(&b);
	assert_int_equal(close(b.fd), 0);
	f = file_of(&b);
	f.there = true;
	assert_int_equal(pipe(ready), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		int fd;

		if (ring_file_open(&fd, &f, &e) != SHARD_OK || write(ready[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(ready[0], &x, 1), 1);
	f.fence_ns = 1;
	assert_int_equal(ring_file_open(&b.fd, &f, &e), SHARD_BUSY);
	assert_non_null(strstr(e.text, b.dir));
	snprintf(pid, sizeof(pid), "(pid %d)", (int)child);
	assert_non_null(strstr(e.text, pid));
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	f.fence_ns = 60ull * 1000 * 1000 * 1000;
	assert_int_equal(ring_file_open(&b.fd, &f, &e), SHARD_OK);
	assert_int_equal(close(b.fd), 0);
	(void)close(ready[0]);
	(void)close(ready[1]);
	teardown(&b);
}

static void no_memory(void **state)
{
	const struct ring_row *rows[] = {&ring_threads, &fake_row};
	struct fault f;
	struct bench b;

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		setup(&b);
		open_file(&b);
		for (fault_begin(&f); fault_next(&f);) {
			struct ring_conf conf = conf_of(&b, true);
			struct ring *r = NULL;
			struct err e;
			enum shard_status st = ring_open_row(&r, rows[i], &conf, &e);

			if (fault_end(&f)) {
				assert_int_not_equal(st, SHARD_OK);
				assert_true(fcntl(b.fd, F_GETFD) != -1);
			} else {
				assert_int_equal(st, SHARD_OK);
				ring_close(&r);
			}
		}
		teardown(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_threads),      cmocka_unit_test(by_what_there_is),
		cmocka_unit_test(threads_instead), cmocka_unit_test(short_and_late),
		cmocka_unit_test(any_order),       cmocka_unit_test(refused_files),
		cmocka_unit_test(locked),          cmocka_unit_test(no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
