/* SPDX-License-Identifier: Apache-2.0 */
/* ctx.h: the lowest part of a core, which all other parts use. It has the context of one call with
 * the actions that the call appends, the links to other nodes, timers, sentences, and questions
 * that any part may ask. It decides nothing and calls no other part. Private to daemon/core. */
#ifndef SHARD_CORE_CTX_H
#define SHARD_CORE_CTX_H

#include "core/core.h"

#define CORE_WHY_BYTES 256
#ifndef CORE_TEXTS_BYTES
#define CORE_TEXTS_BYTES 8192 /* The sentences of one call. They live until the next call. */
#endif
/* Enough for one message to ourselves for each trainer and for the messages of a verdict. */
#define CORE_INBOX_NR  (CORE_RANKS_MAX + 16)
#define CORE_SECOND_NS 1000000000ull /* Repeats slow down to one a second. */

struct ctx { /* One call of core_handle(). */
	struct core *c;
	struct core_out *out;
	uint64_t now;
	uint32_t head, tail; /* The messages to ourselves in [head, tail) are not delivered yet. */
	struct core_msg inbox[CORE_INBOX_NR];
	/* A message to a node without a link is written here and goes nowhere. */
	struct core_msg nobody;
};

struct timer {       /* Repeats that back off to one a second. */
	uint64_t at; /* UINT64_MAX: it is off. */
	uint32_t count;
};

struct link {       /* The link to another node. core.c changes it. */
	bool known; /* There was one in the life of this process. */
	/* The node at the other end. The entry of this node has .who and .why, too. */
	struct view_node who;
	char why[96]; /* What became of the memory before that one. */
};

struct core_action *core_act(struct ctx *x, enum core_action_type type);
/* Fills the fields that every message has. A message to a node without a link goes nowhere:
 * CORE_EV_LINK_UP repeats what matters. Never NULL. */
struct core_msg *core_send(struct ctx *x, uint16_t to, enum core_op op, const struct core_id *id);
__attribute__((format(printf, 2, 3))) const char *core_text(struct core *c, const char *fmt, ...);
/* Cuts off what does not fit. If from is NULL, the result is the empty text. */
void core_copy_text(char *to, size_t bytes, const char *from);

/* These two answer from the view that this node has adopted, or from the first view before it has
 * adopted one. */
const struct view_members *core_members(const struct core *c);
const struct placement *core_place(const struct core *c);
/* Do the copies of that node count, in that view? A node without memory for a chunk counts, too. */
bool core_counts(const struct core *c, uint16_t node);
/* Has this node memory for a chunk whose copy does not count yet, in that view? */
bool core_fetches(const struct core *c);
/* The coordinator of that view, or this node if it coordinates. The former may not lead any more.
 */
uint16_t core_coordinator(const struct core *c);
/* The number of the slot if the node has no name. "?" if no member may have this slot. */
const char *core_node_name(const struct core *c, uint16_t node);
bool core_linked(const struct core *c, uint16_t node); /* True for this node itself. */
bool core_coordinates(const struct core *c);
/* Does the id belong to the view that this node has adopted, and does no promise forbid it? */
bool core_adopted(const struct core *c, const struct core_id *id);
/* Is a world that came in a message possible, if its ranks are on these nodes? False for NULL. */
bool core_world_ok(const struct core *c, const struct core_world *w, uint64_t nodes);
/* Returns for example "rank 3 (pid 712, node b)". */
const char *core_rank_name(struct core *c, const struct core_world *w, uint32_t rank);
uint32_t core_local_ranks(const struct core_world *w, uint16_t node);
uint64_t core_ranked(const struct core_world *w); /* A bit for each node that has ranks. */
/* The rank that the session of that node has in the world, or -1 if it has none. */
int32_t core_rank_of(const struct core_world *w, uint16_t node, uint64_t session);

void timer_stop(struct timer *t);
void timer_start(const struct core *c, struct timer *t, uint64_t now);
void timer_next(const struct core *c, struct timer *t, uint64_t now);

#endif
