/* SPDX-License-Identifier: Apache-2.0 */
/* member.h: this node as a member of the cluster: what it promised and which view it adopted.
 * Private to daemon/core. */
#ifndef SHARD_CORE_MEMBER_H
#define SHARD_CORE_MEMBER_H

#include "core/ctx.h"

struct member {
	uint64_t promised; /* No lower term is heeded. */
	uint64_t term;     /* Of the view adopted here. 0: none is. */
	uint32_t seq, generation;
	struct view_members members; /* Of that view; before it, of the first one. */
	bool sealed, restoring, lost;
	bool has_next; /* .next waits for APPLYING to end. */
	struct core_tune tune;
	struct core_view next;
	char next_why[CORE_WHY_BYTES]; /* Of .next. */
	struct core_answer answer;     /* The last one, for as long as its action lives. */
	char waits[512];               /* What the coordinator said of .waits_id. */
	struct core_id waits_id;
};

/* Messages of the coordinator. */
void member_on_ask(struct ctx *x, const struct core_msg *m);
void member_on_view(struct ctx *x, const struct core_msg *m);
void member_on_waiting(struct ctx *x, const struct core_msg *m);
/* Events. */
void member_on_applied(struct ctx *x, const struct core_event *e);
void member_check(const struct core *c);

#endif
