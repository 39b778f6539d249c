/* SPDX-License-Identifier: Apache-2.0 */
/* Brings the nodes of a model whose disks have each step to one step, after one or all of them have
 * lost their power. back.h says why there always is one. recover.c calls it when every member has
 * answered, core.c for messages and links. Happy path: all have the same record, or are PREPARED
 * for it, and nothing happens. If some are a step ahead, they are told to go back, and asked again
 * when they have started again. It fails if records differ by more, or are of other weights, as
 * when somebody has put an older copy of a disk back. The model is LOST then, because no step is on
 * all disks. Only a static coordinator with one copy of each chunk comes here. */
#include "core/back.h"

#include "core/inner.h"

#include <stdio.h>
#include <string.h>

/* --- the coordinator --- */

void back_answered(struct core *c, const struct core_msg *m)
{
	struct back *b = &c->coord.back;
	const struct core_answer *a = m->answer;

	if (!a->has_record || a->generation != c->coord.view.generation || !coord_lists(c, m->from))
		return;
	b->has |= 1ull << m->from;
	if (m->differs)
		b->recalled |= 1ull << m->from;
	b->record[m->from] = a->record.id;
	if (!c->coord.held_nr[m->from] ||
	    (b->any && core_id_cmp(&a->record.id, &b->lowest.id) >= 0))
		return;
	b->any = true;
	b->lowest = a->record;
}

static void back_forget(struct core *c, uint16_t node)
{
	struct coord_node *n = &c->coord.node[node];

	n->answered = n->is_prepared = false;
	c->coord.back.has &= ~(1ull << node);
	c->coord.back.recalled &= ~(1ull << node);
}

void back_link_down(struct core *c, uint16_t node)
{
	if (c->conf.durable && c->coord.state == COORD_RECOVER)
		back_forget(c, node);
}

static bool back_has(const struct core *c, uint16_t node)
{
	return c->coord.back.has >> node & 1;
}

/* Can the member go on from that record? */
static bool back_follows(const struct core *c, uint16_t node, const struct record *r)
{
	const struct coord_node *n = &c->coord.node[node];

	if (!back_has(c, node))
		return n->generation == c->coord.view.generation && r->outcome == RECORD_SEAL;
	return !core_id_cmp(&c->coord.back.record[node], &r->id) ||
	       (n->is_prepared && !core_id_cmp(&n->prepared, &r->id));
}

/* Is there no way from its record to the oldest one, or from that to what was decided? Returns what
 * is wrong with it. */
static const char *back_wrong(struct core *c, uint16_t node)
{
	const struct core_id *lo = &c->coord.back.lowest.id, *is = &c->coord.back.record[node];

	if (!c->coord.held_nr[node])
		return NULL;
	if (!back_has(c, node))
		return "has no weights of this generation";
	if (core_id_cmp(is, lo) == 0 && c->coord.last.id.step > lo->step + 1)
		return core_text(c, "has step %llu", (unsigned long long)is->step);
	if (core_id_cmp(is, lo) > 0 && is->step == lo->step)
		return core_text(c, "has another step %llu", (unsigned long long)is->step);
	return NULL;
}

static bool back_lost(struct core *c, const char *remedy)
{
	struct coord *co = &c->coord;

	view_each(i, coord_members(c)) {
		const char *why = back_wrong(c, i);

		if (!why)
			continue;
		core_copy_text(co->lost, sizeof(co->lost),
			       core_text(c,
					 "no step is on the disks of all nodes: node %s %s, and "
					 "step %llu was decided. Was a disk put back? %s",
					 core_node_name(c, i), why,
					 (unsigned long long)co->last.id.step, remedy));
		return true;
	}
	return false;
}

static const char *back_why(struct core *c, const struct core_id *id)
{
	return core_text(c, "step %llu is the last one that the disks of all nodes have",
			 (unsigned long long)id->step);
}

/* What this node has in memory is not taken over by its next start. */
static void back_go(struct ctx *x, const struct core_id *id, const char *why)
{
	struct core_action *a;

	if (x->c->backs)
		return;
	x->c->backs = true;
	a = core_act(x, CORE_ACT_BACK);
	a->id = *id;
	a->why = why;
}

/* Has it that record, and nothing of the step after it? */
static bool back_at(const struct core *c, uint16_t node, const struct core_id *to)
{
	const struct coord_node *n = &c->coord.node[node];

	return core_id_cmp(&c->coord.back.record[node], to) <= 0 &&
	       !(n->is_prepared && n->prepared.step == to->step + 1);
}

/* All others answer again, from their next start. */
static bool back_order(struct ctx *x, const struct core_id *to)
{
	struct core *c = x->c;
	bool any = false;

	view_each(i, coord_members(c)) {
		if (!back_has(c, i) || back_at(c, i, to))
			continue;
		any = true;
		if (i == c->conf.self) {
			back_go(x, to, back_why(c, to));
			continue;
		}
		core_send(x, i, CORE_BACK, to)->why = back_why(c, to);
		back_forget(c, i);
	}
	return any;
}

enum back_is back_settle(struct ctx *x, const char *remedy)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	bool all = true;

	if (!c->conf.durable || !co->view.sealed)
		return BACK_NONE;
	view_each(i, coord_members(c))
		all = all && (!co->held_nr[i] || back_follows(c, i, &co->last));
	if (all && !co->back.recalled)
		return BACK_NONE;
	if (!all && back_lost(c, remedy))
		return BACK_LOST;
	if (back_order(x, all ? &co->last.id : &co->back.lowest.id))
		return BACK_WAITS;
	if (!all) /* It was decided, and nobody has it. */
		co->last = co->back.lowest;
	return BACK_NONE;
}

/* Can the disk of a member have that? One that was away may have an older generation, and it has to
 * be asked, or it never obeys. It may have one step more than what was decided, which it gave up
 * and has not written over. */
static bool back_can_be(const struct core *c, const struct core_id *id)
{
	const struct core_view *v = &c->coord.view;

	if (id->generation != v->generation)
		return id->generation < v->generation;
	return v->sealed && id->step <= c->coord.last.id.step + 1;
}

void back_on_told(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;

	if (!c->conf.durable || c->coord.state == COORD_RECOVER || c->backs ||
	    !coord_lists(c, m->from) || !back_can_be(c, &m->id))
		return;
	c->backs = true;
	core_act(x, CORE_ACT_AGAIN)->why =
		core_text(c, "node %s has come back from its disk, with step %llu",
			  core_node_name(c, m->from), (unsigned long long)m->id.step);
}

void back_waits(const struct core *c, char *text, size_t bytes)
{
	snprintf(text, bytes,
		 "node %s, whose daemon has to start again to come to the step of all disks: if it "
		 "does not end by itself, see event=odd_stays in its log",
		 core_node_name(c, c->conf.self));
}

/* --- a member --- */

bool back_tells(const struct core *c)
{
	return c->member.recalled && !c->member.asked && !core_coordinates(c) &&
	       core_linked(c, core_coordinator(c));
}

void back_tell(struct ctx *x)
{
	struct core *c = x->c;

	(void)core_send(x, core_coordinator(c), CORE_BACK, &c->step.record.id);
}

void back_linked(struct ctx *x)
{
	if (!back_tells(x->c))
		return;
	back_tell(x);
	timer_start(x->c, &x->c->member.timer, x->now);
}

void back_on_order(struct ctx *x, const struct core_msg *m)
{
	const struct core *c = x->c;
	const struct step *s = &c->step;
	int ahead = s->has_record ? core_id_cmp(&s->record.id, &m->id) : -1;

	if (!c->conf.durable || ahead < 0 || m->id.generation != s->record.id.generation ||
	    (ahead == 0 && s->part != CORE_PREPARED))
		return;
	back_go(x, &m->id, core_text(x->c, "%s", m->why ? m->why : "no reason given"));
}
