/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of a file, for tier_nvme.c, or of devices, for tier_gpu.c. The word of a chunk has its slot
 * and the number of the write that brought it there, so that one store moves the chunk: a kill
 * leaves it in the old slot or in the new one, and neither is written before that. A start reads
 * the words, and what no word names is free. Only memory can lack, or a word be wrong. */
#include "store/slots.h"

#include "base/check.h"
#include "store/away.h"
#include "store/store_impl.h"

#include <stdlib.h>

#define SEQ_MASK ((1ull << SLOT_SEQ_BITS) - 1)

static bool covers(const struct slots *s, uint32_t chunk)
{
	return store_is_away(s->store, chunk) && store_away_index(s->store, chunk) >= s->from &&
	       store_away_index(s->store, chunk) < s->to;
}

static enum shard_status take_up(struct slots *s, uint8_t *used, struct err *e)
{
	for (uint32_t c = 0; c < s->store->conf.layout->chunks_nr; c++) {
		struct slot_at at = {SLOT_NONE, 0};

		s->of[c] = SLOT_NONE;
		if (covers(s, c))
			at = slots_at(s, c);
		if (at.slot == SLOT_NONE)
			continue;
		if (at.seq > SLOT_SEQ_FOUND_MAX)
			return err_set(
				e, SHARD_MISMATCH,
				"chunk %u was brought to its slot by write %llu, which cannot be",
				c, (unsigned long long)at.seq);
		if (at.slot >= s->nr || used[at.slot])
			return err_set(e, SHARD_MISMATCH,
				       "chunk %u is in slot %u of %u, or so is another one", c,
				       at.slot, s->nr);
		used[s->of[c] = at.slot] = 1;
		s->seq = at.seq > s->seq ? at.seq : s->seq;
	}
	for (uint32_t i = s->nr; i-- > 0;)
		if (!used[i])
			s->free[s->free_nr++] = i;
	return SHARD_OK;
}

enum shard_status slots_open(struct slots *s, const struct store *st, uint32_t from, uint32_t to,
			     uint32_t nr, struct err *e)
{
	uint8_t *used = calloc(nr, 1);
	enum shard_status rc;

	*s = (struct slots){.store = st, .from = from, .to = to, .nr = nr};
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
	free(s->kept);
	free(s->next);
	s->of = s->free = s->kept = s->next = NULL;
}

struct slot_at slots_at(const struct slots *s, uint32_t chunk)
{
	return slot_at_of(atomic_load(store_away_cell(s->store, chunk)));
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

static bool named(const struct slots *s, uint32_t chunk, uint32_t slot)
{
	return s->kept != NULL && (s->kept[chunk] == slot || s->next[chunk] == slot);
}

void slots_put(struct slots *s, uint32_t chunk, const struct slot_at *at)
{
	uint32_t was = s->of[chunk];

	s->of[chunk] = at->slot;
	atomic_store(store_away_cell(s->store, chunk),
		     (uint64_t)(at->slot + 1) << SLOT_SEQ_BITS | at->seq);
	if (was != SLOT_NONE && !named(s, chunk, was))
		slots_give(s, was);
}

/* --- superblocks --- */

/* The slot may be that of the chunk now. Otherwise it is free so far. */
static bool keep(struct slots *s, uint32_t chunk, uint32_t slot)
{
	uint32_t i = 0;

	s->kept[chunk] = slot;
	if (s->of[chunk] == slot)
		return true;
	while (i < s->free_nr && s->free[i] != slot)
		i++;
	if (i == s->free_nr)
		return false;
	s->free[i] = s->free[--s->free_nr];
	return true;
}

enum shard_status slots_keep(struct slots *s, const struct super_cell *cell, uint32_t cells_nr,
			     struct err *e)
{
	uint32_t chunks_nr = s->store->conf.layout->chunks_nr;

	s->kept = malloc(chunks_nr * sizeof(*s->kept));
	s->next = malloc(chunks_nr * sizeof(*s->next));
	if (s->kept == NULL || s->next == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a table of %u slots", s->nr);
	for (uint32_t c = 0; c < chunks_nr; c++)
		s->kept[c] = s->next[c] = SLOT_NONE;
	for (uint32_t i = 0; i < cells_nr; i++) {
		uint32_t chunk = cell[i].chunk, slot = slot_at_of(cell[i].word).slot;

		if (chunk >= chunks_nr || !store_is_away(s->store, chunk) ||
		    s->kept[chunk] != SLOT_NONE || (slot != SLOT_NONE && !keep(s, chunk, slot)))
			return err_set(e, SHARD_MISMATCH,
				       "the superblock of its file says that chunk %u is in slot "
				       "%u, which cannot be",
				       chunk, slot);
		if (slot != SLOT_NONE && slot_at_of(cell[i].word).seq > s->seq)
			s->seq = slot_at_of(cell[i].word).seq;
	}
	return SHARD_OK;
}

void slots_name(struct slots *s, struct super_cell *cell)
{
	for (uint32_t c = 0; c < s->store->conf.layout->chunks_nr; c++) {
		uint64_t word;

		if (!store_is_away(s->store, c))
			continue;
		word = atomic_load(store_away_cell(s->store, c));
		s->next[c] = slot_at_of(word).slot;
		*cell++ = (struct super_cell){
			word, c, (uint32_t)(store_away_bytes(s->store, c) / SUPER_BLOCK)};
	}
}

void slots_kept(struct slots *s)
{
	for (uint32_t c = 0; c < s->store->conf.layout->chunks_nr; c++) {
		uint32_t was = s->kept[c];

		s->kept[c] = s->next[c];
		s->next[c] = SLOT_NONE;
		if (was != SLOT_NONE && was != s->kept[c] && was != s->of[c])
			slots_give(s, was);
	}
}
