/* SPDX-License-Identifier: Apache-2.0 */
/* The checkers of copies. no_tear: a copy that is published or fetched is what the committed steps
 * make of it. view_copies: every chunk has a copy that counts at a member of each sealed view.
 * counts_caught: a node whose copies did not count has all of them, as of the record of the view
 * that lets them count. expels_heard: a view leaves a member out only if each chunk has another
 * copy that was there after somebody was missed. recovery_waits: a new coordinator has given a
 * member that it leaves out the time to make a link. waits_without_weights: while the weights are
 * to be written, a member is left out only after it has been away for long, and the others have
 * memory for every chunk. blamed_right: no trainer is blamed for what its node made. truth.c and
 * the files that move the bytes call them. */
#include "sim/sim.h"

#include "core/inner.h"

void truth_copy(struct sim *s, uint16_t n, uint32_t chunk, const struct record *r)
{
	const struct shell *sh = shell_of(s, n);
	char a[64];

	if (sh->version[chunk] != r->id.step || sh->generation != r->id.generation)
		sim_fail(s, "no_tear", "n%u publishes chunk %u of %s, but has it as of step %llu",
			 n, chunk, sim_id(&r->id, a), (unsigned long long)sh->version[chunk]);
	truth_fetched(s, n, chunk);
}

void truth_fetched(struct sim *s, uint16_t n, uint32_t chunk)
{
	const struct shell *sh = shell_of(s, n);
	const struct truth *t = truth_of(s, sh->generation);
	uint64_t step = sh->version[chunk];

	if (sh->generation != s->m->generation || !t->sealed || step < t->seal_step ||
	    step + 1 < t->last || step > t->last)
		return;
	if (sh->weights[chunk] != t->weights[step % 2][chunk])
		sim_fail(s, "no_tear",
			 "n%u has chunk %u as of step %llu, which is not what the committed steps "
			 "make of it",
			 n, chunk, (unsigned long long)step);
}

/* The copies of these chunks at the node begin to count with this view. */
static void place_counts(struct sim *s, uint16_t n, const struct core_view *v, uint64_t chunks)
{
	const struct shell *sh = shell_of(s, n);

	s->m->promoted += chunks != 0;
	/* What a process had that is gone does not matter any more. */
	if (sh->incarnation != v->members.node[n].incarnation ||
	    (!s->node[n].alive && !s->node[n].whole))
		return;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (!(chunks >> c & 1))
			continue;
		if (!sh->written[c] || sh->version[c] != v->record.id.step ||
		    sh->generation != v->generation)
			sim_fail(s, "counts_caught",
				 "n%u counts from view %llu.%u of step %llu on, but has chunk %u "
				 "as of step %llu of generation %u",
				 n, (unsigned long long)v->term, v->seq,
				 (unsigned long long)v->record.id.step, c,
				 sh->written[c] ? (unsigned long long)sh->version[c] : 0,
				 sh->generation);
		truth_fetched(s, n, c);
	}
}

/* A bit for each chunk of which the copy at the node begins to count. */
static uint64_t place_new(struct sim *s, const struct sim_view *was, const struct core_view *v,
			  uint16_t n)
{
	bool same = was->incarnation[n] == v->members.node[n].incarnation;
	uint64_t chunks = 0;

	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (truth_counted(&v->place, v->members.nodes, c) >> n & 1 &&
		    !(same && was->copies[c] >> n & 1))
			chunks |= 1ull << c;
	}
	return chunks;
}

void truth_place(struct sim *s, const struct core_view *v)
{
	const struct sim_view *was = &s->m->view[(s->m->views_nr - 1) % VIEWS];
	struct truth *t = truth_of(s, v->generation);

	for (uint32_t c = 0; c < s->m->chunks_nr && v->sealed; c++) {
		if (!(place_copies(&v->place, c) & v->members.nodes))
			sim_fail(s, "view_copies", "view %llu.%u has no copy of chunk %u",
				 (unsigned long long)v->term, v->seq, c);
	}
	if (!s->m->views_nr || !was->sealed || !v->sealed || was->generation != v->generation)
		return;
	if (was->nodes & ~v->members.nodes)
		s->m->cut_commits = s->m->commits;
	s->m->expelled += (uint64_t)__builtin_popcountll(was->nodes & ~v->members.nodes);
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (was->incarnation[n] != v->members.node[n].incarnation) {
			t->of[0] &= ~(1ull << n);
			t->of[1] &= ~(1ull << n);
		}
		place_counts(s, n, v, place_new(s, was, v, n));
	}
	truth_moves(s, was, v);
}

/* Was the copy there after the coordinator missed a node? Even if it has not been told of its end
 * yet. */
static bool copy_lived(struct sim *s, uint16_t n, const struct core_view *v)
{
	const struct sim_node *nd = &s->node[n];

	return nd->died_at >= s->missed_at ||
	       (shell_of(s, n)->incarnation == v->members.node[n].incarnation &&
		(nd->alive || nd->whole));
}

static void expels_without_weights(struct sim *s, const struct core_view *v, uint64_t left)
{
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		if (left >> i & 1 && (!s->node[i].away_since ||
				      clock_of(s, s->lead) < s->node[i].away_since + AWAY_NS))
			sim_fail(s, "waits_without_weights",
				 "view %llu.%u leaves out n%u, which has not been away for long",
				 (unsigned long long)v->term, v->seq, i);
	}
	for (uint32_t c = 0; c < s->m->chunks_nr && left; c++) {
		if (!(place_keepers(&v->place, c) & v->members.nodes))
			sim_fail(s, "waits_without_weights",
				 "view %llu.%u leaves no member with memory for chunk %u",
				 (unsigned long long)v->term, v->seq, c);
	}
}

void truth_expels(struct sim *s, uint16_t n, const struct core_view *v)
{
	const struct shell *sh = shell_of(s, n);
	bool recovers = sh->core->coord.view.term != sh->disk.term;
	uint64_t left;

	if (!sh->has_disk)
		return;
	left = sh->disk.members.nodes & ~v->members.nodes;
	if (!sh->disk.sealed && !v->sealed)
		expels_without_weights(s, v, left);
	if (!sh->disk.sealed || !v->sealed || v->generation != sh->disk.generation)
		return;
	for (uint32_t c = 0; c < s->m->chunks_nr && left; c++) {
		uint64_t copies = place_copies(&v->place, c) & v->members.nodes;

		for (uint16_t i = 0; i < s->nodes_nr; i++) {
			if (copies >> i & 1 && !copy_lived(s, i, v))
				copies &= ~(1ull << i);
		}
		if (!copies)
			sim_fail(
				s, "expels_heard",
				"view %llu.%u leaves out members, but no copy of chunk %u has been "
				"there since one was missed",
				(unsigned long long)v->term, v->seq, c);
	}
	for (uint16_t i = 0; i < s->nodes_nr && recovers; i++) {
		if (left >> i & 1 && !s->node[i].known &&
		    clock_of(s, s->lead) < s->node[i].away_since + SILENT_NS)
			sim_fail(s, "recovery_waits",
				 "n%u has not waited for n%u, and leaves it out", n, i);
	}
}

bool truth_lists(struct sim *s, uint16_t n)
{
	const struct sim_view *v = &s->m->view[(s->m->views_nr - 1) % VIEWS];
	uint16_t self = s->node[n].self;

	return !s->m->views_nr ||
	       (v->nodes >> self & 1 && v->incarnation[self] == shell_of(s, n)->incarnation);
}

bool truth_all_back(struct sim *s)
{
	const struct sim_view *v = &s->m->view[(s->m->views_nr - 1) % VIEWS];
	uint64_t all = view_first(s->nodes_nr, s->lead).nodes;

	if (!sim_several(s))
		return true;
	if (s->grave != NOWHERE)
		all &= ~(1ull << s->grave);
	if (s->stranger != NOWHERE)
		all &= ~(1ull << s->stranger);
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (all >> n & 1 && (!s->node[n].alive || !truth_lists(s, n)))
			return false;
	}
	return s->m->views_nr && v->sealed && v->nodes == all && v->counts == all && !v->to;
}

/* The weights of a chunk can be written again only where there is memory for it. Nobody else has
 * memory for it if the node that died for good was its only holder. */
bool truth_excused(struct sim *s)
{
	const struct sim_view *v = &s->m->view[(s->m->views_nr - 1) % VIEWS];

	if (s->grave == NOWHERE || !sim_several(s) || !s->m->views_nr)
		return s->grave != NOWHERE;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (v->copies[c] == 1ull << s->grave)
			return true;
	}
	return false;
}

void truth_blamed(struct sim *s, uint16_t n, const struct core_id *id, bool reduced)
{
	const struct step *st = &shell_of(s, n)->core->step;
	char a[64];

	if (s->node[n].alive && reduced && st->dropped && st->blamed && !core_id_cmp(&st->id, id))
		sim_fail(s, "blamed_right",
			 "n%u drops %s and blames rank %u for what its node reduced", n,
			 sim_id(id, a), st->blamed - 1);
}
