/* SPDX-License-Identifier: Apache-2.0 */
/* tile.h: the optimizer over one chunk, so that a kill at any instruction leaves memory that can be
 * repaired. Each tile is as it was, or as it will be, or is being changed by a thread that notes
 * how far it came. Called on workers, and at a start. */
#ifndef SHARD_TILE_H
#define SHARD_TILE_H

#include "base/status.h"

#include <stdint.h>

struct model;

/* Applies the record to each tile that does not have the stamp of m->meta. Record, gradients and
 * image are those of apply.c. Returns how many elements were kept as they were. */
uint64_t tile_apply(struct model *m, uint32_t chunk, uint32_t slot);
/* Called at a start, before tile_apply(). Puts back what threads were changing, and finishes their
 * tiles. SHARD_MISMATCH: the notes of the threads are impossible. */
enum shard_status tile_finish(struct model *m, struct err *e);

#endif
