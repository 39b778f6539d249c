/* SPDX-License-Identifier: Apache-2.0 */
/* The definition of a model on all nodes. dispatch.c brings DEFINE, which the trainer's node passes
 * to the coordinator (link/call.c). If a model of that name exists, the trainer attaches to it, or
 * the error names the first difference. Happy path of a new model: the coordinator makes it and
 * sends MODEL to every node at once. Each node reserves all the memory, has a thread make it, and
 * answers. A node that has no room refuses with figures, unless models that end will give back
 * enough. One refusal, or a link that falls meanwhile, drops the model everywhere. A DEFINE waits
 * for at most heartbeat_timeout while a node is still being dialled: on the trainer's node, because
 * weights are written over the links of that node, and on the coordinator. It waits in the same way
 * while a model of its name is being dropped. A node that restarted gets MODEL again before
 * anything else of the model. A coordinator that starts without its memory makes the models that
 * the value of the membership source names, of their definitions in its state folder. seal.c seals
 * a model. */
#include "control/define.h"
#include "control/have.h"
#include "model/placing.h"
#include "model/writer.h"
#include "control/control.h"
#include "control/define_pass.h"
#include "control/define_wait.h"

#include "control/access.h"
#include "control/unmade.h"
#include "data/apply.h"
#include "base/check.h"
#include "base/clock.h"
#include "control/held.h"
#include "data/blobs.h"
#include "control/drop.h"
#include "control/known.h"
#include "model/lost.h"
#include "model/model.h"
#include "model/definitions.h"
#include "model/lead.h"
#include "link/peer.h"
#include "model/resume.h"
#include "model/tables.h"
#include "control/seal.h"
#include "link/session.h"
#include "model/watch.h"
#include "model/spec.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TELL_AGAIN_NS (50 * NS_PER_MS)

struct asking { /* A DEFINE of a model that is being made or restored. In model_control.requesters.
		 */
	struct list link;
	struct caller who;
	struct held held;
	bool may_write; /* Its user may change the model. */
};

/* The first to come who may write it gets the right to: who may only read would keep it from
 * everybody. */
static void answer(struct model *m, const struct caller *a, bool may_write)
{
	struct server *s = m->server;
	struct wire_head h = {
		.op = OP_DEFINE, .model = m->id, .generation = m->generation, .step = m->step};
	Shard__Defined body = SHARD__DEFINED__INIT;
	struct core_state core;
	struct err e;

	if (!caller_waits(s, a))
		return;
	if ((!server_leads(s) && lead_refuse(s, &e) != SHARD_OK) || lost_check(m, &e) != SHARD_OK) {
		caller_refuse(s, a, &e);
		return;
	}
	spec_say(m, &body);
	core_state(m->core, &core);
	body.created = may_write && !m->sealed && !core.seals && m->control->sealer == NULL &&
		       (writer_free(m) || writer_is(m, a)) && !watch_restoring(m) &&
		       !watch_found_weights(m) && !m->memory.unled && a->session != 0;
	if (body.created) {
		WATCH_TELL(m->server, anew, m);
		writer_grant(m, a, &h);
	}
	caller_answer(s, a, &h, &body.base);
}

/* --- a new model --- */

static void links_up(struct model *m)
{
	struct server *s = m->server;

	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (s->peer[n] == NULL || !s->peer[n]->up)
			continue;
		apply_node_back(m, n);
		/* An older release takes it for an error where nobody is elected. */
		if (lead_on(s) || (m->memory.why != NULL && !define_told_by_model(s, n) &&
				   s->peer[n]->wire_minor >= WIRE_HELD))
			have_say(m, n, true); /* Before any frame of the core. */
		if (!lead_on(s) && !define_told_by_model(s, n))
			model_link_up(m, n, s->peer[n]->incarnation, NULL);
		else if (m->memory.there[n] != 0) /* The node has answered MODEL, or told. */
			model_link_up(m, n, m->memory.there[n], NULL);
	}
}

static void ask_again(struct model *m);

void define_finish(struct model *m)
{
	const uint64_t *b = m->need.bytes;

	m->defining = false;
	log_line(m->server->log, LOG_LEVEL_INFO,
		 "event=model model=%s id=%u elements=%lu chunks=%u held=%u bytes=%lu state=%lu "
		 "image=%lu arenas=%lu slots=%lu "
		 "sums=%lu codes=%lu "
		 "fixed=%lu pages=%s",
		 m->name, m->id, (unsigned long)m->layout->numel, m->layout->chunks_nr,
		 store_owned(m->store), (unsigned long)m->need.total,
		 (unsigned long)b[BUDGET_STATE], (unsigned long)b[BUDGET_IMAGE],
		 (unsigned long)b[BUDGET_ARENAS], (unsigned long)b[BUDGET_SLOTS],
		 (unsigned long)b[BUDGET_SUMS], (unsigned long)b[BUDGET_CODES],
		 (unsigned long)b[BUDGET_FIXED], shm_pages_name(store_pages(m->store)));
	links_up(m);
	if (server_leads(m->server)) /* Their links may have fallen. */
		ask_again(m);
	lead_model(m);
	server_deadline(m->server); /* A node without others gets no event of a link, which would
				       begin its first view. */
	if (!watch_defined(m))
		define_answer(m);
}

static void asking_free(struct server *s, struct asking *a)
{
	held_give(s, &a->held);
	list_remove(&a->link);
	free(a);
}

/* A node that has restarted may still be making its memory. Its trainers are answered when that is
 * done. */
static bool made_there(const struct model *m, uint16_t node)
{
	return node == m->server->self || m->memory.there[node] != 0;
}

void define_answer(struct model *m)
{
	list_each(it, &m->control->requesters) {
		struct asking *a = list_of(it, struct asking, link);

		if (!made_there(m, a->who.node))
			continue;
		answer(m, &a->who, a->may_write);
		asking_free(m->server, a);
	}
}

/* node UINT16_MAX: those of all nodes. */
static void refuse_requesters(struct model *m, uint16_t node, const struct err *e)
{
	list_each(it, &m->control->requesters) {
		struct asking *a = list_of(it, struct asking, link);

		if (node != UINT16_MAX && a->who.node != node)
			continue;

		caller_refuse(m->server, &a->who, e);
		asking_free(m->server, a);
	}
}

static struct caller nobody(const struct server *s)
{
	return (struct caller){.node = s->self};
}

void define_over(struct model *m, const struct err *e)
{
	refuse_requesters(m, UINT16_MAX, e);
	caller_refuse(m->server, &m->control->maker.who, e);
	m->control->maker.who = nobody(m->server);
}

/* The senders of DEFINE are refused at once. The memory is freed when the model's threads and the
 * other nodes are done. */
static void take_back(struct model *m)
{
	const struct caller who = nobody(m->server);
	const struct err e = m->control->abandoned; /* A copy: m is freed. */
	struct server *s = m->server;
	enum shard_status st;
	struct err why;

	CHECK(e.status != SHARD_OK);
	define_over(m, &e);
	WATCH_TELL(s, refused, m, &e);
	if (m->control->known)
		st = drop_alone(m, e.text, &why);
	else if (server_leads(s))
		st = drop_everywhere(m, &who, true, e.text, &why);
	else
		st = drop_here(m, e.text, &why);
	if (st != SHARD_OK) /* The beat tries again. */
		log_line(s->log, LOG_LEVEL_ERROR, "event=drop_failed model=%s why=%s", m->name,
			 why.text);
}

void define_abandon(struct model *m, const struct err *e)
{
	CHECK(e->status != SHARD_OK && !m->dropping);
	m->control->abandoned = *e;
	take_back(m);
}

static void abandon(struct model *m, const struct err *e)
{
	log_line(m->server->log, LOG_LEVEL_WARN, "event=model_refused model=%s why=%s", m->name,
		 e->text);
	define_abandon(m, e);
}

static const struct round_ops model_round; /* Defined below, after what it needs. */

static enum shard_status ask(struct model *m, uint16_t node, struct err *e)
{
	struct wire_head h = {.op = OP_MODEL, .model = m->id, .generation = m->generation};
	struct arena *a = &m->server->scratch.tx;
	Shard__Model body = *m->spec;
	Shard__Tables tables;
	enum shard_status st;

	m->spec->generation = body.generation = m->generation;
	/* These are no part of the definition. */
	body.incarnation = m->memory.incarnation;
	body.tables = tables_for_model(m, a, &tables);
	body.lost = (char *)(uintptr_t)lost_why(m); /* Packing only reads. */
	m->control->told.ops = &model_round;
	st = round_ask(&m->control->told, m->server, node, &h, &body.base, NULL, e);
	arena_reset(a);
	return st;
}

/* The coordinator sends MODEL to each node that it reaches until the node has answered. Many large
 * definitions may not fit into the queue of a link that has just come up. Half of the queue is left
 * for frames that are not repeated. */
static void ask_again(struct model *m)
{
	struct server *s = m->server;
	struct err e;

	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		struct peer *p = s->peer[n];

		if (p == NULL || !p->up || m->memory.there[n] != 0 || m->control->told.out >> n & 1)
			continue;
		if (!stream_roomy(conn_stream(peer_control(p))) || ask(m, n, &e) != SHARD_OK)
			server_wake(s, clock_ns() + TELL_AGAIN_NS);
	}
}

/* One that only attaches does not hold the weights. */
static bool may_write(const struct model *m, const Shard__Define *d)
{
	struct err e;

	return !d->attach_only && access_check(m, d->cred, true, &e) == SHARD_OK;
}

static enum shard_status add_requester(struct model *m, const struct caller *from,
				       const Shard__Define *d, struct err *e)
{
	struct asking *a = malloc(sizeof(*a));
	enum shard_status st;

	if (a == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	st = held_take(m->server, &a->held, from->node, d->cred, sizeof(*a), e);
	if (st != SHARD_OK) {
		free(a);
		return st;
	}
	a->who = *from;
	a->may_write = may_write(m, d);
	list_push(&m->control->requesters, &a->link);
	return SHARD_OK;
}

/* A node has answered that it has made the model, or this node has. If another node leads by now,
 * the model is in no view, and whoever defines it asks there. */
static void made_on(struct model *m)
{
	struct err e;

	if (m->control->told.out != 0 || m->control->later != 0)
		return;
	if (server_leads(m->server))
		define_finish(m);
	else if (lead_refuse(m->server, &e) != SHARD_OK)
		abandon(m, &e);
}

/* Right after an election some nodes have not heard of it yet, and refuse MODEL. They are asked
 * again for heartbeat_timeout. */
static bool ask_later(struct model *m, uint16_t node, const struct err *e)
{
	struct server *s = m->server;
	uint64_t now_ns = clock_ns();

	if (e->status != SHARD_BUSY || e->sys != EAGAIN || !server_leads(s) ||
	    now_ns - m->control->since_ns > s->conf->heartbeat_timeout_ns)
		return false;
	m->control->later |= 1ull << node;
	server_wake(s, now_ns + TELL_AGAIN_NS);
	return true;
}

static void ask_now(struct model *m)
{
	uint64_t nodes = m->control->later;
	enum shard_status st = SHARD_OK;
	struct err e;

	m->control->later = 0;
	if (nodes != 0 && !server_leads(m->server))
		st = lead_refuse(m->server, &e);
	for (uint16_t n = 0; n < m->server->nodes_nr && st == SHARD_OK; n++)
		if (nodes >> n & 1)
			st = ask(m, n, &e);
	if (st != SHARD_OK)
		abandon(m, &e);
}

static void made_here(struct model *m, const struct err *e)
{
	CHECK(m->defining && m->control->maker.who.node == m->server->self);
	if (m->control->abandoned.status != SHARD_OK)
		return;
	if (e != NULL)
		abandon(m, e);
	else if (round_took(&m->control->told, m->server->self))
		made_on(m);
}

static enum shard_status make_everywhere(struct server *s, const struct caller *a,
					 define_made_fn *made, void *arg, const Shard__Define *d,
					 const struct model_settings *set, struct err *e)
{
	/* Asked once: a node may be given up at any moment. */
	uint64_t members = placing_members(s);
	struct layout *layout = NULL;
	Shard__Model *ms;
	struct model *m;
	enum shard_status st;

	CHECK(model_by_name(s, d->spec->name) == NULL &&
	      model_making_name(s, d->spec->name) == NULL);
	if (s->stop.on) /* Nothing would end the model again. */
		return err_set(e, SHARD_CLOSED, "node %s stops", members_name(s, s->self));
	st = spec_replicas(s, d->spec->name, set, members, e);
	if (st == SHARD_OK)
		st = spec_may_travel(s, d->spec, e);
	if (st == SHARD_OK)
		st = spec_may_fit(s, d->spec, set, members, e);
	if (st == SHARD_OK)
		st = spec_model(&ms, &layout, s, d->spec, d->cred, set, members, e);
	if (st == SHARD_OK)
		st = model_make_later(&m, s, ms, &layout, made_here, e);
	layout_free(&layout); /* Of a model that there was no memory for. */
	if (st != SHARD_OK) {
		log_line(s->log, LOG_LEVEL_WARN, "event=model_refused model=%s why=%s",
			 d->spec->name, e->text);
		return st;
	}
	s->next_model = m->id;
	/* A restore brings it back as another one. */
	known_forget(s, m->name, NULL, NULL);
	m->defining = true;
	m->control->maker.who = nobody(s);
	m->control->since_ns = clock_ns();
	round_own(&m->control->told, s);
	if (made != NULL)
		made(arg, m);
	else if ((st = add_requester(m, a, d, e)) != SHARD_OK) {
		abandon(m, e);
		return st;
	}
	for (uint16_t n = 0; n < s->nodes_nr && st == SHARD_OK; n++)
		if (!(m->spec->members >> n & 1))
			log_line(s->log, LOG_LEVEL_WARN,
				 "event=begins_without model=%s node=%s why=%s", m->name,
				 members_name(s, n), s->peer[n]->why);
		else if (n != s->self)
			st = ask(m, n, e);
	if (st != SHARD_OK)
		abandon(m, e); /* This has refused the DEFINE. */
	return SHARD_OK;
}

enum shard_status define_restored(struct server *s, define_made_fn *made, void *arg,
				  const Shard__Define *d, const struct model_settings *set,
				  struct err *e)
{
	CHECK(made);
	return make_everywhere(s, NULL, made, arg, d, set, e);
}

/* --- a model that all nodes have lost with their memory --- */

/* It does not keep this node from leading the other models. */
static void not_made(struct server *s, uint32_t id, const char *name, const struct err *e)
{
	definitions_failed(s, id, e);
	log_line(s->log, LOG_LEVEL_ERROR, "event=model_not_made model=%s id=%u why=%s", name, id,
		 e->text);
}

static void known_made(struct model *m, const struct err *e)
{
	if (m->control->abandoned.status != SHARD_OK)
		return;
	if (e != NULL) {
		not_made(m->server, m->id, m->name, e);
		define_abandon(m, e);
		return;
	}
	m->control->known = false;
	define_finish(m);
}

/* Its core begins with the view that the value has, and finds that the weights are gone. */
static void make_of_definition(struct server *s, const Shard__Kept *k, Shard__Model *spec)
{
	struct model *m;
	struct err e;

	if (model_make_later(&m, s, spec, NULL, known_made, &e) != SHARD_OK) {
		not_made(s, k->model, k->name, &e);
		return;
	}
	m->defining = m->control->known = true;
	m->control->maker.who = nobody(s);
	log_line(s->log, LOG_LEVEL_WARN, "event=model_known model=%s id=%u generation=%u why=%s",
		 k->name, k->model, m->generation,
		 "no node that has said so has its memory: it is made of its definition");
}

/* On the coordinator: makes the models that the value names and this node has only the definition
 * of, and forgets the definitions that the value does not name. */
static void make_known(struct server *s, uint64_t now_ns)
{
	const Shard__Kept *k;
	Shard__Model *spec;
	size_t at = 0;

	if (!server_leads(s) || s->stop.on)
		return;
	while ((k = lead_lacks(s, &at)) != NULL) {
		if (drop_in_hand_id(s, k->model) || drop_in_hand(s, k->name))
			continue;
		definitions_take(s, k, now_ns, &spec);
		if (spec != NULL)
			make_of_definition(s, k, spec);
	}
	for (uint32_t id = 0; (id = known_next(s, id)) != 0;)
		if (lead_forgot(s, id) && !drop_in_hand_id(s, id))
			definitions_forget(s, id);
}

static enum shard_status define_here(struct server *s, const struct caller *a,
				     const Shard__Define *d, bool may_wait, struct err *e)
{
	const Shard__Spec *spec = d->spec;
	struct model *m = spec != NULL ? model_by_name(s, spec->name) : NULL;
	struct model_settings set;
	const struct peer *p;
	enum shard_status st;

	if (spec == NULL)
		return err_set(e, SHARD_PROTOCOL, "a definition without a spec");
	if (m == NULL)
		m = model_making_name(s, spec->name);
	if ((st = spec_settings(&set, s, spec, "shard_define", e)) != SHARD_OK)
		return st;
	if (m != NULL) {
		if ((st = access_check(m, d->cred, false, e)) != SHARD_OK ||
		    (st = spec_compare(m, spec, &set, e)) != SHARD_OK)
			return st;
		/* It is soon known whether the model has weights. */
		if (m->defining || !made_there(m, a->node) ||
		    (watch_restoring(m) && !m->rolled_back))
			return add_requester(m, a, d, e);
		answer(m, a, may_write(m, d));
		return SHARD_OK;
	}
	if ((st = unmade_check(s, spec->name, e)) != SHARD_OK)
		return st;
	if (d->attach_only)
		return err_set(e, SHARD_NOT_FOUND, "nobody has defined \"%s\" yet", spec->name);
	if (!layout_model_name_new(spec->name))
		return err_set(e, SHARD_BAD_ARG, "model name \"%s\": choose " LAYOUT_MODEL_NAME_NEW,
			       spec->name);
	if (drop_in_hand(s, spec->name) && may_wait)
		return define_wait(s, a, d, e);
	if (drop_in_hand(s, spec->name))
		return err_set(
			e, SHARD_BUSY,
			"\"%s\" is still being dropped after %.1f s: its memory is not given "
			"back on every node yet: define it again in a moment",
			spec->name, (double)s->conf->heartbeat_timeout_ns / NS_PER_SEC);
	if ((st = watch_may_define(s, d, &set, e)) != SHARD_OK ||
	    (st = known_may_define(s, spec->name, e)) != SHARD_OK)
		return st;
	if ((p = placing_lacks(s)) == NULL)
		return make_everywhere(s, a, NULL, NULL, d, &set, e);
	if (may_wait)
		return define_wait(s, a, d, e);
	return placing_refuse(p, spec->name, e);
}

enum shard_status define_request(struct session *t, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	struct server *s = t->server;
	struct caller a = caller_session(t, h->attempt);
	Shard__Define body = *(const Shard__Define *)msg;
	uint32_t groups[SESSION_GROUPS_MAX];
	Shard__Cred cred;

	t->uses = true;
	access_cred(t, &cred, groups);
	body.cred = &cred;
	body.session = t->id;
	body.pid = t->pid;
	return server_leads(s) ? define_here(s, &a, &body, true, e)
			       : define_pass(s, &a, &body, true, e);
}

enum shard_status define_node_request(struct peer *p, const struct wire_head *h,
				      const Shard__Define *body, struct err *e)
{
	struct caller a = caller_node(p, h->attempt);

	a.session = body->session;
	a.pid = body->pid;
	if (!server_leads(p->server))
		return lead_refuse(p->server, e);
	return define_here(p->server, &a, body, true, e);
}

/* Forgets the DEFINEs of a session that has ended, or (session 0) of all sessions of a node whose
 * link fell. That node refused their requests when the link fell, and cannot tell when they end. So
 * they may not get the grant to write the weights. */
static void forget_askers(struct model *m, uint16_t node, uint64_t session)
{
	list_each(it, &m->control->requesters) {
		struct asking *a = list_of(it, struct asking, link);

		if (a->who.node == node && (session == 0 || a->who.session == session))
			asking_free(m->server, a);
	}
}

void define_detached(struct server *s, uint16_t node, uint64_t session)
{
	struct wire_head h = {.op = OP_DETACHED};
	Shard__Trainer body = SHARD__TRAINER__INIT;

	define_wait_forget(s, node, session);
	list_each(it, &s->models)
		if (!server_leads(s))
			(void)writer_gone(list_of(it, struct model, link), node, session);
	if (!server_leads(s)) {
		body.session = session;
		peer_tell(s, server_coordinator(s), &h,
			  &body.base); /* If the link falls, the coordinator
				   forgets the session anyway. */
		return;
	}
	list_each(it, &s->makings)
		forget_askers(list_of(it, struct model, link), node, session);
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		forget_askers(m, node, session);
		if (writer_gone(m, node, session))
			seal_writer_gone(m);
	}
}

/* --- the answers --- */

/* A node holds the model. The core compares the incarnation of its memory with the view. */
static enum shard_status held_there(struct model *m, uint16_t node, const struct wire_head *h,
				    const void *body, struct err *e)
{
	struct server *s = m->server;
	const ProtobufCMessage *msg = NULL;
	const Shard__Memory *is;
	enum shard_status st = control_unpack(&msg, &shard__memory__descriptor, body, h->body_bytes,
					      &s->scratch.rx, e);

	is = (const Shard__Memory *)msg;

	if (st == SHARD_OK && is->incarnation == 0)
		st = err_set(e, SHARD_PROTOCOL,
			     "node %s does not say which memory it has: run the same release on "
			     "every node",
			     members_name(s, node));
	if (st == SHARD_OK && m->defining)
		m->memory.there[node] = is->incarnation;
	else if (st == SHARD_OK && !lead_on(s))
		model_link_up(m, node, is->incarnation, is->why);
	arena_reset(&s->scratch.rx);
	return st;
}

static void model_answered(struct round *told, struct server *s, const struct call *r,
			   const struct wire_head *h, const void *body, const struct err *e)
{
	struct model *m = list_of(told, struct model_control, told)->model;
	struct err why;

	if (m->dropping || m->control->abandoned.status != SHARD_OK)
		return;
	if (e == NULL && held_there(m, r->node, h, body, &why) != SHARD_OK)
		e = &why;
	if (!m->defining && e == NULL) {
		server_wake(s, 0); /* Restores may wait for the node's memory. */
		if (!watch_restoring(m) || m->rolled_back)
			define_answer(m);
		return;
	}
	if (!m->defining && e->status == SHARD_BUSY && e->sys == EAGAIN) {
		server_wake(s, clock_ns() + TELL_AGAIN_NS); /* It has not heard of the election. */
		return;
	}
	if (!m->defining) { /* A node that was away. define_beat() asks it again. */
		refuse_requesters(m, r->node, e);
		log_limited(s->log, &s->peer[r->node]->bucket, clock_ns(), LOG_LEVEL_ERROR,
			    "event=model_refused model=%s node=%s why=%s", m->name,
			    members_name(s, r->node), e->text);
		return;
	}
	if (e != NULL && ask_later(m, r->node, e))
		return;
	if (e != NULL) {
		abandon(m, e);
		return;
	}
	made_on(m);
}

static const struct round_ops model_round = {.answered = model_answered};

/* --- links --- */

static bool may_go(struct server *s, const char *name)
{
	return server_leads(s) ? placing_lacks(s) == NULL && !drop_in_hand(s, name)
			       : define_may_pass(s, name);
}

static enum shard_status again(struct server *s, const struct caller *a, const Shard__Define *d,
			       struct err *e)
{
	return server_leads(s) ? define_here(s, a, d, false, e) : define_pass(s, a, d, false, e);
}

/* Large memory takes a while to make. This tells the coordinator that it goes on. */
static void say_making(struct model *m)
{
	struct wire_head h = {.op = OP_PROGRESS, .model = m->id};
	Shard__Progress body = SHARD__PROGRESS__INIT;

	caller_progress(m->server, &m->control->maker.who, &h, &body.base);
}

/* The same for the nodes whose trainers wait for the model. */
static void say_waiting(struct model *m)
{
	struct wire_head h = {.op = OP_PROGRESS, .model = m->id};
	Shard__Progress body = SHARD__PROGRESS__INIT;

	list_each(it, &m->control->requesters) {
		const struct caller *a = &list_of(it, struct asking, link)->who;

		if (a->node != m->server->self)
			caller_progress(m->server, a, &h, &body.base);
	}
}

void define_beat(struct server *s, uint64_t now_ns)
{
	define_wait_retry(s, now_ns, may_go, again);
	model_make_beat(s, now_ns);
	make_known(s, now_ns);
	list_each(it, &s->makings) {
		struct model *m = list_of(it, struct model, link);

		say_waiting(m);
		if (m->control->abandoned.status != SHARD_OK)
			take_back(m);
		else
			say_making(m);
		if (m->control->abandoned.status == SHARD_OK)
			ask_now(m);
	}
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		say_waiting(m);
		if (m->control->abandoned.status != SHARD_OK)
			take_back(m);
		else if (m->defining)
			ask_now(m);
		else if (server_leads(s))
			ask_again(m);
	}
}

void define_node_up(struct server *s, uint16_t node)
{
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		if (m->defining)
			continue;
		apply_node_back(m, node);
		if (lead_on(s))
			have_say(m, node, false); /* The other one tells, too. */
		if (server_leads(s)) {
			ask_again(m);
		} else if (lead_on(s)) {
			continue;
		} else if (!define_told_by_model(s, node)) {
			model_link_up(m, node, s->peer[node]->incarnation, NULL);
		}
	}
	if (node == server_coordinator(s))
		drop_compare(s);
	server_wake(s, 0); /* Restores may wait for the node. */
	define_wait_retry(s, clock_ns(), may_go, again);
}

void define_unlink(struct model *m, uint16_t node, const struct err *gone, const char *why)
{
	struct server *s = m->server;

	if (writer_gone(m, node, 0))
		seal_writer_gone(m);
	forget_askers(m, node, 0);
	if (node == server_coordinator(s))
		seal_coordinator_gone(m, gone);
	m->memory.there[node] = 0;
	if (!m->defining)
		model_link_down(m, s->peer[node], why);
}

void define_node_down(struct server *s, uint16_t node, const struct err *e)
{
	struct err gone; /* For trainers, whose own connections stay open. */

	err_set(&gone, SHARD_UNREACHABLE, "the link to node %s fell: %.300s", members_name(s, node),
		e->text);
	define_wait_forget(s, node, 0);
	list_each(it, &s->makings) {
		struct model *m = list_of(it, struct model, link);

		forget_askers(m, node, 0);
		m->memory.there[node] = 0;
		if (m->control->maker.who.node == node) /* It asks again at link-up. */
			define_abandon(m, &gone);
	}
	list_each(it, &s->models)
		define_unlink(list_of(it, struct model, link), node, &gone, e->text);
}

void define_coordinator(struct server *s)
{
	make_known(s, clock_ns());
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		if (server_leads(s) && !m->defining)
			ask_again(m);
	}
	if (!server_leads(s) && s->peer[server_coordinator(s)]->up)
		drop_compare(s);
	define_wait_retry(s, clock_ns(), may_go, again);
}
