// SPDX-License-Identifier: Apache-2.0
/* Sends answers to a session of this node, or over the link that the request came by. The handlers
 * of requests in the rooms above make a caller, keep it with the request while they wait for
 * something, and then send one answer or one refusal. If the caller is gone, the answer is dropped.
 * If a queue does not take the answer, its link or connection is closed with an error text (peer.c,
 * session.c). */
#include "link/caller.h"

#include "base/check.h"
#include "link/peer.h"
#include "link/session.h"

#include <stdlib.h>

struct caller caller_session(const struct session *t, uint32_t tag)
{
	return (struct caller){
		.node = t->server->self, .tag = tag, .pid = t->pid, .session = t->id};
}

struct caller caller_node(const struct peer *p, uint32_t tag)
{
	CHECK(p->node != p->server->self);
	return (struct caller){.node = p->node, .tag = tag, .link = p->downs};
}

struct session *caller_here(struct server *s, const struct caller *a)
{
	return a->node == s->self && a->session != 0 ? session_find(s, a->session) : NULL;
}

bool caller_waits(struct server *s, const struct caller *a)
{
	CHECK(a->node < s->nodes_nr);
	if (a->node == s->self)
		return caller_here(s, a) != NULL;
	return s->peer[a->node]->up && s->peer[a->node]->downs == a->link;
}

bool caller_same(const struct caller *x, const struct caller *y)
{
	return x->node == y->node && x->tag == y->tag && x->session == y->session &&
	       x->link == y->link;
}

void caller_answer(struct server *s, const struct caller *a, const struct wire_head *h,
		   const ProtobufCMessage *body)
{
	struct wire_head out = *h;

	CHECK(h->op != 0);
	if (!caller_waits(s, a))
		return;
	out.flags |= WIRE_REPLY;
	out.attempt = a->tag;
	if (a->node != s->self)
		peer_tell(s, a->node, &out, body);
	else
		session_tell(caller_here(s, a), &out, body);
}

void caller_answer_json(struct server *s, const struct caller *a, const struct wire_head *h,
			json_t *body)
{
	Shard__Text text = SHARD__TEXT__INIT;
	struct err e;

	text.text = body != NULL ? json_dumps(body, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
	json_decref(body);
	if (text.text != NULL) {
		caller_answer(s, a, h, &text.base);
	} else {
		err_set(&e, SHARD_SYSTEM, "no memory for an answer");
		caller_refuse(s, a, &e);
	}
	free(text.text);
}

void caller_refuse(struct server *s, const struct caller *a, const struct err *e)
{
	CHECK(e->status != SHARD_OK);
	if (!caller_waits(s, a))
		return;
	if (a->node != s->self)
		peer_refuse(s->peer[a->node], a->tag, e);
	else
		session_refuse(caller_here(s, a), a->tag, e);
}

void caller_progress(struct server *s, const struct caller *a, const struct wire_head *h,
		     const ProtobufCMessage *body)
{
	struct wire_head out = *h;

	out.attempt = a->tag;
	if (!caller_waits(s, a))
		return;
	if (a->node != s->self)
		(void)peer_send(s, a->node, &out, body, NULL);
	else
		session_tell(caller_here(s, a), &out, body);
}
