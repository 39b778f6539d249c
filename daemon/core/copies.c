/* SPDX-License-Identifier: Apache-2.0 */
/* Questions of the coordinator about the members of its newest view and their copies. recover.c
 * asks them at the end of every event, and makes the next view of the answers. A member is there if
 * it is linked, or has answered a coordinator that recovers. It is missed if it is not. Whose
 * copies count the placement of the view says. Nothing here changes anything or fails. */
#include "core/copies.h"

#include "core/inner.h"

#include <stdio.h>
#include <string.h>

const struct view_members *coord_members(const struct core *c)
{
	return &c->coord.view.members;
}

const struct placement *coord_place(const struct core *c)
{
	return &c->coord.view.place;
}

void coord_placed(struct core *c)
{
	struct coord *co = &c->coord;

	co->least = CORE_NODES_MAX;
	memset(co->held_nr, 0, sizeof(co->held_nr));
	memset(co->votes_nr, 0, sizeof(co->votes_nr));
	for (uint32_t i = 0; i < c->conf.chunks_nr; i++) {
		uint64_t keepers = place_keepers(coord_place(c), i),
			 copies = place_copies(coord_place(c), i);
		uint32_t nr = (uint32_t)__builtin_popcountll(copies);

		co->least = nr < co->least ? nr : co->least;
		for (; keepers; keepers &= keepers - 1)
			co->held_nr[__builtin_ctzll(keepers)]++;
		for (; copies; copies &= copies - 1) {
			uint16_t node = (uint16_t)__builtin_ctzll(copies);

			if (!co->votes_nr[node]++)
				co->votes_first[node] = i;
		}
	}
}

bool coord_lists(const struct core *c, uint16_t node)
{
	return view_same(&c->link[node].who, &coord_members(c)->node[node]);
}

/* A node that was elected may still have a link to the process before the one that the view names.
 * An answer shows that it is there. A static coordinator begins without links. */
static bool node_unsure(const struct core *c, uint16_t node)
{
	return c->conf.elected && node != c->conf.self && c->coord.state == COORD_RECOVER &&
	       !c->coord.node[node].answered && !coord_lists(c, node);
}

const struct view_node *node_now(const struct core *c, uint16_t node)
{
	if (core_linked(c, node))
		return node_unsure(c, node) ? NULL : &c->link[node].who;
	return c->coord.state == COORD_RECOVER && c->coord.node[node].answered
		       ? &c->coord.node[node].who
		       : NULL;
}

static uint64_t node_listed(const struct core *c, uint16_t node) /* The memory in the view. */
{
	return coord_members(c)->node[node].incarnation;
}

bool node_given_up(const struct core *c, uint16_t node, uint64_t now)
{
	uint64_t since = c->coord.node[node].absent_since;

	return c->coord.view.sealed && c->coord.held_nr[node] && node_listed(c, node) && since &&
	       !core_linked(c, node) && now >= since + c->conf.lost_timeout_ns &&
	       !c->conf.durable; /* What it held is on its disk. */
}

bool node_restarted(const struct core *c, uint16_t node)
{
	const struct view_node *now = node_now(c, node);

	return now && !view_same(now, &coord_members(c)->node[node]);
}

bool node_lost(const struct core *c, uint16_t node, uint64_t now)
{
	return c->coord.held_nr[node] && node_listed(c, node) &&
	       (node_restarted(c, node) || node_given_up(c, node, now));
}

uint32_t copies_missing(const struct core *c, uint64_t nodes)
{
	uint32_t i = 0;

	while (i < c->conf.chunks_nr && place_copies(coord_place(c), i) & nodes)
		i++;
	return i;
}

uint64_t copies_here(const struct core *c)
{
	uint64_t here = 0;

	view_each(i, coord_members(c)) {
		if (node_now(c, i) && !node_restarted(c, i))
			here |= 1ull << i;
	}
	return here;
}

static uint64_t lost_nodes(const struct core *c, uint64_t now)
{
	uint64_t lost = 0;

	view_each(i, coord_members(c)) {
		if (node_lost(c, i, now))
			lost |= 1ull << i;
	}
	return lost;
}

static bool chunk_lost(const struct core *c, uint32_t chunk, uint64_t lost)
{
	uint64_t copies = place_copies(coord_place(c), chunk);

	return c->coord.view.sealed ? !(copies & ~lost) : copies & lost;
}

uint32_t copies_lost(const struct core *c, uint64_t now)
{
	uint64_t lost = lost_nodes(c, now);

	for (uint32_t i = 0; lost && i < c->conf.chunks_nr; i++)
		if (chunk_lost(c, i, lost))
			return i;
	return c->conf.chunks_nr;
}

void copies_lost_text(const struct core *c, uint64_t now, char *text, size_t bytes)
{
	enum { RUN_BYTES = 24, MORE_BYTES = 12 };
	uint64_t lost = lost_nodes(c, now);
	size_t n = 0;

	text[0] = 0;
	for (uint32_t i = 0, end; i < c->conf.chunks_nr; i = end + 1) {
		for (end = i; end < c->conf.chunks_nr && chunk_lost(c, end, lost);)
			end++;
		if (end == i)
			continue;
		if (n + RUN_BYTES + MORE_BYTES > bytes) {
			snprintf(text + n, bytes - n, " and more");
			return;
		}
		n += (size_t)snprintf(text + n, bytes - n, "%s%u", n ? ", " : "", i);
		if (end > i + 1)
			n += (size_t)snprintf(text + n, bytes - n, "-%u", end - 1);
	}
}

uint16_t copies_lost_at(const struct core *c, uint32_t chunk, uint64_t now)
{
	uint16_t at = CORE_NODES_MAX;

	view_each(i, coord_members(c)) {
		/* A coordinator that was elected without its memory does not count already. */
		if (node_lost(c, i, now) && place_keeps(coord_place(c), chunk, i) &&
		    (at == CORE_NODES_MAX || place_holds(coord_place(c), chunk, i)))
			at = i;
	}
	CHECK(at < CORE_NODES_MAX);
	return at;
}

bool copies_several(const struct core *c)
{
	return c->coord.view.sealed && (coord_place(c)->holders || coord_place(c)->to);
}

bool members_vary(const struct core *c)
{
	bool joins = c->conf.slots != c->conf.members.nodes;

	return copies_several(c) || (c->coord.view.sealed && joins);
}

bool members_heard(const struct core *c)
{
	view_each(i, coord_members(c)) {
		if (i != c->conf.self && core_linked(c, i) && !odd_is(c, i) &&
		    !(c->coord.reports.out >> i & 1) && c->coord.node[i].heard != c->coord.hear)
			return false;
	}
	return true;
}

/* While the weights are still to be written nobody's copy counts, so a member that stays away is
 * waited for only as long as the last holder of a chunk is. The others need memory for every
 * chunk. */
static uint64_t members_not_back(const struct core *c)
{
	const struct coord *co = &c->coord;
	uint64_t missed = 0;

	view_each(i, coord_members(c)) {
		uint64_t since = co->node[i].absent_since;

		if (since && !core_linked(c, i) && co->seen_ns >= since + c->conf.lost_timeout_ns)
			missed |= 1ull << i;
	}
	return copies_missing(c, coord_members(c)->nodes & ~missed) == c->conf.chunks_nr ? missed
											 : 0;
}

uint64_t members_leaving(const struct core *c)
{
	const struct coord *co = &c->coord;
	/* A coordinator stays a member, but its copies stop to count. */
	uint64_t out = co->reports.out | (members_odd(c) & ~(1ull << c->conf.self)), missed = 0;

	if (co->reports.yields)
		return 0;
	if (!co->view.sealed)
		return members_not_back(c);
	if (!members_vary(c) || co->undecided)
		return 0;
	view_each(i, coord_members(c)) {
		if (out >> i & 1 ||
		    (co->state == COORD_RECOVER ? !co->node[i].answered : !core_linked(c, i)))
			missed |= 1ull << i;
		else if (co->state == COORD_OPEN && !co->node[i].done)
			return 0;
	}
	/* A member that answered and is missed since may be gone, so its copies are no reason. */
	if (!missed ||
	    copies_missing(c, copies_here(c) & c->linked & ~missed) < c->conf.chunks_nr ||
	    !members_heard(c))
		return 0;
	return missed;
}

/* Is the node that is linked under this slot, or one before it that joins, known by the same uuid?
 * A copy of a state folder does not hold up the members. */
static bool node_is_twin(const struct core *c, uint16_t node, uint64_t joining)
{
	for (uint16_t i = 0; i < CORE_NODES_MAX; i++) {
		const struct view_node *other =
			joining >> i & 1 ? &c->link[i].who : &coord_members(c)->node[i];

		if (i != node && !memcmp(other->uuid, c->link[node].who.uuid, VIEW_UUID_BYTES))
			return true;
	}
	return false;
}

uint64_t members_joining(const struct core *c)
{
	uint64_t joining = 0, others = c->conf.slots & c->linked & ~coord_members(c)->nodes;

	for (; c->coord.view.sealed && others; others &= others - 1) {
		uint16_t i = (uint16_t)__builtin_ctzll(others);

		if (!node_is_twin(c, i, joining) && !odd_is(c, i))
			joining |= 1ull << i;
	}
	return joining & ~c->coord.reports.kept;
}

uint64_t members_caught(const struct core *c, bool all)
{
	const struct coord *co = &c->coord;
	uint64_t caught = 0;

	view_each(i, coord_members(c)) {
		if (odd_is(c, i))
			continue;
		if ((coord_place(c)->learns | coord_place(c)->moves) >> i & 1 &&
		    core_linked(c, i) && coord_lists(c, i) &&
		    (co->node[i].caught || (all && co->node[i].catches)))
			caught |= 1ull << i;
	}
	return caught;
}

uint64_t members_odd(const struct core *c)
{
	uint64_t out = 0;

	view_each(i, coord_members(c)) {
		if (c->coord.votes_nr[i] && odd_is(c, i))
			out |= 1ull << i;
	}
	return out;
}

bool copies_spare(const struct core *c, uint64_t nodes)
{
	uint64_t here = copies_here(c) & c->linked & ~nodes;

	return copies_several(c) && copies_missing(c, here) == c->conf.chunks_nr;
}

bool copies_step_back(const struct core *c)
{
	uint64_t self = 1ull << c->conf.self;

	return members_odd(c) & self && copies_spare(c, self);
}
