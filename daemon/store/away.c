/* SPDX-License-Identifier: Apache-2.0 */
/* Where the state of chunks is, that is not always in memory. store.c makes this with the store.
 * tier_nvme.c brings chunks into buffers and lends them, and store_master() finds them there. The
 * buffers lie behind the state that is in memory, then a word for each chunk that is away, in the
 * order of the layout, and a word for each buffer. Only memory for the tables can lack. */
#include "store/away.h"

#include "base/check.h"
#include "store/store_impl.h"
#include "store/superblock.h"

#include <stdlib.h>

#define NOT_AWAY UINT32_MAX

struct store_away {
	uint32_t
		*index; /* [chunks_nr] Its number among those that are away. NOT_AWAY: it is not. */
	uint8_t **lent; /* [away_nr] */
	uint32_t *voids; /* [away_nr] */
	uint8_t *buffer;
	_Atomic uint64_t *cell;  /* [away_nr] */
	_Atomic uint64_t *holds; /* [away_buffers] */
};

bool store_conf_away(const struct store_conf *conf, uint32_t first, uint32_t firsts)
{
	uint32_t away = (uint32_t)((uint64_t)firsts * conf->away_share / 100);

	CHECK(conf->away_share <= 100 && first < firsts);
	return first >= firsts - away;
}

enum shard_status store_away_init(struct store *st, struct err *e)
{
	uint32_t chunks_nr = st->conf.layout->chunks_nr, nr = 0;
	uint64_t state = st->sizes.master + st->sizes.moment * st->conf.optim->states_nr;
	struct store_away *a;

	if (st->sizes.away_nr == 0)
		return SHARD_OK;
	if ((a = st->away = calloc(1, sizeof(*a))) == NULL)
		goto none;
	a->index = calloc(chunks_nr, sizeof(*a->index));
	a->lent = calloc(st->sizes.away_nr, sizeof(*a->lent));
	a->voids = calloc(st->sizes.away_nr, sizeof(*a->voids));
	if (a->index == NULL || a->lent == NULL || a->voids == NULL)
		goto none;
	for (uint32_t c = 0; c < chunks_nr; c++)
		a->index[c] =
			st->held_at[c] != NOT_HELD && st->here_at[c] == NOT_HELD ? nr++ : NOT_AWAY;
	CHECK(nr == st->sizes.away_nr);
	a->buffer = (uint8_t *)st->region[STORE_STATE].base + state;
	a->cell = (_Atomic uint64_t *)(void *)(a->buffer +
					       st->sizes.away_buffers * st->sizes.away_slot);
	a->holds = a->cell + st->sizes.away_nr;
	return SHARD_OK;
none:
	return err_set(e, SHARD_SYSTEM, "no memory for the chunk table of model \"%s\"",
		       st->conf.name);
}

void store_away_deinit(struct store *st)
{
	struct store_away *a = st->away;

	st->away = NULL;
	if (a == NULL)
		return;
	free(a->index);
	free(a->lent);
	free(a->voids);
	free(a);
}

bool store_is_away(const struct store *st, uint32_t chunk)
{
	return st->away != NULL && st->away->index[chunk] != NOT_AWAY;
}

uint32_t store_away_index(const struct store *st, uint32_t chunk)
{
	CHECK(store_is_away(st, chunk));
	return st->away->index[chunk];
}

uint32_t store_away_nr(const struct store *st)
{
	return st->sizes.away_nr;
}

uint32_t store_away_buffers(const struct store *st)
{
	return st->sizes.away_buffers;
}

uint64_t store_away_slot(const struct store *st)
{
	return st->sizes.away_slot;
}

uint64_t store_away_area(const struct store *st)
{
	uint64_t payload = st->conf.durable_bytes;

	return payload > 0 ? super_area(super_room(st->sizes.away_nr, payload)) : 0;
}

uint8_t *store_away_buffer(const struct store *st, uint32_t i)
{
	CHECK(i < st->sizes.away_buffers);
	return st->away->buffer + i * st->sizes.away_slot;
}

static uint64_t array_bytes(const struct store *st, uint32_t chunk)
{
	uint64_t bytes = layout_chunk_elems(st->conf.layout, chunk) * (uint64_t)sizeof(float);

	return (bytes + 4095) / 4096 * 4096;
}

uint64_t store_away_bytes(const struct store *st, uint32_t chunk)
{
	return (1 + states_nr(st, chunk)) * array_bytes(st, chunk);
}

_Atomic uint64_t *store_away_cell(const struct store *st, uint32_t chunk)
{
	return &st->away->cell[store_away_index(st, chunk)];
}

_Atomic uint64_t *store_away_holds(const struct store *st, uint32_t buffer)
{
	CHECK(buffer < st->sizes.away_buffers);
	return &st->away->holds[buffer];
}

void store_away_lend(struct store *st, uint32_t chunk, uint8_t *buffer)
{
	st->away->lent[store_away_index(st, chunk)] = buffer;
}

bool store_away_here(const struct store *st, uint32_t chunk)
{
	return st->away->lent[store_away_index(st, chunk)] != NULL;
}

float *store_away_at(const struct store *st, uint32_t chunk, uint32_t array)
{
	uint8_t *at = st->away->lent[store_away_index(st, chunk)];

	CHECK(at != NULL); /* Nobody has pinned it. */
	return (float *)(void *)(at + array * array_bytes(st, chunk));
}

void store_away_void(struct store *st, uint32_t chunk)
{
	uint32_t i = store_away_index(st, chunk);

	st->away->voids[i]++;
	atomic_store(&st->away->cell[i], 0);
}

uint32_t store_away_voids(const struct store *st, uint32_t chunk)
{
	return st->away->voids[store_away_index(st, chunk)];
}
