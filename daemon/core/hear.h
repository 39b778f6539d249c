/* SPDX-License-Identifier: Apache-2.0 */
/* hear.h: what the members say of each other. Each tells the coordinator to which nodes it has no
 * link, with HEARD, VIEW_OK and ANSWER. A link between two members may be lost while both are
 * linked to the coordinator. The step cannot go on then, so one of the two has to leave. Private to
 * daemon/core.
 *
 * A report counts in the view in which it was made. Two members miss each other if either says so.
 * Once that has lasted for reconnect_ns, the one that misses most others leaves, and only one
 * leaves with a view. If several miss equally many, it is the one because of which somebody had to
 * leave before, so that a member that names others wrongly gets rid of one of them at most. Then it
 * is the one with the fewest primaries, with the fewest copies, and with the highest slot. Nobody
 * leaves who has the last copy of a chunk, nor because of one that ought to leave and has it. The
 * coordinator never leaves in this way, because it has a link to all that report. Who left is taken
 * in again when every member has had a link to it for some time, which gets longer each time.
 *
 * If an elected coordinator itself misses several members, more than others miss each of them, the
 * fault is rather at it. It lets another node lead (CORE_ACT_YIELD) before it goes on without
 * them. */
#ifndef SHARD_CORE_HEAR_H
#define SHARD_CORE_HEAR_H

#include "core/ctx.h"

struct reports {
	uint64_t out; /* The bit of the member that is to leave. 0: none is. */
	/* Bits of the nodes that are linked, are no members, and are not taken in, because a member
	 * has no link to them. The word of each member keeps out one node at most. */
	uint64_t kept;
	uint64_t out_nr; /* How many have left, since this node coordinates. */
	/* Since when another node is to lead instead of this one. 0: none is. */
	uint64_t yields_ns;
	bool yields; /* Nobody leaves meanwhile. */
	/* Who .out is, and who has no link to it. */
	char why[CORE_WHY_BYTES];
	/* [node] How often somebody left because of a link that this node lacks. */
	uint32_t blamed[CORE_NODES_MAX];
	uint64_t kept_ns[CORE_NODES_MAX]; /* [node] When it was last one of .kept. */
	/* [node] The nodes to which it has no link, as it said in this view, and since when it says
	 * so of each. */
	uint64_t misses[CORE_NODES_MAX];
	uint64_t outside[CORE_NODES_MAX]; /* The same of one that is no member, over its link. */
	uint64_t since[CORE_NODES_MAX][CORE_NODES_MAX];
};

/* A member is missed. Who of the others is there? */
void hear_missed(struct ctx *x, uint16_t node);
/* Asks that member again, if it owes an answer. */
void hear_send(struct ctx *x, uint16_t node);
void hear_repeat_outside(struct ctx *x); /* Asks those that are no members, and are kept out. */
bool hear_asks(const struct core *c);    /* Is something to be repeated, in any state? */
void hear_on_heard(struct ctx *x, const struct core_msg *m);
void hear_linked(struct ctx *x, uint16_t node); /* It has a new link to this node. */
/* It came from a node that is no member. */
void hear_on_outside(struct ctx *x, const struct core_msg *m);
/* Takes the report that came with this message. */
void hear_report(struct ctx *x, const struct core_msg *m);
void hear_look(struct ctx *x); /* Decides anew who is to leave, and who is kept out. */
/* This is the next view. Reports count in the one before. */
void hear_changed(struct ctx *x, const struct view_members *to);
void hear_void(struct core *c); /* A view follows with the same members. */
uint64_t hear_deadline(const struct core *c);
/* Two members without a link: "node b has no link to node c". NULL: there are none. */
const char *hear_pair(const struct core *c, char *text, size_t bytes);

#endif
