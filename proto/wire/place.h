/* SPDX-License-Identifier: Apache-2.0 */
/* place.h: which node holds each chunk. Placement is an explicit table, balanced within one chunk.
 * It is a pure function of the members and the table before. Between nodes it travels as runs,
 * which are (node, chunks) pairs in chunk order. */
#ifndef SHARD_WIRE_PLACE_H
#define SHARD_WIRE_PLACE_H

#include <stdbool.h>
#include <stdint.h>

enum { PLACE_NODES_MAX = 64 };

/* Fills owner[chunks_nr] from previous[chunks_nr]. With previous NULL the chunks go to the members
 * in turn. members are node numbers, ascending and all different. As few chunks change their holder
 * as balance allows. */
void place_fill(uint16_t *owner, uint32_t chunks_nr, const uint16_t *members, uint16_t members_nr,
		const uint16_t *previous);

/* Writes runs into out[2 * pairs_max]. Returns the number of pairs, or 0 if they do not fit. */
uint32_t place_encode(uint32_t *out, uint32_t pairs_max, const uint16_t *owner, uint32_t chunks_nr);
/* Reads runs from a peer. Returns NULL, or why they are refused. runs_nr counts numbers, not
 * pairs. */
const char *place_decode(uint16_t *owner, uint32_t chunks_nr, uint16_t nodes_nr,
			 const uint32_t *runs, uint32_t runs_nr);

#endif
