/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that wait for another node: a trainer's that its own node cannot answer, and the coordinator's own. session.c and define.c
 * open them, peer.c brings the answers. None is on the step path. A node whose link falls refuses all that waited for it. */
#include "relay.h"

#include "define.h"
#include "model.h"
#include "peer.h"
#include "session.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

enum shard_status relay_new(struct relay **out, struct server *s, uint16_t op, uint16_t node, uint32_t model, struct err *e)
{
	struct relay *r;

	if (s->relays_nr >= SERVER_RELAYS_MAX)
		return err_set(e, SHARD_BUSY, "%u requests to other nodes are open already: try again", s->relays_nr);
	r = calloc(1, sizeof(*r));
	if (r == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	*r = (struct relay){.tag = ++s->next_tag, .op = op, .node = node, .model = model};
	list_push(&s->relays, &r->link);
	s->relays_nr++;
	*out = r;
	return SHARD_OK;
}

struct relay *relay_find(struct server *s, uint16_t node, uint32_t tag)
{
	list_each(it, &s->relays) {
		struct relay *r = list_of(it, struct relay, link);

		if (r->tag == tag && r->node == node)
			return r;
	}
	return NULL;
}

static void relay_unlink(struct relay *r, struct server *s)
{
	list_remove(&r->link);
	s->relays_nr--;
}

void relay_drop(struct server *s, struct relay *r)
{
	relay_unlink(r, s);
	free(r->buffer);
	free(r);
}

enum shard_status relay_request(struct session *t, uint16_t node, const struct wire_head *h, const ProtobufCMessage *msg,
				struct err *e)
{
	struct wire_head out = *h;
	struct relay *r = NULL;
	enum shard_status st = relay_new(&r, t->server, h->op, node, h->model, e);

	if (st != SHARD_OK)
		return st;
	r->session = t->id;
	r->session_tag = h->attempt;
	out.attempt = r->tag;
	if ((st = peer_send(t->server, node, &out, msg, e)) != SHARD_OK)
		relay_drop(t->server, r);
	return st;
}

static void sent_owned(void *arg, enum shard_status st)
{
	(void)st;
	free(arg);
}

void relay_send_owned(struct conn *c, const struct wire_head *h, void *owned, uint32_t bytes)
{
	if (stream_send(conn_stream(c), h, owned, bytes, sent_owned, owned) != SHARD_OK)
		free(owned);
	else
		conn_kick(c);
}

static void send_on(struct session *t, const struct wire_head *h, const void *body, struct relay *r)
{
	struct wire_head out = *h;
	void *owned = r->buffer;

	out.attempt = r->session_tag;
	if (owned == NULL && h->body_bytes > 0) {
		owned = malloc(h->body_bytes);
		if (owned == NULL) {
			session_refuse(t, r->session_tag,
				       &(struct err){.status = SHARD_SYSTEM, .text = "no memory to pass an answer on"});
			return;
		}
		memcpy(owned, body, h->body_bytes);
	}
	r->buffer = NULL;
	relay_send_owned(t->conn, &out, owned, h->body_bytes);
}

void relay_answer(struct server *s, struct relay *r, const struct wire_head *h, const void *body)
{
	struct session *t = r->session != 0 ? session_find(s, r->session) : NULL;

	relay_unlink(r, s);
	if (r->session == 0)
		define_answered(s, r, h, body, NULL);
	else if (t != NULL && r->op == OP_SEAL)
		define_seal_accepted(t, r->model, r->session_tag, h->step);
	else if (t != NULL && r->op == OP_RESTORE)
		define_restore_accepted(t, r->session_tag, h, body);
	else if (t != NULL)
		send_on(t, h, body, r);
	free(r->buffer);
	free(r);
}

void relay_refuse(struct server *s, struct relay *r, const struct err *e)
{
	struct session *t = r->session != 0 ? session_find(s, r->session) : NULL;

	relay_unlink(r, s);
	if (r->session == 0)
		define_answered(s, r, NULL, NULL, e);
	else if (t != NULL)
		session_refuse(t, r->session_tag, e);
	free(r->buffer);
	free(r);
}

void relay_progress(struct server *s, uint16_t node, const struct wire_head *h, const Shard__Progress *body)
{
	struct relay *r = relay_find(s, node, h->attempt);
	struct session *t = r != NULL && r->session != 0 ? session_find(s, r->session) : NULL;
	struct model *m = model_find(s, h->model);
	struct core_id id = {.generation = h->generation};

	if (r == NULL || m == NULL)
		return;
	id.attempt = r->session_tag;
	if (r->session == 0)
		ckpt_progress(m, node, r->tag, body->done_bytes, body->total_bytes);
	else if (t != NULL)
		session_event(t, OP_PROGRESS, m, &id, &body->base);
}

void relay_node_gone(struct server *s, uint16_t node, const struct err *e)
{
	bool any = true;

	while (any) { /* an answer may open or close others */
		any = false;
		list_each(it, &s->relays) {
			struct relay *r = list_of(it, struct relay, link);

			if (r->node != node)
				continue;
			relay_refuse(s, r, e);
			any = true;
			break;
		}
	}
}
