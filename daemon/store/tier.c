/* SPDX-License-Identifier: Apache-2.0 */
/* What all rows of tier.h have in common: the states of a pin, and the count of pins. Whoever uses
 * the master and moments of a chunk outside of a step pins the chunk first. A row that keeps all
 * state in memory does nothing for that. Any other row brings the state, and says tier_pinned().
 * Nothing fails. A pin that its owner forgets is found when the tier is closed. */
#include "store/tier.h"

#include "base/check.h"

bool tier_pin(struct tier *t, struct tier_pin *p)
{
	CHECK(p->at == TIER_UNPINNED);
	list_init(&p->link);
	t->pins++;
	p->at = TIER_WAITS;
	if (t->row->pin == NULL || t->row->pin(t, p))
		p->at = TIER_PINNED;
	CHECK(p->at == TIER_PINNED || p->done != NULL);
	return p->at == TIER_PINNED;
}

static void nothing(struct tier_pin *p)
{
	(void)p; /* The wait ends before this turn of the loop does. */
}

bool tier_pin_now(struct tier *t, struct tier_pin *p)
{
	p->done = nothing;
	if (tier_pin(t, p))
		return true;
	tier_unpin(t, p);
	return false;
}

void tier_pinned(struct tier_pin *p)
{
	CHECK(p->at == TIER_WAITS);
	p->at = TIER_PINNED;
	p->done(p);
}

void tier_unpin(struct tier *t, struct tier_pin *p)
{
	bool waited = p->at == TIER_WAITS;

	if (p->at == TIER_UNPINNED)
		return;
	CHECK(t->pins > 0);
	t->pins--;
	/* First, because the row may grant other pins, whose owners may look at this one. */
	p->at = TIER_UNPINNED;
	if (t->row->unpin != NULL)
		t->row->unpin(t, p, waited);
}

void tier_ahead(struct tier *t)
{
	if (t->row->ahead != NULL)
		t->row->ahead(t);
}

void tier_stop(struct tier *t)
{
	if (t->row->stop != NULL)
		t->row->stop(t);
}

void tier_close(struct tier **t)
{
	if (*t == NULL)
		return;
	CHECK((*t)->pins == 0);
	(*t)->row->close(*t);
	*t = NULL;
}
