/* SPDX-License-Identifier: Apache-2.0 */
/* xxh_impl.h: the body of one variant of XXH3. It is inlined into the file that includes it and
 * compiled with that file's instruction set. The shared library of XXH3 is compiled for the oldest
 * processor and runs at half the speed. Define XXH_ROW and XXH_VECTOR before including this
 * file. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "wire/xxh.h"

#include <assert.h>

static_assert(sizeof(XXH3_state_t) <= XXH_STATE_BYTES,
	      "struct xxh_state holds the library's state");

static uint64_t sum(const void *p, size_t bytes, uint64_t seed)
{
	return seed ? XXH3_64bits_withSeed(p, bytes, seed) : XXH3_64bits(p, bytes);
}

static void begin(struct xxh_state *st)
{
	XXH3_INITSTATE((XXH3_state_t *)(void *)st->bytes);
	(void)XXH3_64bits_reset((XXH3_state_t *)(void *)st->bytes);
}

static void add(struct xxh_state *st, const void *p, size_t bytes)
{
	(void)XXH3_64bits_update((XXH3_state_t *)(void *)st->bytes, p, bytes);
}

static uint64_t end(const struct xxh_state *st)
{
	return XXH3_64bits_digest((const XXH3_state_t *)(const void *)st->bytes);
}

const struct xxh_row XXH_ROW = {sum, begin, add, end};
