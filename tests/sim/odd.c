/* SPDX-License-Identifier: Apache-2.0 */
/* A node whose memory or processor is bad: it finds another sum of squares of one chunk than the
 * gradient has. It may be the primary, which also tells the wrong sum to the other nodes or not, or
 * a follower, which notices that its sum is not the primary's or not. The lie ends with the
 * process, or when an operator has looked at a model that waits for him. The checkers here are
 * odd_named: only the node that lies is told that it is odd. odd_found: with three votes for the
 * chunk, it is found at once. odd_last: it is told when no view needs its copies any more.
 * odd_retries: what nobody can decide is not tried without a limit. odd_begins: a model that waits
 * for an operator begins nothing. That no wrong sum gets into a record is what record_pure
 * checks. */
#include "sim/sim.h"

#include "core/inner.h"

#define LIAR_SEEDS (1u << 14 | 1u << 23 | 1u << 31) /* Of 32. All of them have copies. */

bool odd_seed(const struct sim *s)
{
	return s->seed > 1 && LIAR_SEEDS >> s->seed % 32 & 1;
}

static bool lies(const struct sim *s, uint16_t n, uint32_t chunk)
{
	const struct sim_liar *l = &s->m->liar;

	return l->on && l->node == n && l->chunk == chunk;
}

double odd_sum(struct sim *s, uint16_t n, uint32_t chunk, double sum)
{
	struct shell *sh = shell_of(s, n);

	/* Where there is no other copy nobody can notice it. */
	if (!lies(s, n, chunk) || !shell_holds(s, n, chunk) ||
	    __builtin_popcountll(place_copies(&sh->place, chunk)) < 2)
		return sum;
	sh->lied = sh->incarnation;
	s->m->liar.id = sh->id;
	s->m->lied[n] = s->m->liar;
	return sum + 1 + n;
}

bool odd_says(const struct sim *s, uint16_t n, uint32_t chunk)
{
	return lies(s, n, chunk) && s->m->liar.says;
}

static void odd_plant(struct sim *s)
{
	struct sim_liar *l = &s->m->liar;
	uint16_t n = (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);

	if (l->on || !s->node[n].alive || s->node[n].paused || !sim_chance(s, 400))
		return;
	*l = (struct sim_liar){.on = true,
			       .node = n,
			       .says = sim_chance(s, 500),
			       .chunk = (uint32_t)sim_between(s, 0, s->m->chunks_nr - 1)};
	s->m->liars++;
	sim_trace(s, "n%u LIES about chunk %u%s", n, l->chunk,
		  l->says ? ", and says so" : ", and does not notice");
}

void odd_crashed(struct sim *s, uint16_t n)
{
	if (s->m->liar.node == n)
		s->m->liar.on = false;
}

/* The operator looks at models that wait for him, finds the bad node, and mends it. */
static void odd_operator(struct sim *s)
{
	const struct sim_node *nd = &s->node[s->lead];
	struct core_state st;

	if (!nd->alive || nd->paused || !elect_acts(s))
		return;
	core_state(shell_of(s, s->lead)->core, &st);
	if (!st.disputed)
		return;
	s->m->disputed++;
	s->m->liar.on = false;
	orders_resume(s, &st);
}

void odd_event(struct sim *s, const struct sim_event *e)
{
	(void)e;
	sim_at(s, odd_seed(s) ? sim_between(s, 50 * MS, 400 * MS) : 100 * MS, SIM_ODD, NOWHERE);
	if (!s->faults)
		s->m->liar.on = false;
	else if (odd_seed(s))
		odd_plant(s);
	odd_operator(s);
}

/* --- checkers --- */

/* This coordinator has found that votes differ. */
void truth_differ(struct sim *s, uint16_t n, const struct core_action *a)
{
	const struct sim_liar *l = &s->m->liar;
	char id[64];

	(void)n;
	s->m->differed++;
	if (!a->why || !a->why[0])
		sim_fail(s, "deadline_named", "%s differs without a reason", sim_id(&a->id, id));
	if (a->node < CORE_NODES_MAX)
		return;
	if (l->on && !core_id_cmp(&l->id, &a->id) &&
	    __builtin_popcountll(truth_view_of(s, &a->id)->copies[l->chunk]) >= 3)
		sim_fail(
			s, "odd_found",
			"n%u lies about chunk %u in %s, which has three copies, and nobody says so",
			l->node, l->chunk, sim_id(&a->id, id));
	if (s->m->fruitless_of.step != a->id.step || s->m->fruitless_of.term != a->id.term ||
	    s->m->fruitless_of.generation != a->id.generation ||
	    s->m->fruitless_tunes != s->m->orders.tunes_nr)
		s->m->fruitless = 0;
	s->m->fruitless_of = a->id;
	s->m->fruitless_tunes = s->m->orders.tunes_nr;
	if (++s->m->fruitless > 3)
		sim_fail(s, "odd_retries", "%s is the attempt after three that nobody can decide",
			 sim_id(&a->id, id));
}

/* The node is told that it is odd. Its process ends, and what it has is not taken over. */
void truth_odd(struct sim *s, uint16_t n, const struct core_action *a)
{
	const struct sim_view *v = &s->m->view[(s->m->views_nr - 1) % VIEWS];
	struct shell *sh = shell_of(s, n);
	uint16_t self = s->node[n].self;
	char id[64];

	if (sh->lied != sh->incarnation)
		sim_fail(s, "odd_named", "n%u is told that it is odd since %s, but never lied", n,
			 sim_id(&a->id, id));
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (v->sealed && v->copies[c] >> self & 1 &&
		    v->incarnation[self] == sh->incarnation)
			sim_fail(s, "odd_last",
				 "n%u is told that it is odd, but view %llu.%u counts its copy of "
				 "chunk %u",
				 n, (unsigned long long)v->term, v->seq, c);
	}
	s->m->told_odd++;
}

double odd_alone(struct sim *s, const struct record *r, uint32_t chunk, double sum)
{
	uint64_t of = truth_of(s, r->id.generation)->of[r->id.step % 2],
		 voted = truth_view_of(s, &r->id)->copies[chunk] & of;
	uint16_t n = (uint16_t)__builtin_ctzll(voted | 1ull << 63);

	if (!s->m->recovers || voted & (voted - 1) || n >= NODES || s->m->lied[n].chunk != chunk ||
	    core_id_cmp(&s->m->lied[n].id, &r->id))
		return sum;
	return sum + 1 + n;
}

void truth_begun(struct sim *s, uint16_t n, const struct core_msg *m)
{
	char id[64];

	if (m->op == CORE_BEGIN && shell_of(s, n)->core->coord.odd.stuck[0])
		sim_fail(s, "odd_begins", "n%u begins %s, but waits for an operator", n,
			 sim_id(&m->id, id));
}
