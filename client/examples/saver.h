/* SPDX-License-Identifier: Apache-2.0 */
/* saver.h: a checkpoint every so many steps, which the daemons write while the trainer trains
 * on. */
#ifndef EXAMPLES_SAVER_H
#define EXAMPLES_SAVER_H

#include "shard.h"

struct saver {
	uint64_t every;  /* In steps. 0: never. */
	const char *dir; /* Shared by all nodes. NULL: the model's checkpoint_dir. */
	shard_ticket ticket;
	uint64_t step; /* The step of the save under way. */
};

/* Every rank calls this after each result, and rank 0 asks for the checkpoint. A save that fails is
 * reported on stderr, and training goes on. */
void saver_step(struct saver *s, shard_model *m, uint32_t rank, uint64_t step);
void saver_end(struct saver *s, shard_model *m); /* Waits for the save under way. */

#endif
