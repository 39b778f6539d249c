/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out MOVE. A plan and a rebalance are made by the coordinator, a drain by the node itself,
 * and the node of the session passes the request on to it. A drained node keeps a mark in its state
 * folder and tells all others that its capacity is 0. The coordinator sees that and moves its
 * chunks away (moving.c), also after it was elected anew. The answer says what is wanted.
 * Whoever asked looks at the status until it is so. It fails if the node is down, if nobody
 * coordinates, or if the disk of the drained node does. */
#include "control/move.h"

#include "base/check.h"
#include "control/moving.h"
#include "link/call.h"
#include "link/caller.h"
#include "link/nodes.h"
#include "link/peer.h"
#include "link/session.h"
#include "model/lead.h"
#include "model/model.h"
#include "wire/ops.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void answer(struct server *s, const struct caller *to, json_t *body)
{
	caller_answer_json(s, to, &(struct wire_head){.op = OP_MOVE}, body);
}

/* --- a plan --- */

static json_t *model_json(struct model *m)
{
	json_t *o = json_pack("{s:s}", "name", m->name), *nodes = json_array();
	struct moving_plan p;
	struct err e;

	if (moving_trouble(m)[0] != 0)
		json_object_set_new(o, "trouble", json_string(moving_trouble(m)));
	if (moving_plan(m, &p, &e) != SHARD_OK) {
		json_object_set_new(o, "error", json_string(e.text));
		json_decref(nodes);
		return o;
	}
	for (uint16_t n = 0; n < m->server->nodes_nr; n++)
		json_array_append_new(nodes, json_pack("{s:s, s:i, s:i}", "node",
						       members_name(m->server, n), "chunks",
						       (int)p.now[n], "then", (int)p.then[n]));
	json_object_set_new(o, "copies", json_integer((json_int_t)p.cost.copies));
	json_object_set_new(o, "primaries", json_integer((json_int_t)p.cost.primaries));
	json_object_set_new(o, "bytes", json_integer((json_int_t)p.bytes));
	json_object_set_new(o, "nodes", nodes);
	moving_plan_free(&p);
	return o;
}

static enum shard_status plan(struct server *s, const struct caller *from, const Shard__Move *body,
			      struct err *e)
{
	json_t *models = json_array();

	CHECK(server_leads(s));
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		if (m->defining || m->dropping ||
		    (body->name[0] != 0 && strcmp(body->name, m->name) != 0))
			continue;
		json_array_append_new(models, model_json(m));
		if (body->action == MOVE_REBALANCE)
			moving_order(m);
	}
	if (body->name[0] != 0 && json_array_size(models) == 0) {
		json_decref(models);
		return err_set(e, SHARD_NOT_FOUND, "no model \"%.128s\"", body->name);
	}
	answer(s, from, json_pack("{s:o}", "models", models));
	return SHARD_OK;
}

/* --- a drain --- */

static void tell_capacity(struct server *s)
{
	struct wire_head h = {.op = OP_CAPACITY};
	Shard__Capacity body = SHARD__CAPACITY__INIT;

	body.capacity = server_capacity(s);
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL && s->peer[n]->up && peer_knows(s->peer[n], WIRE_MOVES))
			peer_tell(s, n, &h, &body.base);
}

struct drain { /* The mark is being written by a thread, which uses only .dir, .on, .st and .e. */
	uv_work_t work;
	struct server *server;
	struct caller from;
	struct static_dir *dir;
	bool on;
	enum shard_status st;
	struct err e;
};

static void drain_run(uv_work_t *w)
{
	struct drain *d = w->data;

	d->st = static_set_drained(d->dir, d->on, &d->e);
}

static void drain_done(uv_work_t *w, int status)
{
	struct drain *d = w->data;
	struct server *s = d->server;

	CHECK(status == 0 && s->draining && s->persists > 0); /* It is never cancelled. */
	s->draining = false;
	s->persists--;
	server_wake(s, 0); /* Also for a stop, which waits for this. */
	if (d->st != SHARD_OK) {
		caller_refuse(s, &d->from, &d->e);
		free(d);
		return;
	}
	if (s->drained != d->on)
		log_line(s->log, LOG_LEVEL_INFO, "event=%s node=%s",
			 d->on ? "drained" : "drain_ended", members_name(s, s->self));
	s->drained = d->on;
	tell_capacity(s);
	answer(s, &d->from,
	       json_pack("{s:s, s:i, s:b}", "node", members_name(s, s->self), "capacity",
			 (int)server_capacity(s), "drained", d->on));
	free(d);
}

static enum shard_status drain_here(struct server *s, const struct caller *from, bool on,
				    struct err *e)
{
	struct drain *d;

	if (s->draining)
		return err_set(e, SHARD_BUSY, "node %s writes an earlier drain to its disk",
			       members_name(s, s->self));
	if ((d = calloc(1, sizeof(*d))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	*d = (struct drain){.server = s, .from = *from, .dir = s->dir, .on = on};
	d->work.data = d;
	s->draining = true;
	s->persists++;
	CHECK(uv_queue_work(s->loop, &d->work, drain_run, drain_done) == 0);
	return SHARD_OK;
}

void move_capacity(struct peer *p, const Shard__Capacity *body)
{
	p->capacity = body->capacity < CONFIG_CAPACITY_MAX ? body->capacity : CONFIG_CAPACITY_MAX;
	log_line(p->server->log, LOG_LEVEL_INFO, "event=capacity node=%s capacity=%u",
		 members_name(p->server, p->node), p->capacity);
	server_wake(p->server, 0);
}

/* --- requests --- */

static bool drains(const Shard__Move *body)
{
	return body->action == MOVE_DRAIN || body->action == MOVE_DRAIN_END;
}

static enum shard_status move_here(struct server *s, const struct caller *from,
				   const Shard__Move *body, struct err *e)
{
	if (body->action == 0 || body->action >= MOVE_NR)
		return err_set(e, SHARD_UNSUPPORTED, "move %u: node %s is of an older release",
			       body->action, members_name(s, s->self));
	return drains(body) ? drain_here(s, from, body->action == MOVE_DRAIN, e)
			    : plan(s, from, body, e);
}

enum shard_status move_request(struct session *t, const struct wire_head *h,
			       const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Move *body = (const Shard__Move *)msg;
	struct caller from = caller_session(t, h->attempt);
	struct server *s = t->server;
	uint16_t to = server_coordinator(s);

	if (!t->who.root)
		return err_set(e, SHARD_DENIED,
			       "only root and the user of the daemon may move chunks: ask through "
			       "the unix socket of a node, as one of them");
	if (drains(body) && nodes_named(s, body->node, &to, e) != SHARD_OK)
		return e->status;
	if (!drains(body) && lead_known(s, e) != SHARD_OK)
		return e->status;
	if (to == s->self)
		return move_here(s, &from, body, e);
	if (drains(body) && s->peer[to]->up && !peer_knows(s->peer[to], WIRE_MOVES))
		return err_set(e, SHARD_UNSUPPORTED,
			       "node %s runs release %s, which cannot be drained: upgrade it first",
			       members_name(s, to), s->peer[to]->release);
	return call_pass(t, to, h, msg, NULL, e);
}

enum shard_status move_node_request(struct peer *p, const struct wire_head *h,
				    const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Move *body = (const Shard__Move *)msg;
	struct caller from = caller_node(p, h->attempt);
	struct server *s = p->server;

	if (drains(body) && strcmp(body->node, members_name(s, s->self)) != 0)
		return err_set(e, SHARD_PROTOCOL, "a drain of node \"%.64s\" at node %s",
			       body->node, members_name(s, s->self));
	if (!drains(body) && !server_leads(s))
		return lead_refuse(s, e);
	return move_here(s, &from, body, e);
}
