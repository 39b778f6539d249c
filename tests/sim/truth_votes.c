/* SPDX-License-Identifier: Apache-2.0 */
/* The checkers of who is in a step and of what was voted for it. one_verdict: every member has
 * voted. no_partial_effect: every rank has committed. nonfinite_kept: exactly what must be skipped
 * is skipped. lr_voted: all ranks gave the same learning rates, and only such an attempt may end
 * for another reason. rank_order: a rank that stays in the world keeps its place among those that
 * stay. truth.c calls them. They compare with what the trainers did, which no node knows as a
 * whole. */
#include "sim/sim.h"

#include <string.h>

static bool same(const struct core_id *a, const struct core_id *b)
{
	return core_id_cmp(a, b) == 0;
}

bool truth_bits(double a, double b)
{
	return memcmp(&a, &b, sizeof(a)) == 0;
}

/* A new coordinator decides over the members that answered as the members that they were. Who did
 * not, or started again, is not in the view that it makes of them. */
static bool truth_left(const struct sim *s, const struct sim_view *v, uint16_t n)
{
	const struct core_view *to = s->m->recovers;

	return !(v->nodes >> n & 1) ||
	       (to && (!view_is_member(&to->members, n) ||
		       to->members.node[n].incarnation != v->incarnation[n]));
}

/* The view of the record. truth_of_view() has found it. */
struct sim_view *truth_view_of(struct sim *s, const struct core_id *id)
{
	uint32_t i = s->m->views_nr - 1;

	while (s->m->view[i % VIEWS].term != id->term || s->m->view[i % VIEWS].seq != id->seq)
		i--;
	return &s->m->view[i % VIEWS];
}

static bool truth_voted(struct sim *s, uint16_t n,
			const struct core_id *id) /* The coordinator's zombie may have voted. */
{
	return same(&shell_of(s, n)->prepared, id) ||
	       (n == s->lead && same(&shell_of(s, ZOMBIE)->prepared, id));
}

/* A commit needs the vote of every member and the ready of every rank. of: a bit for each member
 * that it needed. */
void truth_votes(struct sim *s, const struct record *r, uint64_t *of)
{
	const struct sim_view *v = truth_view_of(s, &r->id);
	bool nan = false, skip = false;
	double weights = 0;
	char a[64], b[64];

	*of = 0;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		*of |= (uint64_t)!truth_left(s, v, n) << n;
		if (!truth_voted(s, n, &r->id) && !truth_left(s, v, n))
			sim_fail(s, "one_verdict",
				 "%s is committed, but n%u was last prepared for %s",
				 sim_id(&r->id, a), n, sim_id(&shell_of(s, n)->prepared, b));
	}
	for (uint32_t i = 0; i < r->world.size; i++) {
		const struct core_rank *k = &r->world.rank[i];
		const struct sim_gave *gave = truth_gave(&s->m->session[k->session], &r->id);

		if (!gave || !truth_bits(gave->weight, k->weight)) {
			sim_fail(s, "no_partial_effect",
				 "%s is committed with rank %u, which did not commit it",
				 sim_id(&r->id, a), i);
			return;
		}
		nan = nan || gave->nan;
		skip = skip || gave->skip;
		weights += gave->weight;
	}
	nan = nan || weights <= 0;
	if (truth_lr_differs(s, &r->id))
		sim_fail(s, "lr_voted",
			 "%s is committed, but its ranks gave other learning rates "
			 "or clips",
			 sim_id(&r->id, a));
	if (r->outcome != (nan ? RECORD_NONFINITE : skip ? RECORD_SKIP : RECORD_APPLIED))
		sim_fail(s, "nonfinite_kept", "%s: outcome %d, but nan %d skip %d",
			 sim_id(&r->id, a), r->outcome, nan, skip);
}

const struct sim_gave *truth_gave(const struct sim_session *ses, const struct core_id *id)
{
	for (uint32_t i = 0; i < GAVE && i < ses->gave_nr; i++) {
		if (same(&ses->gave[i].id, id))
			return &ses->gave[i];
	}
	return NULL;
}

static bool lr_equal(const struct sim_gave *a, const struct sim_gave *b)
{
	return a->lr_nr == b->lr_nr && truth_bits(a->clip, b->clip) &&
	       !memcmp(a->lr, b->lr, a->lr_nr * sizeof(a->lr[0]));
}

/* A trainer has committed an attempt. Notes whether another trainer of that attempt gave different
 * learning rates or another clip. */
void truth_ready(struct sim *s, const struct sim_session *ses)
{
	const struct sim_gave *gave = &ses->gave[(ses->gave_nr - 1) % GAVE];

	for (uint32_t i = 1; i <= s->m->sessions_nr; i++) {
		const struct sim_gave *other = truth_gave(&s->m->session[i], &gave->id);

		if (other && !lr_equal(other, gave))
			s->m->differs[s->m->differs_nr++ % DIFFERS] = gave->id;
	}
}

bool truth_lr_differs(const struct sim *s, const struct core_id *id)
{
	for (uint32_t i = 0; i < DIFFERS && i < s->m->differs_nr; i++) {
		if (same(&s->m->differs[i], id))
			return true;
	}
	return false;
}

/* Returns the rank, or the size of the world if it is not in there. */
static uint32_t rank_in(const struct core_world *w, const struct core_rank *r)
{
	uint32_t i = 0;

	while (i < w->size && (w->rank[i].node != r->node || w->rank[i].session != r->session))
		i++;
	return i;
}

/* True: each rank is the one for which its trainer asked. */
static bool numbered(const struct sim *s, const struct core_world *w)
{
	for (uint32_t i = 0; i < w->size; i++) {
		if (s->m->session[w->rank[i].session].hint != (int32_t)i)
			return false;
	}
	return true;
}

/* A coordinator begins an attempt. Ranks that were in the world before keep their order, and
 * joiners come behind them in the order of what they asked for. A new coordinator knows no world
 * before. */
void truth_begins(struct sim *s, uint16_t n, const struct core_id *id, const struct core_world *w)
{
	struct shell *sh = shell_of(s, n);
	uint32_t last = 0;
	char a[64];

	if (core_id_cmp(id, &sh->begun) <= 0)
		return;
	for (uint32_t i = 0; i < w->size && !numbered(s, w); i++) {
		uint32_t was = rank_in(&sh->begun_world, &w->rank[i]);
		const struct sim_session *ses = &s->m->session[w->rank[i].session], *before = ses;

		if (i > 0)
			before = &s->m->session[w->rank[i - 1].session];
		if (was < last || (i > 0 && was == sh->begun_world.size && last == was &&
				   (uint32_t)ses->hint < (uint32_t)before->hint))
			sim_fail(s, "rank_order",
				 "%s: rank %u was rank %u, and that of rank %u was %u",
				 sim_id(id, a), i, was, i - 1, last);
		last = was;
	}
	sh->begun = *id;
	sh->begun_world = *w;
}
