/* SPDX-License-Identifier: Apache-2.0 */
/* call.h: a request to another node that somebody waits for: a trainer's that its own node cannot
 * answer, or this node's own. Each is answered exactly once: by the node, or with why it will not
 * be (its link fell, or the deadline passed). None is on the step path. Loop thread only. */
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
	/* Either h and body (h->body_bytes of it, packed) are the answer, or e says why there is
	 * none. The call is gone when it returns; it may open others. */
	void (*answered)(struct server *s, const struct call *c, const struct wire_head *h,
			 const void *body, const struct err *e);
	/* The node works on it. NULL: nobody wants to know. */
	void (*progress)(struct server *s, const struct call *c, const Shard__Progress *body);
};

struct call {
	struct list link; /* In server.calls. */
	const struct call_ops *ops;
	uint64_t due_ns;      /* It is refused then, unless there is progress. */
	uint32_t tag;         /* What the node's answer is known by. */
	uint16_t op, node;    /* What was asked of which node. */
	uint64_t session;     /* Whose request it is; 0: this node's own. */
	struct guest *guest;  /* Of that session, which may have ended; NULL: this node's own. */
	struct round *round;  /* It is one of these; NULL: of none, or of one that has ended. */
	uint32_t session_tag; /* What the session knows it by. */
	uint32_t model;
	uint32_t promised; /* Bytes of its answer, counted in server.queued and with the session. */
};

/* Asks a node; h has op, model and what else the request says. *tag may be NULL. SHARD_BUSY: too
 * many calls are open. SHARD_UNREACHABLE, SHARD_AGAIN: as peer_send(). On failure nothing is open
 * and answered() is not called. */
enum shard_status call_node(struct server *s, uint16_t node, const struct wire_head *h,
			    const ProtobufCMessage *msg, const struct call_ops *ops, uint32_t *tag,
			    struct err *e);
/* Passes a session's request on as it is, or asks for it. ops NULL: the answer goes to the session
 * as it comes. SHARD_BUSY: its user has too many open, or all have. */
enum shard_status call_pass(struct session *t, uint16_t node, const struct wire_head *h,
			    const ProtobufCMessage *msg, const struct call_ops *ops, struct err *e);
/* The same for a bulk body, which is freed when it is sent, or at once if it cannot be. */
enum shard_status call_pass_bulk(struct session *t, uint16_t node, const struct wire_head *h,
				 void *body, struct err *e);
/* What ops NULL does with the answer, for ops of who looks at it first. */
void call_pass_back(struct server *s, const struct call *c, const struct wire_head *h,
		    const void *body, const struct err *e);

/* One question to several nodes, in whatever its asker keeps; zero is one that nobody owes
 * anything. Every answer comes once, and none after round_end(), which is due before the memory
 * goes. A part that this node does itself is out like the others', from round_own() to
 * round_took(). */
struct round_ops {
	/* As in call_ops; the node owes nothing any more. The round may end here, and its memory
	 * go. */
	void (*answered)(struct round *r, struct server *s, const struct call *c,
			 const struct wire_head *h, const void *body, const struct err *e);
	void (*progress)(struct round *r, struct server *s, const struct call *c,
			 const Shard__Progress *body);
};

struct round {
	const struct round_ops *ops; /* Set before the first question. */
	uint64_t out;                /* Nodes that owe an answer, by number. */
};

/* As call_node(). A failure is no answer: the asker decides whether the others still count. */
enum shard_status round_ask(struct round *r, struct server *s, uint16_t node,
			    const struct wire_head *h, const ProtobufCMessage *msg, uint32_t *tag,
			    struct err *e);
/* As call_pass(), for a session. */
enum shard_status round_pass(struct round *r, struct session *t, uint16_t node,
			     const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
void round_own(struct round *r, const struct server *s);
bool round_took(struct round *r, uint16_t node); /* false: that node owes nothing */
void round_end(struct round *r, struct server *s);

/* For who reads the links. NULL: no such call is open. */
struct call *call_find(struct server *s, uint16_t node, uint32_t tag);
void call_answer(struct server *s, struct call *c, const struct wire_head *h, const void *body);
void call_refuse(struct server *s, struct call *c, const struct err *e);
void call_progress(struct server *s, uint16_t node, const struct wire_head *h,
		   const Shard__Progress *body);
void call_node_gone(struct server *s, uint16_t node, const struct err *e);
void call_beat(struct server *s, uint64_t now_ns); /* deadlines */

#endif
