/* SPDX-License-Identifier: Apache-2.0 */
/* Landing slots: one writer each. A node that holds chunks lends its slots for one attempt to every node with ranks in the world
 * (GRANT); the borrower's shell may send when it has the credit. Slots of a dropped attempt are lent again to the same node only
 * after it said DRAINED (nothing of that attempt is on its way any more) or its connection is gone. Lost messages: a borrower
 * without credit repeats DRAINED, which the lender answers with its GRANT. A GRANT for an attempt that is not yet in hand waits. */
#include "core/step.h"

#include "core/inner.h"

static void slots_lend(struct ctx *x, uint16_t node)
{
	struct core *c = x->c;
	struct step *s = &c->step;
	struct peer *p = &c->member.peer[node];

	if (node == c->conf.self || s->part != CORE_STAGING || s->chunks_staged == c->held_nr[c->conf.self])
		return;
	if (!p->linked || p->owes || !core_local_ranks(&s->world, node))
		return;
	p->granted = s->id;
	core_send(x, node, CORE_GRANT, &s->id);
}

static void slots_borrow(struct ctx *x, uint16_t node)
{
	struct core_action *a = core_act(x, CORE_ACT_CREDIT);

	a->node = node;
	a->id = x->c->step.id;
}

/* A lender that has not lent for the attempt in hand. Who has voted may still owe its contribution: its own chunks are staged, or it
 * holds none, while the lender was late, for example with its updates of the step before. After a warm start nothing is owed: if
 * a lender still waited, the attempt cannot commit without the trainers that died here. */
static bool slots_wanted(const struct core *c, uint16_t node)
{
	bool open = c->step.part == CORE_STAGING || (c->step.part == CORE_PREPARED && !c->step.kept);

	return node != c->conf.self && c->held_nr[node] && c->step.ranks_nr && open &&
	       core_id_cmp(&c->member.peer[node].credit, &c->step.id);
}

void slots_begin(struct ctx *x)
{
	struct core *c = x->c;

	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		slots_lend(x, i);
		if (i != c->conf.self && c->held_nr[i] && c->step.ranks_nr && !slots_wanted(c, i))
			slots_borrow(x, i);
	}
}

void slots_dropped(struct ctx *x)
{
	struct core *c = x->c;

	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (!core_id_cmp(&c->member.peer[i].granted, &c->step.id))
			c->member.peer[i].owes = true;
	}
}

void slots_on_grant(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct peer *p = &c->member.peer[m->from];
	bool wanted = slots_wanted(c, m->from);

	if (core_id_cmp(&m->id, &p->credit) <= 0)
		return;
	p->credit = m->id;
	if (wanted && !slots_wanted(c, m->from))
		slots_borrow(x, m->from);
}

void slots_on_drained(struct ctx *x, const struct core_msg *m)
{
	struct peer *p = &x->c->member.peer[m->from];

	if (core_id_cmp(&m->id, &p->granted) >= 0)
		p->owes = false;
	slots_lend(x, m->from);
}

void slots_drained(struct ctx *x)
{
	struct core *c = x->c;

	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (i != c->conf.self && c->held_nr[i])
			core_send(x, i, CORE_DRAINED, &c->step.drained);
	}
}

void slots_repeat(struct ctx *x)
{
	struct core *c = x->c;

	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		if (slots_wanted(c, i))
			core_send(x, i, CORE_DRAINED, &c->step.drained);
	}
}

void slots_link_down(struct ctx *x, uint16_t node)
{
	struct peer *p = &x->c->member.peer[node];

	/* the connection is gone and with it whatever was on its way */
	p->owes = false;
	p->granted = p->credit = (struct core_id){0};
}

void slots_link_up(struct ctx *x, uint16_t node)
{
	slots_lend(x, node);
	if (slots_wanted(x->c, node))
		core_send(x, node, CORE_DRAINED, &x->c->step.drained);
}
