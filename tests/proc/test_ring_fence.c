// SPDX-License-Identifier: Apache-2.0
/* Tests that the lock of a ring's file is a fence. A process is killed with many writes under way.
 * Some of them still run when waitpid() has returned. So a start that wrote at once would find its
 * bytes overwritten later. With the lock it never does, and what it reads first does not change
 * any more. */
#include "base/check.h"
#include "base/clock.h"
#include "store/ring.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WRITES = 32, BYTES = 1 << 20, ROUNDS = 8 };

struct scene {
	char dir[64], path[80];
	bool threads;
	uint32_t busy; /* Starts that found the lock taken. */
};

static void again(void *owner, uint64_t tag, int64_t result)
{
	struct ring *r = owner;

	if (result != BYTES ||
	    ring_write(r, 0, tag * BYTES, BYTES, tag * BYTES, again, r, tag) != 0)
		_exit(2);
}

/* Writes all blocks of the file again and again, until it is killed. */
static void writer(const struct scene *s, int told)
{
	struct ring_file f = {.dir = s->dir,
			      .name = "f",
			      .bytes = WRITES * BYTES,
			      .fence_ns = 60ull * 1000 * 1000 * 1000};
	struct iovec iov = {mmap(NULL, WRITES * BYTES, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
			    WRITES * BYTES};
	struct ring_conf conf = {
		.buffer = &iov, .buffers_nr = 1, .entries = WRITES, .threads = s->threads};
	uv_loop_t loop;
	struct ring *r;
	struct err e;

	memset(iov.iov_base, 0xcc, iov.iov_len);
	if (ring_file_open(&conf.fd, &f, &e) != SHARD_OK || ring_open(&r, &conf, &e) != SHARD_OK ||
	    uv_loop_init(&loop) != 0 || ring_start(r, &loop, &e) != SHARD_OK)
		_exit(1);
	for (uint64_t i = 0; i < WRITES; i++)
		if (ring_write(r, 0, i * BYTES, BYTES, i * BYTES, again, r, i) != SHARD_OK)
			_exit(1);
	if (write(told, "x", 1) != 1)
		_exit(1);
	uv_run(&loop, UV_RUN_DEFAULT);
	_exit(3);
}

static void kill_writer(const struct scene *s, uint32_t round)
{
	int told[2], status;
	uint64_t until;
	pid_t child;
	char x;

	assert_int_equal(pipe(told), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		writer(s, told[1]);
	assert_int_equal(read(told[0], &x, 1), 1);
	/* A moment that differs from round to round. Nothing depends on how long it is. */
	for (until = clock_ns() + round * 3000000ull; clock_ns() < until;)
		;
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	(void)close(told[0]);
	(void)close(told[1]);
}

/* Writes something else over all of it, and counts the blocks in which it is not any more, when
 * nothing of the killed process can be under way. */
static uint32_t overwritten(struct scene *s, bool lock)
{
	uint8_t *block = aligned_alloc(RING_ALIGN, BYTES);
	struct ring_file f = {.dir = s->dir,
			      .name = "f",
			      .bytes = WRITES * BYTES,
			      .there = true,
			      .fence_ns = 60ull * 1000 * 1000 * 1000};
	uint32_t bad = 0;
	struct err e;
	int fd;

	if (lock) {
		fd = open(s->path, O_RDWR | O_DIRECT);
		assert_true(fd >= 0);
		s->busy += flock(fd, LOCK_EX | LOCK_NB) != 0;
		assert_int_equal(close(fd), 0);
		assert_int_equal(ring_file_open(&fd, &f, &e), SHARD_OK);
	} else {
		fd = open(s->path, O_RDWR | O_DIRECT);
		assert_true(fd >= 0);
	}
	memset(block, 0x11, BYTES);
	for (int i = WRITES - 1; i >= 0; i--)
		assert_int_equal(pwrite(fd, block, BYTES, (off_t)i * BYTES), BYTES);
	if (!lock) /* Now the killed process is done, and whoever has the lock may look. */
		assert_int_equal(flock(fd, LOCK_EX), 0);
	for (int i = 0; i < WRITES; i++) {
		assert_int_equal(pread(fd, block, BYTES, (off_t)i * BYTES), BYTES);
		for (int k = 0; k < BYTES; k += 512)
			if (block[k] != 0x11) {
				bad++;
				break;
			}
	}
	assert_int_equal(close(fd), 0);
	free(block);
	return bad;
}

static void setup(struct scene *s, bool threads)
{
	*s = (struct scene){.dir = "build/fence-XXXXXX", .threads = threads};
	assert_non_null(mkdtemp(s->dir));
	snprintf(s->path, sizeof(s->path), "%s/f", s->dir);
}

static void teardown(const struct scene *s)
{
	assert_int_equal(unlink(s->path), 0);
	assert_int_equal(rmdir(s->dir), 0);
}

static void fenced(bool threads)
{
	struct scene s;

	setup(&s, threads);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		kill_writer(&s, i);
		assert_int_equal(overwritten(&s, true), 0);
	}
	teardown(&s);
}

static void with_the_lock(void **state)
{
	(void)state;
	fenced(false);
}

static void with_the_lock_and_threads(void **state)
{
	(void)state;
	fenced(true);
}

/* The control: without the lock, writes of the killed process land later. It depends on the disk
 * how many, so that it says what it saw, and fails only if the lock was free and bytes still
 * changed. */
static void without_the_lock(void **state)
{
	struct scene s;
	uint32_t bad = 0, busy;
	int fd;

	(void)state;
	setup(&s, false);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		bool taken;

		kill_writer(&s, i);
		fd = open(s.path, O_RDWR | O_DIRECT);
		assert_true(fd >= 0);
		taken = flock(fd, LOCK_EX | LOCK_NB) != 0;
		assert_int_equal(close(fd), 0);
		s.busy += taken;
		busy = overwritten(&s, false);
		assert_true(taken || busy == 0);
		bad += busy;
	}
	print_message("without the lock %u of %u MiB were overwritten, the lock was taken at %u of "
		      "%u starts\n",
		      bad, ROUNDS * WRITES, s.busy, ROUNDS);
	teardown(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(with_the_lock),
		cmocka_unit_test(with_the_lock_and_threads),
		cmocka_unit_test(without_the_lock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
