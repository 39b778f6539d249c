/* SPDX-License-Identifier: Apache-2.0 */
/* history.h: which ranks trained on which nodes, from which step on: what a daemon logs as
 * event=world, replayed by the reference. */
#ifndef REF_HISTORY_H
#define REF_HISTORY_H

#include "base/status.h"

enum { HISTORY_NODES_MAX = 64, HISTORY_RANKS_MAX = 256 };

struct history_world {
	uint64_t from;                   /* step */
	uint32_t size, nodes_nr;         /* nodes are numbered in the order of their lowest rank */
	uint8_t node[HISTORY_RANKS_MAX]; /* of each rank */
};

struct history {
	struct history_world *world; /* by `from`, in the order of the file */
	uint32_t nr, size_max;
};

/* One world for ever: text as 2,2: ranks on each node, numbered along the nodes. Or lines of a file
 * that have step=N and nodes=NAME:RANKS,...: the last one at or below a step is the world of that
 * step. A failure leaves nothing to undo. */
enum shard_status history_fixed(struct history *h, const char *text, struct err *e);
enum shard_status history_read(struct history *h, const char *path, struct err *e);
const struct history_world *history_at(const struct history *h,
				       uint64_t step); /* NULL: nobody trained it */
void history_deinit(struct history *h);

#endif
