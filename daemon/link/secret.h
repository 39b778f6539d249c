/* SPDX-License-Identifier: Apache-2.0 */
/* secret.h: the cluster's secrets in this daemon: where they come from, and their part of each TCP
 * connection's opening. A unix socket's peers are known by their credentials and never asked, and
 * none of them is ever a node. */
#ifndef SHARD_SECRET_H
#define SHARD_SECRET_H

#include "net/prove.h"
#include "node/state.h"

/* [cluster] secret and node_secret. Also later, to read them again: a failure keeps what there is.
 */
enum shard_status secret_open(struct server *s, struct err *e);
void secret_close(struct server *s);

/* --- of a connection that came in; p is the opening's --- */
/* Its HELLO: SHARD_OK with p->asked: a proof was asked for, AUTH comes next; without: it may come
 * in as it is. */
enum shard_status secret_hello(struct server *s, struct conn *c, struct prove *p,
			       const struct wire_head *h, const void *body,
			       const Shard__Hello *theirs, struct err *e);
/* An AUTH of either side: *hello is the whole Hello that it proves, of the role that was proved. It
 * is in *memory, which the caller frees in any case. */
enum shard_status secret_auth(struct server *s, struct conn *c, struct prove *p,
			      const struct wire_head *h, const void *body,
			      const Shard__Hello **hello, void **memory, struct err *e);
/* This end's AUTH with the whole Hello. */
enum shard_status secret_prove(struct server *s, struct conn *c, struct prove *p,
			       const struct wire_head *h, const Shard__Hello *mine, struct err *e);

/* --- of one that goes out, to a node --- */
enum shard_status secret_greet(struct server *s, struct conn *c, struct prove *p,
			       const Shard__Hello *mine, struct err *e); /* HELLO */
/* The answer to it: with p->asked, secret_prove() comes next. */
enum shard_status secret_answered(struct server *s, struct conn *c, struct prove *p,
				  const struct wire_head *h, const void *body,
				  const Shard__Hello *theirs, struct err *e);

#endif
