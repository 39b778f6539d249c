/* SPDX-License-Identifier: Apache-2.0 */
/* superblock.h: what a file of chunks says of itself, so that a start finds them in it after a loss
 * of power, which leaves no memory. A superblock has a word for each chunk, which says in which
 * slot it is, and bytes of the owner. Two of them are written in turn, so that the one before stays
 * whole while the next one is written. Any thread may call all of it. */
#ifndef SHARD_STORE_SUPERBLOCK_H
#define SHARD_STORE_SUPERBLOCK_H

#include "base/status.h"

#include <stdint.h>

#define SUPER_BLOCK 4096u /* A head takes one. */

struct super_cell {
	uint64_t word; /* As in slots.h. 0: nothing of the chunk is in the file. */
	uint32_t chunk;
	uint32_t blocks; /* Of its state, before the trailer. */
};

struct super_of {
	uint64_t id, seq; /* Of the file, and of the superblock. seq says which place it takes. */
	uint64_t step;
	uint64_t room;       /* The bytes of the file that each body has. */
	uint64_t slot_bytes; /* Slots follow the bodies. */
	uint64_t payload_bytes;
	uint32_t cells_nr;
};

/* The room for a body. */
uint64_t super_room(uint32_t cells_nr, uint64_t payload_bytes);
/* Where the slots of a file begin whose bodies have this room. */
uint64_t super_area(uint64_t room);
/* Where head and body are in the file. */
uint64_t super_head_at(const struct super_of *of);
uint64_t super_body_at(const struct super_of *of);

/* In memory the head is first and the body follows it: cells, then the payload. */
struct super_cell *super_cells(uint8_t *at);
uint8_t *super_payload(uint8_t *at, uint32_t cells_nr);
/* The bytes of the body that are in use, in whole blocks. */
uint64_t super_body_bytes(const struct super_of *of);
/* Cells and payload are there: makes the head, and clears what is left of the last block. */
void super_seal(const struct super_of *of, uint8_t *at);

struct super_found {
	struct super_of of;
	uint8_t *at; /* As above. super_free() frees it. */
};

/* Reads the newest superblock of the file that is whole, with all trailers that its cells name, of
 * a step up to `most`. If that is not UINT64_MAX, one of a later step is no superblock any more
 * when this returns, also after a loss of power. What chunks contain is checked when they are read.
 * SHARD_NOT_FOUND: there is none, and e says what is wrong with the newer one. SHARD_SYSTEM: the
 * disk failed a read, or memory lacks, so that nobody knows what is there. Blocks. */
enum shard_status super_find(struct super_found *out, int fd, uint64_t id, uint64_t most,
			     struct err *e);
void super_free(struct super_found *f); /* Harmless twice. */

#endif
