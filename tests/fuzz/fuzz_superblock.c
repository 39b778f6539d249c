/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: the superblocks of a file of chunks, as a start after a loss of power reads
 * them. A file with two of them, of steps 3 and 4, and the slots
 * that they name is made by the daemon's own code. Byte 0 of an input says which sums are made
 * right again (bits 0 and 1: of the heads; 2 and 3: of the bodies), so that the fuzzer gets behind
 * them, bit 4: the start may only take step 3, bit 5: the file ends early, bit 6: the disk fails
 * reads. Changes follow: area (head, head, body, body,
 * slots), offset (two bytes), length, bytes. What is found must be what the file has, once more,
 * and no later step than the start may take, then or ever after. */
// covers: daemon/store/superblock.c
// needs: daemon/store/trailer.c
#include "base/check.h"
#include "store/slots.h"
#include "store/superblock.h"
#include "store/trailer.h"
#include "wire/xxh.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

enum {
	CELLS = 3,
	PAYLOAD = 4500,
	ROOM = 2 * SUPER_BLOCK,
	SLOT = 2 * SUPER_BLOCK,
	ID = 77,
	AREA = 2 * SUPER_BLOCK + 2 * ROOM,
	FILE_BYTES = AREA + 2 * CELLS * SLOT,
	SUM_AT = 64, /* In a head, and its own sum after that. */
};

static uint8_t whole[FILE_BYTES], bytes[FILE_BYTES];
static int fd = -1, unread = -1; /* unread: it cannot be read. */

static void make(uint64_t seq)
{
	struct super_of of = {.id = ID,
			      .seq = seq,
			      .step = seq,
			      .room = ROOM,
			      .slot_bytes = SLOT,
			      .payload_bytes = PAYLOAD,
			      .cells_nr = CELLS};
	uint8_t *at = aligned_alloc(SUPER_BLOCK, SUPER_BLOCK + ROOM);

	CHECK(at != NULL);
	memset(at, 0, SUPER_BLOCK + ROOM);
	for (uint32_t i = 0; i < CELLS; i++) {
		uint64_t slot = seq % 2 * CELLS + i, word = (slot + 1) << SLOT_SEQ_BITS | seq;
		struct trailer_of t = {.id = ID, .seq = seq, .bytes = SUPER_BLOCK, .chunk = i};

		super_cells(at)[i] = (struct super_cell){word, i, 1};
		trailer_write(&t, whole + AREA + slot * SLOT);
	}
	super_seal(&of, at);
	memcpy(whole + super_head_at(&of), at, SUPER_BLOCK);
	memcpy(whole + super_body_at(&of), at + SUPER_BLOCK, super_body_bytes(&of));
	free(at);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	char path[64];

	(void)argc;
	(void)argv;
	make(3);
	make(4);
	fd = memfd_create("superblock", MFD_CLOEXEC);
	CHECK(fd >= 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	unread = open(path, O_WRONLY | O_CLOEXEC);
	CHECK(unread >= 0);
	return 0;
}

static void change(const uint8_t *data, size_t size)
{
	static const size_t at[] = {0,    SUPER_BLOCK, 2 * SUPER_BLOCK, 2 * SUPER_BLOCK + ROOM,
				    AREA, FILE_BYTES};

	while (size > 4) {
		size_t area = data[0] % 5, room = at[area + 1] - at[area],
		       offset = ((size_t)data[1] | (size_t)data[2] << 8) % room,
		       nr = data[3] < room - offset ? data[3] : room - offset;

		data += 4;
		size -= 4;
		nr = nr < size ? nr : size;
		memcpy(bytes + at[area] + offset, data, nr);
		data += nr;
		size -= nr;
	}
}

static void sign(uint32_t i, bool head, bool body)
{
	uint8_t *h = bytes + i * SUPER_BLOCK, *b = bytes + 2 * SUPER_BLOCK + i * ROOM;
	uint32_t cells;
	uint64_t seq, payload, used, sum;

	memcpy(&cells, h + 12, sizeof(cells));
	memcpy(&seq, h + 24, sizeof(seq));
	memcpy(&payload, h + 56, sizeof(payload));
	used = cells * sizeof(struct super_cell) + payload;
	if (body && payload <= ROOM && used <= ROOM) {
		sum = xxh_sum(b, used, seq);
		memcpy(h + SUM_AT, &sum, sizeof(sum));
	}
	if (head) {
		sum = xxh_sum(h, SUM_AT + 8, 0);
		memcpy(h + SUM_AT + 8, &sum, sizeof(sum));
	}
}

/* The step, or UINT64_MAX. */
static uint64_t find(uint64_t most)
{
	struct super_found f;
	struct err e;
	enum shard_status st = super_find(&f, fd, ID, most, &e);
	uint64_t step;

	if (st != SHARD_OK) {
		CHECK(st == SHARD_NOT_FOUND && f.at == NULL && e.text[0] != 0);
		return UINT64_MAX;
	}
	CHECK(f.of.step <= most && f.of.cells_nr > 0 && super_body_bytes(&f.of) <= f.of.room);
	for (uint32_t i = 0; i < f.of.cells_nr; i++) {
		struct slot_at at = slot_at_of(super_cells(f.at)[i].word);

		CHECK(at.slot == SLOT_NONE || at.slot < FILE_BYTES / f.of.slot_bytes);
	}
	step = f.of.step;
	super_free(&f);
	return step;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t most, first;

	if (size == 0)
		return 0;
	memcpy(bytes, whole, sizeof(bytes));
	change(data + 1, size - 1);
	for (uint32_t i = 0; i < 2; i++)
		sign(i, data[0] >> i & 1, data[0] >> (2 + i) & 1);
	CHECK(pwrite(fd, bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes));
	CHECK(ftruncate(fd, data[0] & 32 ? (off_t)(size * 997 % FILE_BYTES) : FILE_BYTES) == 0);
	if (data[0] & 64) {
		struct super_found f;
		struct err e;

		CHECK(super_find(&f, size % 2 ? unread : -1, ID, 3, &e) == SHARD_SYSTEM);
		CHECK(f.at == NULL && e.text[0] != 0);
	}
	most = data[0] & 16 ? 3 : UINT64_MAX;
	first = find(most);
	CHECK(find(most) == first);
	CHECK(first == UINT64_MAX || find(UINT64_MAX) == first);
	return 0;
}
