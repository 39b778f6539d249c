/* SPDX-License-Identifier: Apache-2.0 */
/* control.h: what control/ keeps of a model. define.c owns who waits for a definition, seal.c the
 * seal in hand, transfer.c the reads, blob.c and manage.c their own. */
#ifndef SHARD_CONTROL_H
#define SHARD_CONTROL_H

#include "data/model.h"
#include "link/call.h"
#include "link/caller.h"

struct model_blobs {               /* control/blob.c */
	struct list asks, waiters; /* of trainers here; of nodes that wait for a step */
	uint32_t asks_nr, waiters_nr;
};

struct model_manage {        /* manage.c, on the coordinator */
	struct list waiting; /* who hears of CORE_ACT_TUNED */
	struct core_tune wanted;
	bool tuning; /* wanted does not hold yet */
};

struct model_maker {       /* define.c: who is told when its memory here is there, or cannot be */
	struct caller who; /* This node: it coordinates. */
	uint64_t incarnation; /* Of the memory there. */
};

struct model_control {
	struct model_maker maker;
	struct err abandoned;   /* Why its definition came to nothing. SHARD_OK: it has not. */
	uint64_t nodes_asked;   /* That owe the answer to MODEL. */
	struct list requesters; /* Of DEFINE, while it is being defined or restored. */
	struct list reads;      /* READs that wait for a step boundary. */
	struct model_manage manage;
	struct model_blobs blob;
	struct caller *sealer; /* Of the SEAL in hand; NULL: none is. */
	struct round written;  /* Of that seal: who counts, this node too. */
	struct store_missing missing;
	uint64_t seal_step;
};

extern const struct model_watch control_watch; /* Makes it with the model, and frees it last. */

#endif
