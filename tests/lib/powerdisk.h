/* SPDX-License-Identifier: Apache-2.0 */
/* powerdisk.h: a row of ring.h whose disk keeps what is written in a cache of its own. A sync moves
 * to the platter what was done before it was asked for. A loss of power leaves any of the other
 * sectors, and of the writes under way, there or not. Nothing moves before the test says so. */
#ifndef SHARD_TESTS_POWERDISK_H
#define SHARD_TESTS_POWERDISK_H

#include "store/ring_impl.h"

enum { PD_REQUESTS = 16, PD_CACHED = 4096 };

struct pd_cached {
	uint64_t offset;
	uint32_t bytes;
	uint8_t *copy;
};

extern struct powerdisk {
	int platter; /* A file, which outlives losses of power. The test opens it. */
	struct pd_cached cached[PD_CACHED];
	struct ring_io io[PD_REQUESTS]; /* Under way. */
	uint32_t before[PD_REQUESTS];   /* Of a sync: how many writes were done by then. */
	uint32_t nr, cached_nr, syncs;
	uint32_t seed; /* Of what happens. */
	bool lies;     /* It ignores syncs. */
} pd;                  /* The row has no other way to it. */

extern const struct ring_row pd_row;

uint32_t pd_draw(uint32_t of);
void pd_put(uint64_t at, const uint8_t *from, uint32_t bytes); /* To the platter. */
void pd_keep(const struct ring_io *io, uint32_t bytes);        /* To the cache. */
void pd_flush(uint32_t nr);                /* The first nr writes of the cache to the platter. */
void pd_lose_power(void);                  /* What is under way stays so, for the test to end. */
void pd_moves(struct ring *r, uint32_t i); /* The i-th request is carried out, maybe in part. */

#endif
