/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h: a bump allocator over memory that the caller owns. Reset forgets everything at once. */
#ifndef SHARD_BASE_ARENA_H
#define SHARD_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

struct arena {
	unsigned char *base;
	size_t used, size; /* bytes */
};

static inline void arena_init(struct arena *a, void *base, size_t bytes)
{
	a->base = base;
	a->size = bytes;
	a->used = 0;
}

static inline void arena_reset(struct arena *a)
{
	a->used = 0;
}

static inline void *arena_take(struct arena *a,
			       size_t bytes) /* 16-byte aligned; NULL when it does not fit */
{
	size_t start = (a->used + 15) & ~(size_t)15;

	if (start > a->size || bytes > a->size - start)
		return NULL;
	a->used = start + bytes;
	return a->base + start;
}

#endif
