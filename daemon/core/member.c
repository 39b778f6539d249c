/* SPDX-License-Identifier: Apache-2.0 */
/* This node as a member: it promises (ASK), adopts views, and answers. A view is adopted only when it is newer than the one in
 * hand and its term is not below the promise; the coordinator made it durable before sending it. Happy path: ASK -> promise, what
 * was not yet voted for is dropped, ANSWER; VIEW -> the last record in it resolves PREPARED, the rest is dropped -> VIEW_OK.
 * A step that is being applied finishes first. Ways to fail: a view of a new generation (the model was LOST): everything of
 * the old one is dropped and the trainers are told. */
#include "core/member.h"

#include "core/inner.h"

#include <string.h>

bool member_adopted(const struct core *c, const struct core_id *id)
{
	const struct member *m = &c->member;

	return m->term && id->term == m->term && id->seq == m->seq && id->generation == m->generation && id->term >= m->promised &&
	       !m->has_next;
}

static void member_answer(struct ctx *x, const struct core_msg *ask)
{
	struct core *c = x->c;
	struct step *s = &c->step;
	struct core_answer *a = &c->member.answer;

	memset(a, 0, sizeof(*a));
	a->incarnation = c->conf.incarnation;
	a->generation = c->member.generation;
	a->has_record = s->has_record;
	if (s->has_record)
		a->record = s->record;
	a->prepared = s->part == CORE_PREPARED;
	if (a->prepared) {
		a->id = s->id;
		a->world = s->world;
		step_vote_fill(c, &a->vote);
	}
	core_send(x, ask->from, CORE_ANSWER, &ask->id)->answer = a;
}

void member_on_ask(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;

	/* a copy that arrives after the view of its own term would drop what that view began */
	if (m->id.term < c->member.promised || m->id.term <= c->member.term)
		return;
	c->member.promised = m->id.term;
	c->step.has_next = false;
	if (c->step.part == CORE_STAGING)
		step_drop(x, SHARD_WORLD_CHANGED, "a coordinator that started again asks for the state");
	member_answer(x, m);
}

static void member_ok(struct ctx *x)
{
	struct member *m = &x->c->member;
	struct core_id id = {.term = m->term, .seq = m->seq, .generation = m->generation};

	core_send(x, x->c->conf.coordinator, CORE_VIEW_OK, &id);
}

/* A record that this node has no part in: the seal, or where a node without chunks joins in. */
static void member_take_record(struct ctx *x, const struct core_view *v)
{
	struct step *s = &x->c->step;

	if (s->has_record && !core_id_cmp(&s->record.id, &v->record.id))
		return;
	s->record = v->record;
	s->has_record = true;
	core_act(x, CORE_ACT_SEAL)->record = &s->record;
}

static void member_new_generation(struct ctx *x, const struct core_view *v)
{
	struct core *c = x->c;
	struct member *m = &c->member;
	struct core_action *a;
	const char *why = m->next_why[0] ? m->next_why
			  : v->restoring ? "the model was LOST: it comes back from its newest checkpoint"
					 : "the model was LOST: write all weights and seal again";
	bool tell = m->generation || m->next_why[0];

	step_drop(x, SHARD_WORLD_CHANGED, core_text(c, "%s", why));
	step_forget(x);
	m->generation = v->generation;
	if (!tell)
		return;
	orders_lost(c);
	a = core_act(x, CORE_ACT_LOST);
	a->id = (struct core_id){.term = v->term, .seq = v->seq, .generation = v->generation};
	a->why = core_text(c, "%s", why);
	a->status = v->restoring ? SHARD_ROLLED_BACK : SHARD_LOST;
}

/* A copy of a chunk can only follow records one by one; a view that skips one cannot be adopted by who holds chunks. */
static bool member_follows(const struct core *c, const struct core_view *v)
{
	const struct step *s = &c->step;

	if (v->generation != c->member.generation || !v->sealed || !c->held_nr[c->conf.self])
		return true;
	if (s->has_record)
		return !core_id_cmp(&s->record.id, &v->record.id);
	return v->record.outcome == RECORD_SEAL;
}

void member_resume(struct ctx *x)
{
	struct core *c = x->c;
	struct member *m = &c->member;
	const struct core_view *v = &m->next;
	bool new_term;

	if (!m->has_next)
		return;
	if (v->sealed && v->generation == m->generation)
		(void)step_took(x, &v->record); /* PREPARED: the view is its verdict */
	if (c->step.part == CORE_APPLYING)
		return;
	m->has_next = false;
	if (!member_follows(c, v))
		return;
	if (v->generation != m->generation)
		member_new_generation(x, v);
	step_drop(x, SHARD_WORLD_CHANGED, "the view changed");
	c->step.has_next = c->step.dropped = false;
	timer_stop(&c->step.timer);
	if (v->sealed)
		member_take_record(x, v);
	new_term = v->term != m->term;
	m->term = v->term;
	m->seq = v->seq;
	m->sealed = v->sealed;
	m->restoring = v->restoring;
	m->tune = v->tune;
	member_ok(x);
	if (new_term)
		local_tell_again(x);
}

void member_on_view(struct ctx *x, const struct core_msg *msg)
{
	struct member *m = &x->c->member;
	const struct core_view *v = msg->view;

	if (!v || v->term < m->promised || v->generation < m->generation)
		return;
	m->promised = v->term;
	if (v->term == m->term && v->seq == m->seq) {
		member_ok(x);
		return;
	}
	if (v->term < m->term || (v->term == m->term && v->seq < m->seq))
		return;
	if (m->has_next && (v->term < m->next.term || (v->term == m->next.term && v->seq <= m->next.seq)))
		return;
	m->next = *v;
	m->has_next = true;
	core_copy_text(m->next_why, sizeof(m->next_why), msg->why);
	member_resume(x);
}

void member_on_waiting(struct ctx *x, const struct core_msg *msg)
{
	struct member *m = &x->c->member;

	if (msg->id.term < m->promised)
		return;
	m->waits_id = msg->id;
	core_copy_text(m->waits, sizeof(m->waits), msg->why);
}
