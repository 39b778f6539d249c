// SPDX-License-Identifier: Apache-2.0
/* Tests what a node's file of a checkpoint shares with the one before. Nothing that is equal is
 * written again, and nothing that changed is shared, whatever the earlier file holds by now. Each
 * new file is read back bit by bit when the earlier one is gone. reflink.h plays the file system,
 * and loop devices with XFS and Btrfs show the same where the test may mount them. */
#include "base/check.h"
#include "ckpt/part.h"
#include "lib/ckpts.h"
#include "lib/reflink.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum {
	PIECES = 4,
	HEADER = 4096,
	/* The last piece is short, and ends within a block. */
	ELEMS = PIECES * (PART_PIECE_BYTES / 4) - 10001,
};

#define OLDER "older.safetensors"
#define NEWER "newer.safetensors"

struct pair {
	char dir[64], older[96], image[96];
	float *w, *back;
	struct part_file was, is;
	bool mounted;
};

static int setup(void **state)
{
	struct pair *p = calloc(1, sizeof(*p));

	CHECK(p != NULL && (p->w = malloc(ELEMS * 4ul)) != NULL);
	CHECK((p->back = malloc(ELEMS * 4ul)) != NULL);
	for (uint32_t i = 0; i < ELEMS; i++)
		p->w[i] = (float)(i % 16777213);
	ckpts_folder(p->dir);
	reflink_is(REFLINK_COPIES);
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct pair *p = *state;
	char command[128];

	reflink_is(REFLINK_REAL);
	reflink_removes(NULL);
	snprintf(command, sizeof(command), "umount %s", p->dir);
	CHECK(!p->mounted || system(command) == 0);
	if (p->image[0] != 0)
		unlink(p->image);
	part_file_free(&p->was);
	part_file_free(&p->is);
	ckpts_remove(p->dir);
	free(p->w);
	free(p->back);
	free(p);
	return 0;
}

static struct part_run run_of(float *at, uint32_t elems)
{
	return (struct part_run){.kind = SHARD_MASTER, .tensor = "w", .count = elems, .at = at};
}

static void write_file(struct pair *p, const char *name, uint32_t elems,
		       const struct part_older *older, struct part_file *out)
{
	const struct part_run run = run_of(p->w, elems);
	struct part_progress progress = {0};
	struct err e = {.text = ""};

	if (part_write(p->dir, name, &run, 1, NULL, 0, older, out, &progress, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_int_equal(progress.done_bytes, out->bytes);
	assert_int_equal(progress.shared_bytes, out->shared_bytes);
}

static void write_older(struct pair *p)
{
	snprintf(p->older, sizeof(p->older), "%s/" OLDER, p->dir);
	write_file(p, OLDER, ELEMS, NULL, &p->was);
	assert_int_equal(p->was.sums_nr, PIECES);
	assert_int_equal(p->was.bytes, HEADER + ELEMS * 4ul);
	assert_int_equal(p->was.shared_bytes, 0);
}

/* Writes the newer file, removes the earlier one, and reads the newer one. */
static void write_newer(struct pair *p, uint32_t elems)
{
	const struct part_older older = {p->dir, &p->was};
	const struct part_run run = run_of(p->back, elems);
	struct err e = {.text = ""};

	write_file(p, NEWER, elems, &older, &p->is);
	(void)unlink(p->older);
	memset(p->back, 0xff, elems * 4ul);
	if (part_verify(p->dir, &p->is, 1, NULL, &e) != SHARD_OK ||
	    part_load(p->dir, &p->is, 1, &run, 1, false, NULL, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_memory_equal(p->back, p->w, elems * 4ul);
}

static uint64_t piece(uint32_t i) /* Its bytes. */
{
	return i + 1 < PIECES ? PART_PIECE_BYTES
			      : HEADER + ELEMS * 4ul - (PIECES - 1) * (uint64_t)PART_PIECE_BYTES;
}

static void shares_all(void **state)
{
	struct pair *p = *state;

	write_older(p);
	write_newer(p, ELEMS);
	assert_int_equal(p->is.shared_bytes, p->is.bytes);
	/* Before, the first piece was to show that the file system can share. */
	assert_int_equal(reflink_bytes(), PART_PIECE_BYTES + p->is.bytes);
}

/* A change of one bit of one element, at each end of each piece. */
static void writes_changes(void **state)
{
	struct pair *p = *state;

	for (uint32_t i = 0; i < 2 * PIECES; i++) {
		uint64_t from = i / 2 * (uint64_t)PART_PIECE_BYTES,
			 at = i % 2 == 0 ? (from > 0 ? from - HEADER : 0)
					 : from + piece(i / 2) - HEADER - 4;

		write_older(p);
		((uint32_t *)p->w)[at / 4] ^= 1;
		write_newer(p, ELEMS);
		assert_int_equal(p->is.shared_bytes, p->is.bytes - piece(i / 2));
		part_file_free(&p->was);
		part_file_free(&p->is);
	}
}

/* What the disk has of the earlier file now is not what its manifest says. */
static void finds_damage(void **state)
{
	struct pair *p = *state;
	char bad = 77;
	int fd;

	write_older(p);
	fd = open(p->older, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, &bad, 1, 2 * PART_PIECE_BYTES + 12345), 1);
	close(fd);
	write_newer(p, ELEMS);
	assert_int_equal(p->is.shared_bytes, p->is.bytes - piece(2));
}

/* It is longer or shorter than the manifest says, is no plain file, or is not there. */
static void needs_the_file(void **state)
{
	struct pair *p = *state;

	for (int i = 0; i < 4; i++) {
		write_older(p);
		reflink_is(REFLINK_COPIES);
		assert_int_equal(i > 1 ? 0 : truncate(p->older, (off_t)p->was.bytes + (i ? 1 : -1)),
				 0);
		assert_true(i < 2 || unlink(p->older) == 0);
		assert_true(i != 2 || mkfifo(p->older, 0600) == 0);
		write_newer(p, ELEMS);
		assert_int_equal(p->is.shared_bytes, 0);
		assert_int_equal(reflink_calls(), 0);
		part_file_free(&p->was);
		part_file_free(&p->is);
	}
}

/* It is pruned while the newer one is written. */
static void outlives_a_pruning(void **state)
{
	struct pair *p = *state;

	write_older(p);
	reflink_removes(p->older);
	write_newer(p, ELEMS);
	assert_int_equal(p->is.shared_bytes, p->is.bytes);
}

/* The model is laid out in another way: its header and its last piece differ. */
static void other_lengths(void **state)
{
	struct pair *p = *state;
	const uint32_t elems[] = {ELEMS - 1, ELEMS + 1 - 2 * (PART_PIECE_BYTES / 4)};

	for (size_t i = 0; i < NR(elems); i++) {
		write_older(p);
		write_newer(p, elems[i]);
		assert_int_equal(p->is.shared_bytes,
				 (p->is.sums_nr - 2) * (uint64_t)PART_PIECE_BYTES);
		part_file_free(&p->was);
		part_file_free(&p->is);
	}
}

/* The file system cannot share, or fails in the middle. Each thread then asks once at most. */
static void is_refused(void **state)
{
	struct pair *p = *state;

	for (enum reflink how = REFLINK_REFUSES; how <= REFLINK_ENDS; how++) {
		write_older(p);
		reflink_is(how);
		write_newer(p, ELEMS);
		assert_int_equal(p->is.shared_bytes, 0);
		assert_in_range(reflink_calls(), 1, how == REFLINK_REFUSES ? 1 : 5);
		part_file_free(&p->was);
		part_file_free(&p->is);
	}
}

static uint64_t used(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_CLOEXEC);
	struct statvfs s;

	assert_true(fd >= 0 && syncfs(fd) == 0); /* What was freed counts from then on. */
	close(fd);
	assert_int_equal(statvfs(dir, &s), 0);
	return (s.f_blocks - s.f_bfree) * s.f_frsize;
}

/* On a real file system the disk has what is shared once. */
static void on_real_one(struct pair *p, const char *mkfs)
{
	const struct part_older older = {p->dir, &p->was};
	uint64_t before, after;
	char command[512];

	reflink_is(REFLINK_REAL);
	snprintf(p->image, sizeof(p->image), "%s.image", p->dir);
	snprintf(command, sizeof(command),
		 "truncate -s 400M %s && %s %s >/dev/null && mount -o loop %s %s", p->image, mkfs,
		 p->image, p->image, p->dir);
	if (geteuid() != 0 || system(command) != 0)
		skip();
	p->mounted = true;
	write_older(p);
	before = used(p->dir);
	p->w[PART_PIECE_BYTES / 4] = -1;
	write_file(p, NEWER, ELEMS, &older, &p->is);
	after = used(p->dir);
	assert_int_equal(p->is.shared_bytes, p->is.bytes - piece(1));
	assert_in_range(after - before, PART_PIECE_BYTES, 2 * PART_PIECE_BYTES);
	part_file_free(&p->is);
	write_newer(p, ELEMS);
	assert_int_equal(p->is.shared_bytes, p->is.bytes - piece(1));
}

static void on_xfs(void **state)
{
	on_real_one(*state, "mkfs.xfs -q -m reflink=1");
}

static void on_btrfs(void **state)
{
	on_real_one(*state, "mkfs.btrfs -q");
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(shares_all),         TEST(writes_changes), TEST(finds_damage),
		TEST(needs_the_file),     TEST(other_lengths),  TEST(is_refused),
		TEST(outlives_a_pruning), TEST(on_xfs),         TEST(on_btrfs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
