/* SPDX-License-Identifier: Apache-2.0 */
/* The checkers of a process that dies and comes back with its memory. warm_same: it goes on where
 * it was. warm_whole: what it finds is what its record says, chunk by chunk. warm_keeps: no model
 * is LOST because of that alone. The other checkers (truth.c), which do not know the difference,
 * watch that no step is lost, applied twice or told otherwise. */
#include "sim/sim.h"

#include "core/inner.h"

#include <string.h>

/* After each event, so what is not compared is not copied. */
static struct sim_seen seen_of(const struct core *c)
{
	const struct member *m = &c->member;
	const struct step *p = &c->step;
	struct sim_seen seen = {.part = p->part,
				.sealed = m->sealed,
				.restoring = m->restoring,
				.term = m->term,
				.committed = p->has_record ? p->record.id.step : 0,
				.seq = m->seq,
				.generation = m->generation,
				.tune = orders_number(&m->tune),
				.id = p->id,
				.aborted = p->aborted,
				.promised = m->promised,
				.learns = m->place.learns,
				.moves = m->place.moves,
				.place = m->place.sum,
				.caught = p->caught,
				.members = m->members};

	memcpy(seen.set, m->tune.set, sizeof(seen.set));
	memcpy(seen.hyper, m->tune.hyper, sizeof(seen.hyper));
	return seen;
}

void truth_seen(struct sim *s, uint16_t n)
{
	shell_of(s, n)->seen = seen_of(shell_of(s, n)->core);
}

void truth_same(struct sim *s, uint16_t n)
{
	struct sim_seen was = shell_of(s, n)->seen, is = seen_of(shell_of(s, n)->core);
	char a[64], b[64];

	if (was.part == CORE_STAGING) { /* Its trainers are gone. */
		was.part = CORE_FREE;
		was.aborted = was.id;
	}
	if (was.part != is.part || core_id_cmp(&was.id, &is.id) || was.committed != is.committed)
		sim_fail(s, "warm_same",
			 "n%u was %d of %s after step %llu and comes back as %d of %s after step "
			 "%llu",
			 n, was.part, sim_id(&was.id, a), (unsigned long long)was.committed,
			 is.part, sim_id(&is.id, b), (unsigned long long)is.committed);
	if (was.promised != is.promised || core_id_cmp(&was.aborted, &is.aborted))
		sim_fail(s, "warm_same",
			 "n%u had promised term %llu and dropped %s, and comes back with %llu and "
			 "%s",
			 n, (unsigned long long)was.promised, sim_id(&was.aborted, a),
			 (unsigned long long)is.promised, sim_id(&is.aborted, b));
	if (was.place != is.place || was.moves != is.moves)
		sim_fail(s, "warm_same",
			 "n%u had other tables, or knew of %llx that chunks move there", n,
			 (unsigned long long)was.moves);
	if (was.learns != is.learns || was.caught != is.caught)
		sim_fail(s, "warm_same",
			 "n%u knew of %llx that they learn, caught up %d, and now of %llx and %d",
			 n, (unsigned long long)was.learns, was.caught,
			 (unsigned long long)is.learns, is.caught);
	if (was.term != is.term || was.seq != is.seq || was.generation != is.generation ||
	    was.sealed != is.sealed || was.restoring != is.restoring || was.tune != is.tune ||
	    memcmp(was.set, is.set, sizeof(was.set)) ||
	    memcmp(was.hyper, is.hyper, sizeof(was.hyper)) ||
	    memcmp(&was.members, &is.members, sizeof(was.members)))
		sim_fail(s, "warm_same", "n%u had view %llu.%u and comes back with %llu.%u", n,
			 (unsigned long long)was.term, was.seq, (unsigned long long)is.term,
			 is.seq);
}

/* The masters here are published as of r, which they have to be right after a warm start. */
void truth_whole(struct sim *s, uint16_t n, const struct record *r)
{
	struct shell *sh = shell_of(s, n);
	char a[64];

	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (!(shell_holds(s, n, c) || (shell_keeps(s, n, c) && sh->core->step.caught)) ||
		    r->outcome == RECORD_SEAL)
			continue;
		if (sh->version[c] != r->id.step || sh->generation != r->id.generation)
			sim_fail(s, "warm_whole",
				 "n%u comes back after %s with chunk %u as of step %llu of "
				 "generation %u",
				 n, sim_id(&r->id, a), c, (unsigned long long)sh->version[c],
				 sh->generation);
	}
}

/* Is the memory gone that the durable view names, or has its node been away for long? */
static bool memory_lost(struct sim *s, uint16_t n)
{
	const struct core_view *v = &shell_of(s, s->lead)->disk;
	uint64_t since = n == s->lead ? 0 : s->node[n].away_since;

	return shell_of(s, n)->member != v->members.node[n].incarnation ||
	       (v->sealed && since && clock_of(s, s->lead) >= since + AWAY_NS);
}

void truth_lost(struct sim *s, const struct core_view *v)
{
	const struct shell *sh = shell_of(s, s->lead);
	bool reason = !sh->has_disk || sh->disk.restoring || s->m->orders.rolled || s->m->put_back;

	if (sh->has_disk && v->generation == sh->disk.generation)
		return;
	for (uint16_t i = 0; i < s->nodes_nr && !reason && !sh->disk.sealed; i++)
		reason = (view_is_member(&sh->disk.members, i) || i == s->lead) &&
			 memory_lost(s, i); /* Who was elected from outside writes, too. */
	for (uint32_t c = 0; c < s->m->chunks_nr && !reason; c++) {
		uint64_t copies = place_copies(&sh->disk.place, c) & sh->disk.members.nodes;

		for (uint16_t i = 0; i < s->nodes_nr; i++) {
			if (memory_lost(s, i))
				copies &= ~(1ull << i);
		}
		reason = !copies;
	}
	if (!reason)
		sim_fail(s, "warm_keeps",
			 "generation %u of a model of which every member kept its memory",
			 v->generation);
	s->m->orders.rolled = false;
}
