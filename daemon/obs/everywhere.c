/* SPDX-License-Identifier: Apache-2.0 */
/* Answers STATUS. dispatch.c calls. Happy path for the whole cluster: this node makes its own
 * status, asks each linked node for its own in the name of the user, and merges each answer as it
 * comes. With the last one the session is answered, if it is still there. A node that cannot be
 * asked, whose link falls, or whose answer is no JSON leaves its reason in the answer, which is
 * whole without it. Nothing waits longer than a call does (link/call.c). */
#include "obs/everywhere.h"

#include "base/check.h"
#include "control/access.h"
#include "link/call.h"
#include "link/peer.h"
#include "link/session.h"
#include "model/model.h"
#include "obs/status.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct everywhere {
	struct round round;
	uint64_t session;
	uint32_t tag; /* Of the session's request. */
	json_t *root; /* This node's status, into which the others go. */
};

static enum shard_status answer(struct session *t, uint32_t tag, const char *text, struct err *e)
{
	Shard__Text body = SHARD__TEXT__INIT;

	if (text == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the status");
	body.text = (char *)(uintptr_t)text;
	model_reply(t, OP_STATUS, tag, NULL, &body.base);
	return SHARD_OK;
}

/* --- merging --- */

static const char *text_in(const json_t *o, const char *key)
{
	const char *text = json_string_value(json_object_get(o, key));

	return text != NULL ? text : "";
}

/* What the node says of its own ranks of one model. */
static void merge_world(json_t *mine, const json_t *theirs, const char *node)
{
	json_t *world = json_object_get(mine, "world"), *other = json_object_get(theirs, "world");

	for (size_t i = 0; i < json_array_size(world) && i < json_array_size(other); i++) {
		json_t *r = json_array_get(other, i);

		if (strcmp(text_in(r, "node"), node) == 0 &&
		    strcmp(text_in(json_array_get(world, i), "node"), node) == 0)
			json_array_set(world, i, r);
	}
}

/* What went over its links, for who wants to see all of them. */
static json_t *links_of(const json_t *theirs)
{
	static const char *const keys[] = {"in_bytes", "out_bytes", "transport", "state"};
	json_t *links = json_object(), *n;
	size_t i;

	json_array_foreach(json_object_get(theirs, "nodes"), i, n) {
		json_t *o = json_object();

		for (size_t k = 0; k < NR(keys) && json_object_get(n, "in_bytes") != NULL; k++)
			json_object_set(o, keys[k], json_object_get(n, keys[k]));
		if (json_object_size(o) > 0)
			json_object_set(links, text_in(n, "name"), o);
		json_decref(o);
	}
	return links;
}

void everywhere_merge(json_t *root, const char *node, const json_t *theirs)
{
	static const char *const keys[] = {
		"release", "pid",         "uptime_s", "incarnation",  "start",
		"budget",  "connections", "http",     "warm_restart", "copied_bytes"};
	json_t *all = json_object_get(root, "everywhere"), *o = json_object(), *m, *n;
	size_t i, k;

	for (i = 0; i < NR(keys); i++)
		if (json_object_get(theirs, keys[i]) != NULL)
			json_object_set(o, keys[i], json_object_get(theirs, keys[i]));
	json_object_set_new(o, "links", links_of(theirs));
	json_object_set_new(all, node, o);
	json_array_foreach(json_object_get(root, "models"), i, m)
		json_array_foreach(json_object_get(theirs, "models"), k, n)
			if (strcmp(text_in(m, "name"), text_in(n, "name")) == 0)
				merge_world(m, n, node);
}

void everywhere_no_answer(json_t *root, const char *node, const char *why)
{
	json_t *o = json_object();

	json_object_set_new(o, "error", json_string(why));
	json_object_set_new(json_object_get(root, "everywhere"), node, o);
}

bool everywhere_askable(const struct server *s, uint16_t n, char *why, size_t bytes)
{
	const struct peer *p = s->peer[n];

	why[0] = 0;
	if (server_gone(s, n))
		return false;
	if (!p->up)
		snprintf(why, bytes, "%.*s", (int)bytes - 1, p->why);
	else if (!peer_knows(p, WIRE_HEALTH))
		snprintf(why, bytes, "its release cannot be asked");
	return why[0] == 0;
}

json_t *everywhere_said(const struct wire_head *h, const void *body)
{
	Shard__Text *text = shard__text__unpack(NULL, h->body_bytes, body);
	json_t *said = text != NULL ? json_loads(text->text, 0, NULL) : NULL;

	if (text != NULL)
		shard__text__free_unpacked(text, NULL);
	return said;
}

static void end(struct everywhere *x, struct server *s)
{
	struct session *t = session_find(s, x->session);
	char *text = t != NULL ? json_dumps(x->root, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
	struct err e;

	round_end(&x->round, s);
	if (t != NULL && answer(t, x->tag, text, &e) != SHARD_OK)
		session_refuse(t, x->tag, &e);
	free(text);
	json_decref(x->root);
	free(x);
}

static void came(struct round *r, struct server *s, const struct call *c, const struct wire_head *h,
		 const void *body, const struct err *e)
{
	struct everywhere *x = list_of(r, struct everywhere, round);
	const char *node = members_name(s, c->node);
	json_t *theirs = e == NULL ? everywhere_said(h, body) : NULL;

	if (theirs != NULL)
		everywhere_merge(x->root, node, theirs);
	else
		everywhere_no_answer(x->root, node, e != NULL ? e->text : "its answer is no JSON");
	json_decref(theirs);
	if (r->out == 0)
		end(x, s);
}

static const struct round_ops ops = {.answered = came};

/* --- requests --- */

static void ask(struct everywhere *x, struct session *t, Shard__Cred *who)
{
	struct server *s = t->server;
	struct wire_head h = {.op = OP_STATUS};
	Shard__Look body = SHARD__LOOK__INIT;
	char why[200];
	struct err e;

	body.cred = who;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (s->peer[n] == NULL)
			continue;
		if (!everywhere_askable(s, n, why, sizeof(why))) {
			if (why[0] != 0)
				everywhere_no_answer(x->root, members_name(s, n), why);
		} else if (round_pass(&x->round, t, n, &h, &body.base, &e) != SHARD_OK) {
			everywhere_no_answer(x->root, members_name(s, n), e.text);
		}
	}
}

enum shard_status everywhere_request(struct session *t, const struct wire_head *h,
				     const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Look *look = (const Shard__Look *)msg;
	uint32_t groups[SESSION_GROUPS_MAX];
	enum shard_status st = SHARD_OK;
	struct everywhere *x;
	Shard__Cred who;
	char *own;

	access_cred(t, &who, groups);
	own = status_json(t->server, &who, STATUS_WHOLE);
	if (own == NULL || !look->all) {
		st = answer(t, h->attempt, own, e);
		free(own);
		return st;
	}
	x = calloc(1, sizeof(*x));
	if (x != NULL)
		x->root = json_loads(own, 0, NULL);
	free(own);
	if (x == NULL || x->root == NULL) {
		free(x);
		return err_set(e, SHARD_SYSTEM, "no memory for the status");
	}
	x->round.ops = &ops;
	x->session = t->id;
	x->tag = h->attempt;
	json_object_set_new(x->root, "everywhere", json_object());
	ask(x, t, &who);
	if (x->round.out == 0)
		end(x, t->server);
	return SHARD_OK;
}

enum shard_status everywhere_node_request(struct peer *p, const struct wire_head *h,
					  const ProtobufCMessage *msg, struct err *e)
{
	struct wire_head reply = {.op = OP_STATUS, .flags = WIRE_REPLY, .attempt = h->attempt};
	Shard__Text body = SHARD__TEXT__INIT;

	body.text = status_json(p->server, ((const Shard__Look *)msg)->cred, STATUS_OWN);
	if (body.text == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the status");
	peer_tell(p->server, p->node, &reply, &body.base);
	free(body.text);
	return SHARD_OK;
}
