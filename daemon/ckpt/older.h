/* SPDX-License-Identifier: Apache-2.0 */
/* older.h: the checkpoint before the one that is written, so that what did not change since need
 * not be written again. Both lie in one folder. */
#ifndef SHARD_CKPT_OLDER_H
#define SHARD_CKPT_OLDER_H

#include "ckpt/checkpoint.h"

struct older {
	int fd; /* Its folder; -1: there is none. */
	char at[32];
	struct manifest *manifest;
	struct part_older is;
};

/* In a job. beside: the open folder of the new checkpoint. Opens the one that `latest` beside it
 * names, if that is of a model of this name and has a file `name`. Otherwise NULL is returned. */
const struct part_older *older_open(struct older *o, int beside, const char *model,
				    const char *name);
void older_close(struct older *o); /* In any case. */

#endif
