/* SPDX-License-Identifier: Apache-2.0 */
/* The views of the coordinator that move chunks. recover.c asks here at each boundary, and makes
 * the views. Happy path: CORE_EV_PLACE brings the table that is wanted, the next boundary begins
 * the move, nodes report their copies one by one as all do that catch up, and the boundary after a
 * step of all the new holders ends it. A node that is lost meanwhile learns all its copies anew
 * when it is back. The move ends without it if nobody gives up a chunk that it shall have, and else
 * waits for it, until it is back or another table is given. A copy that counts never stops counting
 * because of a move, until the view that ends it. A new coordinator goes on where the durable view
 * stands, but has not heard of a table of which no view was made. */
#include "core/moves.h"

#include "core/copies.h"
#include "core/inner.h"

#include <stdio.h>

struct placement place_moving(const uint16_t *primary, const uint64_t *holders,
			      const uint16_t *to_primary, const uint64_t *to, uint32_t chunks_nr)
{
	struct placement p = place_of(primary, holders, chunks_nr);

	p.to_primary = to_primary;
	p.to = to;
	p.sum = xxh_sum(to_primary, chunks_nr * sizeof(*to_primary), p.sum);
	p.sum = xxh_sum(to, chunks_nr * sizeof(*to), p.sum);
	return p;
}

void moves_on_place(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	CHECK(e->to && e->room && e->to->chunks_nr == c->conf.chunks_nr);
	for (uint32_t i = 0; i < e->to->chunks_nr; i++)
		CHECK(e->to->primary[i] < CORE_NODES_MAX &&
		      e->to->holders[i] >> e->to->primary[i] & 1 &&
		      !(e->to->holders[i] & ~c->conf.slots));
	if (co->state == COORD_OFF)
		return;
	co->to = *e->to;
	co->to_room = e->room;
	co->to_due = true;
	co->moved = false;
}

/* The nodes that are not late with the chunk: a copy of theirs counts as soon as any of theirs
 * does. */
static uint64_t moves_base(const struct placement *p, uint32_t chunk)
{
	return place_keepers(p, chunk) & ~(p->moves & ~place_base(p, chunk));
}

/* Have all nodes voted in this view that shall hold the chunk, with copies that count, and are they
 * there? A commit takes the votes of all members, and nobody votes for a seal. */
static bool moves_voted(const struct core *c, uint32_t chunk)
{
	const struct placement *p = coord_place(c);
	const struct core_view *v = &c->coord.view;
	const struct record *last = &c->coord.last;

	if (last->id.term != v->term || last->id.seq != v->seq || last->outcome == RECORD_SEAL ||
	    p->to[chunk] & ~place_copies(p, chunk))
		return false;
	for (uint64_t to = p->to[chunk]; to; to &= to - 1) {
		if (!core_linked(c, (uint16_t)__builtin_ctzll(to)))
			return false;
	}
	return true;
}

/* The first chunk because of which the move cannot end. chunks_nr: it can. */
static uint32_t moves_blocked(const struct core *c)
{
	const struct placement *p = coord_place(c);
	uint32_t i = 0;

	while (i < p->chunks_nr && (!(place_keepers(p, i) & ~p->to[i]) || moves_voted(c, i)))
		i++;
	return i;
}

static bool moves_may_end(const struct core *c)
{
	const struct placement *p = coord_place(c);

	return p->to && !p->moves && moves_blocked(c) == p->chunks_nr;
}

/* A save reads copies where they lie. */
static bool moves_held(const struct core *c)
{
	return c->coord.held || c->step.hold;
}

bool moves_boundary(const struct core *c)
{
	const struct coord *co = &c->coord;

	return co->state == COORD_OPEN && co->view.sealed && !moves_held(c) && !co->keeps_view &&
	       (co->to_due || moves_may_end(c));
}

bool moves_due(const struct core *c)
{
	if (!moves_boundary(c) || c->coord.undecided || !attempt_all_done(c) || !recover_differ(c))
		return false;
	view_each(i, coord_members(c)) {
		if (!core_linked(c, i) || !coord_lists(c, i))
			return false;
	}
	return true;
}

/* The chunks lie as they do, and move to the table that was given last. What only an earlier move
 * wanted, and what has no copy yet, is given up. */
static struct placement moves_begin(const struct core *c, const struct placement *p)
{
	const struct placement *to = &c->coord.to;
	const uint64_t *base = p->to ? c->coord.to_room : p->holders;
	struct placement next;

	for (uint32_t i = 0; p->to && i < p->chunks_nr; i++)
		c->coord.to_room[i] = moves_base(p, i);
	next = place_moving(p->primary, base, to->primary, to->holders, p->chunks_nr);
	next.learns = p->learns;
	next.gone = p->gone;
	for (uint32_t i = 0; i < next.chunks_nr; i++)
		next.moves |= next.to[i] & ~place_base(&next, i);
	next.moves &= ~(next.learns | next.gone);
	return next;
}

static struct placement moves_end(const struct placement *p)
{
	struct placement next = place_of(p->to_primary, p->to, p->chunks_nr);
	uint64_t keep = 0;

	for (uint32_t i = 0; i < next.chunks_nr; i++)
		keep |= next.holders[i];
	next.learns = p->learns & keep;
	next.gone = p->gone;
	return next;
}

void moves_change(const struct core *c, struct placement *p)
{
	p->moves &= ~(p->learns | p->gone);
	if (moves_due(c))
		*p = c->coord.to_due ? moves_begin(c, p) : moves_end(p);
}

void moves_take(struct core *c, const struct placement *p)
{
	struct coord *co = &c->coord;

	if (p->to && p->to == co->to.holders)
		co->to_due = false;
	co->moved = co->moved || (co->view.place.to && !p->to);
	co->view.place = *p;
	coord_placed(c);
}

void moves_opened(struct ctx *x)
{
	struct coord *co = &x->c->coord;

	if (co->moved && !co->to_due)
		core_act(x, CORE_ACT_MOVED)->place = &co->view.place;
	co->moved = false;
}

/* Says of a node that shall hold the chunk why the move waits for it. NULL: it does not. */
static const char *moves_why(const struct core *c, uint32_t chunk, uint16_t node)
{
	const struct placement *p = coord_place(c);

	return !place_is_member(p, node)      ? "which is no member"
	       : !core_linked(c, node)        ? "which has no link"
	       : !place_holds(p, chunk, node) ? "whose copies do not count yet"
					      : NULL;
}

void moves_waits(const struct core *c, char *text, size_t bytes)
{
	const struct placement *p = coord_place(c);
	uint64_t nodes = p->moves;
	uint32_t chunk;
	const char *why = NULL;
	uint16_t node = 0;

	text[0] = 0;
	if (c->coord.state == COORD_OFF || (!p->to && !c->coord.to_due))
		return;
	if (!c->coord.view.sealed) {
		snprintf(text, bytes, "the weights, which are written");
	} else if (c->coord.keeps_view) {
		snprintf(text, bytes, "a view, which cannot be made durable now");
	} else if (moves_held(c)) {
		snprintf(text, bytes, "a checkpoint that is being written");
	} else if (nodes && !c->coord.to_due) {
		snprintf(text, bytes, "copies that %d nodes fetch, node %s first",
			 __builtin_popcountll(nodes),
			 core_node_name(c, (uint16_t)__builtin_ctzll(nodes)));
	} else if (!c->coord.to_due && (chunk = moves_blocked(c)) < p->chunks_nr) {
		for (nodes = p->to[chunk]; nodes && !why; nodes &= nodes - 1) {
			node = (uint16_t)__builtin_ctzll(nodes);
			why = moves_why(c, chunk, node);
		}
		if (why)
			snprintf(text, bytes, "node %s, %s, for chunk %u", core_node_name(c, node),
				 why, chunk);
		else
			snprintf(text, bytes, "the next step%s",
				 coord_too_few(c) ? ", for which trainers are missing" : "");
	} else {
		snprintf(text, bytes, "the end of the step in hand");
	}
}
