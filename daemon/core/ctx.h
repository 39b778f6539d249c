/* SPDX-License-Identifier: Apache-2.0 */
/* ctx.h: the lowest part of a core, which all others use: one call and what it appends to, the
 * links to the other nodes, timers, sentences, and questions that any part may ask. It decides
 * nothing and calls no other part. Private to daemon/core. */
#ifndef SHARD_CORE_CTX_H
#define SHARD_CORE_CTX_H

#include "core/core.h"

#define CORE_WHY_BYTES 256
#ifndef CORE_TEXTS_BYTES
#define CORE_TEXTS_BYTES 8192 /* The sentences of one call. They live until the next call. */
#endif
/* One message to ourselves for each trainer, and those of a verdict. */
#define CORE_INBOX_NR  (CORE_RANKS_MAX + 16)
#define CORE_SECOND_NS 1000000000ull /* Repeats slow down to one a second. */

struct ctx { /* One call of core_handle(). */
	struct core *c;
	struct core_out *out;
	uint64_t now;
	uint32_t head, tail; /* The messages to ourselves that are not delivered yet. */
	struct core_msg inbox[CORE_INBOX_NR];
	struct core_msg nobody; /* Takes what is sent to a node without a link. */
};

struct timer {       /* Repeats that back off to one a second. */
	uint64_t at; /* UINT64_MAX: it is off. */
	uint32_t count;
};

struct link { /* To another node. core.c changes it. */
	bool linked;
	uint64_t incarnation; /* Of the memory of this model at the other end. */
	char why[96]; /* What became of the memory before that one. Set for this node, too. */
};

struct core_action *core_act(struct ctx *x, enum core_action_type type);
/* Fills the fields that every message has. A message to a node without a link goes nowhere:
 * CORE_EV_LINK_UP repeats what matters. Never NULL. */
struct core_msg *core_send(struct ctx *x, uint16_t to, enum core_op op, const struct core_id *id);
__attribute__((format(printf, 2, 3))) const char *core_text(struct core *c, const char *fmt, ...);
/* Cuts off what does not fit. from NULL gives the empty text. */
void core_copy_text(char *to, size_t bytes, const char *from);

/* Of the view that this node has adopted; before it has, of the first one. */
const struct view_members *core_members(const struct core *c);
const struct placement *core_place(const struct core *c);
uint16_t core_coordinator(const struct core *c);
const char *core_node_name(const struct core *c, uint16_t node); /* "?": there is no such slot. */
bool core_linked(const struct core *c, uint16_t node);           /* True for this node itself. */
bool core_coordinates(const struct core *c);
/* The id is of the view that this node has adopted, and no promise forbids it. */
bool core_adopted(const struct core *c, const struct core_id *id);
/* A world that came in a message can be one. False for NULL. */
bool core_world_ok(const struct core *c, const struct core_world *w);
/* "rank 3 (pid 712, node b)" */
const char *core_rank_name(struct core *c, const struct core_world *w, uint32_t rank);
uint32_t core_local_ranks(const struct core_world *w, uint16_t node);
/* The rank of that session of that node, or -1 if it is not in the world. */
int32_t core_rank_of(const struct core_world *w, uint16_t node, uint64_t session);

void timer_stop(struct timer *t);
void timer_start(const struct core *c, struct timer *t, uint64_t now);
void timer_next(const struct core *c, struct timer *t, uint64_t now);

#endif
