/* SPDX-License-Identifier: Apache-2.0 */
/* The checkers of nodes that become members. join_slots: no view has a slot that it may not have,
 * or the slot of a node that never came. join_linked: the coordinator that makes a view has a link
 * to each new member, and names the process at its other end. join_boundary: no step ends because a
 * node joins, and all members have finished the last one. join_empty: a new member has no copy
 * that counts, and nobody fetches copies who has no chunk. truth.c calls them. That all nodes are
 * members in the end is a matter of truth_all_back(). */
#include "sim/sim.h"

#include "core/inner.h"

#include <string.h>

/* Is it the view before, with more members? */
static bool joins_only(const struct core_view *was, const struct core_view *v)
{
	if (was->members.nodes & ~v->members.nodes || was->term != v->term ||
	    was->generation != v->generation || !was->sealed)
		return false;
	view_each(i, &was->members) {
		if (!view_same(&was->members.node[i], &v->members.node[i]))
			return false;
	}
	return true;
}

static void joins_finished(struct sim *s, uint16_t n, const struct core_view *was,
			   const struct core_view *v)
{
	const struct coord *co = &shell_of(s, n)->core->coord;

	if (shell_of(s, n)->was_undecided && !core_id_cmp(&co->aborted_id, &co->id) &&
	    strstr(co->aborted, "members have changed"))
		sim_fail(s, "join_boundary", "view %llu.%u takes a node in, and ends an attempt",
			 (unsigned long long)v->term, v->seq);
	view_each(i, &was->members) {
		const struct core *core = shell_of(s, i)->core;

		if (s->node[i].alive &&
		    shell_of(s, i)->incarnation == was->members.node[i].incarnation &&
		    (core->step.part == CORE_APPLYING || !core->step.has_record ||
		     core_id_cmp(&core->step.record.id, &v->record.id)))
			sim_fail(s, "join_boundary",
				 "view %llu.%u takes a node in, but n%u has not finished the step",
				 (unsigned long long)v->term, v->seq, i);
	}
}

/* A coordinator is about to make a view. */
void truth_joining(struct sim *s, uint16_t n, const struct core_view *v)
{
	const struct shell *sh = shell_of(s, n);
	const struct core_view *was = &sh->disk;
	uint64_t joins = sh->has_disk ? v->members.nodes & ~was->members.nodes : 0;

	for (; joins; joins &= joins - 1) {
		uint16_t i = (uint16_t)__builtin_ctzll(joins);
		const struct conn *conn;
		struct view_node is;

		if (i >= s->nodes_nr || !(joins_slots(s, n) >> i & 1))
			sim_fail(s, "join_slots", "view %llu.%u has slot %u",
				 (unsigned long long)v->term, v->seq, i);
		if (i == n) /* It was elected, and is no member yet. */
			continue;
		if (!s->node[n].link[i])
			sim_fail(s, "join_linked", "view %llu.%u takes n%u in without a link",
				 (unsigned long long)v->term, v->seq, i);
		conn = link_conn(s, n, s->node[n].end[i]);
		is = shell_who(s, s->node[n].end[i]);
		if (conn->up && conn->epoch == s->node[n].link[i] &&
		    !view_same(&v->members.node[i], &is))
			sim_fail(s, "join_linked", "view %llu.%u names n%u by another process",
				 (unsigned long long)v->term, v->seq, i);
	}
	if (sh->has_disk && v->members.nodes & ~was->members.nodes && joins_only(was, v))
		joins_finished(s, n, was, v);
}

void truth_joined(struct sim *s, const struct core_view *v)
{
	const struct sim_view *was = &s->m->view[(s->m->views_nr - 1) % VIEWS];
	uint64_t joins, empty = UINT64_MAX;

	if (!s->m->views_nr)
		return;
	joins = v->members.nodes & ~was->nodes;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++)
		empty &= ~truth_keepers(&v->place, c);
	if ((v->place.learns | v->place.moves) & empty)
		sim_fail(s, "join_empty", "view %llu.%u: %llx have no chunks, and fetch some",
			 (unsigned long long)v->term, v->seq,
			 (unsigned long long)((v->place.learns | v->place.moves) & empty));
	s->m->joined += (uint64_t)__builtin_popcountll(joins >> s->first_nr);
	for (uint32_t c = 0; c < s->m->chunks_nr && v->sealed; c++) {
		if (truth_counted(&v->place, v->members.nodes, c) & joins)
			sim_fail(s, "join_empty", "view %llu.%u counts chunk %u of a new member",
				 (unsigned long long)v->term, v->seq, c);
	}
}
