/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h: the two sums that a gradient goes through. ../proto/wire/ARITHMETIC.md has the order of
 * every operation. */
#ifndef SHARD_SUMS_H
#define SHARD_SUMS_H

#include <stdbool.h>
#include <stdint.h>

struct model;

enum reduce_stage { REDUCE_LOCAL, REDUCE_NODES };

/* The last sum over a chunk held here is the one that takes the norm. With one node in the world
 * that is the sum over its ranks. */
bool reduce_final(const struct model *m, enum reduce_stage stage, uint32_t chunk);
/* Every operand is there and stays: then contrib_summed(), or apply_stage() after the last one. */
void reduce_submit(struct model *m, enum reduce_stage stage, uint32_t chunk);

#endif
