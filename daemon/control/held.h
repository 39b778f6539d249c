/* SPDX-License-Identifier: Apache-2.0 */
/* held.h: the account of requests that are kept for later: definitions that wait for a link, a drop
 * or a restore, and restores. Each user has a share of their number and of their bytes. Large ones
 * also count in the daemon's memory budget. A user is a uid, on whatever node, except that root is
 * another user on each node. Over TCP all requests of one node count as one user. Loop thread only.
 */
#ifndef SHARD_HELD_H
#define SHARD_HELD_H

#include "shard.pb-c.h"
#include "node/state.h"

#define HELD_NR_SHARE    (4 * CORE_RANKS_MAX) /* Requests of one user. */
#define HELD_NR          (4 * HELD_NR_SHARE)  /* Requests of all users. */
#define HELD_BYTES_SHARE (16ull << 20) /* Bytes of one user, whose first request may be larger. */
#define HELD_BYTES       (64ull << 20)
#define HELD_LARGE       (64u << 10) /* From this size on a request counts in the budget. */

struct held {             /* Part of a kept request. Zeroed memory counts as nothing. */
	struct list link; /* In server.held. */
	uint64_t bytes;   /* 0: it is not counted. */
	bool known;
	uint32_t uid;
	uint16_t node;
};

/* Counts a request of that many bytes. SHARD_BUSY: the user's share or the limit of all is used up.
 * SHARD_BUDGET: models have reserved the memory. */
enum shard_status held_take(struct server *s, struct held *h, uint16_t node, const Shard__Cred *who,
			    uint64_t bytes, struct err *e);
void held_give(struct server *s, struct held *h); /* A second call does nothing. */

#endif
