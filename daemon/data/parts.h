/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h: which parts of a chunk are here. Each part is marked twice: when its header came, and
 * when its bytes are complete. So a part that is sent many times never counts for others, and a
 * chunk is whole only while nothing is landing in it. contrib.c keeps one set for the contributions
 * of nodes and one for the pushes of trainers over TCP. Only making a set can fail, if there is no
 * memory. */
#ifndef SHARD_PARTS_H
#define SHARD_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct parts {
	uint8_t *begun, *here; /* [chunks * chunk_bytes] A bit for each part. */
	size_t bytes, chunk_bytes;
};

/* Returns false if there is no memory. */
bool parts_init(struct parts *p, size_t chunks, uint32_t parts_max);
void parts_free(struct parts *p);
void parts_clear(struct parts *p, size_t chunks); /* Of the first ones. */

/* The header of a part came. Returns false if it came before, so that this one is a repetition. */
bool parts_begin(struct parts *p, size_t chunk, uint32_t part);
/* The bytes of a part are complete. Nothing happens if the part was not begun. */
void parts_came(struct parts *p, size_t chunk, uint32_t part);
bool parts_begun(const struct parts *p, size_t chunk, uint32_t part);
bool parts_here(const struct parts *p, size_t chunk, uint32_t part);

#endif
