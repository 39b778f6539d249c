/* SPDX-License-Identifier: Apache-2.0 */
/* Elections as a daemon sees them. The register says who leads, and keeps the views of all models
 * as one value. What model/lead.c does is done here: a node that leads gives each core the view
 * that was read, puts the views of its cores into the value, one proposal after the other with all
 * that has come meanwhile, and tells a core when its view is durable. A value that is not known to
 * be written ends the lead. Registers call it: elect_leading(), elect_lost() and elect_answer() are
 * their events, in any order and at any time that the contract of cluster/source.h allows. */
#include "sim/sim.h"

#include "core/inner.h"

#include <stdlib.h>
#include <string.h>

bool elect_acts(struct sim *s)
{
	return !s->elected || (s->node[s->lead].alive && shell_of(s, s->lead)->core &&
			       core_coordinates(shell_of(s, s->lead)->core) &&
			       shell_of(s, s->lead)->core->coord.term == s->reg.term);
}

bool elect_former(struct sim *s, uint16_t n)
{
	return s->elected ? n != s->lead || s->node[n].lead.term != s->reg.term : n == ZOMBIE;
}

struct sim_value *elect_value(struct sim *s, uint16_t n)
{
	size_t bytes = sizeof(struct sim_value) + s->models_nr * sizeof(struct core_view);
	struct sim_value *v = calloc(1, bytes);

	CHECK(v);
	v->node = n;
	v->start = s->node[n].starts;
	v->voter = NOWHERE;
	return v;
}

/* The process that the value is for is still there. */
static bool elect_lives(const struct sim *s, const struct sim_value *v)
{
	return s->node[v->node].alive && s->node[v->node].starts == v->start;
}

/* --- proposals --- */

static void elect_propose(struct sim *s, uint16_t n)
{
	struct sim_lead *l = &s->node[n].lead;
	struct sim_value *v;

	if (!l->term || l->flying || !l->waiting)
		return;
	v = elect_value(s, n);
	v->term = l->next_term = l->term;
	v->seq = l->seq + 1;
	v->models = l->proposed = l->waiting;
	l->waiting = 0;
	l->flying = true;
	for (uint16_t i = 0; i < s->models_nr; i++) {
		if (v->models >> i & 1)
			v->view[i] = s->node[n].shell[i].pending;
	}
	sim_trace(s, "n%u PROPOSES %llu.%llu", n, (unsigned long long)v->term,
		  (unsigned long long)v->seq);
	register_propose(s, v);
}

void elect_change(struct sim *s, uint16_t n, uint16_t voter)
{
	struct sim_lead *l = &s->node[n].lead;
	struct sim_value *v;

	if (!l->term || l->flying)
		return;
	v = elect_value(s, n);
	v->term = l->next_term = l->term;
	v->seq = l->seq + 1;
	v->voter = voter;
	l->flying = true;
	sim_trace(s, "n%u CHANGES voter n%u with %llu.%llu", n, voter, (unsigned long long)v->term,
		  (unsigned long long)v->seq);
	register_propose(s, v);
}

void elect_persist(struct sim *s, uint16_t n, const struct core_view *view)
{
	struct shell *sh = shell_of(s, n);

	CHECK(!sh->persisting);
	sh->pending = *view;
	sh->persisting = true;
	s->node[n].lead.waiting |= 1u << s->m->index;
	elect_propose(s, n);
}

/* Tells each model of the process. It may die of what one of them does. */
static void elect_tell(struct sim *s, uint16_t n, uint32_t models, const struct sim_value *v,
		       enum core_event_type type)
{
	uint64_t start = s->node[n].starts;

	for (uint16_t i = 0; i < s->models_nr; i++) {
		struct core_event e = {.type = type};
		struct shell *sh = &s->node[n].shell[i];

		if (!(models >> i & 1) || !s->node[n].alive || s->node[n].starts != start)
			continue;
		s->m = &s->model[i];
		if (type == CORE_EV_PERSISTED)
			e.id = (struct core_id){.term = sh->pending.term, .seq = sh->pending.seq};
		if (type == CORE_EV_LEAD) {
			e.id.term = v->term;
			e.view = v->models >> i & 1 ? &v->view[i] : NULL;
			sh->opened = 0;
			sh->begun_world.size = 0;
		}
		sh->persisting = false;
		node_event(s, n, &e);
		if (type == CORE_EV_LEAD && n == s->lead && elect_acts(s))
			orders_started(s);
	}
}

void elect_beat(struct sim *s, const struct sim_event *e)
{
	elect_propose(s, e->node);
}

void elect_answer(struct sim *s, const struct sim_value *v)
{
	struct sim_lead *l = &s->node[v->node].lead;
	uint32_t proposed = l->proposed;

	if (!elect_lives(s, v))
		return;
	CHECK(l->flying);
	l->flying = false;
	sim_trace(s, "n%u HEARS of %llu.%llu: %d", v->node, (unsigned long long)v->term,
		  (unsigned long long)v->seq, v->how);
	if (l->term != l->next_term) { /* Its lead has ended, and what waits is of another one. */
		elect_propose(s, v->node);
		return;
	}
	l->proposed = 0;
	if (v->how == ANSWER_OK) {
		l->seq = v->seq;
		elect_tell(s, v->node, proposed, NULL, CORE_EV_PERSISTED);
		if (elect_lives(s, v))
			elect_propose(s, v->node);
	} else if (v->how == ANSWER_NOSPACE) {
		l->waiting |= proposed;
		sim_at(s, sim_between(s, 20 * MS, 200 * MS), SIM_BEAT, v->node);
	} else {
		l->waiting = 0;
		register_resign(s, v->node);
	}
}

/* --- who leads --- */

/* From now on this node is the coordinator, as far as the register goes, and the value is the one
 * that it has read. What was ordered of the one before is forgotten with it. */
void elect_is(struct sim *s, uint16_t n, uint64_t term)
{
	struct sim_model *m = s->m;

	sim_trace(s, "n%u IS ELECTED in term %llu", n, (unsigned long long)term);
	s->elections++;
	for (uint16_t i = 0; i < s->models_nr; i++) {
		struct shell *was = &s->node[s->lead].shell[i], *is = &s->node[n].shell[i];

		s->m = &s->model[i];
		s->m->load.on = false;
		orders_crashed(s);
		is->has_disk = was->has_disk;
		if (is != was)
			is->disk = was->disk;
	}
	s->m = m;
	s->lead = n;
	s->reg.term = term;
	s->reg.start = s->node[n].starts;
	s->reg.since = s->now;
	s->reg.gone_since = 0;
	s->reg.resigned = false;
}

/* The value that is proposed becomes durable. */
void elect_lands(struct sim *s, const struct sim_value *v)
{
	struct sim_model *m = s->m;

	sim_trace(s, "%llu.%llu of n%u IS DURABLE", (unsigned long long)v->term,
		  (unsigned long long)v->seq, v->node);
	if (v->seq != s->reg.seq + 1)
		sim_fail(s, "one_register", "value %llu follows value %llu",
			 (unsigned long long)v->seq, (unsigned long long)s->reg.seq);
	s->reg.seq = v->seq;
	for (uint16_t i = 0; i < s->models_nr; i++) {
		struct shell *kept = &s->node[s->lead].shell[i];

		if (!(v->models >> i & 1))
			continue;
		s->m = &s->model[i];
		kept->has_disk = true;
		kept->disk = v->view[i];
		truth_durable(s, &kept->disk);
	}
	s->m = m;
}

struct sim_value *elect_read(struct sim *s, uint16_t n)
{
	struct sim_value *v = elect_value(s, n);

	v->seq = s->reg.seq;
	for (uint16_t i = 0; i < s->models_nr; i++) {
		const struct shell *kept = &s->node[s->lead].shell[i];

		v->models |= (uint32_t)kept->has_disk << i;
		v->view[i] = kept->disk;
	}
	return v;
}

/* What the checkers know of the links of the coordinator begins anew. */
static void elect_links(struct sim *s, uint16_t n)
{
	s->missed_at = s->now;
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		s->node[i].away_since = i == n || s->node[n].link[i] ? 0 : clock_of(s, n);
		s->node[i].known = s->node[n].knows >> i & 1;
	}
}

void elect_leading(struct sim *s, const struct sim_value *v)
{
	struct sim_lead *l = &s->node[v->node].lead;

	if (!elect_lives(s, v))
		return;
	elect_lost(s, v->node, l->term);
	if (!elect_lives(s, v))
		return;
	sim_trace(s, "n%u LEADS %llu.%llu%s", v->node, (unsigned long long)v->term,
		  (unsigned long long)v->seq, v->term == s->reg.term ? "" : ", as it believes");
	s->late_leads += v->term != s->reg.term;
	l->term = v->term;
	l->seq = v->seq;
	if (v->term == s->reg.term)
		elect_links(s, v->node);
	elect_tell(s, v->node, UINT32_MAX, v, CORE_EV_LEAD);
}

void elect_lost(struct sim *s, uint16_t n, uint64_t term)
{
	struct sim_lead *l = &s->node[n].lead;

	if (!l->term || l->term != term)
		return;
	sim_trace(s, "n%u LEADS NO MORE in term %llu", n, (unsigned long long)l->term);
	l->term = 0;
	l->waiting = l->proposed = 0;
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->node[n].shell[i].persisting = false;
		s->m = &s->model[i];
		if (n == s->lead && term == s->reg.term)
			orders_crashed(s);
	}
	elect_tell(s, n, UINT32_MAX, NULL, CORE_EV_RESIGN);
}

void elect_crashed(struct sim *s, uint16_t n)
{
	s->node[n].lead = (struct sim_lead){0};
	s->node[n].knows = 0;
	if (s->quorum)
		voters_crashed(s, n);
}

void elect_started(struct sim *s, uint16_t n)
{
	if (s->quorum)
		voters_started(s, n);
}

/* --- checkers --- */

/* one_leader: whoever gives orders in a term is the node that was elected in it, and has not been
 * told since that it leads no more. */
void truth_leads(struct sim *s, uint16_t n, const struct core_msg *m)
{
	static const bool orders[CORE_MSG_NR] = {
		[CORE_ASK] = true,   [CORE_VIEW] = true, [CORE_BEGIN] = true, [CORE_COMMIT] = true,
		[CORE_ABORT] = true, [CORE_HEAR] = true, [CORE_ODD] = true};
	char id[64];

	if (!s->elected || !orders[m->op])
		return;
	if (m->id.term < shell_of(s, n)->term_promised)
		sim_fail(s, "promise_kept", "n%u sends message %u of %s, and answered term %llu", n,
			 m->op, sim_id(&m->id, id),
			 (unsigned long long)shell_of(s, n)->term_promised);
	if (s->node[n].lead.term == m->id.term)
		return;
	sim_fail(s, "one_leader", "n%u sends message %u of %s, but leads in term %llu", n, m->op,
		 sim_id(&m->id, id), (unsigned long long)s->node[n].lead.term);
}
