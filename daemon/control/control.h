/* SPDX-License-Identifier: Apache-2.0 */
/* control.h: the state that control/ keeps of a model. define.c owns maker, abandoned, known, told
 * and requesters. seal.c owns the fields of the seal, transfer.c the reads, and blob.c and manage.c
 * their own structs. */
#ifndef SHARD_CONTROL_H
#define SHARD_CONTROL_H

#include "data/model.h"
#include "link/call.h"
#include "link/caller.h"
#include "store/store_missing.h"

struct model_blobs { /* Owned by blob.c. */
	struct list asks,
		waiters; /* asks: of trainers here. waiters: of nodes that wait for a step. */
	uint32_t asks_nr, waiters_nr;
};

struct model_manage {        /* Owned by manage.c, on the coordinator. */
	struct list waiting; /* Requests to answer at CORE_ACT_TUNED. */
	struct core_tune wanted;
	bool tuning; /* `wanted` is not in force yet. */
};

struct model_maker { /* Is answered when the memory of the model here is made, or cannot be. */
	struct caller who;    /* The sender of MODEL. With this node's own index: there is none. */
	uint64_t incarnation; /* Of the sender's memory of this model. */
};

struct model_control {
	struct model *model;
	struct model_maker maker;
	struct err abandoned; /* Why the definition failed. SHARD_OK: it has not. */
	bool known;           /* It is being made of the definition in the state folder. */
	struct round told; /* Coordinator: the nodes that owe the answer to MODEL, and this one as
			      long as its own memory is not made. */
	uint64_t later, since_ns; /* Coordinator: the nodes that are asked again, because they had
				     not heard yet that this one coordinates; since when the model
				     is being defined. */
	struct list requesters;   /* DEFINEs that wait until the model is defined or restored. */
	struct list reads;        /* READs that wait for a step boundary. */
	struct model_manage manage;
	struct model_blobs blob;
	struct moving *moving; /* moving.c. NULL: no chunk was ever to move. */
	struct caller *sealer; /* Of the SEAL that is being handled; NULL: there is none. */
	struct round written;  /* Of that seal: the nodes that still count, this one included. */
	struct store_missing missing;
	uint64_t missing_copies, balance; /* Of the same seal, as in WRITTEN. */
	uint64_t seal_step;
	uint32_t counts_wait; /* Counts of weights that wait until a chunk is in memory. */
};

extern const struct model_watch
	control_watch; /* Makes the struct with the model, and frees it last. */

#endif
