/* SPDX-License-Identifier: Apache-2.0 */
/* weights.h: the two images of a model with max_staleness = 1. Each chunk of them is numbered by the step whose record wrote it
 * (a skipped step writes none), so a chunk either has exactly the weights that are wanted, or not. */
#ifndef SHARD_CLIENT_WEIGHTS_H
#define SHARD_CLIENT_WEIGHTS_H

#include "handle.h"

void weights_attempt(struct shard_model *m, const struct attempt *a);         /* what the step before it left */
void weights_decided(struct shard_model *m, uint64_t step, bool applied);     /* RESULT */
bool weights_at(const struct shard_model *m, uint64_t step, uint64_t *wrote); /* what a step left; false: not decided yet */
bool weights_here(const struct shard_model *m, uint64_t first, uint64_t count, uint64_t wrote,
		  uint32_t *chunk);                                                 /* else: which not */
uint32_t weights_slot(const struct shard_model *m, uint32_t chunk, uint64_t wrote); /* the image that has it; MODEL_IMAGES: none */
uint32_t weights_landing(struct shard_model *m, uint64_t wrote);                    /* tcp: the image that a part goes to */
void weights_anew(struct shard_model *m);
/* Where the trainer reads: with one image always the same place. */
const char *weights_image(const struct shard_model *m);

#endif
