/* SPDX-License-Identifier: Apache-2.0 */
/* hello.h: what this node says of itself in HELLO, and the checks of another process's HELLO. */
#ifndef SHARD_HELLO_H
#define SHARD_HELLO_H

#include "node/state.h"
#include "shard.pb-c.h"
#include "wire/ops.h"

#define HELLO_CONFIG_MAX 160
struct hello_text { /* Memory of a Hello that is being sent. */
	Shard__Setting setting[HELLO_CONFIG_MAX], *list[HELLO_CONFIG_MAX];
	char text[16384];
	size_t used;
};
struct prove;
struct hello_asked { /* The request that this node's whole Hello answers. */
	uint32_t tag;
	struct prove
		*prove; /* The request was an AUTH, and so is the answer; NULL: both are HELLO. */
};
/* Sends this node's whole Hello to the process that sent theirs. */
enum shard_status hello_answer(struct server *s, struct conn *c, const struct hello_asked *asked,
			       const Shard__Hello *theirs, struct err *e);
/* theirs: what it answers. NULL: it comes first. */
void hello_fill(const struct server *s, Shard__Hello *hello, struct hello_text *t,
		const Shard__Hello *theirs, uint32_t connection);
/* The node's [daemon] capacity. 1 if its release does not say. */
uint32_t hello_capacity(const Shard__Hello *theirs);
/* Compares only versions. Nothing else may be compared before the proof, because an error text
 * names values of this node. */
enum shard_status hello_check_version(const struct server *s, const Shard__Hello *theirs,
				      struct err *e);
/* Compares wire version and run_id. On success the connection uses body checksums if either end
 * asks for them. */
enum shard_status hello_check(const struct server *s, const Shard__Hello *theirs, struct conn *c,
			      struct err *e);
/* Only between nodes: the shared configuration must be equal. The error names the first differing
 * key with both values.
 */
enum shard_status hello_check_node(const struct server *s, const Shard__Hello *theirs,
				   struct err *e);
/* The same of a node that is in no list yet. It says only what somebody has set there. */
enum shard_status hello_check_joins(const struct server *s, const Shard__Hello *theirs,
				    struct err *e);

#endif
