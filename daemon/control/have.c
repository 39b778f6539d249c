/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes tell each other of the memory of a model. dispatch.c brings MODEL of the coordinator,
 * which makes the model here, and HELD of any other node, where the coordinator is elected. Happy
 * path: the memory is made by a thread, the coordinator gets its answer, and the cores at both ends
 * hear of a link, each with the incarnation of the other's memory. A definition that cannot be
 * carried out is refused and taken back, and the coordinator asks again while it wants the model.
 */
#include "control/have.h"

#include "base/check.h"
#include "base/clock.h"
#include "control/control.h"
#include "control/define.h"
#include "control/drop.h"
#include "control/known.h"
#include "data/apply.h"
#include "link/call.h"
#include "link/peer.h"
#include "model/lead.h"
#include "model/lost.h"
#include "model/model.h"
#include "model/resume.h"
#include "model/spec.h"
#include "model/watch.h"
#include "wire/ops.h"

#include <stdio.h>

/* Where the coordinator is elected, every node tells every other one of its memory. asks: that node
 * may have told before this one had the model, and tells again. */
void have_say(struct model *m, uint16_t node, bool asks)
{
	struct wire_head h = {.op = OP_HELD, .model = m->id, .attempt = !asks};
	Shard__Memory body = SHARD__MEMORY__INIT;

	body.incarnation = m->memory.incarnation;
	if (m->memory.why != NULL)
		body.why = m->memory.why;
	peer_tell(m->server, node, &h, &body.base);
}

/* Answers MODEL. The coordinator takes the model as linked when it reads this, so it must come
 * before any frame of the model's core. */
static void say_held(struct model *m, struct peer *p, uint32_t tag)
{
	struct wire_head h = {.op = OP_MODEL, .flags = WIRE_REPLY, .model = m->id, .attempt = tag};
	Shard__Memory body = SHARD__MEMORY__INIT;

	body.incarnation = m->memory.incarnation;
	if (m->memory.why != NULL)
		body.why = m->memory.why;
	peer_tell(m->server, p->node, &h, &body.base);
}

static void held_here(struct model *m, struct peer *p, uint32_t tag, uint64_t incarnation)
{
	resume_from(m, p);
	say_held(m, p, tag);
	if (!lead_on(m->server) && m->memory.there[p->node] != incarnation)
		model_link_up(m, p->node, incarnation, NULL);
	server_wake(m->server, 0); /* this one stays: a definition may wait to hear that */
}

static void refuse_model(struct peer *p, const char *name, const struct err *e)
{
	struct server *s = p->server;

	log_limited(s->log, &p->bucket, clock_ns(), LOG_LEVEL_ERROR,
		    "event=model_refused model=%s node=%s why=%s", name, members_name(s, p->node),
		    e->text);
}

/* The model that MODEL asked for is made, or cannot be. The link that MODEL came by is still up,
 * because define_node_down() would have ended the making. */
static void made_for(struct model *m, const struct err *e)
{
	struct model_maker *k = &m->control->maker;
	struct peer *p = m->server->peer[k->who.node];

	if (m->control->abandoned.status != SHARD_OK)
		return;
	CHECK(p != NULL && m->defining);
	if (e != NULL) {
		refuse_model(p, m->name, e);
		define_abandon(m, e); /* This answers MODEL. */
		return;
	}
	define_finish(m);
	held_here(m, p, k->who.tag, k->incarnation);
	k->who = (struct caller){.node = m->server->self};
}

static enum shard_status make_for(struct peer *p, const struct wire_head *h,
				  const Shard__Model *body, struct err *e)
{
	Shard__Model own = *body, *copy;
	enum shard_status st;
	struct model *m;

	/* These are no part of the definition. */
	own.incarnation = 0;
	own.lost = (char *)(uintptr_t)protobuf_c_empty_string;
	if ((copy = spec_copy(&own.base)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a definition");
	if ((st = model_make_later(&m, p->server, copy, NULL, made_for, e)) != SHARD_OK)
		return st;
	m->defining = true;
	lost_told(m, body->lost);
	m->control->maker = (struct model_maker){caller_node(p, h->attempt), body->incarnation};
	return SHARD_OK;
}

enum shard_status have_model(struct peer *p, const struct wire_head *h, const Shard__Model *body,
			     struct err *e)
{
	struct server *s = p->server;
	struct model *m = model_find(s, body->model);
	enum shard_status st;

	if (p->node != server_coordinator(s) && lead_on(s)) /* The sender may know better. */
		return err_passes(e, err_set(e, SHARD_BUSY,
					     "node %s has not heard yet that node %s coordinates",
					     members_name(s, s->self), members_name(s, p->node)));
	if (p->node != server_coordinator(s) || body->spec == NULL)
		return err_set(e, SHARD_PROTOCOL, "a model from node %s, which does not coordinate",
			       members_name(s, p->node));
	if (m == NULL && drop_in_hand_id(s, body->model))
		return err_set(e, SHARD_BUSY, "model %u is still being dropped on node %s",
			       body->model, members_name(s, s->self));
	if (m == NULL && model_making(s, body->model) != NULL)
		return err_set(e, SHARD_BUSY, "model %u is being made on node %s already",
			       body->model, members_name(s, s->self));
	if (body->incarnation == 0)
		return err_set(e, SHARD_PROTOCOL,
			       "a model without the incarnation of its memory on node %s: run the "
			       "same release on "
			       "every node",
			       members_name(s, p->node));
	if (m == NULL && s->stop.on) /* Nothing would end the model again. */
		st = err_set(e, SHARD_CLOSED, "node %s stops", members_name(s, s->self));
	else if (m == NULL)
		st = make_for(p, h, body, e);
	else if ((st = spec_same(m, body, e)) == SHARD_OK)
		st = resume_check(m, p, e);
	if (st != SHARD_OK)
		refuse_model(p, body->spec->name, e);
	else if (m != NULL) {
		lost_told(m, body->lost);
		held_here(m, p, h->attempt, body->incarnation);
	}
	return st;
}

/* A node of an older release takes it for an error and ends the link. That is meant: its cores know
 * of no other way to hear that memory is gone. */
void have_gone(struct model *m, const char *why)
{
	struct wire_head h = {.op = OP_HELD, .model = m->id};
	Shard__Memory body = SHARD__MEMORY__INIT;
	char text[ERR_TEXT_BYTES];

	snprintf(text, sizeof(text), "%s", why);
	body.why = text;
	for (uint16_t n = 0; n < m->server->nodes_nr; n++)
		if (m->server->peer[n] != NULL && m->server->peer[n]->up)
			peer_tell(m->server, n, &h, &body.base);
}

/* What a link that falls does to all models is done to this one. The link itself stays, so that
 * what is still on its way for the model is dropped there, or judged by its attempt. */
static void gone_there(struct peer *p, struct model *m, const char *why)
{
	struct server *s = p->server;
	struct err gone;

	if (m == NULL || m->control->abandoned.status != SHARD_OK)
		return;
	log_line(s->log, LOG_LEVEL_WARN, "event=copy_gone model=%s node=%s why=%s", m->name,
		 members_name(s, p->node), why);
	err_set(&gone, SHARD_UNREACHABLE, "node %s has lost its copy of \"%s\": %.300s",
		members_name(s, p->node), m->name, why[0] != 0 ? why : "it does not say why");
	if (m->core == NULL || m->defining) {
		m->memory.there[p->node] = 0;
		/* It is not known what the node has done for the definition. */
		if (m->control->maker.who.node == p->node || !m->control->known)
			define_abandon(m, &gone);
		return;
	}
	call_model_gone(s, p->node, m->id, &gone);
	apply_node_gone(m, p->node);
	apply_node_back(m, p->node);
	define_unlink(m, p->node, &gone, gone.text);
	server_wake(s, 0); /* The coordinator asks the node to make it again. */
}

enum shard_status have_held(struct peer *p, const struct wire_head *h, const Shard__Memory *body,
			    struct err *e)
{
	struct server *s = p->server;
	struct model *m = model_find(s, h->model);

	if (body->incarnation == 0) {
		gone_there(p, m != NULL ? m : model_making(s, h->model), body->why);
		return SHARD_OK;
	}
	if (!lead_on(s) && define_told_by_model(s, p->node))
		return err_set(e, SHARD_PROTOCOL,
			       "node %s tells of its memory of model %u: no coordinator is elected "
			       "here",
			       members_name(s, p->node), h->model);
	if (!lead_on(s)) { /* It is linked as long as the nodes are, but for a loss. */
		if (m != NULL && !m->defining && m->memory.there[p->node] == 0)
			model_link_up(m, p->node, p->incarnation, body->why);
		return SHARD_OK;
	}
	if (m == NULL && (m = model_making(s, h->model)) == NULL) {
		(void)known_elsewhere(s, h->model);
		return SHARD_OK;
	}
	if (m->defining) {
		m->memory.there[p->node] = body->incarnation;
		return SHARD_OK;
	}
	if (m->memory.there[p->node] != body->incarnation)
		model_link_up(m, p->node, body->incarnation, body->why);
	if (h->attempt == 0)
		have_say(m, p->node, false);
	server_wake(s, 0); /* Restores and definitions may wait for it. */
	if (server_leads(s) && (!watch_restoring(m) || m->rolled_back))
		define_answer(m);
	return SHARD_OK;
}
