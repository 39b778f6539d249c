/* SPDX-License-Identifier: Apache-2.0 */
/* member.h: this node as a member of the cluster: what it promised and which view it adopted.
 * Private to daemon/core. */
#ifndef SHARD_CORE_MEMBER_H
#define SHARD_CORE_MEMBER_H

#include "core/ctx.h"

struct member {
	uint64_t promised; /* Messages of a lower term are ignored. */
	/* The node that leads in that term. Nobody else gives orders here. */
	uint16_t leader;
	uint64_t term; /* The term of the view that is adopted here. 0: none is. */
	uint32_t seq, generation;
	/* The members of that view, or of the first view if none is adopted. */
	struct view_members members;
	struct placement place; /* The same. member_place() sets it. */
	bool sealed, restoring, lost;
	bool has_next; /* The view .next waits until APPLYING has ended. */
	/* What is here is of the disk of this node, and no view was adopted since. asked: a
	 * coordinator has asked for it. */
	bool recalled, asked;
	struct core_tune tune;
	struct core_view next;
	char next_why[CORE_WHY_BYTES]; /* The reason that came with .next. */
	struct core_answer answer;     /* The last answer. The action that sends it points here. */
	char waits[512]; /* Who attempt .waits_id waits for, as the coordinator said. */
	struct core_id waits_id;
	/* The last question of the coordinator, and when whom this node misses is told again. */
	uint64_t heard;
	struct timer timer;
};

/* Is this node a member? Its slot alone does not make it one, because another node may have the
 * slot in another view. */
bool member_is_in(const struct core *c, const struct view_members *v);

/* Does this node obey the sender? It obeys the node that leads in the term that it promised, and,
 * if coordinators are elected, one that comes with a higher term. */
bool member_obeys(const struct core *c, const struct core_msg *m);

/* From now on the chunks lie like that. Counts anew how many each node has, who sends reduced
 * gradients to whom, and where the votes for the chunks of this node are. */
void member_place(struct core *c, const struct placement *p);

/* Messages of the coordinator. */
void member_on_ask(struct ctx *x, const struct core_msg *m);
void member_on_view(struct ctx *x, const struct core_msg *m);
void member_on_waiting(struct ctx *x, const struct core_msg *m);
void member_on_odd(struct ctx *x, const struct core_msg *m);
void member_on_hear(struct ctx *x, const struct core_msg *m);
/* Bits of the nodes to which this one has no link, though they are members, or had one before. */
uint64_t member_misses(const struct core *c);
void member_tell(struct ctx *x); /* Tells the coordinator, and again as long as one is a member. */
/* All copies here are those of the last record. Tells the coordinator. */
void member_tell_caught(struct ctx *x);
/* Events. */
void member_on_tick(struct ctx *x);
void member_on_applied(struct ctx *x, const struct core_event *e);
void member_check(const struct core *c);

#endif
