/* SPDX-License-Identifier: Apache-2.0 */
/* sums.h: the two sums that a gradient goes through. ../proto/wire/ARITHMETIC.md has the order of every operation. */
#ifndef SHARD_SUMS_H
#define SHARD_SUMS_H

#include <stdbool.h>
#include <stdint.h>

struct model;

enum sums_stage { SUMS_LOCAL, SUMS_NODES };

/* The last sum over a chunk held here is the one that takes the norm. With one node in the world that is the sum over its ranks. */
bool sums_final(const struct model *m, enum sums_stage stage, uint32_t chunk);
/* Every operand is there and stays: then gather_summed(), or model_stage() after the last one. */
void sums_submit(struct model *m, enum sums_stage stage, uint32_t chunk);

#endif
