/* SPDX-License-Identifier: Apache-2.0 */
/* prove.h: how an end of a TCP connection proves that it knows a secret, and hears the other's
 * proof: HELLO and AUTH of the wire's README, for daemon, library and shardctl alike. What comes in
 * is unpacked already, what goes out is sent by the caller. Nodes prove to be nodes with a secret
 * of their own; a proof made for a trainer or a tool opens nothing for a node. */
#ifndef SHARD_NET_PROVE_H
#define SHARD_NET_PROVE_H

#include "net/auth.h"

#include "shard.pb-c.h"

struct prove { /* of one connection; zero: no proof is under way */
	struct auth_talk talk;
	enum auth_side side;
	bool denied;   /* the other end was refused, and it is in the log */
	bool asked;    /* both HELLOs are said: AUTH comes next */
	uint32_t role; /* enum wire_role in the other end's HELLO: what it proves to be, and nothing
			  else */
	enum auth_for with;   /* Whose secret it proved with. A listener may take a node's for a
				 client's proof. */
	unsigned char *hello; /* the whole one, packed */
	unsigned char proof[AUTH_BYTES];
};

void prove_begin(struct prove *p, enum auth_side side, enum auth_for what);
/* brief: what travels before the proofs: of whole only what the other end needs to go on, and a
 * number used once. It points into p. */
enum shard_status prove_brief(struct prove *p, const struct auth *a, const Shard__Hello *whole,
			      Shard__Hello *brief, struct err *e);
/* The other end's brief Hello as it came. SHARD_DENIED: it has no secret; SHARD_PROTOCOL: not as it
 * must be. */
enum shard_status prove_heard(struct prove *p, const struct auth *a, const Shard__Hello *theirs,
			      const void *body, uint32_t bytes, struct err *e);
/* This end's AUTH: its proof, and the whole Hello that it covers. It points into p. */
enum shard_status prove_own(struct prove *p, const struct auth *a, const Shard__Hello *whole,
			    Shard__Auth *out, struct err *e);
/* Their AUTH holds: theirs->hello is what who knows the secret said, on this connection. */
bool prove_theirs(struct prove *p, const struct auth *a, const Shard__Auth *theirs);
void prove_end(struct prove *p);

#endif
