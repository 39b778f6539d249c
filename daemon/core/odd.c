/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the votes for copies, and counts what nobody can decide. attempt.c brings each vote, and
 * has no difference to care about on the happy path. Of votes that differ those of a few chunks are
 * kept, of different nodes, because they say most about who is wrong. Nothing here looks at other
 * parts of the core but links, ends an attempt, or fails. judge.c acts on what is found here. */
#include "core/odd.h"

#include "core/inner.h"

#include <string.h>

/* --- the votes --- */

void odd_begin(struct odd *o)
{
	o->spoke = o->others = 0;
	o->chunks_nr = 0;
}

static bool odd_same(const struct odd_vote *a, const struct odd_vote *b)
{
	/* As bits, because not every sum equals itself. */
	return !memcmp(&a->sumsq, &b->sumsq, sizeof(a->sumsq)) && a->finite == b->finite;
}

static void odd_note(struct odd_chunk *k, uint16_t node, const struct odd_vote *vote)
{
	k->heard |= 1ull << node;
	k->sumsq[node] = vote->sumsq;
	k->finite[node] = vote->finite;
}

/* Where the votes for this chunk are kept. NULL: nowhere. Another chunk of the same nodes says
 * little more than the first one. */
static struct odd_chunk *odd_room(struct odd *o, uint32_t chunk, uint64_t copies)
{
	for (uint32_t i = 0; i < o->chunks_nr; i++) {
		if (o->chunk[i].chunk == chunk)
			return &o->chunk[i];
		if (o->chunk[i].copies == copies)
			return NULL;
	}
	if (o->chunks_nr == ODD_CHUNKS_MAX)
		return NULL;
	o->chunk[o->chunks_nr] = (struct odd_chunk){.chunk = chunk, .copies = copies};
	return &o->chunk[o->chunks_nr++];
}

static bool odd_known(const struct odd *o, uint32_t chunk)
{
	for (uint32_t i = 0; i < o->chunks_nr; i++) {
		if (o->chunk[i].chunk == chunk)
			return true;
	}
	return false;
}

void odd_vote(struct odd *o, const struct placement *p, uint32_t chunk, uint16_t node,
	      const struct odd_vote *first, const struct odd_vote *vote)
{
	bool same = odd_same(first, vote), known = odd_known(o, chunk);
	uint64_t copies = place_copies(p, chunk), before = copies & o->spoke;
	struct odd_chunk *k;

	if (!same)
		o->others |= 1ull << node;
	if (same && !known)
		return;
	k = odd_room(o, chunk, copies);
	if (!k)
		return;
	/* Up to here all were the same. */
	for (; !known && before; before &= before - 1)
		odd_note(k, (uint16_t)__builtin_ctzll(before), first);
	odd_note(k, node, vote);
}

static bool odd_agree(const struct odd_chunk *k, uint64_t nodes)
{
	uint16_t first = (uint16_t)__builtin_ctzll(nodes);
	struct odd_vote a = {k->sumsq[first], k->finite[first]};

	for (; nodes; nodes &= nodes - 1) {
		uint16_t n = (uint16_t)__builtin_ctzll(nodes);

		if (!odd_same(&a, &(struct odd_vote){k->sumsq[n], k->finite[n]}))
			return false;
	}
	return true;
}

static uint64_t odd_suspects_of(const struct odd_chunk *k)
{
	uint64_t out = 0;

	for (uint64_t nodes = k->heard; nodes; nodes &= nodes - 1) {
		uint64_t one = nodes & -nodes, rest = k->heard & ~one;

		if (rest && odd_agree(k, rest))
			out |= one;
	}
	return out;
}

uint64_t odd_suspects(const struct odd *o)
{
	uint64_t out = o->chunks_nr ? UINT64_MAX : 0;

	for (uint32_t i = 0; i < o->chunks_nr; i++)
		out &= odd_suspects_of(&o->chunk[i]);
	return out;
}

/* --- nodes and tries --- */

bool odd_is(const struct core *c, uint16_t node)
{
	const struct odd *o = &c->coord.odd;

	return o->nodes >> node & 1 && o->memory[node] == c->link[node].who.incarnation;
}

void odd_tried(struct core *c, const char *why, const char *remedy)
{
	struct odd *o = &c->coord.odd;

	if (o->step != c->coord.id.step)
		o->tries = 0;
	o->step = c->coord.id.step;
	if (++o->tries >= ODD_TRIES_MAX)
		core_copy_text(o->stuck, sizeof(o->stuck),
			       core_text(c,
					 "an operator, after %u attempts: %s. %s, then `shardctl "
					 "model resume NAME`",
					 o->tries, why, remedy));
}

void odd_forgive(struct odd *o, uint64_t nodes)
{
	o->nodes &= ~nodes;
	o->tries = 0;
	o->stuck[0] = 0;
}
