// SPDX-License-Identifier: Apache-2.0
/* What forged superblocks come to: whoever wrote them knew how to make sums, so only the numbers in
 * them can be refused. (What a loss of power leaves is tested by test_nvme_power.c.) */
#include "store/superblock.h"
#include "store/trailer.h"
#include "wire/xxh.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { CHUNKS = 9, ID = 77, PAYLOAD = 5000, FILE_BYTES = 1 << 20 };

static int fd = -1;

static void new_file(void)
{
	if (fd >= 0)
		assert_int_equal(close(fd), 0);
	fd = memfd_create("superblock", MFD_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, FILE_BYTES), 0);
}

static void put(uint64_t at, const void *bytes, size_t nr)
{
	assert_int_equal(pwrite(fd, bytes, nr, (off_t)at), nr);
}

static uint64_t found(void)
{
	struct super_found f;
	struct err e;
	enum shard_status st = super_find(&f, fd, ID, UINT64_MAX, &e);
	uint64_t nr = st == SHARD_OK ? f.of.step : UINT64_MAX;

	assert_true(st == SHARD_OK || st == SHARD_NOT_FOUND);
	super_free(&f);
	return nr;
}

/* Numbers that super_seal() would not take. */
static void forged(void **state)
{
	static const struct {
		uint32_t cells_nr;
		uint64_t room, slot_bytes, payload_bytes;
	} wrong[] = {
		{UINT32_MAX, 8192, 12288, PAYLOAD},
		{CHUNKS, 8192, 12288, UINT64_MAX / 2},
		{CHUNKS, UINT64_MAX - 4095, 12288, PAYLOAD},
		{CHUNKS, 1ull << 62, 12288, PAYLOAD},
		{CHUNKS, 8192, 0, PAYLOAD},
		{CHUNKS, 8192, 4096, PAYLOAD},
		{CHUNKS, 8192, UINT64_MAX - 4095, PAYLOAD},
		{CHUNKS, 8192 + 512, 12288, PAYLOAD},
		{CHUNKS, 4096, 12288, PAYLOAD},
		{0, 8192, 12288, PAYLOAD},
	};
	uint8_t *at = aligned_alloc(4096, 16384);

	(void)state;
	assert_non_null(at);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		/* The head alone is made anew, of numbers that super_seal() would not take. */
		struct super_of of = {.id = ID,
				      .seq = 9,
				      .step = 9,
				      .room = 8192,
				      .slot_bytes = 12288,
				      .payload_bytes = PAYLOAD,
				      .cells_nr = CHUNKS};
		uint64_t own;

		memset(at, 0, 16384);
		super_seal(&of, at);
		memcpy(at + 12, &wrong[i].cells_nr, 4);
		memcpy(at + 40, &wrong[i].room, 8);
		memcpy(at + 48, &wrong[i].slot_bytes, 8);
		memcpy(at + 56, &wrong[i].payload_bytes, 8);
		own = xxh_sum(at, 72, 0);
		memcpy(at + 72, &own, 8);
		new_file();
		put(super_head_at(&of), at, 4096);
		put(super_body_at(&of), at + 4096, 8192);
		assert_int_equal(found(), UINT64_MAX);
	}
	free(at);
}

/* So many writes there never are, and the next ones need numbers, too. */
static void forged_counts(void **state)
{
	struct super_of of = {.id = ID,
			      .seq = 9,
			      .step = 9,
			      .room = 8192,
			      .slot_bytes = 12288,
			      .payload_bytes = PAYLOAD,
			      .cells_nr = CHUNKS};
	struct trailer_of t = {.id = ID, .seq = 7, .bytes = 4096, .chunk = 3};
	uint8_t *at = aligned_alloc(4096, 16384), *slot = aligned_alloc(4096, 8192);

	(void)state;
	assert_non_null(at);
	assert_non_null(slot);
	for (int how = 0; how < 3; how++) {
		of.seq = how == 1 ? UINT64_MAX : 9;
		t.seq = how == 2 ? (1ull << 40) - 1 : 7;
		memset(at, 0, 16384);
		memset(slot, 0, 8192);
		super_cells(at)[0] = (struct super_cell){1ull << 40 | t.seq, t.chunk, 1};
		super_seal(&of, at);
		trailer_write(&t, slot);
		new_file();
		put(super_head_at(&of), at, 4096);
		put(super_body_at(&of), at + 4096, 8192);
		put(super_area(of.room), slot, 8192);
		assert_int_equal(found(), how == 0 ? 9 : UINT64_MAX);
	}
	free(at);
	free(slot);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forged),
		cmocka_unit_test(forged_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
