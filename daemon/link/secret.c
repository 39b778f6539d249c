/* SPDX-License-Identifier: Apache-2.0 */
/* The use of the cluster's two secrets in the handshake. accept.c calls for accepted connections
 * and peer.c for those that this node dialled, and net/prove.c makes and checks the proofs.
 * `node_secret` proves every role. `secret` proves the role of a trainer or tool, but never that of
 * a node. Happy path: both ends send a brief HELLO and then AUTH with the whole HELLO, and the end
 * that dialled proves first. An end that has no secret, or another one, is refused with
 * SHARD_DENIED and a text that says which side lacks what. Each refusal is counted and logged.
 * Where no secret is configured, `allow_unauthenticated` decides whether a connection is accepted.
 */
#include "link/secret.h"

#include "base/check.h"
#include "base/clock.h"
#include "link/channel.h"
#include "link/hello.h"
#include "server.h"
#include "wire/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *const names[AUTH_FOR_NR] = {
	[AUTH_FOR_CLIENT] = "secret", [AUTH_FOR_NODE] = "node_secret"};

enum shard_status secret_read(struct server *s, struct secret_fresh *fresh, struct err *e)
{
	const char *const files[AUTH_FOR_NR] = {
		[AUTH_FOR_CLIENT] = s->conf->secret, [AUTH_FOR_NODE] = s->conf->node_secret};
	struct auth **auth = fresh->auth;
	enum shard_status st = SHARD_OK;

	*fresh = (struct secret_fresh){.tls = NULL};
	for (int i = 0; st == SHARD_OK && i < AUTH_FOR_NR; i++)
		if (files[i][0] != 0)
			st = auth_open(&auth[i], files[i], e);
	if (st == SHARD_OK && auth[AUTH_FOR_CLIENT] != NULL && auth[AUTH_FOR_NODE] != NULL &&
	    auth_share(auth[AUTH_FOR_CLIENT], auth[AUTH_FOR_NODE]))
		st = err_set(e, SHARD_BAD_ARG,
			     "secret %.150s and node_secret %.150s have a key in common, so that "
			     "every trainer could be a node: "
			     "make another with `shardctl secret new FILE`",
			     s->conf->secret, s->conf->node_secret);
	if (st == SHARD_OK)
		st = channel_make(&fresh->tls, s->conf, members_name(s, s->self),
				  auth[AUTH_FOR_CLIENT], auth[AUTH_FOR_NODE], e);
	if (st != SHARD_OK)
		secret_drop(fresh);
	return st;
}

void secret_take(struct server *s, struct secret_fresh *fresh)
{
	const char *const files[AUTH_FOR_NR] = {
		[AUTH_FOR_CLIENT] = s->conf->secret, [AUTH_FOR_NODE] = s->conf->node_secret};

	secret_close(s);
	s->secret.tls = fresh->tls;
	channel_log(s->conf, s->secret.tls, s->log);
	for (int i = 0; i < AUTH_FOR_NR; i++) {
		s->secret.auth[i] = fresh->auth[i];
		if (fresh->auth[i] != NULL)
			log_line(s->log, LOG_LEVEL_INFO,
				 "event=secret option=%s file=%s accepted=%u", names[i], files[i],
				 auth_keys(fresh->auth[i]));
	}
	*fresh = (struct secret_fresh){.tls = NULL};
}

void secret_drop(struct secret_fresh *fresh)
{
	for (int i = 0; i < AUTH_FOR_NR; i++)
		auth_close(&fresh->auth[i]);
	tls_close(&fresh->tls);
}

enum shard_status secret_open(struct server *s, struct err *e)
{
	struct secret_fresh fresh;
	enum shard_status st = secret_read(s, &fresh, e);

	if (st == SHARD_OK)
		secret_take(s, &fresh);
	return st;
}

void secret_close(struct server *s)
{
	for (int i = 0; i < AUTH_FOR_NR; i++)
		auth_close(&s->secret.auth[i]);
	tls_close(&s->secret.tls);
}

__attribute__((format(printf, 5, 6))) static enum shard_status denied(
	struct server *s, struct conn *c, struct prove *p, struct err *e, const char *fmt, ...)
{
	uint32_t times;
	char what[160];
	va_list ap;

	va_start(ap, fmt);
	err_setv(e, SHARD_DENIED, fmt, ap);
	va_end(ap);
	p->denied = true;
	s->secret.refused++;
	s->secret.last_ns = clock_ns();
	snprintf(s->secret.last_why, sizeof(s->secret.last_why), "%s", e->text);
	/* Who has another secret tries each second, from another port each time. */
	snprintf(what, sizeof(what), "%.*s %.120s", (int)strcspn(conn_name(c), ":"), conn_name(c),
		 e->text);
	if (!log_fold(&s->secret.fold, s->secret.last_ns, what, &times))
		return SHARD_DENIED;
	if (times > 0)
		log_limited(s->log, &s->secret.bucket, s->secret.last_ns, LOG_LEVEL_WARN,
			    "event=auth_refused from=%s again=%u why=%s", conn_name(c), times,
			    e->text);
	else
		log_limited(s->log, &s->secret.bucket, s->secret.last_ns, LOG_LEVEL_WARN,
			    "event=auth_refused from=%s why=%s", conn_name(c), e->text);
	return SHARD_DENIED;
}

static const char *remedy(uint32_t role)
{
	return role == ROLE_NODE ? "set [cluster] node_secret on both nodes"
				 : "give it the file, in $SHARD_SECRET or with --secret";
}

/* The keys of this kind, if a listener accepts them as a proof of this role. node_secret proves
 * every role, secret proves all but that of a node. The first kind that is accepted is the one that
 * HELLO asks for. */
static const struct auth *accepted(const struct server *s, uint32_t role, enum auth_for which)
{
	return role != ROLE_NODE || which == AUTH_FOR_NODE ? s->secret.auth[which] : NULL;
}

/* Without a secret only the sender's address can be checked. Host names in [nodes] are not resolved
 * here, and count as a match. */
static bool from_nodes(const struct server *s, const struct conn *c)
{
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (conn_from(c, &s->node[n].address))
			return true;
	return false;
}

/* A connection over TCP whose HELLO offers no proof. */
static enum shard_status unproved(struct server *s, struct conn *c, struct prove *p,
				  const Shard__Hello *theirs, struct err *e)
{
	const char *self = members_name(s, s->self);
	bool node = theirs->role == ROLE_NODE;

	if (s->secret.auth[node ? AUTH_FOR_NODE : AUTH_FOR_CLIENT] != NULL)
		return denied(s, c, p, e, "node %s asks over tcp for the %s, %s has none: %s", self,
			      node ? "nodes' secret" : "cluster secret", conn_name(c),
			      remedy(theirs->role));
	if (s->conf->tls == TLS_MTLS) /* The certificate was the proof. */
		return SHARD_OK;
	if (!s->conf->allow_unauthenticated)
		return denied(s, c, p, e,
			      "node %s lets nobody in over tcp who proves nothing: set [cluster] "
			      "%s on node %s, %sor set "
			      "allow_unauthenticated = yes there",
			      self, node ? "node_secret" : "secret", self,
			      node ? "" : "connect through the unix socket of a node, ");
	if (node && !from_nodes(s, c))
		return denied(s, c, p, e,
			      "%s is none of the addresses in [nodes] of node %s, and without a "
			      "[cluster] node_secret nothing else "
			      "says that node \"%.64s\" is there: set node_secret on all nodes",
			      conn_name(c), self, theirs->node);
	return SHARD_OK;
}

enum shard_status secret_hello(struct server *s, struct conn *c, struct prove *p,
			       const struct wire_head *h, const void *body,
			       const Shard__Hello *theirs, struct err *e)
{
	struct wire_head reply = {.op = OP_HELLO, .flags = WIRE_REPLY, .attempt = h->attempt};
	bool node = theirs->role == ROLE_NODE;
	const char *self = members_name(s, s->self);
	const struct auth *a = accepted(s, theirs->role, AUTH_FOR_CLIENT);
	Shard__Hello mine, brief;
	struct hello_text text;
	enum shard_status st;

	if (conn_is_unix(c) && node)
		return denied(s, c, p, e,
			      "%s says that it is node \"%.64s\": nodes come over tcp, never "
			      "through the unix socket",
			      conn_name(c), theirs->node);
	if (conn_is_unix(c))
		return SHARD_OK;
	if (!(theirs->features & FEATURE_AUTH))
		return unproved(s, c, p, theirs, e);
	if (a == NULL)
		a = accepted(s, theirs->role, AUTH_FOR_NODE);
	if (a == NULL)
		return denied(s, c, p, e,
			      "the %s at %s has a %s, node %s has none: set [cluster] %s on node "
			      "%s, or take it away there",
			      node ? "node" : "client", conn_name(c),
			      node ? "nodes' secret" : "cluster secret", self,
			      node ? "node_secret" : "secret", self);
	prove_begin(p, AUTH_LISTENER, node ? AUTH_FOR_NODE : AUTH_FOR_CLIENT);
	if ((st = prove_bind(p, conn_stream(c), e)) != SHARD_OK ||
	    (st = prove_heard(p, a, theirs, body, h->body_bytes, e)) != SHARD_OK)
		return st;
	hello_fill(s, &mine, &text, theirs, theirs->connection);
	if ((st = prove_brief(p, a, &mine, &brief, e)) != SHARD_OK)
		return st;
	if (stream_send_control(conn_stream(c), &reply, &brief.base) != SHARD_OK)
		return err_set(e, SHARD_SYSTEM, "no room to answer hello");
	conn_kick(c);
	return SHARD_OK;
}

/* The same text for every wrong proof, whatever is wrong with it, so that it gives nothing away. */
static enum shard_status wrong_proof(struct server *s, struct conn *c, struct prove *p,
				     struct err *e)
{
	const char *self = members_name(s, s->self);

	if (p->side == AUTH_LISTENER)
		return denied(s, c, p, e,
			      "%s did not prove that it knows the secret of node %s: it has "
			      "another one, or HELLO was changed on the way",
			      conn_name(c), self);
	return denied(s, c, p, e,
		      "%s did not prove to node %s that it knows the secret: something else "
		      "answers there, or HELLO was changed on "
		      "the way",
		      conn_name(c), self);
}

/* Checks the proof with each secret that is accepted for its role. p->with says which one matched,
 * and the answer is made with that one. */
static bool right(struct server *s, struct prove *p, const Shard__Auth *theirs)
{
	for (int i = 0; i < AUTH_FOR_NR; i++) {
		const struct auth *a = p->side == AUTH_LISTENER
					       ? accepted(s, p->role, (enum auth_for)i)
				       : i == AUTH_FOR_NODE ? s->secret.auth[i]
							    : NULL;

		p->with = (enum auth_for)i;
		if (a != NULL && prove_theirs(p, a, theirs))
			return true;
	}
	return false;
}

enum shard_status secret_auth(struct server *s, struct conn *c, struct prove *p,
			      const struct wire_head *h, const void *body,
			      const Shard__Hello **hello, void **memory, struct err *e)
{
	struct wire_head inner = {.op = OP_HELLO};
	const ProtobufCMessage *msg;
	enum shard_status st;
	void *outer;

	*memory = NULL;
	st = server_unpack(s, h, &shard__auth__descriptor, body, &msg, &outer, e);
	if (st == SHARD_OK) {
		const Shard__Auth *theirs = (const Shard__Auth *)msg;

		if (!right(s, p, theirs)) {
			st = wrong_proof(s, c, p, e);
		} else {
			inner.body_bytes = (uint32_t)theirs->hello.len;
			st = server_unpack(s, &inner, &shard__hello__descriptor, theirs->hello.data,
					   &msg, memory, e);
			*hello = (const Shard__Hello *)msg;
		}
		if (st == SHARD_OK && (*hello)->role != p->role)
			st = denied(s, c, p, e,
				    "%s proved to have role %u, and then says that it has role %u",
				    conn_name(c), p->role, (*hello)->role);
	}
	free(outer);
	return st;
}

enum shard_status secret_prove(struct server *s, struct conn *c, struct prove *p,
			       const struct wire_head *h, const Shard__Hello *mine, struct err *e)
{
	Shard__Auth out;
	enum shard_status st =
		prove_own(p, s->secret.auth[p->side == AUTH_DIALLER ? AUTH_FOR_NODE : p->with],
			  mine, &out, e);

	CHECK(p->asked);
	if (st == SHARD_OK && stream_send_control(conn_stream(c), h, &out.base) != SHARD_OK)
		st = err_set(e, SHARD_SYSTEM, "no room to prove the secret");
	if (st == SHARD_OK)
		conn_kick(c);
	return st;
}

enum shard_status secret_greet(struct server *s, struct conn *c, struct prove *p,
			       const Shard__Hello *mine, struct err *e)
{
	struct wire_head h = {.op = OP_HELLO};
	const struct auth *a = s->secret.auth[AUTH_FOR_NODE];
	enum shard_status st = SHARD_OK;
	Shard__Hello brief;

	prove_begin(p, AUTH_DIALLER, AUTH_FOR_NODE);
	if (a != NULL && (st = prove_brief(p, a, mine, &brief, e)) != SHARD_OK)
		return st;
	if (stream_send_control(conn_stream(c), &h, a != NULL ? &brief.base : &mine->base) !=
	    SHARD_OK)
		return err_set(e, SHARD_SYSTEM, "no room to say hello");
	conn_kick(c);
	return SHARD_OK;
}

enum shard_status secret_answered(struct server *s, struct conn *c, struct prove *p,
				  const struct wire_head *h, const void *body,
				  const Shard__Hello *theirs, struct err *e)
{
	const struct auth *a = s->secret.auth[AUTH_FOR_NODE];
	const char *self = members_name(s, s->self);

	if (a != NULL && !(theirs->features & FEATURE_AUTH))
		return denied(s, c, p, e,
			      "node %s has a nodes' secret, node %.64s asks for none: %s", self,
			      theirs->node, remedy(ROLE_NODE));
	if (a == NULL && (theirs->features & FEATURE_AUTH))
		return denied(s, c, p, e,
			      "node %.64s asks for the nodes' secret, node %s has none: %s",
			      theirs->node, self, remedy(ROLE_NODE));
	if (a == NULL || prove_bind(p, conn_stream(c), e) != SHARD_OK)
		return a == NULL ? SHARD_OK : e->status;
	return prove_heard(p, a, theirs, body, h->body_bytes, e);
}
