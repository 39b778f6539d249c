/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of a file, for tier_nvme.c. The word of a chunk has its slot and the number of the write
 * that brought it there, so that one store moves the chunk: a kill leaves it in the old slot or in
 * the new one, and neither is written before that. A start reads the words, and what no word names
 * is free. Only memory can lack, or a word be wrong. */
#include "store/slots.h"

#include "base/check.h"
#include "store/away.h"
#include "store/store_impl.h"

#include <stdlib.h>

#define SEQ_BITS 40 /* Of the word, below the slot + 1. */
#define SEQ_MASK ((1ull << SEQ_BITS) - 1)

static enum shard_status take_up(struct slots *s, uint8_t *used, struct err *e)
{
	for (uint32_t c = 0; c < s->store->conf.layout->chunks_nr; c++) {
		struct slot_at at = {SLOT_NONE, 0};

		s->of[c] = SLOT_NONE;
		if (store_is_away(s->store, c))
			at = slots_at(s, c);
		if (at.slot == SLOT_NONE)
			continue;
		if (at.slot >= s->nr || used[at.slot])
			return err_set(e, SHARD_MISMATCH,
				       "chunk %u is in slot %u of its file, which has %u, or so is "
				       "another one",
				       c, at.slot, s->nr);
		used[s->of[c] = at.slot] = 1;
		s->seq = at.seq > s->seq ? at.seq : s->seq;
	}
	for (uint32_t i = s->nr; i-- > 0;)
		if (!used[i])
			s->free[s->free_nr++] = i;
	return SHARD_OK;
}

enum shard_status slots_open(struct slots *s, const struct store *st, uint32_t nr, struct err *e)
{
	uint8_t *used = calloc(nr, 1);
	enum shard_status rc;

	*s = (struct slots){.store = st, .nr = nr};
	s->of = malloc(st->conf.layout->chunks_nr * sizeof(*s->of));
	s->free = malloc(nr * sizeof(*s->free));
	if (used == NULL || s->of == NULL || s->free == NULL)
		rc = err_set(e, SHARD_SYSTEM, "no memory for a table of %u slots", nr);
	else
		rc = take_up(s, used, e);
	free(used);
	if (rc != SHARD_OK)
		slots_close(s);
	return rc;
}

void slots_close(struct slots *s)
{
	free(s->of);
	free(s->free);
	s->of = s->free = NULL;
}

struct slot_at slots_at(const struct slots *s, uint32_t chunk)
{
	uint64_t word = atomic_load(store_away_cell(s->store, chunk));

	return (struct slot_at){(uint32_t)(word >> SEQ_BITS) - 1, word & SEQ_MASK};
}

struct slot_at slots_take(struct slots *s)
{
	CHECK(s->free_nr > 0 && s->seq < SEQ_MASK);
	return (struct slot_at){s->free[--s->free_nr], ++s->seq};
}

void slots_give(struct slots *s, uint32_t slot)
{
	CHECK(s->free_nr < s->nr);
	s->free[s->free_nr++] = slot;
}

void slots_put(struct slots *s, uint32_t chunk, const struct slot_at *at)
{
	uint32_t was = s->of[chunk];

	s->of[chunk] = at->slot;
	atomic_store(store_away_cell(s->store, chunk),
		     (uint64_t)(at->slot + 1) << SEQ_BITS | at->seq);
	if (was != SLOT_NONE)
		slots_give(s, was);
}
