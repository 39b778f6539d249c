/* SPDX-License-Identifier: Apache-2.0 */
/* away.h: chunks of a store whose state is not always in memory. The region of the state has a few
 * buffers for them, and a word for each such chunk and each buffer. All of that outlives the
 * process where the region does. tier_nvme.c owns what they say. store_master() and store_state()
 * of such a chunk are valid while it is lent a buffer. */
#ifndef SHARD_STORE_AWAY_H
#define SHARD_STORE_AWAY_H

#include "store/store.h"

#include <stdatomic.h>

#define AWAY_BUFFERS_MIN   4u
#define AWAY_TRAILER_BYTES 4096u /* Behind the arrays of a chunk, each of which is whole pages. */

struct store_away;

/* As a part of store_init(), after its region is mapped. */
enum shard_status store_away_init(struct store *st, struct err *e);
void store_away_deinit(struct store *st);

bool store_is_away(const struct store *st, uint32_t chunk); /* Also while it is lent a buffer. */
uint32_t store_away_nr(const struct store *st);             /* How many chunks are. */
uint32_t store_away_index(const struct store *st, uint32_t chunk); /* Its number among them. */
uint32_t store_away_buffers(const struct store *st);
uint64_t store_away_slot(const struct store *st); /* The bytes of a buffer. */
/* What a file has before its slots. 0: nothing of it outlives a loss of power. */
uint64_t store_away_area(const struct store *st);
uint8_t *store_away_buffer(const struct store *st, uint32_t i);
/* The bytes of the arrays of a chunk, without the trailer. */
uint64_t store_away_bytes(const struct store *st, uint32_t chunk);

/* Words of the tier. In new memory they are 0. store_away_void() makes that of a chunk 0. */
_Atomic uint64_t *store_away_cell(const struct store *st, uint32_t chunk);
_Atomic uint64_t *store_away_holds(const struct store *st, uint32_t buffer);

/* NULL: it is lent none any more. */
void store_away_lend(struct store *st, uint32_t chunk, uint8_t *buffer);
bool store_away_here(const struct store *st, uint32_t chunk); /* It is lent one. */
float *store_away_at(const struct store *st, uint32_t chunk, uint32_t array);
/* Nothing of the chunk counts any more, wherever it is. store_away_voids() says how often that
 * was. */
void store_away_void(struct store *st, uint32_t chunk);
uint32_t store_away_voids(const struct store *st, uint32_t chunk);

#endif
