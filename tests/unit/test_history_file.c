/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the files of a history: they go on over restarts, an end that is half written is cut at
 * every byte, damage is named and stays, the oldest file goes, a full disk takes nothing half, and
 * pages give all bytes back. */
#include "cluster/history_file.h"
#include "lib/rmtree.h"
#include "wire/history.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { MODEL = 0x2a, BODY = 200, ENTRY = HISTORY_HEAD_BYTES + BODY };

static char state_dir[64];

static int make_place(void **state)
{
	(void)state;
	snprintf(state_dir, sizeof(state_dir), "/tmp/shard-history-XXXXXX");
	return mkdtemp(state_dir) != NULL ? 0 : -1;
}

static int remove_place(void **state)
{
	(void)state;
	rmtree(state_dir);
	return 0;
}

static char *path_of(uint32_t file)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/history/%08x.%08x", state_dir, MODEL, file);
	return path;
}

static void fill(unsigned char *at, uint32_t body, unsigned char with)
{
	memset(at, 0, HISTORY_HEAD_BYTES);
	memcpy(at + 4, &body, sizeof(body));
	memset(at + HISTORY_HEAD_BYTES, with, body);
}

/* One entry, whose bytes all have its number. */
static enum shard_status add(struct history_file *f, struct err *e)
{
	unsigned char at[ENTRY];

	if (f->fd < 0 && history_file_open(f, e) != SHARD_OK)
		return e->status;
	fill(at, BODY, (unsigned char)f->number);
	return history_file_append(f, at, sizeof(at), e);
}

static void must_add(struct history_file *f)
{
	struct err e = {.text = ""};

	if (add(f, &e) != SHARD_OK)
		fail_msg("%s", e.text);
}

static void init(struct history_file *f)
{
	history_file_init(f, state_dir, MODEL, HISTORY_LIMIT_MIN);
}

/* Reads pages of `room` bytes, and returns all bytes. *files: of how many files they are. */
static unsigned char *read_all(struct history_file *f, size_t room, size_t *nr, uint32_t *files)
{
	struct history_span at = {.last = f->file, .last_bytes = f->bytes};
	unsigned char *all = malloc(8 * HISTORY_LIMIT_MIN);
	struct err e = {.text = ""};
	uint32_t last = 0;

	*nr = *files = 0;
	do {
		at.file = at.next_file;
		at.offset = at.next_offset;
		if (history_file_read(f, &at, all + *nr, room, &e) != SHARD_OK)
			fail_msg("%s", e.text);
		assert_true(at.nr <= room);
		*nr += at.nr;
		*files += at.file != last;
		last = at.file;
	} while (!at.end);
	return all;
}

/* All entries are whole, and their numbers go from first to last. */
static void expect(struct history_file *f, uint64_t first, uint64_t last)
{
	struct history_entry e;
	size_t nr, at = 0;
	uint32_t files;
	unsigned char *all = read_all(f, 1000, &nr, &files);

	for (uint64_t k = first; k <= last; k++) {
		assert_int_equal(history_next(all + at, nr - at, &e), HISTORY_WHOLE);
		assert_int_equal(e.number, k);
		assert_int_equal(e.body[0], (unsigned char)k);
		at += e.bytes;
	}
	assert_int_equal(at, nr);
	free(all);
}

static void test_restart(void **state)
{
	struct history_file f;

	(void)state;
	for (uint64_t k = 0; k < 5; k++) {
		init(&f);
		must_add(&f);
		must_add(&f);
		assert_int_equal(f.cut, 0);
		expect(&f, 1, 2 * k + 2);
		history_file_close(&f);
	}
}

/* Whatever a killed process has left of the last entry, it is cut off, and the next one has its
 * number. */
static void test_torn(void **state)
{
	struct history_file f;

	(void)state;
	for (off_t left = 0; left <= ENTRY; left++) {
		init(&f);
		for (int k = 0; k < 3; k++)
			must_add(&f);
		history_file_close(&f);
		assert_int_equal(truncate(path_of(1), 2 * ENTRY + left), 0);
		init(&f);
		must_add(&f);
		assert_int_equal(f.cut, left == ENTRY ? 0 : left);
		assert_int_equal(f.damage[0], 0);
		expect(&f, 1, left == ENTRY ? 4 : 3);
		history_file_close(&f);
		rmtree(f.dir);
	}
}

/* The last entry is there as far as its length goes, but not its bytes. */
static void test_zeros(void **state)
{
	char zeros[ENTRY] = {0};
	struct history_file f;
	int fd;

	(void)state;
	init(&f);
	must_add(&f);
	history_file_close(&f);
	assert_true((fd = open(path_of(1), O_WRONLY | O_APPEND)) >= 0);
	assert_int_equal(write(fd, zeros, sizeof(zeros)), sizeof(zeros));
	close(fd);
	init(&f);
	must_add(&f);
	assert_int_equal(f.cut, ENTRY);
	expect(&f, 1, 2);
	history_file_close(&f);
}

static void flip(uint32_t file, off_t at)
{
	int fd = open(path_of(file), O_RDWR);
	unsigned char byte;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

/* Each bit counts. The file stays as it is, so that what is whole behind the damage is not lost,
 * and numbers go on. */
static void test_damaged(void **state)
{
	struct history_file f;
	struct history_entry e;
	unsigned char *all;
	uint32_t files;
	size_t nr;

	(void)state;
	for (off_t at = ENTRY; at < 2 * ENTRY; at++) {
		init(&f);
		for (int k = 0; k < 3; k++)
			must_add(&f);
		history_file_close(&f);
		flip(1, at);
		init(&f);
		must_add(&f);
		assert_non_null(strstr(f.damage, "0000002a.00000001 is damaged from byte 224 on"));
		assert_int_equal(f.cut, 0);
		all = read_all(&f, 100, &nr, &files);
		assert_int_equal(nr, 4 * ENTRY);
		assert_int_equal(files, 2);
		assert_int_not_equal(history_next(all + ENTRY, nr - ENTRY, &e), HISTORY_WHOLE);
		assert_int_equal(history_resync(all + ENTRY, nr - ENTRY), ENTRY);
		assert_int_equal(history_next(all + 3 * ENTRY, ENTRY, &e), HISTORY_WHOLE);
		assert_int_equal(e.number, 4);
		free(all);
		history_file_close(&f);
		rmtree(f.dir);
	}
}

static uint64_t on_disk(void)
{
	uint64_t bytes = 0;
	struct stat s;

	for (uint32_t file = 1; file < 200; file++)
		if (stat(path_of(file), &s) == 0)
			bytes += (uint64_t)s.st_size;
	return bytes;
}

/* All files together stay within the limit, each begins with the first entry, and numbers go on
 * over files and restarts. */
static void test_rotation(void **state)
{
	unsigned char *batch = malloc(100 * ENTRY);
	struct err e = {.text = ""};
	struct history_file f;

	(void)state;
	init(&f);
	for (int k = 0; k < 300; k++) {
		unsigned char *all;
		struct history_entry at;
		uint32_t files;
		size_t nr;

		if (k % 7 == 0) {
			free(f.first);
			history_file_close(&f);
			init(&f);
			f.first = malloc(ENTRY);
			f.first_bytes = ENTRY;
			fill(f.first, BODY, 0xee);
		}
		for (int i = 0; i < 100; i++)
			fill(batch + i * ENTRY, BODY, (unsigned char)k);
		assert_int_equal(history_file_append(&f, batch, 100 * ENTRY, &e), SHARD_OK);
		assert_true(on_disk() <= HISTORY_LIMIT_MIN + ENTRY);
		assert_int_equal(f.older + f.bytes, on_disk());
		assert_int_equal(stat(path_of(f.oldest), &(struct stat){0}), 0);
		if (k % 50 != 49)
			continue;
		all = read_all(&f, HISTORY_LIMIT_MIN, &nr, &files);
		assert_int_equal(nr, on_disk());
		assert_int_equal(files, f.file - f.oldest + 1);
		assert_int_equal(history_next(all, nr, &at), HISTORY_WHOLE);
		assert_int_equal(at.body[0], 0xee);
		for (size_t i = 0, number = at.number; i < nr; i += at.bytes) {
			assert_int_equal(history_next(all + i, nr - i, &at), HISTORY_WHOLE);
			assert_int_equal(at.number, number++);
		}
		free(all);
	}
	assert_true(f.oldest > 1 && f.number > 30000);
	free(f.first);
	free(batch);
	history_file_close(&f);
}

/* A process was killed after it had made a new file and before anything was in it. */
static void test_empty_file(void **state)
{
	struct history_file f;
	int fd;

	(void)state;
	init(&f);
	must_add(&f);
	must_add(&f);
	history_file_close(&f);
	assert_true((fd = open(path_of(2), O_WRONLY | O_CREAT, 0600)) >= 0);
	close(fd);
	init(&f);
	must_add(&f);
	assert_int_equal(f.file, 2);
	expect(&f, 1, 3);
	history_file_close(&f);
}

/* The disk takes a part of an entry, or nothing. Then the same entry comes again. */
static void test_full(void **state)
{
	struct rlimit before, less;
	struct err e = {.text = ""};
	struct history_file f;

	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	init(&f);
	must_add(&f);
	for (rlim_t room = 0; room < ENTRY; room += 41) {
		less = before;
		less.rlim_cur = f.bytes + room;
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
		assert_int_equal(add(&f, &e), SHARD_SYSTEM);
		assert_non_null(strstr(e.text, "0000002a.00000001: cannot be written: "));
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
		expect(&f, 1, f.number - 1);
		must_add(&f);
		expect(&f, 1, f.number - 1);
	}
	history_file_close(&f);
}

static void test_no_folder(void **state)
{
	struct err e = {.text = ""};
	struct history_file f;
	int fd;

	(void)state;
	init(&f);
	assert_true((fd = open(f.dir, O_WRONLY | O_CREAT, 0600)) >= 0);
	close(fd);
	assert_int_equal(add(&f, &e), SHARD_SYSTEM);
	assert_non_null(strstr(e.text, "/history/.: cannot be "));
	assert_int_equal(unlink(f.dir), 0);
	must_add(&f);
	expect(&f, 1, 1);
	history_file_close(&f);
}

/* Another model's files, and others that are not ours, stay. */
static void test_remove(void **state)
{
	struct history_file f, other;
	struct err e = {.text = ""};
	char mine[HISTORY_PATH_BYTES + 20];
	int fd;

	(void)state;
	init(&f);
	history_file_init(&other, state_dir, MODEL + 1, HISTORY_LIMIT_MIN);
	assert_int_equal(history_file_remove(&f, &e), SHARD_OK); /* There is no folder. */
	must_add(&f);
	must_add(&other);
	snprintf(mine, sizeof(mine), "%s/%08x.note", f.dir, MODEL);
	assert_true((fd = open(mine, O_WRONLY | O_CREAT, 0600)) >= 0);
	close(fd);
	assert_int_equal(history_file_remove(&f, &e), SHARD_OK);
	assert_int_equal(access(path_of(1), F_OK), -1);
	assert_int_equal(access(mine, F_OK), 0);
	expect(&other, 1, 1);
	history_file_close(&other);
}

/* A cursor may be any. What it asks for is gone, not there yet, or in the middle of an entry. */
static void test_cursor(void **state)
{
	static const uint64_t offsets[] = {0, 1, ENTRY, 3 * ENTRY, 1u << 30, UINT64_MAX};
	struct err e = {.text = ""};
	unsigned char to[ENTRY];
	struct history_file f;

	(void)state;
	init(&f);
	for (int k = 0; k < 3; k++)
		must_add(&f);
	for (uint32_t file = 0; file < 4; file++)
		for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
			struct history_span at = {.file = file == 3 ? UINT32_MAX : file,
						  .offset = offsets[i],
						  .last = 1,
						  .last_bytes = f.bytes};

			assert_int_equal(history_file_read(&f, &at, to, sizeof(to), &e), SHARD_OK);
			assert_true(at.offset + at.nr <= f.bytes && at.file == 1);
			assert_int_equal(at.next_offset, at.offset + at.nr);
		}
	history_file_close(&f);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, make_place, remove_place)
	const struct CMUnitTest tests[] = {T(test_restart), T(test_torn),      T(test_zeros),
					   T(test_damaged), T(test_rotation),  T(test_empty_file),
					   T(test_full),    T(test_no_folder), T(test_remove),
					   T(test_cursor)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
