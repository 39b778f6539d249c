/* SPDX-License-Identifier: Apache-2.0 */
/* The trailer of a slot, for tier_nvme.c. It is little-endian, and its format is frozen. A slot
 * that is older than it should be, of another chunk or file, or whose bytes differ, does not fit.
 * Nothing fails. */
#include "store/trailer.h"

#include "wire/xxh.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#define MAGIC   0x31656d76644873ffull
#define VERSION 1u

struct trailer {
	uint64_t magic;
	uint32_t version, chunk;
	uint64_t id, seq, bytes;
	uint64_t sum; /* Of the state, with seq as its seed. */
	uint64_t own; /* Of what stands before it. */
	uint8_t zero[TRAILER_BYTES - 56];
};

static_assert(sizeof(struct trailer) == TRAILER_BYTES && offsetof(struct trailer, own) == 48,
	      "no padding");

static void make(struct trailer *t, const struct trailer_of *of, const uint8_t *state)
{
	*t = (struct trailer){.magic = MAGIC,
			      .version = VERSION,
			      .chunk = of->chunk,
			      .id = of->id,
			      .seq = of->seq,
			      .bytes = of->bytes,
			      .sum = xxh_sum(state, of->bytes, of->seq)};
	t->own = xxh_sum(t, offsetof(struct trailer, own), 0);
}

void trailer_write(const struct trailer_of *of, uint8_t *state)
{
	struct trailer t;

	make(&t, of, state);
	memcpy(state + of->bytes, &t, sizeof(t));
}

bool trailer_fits(const struct trailer_of *of, const uint8_t *state)
{
	struct trailer t;

	make(&t, of, state);
	return memcmp(state + of->bytes, &t, sizeof(t)) == 0;
}

bool trailer_named(const struct trailer_of *of, const uint8_t *block)
{
	struct trailer t;

	memcpy(&t, block, sizeof(t));
	return t.magic == MAGIC && t.version == VERSION && t.chunk == of->chunk && t.id == of->id &&
	       t.seq == of->seq && t.bytes == of->bytes &&
	       t.own == xxh_sum(&t, offsetof(struct trailer, own), 0);
}
