/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to other nodes, told apart by their tags. control/, ckpt/ and others open a call when they
 * need an answer of another node, or pass on a request of a session. Happy path: call_node() or
 * call_pass() lists the call and sends the request, dispatch.c finds the call by the tag of the
 * answer, and the answered() of its opener runs before the call is freed. If the link falls,
 * answered() gets the reason. It gets one too if the node reports nothing for step_timeout +
 * lost_timeout, the longest time that a step and a lost node may take. An answer for a session that
 * has ended is dropped. */
#include "link/call.h"

#include "base/check.h"
#include "base/clock.h"
#include "link/peer.h"
#include "link/session.h"
#include "link/places.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

static uint64_t due_ns(const struct server *s)
{
	return clock_ns() + s->conf->step_timeout_ns + s->conf->lost_timeout_ns;
}

void server_calls_check(const struct server_calls *c)
{
	CHECK(c->nr <= SERVER_CALLS_MAX && (c->nr == 0) == list_empty(&c->open));
	CHECK(c->asked_nr <= c->nr);
}

uint32_t call_tag(struct server *s)
{
	return ++s->calls.next_tag;
}

/* t NULL: the request is this node's own. */
static enum shard_status call_new(struct call **out, struct server *s, const struct session *t,
				  uint16_t node, const struct wire_head *h,
				  const struct call_ops *ops, struct err *e)
{
	struct call *c;

	CHECK(node != s->self && ops != NULL && ops->answered != NULL);
	if (s->calls.nr >= SERVER_CALLS_MAX)
		return err_set(e, SHARD_BUSY,
			       "%u requests to other nodes are open already: try again",
			       s->calls.nr);
	if (t != NULL && places_ask(s, t->guest, e) != SHARD_OK)
		return e->status;
	c = calloc(1, sizeof(*c));
	if (c == NULL && t != NULL)
		places_answered(s, t->guest);
	if (c == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	*c = (struct call){.ops = ops,
			   .due_ns = due_ns(s),
			   .tag = call_tag(s),
			   .op = h->op,
			   .node = node,
			   .model = h->model,
			   .session = t != NULL ? t->id : 0,
			   .guest = t != NULL ? t->guest : NULL,
			   .session_tag = t != NULL ? h->attempt : 0};
	list_push(&s->calls.open, &c->link);
	s->calls.nr++;
	server_calls_check(&s->calls);
	*out = c;
	return SHARD_OK;
}

struct call *call_find(struct server *s, uint16_t node, uint32_t tag)
{
	list_each(it, &s->calls.open) {
		struct call *c = list_of(it, struct call, link);

		if (c->tag == tag && c->node == node)
			return c;
	}
	return NULL;
}

static void call_unlink(struct call *c, struct server *s)
{
	struct session *t = c->promised > 0 ? session_find(s, c->session) : NULL;

	s->conns.queued.bytes -= c->promised;
	if (t != NULL)
		t->promised -= c->promised;
	if (c->guest != NULL)
		places_answered(s, c->guest);
	list_remove(&c->link);
	s->calls.nr--;
	server_calls_check(&s->calls);
}

static void call_drop(struct server *s, struct call *c)
{
	call_unlink(c, s);
	free(c);
}

enum shard_status call_node(struct server *s, uint16_t node, const struct wire_head *h,
			    const ProtobufCMessage *msg, const struct call_ops *ops, uint32_t *tag,
			    struct err *e)
{
	struct wire_head out = *h;
	struct call *c = NULL;
	enum shard_status st = call_new(&c, s, NULL, node, h, ops, e);

	CHECK(node < s->nodes_nr && node != s->self);
	if (st != SHARD_OK)
		return st;
	out.attempt = c->tag;
	if (tag != NULL)
		*tag = c->tag;
	if ((st = peer_send(s, node, &out, msg, e)) != SHARD_OK)
		call_drop(s, c);
	return st;
}

/* --- on behalf of a session --- */

void call_pass_back(struct server *s, const struct call *c, const struct wire_head *h,
		    const void *body, const struct err *e)
{
	struct session *t = session_find(s, c->session);
	struct wire_head out;
	/* The connection to the node keeps its own body only until this call returns. */
	void *copy = NULL;

	if (t == NULL)
		return;
	if (e != NULL) {
		session_refuse(t, c->session_tag, e);
		return;
	}
	out = *h;
	out.attempt = c->session_tag;
	if (h->body_bytes > 0) {
		copy = malloc(h->body_bytes);
		if (copy == NULL) {
			session_refuse(t, c->session_tag,
				       &(struct err){.status = SHARD_SYSTEM,
						     .text = "no memory to pass an answer on"});
			return;
		}
		memcpy(copy, body, h->body_bytes);
	}
	session_reply_owned(t, &out, copy);
}

static const struct call_ops passed = {.answered = call_pass_back};

/* Limits the bytes of READs that one session has on their way. Each session may have at least one
 * part of WIRE_PART_BYTES, however much the others hold. */
static enum shard_status promise(struct session *t, uint32_t bytes, struct err *e)
{
	struct stream_account *queued = &t->server->conns.queued;
	uint32_t most = queued->bytes > queued->most ? WIRE_PART_BYTES : PEER_QUEUED_MAX;

	if (bytes == 0 || t->promised + bytes <= most)
		return SHARD_OK;
	return err_set(
		e, SHARD_BUSY,
		"%lu bytes that other nodes were asked for are on their way: take them first",
		(unsigned long)t->promised);
}

/* Requests may be as large as a definition. A link that sends slowly may hold no more bytes of them
 * than of weights. */
static enum shard_status sendable(struct server *s, uint16_t node, struct err *e)
{
	struct conn *c = peer_control(s->peer[node]);

	if (c == NULL || stream_held(conn_stream(c)) <= SERVER_QUEUED_MAX)
		return SHARD_OK;
	return err_set(e, SHARD_BUSY, "too much waits to be sent to node %s already: try again",
		       members_name(s, node));
}

enum shard_status call_pass(struct session *t, uint16_t node, const struct wire_head *h,
			    const ProtobufCMessage *msg, const struct call_ops *ops, struct err *e)
{
	uint32_t bytes =
		h->op == OP_READ ? ((const Shard__Read *)msg)->count * (uint32_t)sizeof(float) : 0;
	struct wire_head out = *h;
	struct call *c = NULL;
	enum shard_status st = sendable(t->server, node, e);

	CHECK(node < t->server->nodes_nr && node != t->server->self);
	if (st == SHARD_OK)
		st = promise(t, bytes, e);

	if (st == SHARD_OK)
		st = call_new(&c, t->server, t, node, h, ops != NULL ? ops : &passed, e);
	if (st != SHARD_OK)
		return st;
	c->promised = bytes;
	t->promised += bytes;
	t->server->conns.queued.bytes += bytes;
	out.attempt = c->tag;
	if ((st = peer_send(t->server, node, &out, msg, e)) != SHARD_OK)
		call_drop(t->server, c);
	return st;
}

static enum shard_status pass_bulk(struct session *t, uint16_t node, const struct wire_head *h,
				   void *body, const struct call_ops *ops, struct err *e)
{
	struct conn *to = peer_control(t->server->peer[node]);
	struct wire_head out = *h;
	struct call *c = NULL;
	enum shard_status st = call_new(&c, t->server, t, node, h, ops, e);

	CHECK(to != NULL);
	if (st != SHARD_OK) {
		free(body);
		return st;
	}
	out.attempt = c->tag;
	if ((st = stream_send_owned(conn_stream(to), &out, body, h->body_bytes)) == SHARD_OK) {
		conn_kick(to);
		return SHARD_OK;
	}
	call_drop(t->server, c);
	return err_set(e, st, "node %s was not sent a %s", members_name(t->server, node),
		       wire_op(h->op)->name);
}

enum shard_status call_pass_bulk(struct session *t, uint16_t node, const struct wire_head *h,
				 void *body, struct err *e)
{
	return pass_bulk(t, node, h, body, &passed, e);
}

/* --- rounds --- */

static void round_answered(struct server *s, const struct call *c, const struct wire_head *h,
			   const void *body, const struct err *e)
{
	if (c->round != NULL && round_took(c->round, c->node))
		c->round->ops->answered(c->round, s, c, h, body, e);
}

static void round_progress(struct server *s, const struct call *c, const Shard__Progress *body)
{
	if (c->round != NULL && c->round->ops->progress != NULL)
		c->round->ops->progress(c->round, s, c, body);
}

static const struct call_ops round_calls = {.answered = round_answered, .progress = round_progress};

/* Adds the call that has just been opened, which has the newest tag. */
static void round_add(struct round *r, struct server *s, uint16_t node)
{
	struct call *c = call_find(s, node, s->calls.next_tag);

	CHECK(c != NULL && c->round == NULL && !(r->out >> node & 1) && r->ops != NULL);
	c->round = r;
	r->out |= 1ull << node;
}

enum shard_status round_ask(struct round *r, struct server *s, uint16_t node,
			    const struct wire_head *h, const ProtobufCMessage *msg, uint32_t *tag,
			    struct err *e)
{
	enum shard_status st = call_node(s, node, h, msg, &round_calls, tag, e);

	if (st == SHARD_OK)
		round_add(r, s, node);
	return st;
}

enum shard_status round_pass(struct round *r, struct session *t, uint16_t node,
			     const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	enum shard_status st = call_pass(t, node, h, msg, &round_calls, e);

	if (st == SHARD_OK)
		round_add(r, t->server, node);
	return st;
}

void round_own(struct round *r, const struct server *s)
{
	CHECK(!(r->out >> s->self & 1));
	r->out |= 1ull << s->self;
}

bool round_took(struct round *r, uint16_t node)
{
	bool owed = r->out >> node & 1;

	r->out &= ~(1ull << node);
	return owed;
}

void round_end(struct round *r, struct server *s)
{
	list_each(it, &s->calls.open) {
		struct call *c = list_of(it, struct call, link);

		if (c->round == r)
			c->round = NULL;
	}
	r->out = 0;
}

/* --- one bulk request to several nodes, on behalf of a session --- */

static void bulk_answered(struct round *r, struct server *s, const struct call *c,
			  const struct wire_head *h, const void *body, const struct err *e)
{
	if (e == NULL && r->out != 0)
		return;
	call_pass_back(s, c, h, body, e);
	round_end(r, s);
	free(r);
}

static const struct round_ops bulk_round = {.answered = bulk_answered};

enum shard_status call_pass_bulk_all(struct session *t, uint64_t nodes, const struct wire_head *h,
				     const void *body, struct err *e)
{
	struct round *r = calloc(1, sizeof(*r));
	enum shard_status st = SHARD_OK;

	CHECK(nodes != 0 && h->body_bytes > 0);
	if (r == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	r->ops = &bulk_round;
	for (uint16_t n = 0; n < t->server->nodes_nr && st == SHARD_OK; n++) {
		void *copy;

		if (!(nodes >> n & 1))
			continue;
		if ((copy = malloc(h->body_bytes)) == NULL) {
			st = err_set(e, SHARD_SYSTEM, "no memory to pass %u bytes on",
				     h->body_bytes);
			continue;
		}
		memcpy(copy, body, h->body_bytes);
		if ((st = pass_bulk(t, n, h, copy, &round_calls, e)) == SHARD_OK)
			round_add(r, t->server, n);
	}
	if (st != SHARD_OK) {
		round_end(r, t->server);
		free(r);
	}
	return st;
}

/* --- answers --- */

void call_answer(struct server *s, struct call *c, const struct wire_head *h, const void *body)
{
	call_unlink(c, s);
	c->ops->answered(s, c, h, body, NULL);
	free(c);
}

void call_refuse(struct server *s, struct call *c, const struct err *e)
{
	CHECK(e->status != SHARD_OK);
	call_unlink(c, s);
	c->ops->answered(s, c, NULL, NULL, e);
	free(c);
}

void call_progress(struct server *s, uint16_t node, const struct wire_head *h,
		   const Shard__Progress *body)
{
	struct call *c = call_find(s, node, h->attempt);
	struct session *t = c != NULL && c->session != 0 ? session_find(s, c->session) : NULL;
	struct wire_head out = {.op = OP_PROGRESS, .model = h->model, .generation = h->generation};

	if (c == NULL)
		return;
	c->due_ns = due_ns(s);
	out.attempt = c->session_tag;
	if (c->ops->progress != NULL)
		c->ops->progress(s, c, body);
	else if (t != NULL)
		session_tell(t, &out, &body->base);
	else if (c->session != 0 && c->op == OP_VERIFY) /* It holds training for nobody. */
		peer_tell(s, node,
			  &(struct wire_head){
				  .op = OP_PART_CANCEL, .model = h->model, .attempt = c->tag},
			  NULL);
}

/* model 0: of all models, and of none. */
static void refuse_all(struct server *s, uint16_t node, uint32_t model, const struct err *e)
{
	struct err passes = *e; /* Weights may be asked for or sent twice. */
	bool any = true;

	CHECK(node < s->nodes_nr && node != s->self);
	err_passes(&passes, passes.status);
	while (any) { /* answered() may open or end other calls, so the walk starts again. */
		any = false;
		list_each(it, &s->calls.open) {
			struct call *c = list_of(it, struct call, link);

			if (c->node != node || (model != 0 && c->model != model))
				continue;
			call_refuse(s, c, c->op == OP_READ || c->op == OP_WRITE ? &passes : e);
			any = true;
			break;
		}
	}
}

void call_node_gone(struct server *s, uint16_t node, const struct err *e)
{
	struct err gone; /* For sessions, whose own connections stay open. */

	err_set(&gone, SHARD_UNREACHABLE,
		"the link to node %s fell before its answer came, so what was asked may have been "
		"done (look, and ask again if it was not): %.300s",
		members_name(s, node), e->text);
	refuse_all(s, node, 0, &gone);
}

void call_model_gone(struct server *s, uint16_t node, uint32_t model, const struct err *e)
{
	CHECK(model != 0);
	refuse_all(s, node, model, e);
}

void call_beat(struct server *s, uint64_t now_ns)
{
	bool any = true;
	struct err e;

	while (any) {
		any = false;
		list_each(it, &s->calls.open) {
			struct call *c = list_of(it, struct call, link);

			if (now_ns < c->due_ns)
				continue;
			err_set(&e, SHARD_TIMEOUT,
				"node %s has not answered %s for %.0f s: see its log and `shardctl "
				"status` there",
				members_name(s, c->node), wire_op(c->op)->name,
				(double)(s->conf->step_timeout_ns + s->conf->lost_timeout_ns) /
					NS_PER_SEC);
			call_refuse(s, c, &e);
			any = true;
			break;
		}
	}
}
