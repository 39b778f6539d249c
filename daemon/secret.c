/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon does with the cluster's secret. hello.c (connections that come in) and peer.c (those that go out) call; net/prove.c makes and
 * judges the proofs. Happy path: HELLO both ways with little in it, AUTH both ways with the rest; who dialled proves first. Who has
 * no secret, or another, is refused with SHARD_DENIED and a sentence that says which side lacks what; it is counted and logged. */
#include "secret.h"

#include "base/check.h"
#include "base/clock.h"
#include "hello.h"
#include "server.h"
#include "wire/control.h"

#include <stdlib.h>
#include <unistd.h>

enum shard_status secret_open(struct server *s, struct err *e)
{
	struct auth *a = NULL;
	enum shard_status st = s->conf->secret[0] != 0 ? auth_open(&a, s->conf->secret, e) : SHARD_OK;

	if (st != SHARD_OK)
		return st;
	auth_close(&s->auth);
	s->auth = a;
	if (a != NULL)
		log_line(s->log, LOG_LEVEL_INFO, "event=secret file=%s accepted=%u", s->conf->secret, auth_keys(a));
	return SHARD_OK;
}

enum shard_status server_reload_secret(struct server *s, struct err *e)
{
	return s->auth != NULL ? secret_open(s, e) : SHARD_OK;
}

__attribute__((format(printf, 5, 6))) static enum shard_status denied(struct server *s, struct conn *c, struct prove *p,
								      struct err *e, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	err_setv(e, SHARD_DENIED, fmt, ap);
	va_end(ap);
	p->denied = true;
	s->auth_refused++;
	log_limited(s->log, &s->auth_bucket, clock_ns(), LOG_LEVEL_WARN, "event=auth_refused from=%s why=%s", conn_name(c),
		    e->text);
	return SHARD_DENIED;
}

static const char *remedy(uint32_t role)
{
	return role == ROLE_NODE ? "set [cluster] secret on both nodes" : "give it the file, in $SHARD_SECRET or with --secret";
}

enum shard_status secret_hello(struct server *s, struct conn *c, struct prove *p, const struct wire_head *h, const void *body,
			       const Shard__Hello *theirs, struct err *e)
{
	struct wire_head reply = {.op = OP_HELLO, .flags = WIRE_REPLY, .attempt = h->attempt};
	const char *self = server_node_name(s, s->self);
	Shard__Hello mine, brief;
	struct hello_text text;
	enum shard_status st;

	if (conn_is_unix(c))
		return SHARD_OK;
	if (s->auth == NULL && (theirs->features & FEATURE_AUTH))
		return denied(s, c, p, e,
			      "the %s at %s has a cluster secret, node %s has none: set [cluster] secret on node %s, or take it "
			      "away there",
			      theirs->role == ROLE_NODE ? "node" : "client", conn_name(c), self, self);
	if (s->auth == NULL)
		return SHARD_OK;
	if (!(theirs->features & FEATURE_AUTH))
		return denied(s, c, p, e, "node %s asks over tcp for the cluster secret, %s has none: %s", self, conn_name(c),
			      remedy(theirs->role));
	prove_begin(p, AUTH_LISTENER);
	if ((st = prove_heard(p, s->auth, theirs, body, h->body_bytes, e)) != SHARD_OK)
		return st;
	hello_fill(s, &mine, &text, ROLE_NODE, theirs->connection);
	if ((st = prove_brief(p, s->auth, &mine, &brief, e)) != SHARD_OK)
		return st;
	if (stream_send_control(conn_stream(c), &reply, &brief.base) != SHARD_OK)
		return err_set(e, SHARD_SYSTEM, "no room to answer hello");
	conn_kick(c);
	return SHARD_OK;
}

/* The same words for every proof that does not hold, whatever is wrong with it. */
static enum shard_status wrong_proof(struct server *s, struct conn *c, struct prove *p, struct err *e)
{
	const char *self = server_node_name(s, s->self);

	if (p->side == AUTH_LISTENER)
		return denied(
			s, c, p, e,
			"%s did not prove that it knows the secret of node %s: it has another one, or HELLO was changed on the way",
			conn_name(c), self);
	return denied(s, c, p, e,
		      "%s did not prove to node %s that it knows the secret: something else answers there, or HELLO was changed on "
		      "the way",
		      conn_name(c), self);
}

enum shard_status secret_auth(struct server *s, struct conn *c, struct prove *p, const struct wire_head *h, const void *body,
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

		if (s->auth == NULL || !prove_theirs(p, s->auth, theirs)) {
			st = wrong_proof(s, c, p, e);
		} else {
			inner.body_bytes = (uint32_t)theirs->hello.len;
			st = server_unpack(s, &inner, &shard__hello__descriptor, theirs->hello.data, &msg, memory, e);
			*hello = (const Shard__Hello *)msg;
		}
	}
	free(outer);
	return st;
}

enum shard_status secret_prove(struct server *s, struct conn *c, struct prove *p, const struct wire_head *h,
			       const Shard__Hello *mine, struct err *e)
{
	Shard__Auth out;
	enum shard_status st = prove_own(p, s->auth, mine, &out, e);

	if (st == SHARD_OK && stream_send_control(conn_stream(c), h, &out.base) != SHARD_OK)
		st = err_set(e, SHARD_SYSTEM, "no room to prove the secret");
	if (st == SHARD_OK)
		conn_kick(c);
	return st;
}

enum shard_status secret_greet(struct server *s, struct conn *c, struct prove *p, const Shard__Hello *mine, struct err *e)
{
	struct wire_head h = {.op = OP_HELLO};
	enum shard_status st = SHARD_OK;
	Shard__Hello brief;

	prove_begin(p, AUTH_DIALLER);
	if (s->auth != NULL && (st = prove_brief(p, s->auth, mine, &brief, e)) != SHARD_OK)
		return st;
	if (stream_send_control(conn_stream(c), &h, s->auth != NULL ? &brief.base : &mine->base) != SHARD_OK)
		return err_set(e, SHARD_SYSTEM, "no room to say hello");
	conn_kick(c);
	return SHARD_OK;
}

enum shard_status secret_answered(struct server *s, struct conn *c, struct prove *p, const struct wire_head *h, const void *body,
				  const Shard__Hello *theirs, struct err *e)
{
	const char *self = server_node_name(s, s->self);

	if (s->auth != NULL && !(theirs->features & FEATURE_AUTH))
		return denied(s, c, p, e, "node %s has a cluster secret, node %.64s asks for none: %s", self, theirs->node,
			      remedy(ROLE_NODE));
	if (s->auth == NULL && (theirs->features & FEATURE_AUTH))
		return denied(s, c, p, e, "node %.64s asks for the cluster secret, node %s has none: %s", theirs->node, self,
			      remedy(ROLE_NODE));
	return s->auth == NULL ? SHARD_OK : prove_heard(p, s->auth, theirs, body, h->body_bytes, e);
}
