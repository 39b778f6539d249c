/* SPDX-License-Identifier: Apache-2.0 */
/* tile.h: the optimizer over one chunk, tile by tile, so that a kill at any instruction leaves each tile as it was or as it will be. On
 * workers, and at a start. */
#ifndef SHARD_TILE_H
#define SHARD_TILE_H

#include "base/status.h"

#include <stdint.h>

struct model;

/* Brings each tile to m->meta's stamp that does not have it: record, gradients and image as in apply.c. Returns elements kept. */
uint64_t tile_apply(struct model *m, uint32_t chunk, uint32_t slot);
/* Tiles whose update was begun and not finished, as they were before it. SHARD_MISMATCH: what says so cannot be. */
enum shard_status tile_put_back(struct model *m, struct err *e);

#endif
