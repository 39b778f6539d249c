/* SPDX-License-Identifier: Apache-2.0 */
/* What the coordinator's shell orders: hold still for a checkpoint, take another tune, put a trainer out, come back from a checkpoint.
 * Happy paths: HOLD -> the own participant votes for nothing, so no verdict can fall anywhere -> HELD with the last record -> off, and
 * what was complete meanwhile is voted for. TUNE -> no further BEGIN; every node done -> a view with it (recover.c) -> TUNED.
 * Ways to fail: HOLD while PREPARED waits for the verdict or the end of that attempt; a generation that ends takes hold and
 * rollback with it. Members that are no coordinator ignore all of it, but STOP: who has voted stays PREPARED, who has not drops. */
#include "core/coord.h"

#include "core/inner.h"

static bool hold_can(const struct core *c) /* nothing that was voted for here is undecided */
{
	const struct coord *co = &c->coord;

	return co->hold && !co->held && co->state == COORD_OPEN && co->view.sealed && c->step.part != CORE_PREPARED;
}

bool orders_due(const struct core *c)
{
	return hold_can(c);
}

void orders_settle(struct ctx *x)
{
	struct coord *co = &x->c->coord;

	if (!hold_can(x->c))
		return;
	CHECK(co->has_last);
	co->held = true;
	co->held_ns = x->now;
	core_act(x, CORE_ACT_HELD)->record = &co->last;
}

void orders_forget(struct core *c)
{
	c->coord.held = c->coord.rollback = false;
}

void orders_lost(struct core *c)
{
	c->coord.hold = false;
}

void orders_on_hold(struct ctx *x, const struct core_event *e)
{
	struct coord *co = &x->c->coord;

	if (co->state == COORD_OFF || co->hold == e->on)
		return;
	co->hold = e->on;
	if (e->on)
		return;
	if (co->held && co->undecided) /* its deadline did not run meanwhile */
		co->begun_ns += x->now - (co->begun_ns > co->held_ns ? co->begun_ns : co->held_ns);
	co->held = false;
	step_vote(x);
}

void orders_on_tune(struct ctx *x, const struct core_event *e)
{
	struct coord *co = &x->c->coord;

	CHECK(e->tune);
	if (co->state == COORD_OFF)
		return;
	co->tune = *e->tune;
	co->tune_due = true;
}

void orders_on_kick(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	const char *why = core_text(c, "%s", e->why ? e->why : "an operator put it out");

	if (co->state == COORD_OFF || e->rank >= co->world.size || !world_expel(x, &co->world, e->rank, why))
		return;
	coord_abort(x, SHARD_WORLD_CHANGED, core_text(c, "%s is out: %s", core_rank_name(c, &co->world, e->rank), why));
}

void orders_on_checkpoint(struct ctx *x, const struct core_event *e)
{
	struct coord *co = &x->c->coord;

	if (co->state == COORD_OFF)
		return;
	co->checkpoint = e->on;
	if (!e->on)
		core_copy_text(co->order_why, sizeof(co->order_why), e->why ? e->why : "no checkpoint could be read");
}

void orders_on_rollback(struct ctx *x, const struct core_event *e)
{
	struct coord *co = &x->c->coord;

	if (co->state == COORD_OFF || !co->checkpoint || !co->view.sealed)
		return;
	co->rollback = true;
	core_copy_text(co->order_why, sizeof(co->order_why), e->why ? e->why : "an operator rolled the model back");
}

/* The coordinator's own vote can be taken back: it alone decides, and it has not. */
void orders_on_stop(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	const char *why = core_text(c, "%s", e->why ? e->why : "the daemon stops");

	c->stopping = true;
	if (c->coord.undecided)
		coord_abort(x, SHARD_WORLD_CHANGED, why);
	else if (c->step.part == CORE_STAGING)
		step_abandon(x, SHARD_WORLD_CHANGED, why);
}

bool orders_unheard(const struct core *c)
{
	const struct coord *co = &c->coord;

	for (uint16_t i = 0; i < c->conf.nodes_nr && co->state == COORD_OPEN && co->has_last; i++) {
		if (!co->node[i].done && core_linked(c, i))
			return true;
	}
	return false;
}
