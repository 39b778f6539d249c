/* SPDX-License-Identifier: Apache-2.0 */
/* What a save keeps of a chunk that changes. tile.c and tier_ram.c call it for each tile just
 * before its update, on workers. The places are hold.c's. Nothing can fail. */
#include "store/tile.h"

#include "base/check.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Nobody reads it soon. So it goes past the cache, and takes half of the bandwidth. */
static void copy_past_cache(char *to, const char *from, size_t bytes)
{
	size_t at = 0;

#ifdef __SSE2__
	CHECK((uintptr_t)to % sizeof(__m128i) == 0);
	for (; at + sizeof(__m128i) <= bytes; at += sizeof(__m128i))
		_mm_stream_si128((void *)(to + at), _mm_loadu_si128((const void *)(from + at)));
	_mm_sfence(); /* It is there before anybody is told of it. */
#endif
	memcpy(to + at, from + at, bytes - at);
}

/* The tile is then in the cache, so the update does not read it from memory again. */
void tile_keep(const struct tile_update *u, uint32_t from, uint32_t to)
{
	for (size_t i = 0; i < NR(u->keep); i++)
		if (u->keep[i] != NULL && u->tensor[i] != NULL)
			copy_past_cache((char *)(u->keep[i] + from),
					(const char *)(u->tensor[i] + from),
					(to - from) * sizeof(float));
}
