/* SPDX-License-Identifier: Apache-2.0 */
/* The checkers of chunks that move. They read the tables of the views themselves, and ask nothing
 * of the core. move_keeps: no copy of a member stops counting, unless the chunk is taken from it.
 * move_voted: a chunk is taken from a node only if all others that a table names for it counted and
 * have voted for a step of the view before. move_linked: they were there. move_alone: no copy of
 * the chunk begins to count in the view that takes another away. move_boundary: tables change only
 * when all members have finished the same step. move_serves: nobody reduces, votes for or hands out
 * a chunk without a copy that counts. move_told: a move is told as over when it is. truth.c,
 * truth_copies.c and bulk.c call them. */
#include "sim/sim.h"

#include "core/inner.h"

uint64_t truth_keepers(const struct placement *p, uint32_t chunk)
{
	return (p->holders ? p->holders[chunk] : 1ull << p->primary[chunk]) |
	       (p->to ? p->to[chunk] : 0);
}

uint64_t truth_counted(const struct placement *p, uint64_t members, uint32_t chunk)
{
	uint64_t old = p->holders ? p->holders[chunk] : 1ull << p->primary[chunk],
		 late = p->to ? p->to[chunk] & ~old & ~p->moves : 0;

	return (old | late) & members & ~p->learns;
}

/* Was the node a member of the view before, with the same memory? */
static bool truth_stays(const struct sim_view *was, const struct core_view *v, uint16_t n)
{
	return was->nodes >> n & 1 && view_is_member(&v->members, n) &&
	       was->incarnation[n] == v->members.node[n].incarnation;
}

static void truth_move_chunk(struct sim *s, const struct sim_view *was, const struct core_view *v,
			     uint32_t c)
{
	uint64_t now = truth_counted(&v->place, v->members.nodes, c),
		 keepers = truth_keepers(&v->place, c), stay = 0, dropped;

	for (uint16_t n = 0; n < s->nodes_nr; n++)
		stay |= (uint64_t)truth_stays(was, v, n) << n;
	dropped = was->copies[c] & ~now & stay;
	/* A coordinator that finds wrong sums stays a member without copies, until it ends. */
	if (shell_of(s, s->lead)->lied == v->members.node[s->lead].incarnation)
		dropped &= ~(1ull << s->lead);
	if (dropped & keepers)
		sim_fail(s, "move_keeps",
			 "view %llu.%u: the copies of chunk %u on %llx do not count any more",
			 (unsigned long long)v->term, v->seq, c,
			 (unsigned long long)(dropped & keepers));
	if (!dropped)
		return;
	if (now & ~was->copies[c] & stay)
		sim_fail(s, "move_alone",
			 "view %llu.%u gives a copy of chunk %u to %llx and takes one from %llx",
			 (unsigned long long)v->term, v->seq, c,
			 (unsigned long long)(now & ~was->copies[c] & stay),
			 (unsigned long long)dropped);
	if (!was->voted || keepers & ~was->copies[c])
		sim_fail(s, "move_voted",
			 "view %llu.%u takes chunk %u from a node, but of %llx only %llx counted "
			 "before, and voted %d",
			 (unsigned long long)v->term, v->seq, c, (unsigned long long)keepers,
			 (unsigned long long)was->copies[c], was->voted);
}

void truth_moves(struct sim *s, const struct sim_view *was, const struct core_view *v)
{
	for (uint32_t c = 0; c < s->m->chunks_nr; c++)
		truth_move_chunk(s, was, v, c);
	if (was->to && v->place.to && was->to != v->place.to)
		s->m->replaced++;
	if (!was->to || v->place.to)
		return;
	s->m->moved++;
	s->m->moved_over += was->moves_since != v->term;
}

/* A coordinator is about to make a view. What matters is what its process knows now. */
void truth_moving(struct sim *s, uint16_t n, const struct core_view *v)
{
	const struct shell *sh = shell_of(s, n);
	const struct core_view *was = &sh->disk;

	if (!sh->has_disk || !was->sealed || !v->sealed || v->generation != was->generation ||
	    v->place.sum == was->place.sum)
		return;
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		const struct core *core = shell_of(s, i)->core; /* NULL: it never ran. */
		bool alive = s->node[i].alive && view_is_member(&was->members, i) &&
			     shell_of(s, i)->incarnation == was->members.node[i].incarnation;

		if (alive && (core->step.part == CORE_APPLYING || !core->step.has_record ||
			      core_id_cmp(&core->step.record.id, &v->record.id)))
			sim_fail(s, "move_boundary",
				 "view %llu.%u has other tables, but n%u has not finished the step",
				 (unsigned long long)v->term, v->seq, i);
		for (uint32_t c = 0; c < s->m->chunks_nr && i != n; c++) {
			uint64_t gives = truth_counted(&was->place, was->members.nodes, c) &
					 v->members.nodes & ~truth_keepers(&v->place, c);

			if (gives && truth_keepers(&v->place, c) >> i & 1 && !s->node[n].link[i])
				sim_fail(s, "move_linked",
					 "view %llu.%u takes chunk %u from a node, but n%u is not "
					 "linked",
					 (unsigned long long)v->term, v->seq, c, i);
		}
	}
}

/* The node uses its copy of the chunk as one that counts. */
void truth_serves(struct sim *s, uint16_t n, uint32_t chunk, const char *what)
{
	const struct shell *sh = shell_of(s, n);
	const struct member *m = &sh->core->member;

	if (truth_counted(&m->place, m->members.nodes, chunk) >> s->node[n].self & 1 &&
	    sh->written[chunk])
		return;
	sim_fail(s, "move_serves", "n%u %s chunk %u, but has no copy of it that counts", n, what,
		 chunk);
}

void truth_ballot(struct sim *s, uint16_t n, const struct core_vote *v)
{
	const struct member *m = &shell_of(s, n)->core->member;
	uint32_t nr = 0;

	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (!(truth_counted(&m->place, m->members.nodes, c) >> s->node[n].self & 1))
			continue;
		truth_serves(s, n, c, "votes for");
		nr++;
	}
	if (v->chunks_nr != nr)
		sim_fail(s, "move_serves", "n%u votes for %u chunks, but has %u copies that count",
			 n, v->chunks_nr, nr);
}

void truth_moved(struct sim *s, const struct placement *p)
{
	const struct sim_view *v = &s->m->view[(s->m->views_nr - 1) % VIEWS];

	if (p->to || p->moves || v->to)
		sim_fail(s, "move_told", "a move is told as over, but chunks move");
	s->m->told_moved++;
}
