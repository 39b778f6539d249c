/* SPDX-License-Identifier: Apache-2.0 */
/* Definition of a model across nodes. A trainer's DEFINE reaches the coordinator (relay.c); equal layout and settings attach, else the
 * first difference is named. A new one is made here and, by MODEL, on every node; each reserves all of its memory or refuses
 * with figures, and one refusal takes it back everywhere. A DEFINE that comes while a node is still being dialled waits for it, at
 * most heartbeat_timeout. A node that restarted hears MODEL again before anything else. seal.c does the rest. */
#include "define.h"

#include "access.h"
#include "apply.h"
#include "base/check.h"
#include "base/clock.h"
#include "blobs.h"
#include "drop.h"
#include "model.h"
#include "peer.h"
#include "resume.h"
#include "seal.h"
#include "session.h"
#include "spec.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct waiting { /* a DEFINE that waits for a node's link */
	struct list link;
	struct model_asker asker;
	uint64_t since_ns;
	Shard__Define *define; /* owned */
};

static void answer_refuse(struct server *s, const struct model_asker *a, const struct err *e)
{
	struct session *t = a->node == s->self ? session_find(s, a->session) : NULL;

	if (a->node != s->self)
		peer_refuse(s->peer[a->node], a->tag, e);
	else if (t != NULL)
		session_refuse(t, a->tag, e);
}

void define_say(const struct model *m, Shard__Defined *body)
{
	body->model = m->id;
	body->sealed = m->sealed;
	body->step = m->step;
	body->chunk_elems = m->layout->chunk_elems;
	body->optimizer = (char *)(uintptr_t)m->set.optim->name;
	body->settings = m->settings_text;
	body->timeout_ms = m->set.timeout_ns / NS_PER_MS;
	body->max_staleness = m->set.max_staleness;
}

static void answer(struct model *m, const struct model_asker *a)
{
	struct server *s = m->server;
	struct wire_head h = {.op = OP_DEFINE, .flags = WIRE_REPLY, .attempt = a->tag, .model = m->id, .generation = m->generation};
	struct session *t = a->node == s->self ? session_find(s, a->session) : NULL;
	Shard__Defined body = SHARD__DEFINED__INIT;

	if (a->node == s->self && t == NULL)
		return;
	define_say(m, &body);
	body.created = !m->sealed && m->writer_session == 0 && !ckpt_restoring(m) && !m->ckpt.loaded;
	if (body.created) {
		m->writer_node = a->node;
		m->writer_session = a->session;
	}
	if (t != NULL)
		session_reply(t, OP_DEFINE, a->tag, m, &body.base);
	else
		(void)peer_send(s, a->node, &h, &body.base, NULL);
}

/* --- a new model --- */

static void links_up(struct model *m)
{
	struct server *s = m->server;

	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (s->peer[n] == NULL || !s->peer[n]->up)
			continue;
		apply_node_back(m, n);
		model_event(m, &(struct core_event){.type = CORE_EV_LINK_UP, .node = n, .incarnation = s->peer[n]->incarnation});
	}
}

static void finish(struct model *m)
{
	const uint64_t *b = m->need.bytes;

	m->defining = false;
	log_line(m->server->log, LOG_LEVEL_INFO,
		 "event=model model=%s id=%u elements=%lu chunks=%u held=%u bytes=%lu state=%lu image=%lu arenas=%lu slots=%lu "
		 "sums=%lu "
		 "fixed=%lu pages=%s",
		 m->name, m->id, (unsigned long)m->layout->numel, m->layout->chunks_nr, store_owned(m->store),
		 (unsigned long)m->need.total, (unsigned long)b[BUDGET_STATE], (unsigned long)b[BUDGET_IMAGE],
		 (unsigned long)b[BUDGET_ARENAS], (unsigned long)b[BUDGET_SLOTS], (unsigned long)b[BUDGET_SUMS],
		 (unsigned long)b[BUDGET_FIXED], shm_pages_name(store_pages(m->store)));
	links_up(m);
	if (!ckpt_defined(m))
		define_answer(m);
}

void define_answer(struct model *m)
{
	list_each(it, &m->askers) {
		struct model_asker *a = list_of(it, struct model_asker, link);

		answer(m, a);
		list_remove(&a->link);
		free(a);
	}
}

static void refuse_askers(struct model *m, const struct err *e)
{
	list_each(it, &m->askers) {
		struct model_asker *a = list_of(it, struct model_asker, link);

		answer_refuse(m->server, a, e);
		list_remove(&a->link);
		free(a);
	}
}

static void abandon(struct model *m, const struct err *e)
{
	struct wire_head h = {.op = OP_MODEL_DROP, .model = m->id};
	struct server *s = m->server;

	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (n != s->self)
			(void)peer_send(s, n, &h, NULL, NULL);
	refuse_askers(m, e);
	log_line(s->log, LOG_LEVEL_WARN, "event=model_refused model=%s why=%s", m->name, e->text);
	ckpt_refused(m, e);
	model_free(&m);
}

static enum shard_status ask(struct model *m, uint16_t node, struct err *e)
{
	struct wire_head h = {.op = OP_MODEL, .model = m->id, .generation = m->generation};
	struct relay *r;
	enum shard_status st = relay_new(&r, m->server, OP_MODEL, node, m->id, e);

	if (st != SHARD_OK)
		return st;
	h.attempt = r->tag;
	m->spec->generation = m->generation;
	if ((st = peer_send(m->server, node, &h, &m->spec->base, e)) != SHARD_OK)
		relay_drop(m->server, r);
	return st;
}

static enum shard_status add_asker(struct model *m, const struct model_asker *from, struct err *e)
{
	struct model_asker *a = malloc(sizeof(*a));

	if (a == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	*a = *from;
	list_push(&m->askers, &a->link);
	return SHARD_OK;
}

static enum shard_status make_everywhere(struct server *s, const struct model_asker *a, struct ckpt_op *op, const Shard__Define *d,
					 const struct model_settings *set, struct err *e)
{
	Shard__Model *ms;
	struct model *m;
	enum shard_status st = spec_model(&ms, s, d->spec, d->cred, set, e);

	if (st == SHARD_OK)
		st = model_make(&m, s, ms, NULL, NULL, e);
	if (st != SHARD_OK) {
		log_line(s->log, LOG_LEVEL_WARN, "event=model_refused model=%s why=%s", d->spec->name, e->text);
		return st;
	}
	s->next_model = m->id;
	m->defining = true;
	if (op != NULL)
		ckpt_made(op, m);
	else if ((st = add_asker(m, a, e)) != SHARD_OK) {
		model_free(&m);
		return st;
	}
	for (uint16_t n = 0; n < s->nodes_nr && st == SHARD_OK; n++) {
		if (n == s->self)
			continue;
		m->nodes_asked |= 1ull << n;
		st = ask(m, n, e);
	}
	if (st != SHARD_OK)
		abandon(m, e); /* it has answered */
	else if (m->nodes_asked == 0)
		finish(m);
	return SHARD_OK;
}

enum shard_status define_restored(struct server *s, struct ckpt_op *op, const Shard__Define *d, const struct model_settings *set,
				  struct err *e)
{
	return make_everywhere(s, NULL, op, d, set, e);
}

/* Its weights cannot come: nobody gets it. */
void define_abandon(struct model *m, const struct err *e)
{
	struct model_asker nobody = {.node = m->server->self};
	struct server *s = m->server;
	struct err why;

	refuse_askers(m, e);
	ckpt_refused(m, e);
	if (drop_everywhere(m, &nobody, true, e->text, &why) != SHARD_OK)
		log_line(s->log, LOG_LEVEL_ERROR, "event=drop_failed model=%s why=%s", m->name, why.text);
}

static const struct peer *first_down(const struct server *s)
{
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL && !s->peer[n]->up)
			return s->peer[n];
	return NULL;
}

static enum shard_status hold(struct server *s, const struct model_asker *a, const Shard__Define *d, struct err *e)
{
	struct waiting *w;

	list_each(it, &s->defines) {
		const struct model_asker *other = &list_of(it, struct waiting, link)->asker;

		if (other->node == a->node && other->session == a->session)
			return err_set(e, SHARD_BUSY, "a definition of this connection waits for node %s already",
				       server_node_name(s, first_down(s)->node));
	}
	w = calloc(1, sizeof(*w));
	if (w != NULL && (w->define = spec_copy(&d->base)) != NULL) {
		w->asker = *a;
		w->since_ns = clock_ns();
		list_push(&s->defines, &w->link);
		return SHARD_OK;
	}
	free(w);
	return err_set(e, SHARD_SYSTEM, "no memory to hold a definition");
}

static void drop_held(struct waiting *w)
{
	list_remove(&w->link);
	shard__define__free_unpacked(w->define, NULL);
	free(w);
}

static enum shard_status down(const struct server *s, const char *name, struct err *e)
{
	const struct peer *p = first_down(s);

	return err_set(e, SHARD_UNREACHABLE, "\"%s\" needs every node, and node %s (%s) is down: %s", name,
		       server_node_name(s, p->node), s->conf->node_list[p->node].address.text, p->why);
}

static enum shard_status define_here(struct server *s, const struct model_asker *a, const Shard__Define *d, bool may_wait,
				     struct err *e)
{
	const Shard__Spec *spec = d->spec;
	struct model *m = spec != NULL ? model_by_name(s, spec->name) : NULL;
	struct model_settings set;
	enum shard_status st;

	if (spec == NULL)
		return err_set(e, SHARD_PROTOCOL, "a definition without a spec");
	if ((st = spec_settings(&set, s, spec, "shard_define", e)) != SHARD_OK)
		return st;
	if (set.local_world > GATHER_LOCAL_MAX || set.max_world > CORE_RANKS_MAX)
		return err_set(e, SHARD_BAD_ARG, "max_world %u, local_world %u: at most %d and %d", set.max_world, set.local_world,
			       CORE_RANKS_MAX, GATHER_LOCAL_MAX);
	if (m != NULL) {
		if ((st = access_check(m, d->cred, false, e)) != SHARD_OK || (st = spec_compare(m, spec, &set, e)) != SHARD_OK)
			return st;
		if (m->defining || (ckpt_restoring(m) && !m->ckpt.rolled_back)) /* soon it is known what is in it */
			return add_asker(m, a, e);
		answer(m, a);
		return SHARD_OK;
	}
	if (drop_in_hand(s, spec->name))
		return err_set(e, SHARD_BUSY, "\"%s\" is being dropped: try again", spec->name);
	if (first_down(s) == NULL)
		return make_everywhere(s, a, NULL, d, &set, e);
	if (may_wait)
		return hold(s, a, d, e);
	return down(s, spec->name, e);
}

/* To the coordinator, once its link is up. */
static enum shard_status pass_on(struct server *s, const struct model_asker *a, const Shard__Define *d, bool may_wait,
				 struct err *e)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = a->tag};
	struct session *t = session_find(s, a->session);

	if (t == NULL)
		return SHARD_OK;
	if (d->spec == NULL)
		return err_set(e, SHARD_PROTOCOL, "a definition without a spec");
	if (!s->peer[s->coordinator]->up)
		return may_wait ? hold(s, a, d, e) : down(s, d->spec->name, e);
	return relay_request(t, s->coordinator, &h, &d->base, e);
}

enum shard_status define_request(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	struct server *s = t->server;
	struct model_asker a = {.node = s->self, .session = t->id, .tag = h->attempt, .pid = t->pid};
	Shard__Define body = *(const Shard__Define *)msg;
	uint32_t groups[ACCESS_GROUPS_MAX];
	Shard__Cred cred;

	t->defined = true;
	access_cred(t, &cred, groups);
	body.cred = &cred;
	body.session = t->id;
	body.pid = t->pid;
	return s->self == s->coordinator ? define_here(s, &a, &body, true, e) : pass_on(s, &a, &body, true, e);
}

enum shard_status define_node_request(struct peer *p, const struct wire_head *h, const Shard__Define *body, struct err *e)
{
	struct model_asker a = {.node = p->node, .session = body->session, .tag = h->attempt, .pid = body->pid};

	if (p->server->self != p->server->coordinator)
		return err_set(e, SHARD_BAD_STATE, "node %s does not coordinate", server_node_name(p->server, p->server->self));
	return define_here(p->server, &a, body, true, e);
}

void define_detached(struct server *s, uint16_t node, uint64_t session)
{
	struct wire_head h = {.op = OP_DETACHED};
	Shard__Trainer body = SHARD__TRAINER__INIT;

	list_each(it, &s->defines) {
		struct waiting *w = list_of(it, struct waiting, link);

		if (w->asker.node == node && w->asker.session == session)
			drop_held(w);
	}
	if (s->self != s->coordinator) {
		body.session = session;
		(void)peer_send(s, s->coordinator, &h, &body.base, NULL); /* a link that falls tells the coordinator as much */
		return;
	}
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		if (m->writer_node == node && m->writer_session == session)
			m->writer_session = 0;
	}
}

/* --- on the other nodes --- */

enum shard_status define_model(struct peer *p, const struct wire_head *h, const Shard__Model *body, struct err *e)
{
	struct server *s = p->server;
	struct wire_head reply = {.op = OP_MODEL, .flags = WIRE_REPLY, .model = h->model, .attempt = h->attempt};
	struct model *m = model_find(s, body->model);
	enum shard_status st = SHARD_OK;
	Shard__Model *copy;

	if (p->node != s->coordinator || body->spec == NULL)
		return err_set(e, SHARD_PROTOCOL, "a model from node %s, which does not coordinate", server_node_name(s, p->node));
	if (m == NULL) {
		copy = spec_copy(&body->base);
		st = copy != NULL ? model_make(&m, s, copy, NULL, NULL, e) : err_set(e, SHARD_SYSTEM, "no memory for a definition");
		if (st == SHARD_OK)
			finish(m);
	} else if (strcmp(m->name, body->spec->name) != 0) {
		st = err_set(e, SHARD_EXISTS,
			     "model %u is \"%s\" on node %s and \"%s\" on the coordinator: stop one of them and clear its state",
			     m->id, m->name, server_node_name(s, s->self), body->spec->name);
	}
	if (st != SHARD_OK)
		return st;
	resume_from(m, p);
	(void)peer_send(s, p->node, &reply, NULL, NULL);
	return SHARD_OK;
}

void define_answered(struct server *s, const struct relay *r, const struct wire_head *h, const void *body, const struct err *e)
{
	struct model *m = model_find(s, r->model);

	if (r->op == OP_MODEL_DROP)
		drop_answered(s, r, e);
	if (m == NULL)
		return;
	if (r->op == OP_SAVE_PART || r->op == OP_LOAD_PART) {
		ckpt_answered(m, r, h, body, e);
		return;
	}
	if (r->op == OP_WRITTEN) {
		seal_answered(m, r->node, h, body, e);
		return;
	}
	if (r->op == OP_BLOB) {
		blobs_answered(m, r, h, body, e);
		return;
	}
	if (!m->defining) { /* a node that was away */
		if (e != NULL)
			log_line(s->log, LOG_LEVEL_ERROR, "event=model_refused model=%s node=%s why=%s", m->name,
				 server_node_name(s, r->node), e->text);
		return;
	}
	if (e != NULL) {
		abandon(m, e);
		return;
	}
	m->nodes_asked &= ~(1ull << r->node);
	if (m->nodes_asked == 0)
		finish(m);
}

/* --- links --- */

static bool may_go(const struct server *s)
{
	return s->self == s->coordinator ? first_down(s) == NULL : s->peer[s->coordinator]->up;
}

static void retry_held(struct server *s, uint64_t now_ns)
{
	list_each(it, &s->defines) {
		struct waiting *w = list_of(it, struct waiting, link);
		struct err e;
		enum shard_status st;

		if (!may_go(s) && now_ns - w->since_ns < s->conf->heartbeat_timeout_ns)
			continue;
		list_remove(&w->link);
		st = s->self == s->coordinator ? define_here(s, &w->asker, w->define, false, &e)
					       : pass_on(s, &w->asker, w->define, false, &e);
		if (st != SHARD_OK)
			answer_refuse(s, &w->asker, &e);
		list_init(&w->link);
		drop_held(w);
	}
}

void define_beat(struct server *s, uint64_t now_ns)
{
	retry_held(s, now_ns);
}

void define_node_up(struct server *s, uint16_t node)
{
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);
		struct err e;

		if (m->defining)
			continue;
		if (s->self == s->coordinator && ask(m, node, &e) != SHARD_OK)
			log_line(s->log, LOG_LEVEL_ERROR, "event=model_not_sent model=%s why=%s", m->name, e.text);
		apply_node_back(m, node);
		model_event(m,
			    &(struct core_event){.type = CORE_EV_LINK_UP, .node = node, .incarnation = s->peer[node]->incarnation});
	}
	if (node == s->coordinator)
		drop_compare(s);
	server_wake(s, 0); /* restores that wait */
	retry_held(s, clock_ns());
}

void define_node_down(struct server *s, uint16_t node, const struct err *e)
{
	ckpt_node_gone(s, node);
	relay_node_gone(s, node, e); /* fails definitions that wait for it */
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		if (m->writer_node == node && node != s->self)
			m->writer_session = 0;
		apply_node_gone(m, node);
		if (!m->defining)
			model_link_down(m, s->peer[node], e->text);
	}
}

void define_free(struct server *s)
{
	list_each(it, &s->defines)
		drop_held(list_of(it, struct waiting, link));
}
