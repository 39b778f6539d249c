/* SPDX-License-Identifier: Apache-2.0 */
/* The trainers of this node. JOIN and GONE go to the coordinator and are repeated until it echoes them; a new coordinator, or a new
 * link to it, is told everything again. A trainer that leaves stays in the attempt for which it is ready; otherwise its node drops
 * the attempt, as it does for one whose gradients are bad. A world that names a trainer which is not here (any more) is refused. */
#include "core/member.h"

#include "core/inner.h"

#include <string.h>

static struct local *local_find(struct core *c, uint64_t session)
{
	for (uint32_t i = 0; i < NR(c->member.local); i++) {
		struct local *l = &c->member.local[i];

		if (l->used && l->t.session == session)
			return l;
	}
	return NULL;
}

static void local_tell(struct ctx *x, struct local *l)
{
	struct core *c = x->c;
	struct core_id id = {.term = c->member.term};
	struct core_msg *m;

	l->told = false;
	if (c->member.timer.at == UINT64_MAX)
		timer_start(c, &c->member.timer, x->now);
	m = core_send(x, c->conf.coordinator, l->live && !l->t.leave ? CORE_JOIN : CORE_GONE, &id);
	m->trainer = l->t;
	m->why = l->why[0] ? core_text(c, "%s", l->why) : NULL;
}

static struct local *local_new(struct ctx *x, const struct core_trainer *t, bool live)
{
	struct core *c = x->c;

	for (uint32_t i = 0; i < NR(c->member.local); i++) {
		struct local *l = &c->member.local[i];

		if (l->used)
			continue;
		memset(l, 0, sizeof(*l));
		l->used = true;
		l->live = live;
		l->t = *t;
		l->t.node = c->conf.self;
		l->t.leave = false;
		return l;
	}
	return NULL; /* more trainers than ranks: the shell's limit on connections is lower */
}

void local_join(struct ctx *x, const struct core_event *e)
{
	struct local *l = local_find(x->c, e->trainer.session);

	if (!l)
		l = local_new(x, &e->trainer, true);
	if (l && l->live && !l->told)
		local_tell(x, l);
}

static bool local_not_ready(const struct core *c, uint64_t session) /* STAGING waits for it */
{
	const struct step *s = &c->step;
	int32_t rank = step_rank(&s->world, c->conf.self, session);

	return s->part == CORE_STAGING && rank >= 0 && !(s->ready[rank / 64] >> (rank % 64) & 1);
}

void local_gone(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	struct local *l = local_find(c, e->trainer.session);
	int32_t rank = step_rank(&c->step.world, c->conf.self, e->trainer.session);

	if (!l || !l->live)
		return;
	core_copy_text(l->why, sizeof(l->why), e->why ? e->why : e->trainer.leave ? "leaves" : "is gone");
	if (e->trainer.leave)
		l->t.leave = true;
	else
		l->live = l->t.leave = false;
	local_tell(x, l);
	if (local_not_ready(c, e->trainer.session))
		step_abandon(x, SHARD_WORLD_CHANGED,
			     core_text(c, "%s %s", core_rank_name(c, &c->step.world, (uint32_t)rank), l->why));
}

void local_abandon(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	int32_t rank = step_rank(&c->step.world, c->conf.self, e->session);

	if (c->step.part == CORE_STAGING && rank >= 0)
		step_abandon(x, SHARD_WORLD_CHANGED,
			     core_text(c, "%s abandoned it: %s", core_rank_name(c, &c->step.world, (uint32_t)rank),
				       e->why ? e->why : "no reason given"));
}

void local_on_join(struct ctx *x, const struct core_msg *m)
{
	struct local *l = local_find(x->c, m->trainer.session);

	if (l && l->live && !l->t.leave && m->id.term == x->c->member.term)
		l->told = true;
}

/* For a trainer that left or is lost: heard. For one that is well: the coordinator expels it, until it has heard the same. */
void local_on_gone(struct ctx *x, const struct core_msg *m)
{
	struct local *l = local_find(x->c, m->trainer.session);
	struct core_action *a;

	if (m->id.term != x->c->member.term)
		return;
	if (m->why && !core_coordinates(x->c)) /* it was put out: heard */
		core_send(x, x->c->conf.coordinator, CORE_GONE, &m->id)->trainer = m->trainer;
	if (!l)
		return;
	if (l->live) {
		a = core_act(x, l->t.leave ? CORE_ACT_LEFT : CORE_ACT_EXPEL);
		a->session = l->t.session;
		a->why = core_text(x->c, "%s", m->why ? m->why : l->why);
	}
	l->used = false;
}

void local_tell_again(struct ctx *x)
{
	for (uint32_t i = 0; i < NR(x->c->member.local); i++) {
		if (x->c->member.local[i].used)
			local_tell(x, &x->c->member.local[i]);
	}
}

void local_on_tick(struct ctx *x)
{
	struct core *c = x->c;
	bool any = false;

	if (x->now < c->member.timer.at)
		return;
	for (uint32_t i = 0; i < NR(c->member.local); i++) {
		struct local *l = &c->member.local[i];

		if (!l->used || l->told)
			continue;
		any = true;
		local_tell(x, l);
	}
	if (any)
		timer_next(c, &c->member.timer, x->now);
	else
		timer_stop(&c->member.timer);
}

static struct local *local_of_rank(struct ctx *x, const struct core_rank *r)
{
	struct core_trainer t = {.session = r->session, .pid = r->pid, .hint = -1, .node = r->node};
	struct local *l = local_find(x->c, r->session);

	if (l)
		return l;
	l = local_new(x, &t, false); /* a JOIN that arrived after the end of its trainer */
	if (l)
		core_copy_text(l->why, sizeof(l->why), "is gone");
	return l;
}

const char *local_missing(struct ctx *x, const struct core_world *w)
{
	struct core *c = x->c;
	const char *why = NULL;

	for (uint32_t i = 0; i < w->size; i++) {
		struct local *l;

		if (w->rank[i].node != c->conf.self)
			continue;
		l = local_of_rank(x, &w->rank[i]);
		if (l && l->live && !l->t.leave)
			continue;
		if (l)
			local_tell(x, l);
		why = core_text(c, "%s %s", core_rank_name(c, w, i), l ? l->why : "is unknown");
	}
	for (uint32_t i = 0; i < NR(c->member.local); i++) { /* not in this world: if an expulsion got lost, it joins anew */
		struct local *l = &c->member.local[i];

		if (l->used && l->live && step_rank(w, c->conf.self, l->t.session) < 0)
			local_tell(x, l);
	}
	return why;
}
