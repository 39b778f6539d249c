/* SPDX-License-Identifier: Apache-2.0 */
/* hello.h: what this node says of itself, and asks of who says who it is. */
#ifndef SHARD_HELLO_H
#define SHARD_HELLO_H

#include "node/state.h"
#include "shard.pb-c.h"
#include "wire/ops.h"

#define HELLO_CONFIG_MAX 160
struct hello_text { /* memory of a Hello being sent */
	Shard__Setting setting[HELLO_CONFIG_MAX], *list[HELLO_CONFIG_MAX];
	char text[16384];
	size_t used;
};
struct prove;
struct hello_asked { /* what a whole Hello answers */
	uint32_t tag;
	struct prove *prove; /* it was proved: the answer is AUTH with a proof; NULL: it is HELLO */
};
/* This node's whole Hello to who said theirs. */
enum shard_status hello_answer(struct server *s, struct conn *c, const struct hello_asked *asked,
			       const Shard__Hello *theirs, struct err *e);
void hello_fill(const struct server *s, Shard__Hello *hello, struct hello_text *t,
		enum wire_role role, uint32_t connection);
/* Only versions: all that counts before a proof, the rest is for who belongs here. */
enum shard_status hello_check_version(const struct server *s, const Shard__Hello *theirs,
				      struct err *e);
/* Wire versions, run_id, features. On success the conn uses the features that both want. */
enum shard_status hello_check(const struct server *s, const Shard__Hello *theirs, struct conn *c,
			      struct err *e);
/* Nodes: the shared configuration must be equal; the first differing key is named with both values.
 */
enum shard_status hello_check_node(const struct server *s, const Shard__Hello *theirs,
				   struct err *e);

#endif
