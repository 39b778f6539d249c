/* SPDX-License-Identifier: Apache-2.0 */
/* slowest.h: which rank a step waited for longest. Each node measures its own ranks, from the
 * moment when it began the attempt to the READY of each. It tells the coordinator with its vote,
 * and the coordinator tells all nodes with COMMIT. It is a measurement and no part of any decision,
 * so the core does not see it. */
#ifndef SHARD_SLOWEST_H
#define SHARD_SLOWEST_H

#include "core/record.h"

#include "shard.pb-c.h"

#define SLOWEST_UNKNOWN UINT32_MAX

struct slowest {
	struct slowest_of {
		struct core_id id;
		uint64_t began_ns; /* When this node began the attempt. 0: it has not yet. */
		uint64_t ready_ns; /* How long the slowest rank took. */
		uint32_t rank;     /* The slowest rank that is known here, plus 1. 0: none. */
	} of[2]; /* By step. Votes of a step may come before this node is done with the last one. */
};

/* This node begins the attempt. */
void slowest_begin(struct slowest *s, const struct core_id *id, uint64_t now_ns);
/* A rank of this node is ready. */
void slowest_ready(struct slowest *s, const struct core_id *id, uint32_t rank, uint64_t now_ns);
/* A VOTE or COMMIT leaves this node. */
void slowest_say(const struct slowest *s, const struct core_id *id, Shard__Core *body);
/* A VOTE or COMMIT came. */
void slowest_heard(struct slowest *s, const struct core_id *id, const Shard__Core *body);
/* Returns SLOWEST_UNKNOWN if the decision came without the rank, or if the rank that came is
 * impossible. */
uint32_t slowest_rank(const struct slowest *s, const struct record *r);

#endif
