/* SPDX-License-Identifier: Apache-2.0 */
/* secret.h: the secrets of the cluster in this daemon: reading them, and their part in the
 * handshake of each TCP connection. A process on the unix socket is known by its credentials. It is
 * never asked for a proof, and it is never accepted as a node. */
#ifndef SHARD_SECRET_H
#define SHARD_SECRET_H

#include "net/prove.h"
#include "node/state.h"

/* Reads [cluster] secret and node_secret. May be called again later, to read them anew. A failure
 * keeps the keys that are in use.
 */
enum shard_status secret_open(struct server *s, struct err *e);
/* The same in two steps, for who has more to read: nothing is in use before secret_take(), which
 * cannot fail. What was read is given to one of these two. */
struct secret_fresh {
	struct auth *auth[AUTH_FOR_NR];
	struct tls *tls;
};
enum shard_status secret_read(struct server *s, struct secret_fresh *fresh, struct err *e);
void secret_take(struct server *s, struct secret_fresh *fresh);
void secret_drop(struct secret_fresh *fresh);
void secret_close(struct server *s);

/* --- for an accepted connection; p belongs to its struct opening --- */
/* Takes its HELLO. SHARD_OK with p->asked: this node asked for a proof, and AUTH comes next.
 * SHARD_OK without p->asked: no proof is needed. */
enum shard_status secret_hello(struct server *s, struct conn *c, struct prove *p,
			       const struct wire_head *h, const void *body,
			       const Shard__Hello *theirs, struct err *e);
/* Takes the AUTH of either side. *hello is the whole Hello that the proof covers. Its role is the
 * one that was proved. It lies in *memory, which the caller frees in any case. */
enum shard_status secret_auth(struct server *s, struct conn *c, struct prove *p,
			      const struct wire_head *h, const void *body,
			      const Shard__Hello **hello, void **memory, struct err *e);
/* Sends this end's AUTH with the whole Hello. */
enum shard_status secret_prove(struct server *s, struct conn *c, struct prove *p,
			       const struct wire_head *h, const Shard__Hello *mine, struct err *e);

/* --- for a connection that this node dialled --- */
enum shard_status secret_greet(struct server *s, struct conn *c, struct prove *p,
			       const Shard__Hello *mine, struct err *e); /* Sends HELLO. */
/* Takes the answer to that HELLO. With p->asked, secret_prove() comes next. */
enum shard_status secret_answered(struct server *s, struct conn *c, struct prove *p,
				  const struct wire_head *h, const void *body,
				  const Shard__Hello *theirs, struct err *e);

#endif
