/* SPDX-License-Identifier: Apache-2.0 */
/* ondisk.h: a cluster, and a crew that trains a model whose state is in files. They are in a folder
 * below build/, because /tmp may have no O_DIRECT. What fails, fails the test. */
#ifndef SHARD_TESTS_ONDISK_H
#define SHARD_TESTS_ONDISK_H

#include "lib/crew.h"
#include "lib/proc.h"

struct ondisk {
	struct cluster *cluster; /* NULL: none. */
	struct crew *crew;
	char folder[4096];
};

void ondisk_make(struct ondisk *d); /* The folder. */
/* Starts the nodes, whose memory outlives them, with checkpoints in folder/saves, and two trainers
 * of node a. Returns after three steps. settings: of the model "m". */
void ondisk_begin(struct ondisk *d, int nodes_nr, const char *settings);
uint32_t ondisk_files(const struct ondisk *d); /* How many there are in the folder. */
void ondisk_put_away(struct ondisk *d);        /* Everything, also after a test that failed. */

#endif
