/* SPDX-License-Identifier: Apache-2.0 */
/* fifo.h: a queue of numbers, with room for all that there are. Its owner has the memory and a
 * lock. */
#ifndef SHARD_FIFO_H
#define SHARD_FIFO_H

#include "base/check.h"

#include <stdint.h>

struct fifo {
	uint32_t *at; /* [size], as the calls say it. */
	uint32_t first, nr;
};

static inline void fifo_push(struct fifo *f, uint32_t number, uint32_t size)
{
	CHECK(f->nr < size);
	f->at[(f->first + f->nr++) % size] = number;
}

static inline uint32_t fifo_pop(struct fifo *f, uint32_t size)
{
	uint32_t number = f->at[f->first];

	CHECK(f->nr > 0);
	f->first = (f->first + 1) % size;
	f->nr--;
	return number;
}

#endif
