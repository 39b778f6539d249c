/* SPDX-License-Identifier: Apache-2.0 */
/* away_calls.h: what the tiers have in common whose chunks are in memory for a time only (away.h).
 * A call waits until its chunk is in a buffer, and is carried out there by the tier of main memory.
 * A part of the buffers is left to calls, whoever else pins chunks. Loop thread only. */
#ifndef SHARD_STORE_AWAY_CALLS_H
#define SHARD_STORE_AWAY_CALLS_H

#include "store/tier.h"

#define AWAY_CALLS 64u

struct away_tier;

struct away_call {
	struct tier_pin pin;
	struct away_tier *of; /* NULL: it is free. */
	bool make;
	bool accepted; /* Whoever made the call knows, so it is carried out. */
	struct tier_make what;
	struct tier_call who;
};

struct away_users { /* The pins of one buffer. */
	/* All, those that are not of a call, and of those the ones that write. */
	uint32_t all, outside, writers;
};

struct away_tier { /* The first field of such a tier. */
	struct tier tier;
	struct tier *ram; /* It computes. */
	struct store *store;
	uint32_t outside, writers; /* Buffers with such pins. */
	uint64_t updates;          /* Of chunks that were in a buffer, so far. */
	struct away_call call[AWAY_CALLS];
};

/* NULL: all are in use, and the row says SHARD_AGAIN. */
struct away_call *away_call_take(struct away_tier *t, const struct tier_make *what, bool make,
				 const struct tier_call *who);
/* Pins the chunk, now or later, and has the call carried out then. SHARD_AGAIN: nothing was begun,
 * because no thread is free, and the call is free again. Never if .accepted is set. */
enum shard_status away_call_go(struct away_call *c);
/* It was done in another way. It is free, and who made it hears of it. */
void away_call_end(struct away_call *c, const struct tier_result *r);

bool away_is_call(const struct tier_pin *p); /* The pin is that of a call. */
void away_use(struct away_tier *t, struct away_users *u, const struct tier_pin *p);
void away_unuse(struct away_tier *t, struct away_users *u, const struct tier_pin *p);
/* May the pin have the buffer, of so many that chunks take turns in? u NULL: its chunk is in none
 * yet. */
bool away_may_have(const struct away_tier *t, const struct away_users *u, const struct tier_pin *p,
		   uint32_t buffers);

/* Of struct tier_row: what is done in main memory in any case. */
enum shard_status away_sum(struct tier *t, const struct tier_sum *s, const struct tier_call *c);
enum shard_status away_patch(struct tier *t, const struct tier_patch *p, const struct tier_call *c);
enum shard_status away_repair(struct tier *t, uint64_t stamp, bool applying,
			      void (*of)(void *arg, uint32_t chunk, struct tier_apply *a),
			      void *arg, uint64_t *kept, struct err *e);

#endif
