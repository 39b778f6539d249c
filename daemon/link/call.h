/* SPDX-License-Identifier: Apache-2.0 */
/* call.h: a call is a request to another node whose answer is awaited. It is either the request of
 * a session that this node cannot answer, or a request of this node itself. Each call ends exactly
 * once: with the answer of the node, or with an error (the link fell, or the deadline passed). No
 * call is on the step path. Loop thread only. */
#ifndef SHARD_CALL_H
#define SHARD_CALL_H

#include "shard.pb-c.h"
#include "node/state.h"
#include "wire/frame.h"

#include <protobuf-c/protobuf-c.h>

struct call;
struct guest;
struct round;
struct session;

struct call_ops {
	/* Either h and body (packed, h->body_bytes long) are the answer, or e says why there is
	 * none. The call is freed when this function returns. The function may open other calls. */
	void (*answered)(struct server *s, const struct call *c, const struct wire_head *h,
			 const void *body, const struct err *e);
	/* The node reported progress. NULL: a report goes to the session of the call, if it has
	 * one. */
	void (*progress)(struct server *s, const struct call *c, const Shard__Progress *body);
};

struct call {
	struct list link; /* In server.calls. */
	const struct call_ops *ops;
	uint64_t due_ns;      /* Deadline. Each report of progress moves it. */
	uint32_t tag;         /* The node's answer carries it. */
	uint16_t op, node;    /* The op of the request, and the node that it was sent to. */
	uint64_t session;     /* The session that sent the request; 0: this node did. */
	struct guest *guest;  /* The guest of that session, which may have ended; NULL: this node's
				 own request. */
	struct round *round;  /* The round of this call; NULL: none, or it has ended. */
	uint32_t session_tag; /* The tag of the session's own request. */
	uint32_t model;
	uint32_t promised; /* Expected bytes of the answer, counted in server.queued and
			      session.promised. */
};

/* Sends a request of this node to another node. h holds the op, the model and the other fields of
 * the request; the tag is filled in. tag may be NULL. SHARD_BUSY: too many calls are open.
 * SHARD_UNREACHABLE, SHARD_AGAIN: as in peer_send(). On failure no call is open and answered() is
 * not called. */
enum shard_status call_node(struct server *s, uint16_t node, const struct wire_head *h,
			    const ProtobufCMessage *msg, const struct call_ops *ops, uint32_t *tag,
			    struct err *e);
/* Sends a request to another node on behalf of a session: the session's own request, or one that is
 * needed to answer it. ops NULL: the answer goes to the session unchanged. SHARD_BUSY: too many
 * calls of this guest or of all guests are open, or too many bytes are on their way. */
enum shard_status call_pass(struct session *t, uint16_t node, const struct wire_head *h,
			    const ProtobufCMessage *msg, const struct call_ops *ops, struct err *e);
/* The same for a request with a bulk body. The body is freed when it is sent, or at once if it
 * cannot be sent. */
enum shard_status call_pass_bulk(struct session *t, uint16_t node, const struct wire_head *h,
				 void *body, struct err *e);
/* The same to each of these nodes, which are not this one. The body is copied. The session gets one
 * answer: that of the last node to answer, or the first refusal. On failure some nodes may have
 * been sent the request already. */
enum shard_status call_pass_bulk_all(struct session *t, uint64_t nodes, const struct wire_head *h,
				     const void *body, struct err *e);
/* Gives the answer to the session, as ops NULL does. For an answered() that looks at the answer
 * first. */
void call_pass_back(struct server *s, const struct call *c, const struct wire_head *h,
		    const void *body, const struct err *e);

/* A round is one question to several nodes. It lies in a struct of the asker; zeroed memory is a
 * round in which no node owes an answer. Every answer comes once, and none comes after round_end(),
 * which must be called before the round's memory is freed. This node's own share of the work counts
 * as owed from round_own() to round_took(). */
struct round_ops {
	/* As in call_ops. The node no longer owes an answer. This function may end the round and
	 * free its memory. */
	void (*answered)(struct round *r, struct server *s, const struct call *c,
			 const struct wire_head *h, const void *body, const struct err *e);
	void (*progress)(struct round *r, struct server *s, const struct call *c,
			 const Shard__Progress *body);
};

struct round {
	const struct round_ops *ops; /* Set before the first question. */
	uint64_t out;                /* Nodes that owe an answer, by number. */
};

/* As call_node(). A failure is not reported as an answer: the asker decides whether the answers of
 * the other nodes still count. */
enum shard_status round_ask(struct round *r, struct server *s, uint16_t node,
			    const struct wire_head *h, const ProtobufCMessage *msg, uint32_t *tag,
			    struct err *e);
/* As call_pass(), on behalf of a session. */
enum shard_status round_pass(struct round *r, struct session *t, uint16_t node,
			     const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
void round_own(struct round *r, const struct server *s);
bool round_took(struct round *r, uint16_t node); /* False: that node owes no answer. */
void round_end(struct round *r, struct server *s);

/* From here on: for dispatch.c and the beat. call_find() returns NULL if no such call is open. */
struct call *call_find(struct server *s, uint16_t node, uint32_t tag);
uint32_t call_tag(struct server *s); /* A new tag, for what asks other nodes in its own way. */
void call_answer(struct server *s, struct call *c, const struct wire_head *h, const void *body);
void call_refuse(struct server *s, struct call *c, const struct err *e);
void call_progress(struct server *s, uint16_t node, const struct wire_head *h,
		   const Shard__Progress *body);
void call_node_gone(struct server *s, uint16_t node, const struct err *e);
/* That node does not have the model any more that they are about, for now. */
void call_model_gone(struct server *s, uint16_t node, uint32_t model, const struct err *e);
void call_beat(struct server *s, uint64_t now_ns); /* Refuses calls whose deadline has passed. */

#endif
