// SPDX-License-Identifier: Apache-2.0
/* Keeps the slowest rank of the last two steps. model.c calls it at the beginning of an attempt,
 * when a message of the core leaves or comes, and for the result. join.c calls it when a rank is
 * ready. Happy path: each READY is compared with those before, the vote carries the slowest rank,
 * the coordinator compares all votes, and COMMIT carries the answer. Whatever is of another attempt
 * is forgotten. A node that hears of a decision by anything but COMMIT does not know the slowest
 * rank. */
#include "data/slowest.h"

#include "base/check.h"

static struct slowest_of *of(struct slowest *s, const struct core_id *id)
{
	struct slowest_of *o = &s->of[id->step % NR(s->of)];

	if (core_id_cmp(id, &o->id) > 0)
		*o = (struct slowest_of){.id = *id};
	return core_id_cmp(id, &o->id) == 0 ? o : NULL;
}

static const struct slowest_of *known(const struct slowest *s, const struct core_id *id)
{
	const struct slowest_of *o = &s->of[id->step % NR(s->of)];

	return core_id_cmp(id, &o->id) == 0 && o->rank != 0 ? o : NULL;
}

/* If two ranks took equally long, the lower one counts. */
static void take(struct slowest_of *o, uint32_t rank, uint64_t ready_ns)
{
	if (o->rank != 0 &&
	    (ready_ns < o->ready_ns || (ready_ns == o->ready_ns && rank >= o->rank)))
		return;
	o->rank = rank;
	o->ready_ns = ready_ns;
}

void slowest_begin(struct slowest *s, const struct core_id *id, uint64_t now_ns)
{
	struct slowest_of *o = &s->of[id->step % NR(s->of)];

	/* Votes for this attempt may already be here, and are kept. What a peer said of any other
	 * attempt counts less than this. */
	if (core_id_cmp(id, &o->id) != 0)
		*o = (struct slowest_of){.id = *id};
	o->began_ns = now_ns;
}

void slowest_ready(struct slowest *s, const struct core_id *id, uint32_t rank, uint64_t now_ns)
{
	struct slowest_of *o = of(s, id);

	CHECK(rank < CORE_RANKS_MAX);
	if (o != NULL && o->began_ns != 0)
		take(o, rank + 1, now_ns - o->began_ns);
}

void slowest_say(const struct slowest *s, const struct core_id *id, Shard__Core *body)
{
	const struct slowest_of *o = known(s, id);

	body->slow_rank = o ? o->rank : 0;
	body->slow_ns = o ? o->ready_ns : 0;
}

void slowest_heard(struct slowest *s, const struct core_id *id, const Shard__Core *body)
{
	struct slowest_of *o = of(s, id);

	if (o != NULL && body->slow_rank > 0 && body->slow_rank <= CORE_RANKS_MAX)
		take(o, body->slow_rank, body->slow_ns);
}

uint32_t slowest_rank(const struct slowest *s, const struct record *r)
{
	const struct slowest_of *o = known(s, &r->id);

	return o != NULL && o->rank <= r->world.size ? o->rank - 1 : SLOWEST_UNKNOWN;
}
