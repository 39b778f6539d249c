/* SPDX-License-Identifier: Apache-2.0 */
/* MANAGE requests. A session's node fills in the user and passes the request to the coordinator,
 * where dispatch.c has checked the write permission and a table names the action. drop.c carries
 * out a drop, and kick is one event for the core. set, pause and resume become one core_tune, which
 * the core makes durable in a view before it says CORE_ACT_TUNED. Several requests may wait for
 * that, and are answered together. A request fails if its arguments are wrong or the model is lost.
 * If a node is out of reach for heartbeat_timeout, the error names it, but the change stays wanted
 * and comes into force when the node is back. */
#include "control/manage.h"
#include "control/known.h"
#include "model/lead.h"
#include "control/control.h"

#include "control/access.h"
#include "control/unmade.h"
#include "control/attach.h"
#include "base/check.h"
#include "model/watch.h"
#include "base/clock.h"
#include "control/drop.h"
#include "model/lost.h"
#include "link/peer.h"
#include "link/call.h"
#include "link/nodes.h"
#include "link/session.h"
#include "config/value.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAITING_MAX 256 /* Changes of one model. */
#define RANKS_NAMED 3

struct waiting {          /* A change that waits for CORE_ACT_TUNED. */
	struct list link; /* In model_manage.waiting. */
	struct caller requester;
	uint64_t since_ns;
};

struct ask {
	struct server *s;
	struct model *m;
	const struct caller *from;
	const Shard__Manage *body;
	char who[ACCESS_TEXT_BYTES];
};

void manage_answer(struct server *s, const struct caller *a, const struct err *e)
{
	if (e != NULL)
		caller_refuse(s, a, e);
	else
		caller_answer(s, a, &(struct wire_head){.op = OP_MANAGE}, NULL);
}

/* --- drop --- */

static enum shard_status has_trainers(const struct ask *a, const struct core_state *c,
				      struct err *e)
{
	char ranks[256] = "";
	size_t used = 0;
	uint32_t n = 0;

	for (; c->world != NULL && n < c->world->size && n < RANKS_NAMED && used < sizeof(ranks);
	     n++)
		used += (size_t)snprintf(ranks + used, sizeof(ranks) - used,
					 "%s rank %u (pid %u, node %s)", n > 0 ? "," : ":", n,
					 c->world->rank[n].pid,
					 members_name(a->s, c->world->rank[n].node));
	return err_set(e, SHARD_BUSY,
		       "\"%s\" has %u joined trainers%s%s: let them leave, or drop it with force",
		       a->m->name, c->joined, ranks, n < c->joined && n > 0 ? " ..." : "");
}

static enum shard_status drop(const struct ask *a, struct err *e)
{
	struct core_state c;
	char why[128];

	core_state(a->m->core, &c);
	if (!a->body->force && c.joined > 0)
		return has_trainers(a, &c, e);
	if (!a->body->force && watch_saving(a->m))
		return err_set(e, SHARD_BUSY,
			       "\"%s\" is being saved: let that end (`shardctl checkpoints` lists "
			       "what is whole), or drop it with force",
			       a->m->name);
	for (uint16_t n = 0; n < a->s->nodes_nr && !a->body->force; n++) {
		const struct peer *p = a->s->peer[n];

		if (p != NULL && !p->up && !server_gone(a->s, n))
			return err_set(e, SHARD_UNREACHABLE,
				       "\"%s\" cannot be dropped on node %s, which is down: "
				       "%.200s; with force it is told when it is back",
				       a->m->name, members_name(a->s, n), p->why);
	}
	snprintf(why, sizeof(why), "\"%s\" was dropped by %s", a->m->name, a->who);
	return drop_everywhere(a->m, a->from, a->body->force, why, e);
}

/* --- changes that the core makes from the next step on --- */

/* The step up to which a resume counts is not compared, because the core sets it. */
static bool same(const struct core_tune *x, const struct core_tune *y)
{
	return x->paused == y->paused && x->has_lr == y->has_lr && x->has_clip == y->has_clip &&
	       (!x->has_lr || x->lr == y->lr) && (!x->has_clip || x->clip == y->clip) &&
	       tune_same_hyper(x, y);
}

/* The tune that is in force, with the changes that are still on their way. */
static struct core_tune wanted(const struct model *m)
{
	struct core_state c;

	if (m->control->manage.tuning)
		return m->control->manage.wanted;
	core_state(m->core, &c);
	return *c.tune;
}

/* resumes: training resumes after a record that diverged. The core is told that even if nothing
 * else changes. */
static enum shard_status tune(const struct ask *a, const struct core_tune *to, bool resumes,
			      struct err *e)
{
	struct core_tune from = wanted(a->m);
	struct waiting *w;
	uint32_t nr = 0;

	if (same(&from, to) && !resumes && !a->m->control->manage.tuning) {
		manage_answer(a->s, a->from, NULL);
		return SHARD_OK;
	}
	list_each(it, &a->m->control->manage.waiting)
		nr++;
	if (nr >= WAITING_MAX)
		return err_set(e, SHARD_BUSY, "%u changes of \"%s\" wait already: try again", nr,
			       a->m->name);
	if ((w = malloc(sizeof(*w))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	w->requester = *a->from;
	w->since_ns = clock_ns();
	list_push(&a->m->control->manage.waiting, &w->link);
	a->m->control->manage.wanted = *to;
	a->m->control->manage.tuning = true;
	model_event(a->m, &(struct core_event){.type = CORE_EV_TUNE, .tune = to, .on = resumes});
	return SHARD_OK;
}

/* A node of an older release would go on without it, should it coordinate. */
static enum shard_status may_set_hyper(const struct ask *a, struct err *e)
{
	const struct peer *older = peer_older(a->s, WIRE_HYPER);

	if (older == NULL)
		return SHARD_OK;
	return err_set(e, SHARD_UNSUPPORTED,
		       "%.60s of \"%s\": node %s (release %s) does not know that it can be set: "
		       "install %s there",
		       a->body->key, a->m->name, members_name(a->s, older->node), older->release,
		       SHARD_RELEASE);
}

/* The keys of the optimizer that can be set, as " or KEY" each. */
static void hyper_names(const struct optim_row *optim, char names[128])
{
	size_t used = 0;

	names[0] = 0;
	for (uint32_t i = 0; i < HYPER_NR; i++)
		if (TUNE_HYPERS >> i & 1 && optim->hyper[i].name != NULL)
			used += (size_t)snprintf(names + used, 128 - used, " or %s",
						 optim->hyper[i].name);
}

/* Which groups GROUP/KEY is for: the one, or all if it is a KEY alone. *key: the KEY. */
static enum shard_status set_groups(const struct ask *a, const char **key, uint32_t *first,
				    uint32_t *end, struct err *e)
{
	const Shard__Spec *spec = a->m->spec->spec;
	const char *slash = strchr(a->body->key, '/');
	size_t bytes = slash != NULL ? (size_t)(slash - a->body->key) : 0;

	*key = slash != NULL ? slash + 1 : a->body->key;
	*first = 0;
	*end = a->m->set.groups_nr;
	if (slash == NULL)
		return SHARD_OK;
	for (uint32_t g = 0; g < spec->n_groups; g++)
		if (strlen(spec->groups[g]->name) == bytes &&
		    memcmp(spec->groups[g]->name, a->body->key, bytes) == 0) {
			*first = g;
			*end = g + 1;
			return SHARD_OK;
		}
	return err_set(e, SHARD_BAD_ARG, "%.60s: \"%s\" has no group of that name", a->body->key,
		       a->m->name);
}

static enum shard_status set_hyper(const struct ask *a, struct core_tune *to, struct err *e)
{
	const struct model_settings *own = &a->m->set;
	const char *key, *value = a->body->value;
	bool given = strcmp(value, "default") != 0;
	double x = 0, h[HYPER_NR], moved;
	uint32_t g, end, i;
	char names[128];
	struct err why;

	if (set_groups(a, &key, &g, &end, e) != SHARD_OK)
		return e->status;
	i = optim_hyper_named(own->optim, key);
	hyper_names(own->optim, names);
	if (i == HYPER_NR || !(TUNE_HYPERS >> i & 1))
		return err_set(e, SHARD_BAD_ARG,
			       "%.60s cannot be set while a model with optimizer %s exists: choose "
			       "lr or clip%s",
			       a->body->key, own->optim->name, names);
	if ((i == HYPER_BETA1 || i == HYPER_MOMENTUM) && given &&
	    schedule_momentum(&own->schedule, 1, &moved))
		return err_set(e, SHARD_BAD_STATE,
			       "%s of \"%s\" comes from schedule = %s: define it without "
			       "cycle_momentum to set it",
			       key, a->m->name, schedule_row(own->schedule.id)->name);
	if (given && (settings_check(key, value, true, e) != SHARD_OK || !value_double(value, &x)))
		return e->status != SHARD_OK ? e->status
					     : err_set(e, SHARD_BAD_ARG,
						       "%s = %.60s: choose a number", key, value);
	if (given && may_set_hyper(a, e) != SHARD_OK)
		return e->status;
	for (; g < end; g++) {
		to->set[g] = given ? to->set[g] | 1u << i : to->set[g] & ~(1u << i);
		to->hyper[g][i] = given ? x : 0;
		memcpy(h, own->hyper[g], sizeof(h));
		tune_hyper(to, g, h);
		if (optim_hyper_check(own->optim, h, &why) != SHARD_OK)
			return err_set(e, SHARD_BAD_ARG, "%.60s: %.300s", a->body->key, why.text);
	}
	return SHARD_OK;
}

/* A view with a learning rate that is out of range is refused by every node that gets it. */
static enum shard_status check_lr(const struct model_settings *own, double lr, struct err *e)
{
	double h[HYPER_NR];

	memcpy(h, own->hyper[0], sizeof(h));
	h[HYPER_LR] = lr;
	return optim_hyper_check(own->optim, h, e);
}

static enum shard_status set(const struct ask *a, struct err *e)
{
	struct core_tune to = wanted(a->m);
	const char *key = a->body->key, *value = a->body->value;
	bool lr = strcmp(key, "lr") == 0, given = strcmp(value, "default") != 0;
	double x = 0;

	if (!lr && strcmp(key, "clip") != 0)
		return set_hyper(a, &to, e) == SHARD_OK ? tune(a, &to, false, e) : e->status;
	if (given && (settings_check(key, value, false, e) != SHARD_OK || !value_double(value, &x)))
		return e->status != SHARD_OK ? e->status
					     : err_set(e, SHARD_BAD_ARG,
						       "%s = %.60s: choose a number", key, value);
	if (lr && given && a->m->set.schedule.id != SCHEDULE_NONE)
		return err_set(e, SHARD_BAD_STATE,
			       "lr of \"%s\" comes from schedule = %s: define it without a "
			       "schedule to set it",
			       a->m->name, schedule_row(a->m->set.schedule.id)->name);
	if (lr && given && check_lr(&a->m->set, x, e) != SHARD_OK)
		return e->status;
	if (lr) {
		to.has_lr = given;
		to.lr = x;
	} else {
		to.has_clip = given;
		to.clip = x;
	}
	return tune(a, &to, false, e);
}

static enum shard_status pause_it(const struct ask *a, struct err *e)
{
	struct core_tune to = wanted(a->m);

	to.paused = true;
	return tune(a, &to, false, e);
}

static enum shard_status resume(const struct ask *a, struct err *e)
{
	struct core_tune to = wanted(a->m);
	struct core_state c;

	core_state(a->m->core, &c);
	to.paused = false;
	return tune(a, &to, c.disputed || (c.record != NULL && record_pauses(c.record, c.tune)), e);
}

static void kick_why(const struct ask *a, char why[256])
{
	snprintf(why, 256, "put out by %s%s%.120s", a->who, a->body->why[0] != 0 ? ": " : "",
		 a->body->why);
}

static enum shard_status kick(const struct ask *a, struct err *e)
{
	struct core_state c;
	uint32_t size;
	char why[256];

	core_state(a->m->core, &c);
	size = c.world != NULL && c.joined > 0 ? c.world->size : 0;
	if (a->body->rank >= size)
		return err_set(e, SHARD_RANGE, "\"%s\" has no rank %u: its world has %u",
			       a->m->name, a->body->rank, size);
	if (core_joined(a->m->core, c.world->rank[a->body->rank].node,
			c.world->rank[a->body->rank].pid) == 0)
		return err_set(e, SHARD_NOT_FOUND,
			       "rank %u (pid %u, node %s) of \"%s\" is out already", a->body->rank,
			       c.world->rank[a->body->rank].pid,
			       members_name(a->s, c.world->rank[a->body->rank].node), a->m->name);
	kick_why(a, why);
	model_event(a->m,
		    &(struct core_event){.type = CORE_EV_KICK, .rank = a->body->rank, .why = why});
	manage_answer(a->s, a->from, NULL);
	return SHARD_OK;
}

/* By its process a trainer can be named that is in no world yet, or whose rank changes. */
static enum shard_status kick_process(const struct ask *a, struct err *e)
{
	struct core_event out = {.type = CORE_EV_KICK, .on = true};
	uint16_t n;
	char why[256];

	if (nodes_named(a->s, a->body->node, &n, e) != SHARD_OK)
		return e->status;
	if (core_joined(a->m->core, n, a->body->pid) == 0)
		return err_set(
			e, SHARD_NOT_FOUND,
			"no process %u of node %s has joined \"%s\": `shardctl status` shows "
			"who has",
			a->body->pid, members_name(a->s, n), a->m->name);
	kick_why(a, why);
	out.trainer = (struct core_trainer){.node = n, .pid = a->body->pid};
	out.why = why;
	model_event(a->m, &out);
	manage_answer(a->s, a->from, NULL);
	return SHARD_OK;
}

/* --- requests --- */

static const struct {
	const char *name;
	enum shard_status (*run)(const struct ask *a,
				 struct err *e); /* Answers at once or later, unless it fails. */
	bool of_lost;                            /* Allowed for a model that is LOST. */
} actions[MANAGE_NR] = {
	[MANAGE_DROP] = {.name = "drop", .run = drop, .of_lost = true},
	[MANAGE_SET] = {.name = "set", .run = set},
	[MANAGE_PAUSE] = {.name = "pause", .run = pause_it},
	[MANAGE_RESUME] = {.name = "resume", .run = resume},
	[MANAGE_KICK] = {.name = "kick", .run = kick},
	[MANAGE_KICK_PROCESS] = {.name = "kick_process", .run = kick_process},
};

struct forgetting {
	struct server *s;
	struct caller requester;
};

static void forgotten(void *arg, const struct err *e)
{
	struct forgetting *f = arg;

	manage_answer(f->s, &f->requester, e);
	free(f);
}

/* A model that no node has any more, see model/lead.h. Nobody knows whose it was. e says that there
 * is no such model. */
static enum shard_status forget(struct ask *a, struct err *e)
{
	struct forgetting *f;
	struct err why;

	if (known_may_define(a->s, a->body->name, &why) == SHARD_OK)
		return e->status;
	if (why.status != SHARD_LOST || !a->body->force) {
		*e = why;
		return e->status;
	}
	if ((f = malloc(sizeof(*f))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	*f = (struct forgetting){a->s, *a->from};
	access_text(a->who, a->body->cred);
	log_line(a->s->log, LOG_LEVEL_WARN, "event=forgotten model=%s by=%s node=%s", a->body->name,
		 a->who, members_name(a->s, a->from->node));
	known_forget(a->s, a->body->name, forgotten, f);
	return SHARD_OK;
}

/* One that this node has no memory of just now. e says why. */
static enum shard_status drop_lost(struct ask *a, struct err *e)
{
	char why[128];

	if (!a->body->force) {
		char text[ERR_TEXT_BYTES];

		snprintf(text, sizeof(text), "%s", e->text);
		return err_set(e, SHARD_BUSY, "%.400s: drop it with force", text);
	}
	access_text(a->who, a->body->cred);
	snprintf(why, sizeof(why), "\"%s\" was dropped by %s", a->body->name, a->who);
	return drop_unmade(a->s, a->body->name, a->from, why, e);
}

static enum shard_status manage_here(struct server *s, const struct caller *from,
				     const Shard__Manage *body, struct err *e)
{
	struct ask a = {.s = s, .from = from, .body = body};
	enum shard_status st;

	CHECK(server_leads(s));
	e->status = SHARD_OK;
	if (body->action == 0 || body->action >= MANAGE_NR)
		return err_set(e, SHARD_UNSUPPORTED,
			       "action %u on a model: node %s is of an older release", body->action,
			       members_name(s, s->self));
	if (unmade_check(s, body->name, e) != SHARD_OK)
		return body->action == MANAGE_DROP ? drop_lost(&a, e) : e->status;
	if (drop_in_hand(s, body->name) && model_by_name(s, body->name) == NULL)
		return err_set(e, SHARD_BUSY, "\"%s\" is being dropped", body->name);
	if ((st = attach_find(&a.m, s, body->name, e)) != SHARD_OK)
		return body->action == MANAGE_DROP ? forget(&a, e) : st;
	if (!actions[body->action].of_lost && (st = lost_check(a.m, e)) != SHARD_OK)
		return st;
	access_text(a.who, body->cred);
	log_line(s->log, LOG_LEVEL_INFO,
		 "event=manage model=%s action=%s key=%s value=%s rank=%u pid=%u at=%s force=%d "
		 "by=%s node=%s",
		 a.m->name, actions[body->action].name, body->key, body->value, body->rank,
		 body->pid, body->node, body->force, a.who, members_name(s, from->node));
	return actions[body->action].run(&a, e);
}

enum shard_status manage_request(struct session *t, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	struct server *s = t->server;
	Shard__Manage body = *(const Shard__Manage *)msg;
	struct caller from = caller_session(t, h->attempt);
	uint32_t groups[SESSION_GROUPS_MAX];
	Shard__Cred cred;

	access_cred(t, &cred, groups);
	body.cred = &cred;
	if (server_leads(s))
		return manage_here(s, &from, &body, e);
	if (lead_known(s, e) != SHARD_OK)
		return e->status;
	return call_pass(t, server_coordinator(s), h, &body.base, NULL, e);
}

enum shard_status manage_node_request(struct peer *p, const struct wire_head *h,
				      const Shard__Manage *body, struct err *e)
{
	struct caller from = caller_node(p, h->attempt);

	if (!server_leads(p->server))
		return lead_refuse(p->server, e);
	return manage_here(p->server, &from, body, e);
}

/* --- answers that wait --- */

static void done(struct model *m, struct waiting *w, const struct err *e)
{
	manage_answer(m->server, &w->requester, e);
	list_remove(&w->link);
	free(w);
}

static const char *as_set(char out[32], bool has, double x)
{
	if (!has)
		return "default";
	snprintf(out, 32, "%.9g", x);
	return out;
}

static void manage_tuned(struct model *m)
{
	struct core_state c;
	char lr[32], clip[32];

	CHECK(m->control != NULL);
	core_state(m->core, &c);
	if (!same(c.tune, &m->control->manage.wanted))
		return; /* An earlier change. The last one is still on its way. */
	m->control->manage.tuning = false;
	log_line(m->server->log, LOG_LEVEL_INFO, "event=tuned model=%s paused=%d lr=%s clip=%s",
		 m->name, c.tune->paused, as_set(lr, c.tune->has_lr, c.tune->lr),
		 as_set(clip, c.tune->has_clip, c.tune->clip));
	list_each(it, &m->control->manage.waiting)
		done(m, list_of(it, struct waiting, link), NULL);
}

void manage_fail(struct model *m, const struct err *e)
{
	list_each(it, &m->control->manage.waiting)
		done(m, list_of(it, struct waiting, link), e);
}

static void manage_lost(struct model *m, bool back, const struct err *why)
{
	struct err e;

	(void)why;
	if (back)
		return; /* The core keeps the change over a rollback. */
	m->control->manage.tuning = false;
	err_set(&e, SHARD_LOST, "%s", m->lost);
	manage_fail(m, &e);
}

/* A member that is down and that a change since since_ns has waited for too long. */
static const struct peer *away(const struct model *m, uint64_t since_ns, uint64_t now_ns)
{
	const struct server *s = m->server;

	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		const struct peer *p = s->peer[n];
		uint64_t from = p == NULL || p->since_ns < since_ns ? since_ns : p->since_ns;

		if (p != NULL && !p->up && place_is_member(&m->place, n) &&
		    now_ns - from > s->conf->heartbeat_timeout_ns)
			return p;
	}
	return NULL;
}

/* SHARD_OK: the change may go on waiting. Otherwise e says why it may not. */
static enum shard_status overdue(const struct model *m, const struct waiting *w, uint64_t now_ns,
				 struct err *e)
{
	const struct server *s = m->server;
	const struct peer *p = away(m, w->since_ns, now_ns);

	if (p != NULL)
		return err_set(e, SHARD_UNREACHABLE,
			       "node %s is down: %.200s; the change of \"%s\" stays wanted and "
			       "holds when it is back",
			       members_name(s, p->node), p->why, m->name);
	if (now_ns - w->since_ns > s->conf->step_timeout_ns + 2 * s->conf->heartbeat_timeout_ns)
		return err_set(e, SHARD_TIMEOUT,
			       "the change of \"%s\" does not hold after %.1f s, but stays wanted: "
			       "step %lu waits for %s",
			       m->name, (double)(now_ns - w->since_ns) / NS_PER_SEC,
			       (unsigned long)m->attempt.id.step,
			       m->waits[0] != 0 ? m->waits : "its decision");
	return SHARD_OK;
}

void manage_beat(struct server *s, uint64_t now_ns)
{
	list_each(mit, &s->models) {
		struct model *m = list_of(mit, struct model, link);

		list_each(it, &m->control->manage.waiting) {
			struct waiting *w = list_of(it, struct waiting, link);
			struct err e;

			if (overdue(m, w, now_ns, &e) != SHARD_OK)
				done(m, w, &e);
		}
	}
}

/* Another node coordinates. It does not know of the change. */
static void manage_resigned(struct model *m)
{
	struct err e;

	m->control->manage.tuning = false;
	err_set(&e, SHARD_UNREACHABLE,
		"node %s does not coordinate any more, and the change of \"%s\" may not be in "
		"force: look, and ask again",
		members_name(m->server, m->server->self), m->name);
	manage_fail(m, &e);
}

const struct model_watch manage_watch = {
	.tuned = manage_tuned, .lost = manage_lost, .resigned = manage_resigned};
