/* SPDX-License-Identifier: Apache-2.0 */
/* copies.h: what the coordinator knows of the members of its newest view: who is there, whose
 * copies are, who leaves, joins or counts with the next view. It decides nothing. Private to
 * daemon/core. */
#ifndef SHARD_CORE_COPIES_H
#define SHARD_CORE_COPIES_H

#include "core/ctx.h"

/* The placement of the coordinator's newest view. */
const struct placement *coord_place(const struct core *c);
void coord_placed(struct core *c); /* Counts anew what the nodes have by that placement. */
/* The members of the coordinator's newest view, which may be newer than the view that this node has
 * adopted. */
const struct view_members *coord_members(const struct core *c);
/* Does that view name the node that is linked, with the memory that it has? */
bool coord_lists(const struct core *c, uint16_t node);

/* Who has the slot now, and with which memory. NULL: not known. */
const struct view_node *node_now(const struct core *c, uint16_t node);
/* Does it have another memory than the view lists? */
bool node_restarted(const struct core *c, uint16_t node);
/* Has it been away for lost_timeout? Never if its disk has what it holds (core_conf.durable). */
bool node_given_up(const struct core *c, uint16_t node, uint64_t now);
/* Is it lost, with the copies that it had? */
bool node_lost(const struct core *c, uint16_t node, uint64_t now);
/* May chunks of the model have several copies? */
bool copies_several(const struct core *c);
/* Does the model go on without a member that it can spare? If chunks have one copy each, and nobody
 * joins, it waits for every member. */
bool members_vary(const struct core *c);
/* The first chunk of which none of these nodes has a copy. chunks_nr: there is none. */
uint32_t copies_missing(const struct core *c, uint64_t nodes);
/* Bits of the members that are here, with the memory that the view lists. */
uint64_t copies_here(const struct core *c);
/* The first chunk whose copies are all lost. chunks_nr: there is none. While weights are being
 * written, a copy that is lost does not know what was written to the others. */
uint32_t copies_lost(const struct core *c, uint64_t now);
/* All such chunks, as "0-2, 5", or as many as `bytes` (at least 64) have room for. */
void copies_lost_text(const struct core *c, uint64_t now, char *text, size_t bytes);
/* The member that lost a copy of this chunk, which copies_lost() named. */
uint16_t copies_lost_at(const struct core *c, uint32_t chunk, uint64_t now);
/* Has every member that is linked answered since the last time that one was missed? */
bool members_heard(const struct core *c);
/* Bits of the members that leave the view, because they are missed, odd or without a link to others
 * (hear.h), and the others have copies of all chunks. Either all of them leave or none does. */
uint64_t members_leaving(const struct core *c);
/* Bits of the nodes that are linked, whose slots a view may have, that are no members, and
 * that nothing keeps out (hear.h). They
 * become members that catch up, or that have no chunk. While the weights are written nobody
 * joins. */
uint64_t members_joining(const struct core *c);
/* Bits of the members whose copies count from the next view on. all: also of those that have said
 * so of an earlier record, and for which the next attempt waits. */
uint64_t members_caught(const struct core *c, bool all);
/* Bits of the members that are odd (odd.h), and whose copies count. */
uint64_t members_odd(const struct core *c);
/* Have the nodes that are here copies of all chunks, without those of these nodes? */
bool copies_spare(const struct core *c, uint64_t nodes);
/* This node coordinates, is odd, and others have all chunks. Its copies stop to count. */
bool copies_step_back(const struct core *c);

#endif
