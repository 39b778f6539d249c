/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the elements of the master that nobody has written, or that are not finite. Seals, saves,
 * restores and warm starts ask for them. An element that nobody has written holds STORE_UNWRITTEN,
 * a NaN. Weights must be finite anyway, so finding what is missing needs no bitmap. Another NaN,
 * STORE_VOID, in the first weight of a chunk means that nothing of the chunk is written. It cannot
 * fail. */
#include "store/store_missing.h"

#include "store/away.h"
#include "store/store_impl.h"

#include <stdatomic.h>
#include <string.h>

#define LOOK_ELEMS 256u /* How many are looked through at once. */

void store_missing_init(struct store_missing *m)
{
	*m = (struct store_missing){.first = UINT64_MAX};
}

/* Returns the first weight of a chunk held here, or NULL if no tensor has a part of the chunk. */
static uint32_t *void_word(struct store *st, uint32_t chunk)
{
	const struct layout *l = st->conf.layout;
	uint32_t first = l->chunk_segment[chunk];

	return first < l->chunk_segment[chunk + 1]
		       ? (uint32_t *)(void *)(store_master(st, chunk) + l->segment[first].start)
		       : NULL;
}

bool store_void(struct store *st, uint32_t chunk)
{
	const uint32_t *word = void_word(st, chunk);

	return word != NULL && *word == STORE_VOID;
}

void store_void_set(struct store *st, uint32_t chunk)
{
	uint32_t *word;

	if (store_is_away(st, chunk)) {
		store_away_void(st, chunk);
		if (!store_away_here(st, chunk))
			return;
	}
	if ((word = void_word(st, chunk)) != NULL)
		*word = STORE_VOID;
}

/* The word that makes the chunk void is overwritten last. If the process is killed before that, the
 * chunk is still void for the next process. */
void store_clear_chunk(struct store *st, uint32_t chunk)
{
	uint32_t n = layout_chunk_elems(st->conf.layout, chunk);
	uint32_t *word = (uint32_t *)(void *)store_master(st, chunk), *last = void_word(st, chunk);

	if (last != NULL)
		*last = STORE_VOID;
	atomic_signal_fence(memory_order_seq_cst);
	for (uint32_t i = 0; i < st->conf.optim->states_nr; i++)
		if (store_state(st, chunk, i) != NULL)
			memset(store_state(st, chunk, i), 0, n * sizeof(float));
	for (uint32_t i = 0; i < n; i++)
		if (&word[i] != last)
			word[i] = STORE_UNWRITTEN;
	atomic_thread_fence(memory_order_seq_cst);
	if (last != NULL)
		*last = STORE_UNWRITTEN;
}

/* It has no branch and is as fast as memory, because most often there is nothing to find. Only an
 * exponent of all ones carries into the top bit. */
static bool all_finite(const float *at, uint32_t n)
{
	uint32_t carry = 0;

	for (uint32_t i = 0; i < n; i++)
		carry |= (dtype_bits(at[i]) & 0x7fffffffu) + 0x00800000u;
	return carry >> 31 == 0;
}

static void count_missing(const float *at, uint64_t element, uint32_t n, struct store_missing *m)
{
	for (uint32_t i = 0; i < n; i++) {
		if (dtype_finite(at[i]))
			continue;
		if (dtype_bits(at[i]) == STORE_UNWRITTEN)
			m->unwritten++;
		else
			m->nonfinite++;
		if (element + i < m->first)
			m->first = element + i;
	}
}

void store_missing_in(const float *at, uint64_t element, uint64_t nr, struct store_missing *m)
{
	for (uint64_t i = 0; i < nr; i += LOOK_ELEMS) {
		uint32_t n = nr - i < LOOK_ELEMS ? (uint32_t)(nr - i) : LOOK_ELEMS;

		if (!all_finite(at + i, n))
			count_missing(at + i, element + i, n, m);
	}
}

void store_missing(struct store *st, uint32_t chunk, struct store_missing *m)
{
	const struct layout *l = st->conf.layout;
	const float *master = store_master(st, chunk);

	if (store_void(st, chunk)) {
		store_missing_all(st, chunk, m);
		return;
	}
	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++) {
		const struct segment *seg = &l->segment[s];

		store_missing_in(master + seg->start, layout_chunk_start(l, chunk) + seg->start,
				 seg->n, m);
	}
}

void store_missing_all(const struct store *st, uint32_t chunk, struct store_missing *m)
{
	const struct layout *l = st->conf.layout;

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++) {
		uint64_t first = layout_chunk_start(l, chunk) + l->segment[s].start;

		m->unwritten += l->segment[s].n;
		if (first < m->first)
			m->first = first;
	}
}
