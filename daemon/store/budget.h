/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h: what a model needs on a node, item by item, before anything is allocated; and what a
 * node has left. */
#ifndef SHARD_STORE_BUDGET_H
#define SHARD_STORE_BUDGET_H

#include "store/store.h"

enum budget_item {
	BUDGET_STATE,
	BUDGET_IMAGE,
	BUDGET_ARENAS,
	BUDGET_SLOTS,
	BUDGET_SUMS,
	BUDGET_FIXED,
	BUDGET_ITEMS
};

#define BUDGET_BLOB_BYTES (64u << 10) /* a place for what a rank keeps with a step */

struct budget_need {
	uint64_t bytes[BUDGET_ITEMS], total;
	uint64_t parked; /* of these, what outlives the process (warm.h) */
	uint64_t stale;  /* of these, for max_staleness = 1: the second image and the second halves
			    of the arenas */
	bool leaving;    /* It is counted in budget.leaving. */
};

struct budget {
	uint64_t total, used; /* bytes */
	uint64_t queues;      /* of those used, for what waits to be sent; set at the start */
	uint64_t leaving, leaving_parked; /* of those used, what models that end give back soon */
};

const char *budget_item_name(enum budget_item item); /* "state", "image", "arenas", "landing slots",
							"node sums", "fixed" */
/* For any node of the cluster: conf->self says which. Mirrors store_init() to the page. */
void budget_need(struct budget_need *need, const struct store_conf *conf);
/* SHARD_BUDGET: `"gpt" needs 93.4 GiB on node a (state 72.0, ...), 64.0 of 80.0 GiB are free`. */
enum shard_status budget_reserve(struct budget *b, const struct budget_need *need,
				 const char *model, const char *node, struct err *e);
/* The model ends: what it needed comes back when its threads are done. */
void budget_leave(struct budget *b, struct budget_need *need);
/* Will there be room for it when all of that is back, and so many bytes more? */
bool budget_soon(const struct budget *b, const struct budget_need *need, uint64_t more);
void budget_release(struct budget *b, const struct budget_need *need);

#endif
