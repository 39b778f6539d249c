/* SPDX-License-Identifier: Apache-2.0 */
/* history.h: which ranks trained on which nodes, from which step on. The reference replays what a
 * daemon logs as event=world. */
#ifndef REF_HISTORY_H
#define REF_HISTORY_H

#include "base/status.h"

enum { HISTORY_NODES_MAX = 64, HISTORY_RANKS_MAX = 256 };

struct history_world {
	uint64_t from;                   /* The first step of this world. */
	uint32_t size, nodes_nr;         /* Nodes are numbered in the order of their lowest rank. */
	uint8_t node[HISTORY_RANKS_MAX]; /* The node of each rank. */
	uint8_t who[HISTORY_NODES_MAX];  /* The number that the node has in all worlds. */
};

struct history {
	struct history_world *world; /* In the order of the file, which is that of `from`. */
	uint32_t nr, size_max;
	char (*name)[64]; /* [HISTORY_NODES_MAX] By that number. */
	uint32_t names_nr;
};

/* history_fixed() makes one world for all steps from a text such as 2,2, the ranks on each node,
 * numbered node by node. history_read() reads the lines of a file that have step=N and
 * nodes=NAME:RANKS,... The last one at or below a step is the world of that step. A failure leaves
 * nothing to undo. */
enum shard_status history_fixed(struct history *h, const char *text, struct err *e);
enum shard_status history_read(struct history *h, const char *path, struct err *e);
/* NULL: nobody trained this step. */
const struct history_world *history_at(const struct history *h, uint64_t step);
void history_deinit(struct history *h);

#endif
