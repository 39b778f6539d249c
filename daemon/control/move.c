/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out MOVE. A plan and a rebalance are made by the coordinator, a drain by the node itself,
 * and the node of the session passes the request on to it. A drained node keeps a mark in its state
 * folder and tells all others that its capacity is 0. The coordinator sees that and moves its
 * chunks away (moving.c), also after it was elected anew. A node that is down is drained by the
 * coordinator, if nothing is lost with it, and every node keeps that (link/gone.c). The answer says
 * what is wanted. Whoever asked looks at the status until it is so. It fails if nobody coordinates,
 * if the node has an only copy and is down, or if the disk fails of the node that keeps the mark.
 */
#include "control/move.h"

#include "base/check.h"
#include "control/moving.h"
#include "control/unmade.h"
#include "link/call.h"
#include "link/caller.h"
#include "link/gone.h"
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
	if (p.trouble[0] != 0)
		json_object_set_new(o, "trouble", json_string(p.trouble));
	for (uint16_t n = 0; n < m->server->nodes_nr; n++) {
		const struct peer *to = m->server->peer[n];

		json_array_append_new(nodes, json_pack("{s:s, s:i, s:i, s:b}", "node",
						       members_name(m->server, n), "chunks",
						       (int)p.now[n], "then", (int)p.then[n],
						       "down", to != NULL && !to->up));
	}
	json_object_set_new(o, "copies", json_integer((json_int_t)p.cost.copies));
	json_object_set_new(o, "primaries", json_integer((json_int_t)p.cost.primaries));
	json_object_set_new(o, "bytes", json_integer((json_int_t)p.bytes));
	json_object_set_new(o, "nodes", nodes);
	json_object_set_new(o, "weights", json_boolean(m->sealed));
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
		if (unmade_check(s, body->name, e) != SHARD_OK)
			return e->status;
		return err_set(
			e, SHARD_NOT_FOUND,
			"no model \"%.128s\": `shardctl model list` shows those that there are",
			body->name);
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

static void drain_said(struct server *s, const struct caller *from)
{
	bool drained = s->drained || server_gone(s, s->self);

	tell_capacity(s);
	answer(s, from,
	       json_pack("{s:s, s:i, s:b}", "node", members_name(s, s->self), "capacity",
			 (int)server_capacity(s), "drained", drained));
}

/* The drain that has ended was one that this node did not live to see. */
static void back(struct server *s, void *arg, const struct err *e)
{
	struct drain *d = arg;

	if (e != NULL)
		caller_refuse(s, &d->from, e);
	else
		drain_said(s, &d->from);
	free(d);
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
	if (!d->on && server_gone(s, s->self) && !s->stop.on) {
		if (gone_set(s, s->self, false, back, d, &d->e) != SHARD_OK)
			back(s, d, &d->e);
		return;
	}
	drain_said(s, &d->from);
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

/* --- a drain of a node that is away --- */

/* What would be lost if nobody waited for the node any more? Models that are lost already, or have
 * no weights yet, lose nothing. */
static enum shard_status spare(struct server *s, uint16_t node, struct err *e)
{
	const char *name = members_name(s, node);
	const Shard__Kept *k;
	size_t at = 0;

	list_each(it, &s->models) {
		const struct model *m = list_of(it, struct model, link);
		bool alone;
		uint32_t nr;

		if (m->defining || m->dropping || !m->sealed || m->lost[0] != 0 ||
		    (nr = moving_only_at(m, node, &alone)) == 0)
			continue;
		return err_set(
			e, SHARD_BAD_STATE,
			"node %s holds %s of %u chunks of \"%s\": start it again. If it is "
			"gone for good, `shardctl model drop %s --force` gives these weights "
			"up: drain it then, and restore the model from a checkpoint "
			"(`shardctl restore DIR`)",
			name,
			alone ? "the only copy" : "a copy, and no node that is up holds another,",
			nr, m->name, m->name);
	}
	if (!list_empty(&s->makings))
		return err_set(e, SHARD_BUSY, "the memory of \"%s\" is being made: try again",
			       list_of(s->makings.next, struct model, link)->name);
	if ((k = lead_lacks(s, &at)) == NULL)
		return SHARD_OK;
	return err_set(e, SHARD_BAD_STATE,
		       "node %s may hold the only copy of \"%s\", which no node that is up has: "
		       "start it again, or first restore that model from a checkpoint, or drop it "
		       "with --force",
		       name, k->name);
}

struct away {
	struct caller from;
	uint16_t node;
};

static void away_said(struct server *s, const struct caller *from, uint16_t node)
{
	json_t *o = json_pack("{s:s, s:b, s:b}", "node", members_name(s, node), "drained",
			      server_gone(s, node), "gone", true);

	if (o != NULL && lead_on(s))
		json_object_set_new(o, "votes", json_boolean(lead_votes(s, node)));
	answer(s, from, o);
}

static void away_done(struct server *s, void *arg, const struct err *e)
{
	struct away *a = arg;

	if (e != NULL)
		caller_refuse(s, &a->from, e);
	else
		away_said(s, &a->from, a->node);
	free(a);
}

/* On the coordinator. The node is a peer. */
static enum shard_status drain_away(struct server *s, const struct caller *from, uint16_t node,
				    bool on, struct err *e)
{
	const struct peer *p = s->peer[node], *older = peer_older(s, WIRE_GONE);
	const char *name = members_name(s, node);
	struct away *a;

	if (p->up)
		return err_set(e, SHARD_BAD_STATE,
			       "node %s is up for node %s, which coordinates: drain it there "
			       "(--address)",
			       name, members_name(s, s->self));
	if (!on && !server_gone(s, node))
		return err_set(e, SHARD_UNREACHABLE,
			       "node %s is down: %.200s: it keeps its drain in its state folder: "
			       "start it first",
			       name, p->why);
	if (older != NULL)
		return err_set(
			e, SHARD_UNSUPPORTED,
			"node %s is down, and node %s runs release %s, which cannot drain it: "
			"upgrade that one first",
			name, members_name(s, older->node), older->release);
	if (on && spare(s, node, e) != SHARD_OK)
		return e->status;
	if (on == server_gone(s, node)) {
		away_said(s, from, node);
		return SHARD_OK;
	}
	if ((a = calloc(1, sizeof(*a))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	*a = (struct away){.from = *from, .node = node};
	if (gone_set(s, node, on, away_done, a, e) != SHARD_OK)
		free(a);
	return e->status;
}

/* --- requests --- */

static bool drains(const Shard__Move *body)
{
	return body->action == MOVE_DRAIN || body->action == MOVE_DRAIN_END;
}

static enum shard_status move_here(struct server *s, const struct caller *from,
				   const Shard__Move *body, struct err *e)
{
	uint16_t node;

	if (body->action == 0 || body->action >= MOVE_NR)
		return err_set(e, SHARD_UNSUPPORTED, "move %u: node %s is of an older release",
			       body->action, members_name(s, s->self));
	if (!drains(body))
		return plan(s, from, body, e);
	if (nodes_named(s, body->node, &node, e) != SHARD_OK)
		return e->status;
	return node == s->self ? drain_here(s, from, body->action == MOVE_DRAIN, e)
			       : drain_away(s, from, node, body->action == MOVE_DRAIN, e);
}

/* Who answers for a drain of this node: it does, or the coordinator if it is down. */
static enum shard_status drain_at(struct server *s, const char *name, uint16_t *to, struct err *e)
{
	const struct peer *p;

	if (nodes_named(s, name, to, e) != SHARD_OK)
		return e->status;
	if ((p = s->peer[*to]) == NULL)
		return SHARD_OK;
	if (p->up && !peer_knows(p, WIRE_MOVES))
		return err_set(e, SHARD_UNSUPPORTED,
			       "node %s runs release %s, which cannot be drained: upgrade it first",
			       name, p->release);
	if (p->up)
		return SHARD_OK;
	if (lead_known(s, e) != SHARD_OK)
		return e->status;
	if (*to == server_coordinator(s))
		return err_set(e, SHARD_UNREACHABLE,
			       "node %s is down: %.200s: it coordinates, so it cannot be drained "
			       "before it is back%s",
			       name, p->why,
			       lead_on(s) ? ", or another node leads"
					  : ". With membership = static no other node can take its "
					    "place: start it, or a new machine with its name, its "
					    "address and its state folder");
	*to = server_coordinator(s);
	p = s->peer[*to];
	if (p != NULL && p->up && !peer_knows(p, WIRE_GONE))
		return err_set(e, SHARD_UNSUPPORTED,
			       "node %s is down, and node %s, which coordinates, runs release %s, "
			       "which cannot drain it: upgrade that one first",
			       name, members_name(s, *to), p->release);
	return SHARD_OK;
}

enum shard_status move_request(struct session *t, const struct wire_head *h,
			       const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Move *body = (const Shard__Move *)msg;
	struct caller from = caller_session(t, h->attempt);
	struct server *s = t->server;
	uint16_t to;

	if (!t->who.root)
		return err_set(e, SHARD_DENIED,
			       "only root and the user of the daemon may move chunks: ask through "
			       "the unix socket of a node, as one of them");
	if ((drains(body) ? drain_at(s, body->node, &to, e) : lead_known(s, e)) != SHARD_OK)
		return e->status;
	if (!drains(body))
		to = server_coordinator(s);
	return to == s->self ? move_here(s, &from, body, e) : call_pass(t, to, h, msg, NULL, e);
}

enum shard_status move_node_request(struct peer *p, const struct wire_head *h,
				    const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Move *body = (const Shard__Move *)msg;
	struct caller from = caller_node(p, h->attempt);
	struct server *s = p->server;

	if ((!drains(body) || strcmp(body->node, members_name(s, s->self)) != 0) &&
	    !server_leads(s))
		return lead_refuse(s, e);
	return move_here(s, &from, body, e);
}
