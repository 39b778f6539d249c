/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h: a bump allocator over memory that the caller owns. arena_reset() frees all of it at
 * once. */
#ifndef SHARD_BASE_ARENA_H
#define SHARD_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

struct arena {
	unsigned char *base;
	size_t used, size; /* In bytes. */
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

/* The result is aligned to 16 bytes. It is NULL when the arena has no room for it. */
static inline void *arena_take(struct arena *a, size_t bytes)
{
	size_t start = (a->used + 15) & ~(size_t)15;

	if (start > a->size || bytes > a->size - start)
		return NULL;
	a->used = start + bytes;
	return a->base + start;
}

#endif
