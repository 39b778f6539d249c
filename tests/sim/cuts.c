/* SPDX-License-Identifier: Apache-2.0 */
/* A partial cut. In these seeds, after all faults have ceased and the cluster is whole, two nodes
 * that do not coordinate lose their link, and both keep that to the coordinator. sim.c asks here
 * whether the run is over. The checkers: one_leaves: the cluster goes on without exactly one of the
 * two, if the others can spare one, and it does not come back and leave again while the cut stays.
 * partial_cut: steps are committed again within 10 times the silence that ends a link. Then the cut
 * is mended, and the run must get on with every node, which `liveness` watches. */
#include "sim/sim.h"

#include "core/inner.h"

enum { CUT_NONE, CUT_BEGAN, CUT_JUDGED, CUT_MENDED };

#define CUT_BOUND_NS (10 * SILENT_NS)
#define CUT_LATE_NS  (20 * SEC)

static bool cuts_seed(const struct sim *s)
{
	return s->copies && s->seed % 2 == 0 && s->nodes_nr > 2 && s->grave == NOWHERE;
}

/* Has each chunk a copy that counts elsewhere? */
static bool cuts_spares(struct sim *s, uint16_t n)
{
	const struct core_view *v = &shell_of(s, s->lead)->disk;

	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (!(place_copies(&v->place, c) & v->members.nodes & ~(1ull << n)))
			return false;
	}
	return true;
}

/* Can the one leave that was to blame for more before, or either one if both were as often? */
static bool cuts_can(struct sim *s)
{
	const uint32_t *blamed = shell_of(s, s->lead)->core->coord.reports.blamed;
	uint16_t a = s->cut.a, b = s->cut.b;

	return sim_several(s) && ((blamed[a] >= blamed[b] && cuts_spares(s, a)) ||
				  (blamed[b] >= blamed[a] && cuts_spares(s, b)));
}

static void cuts_begin(struct sim *s)
{
	uint16_t node[SLOTS], nr = 0, a, b;

	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (n != s->lead && n != s->stranger)
			node[nr++] = n;
	}
	if (nr < 2) {
		s->cut.phase = CUT_MENDED;
		return;
	}
	a = (uint16_t)sim_between(s, 0, nr - 1u);
	b = (uint16_t)sim_between(s, 0, nr - 2u);
	s->cut.a = node[a];
	s->cut.b = node[b < a ? b : b + 1];
	s->cut.phase = CUT_BEGAN;
	s->healed_at = s->now;
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->m = &s->model[i];
		s->m->cut_can = cuts_can(s);
		s->m->cut_expelled = s->m->expelled;
		s->m->cut_generation = s->m->generation;
		s->m->progress_at = s->now;
	}
	sim_trace(s, "n%u and n%u LOSE THEIR LINK", s->cut.a, s->cut.b);
	link_conn(s, s->cut.a, s->cut.b)->cut = true;
	link_break(s, s->cut.a, s->cut.b);
	sim_at(s, CUT_BOUND_NS, SIM_CUT, NOWHERE);
}

/* Does the step wait for nothing that an operator or a trainer could have stopped? */
static bool cuts_trains(struct sim *s)
{
	struct core_state st;

	if (!s->node[s->lead].alive || s->node[s->lead].paused)
		return false;
	for (uint32_t t = 0; t < s->m->trainers_nr; t++) {
		if (s->m->trainer[t].stopped)
			return false;
	}
	core_state(shell_of(s, s->lead)->core, &st);
	return st.sealed && !st.paused && !st.held && !st.too_few && !s->m->orders.hold;
}

static void cuts_judge(struct sim *s)
{
	const struct core_view *v = &shell_of(s, s->lead)->disk;
	uint64_t pair = 1ull << s->cut.a | 1ull << s->cut.b;

	/* Models choose for themselves, and who leaves one has new links in all. */
	if (s->models_nr > 1 || !s->m->cut_can || s->m->cut_generation != s->m->generation)
		return;
	if (s->m->expelled != s->m->cut_expelled + 1 ||
	    __builtin_popcountll(v->members.nodes & pair) != 1)
		sim_fail(s, "one_leaves",
			 "n%u and n%u have no link: %llu members left, and these stay: %#llx",
			 s->cut.a, s->cut.b,
			 (unsigned long long)(s->m->expelled - s->m->cut_expelled),
			 (unsigned long long)v->members.nodes);
	if (cuts_trains(s) && s->m->commits == s->m->cut_commits)
		sim_fail(s, "partial_cut",
			 "n%u and n%u have had no link for %.1f s, and no step was committed since "
			 "one of them left",
			 s->cut.a, s->cut.b, (double)(s->now - s->healed_at) / (double)SEC);
}

static void cuts_mend(struct sim *s)
{
	sim_trace(s, "n%u and n%u MAY HAVE A LINK AGAIN", s->cut.a, s->cut.b);
	s->cut.phase = CUT_MENDED;
	s->healed_at = s->now;
	link_conn(s, s->cut.a, s->cut.b)->cut = false;
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->model[i].healed_commits = 0;
		s->model[i].progress_at = s->now;
	}
	lively_begin(s);
}

void cuts_event(struct sim *s, const struct sim_event *e)
{
	(void)e;
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->m = &s->model[i];
		cuts_judge(s);
	}
	if (s->cut.phase == CUT_BEGAN)
		sim_at(s, sim_between(s, MS, 4 * SILENT_NS), SIM_CUT, NOWHERE);
	else
		cuts_mend(s);
	if (s->cut.phase == CUT_BEGAN)
		s->cut.phase = CUT_JUDGED;
}

bool cuts_on(const struct sim *s)
{
	return s->cut.phase != CUT_NONE && s->cut.phase != CUT_MENDED;
}

/* It waits for some time until every model trains. */
bool cuts_over(struct sim *s)
{
	if (!cuts_seed(s))
		return true;
	for (uint16_t i = 0; i < s->models_nr && s->cut.phase == CUT_NONE; i++) {
		s->m = &s->model[i];
		if (cuts_trains(s) && truth_all_back(s))
			continue;
		if (s->now > s->healed_at + CUT_LATE_NS)
			s->cut.phase = CUT_MENDED;
		return s->cut.phase == CUT_MENDED;
	}
	if (s->cut.phase == CUT_NONE)
		cuts_begin(s);
	return s->cut.phase == CUT_MENDED;
}
