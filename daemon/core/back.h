/* SPDX-License-Identifier: Apache-2.0 */
/* back.h: nodes whose memory is what their disks have after a loss of power (core_conf.durable),
 * and how all of them come to the same step. Private to daemon/core.
 *
 * A node votes for step t + 1 only when its own disk has step t, and it writes over what its disk
 * has of step t - 1 only when t + 1 is decided. A decision takes the vote of every member. So if
 * one member has decided t + 1, the disks of all have t, and if the disk of one has t + 1, it still
 * has t until the disks of all have t + 1. Whatever dies at any moment, the records of two nodes
 * that come back are the same, or one is the next of the other, and the older one is on every disk.
 *
 * A node that comes back has forgotten what it voted for and promised since. So until a coordinator
 * asks it (ASK) it obeys nothing, and it tells the coordinator that there is (BACK). That one knows
 * too much of it, and starts again: only a new term asks all members what they have. A coordinator
 * that recovers compares the records of all members that hold chunks. Are some one step behind, and
 * not PREPARED for that step, those that are ahead are told to go back (BACK): they give up what
 * they have in memory, and end. Their next start takes the older step from the disk. The one that
 * recovers waits for their answers, so nothing is decided before all are at one step.
 *
 * Who is PREPARED for a step that is given up goes back as well, to its own record, where somebody
 * has come back from its disk: the step may have been decided, and then its image has chunks of
 * it. */
#ifndef SHARD_CORE_BACK_H
#define SHARD_CORE_BACK_H

#include "core/ctx.h"

struct back {              /* What the members answered in COORD_RECOVER. */
	uint64_t has;      /* Bits of those that have a record, which is .record. */
	uint64_t recalled; /* Bits of those whose memory is what their disks had. */
	struct core_id record[CORE_NODES_MAX];
	bool any; /* .lowest is the oldest record of those that hold chunks. */
	struct record lowest;
};

/* The coordinator. */
void back_answered(struct core *c, const struct core_msg *m);
void back_link_down(struct core *c, uint16_t node); /* It may come back with an older record. */
enum back_is {
	BACK_NONE,  /* All are at one step, .last of the coordinator. */
	BACK_WAITS, /* Some are told to go back. */
	BACK_LOST,  /* They cannot come to one step. Why is in .lost. */
};
/* All that are to answer have answered. remedy: what helps if it is lost. */
enum back_is back_settle(struct ctx *x, const char *remedy);
void back_on_told(struct ctx *x, const struct core_msg *m); /* BACK of a member. */

/* c->backs: what the model waits for. */
void back_waits(const struct core *c, char *text, size_t bytes);

/* A member. */
void back_linked(struct ctx *x); /* There is a new link to the coordinator. */
bool back_tells(const struct core *c);
void back_tell(struct ctx *x);
void back_on_order(struct ctx *x, const struct core_msg *m); /* BACK of the coordinator. */

#endif
