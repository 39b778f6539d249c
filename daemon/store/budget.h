/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h: how much memory a model needs on a node, item by item, before anything is allocated,
 * and how much the node has left. */
#ifndef SHARD_STORE_BUDGET_H
#define SHARD_STORE_BUDGET_H

#include "store/room.h"
#include "store/store.h"

enum budget_item {
	BUDGET_STATE,
	BUDGET_IMAGE,
	BUDGET_ARENAS,
	BUDGET_SLOTS,
	BUDGET_SUMS,
	BUDGET_CODES,
	BUDGET_FIXED,
	BUDGET_ITEMS
};

#define BUDGET_BLOB_BYTES (64u << 10) /* The place for the blob of one rank. */

/* How many blobs of the step in hand have a place on a node. With one copy these are those of its
 * own ranks. With several (copied) they come from other nodes as well. */
static inline uint32_t budget_blobs_pending(uint32_t local_world, uint32_t max_world, bool copied)
{
	return copied ? max_world : local_world;
}

struct budget_need {
	uint64_t bytes[BUDGET_ITEMS], total;
	uint64_t parked; /* Of the total: what outlives the process (warm/). */
	/* Of the total: the second image and the second halves of the arenas, for max_staleness =
	 * 1. */
	uint64_t stale;
	bool leaving; /* The need is counted in budget.leaving. */
	bool least;   /* The need is a lower bound, of budget_least(). */
};

struct budget {
	uint64_t total, used; /* In bytes. */
	uint64_t queues; /* Of those used: for queues of what waits to be sent. Set at the start. */
	uint64_t gpus;   /* The same: pinned memory that GPUs copy through. */
	/* Of those used: what models that end will soon give back. */
	uint64_t leaving, leaving_parked;
	/* The last need that there was no room for, and when it came. 0: there was room always. */
	uint64_t refused_ns;
	char refused_why[ERR_TEXT_BYTES];
};

/* At the start, for a GPU. */
void budget_gpu(struct budget *b, uint64_t bytes);
/* "state", "image", "arenas", "landing slots", "node sums", "codes" or "fixed". */
const char *budget_item_name(enum budget_item item);
/* The tables of a step's gradients, of data/contrib.c. They have a place for each node that a
 * cluster may have. */
uint64_t budget_contribs(const struct layout *l, uint32_t local_world, enum shard_dtype grad);
/* Computes the need on node conf->self, which may be any node of the cluster. It is what
 * store_init() maps, to the page. */
void budget_need(struct budget_need *need, const struct store_conf *conf);
/* Computes a lower bound of it without any table of the layout: conf->layout has counts only,
 * conf->place is not read, and conf->warm is NULL. copies: how many nodes hold each chunk.
 * capacity: [conf->nodes_nr] as in core/plan.h. all_trained: no tensor is frozen. Otherwise moments
 * do not count. */
void budget_least(struct budget_need *need, const struct store_conf *conf, uint32_t copies,
		  const uint64_t *capacity, bool all_trained);
/* Reserves the need. SHARD_BUDGET: `"gpt" needs 93.4 GiB on node a (state 72.0, ...), 64.0 of 80.0
 * GiB are free`. */
enum shard_status budget_reserve(struct budget *b, const struct budget_need *need,
				 const char *model, const char *node, struct err *e);
/* Is there room for so many bytes more, of chunks that come while a model trains (store/room.h)?
 * SHARD_BUDGET says the figures. */
enum shard_status budget_room(const struct budget *b, uint64_t bytes, const char *model,
			      const char *node, struct err *e);
/* They are counted for the model from now on, or no more. */
void budget_more(struct budget *b, struct budget_need *need, const struct store_bytes *bytes);
void budget_less(struct budget *b, struct budget_need *need, const struct store_bytes *bytes);
/* Lends saves up to so many bytes, a multiple of unit, and at most half of what is free. They come
 * back when a model needs them, so they count as leaving. Returns how many. */
uint64_t budget_lend(struct budget *b, uint64_t bytes, uint64_t unit);
void budget_back(struct budget *b, uint64_t bytes);
/* The model ends. What it needed is given back when its threads are done. */
void budget_leave(struct budget *b, struct budget_need *need);
/* Will there be room for it when everything in .leaving is given back, and `more` bytes beside it?
 */
bool budget_soon(const struct budget *b, const struct budget_need *need, uint64_t more);
void budget_release(struct budget *b, const struct budget_need *need);
/* The model has ended, and its memory does not come back as long as the process lives. */
void budget_stay(struct budget *b, struct budget_need *need);

#endif
