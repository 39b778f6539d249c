/* SPDX-License-Identifier: Apache-2.0 */
/* caller.h: a caller is the sender of a request that waits for the answer. It is a session of this
 * node, or another node, which asks for itself or for one of its sessions. A caller may be gone
 * before the answer is known: its session closed, or the link to its node fell, which ends every
 * request that came over that link. Code that keeps a request keeps its caller, and need not watch
 * whether the caller is still there. An answer to a caller that is gone is dropped, even when the
 * same node is linked again and its new requests carry the same tags. Loop thread only. */
#ifndef SHARD_CALLER_H
#define SHARD_CALLER_H

#include "base/status.h"
#include "node/state.h"
#include "wire/frame.h"

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

struct peer;
struct session;

struct caller {
	uint16_t node; /* The node that sent the request. This node's own index: a session here sent
			  it. */
	uint32_t tag;  /* The tag that the sender gave the request. */
	uint32_t pid;  /* Process of the trainer or tool; 0: the node did not say. */
	uint64_t session; /* The session at that node; 0: the node itself asks, or did not say. */
	uint64_t link; /* For another node: peer.downs when the request came, which tells its links
			  apart. */
};

struct caller caller_session(const struct session *t, uint32_t tag);
struct caller caller_node(const struct peer *p, uint32_t tag);

/* NULL: another node sent the request, or the session has ended. */
struct session *caller_here(struct server *s, const struct caller *a);
bool caller_waits(struct server *s, const struct caller *a);
bool caller_same(const struct caller *x, const struct caller *y);
/* h holds the op and the other header fields of the answer. The tag and WIRE_REPLY are added. */
void caller_answer(struct server *s, const struct caller *a, const struct wire_head *h,
		   const ProtobufCMessage *body);
/* The answer is this JSON as a Text, which is freed. NULL: there was no memory for it. */
void caller_answer_json(struct server *s, const struct caller *a, const struct wire_head *h,
			json_t *body);
void caller_refuse(struct server *s, const struct caller *a, const struct err *e);
/* Reports progress. To another node a report that finds a full queue is dropped, because more will
 * follow. */
void caller_progress(struct server *s, const struct caller *a, const struct wire_head *h,
		     const ProtobufCMessage *body);

#endif
