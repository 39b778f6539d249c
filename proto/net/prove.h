/* SPDX-License-Identifier: Apache-2.0 */
/* prove.h: how an end of a TCP connection proves that it knows a secret, and checks the other end's
 * proof. These are HELLO and AUTH of the wire's README, for daemon, library and shardctl alike. The
 * caller unpacks what comes in and sends what goes out. Nodes prove that they are nodes with a
 * secret of their own. A proof made for a trainer or a tool does not let anybody in as a node. */
#ifndef SHARD_NET_PROVE_H
#define SHARD_NET_PROVE_H

#include "net/auth.h"
#include "net/stream.h"

#include "shard.pb-c.h"

/* Of one connection. All zero means that no proof is under way. */
struct prove {
	struct auth_talk talk;
	enum auth_side side;
	bool denied; /* The other end was refused, and that is logged. */
	bool asked;  /* Both HELLOs are done, and AUTH comes next. */
	/* enum wire_role of the other end's HELLO. The proof is for this role only. */
	uint32_t role;
	/* Whose secret it proved with. A listener may accept the nodes' secret from a client. */
	enum auth_for with;
	unsigned char *hello; /* The whole Hello, packed. */
	unsigned char proof[AUTH_BYTES];
};

void prove_begin(struct prove *p, enum auth_side side, enum auth_for what);
/* Where there is TLS below, the proofs are for its channel only. Call it before prove_heard(). */
enum shard_status prove_bind(struct prove *p, const struct stream *s, struct err *e);
/* brief is the Hello that travels before the proofs. It has a nonce and only those fields of whole
 * that the other end needs to go on. It points into p. */
enum shard_status prove_brief(struct prove *p, const struct auth *a, const Shard__Hello *whole,
			      Shard__Hello *brief, struct err *e);
/* Takes the other end's brief Hello as it came. SHARD_DENIED: that end has no secret.
 * SHARD_PROTOCOL: the Hello is not as it must be. */
enum shard_status prove_heard(struct prove *p, const struct auth *a, const Shard__Hello *theirs,
			      const void *body, uint32_t bytes, struct err *e);
/* Makes this end's AUTH: its proof, and the whole Hello that the proof covers. It points into p. */
enum shard_status prove_own(struct prove *p, const struct auth *a, const Shard__Hello *whole,
			    Shard__Auth *out, struct err *e);
/* True if the proof in theirs holds. Then the peer knows the secret, and it sent theirs->hello on
 * this connection. */
bool prove_theirs(struct prove *p, const struct auth *a, const Shard__Auth *theirs);
void prove_end(struct prove *p);

#endif
