/* SPDX-License-Identifier: Apache-2.0 */
/* caller.h: who waits for an answer: a session of this node, or another node, which asks for itself
 * or for a session there. It may end before the answer is known: a session closes; the link to a
 * node falls, with which every request that came over it is over there. Whoever keeps a request
 * keeps its caller, and asks nothing more of it: an answer to a caller that is gone is dropped,
 * also where the same node is back and its new requests carry the same tags. Loop thread only. */
#ifndef SHARD_CALLER_H
#define SHARD_CALLER_H

#include "base/status.h"
#include "node/state.h"
#include "wire/frame.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

struct peer;
struct session;

struct caller {
	uint16_t node;    /* This one's own number: a session here. */
	uint32_t tag;     /* What its request is known by there. */
	uint32_t pid;     /* Of the trainer or tool; 0: the node did not say. */
	uint64_t session; /* There; 0: the node itself asks, or did not say. */
	uint64_t link;    /* Of another node: which of its links, counted by its ends. */
};

struct caller caller_session(const struct session *t, uint32_t tag);
struct caller caller_node(const struct peer *p, uint32_t tag);

/* NULL: a node's, or it has ended. */
struct session *caller_here(struct server *s, const struct caller *a);
bool caller_waits(struct server *s, const struct caller *a);
bool caller_same(const struct caller *x, const struct caller *y);
/* h: op, and what else the answer says in its head; the tag and that it is an answer are added. */
void caller_answer(struct server *s, const struct caller *a, const struct wire_head *h,
		   const ProtobufCMessage *body);
void caller_refuse(struct server *s, const struct caller *a, const struct err *e);
/* More of it comes: one that does not fit is left out. */
void caller_progress(struct server *s, const struct caller *a, const struct wire_head *h,
		     const ProtobufCMessage *body);

#endif
