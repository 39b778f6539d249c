/* SPDX-License-Identifier: Apache-2.0 */
/* place.h: which node holds each chunk: an explicit table, balanced within one chunk, a pure
 * function of members and the table before. Between nodes it travels as runs: (node, chunks) pairs
 * in chunk order. */
#ifndef SHARD_WIRE_PLACE_H
#define SHARD_WIRE_PLACE_H

#include <stdbool.h>
#include <stdint.h>

enum { PLACE_NODES_MAX = 64 };

/* owner[chunks_nr] from previous[chunks_nr] (NULL: from nothing, chunk c goes to the c-th member,
 * round robin). members: node numbers, ascending, all different. As few chunks change their holder
 * as balance allows. */
void place_fill(uint16_t *owner, uint32_t chunks_nr, const uint16_t *members, uint16_t members_nr,
		const uint16_t *previous);

/* Runs into out[2 * pairs_max]; returns the pairs used, 0 if they do not fit. */
uint32_t place_encode(uint32_t *out, uint32_t pairs_max, const uint16_t *owner, uint32_t chunks_nr);
/* Runs from a peer: NULL, or why they are refused. runs_nr counts numbers, not pairs. */
const char *place_decode(uint16_t *owner, uint32_t chunks_nr, uint16_t nodes_nr,
			 const uint32_t *runs, uint32_t runs_nr);

#endif
