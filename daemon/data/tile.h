/* SPDX-License-Identifier: Apache-2.0 */
/* tile.h: the optimizer over one chunk, so that a kill at any instruction leaves memory that can be
 * made whole: each tile as it was, as it will be, or in the hands of a thread that says how far it
 * came. On workers, and at a start. */
#ifndef SHARD_TILE_H
#define SHARD_TILE_H

#include "base/status.h"

#include <stdint.h>

struct model;

/* Brings each tile to m->meta's stamp that does not have it: record, gradients and image as in
 * apply.c. Returns elements kept. */
uint64_t tile_apply(struct model *m, uint32_t chunk, uint32_t slot);
/* At a start, before tile_apply(): what threads were at is put back, and their tiles are finished.
 * SHARD_MISMATCH: what says so cannot be. */
enum shard_status tile_finish(struct model *m, struct err *e);

#endif
