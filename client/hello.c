// SPDX-License-Identifier: Apache-2.0
/* The opening of a connection: HELLO, and over tcp with a secret the proofs both ways
 * (net/prove.h). shard_connect() calls it once, with the lock, before anything else is sent. Happy
 * path: the versions fit, and the daemon knows the secret if this end has one. It fails with
 * SHARD_VERSION, SHARD_PROTOCOL, SHARD_DENIED (only one side has a secret, or they differ),
 * SHARD_TIMEOUT, or the daemon's refusal. */
#include "handle.h"

#include "net/prove.h"
#include "secure.h"

#include <stdio.h>
#include <unistd.h>

/* Sends msg as op and waits for the answer. A failure's text says how long it waited, or what the
 * daemon said before it closed. */
static enum shard_status ask(struct shard_client *c, struct request *r, const char *name,
			     const ProtobufCMessage *msg, struct wait *w)
{
	enum shard_status rc = request_send(r, (struct wire_head){0}, msg, w);

	if (rc == SHARD_OK)
		rc = request_wait(r, w);
	if (rc == SHARD_TIMEOUT)
		text_fail(rc,
			  "shardd at %s accepted the connection, but did not answer %s in %.1f s: "
			  "is it stopped, or does it hang? see its log",
			  c->address, name, wait_seconds(w));
	else if (rc == SHARD_CLOSED && c->last_words.status != SHARD_OK)
		rc = text_fail(c->last_words.status, "shardd at %s refused %s: %.380s", c->address,
			       name, c->last_words.text);
	return rc;
}

static enum shard_status unreadable(const struct shard_client *c, const char *name)
{
	return text_fail(SHARD_PROTOCOL, "shardd at %s answered %s with what cannot be read",
			 c->address, name);
}

static enum shard_status check(const struct shard_client *c, const Shard__Hello *h,
			       const struct auth *auth)
{
	if (h->wire_min > WIRE_VERSION || h->wire_max < WIRE_VERSION)
		return text_fail(SHARD_VERSION,
				 "shardd %.40s at %s speaks wire %u-%u, this library %s speaks "
				 "1-1: upgrade the older one",
				 h->release, c->address, h->wire_min, h->wire_max, SHARD_RELEASE);
	if (auth != NULL && !(h->features & FEATURE_AUTH))
		return text_fail(SHARD_DENIED,
				 "shardd at %s asks for no secret, and this end has one: set "
				 "[cluster] secret there, or give none here",
				 c->address);
	if (auth == NULL && (h->features & FEATURE_AUTH))
		return text_fail(SHARD_DENIED,
				 "shardd at %s asks for the cluster secret: give its file, as "
				 "`secret` or in SHARD_SECRET",
				 c->address);
	return SHARD_OK;
}

/* Over TCP with a secret only a hello that was proved says it. */
static void note_run(struct shard_client *c, const Shard__Hello *h)
{
	if (h != NULL && h->run_id[0] != 0)
		snprintf(c->run_id, sizeof(c->run_id), "%s", h->run_id);
}

static enum shard_status proofs(struct shard_client *c, struct prove *p, const struct auth *auth,
				const Shard__Hello *whole, struct wait *w)
{
	struct request *r = request_new(c, OP_AUTH, 0);
	Shard__Auth mine, *theirs = NULL;
	enum shard_status rc;
	struct err e;

	if (r == NULL)
		return SHARD_SYSTEM;
	rc = prove_own(p, auth, whole, &mine, &e) == SHARD_OK ? ask(c, r, "AUTH", &mine.base, w)
							      : text_fail_err(&e);
	if (rc == SHARD_OK && (theirs = shard__auth__unpack(NULL, r->body_bytes, r->body)) == NULL)
		rc = unreadable(c, "AUTH");
	if (rc == SHARD_OK && !prove_theirs(p, auth, theirs))
		rc = text_fail(SHARD_DENIED,
			       "shardd at %s did not prove that it knows the secret: something "
			       "else answers there, or HELLO was changed "
			       "on the way",
			       c->address);
	if (rc == SHARD_OK) {
		Shard__Hello *h = shard__hello__unpack(NULL, theirs->hello.len, theirs->hello.data);

		note_run(c, h);
		if (h != NULL)
			shard__hello__free_unpacked(h, NULL);
	}
	if (theirs != NULL)
		shard__auth__free_unpacked(theirs, NULL);
	request_free(r);
	return rc;
}

static enum shard_status greet(struct shard_client *c, struct prove *p, const struct auth *auth,
			       const struct tls *tls, struct wait *w)
{
	Shard__Hello whole = SHARD__HELLO__INIT, brief, *theirs = NULL;
	struct request *r = request_new(c, OP_HELLO, 0);
	enum shard_status rc;
	struct err e;

	if (r == NULL)
		return SHARD_SYSTEM;
	whole.wire_min = whole.wire_max = WIRE_VERSION;
	whole.features = FEATURE_BODY_SUM;
	whole.role = ROLE_TRAINER;
	whole.pid = (uint32_t)getpid();
	whole.release = (char *)(uintptr_t)
		SHARD_RELEASE; /* protobuf-c's structs are not const. Packing only reads. */
	if (auth != NULL && prove_brief(p, auth, &whole, &brief, &e) != SHARD_OK)
		rc = text_fail_err(&e);
	else
		rc = ask(c, r, "HELLO", auth != NULL ? &brief.base : &whole.base, w);
	if (rc == SHARD_OK && (theirs = shard__hello__unpack(NULL, r->body_bytes, r->body)) == NULL)
		rc = unreadable(c, "HELLO");
	if (rc == SHARD_OK)
		rc = check(c, theirs, auth);
	if (rc == SHARD_OK &&
	    secure_check(c->stream, tls, theirs->node, c->address, &e) != SHARD_OK)
		rc = text_fail_err(&e);
	if (rc == SHARD_OK && auth != NULL) {
		rc = prove_bind(p, c->stream, &e);
		if (rc == SHARD_OK)
			rc = prove_heard(p, auth, theirs, r->body, r->body_bytes, &e);
		rc = rc == SHARD_OK ? proofs(c, p, auth, &whole, w) : text_fail_err(&e);
	}
	if (rc == SHARD_OK) {
		c->wire_minor = theirs->wire_minor;
		note_run(c, theirs);
		stream_features(
			c->stream,
			theirs->features |
				FEATURE_BODY_SUM); /* Off only if both left it out, so never. */
		stream_set_body_max(c->stream, WIRE_CONTROL_MAX);
	}
	if (theirs != NULL)
		shard__hello__free_unpacked(theirs, NULL);
	request_free(r);
	return rc;
}

enum shard_status hello_say(struct shard_client *c, const struct auth *auth, const struct tls *tls,
			    struct wait *w)
{
	struct prove p;
	enum shard_status rc;

	prove_begin(&p, AUTH_DIALLER, AUTH_FOR_CLIENT);
	rc = greet(c, &p, auth, tls, w);
	prove_end(&p);
	return rc;
}
