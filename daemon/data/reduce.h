/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h: the two sums that a gradient goes through, the codes between them, if there are any,
 * and the copy of what another node summed.
 * ../proto/wire/ARITHMETIC.md has the order of every operation. */
#ifndef SHARD_DATA_REDUCE_H
#define SHARD_DATA_REDUCE_H

#include <stdbool.h>
#include <stdint.h>

struct model;
struct tier_result;

/* REDUCE_CODE: the sum of REDUCE_LOCAL becomes codes, of which REDUCE_NODES makes a sum.
 * REDUCE_COPY: of a chunk that its primary has reduced, to memory that only this daemon writes. */
enum reduce_stage { REDUCE_LOCAL, REDUCE_CODE, REDUCE_NODES, REDUCE_COPY, REDUCE_STAGES };

/* Is this the last sum over a chunk held here, which takes the norm? If the world has only one
 * node, that is the sum over its ranks. */
bool reduce_final(const struct model *m, enum reduce_stage stage, uint32_t chunk);
/* Called when every operand is there and stays as it is. contrib_added() follows, or
 * contrib_summed() after the codes, or grad_reduced() and apply_stage() after the last sum, or
 * grad_copied(). */
void reduce_submit(struct model *m, enum reduce_stage stage, uint32_t chunk);
/* Of device_grads_up. The first sum of an attempt begins. The sum over the ranks of this node was
 * made on a GPU, is finite, and is in the memory of sums: what follows is as after that stage. */
void reduce_begins(struct model *m);
void reduce_added(struct model *m, uint32_t chunk, const struct tier_result *r);
/* Hands out the sums that wait. Called when jobs are done. */
void reduce_feed(struct model *m);

#endif
