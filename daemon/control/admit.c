/* SPDX-License-Identifier: Apache-2.0 */
/* Adds nodes to the list of all nodes. Happy path: a node that joins asks any node, which passes
 * that on to the coordinator (NODE_ADD) and answers "ask again". The coordinator makes the longer
 * list durable: in the register where it is elected, else in its own state folder. From then on
 * link/nodes.c has every node take it in. What goes wrong meanwhile is told the node when it asks
 * again. Nothing is added while a node that is linked is of a release that cannot take nodes in. */
#include "control/admit.h"

#include "base/check.h"
#include "control/moving.h"
#include "link/call.h"
#include "link/caller.h"
#include "link/intake.h"
#include "link/nodes.h"
#include "model/lead.h"
#include "model/model.h"
#include "model/rooms.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

/* There is one of each kind at a time. It lives until its answer. */
struct admit {
	struct server *server;
	struct config_node node;
	bool for_node; /* Another node waits for the answer. */
	struct caller from;
};

/* Why the last node that asked here was not added. It is told once. */
static void refused(struct server *s, const struct config_node *n, const struct err *e)
{
	s->admits.refused = *e;
	snprintf(s->admits.name, sizeof(s->admits.name), "%s", n->name);
}

/* --- on the coordinator --- */

static void added(struct server *s, void *arg, const struct err *e)
{
	struct admit *a = arg;
	struct wire_head h = {.op = OP_NODE_ADD};

	s->admits.adding = false;
	if (e != NULL)
		log_line(s->log, LOG_LEVEL_WARN, "event=node_refused node=%s why=%s", a->node.name,
			 e->text);
	if (a->for_node && e != NULL)
		caller_refuse(s, &a->from, e);
	else if (a->for_node)
		caller_answer(s, &a->from, &h, NULL);
	else if (e != NULL)
		refused(s, &a->node, e);
	free(a);
}

static void kept(void *arg, const struct err *e)
{
	struct admit *a = arg;
	struct server *s = a->server;

	if (e == NULL)
		nodes_append(s, &a->node);
	added(s, a, e);
}

static const struct model *durable_of(const struct list *models)
{
	list_each(it, (struct list *)(uintptr_t)models)
		if (list_of(it, struct model, link)->set.nvme_durable)
			return list_of(it, struct model, link);
	return NULL;
}

/* A model whose chunks have to stay where they are. NULL: there is none. */
static const struct model *durable(const struct server *s)
{
	const struct model *m = durable_of(&s->models);

	return m != NULL ? m : durable_of(&s->makings);
}

static enum shard_status may_add(const struct server *s, struct err *e)
{
	const char *why;
	const struct config_node *next = nodes_next(s, &why);
	const struct peer *older = peer_older(s, WIRE_JOINS);
	const struct model *stays = durable(s);

	if (stays != NULL)
		return err_set(
			e, SHARD_UNSUPPORTED,
			"\"%s\" has nvme_durable = step, whose chunks stay on the nodes that "
			"it was defined on: save and drop it before a node joins, and define "
			"it afterwards",
			stays->name);
	if (s->nodes_nr == 1 && (strcmp(s->node[0].address.host, "0.0.0.0") == 0 ||
				 strcmp(s->node[0].address.host, "::") == 0))
		return err_set(e, SHARD_BAD_STATE,
			       "node %s is alone, and %s does not say how others reach it: give it "
			       "[nodes] with its own address, or set [daemon] listen to that",
			       members_name(s, s->self), s->node[0].address.text);
	if (s->conf->membership != CONFIG_MEMBERSHIP_STATIC && !lead_on(s))
		return err_set(e, SHARD_BAD_STATE,
			       "node %s is alone, and has membership = %s, which takes two nodes: "
			       "set membership = static on it, or give it [nodes] with both",
			       members_name(s, s->self),
			       s->conf->membership == CONFIG_MEMBERSHIP_ETCD ? "etcd" : "quorum");
	if (s->admits.adding || next != NULL)
		return err_set(e, SHARD_BUSY, "node %s takes in %s%s now", members_name(s, s->self),
			       next != NULL ? "node " : "another node",
			       next != NULL ? next->name : "");
	if (older != NULL)
		return err_set(e, SHARD_UNSUPPORTED,
			       "node %s runs release %s, which cannot take nodes in: upgrade it "
			       "first",
			       members_name(s, older->node), older->release);
	return SHARD_OK;
}

static enum shard_status add(struct server *s, const struct config_node *n,
			     const struct caller *from, struct err *e)
{
	enum shard_status st = may_add(s, e);
	struct admit *a = st == SHARD_OK ? malloc(sizeof(*a)) : NULL;

	if (st != SHARD_OK)
		return st;
	if (a == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	*a = (struct admit){.server = s, .node = *n, .for_node = from != NULL};
	if (from != NULL)
		a->from = *from;
	s->admits.adding = true;
	st = lead_on(s) ? lead_save_node(s, n, kept, a, e) : intake_add(s, n, added, a, e);
	if (st == SHARD_OK)
		return SHARD_OK;
	s->admits.adding = false;
	free(a);
	return st;
}

enum shard_status admit_node_request(struct peer *p, const struct wire_head *h,
				     const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Nodes *body = (const Shard__Nodes *)msg;
	struct caller from = caller_node(p, h->attempt);
	struct server *s = p->server;
	struct config_node node;
	enum shard_status st;

	if (body->n_config != 1)
		return err_set(e, SHARD_PROTOCOL, "%zu nodes to be added at once", body->n_config);
	if (!server_leads(s))
		return lead_refuse(s, e);
	if ((st = lead_known(s, e)) != SHARD_OK ||
	    (st = nodes_parse(&node, body->config[0]->key, body->config[0]->value, e)) != SHARD_OK)
		return st;
	st = nodes_may_add(s, &node, e);
	if (st == SHARD_NOT_FOUND)
		return add(s, &node, &from, e);
	if (st == SHARD_OK)
		caller_answer(s, &from, &(struct wire_head){.op = OP_NODE_ADD}, NULL);
	return st;
}

/* --- on the node that was asked --- */

static void answered(struct server *s, const struct call *c, const struct wire_head *h,
		     const void *body, const struct err *e)
{
	(void)c, (void)h, (void)body;
	s->admits.asking = false;
	if (e != NULL && e->status != SHARD_BUSY) {
		s->admits.refused = *e;
		memcpy(s->admits.name, s->admits.asked, sizeof(s->admits.name));
	}
}

static enum shard_status pass(struct server *s, const struct config_node *n, struct err *e)
{
	static const struct call_ops ops = {.answered = answered};
	uint16_t to = server_coordinator(s);
	Shard__Setting setting = SHARD__SETTING__INIT, *list[] = {&setting};
	Shard__Nodes body = SHARD__NODES__INIT;
	enum shard_status st;

	if (s->admits.asking)
		return SHARD_OK;
	if (s->peer[to]->up && !peer_knows(s->peer[to], WIRE_JOINS))
		return err_set(e, SHARD_UNSUPPORTED,
			       "node %s, which coordinates, runs release %s, which cannot take "
			       "nodes in: upgrade it first",
			       members_name(s, to), s->peer[to]->release);
	setting.key = (char *)(uintptr_t)n->name;
	setting.value = (char *)(uintptr_t)n->address.text;
	body.n_config = 1;
	body.config = list;
	st = call_node(s, to, &(struct wire_head){.op = OP_NODE_ADD}, &body.base, &ops, NULL, e);
	s->admits.asking = st == SHARD_OK;
	memcpy(s->admits.asked, n->name, sizeof(s->admits.asked));
	/* That the coordinator is away or busy passes. */
	return st == SHARD_UNREACHABLE || st == SHARD_AGAIN ? SHARD_BUSY : st;
}

enum shard_status admit_asked(struct server *s, const struct config_node *n, struct err *e)
{
	enum shard_status st;

	if (s->admits.refused.status != SHARD_OK && strcmp(s->admits.name, n->name) == 0) {
		*e = s->admits.refused;
		s->admits.refused.status = SHARD_OK;
		return e->status;
	}
	if ((st = lead_known(s, e)) != SHARD_OK)
		return st;
	st = server_leads(s) ? add(s, n, NULL, e) : pass(s, n, e);
	return st != SHARD_OK ? st
			      : err_set(e, SHARD_BUSY, "node %s adds node %s to the list of nodes",
					members_name(s, s->self), n->name);
}

/* --- room --- */

/* Nothing that asks all nodes, one after the other, may meet another number of nodes half way. */
static enum shard_status quiet(const struct server *s, struct err *e)
{
	if (!list_empty(&s->ckpts))
		return err_set(e, SHARD_AGAIN, "a checkpoint is written or read");
	if (!list_empty(&s->makings) || !list_empty(&s->drops))
		return err_set(e, SHARD_AGAIN, "a model is being made or dropped");
	list_each(it, (struct list *)(uintptr_t)&s->models)
		if (list_of(it, struct model, link)->defining)
			return err_set(e, SHARD_AGAIN, "\"%s\" is being defined",
				       list_of(it, struct model, link)->name);
	return SHARD_OK;
}

enum shard_status admit_room(struct server *s, uint16_t nodes_nr, struct err *e)
{
	enum shard_status st = quiet(s, e);

	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		if (st == SHARD_OK)
			st = rooms_grow(m, nodes_nr, moving_ordered(m), e);
	}
	return st;
}
