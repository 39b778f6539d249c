/* SPDX-License-Identifier: Apache-2.0 */
/* saver.h: a checkpoint every so many steps, written by the daemons while the trainer trains on. */
#ifndef EXAMPLES_SAVER_H
#define EXAMPLES_SAVER_H

#include "shard.h"

struct saver {
	uint64_t every;  /* steps; 0: never */
	const char *dir; /* shared by all nodes; NULL: the model's checkpoint_dir */
	shard_ticket ticket;
	uint64_t step; /* of the save under way */
};

/* After each result, on every rank: rank 0 asks. A save that failed is told on stderr, and training
 * goes on. */
void saver_step(struct saver *s, shard_model *m, uint32_t rank, uint64_t step);
void saver_end(struct saver *s, shard_model *m); /* waits for the one under way */

#endif
