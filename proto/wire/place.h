/* SPDX-License-Identifier: Apache-2.0 */
/* place.h: which nodes hold each chunk. Placement is an explicit table. Between nodes it travels as
 * runs in chunk order. These are pairs of a node and a number of chunks for the primaries, and
 * pairs of a bit mask and a number of chunks for the holders where a chunk has several. */
#ifndef SHARD_WIRE_PLACE_H
#define SHARD_WIRE_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PLACE_NODES_MAX = 64 };

/* Writes runs into out[2 * pairs_max]. Returns the number of pairs, or 0 if they do not fit. */
uint32_t place_encode(uint32_t *out, uint32_t pairs_max, const uint16_t *owner, uint32_t chunks_nr);
/* Reads runs from a peer. Returns NULL, or why they are refused. runs_nr counts numbers, not
 * pairs. */
const char *place_decode(uint16_t *owner, uint32_t chunks_nr, uint16_t nodes_nr,
			 const uint32_t *runs, uint32_t runs_nr);

/* The same for the holders of chunks with several copies, as (bit mask of nodes, chunks) pairs.
 * place_decode_holders() takes only tables in which each chunk has exactly `copies` holders, its
 * primary is one of them, and each holder is one of nodes_nr nodes. copies 0: each chunk has any
 * number of holders, from one on. */
uint32_t place_encode_holders(uint64_t *out, uint32_t pairs_max, const uint64_t *holders,
			      uint32_t chunks_nr);
const char *place_decode_holders(uint64_t *holders, const uint16_t *primary, uint32_t chunks_nr,
				 uint16_t nodes_nr, uint32_t copies, const uint64_t *runs,
				 size_t runs_nr);

/* The chunks of such runs, from a peer or a file that says how many there are. 0: none, or more
 * than chunks_max. */
uint32_t place_chunks(const uint32_t *runs, size_t runs_nr, uint32_t chunks_max);
/* The same checks for tables that are there already, as memory of an earlier start has them.
 * holders may be NULL. Returns NULL, or why they are refused. */
const char *place_wrong(const uint16_t *primary, const uint64_t *holders, uint32_t chunks_nr,
			uint16_t nodes_nr);

#endif
