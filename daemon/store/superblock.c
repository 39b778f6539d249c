/* SPDX-License-Identifier: Apache-2.0 */
/* Superblocks of a file of chunks. tier_durable.c writes them, and a start reads them. Heads are at
 * fixed places, so that a start needs to know nothing. A head has a sum of its own and one over its
 * body, so a loss of power in the middle leaves one that does not fit. Happy path of a start: both
 * heads are read, the newer one that fits is taken with its body, and each slot that it names has
 * the trailer of that write. Otherwise the older one is tried. A disk that fails a read, or memory
 * that lacks, says nothing of what is in the file, and ends the search. All of it may be anybody's
 * bytes, so each number is compared with the size of the file before it is used, and a count of
 * writes leaves room for more than there will ever be. The format is frozen and little-endian. */
#include "store/superblock.h"

#include "base/check.h"
#include "store/slots.h"
#include "store/trailer.h"
#include "wire/xxh.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC       0x3172657075736873ull /* "shsuper1" */
#define VERSION     1u
#define PAYLOAD_MAX (1ull << 30)
#define CELLS_MAX   (1u << 24)

struct head {
	uint64_t magic;
	uint32_t version, cells_nr;
	uint64_t id, seq, step, room, slot_bytes, payload_bytes;
	uint64_t sum; /* Of cells and payload, with seq as its seed. */
	uint64_t own; /* Of what stands before it. */
	uint8_t zero[SUPER_BLOCK - 80];
};

static_assert(sizeof(struct head) == SUPER_BLOCK && offsetof(struct head, own) == 72 &&
		      sizeof(struct super_cell) == 16,
	      "no padding");

static uint64_t blocks(uint64_t bytes)
{
	return (bytes + SUPER_BLOCK - 1) / SUPER_BLOCK * SUPER_BLOCK;
}

static uint64_t used(uint32_t cells_nr, uint64_t payload_bytes)
{
	return cells_nr * sizeof(struct super_cell) + payload_bytes;
}

uint64_t super_room(uint32_t cells_nr, uint64_t payload_bytes)
{
	return blocks(used(cells_nr, payload_bytes));
}

uint64_t super_area(uint64_t room)
{
	return 2ull * SUPER_BLOCK + 2 * room;
}

uint64_t super_head_at(const struct super_of *of)
{
	return of->seq % 2 * SUPER_BLOCK;
}

uint64_t super_body_at(const struct super_of *of)
{
	return 2ull * SUPER_BLOCK + of->seq % 2 * of->room;
}

struct super_cell *super_cells(uint8_t *at)
{
	return (struct super_cell *)(void *)(at + SUPER_BLOCK);
}

uint8_t *super_payload(uint8_t *at, uint32_t cells_nr)
{
	return (uint8_t *)(super_cells(at) + cells_nr);
}

uint64_t super_body_bytes(const struct super_of *of)
{
	return blocks(used(of->cells_nr, of->payload_bytes));
}

void super_seal(const struct super_of *of, uint8_t *at)
{
	uint64_t bytes = used(of->cells_nr, of->payload_bytes);
	struct head *h = (struct head *)(void *)at;

	CHECK(super_body_bytes(of) <= of->room);
	memset(at + SUPER_BLOCK + bytes, 0, super_body_bytes(of) - bytes);
	*h = (struct head){.magic = MAGIC,
			   .version = VERSION,
			   .cells_nr = of->cells_nr,
			   .id = of->id,
			   .seq = of->seq,
			   .step = of->step,
			   .room = of->room,
			   .slot_bytes = of->slot_bytes,
			   .payload_bytes = of->payload_bytes,
			   .sum = xxh_sum(at + SUPER_BLOCK, bytes, of->seq)};
	h->own = xxh_sum(h, offsetof(struct head, own), 0);
}

/* --- a start --- */

/* SHARD_NOT_FOUND: the file ends before that. SHARD_SYSTEM: the disk fails. */
static enum shard_status get(int fd, void *to, uint64_t bytes, uint64_t at, struct err *e)
{
	uint64_t done = 0;

	while (done < bytes) {
		ssize_t n = pread(fd, (uint8_t *)to + done, bytes - done, (off_t)(at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "reading %llu bytes at %llu: %s",
				       (unsigned long long)bytes, (unsigned long long)at,
				       strerror(errno));
		if (n == 0)
			return err_set(e, SHARD_NOT_FOUND, "it ends too early");
		done += (uint64_t)n;
	}
	return SHARD_OK;
}

/* Does the head, whose place is the i-th one, say what can be? */
static bool head_fits(const struct head *h, uint32_t i, uint64_t id, uint64_t file_bytes)
{
	return h->magic == MAGIC && h->version == VERSION && h->id == id && h->seq > 0 &&
	       h->seq <= UINT64_MAX / 2 && h->seq % 2 == i &&
	       h->own == xxh_sum(h, offsetof(struct head, own), 0) && h->cells_nr > 0 &&
	       h->cells_nr <= CELLS_MAX && h->payload_bytes <= PAYLOAD_MAX &&
	       h->room % SUPER_BLOCK == 0 && h->room <= file_bytes / 2 &&
	       super_area(h->room) <= file_bytes &&
	       blocks(used(h->cells_nr, h->payload_bytes)) <= h->room &&
	       h->slot_bytes % SUPER_BLOCK == 0 && h->slot_bytes > SUPER_BLOCK &&
	       h->slot_bytes <= file_bytes;
}

static struct super_of of_head(const struct head *h)
{
	return (struct super_of){.id = h->id,
				 .seq = h->seq,
				 .step = h->step,
				 .room = h->room,
				 .slot_bytes = h->slot_bytes,
				 .payload_bytes = h->payload_bytes,
				 .cells_nr = h->cells_nr};
}

/* Has the slot of each cell the trailer of that write? SHARD_NOT_FOUND: no. */
static enum shard_status trailers_fit(int fd, const struct super_of *of, uint8_t *at,
				      uint64_t file_bytes, uint8_t *block, struct err *e)
{
	uint64_t area = super_area(of->room), slots = (file_bytes - area) / of->slot_bytes;
	const struct super_cell *cell = super_cells(at);
	enum shard_status st = SHARD_OK;

	for (uint32_t i = 0; i < of->cells_nr && st == SHARD_OK; i++) {
		struct slot_at where = slot_at_of(cell[i].word);
		struct trailer_of t = {.id = of->id,
				       .seq = where.seq,
				       .bytes = (uint64_t)cell[i].blocks * SUPER_BLOCK,
				       .chunk = cell[i].chunk};

		if (where.slot == SLOT_NONE)
			continue;
		if (where.slot >= slots || where.seq > SLOT_SEQ_FOUND_MAX ||
		    t.bytes > of->slot_bytes - TRAILER_BYTES)
			return err_set(e, SHARD_NOT_FOUND, "it names a slot that cannot be");
		st = get(fd, block, TRAILER_BYTES, area + where.slot * of->slot_bytes + t.bytes, e);
		if (st == SHARD_OK && !trailer_named(&t, block))
			st = err_set(e, SHARD_NOT_FOUND, "a slot has not what it names");
	}
	return st;
}

/* SHARD_NOT_FOUND: it is not whole. */
static enum shard_status take(struct super_found *out, int fd, const struct head *h,
			      uint64_t file_bytes, struct err *e)
{
	struct super_of of = of_head(h);
	uint64_t bytes = super_body_bytes(&of);
	uint8_t *at = aligned_alloc(SUPER_BLOCK, 2ull * SUPER_BLOCK + bytes);
	enum shard_status st;

	if (at == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a superblock of %llu bytes",
			       (unsigned long long)bytes);
	memcpy(at, h, SUPER_BLOCK);
	st = get(fd, at + SUPER_BLOCK, bytes, super_body_at(&of), e);
	if (st == SHARD_OK &&
	    xxh_sum(at + SUPER_BLOCK, used(of.cells_nr, of.payload_bytes), of.seq) != h->sum)
		st = err_set(e, SHARD_NOT_FOUND, "the sum over it is wrong");
	if (st == SHARD_OK)
		st = trailers_fit(fd, &of, at, file_bytes, at + SUPER_BLOCK + bytes, e);
	if (st == SHARD_OK)
		*out = (struct super_found){of, at};
	else
		free(at);
	return st;
}

/* The newer one of these that is whole. e is of the first one that is not. */
static enum shard_status take_newer(struct super_found *out, int fd, const struct head h[2],
				    uint64_t id, uint64_t most, uint64_t bytes, struct err *e)
{
	enum shard_status st = SHARD_NOT_FOUND;
	bool fits[2], newer;
	struct err why;

	for (uint32_t i = 0; i < 2; i++)
		fits[i] = head_fits(&h[i], i, id, bytes) && h[i].step <= most;
	(void)err_set(e, SHARD_NOT_FOUND, "it has none");
	newer = fits[1] && (!fits[0] || h[1].seq > h[0].seq);
	for (uint32_t i = 0; i < 2 && st == SHARD_NOT_FOUND; i++) {
		uint32_t k = newer ^ i;
		bool first = i == 0 || !fits[newer];

		if (fits[k] && (st = take(out, fd, &h[k], bytes, &why)) != SHARD_OK &&
		    (first || st != SHARD_NOT_FOUND))
			*e = why;
	}
	return st;
}

/* If the other one was written after this one, its step is given up. */
static enum shard_status end_other(int fd, struct head h[2], const struct super_of *of,
				   struct err *e)
{
	struct super_of other = {.seq = of->seq + 1};
	struct head *later = &h[other.seq % 2];

	if (later->magic != MAGIC || later->seq <= of->seq)
		return SHARD_OK;
	memset(later, 0, sizeof(*later));
	if (pwrite(fd, later, sizeof(*later), (off_t)super_head_at(&other)) != sizeof(*later) ||
	    fdatasync(fd) != 0)
		return err_sys(e, errno, "ending the superblock of a later step: %s",
			       strerror(errno));
	return SHARD_OK;
}

enum shard_status super_find(struct super_found *out, int fd, uint64_t id, uint64_t most,
			     struct err *e)
{
	struct head *h = aligned_alloc(SUPER_BLOCK, 2ull * SUPER_BLOCK);
	enum shard_status st;
	struct err why;
	struct stat s;

	*out = (struct super_found){.at = NULL};
	if (h == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a superblock");
	if (fstat(fd, &s) != 0)
		st = err_sys(&why, errno, "%s", strerror(errno));
	else if ((st = get(fd, h, 2ull * SUPER_BLOCK, 0, &why)) == SHARD_OK)
		st = take_newer(out, fd, h, id, most, (uint64_t)s.st_size, &why);
	if (st == SHARD_OK && most != UINT64_MAX &&
	    (st = end_other(fd, h, &out->of, &why)) != SHARD_OK)
		super_free(out);
	free(h);
	if (st == SHARD_NOT_FOUND)
		return err_set(e, st, "no superblock of it is whole: %.200s", why.text);
	return st == SHARD_OK ? st : err_set(e, st, "%.300s", why.text);
}

void super_free(struct super_found *f)
{
	free(f->at);
	f->at = NULL;
}
