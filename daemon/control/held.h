/* SPDX-License-Identifier: Apache-2.0 */
/* held.h: requests that are kept until something else has happened: definitions that wait for a
 * link, a drop or a restore, and restores. Each user has a share of their number and of their
 * bytes, and what is large is of the daemon's budget of memory. A user is a uid, wherever he asks;
 * over TCP all of one node are one. Loop thread only. */
#ifndef SHARD_HELD_H
#define SHARD_HELD_H

#include "shard.pb-c.h"
#include "node/state.h"

#define HELD_NR_SHARE    (4 * CORE_RANKS_MAX) /* requests of one user */
#define HELD_NR          (4 * HELD_NR_SHARE)  /* of all */
#define HELD_BYTES_SHARE (16ull << 20)        /* of one user; the first may be larger */
#define HELD_BYTES       (64ull << 20)
#define HELD_LARGE       (64u << 10) /* From there on it is of the budget. */

struct held {             /* In what is kept; zero: counts as nothing. */
	struct list link; /* In server.held. */
	uint64_t bytes;   /* Never 0 where it counts. */
	bool known;
	uint32_t uid;
	uint16_t node;
};

/* SHARD_BUSY: whose share or whose limit is used up. SHARD_BUDGET: the memory is promised. */
enum shard_status held_take(struct server *s, struct held *h, uint16_t node, const Shard__Cred *who,
			    uint64_t bytes, struct err *e);
void held_give(struct server *s, struct held *h); /* harmless twice */

#endif
