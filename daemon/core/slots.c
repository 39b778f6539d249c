/* SPDX-License-Identifier: Apache-2.0 */
/* What a node needs of other nodes in an attempt, called by step.c. It is the part of their ranks
 * in each chunk of which it is the primary, the reduced gradient of each other chunk that it has
 * memory for, both of which are written to landing slots here, and what their ranks gave when they
 * were ready. Happy path: a node that is STAGING sends GRANT to every node with ranks and to every
 * primary of one of its chunks. That node writes to the slots, and answers with RANKS when all its
 * ranks are ready. Either message may be lost, so GRANT is repeated until RANKS has come. Slots of
 * a dropped attempt are not lent again, neither to that node nor to a new primary, before the node
 * that had them says DRAINED, before its connection has ended, or before it is no member any more,
 * when the shell stops its writes. */
#include "core/slots.h"

#include "core/inner.h"

#include <string.h>

bool slots_told(const struct step *s, uint16_t node)
{
	return s->told >> node & 1;
}

bool slots_needs(const struct core *c, uint16_t node)
{
	const struct step *s = &c->step;

	bool incomplete = s->chunks_staged < c->held_nr[c->conf.self],
	     ranked = s->ranked >> node & 1, reduces = c->grads_from >> node & 1;

	return s->part == CORE_STAGING && node != c->conf.self &&
	       (((ranked || reduces) && incomplete) || (ranked && !slots_told(s, node)));
}

/* Each chunk has one place for its reduced gradient, whoever sends it. May a node that was primary
 * before still write there? */
static bool slots_taken(const struct core *c, uint16_t node)
{
	if (!(c->grads_from >> node & 1))
		return false;
	view_each(i, core_members(c)) {
		const struct slots *p = &c->step.slots[i];

		if (i != node && p->owes && p->reduces)
			return true;
	}
	return false;
}

static void slots_lend(struct ctx *x, uint16_t node)
{
	struct step *s = &x->c->step;
	struct slots *p = &s->slots[node];
	bool lends = x->c->held_nr[x->c->conf.self]; /* If not, it only asks for ranks. */

	if (!slots_needs(x->c, node) || !core_linked(x->c, node) || (p->owes && lends) ||
	    slots_taken(x->c, node))
		return;
	if (lends)
		p->granted = s->id;
	p->reduces = x->c->grads_from >> node & 1;
	core_send(x, node, CORE_GRANT, &s->id);
}

static void slots_borrow(struct ctx *x, uint16_t node)
{
	struct core_action *a = core_act(x, CORE_ACT_CREDIT);

	a->node = node;
	a->id = x->c->step.id;
}

/* Does this node send anything to landing slots of that node, contributions or reduced
 * gradients? */
static bool slots_sends(const struct core *c, uint16_t node)
{
	return node != c->conf.self &&
	       ((c->primary_nr[node] && c->step.ranks_nr) || c->grads_to >> node & 1);
}

/* Does this node still wait for the landing slots of that node? A node that has voted may still owe
 * its contribution. Its own chunks are staged, or it holds none, while the lender was late, for
 * example with its updates of the step before. After a warm start this node sends nothing
 * (slots_refuse). */
static bool slots_wanted(const struct core *c, uint16_t node)
{
	return slots_sends(c, node) && step_undecided(&c->step) && !c->step.kept &&
	       core_id_cmp(&c->step.slots[node].credit, &c->step.id);
}

/* Does that node perhaps still keep slots back because of this one? The lender does as long as it
 * believes that something of a dropped attempt is on its way, even if this node has only its ranks
 * to tell now, or is not the primary of its chunks any more and has nothing to send at all. So
 * DRAINED is repeated as long as GRANT has not come. A node without memory for a chunk lends
 * nothing, and keeps nothing back. */
static bool slots_kept_back(const struct core *c, uint16_t node)
{
	const struct step *s = &c->step;

	return node != c->conf.self && c->held_nr[node] && step_undecided(s) && !s->kept &&
	       (s->ranks_nr || c->grads_to >> node & 1 ||
		((core_place(c)->holders || core_place(c)->to) && s->slots[node].credit.step)) &&
	       core_id_cmp(&s->slots[node].credit, &s->id);
}

void slots_tell_ranks(struct ctx *x, uint16_t node)
{
	struct core *c = x->c;
	struct step *s = &c->step;
	double *weights = core_at(c, c->at_ranks), *values = core_at(c, c->at_ranks_values);
	const double *gave = core_at(c, c->at_values);
	struct core_msg *m;
	uint32_t nr = 0;

	if (!step_undecided(s) || !slots_told(s, c->conf.self) ||
	    core_id_cmp(&s->slots[node].credit, &s->id))
		return;
	for (uint32_t i = 0; i < s->world.size; i++) {
		if (s->world.rank[i].node != c->conf.self)
			continue;
		memcpy(values + (size_t)nr * CORE_VALUES_NR, gave + (size_t)i * CORE_VALUES_NR,
		       CORE_VALUES_NR * sizeof(*values));
		weights[nr++] = s->world.rank[i].weight;
	}
	m = core_send(x, node, CORE_RANKS, &s->id);
	m->vote.weights = weights;
	m->vote.ranks_nr = nr;
	m->vote.lr = s->lr_nr ? s->lr : NULL;
	m->vote.lr_nr = s->lr_nr;
	m->vote.has_clip = s->has_clip;
	m->vote.clip = s->clip;
	m->vote.values = values;
	m->vote.values_nr = nr * CORE_VALUES_NR;
	m->vote.skip = s->skip;
	m->vote.bad_tensor = -1;
	m->vote.bad_rank = -1;
}

void slots_begin(struct ctx *x)
{
	struct core *c = x->c;

	view_each(i, core_members(c)) {
		slots_lend(x, i);
		if (slots_sends(c, i) && !slots_wanted(c, i))
			slots_borrow(x, i);
	}
}

void slots_dropped(struct ctx *x)
{
	struct core *c = x->c;

	if (!c->held_nr[c->conf.self])
		return; /* Nothing is ever sent to it. */
	view_each(i, core_members(c)) {
		if (!core_id_cmp(&c->step.slots[i].granted, &c->step.id))
			c->step.slots[i].owes = true;
	}
}

/* The process before this one voted, and died before that node had all that it needs from here.
 * This process sends none of it, so that the attempt cannot end well. The coordinator has a vote
 * that is missing, the lender's, and ends the attempt instead of waiting for its deadline. */
static void slots_refuse(struct ctx *x, uint16_t node)
{
	struct core *c = x->c;
	struct step *s = &c->step;
	struct core_msg *m;

	if (s->part != CORE_PREPARED || !s->kept || !slots_sends(c, node) ||
	    core_id_cmp(&s->slots[node].credit, &s->id))
		return;
	m = core_send(x, core_coordinator(c), CORE_ABANDON, &s->id);
	m->status = SHARD_WORLD_CHANGED;
	m->why = core_text(c, "node %s started again before node %s had its gradients",
			   core_node_name(c, c->conf.self), core_node_name(c, node));
}

void slots_on_grant(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct slots *p = &c->step.slots[m->from];
	bool wanted = slots_wanted(c, m->from);

	if (core_id_cmp(&m->id, &p->credit) < 0)
		return;
	p->credit = m->id;
	if (wanted && !slots_wanted(c, m->from))
		slots_borrow(x, m->from);
	slots_tell_ranks(x, m->from); /* Again, if it asks again. */
	slots_refuse(x, m->from);
}

void slots_on_drained(struct ctx *x, const struct core_msg *m)
{
	struct slots *p = &x->c->step.slots[m->from];

	if (core_id_cmp(&m->id, &p->granted) >= 0)
		p->owes = false;
	view_each(i, core_members(x->c)) {
		if (i == m->from || (p->reduces && x->c->grads_from >> i & 1))
			slots_lend(x, i);
	}
}

void slots_placed(struct core *c)
{
	for (uint16_t i = 0; i < CORE_NODES_MAX; i++) {
		if (!view_is_member(core_members(c), i))
			c->step.slots[i] = (struct slots){0};
	}
}

void slots_drained(struct ctx *x)
{
	struct core *c = x->c;

	view_each(i, core_members(c)) {
		if (i != c->conf.self && c->held_nr[i])
			core_send(x, i, CORE_DRAINED, &c->step.drained);
	}
}

void slots_repeat(struct ctx *x)
{
	struct core *c = x->c;

	view_each(i, core_members(c)) {
		const struct slots *p = &c->step.slots[i];

		if (slots_kept_back(c, i))
			core_send(x, i, CORE_DRAINED, &c->step.drained);
		/* Was its GRANT lost, then it does not know that it holds others up. */
		if (p->owes && p->reduces && c->step.part == CORE_STAGING)
			core_send(x, i, CORE_GRANT, &p->granted);
		if (!slots_told(&c->step, i))
			slots_lend(x, i);
	}
}

void slots_link_down(struct ctx *x, uint16_t node)
{
	struct slots *p = &x->c->step.slots[node];

	/* The connection is gone, and with it whatever was on its way. */
	p->owes = p->reduces = false;
	p->granted = p->credit = (struct core_id){0};
}

void slots_link_up(struct ctx *x, uint16_t node)
{
	slots_lend(x, node);
	if (slots_kept_back(x->c, node))
		core_send(x, node, CORE_DRAINED, &x->c->step.drained);
}
