/* SPDX-License-Identifier: Apache-2.0 */
/* durable.h: nvme_durable = step. What a step leaves outlives a loss of power before the next one
 * is voted for. */
#ifndef SHARD_DATA_DURABLE_H
#define SHARD_DATA_DURABLE_H

#include <stdint.h>

struct model;

/* A record, or a seal, is applied to all chunks here, and the core has saved that. No vote leaves
 * until the disk has all of it, which done() tells, on this turn of the loop or a later one.
 * Nothing happens with another setting, or if it has that already. */
void durable_begin(struct model *m, void (*done)(struct model *m));
/* At a start: the superblock that counts has that copy (meta_pack()). */
void durable_found(struct model *m, const void *packed, uint64_t bytes);
/* The weights are lost. What the disk is being told of ends, and is no step of those that follow.
 */
void durable_lost(struct model *m);

#endif
