/* SPDX-License-Identifier: Apache-2.0 */
/* The trainers of this node, and what the coordinator knows of them. JOIN and GONE go to the
 * coordinator and are repeated until the coordinator echoes them. A new coordinator, or a new link
 * to it, is told of all trainers again. step.c calls local_missing() before it enters an attempt,
 * and local_gone() when a trainer leaves or is lost. A world that names a trainer which is not here
 * any more is refused. When the table is full and holds trainers that are gone, the one that joined
 * first among them is forgotten. */
#include "core/local.h"

#include "core/inner.h"

#include <string.h>

static struct local_trainer *local_find(struct core *c, uint64_t session)
{
	for (uint32_t i = 0; i < NR(c->local.trainer); i++) {
		struct local_trainer *l = &c->local.trainer[i];

		if (l->used && l->t.session == session)
			return l;
	}
	return NULL;
}

static void local_tell(struct ctx *x, struct local_trainer *l)
{
	struct core *c = x->c;
	struct core_id id = {.term = c->member.term};
	struct core_msg *m;

	l->told = false;
	if (c->local.timer.at == UINT64_MAX)
		timer_start(c, &c->local.timer, x->now);
	m = core_send(x, core_coordinator(c), l->live && !l->t.leave ? CORE_JOIN : CORE_GONE, &id);
	m->trainer = l->t;
	m->why = l->why[0] ? core_text(c, "%s", l->why) : NULL;
}

/* Returns a free place, or else that of the oldest session that is gone. It is safe to forget that
 * trainer. Its GONE was sent after its JOIN. If both are lost, the link is lost too, and with it
 * what the coordinator knew of this node. A world that still names the trainer is refused by
 * local_missing(). */
static struct local_trainer *local_place(struct core *c)
{
	struct local_trainer *dead = NULL;

	for (uint32_t i = 0; i < NR(c->local.trainer); i++) {
		struct local_trainer *l = &c->local.trainer[i];

		if (!l->used)
			return l;
		if (!l->live && (!dead || l->t.session < dead->t.session))
			dead = l;
	}
	return dead;
}

static struct local_trainer *local_new(struct ctx *x, const struct core_trainer *t, bool live)
{
	struct local_trainer *l = local_place(x->c);

	/* There are more trainers than ranks. The shell never has so many arenas. */
	if (!l)
		return NULL;
	memset(l, 0, sizeof(*l));
	l->used = true;
	l->live = live;
	l->t = *t;
	l->t.node = x->c->conf.self;
	l->t.leave = false;
	return l;
}

void local_join(struct ctx *x, const struct core_event *e)
{
	struct local_trainer *l = local_find(x->c, e->trainer.session);

	if (!l)
		l = local_new(x, &e->trainer, true);
	if (l && l->live && !l->told)
		local_tell(x, l);
}

const char *local_gone(struct ctx *x, const struct core_event *e)
{
	struct local_trainer *l = local_find(x->c, e->trainer.session);

	if (!l || !l->live)
		return NULL;
	core_copy_text(l->why, sizeof(l->why),
		       e->why             ? e->why
		       : e->trainer.leave ? CORE_LEFT
					  : "is gone");
	if (e->trainer.leave)
		l->t.leave = true;
	else
		l->live = l->t.leave = false;
	local_tell(x, l);
	return l->why;
}

void local_on_join(struct ctx *x, const struct core_msg *m)
{
	struct local_trainer *l = local_find(x->c, m->trainer.session);

	if (l && l->live && !l->t.leave && m->id.term == x->c->member.term)
		l->told = true;
}

/* If the trainer left or is lost, the coordinator has confirmed that. If it is well, the
 * coordinator expels it, and repeats that until this node confirms it. */
void local_on_gone(struct ctx *x, const struct core_msg *m)
{
	struct local_trainer *l = local_find(x->c, m->trainer.session);
	struct core_action *a;

	if (m->id.term != x->c->member.term)
		return;
	/* The coordinator put the trainer out, and this confirms it. */
	if (m->why && !core_coordinates(x->c))
		core_send(x, core_coordinator(x->c), CORE_GONE, &m->id)->trainer = m->trainer;
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
	for (uint32_t i = 0; i < NR(x->c->local.trainer); i++) {
		if (x->c->local.trainer[i].used)
			local_tell(x, &x->c->local.trainer[i]);
	}
}

void local_on_tick(struct ctx *x)
{
	struct core *c = x->c;
	bool any = false;

	if (x->now < c->local.timer.at)
		return;
	for (uint32_t i = 0; i < NR(c->local.trainer); i++) {
		struct local_trainer *l = &c->local.trainer[i];

		if (!l->used || l->told)
			continue;
		any = true;
		local_tell(x, l);
	}
	if (any)
		timer_next(c, &c->local.timer, x->now);
	else
		timer_stop(&c->local.timer);
}

static struct local_trainer *local_of_rank(struct ctx *x, const struct core_rank *r)
{
	struct core_trainer t = {.session = r->session, .pid = r->pid, .hint = -1, .node = r->node};
	struct local_trainer *l = local_find(x->c, r->session);

	if (l)
		return l;
	/* The JOIN of this trainer arrived after its end. */
	l = local_new(x, &t, false);
	if (l)
		core_copy_text(l->why, sizeof(l->why), "is gone");
	return l;
}

const char *local_missing(struct ctx *x, const struct core_world *w)
{
	struct core *c = x->c;
	const char *why = NULL;

	for (uint32_t i = 0; i < w->size; i++) {
		struct local_trainer *l;

		if (w->rank[i].node != c->conf.self)
			continue;
		l = local_of_rank(x, &w->rank[i]);
		if (l && l->live && !l->t.leave)
			continue;
		if (l)
			local_tell(x, l);
		why = core_text(c, "%s %s", core_rank_name(c, w, i), l ? l->why : "is unknown");
	}
	for (uint32_t i = 0; i < NR(c->local.trainer); i++) {
		/* The trainer is not in this world. If an expulsion was lost, it joins anew. */
		struct local_trainer *l = &c->local.trainer[i];

		if (l->used && l->live && core_rank_of(w, c->conf.self, l->t.session) < 0)
			local_tell(x, l);
	}
	return why;
}
