/* SPDX-License-Identifier: Apache-2.0 */
/* view.h: which nodes are members, who they are, and which one coordinates. Every loop over nodes
 * goes through these functions, in the core and around it, so that the answers may differ from one
 * view to the next. A node is named by its slot, a small number that stays the same for as long as
 * it is a member. Slots may have gaps. Nothing here fails. */
#ifndef SHARD_CORE_VIEW_H
#define SHARD_CORE_VIEW_H

#include "core/record.h"

#include "base/check.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define VIEW_UUID_BYTES 16

struct view_node { /* Who a node is, whatever its slot and its address are. */
	/* Of its state folder, which has the same one for ever. Zeros: not known yet. */
	uint8_t uuid[VIEW_UUID_BYTES];
	/* Names the memory that it has of this model. The number is drawn at random when the memory
	 * is made, and no other memory has it. The numbers have no order. 0: not known. */
	uint64_t incarnation;
};

struct view_members {
	uint64_t nodes; /* A bit for each slot that a member has. */
	/* The slot of the coordinator. It has 64 bits so that the struct has no padding. */
	uint64_t coordinator;
	struct view_node node[CORE_NODES_MAX]; /* [slot] Zeros where there is no member. */
};

_Static_assert(CORE_NODES_MAX <= 64, "members are bits of a word");

/* The first nodes_nr slots are taken. Who has them is not known yet. */
static inline struct view_members view_first(uint16_t nodes_nr, uint16_t coordinator)
{
	CHECK(nodes_nr > 0 && nodes_nr <= CORE_NODES_MAX && coordinator < nodes_nr);
	return (struct view_members){.nodes = UINT64_MAX >> (64 - nodes_nr),
				     .coordinator = coordinator};
}

static inline bool view_is_member(const struct view_members *v, uint16_t node)
{
	return node < CORE_NODES_MAX && v->nodes >> node & 1;
}

static inline uint16_t view_members_nr(const struct view_members *v)
{
	return (uint16_t)__builtin_popcountll(v->nodes);
}

static inline uint16_t view_coordinator(const struct view_members *v)
{
	return (uint16_t)v->coordinator;
}

/* Can the slots that a peer or a file names be those of a view? slots has a bit for each slot that
 * may exist. */
static inline bool view_members_ok(const struct view_members *v, uint64_t slots)
{
	return v->nodes && !(v->nodes & ~slots) && v->coordinator < CORE_NODES_MAX &&
	       v->nodes >> v->coordinator & 1;
}

/* The first member at this slot or after it. CORE_NODES_MAX: there is none. */
static inline uint16_t view_from(const struct view_members *v, uint16_t slot)
{
	while (slot < CORE_NODES_MAX && !view_is_member(v, slot))
		slot++;
	return slot;
}

/* All members, in the order of their slots. */
#define view_each(node, v)                                                                         \
	for (uint16_t node = view_from(v, 0); node < CORE_NODES_MAX;                               \
	     node = view_from(v, (uint16_t)(node + 1u)))

static inline bool view_same(const struct view_node *a, const struct view_node *b)
{
	return a->incarnation == b->incarnation && !memcmp(a->uuid, b->uuid, sizeof(a->uuid));
}

static inline bool view_named(const struct view_node *n)
{
	static const uint8_t nobody[VIEW_UUID_BYTES];

	return memcmp(n->uuid, nobody, sizeof(nobody)) != 0;
}

/* Are there two members with the same uuid? If so, *a and *b are the first two. */
static inline bool view_twins(const struct view_members *v, uint16_t *a, uint16_t *b)
{
	view_each(i, v) {
		for (*a = view_from(v, 0); *a < i; *a = view_from(v, (uint16_t)(*a + 1u))) {
			*b = i;
			if (view_named(&v->node[i]) &&
			    !memcmp(v->node[*a].uuid, v->node[i].uuid, VIEW_UUID_BYTES))
				return true;
		}
	}
	return false;
}

/* The first member whose uuid is not known. CORE_NODES_MAX: all are. */
static inline uint16_t view_unnamed(const struct view_members *v)
{
	uint16_t i = view_from(v, 0);

	while (i < CORE_NODES_MAX && view_named(&v->node[i]))
		i = view_from(v, (uint16_t)(i + 1u));
	return i;
}

/* Does a view that a peer or a file has brought name each of its members, and none twice? */
static inline bool view_names_ok(const struct view_members *v)
{
	uint16_t a, b;

	return view_unnamed(v) == CORE_NODES_MAX && !view_twins(v, &a, &b);
}

#endif
