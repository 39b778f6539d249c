/* SPDX-License-Identifier: Apache-2.0 */
/* relay.h: requests that this node passed on, or made itself, to another node and that are not answered yet, by tag. */
#ifndef SHARD_RELAY_H
#define SHARD_RELAY_H

#include "shard.pb-c.h"
#include "state.h"
#include "wire/frame.h"

#include <protobuf-c/protobuf-c.h>

struct relay {
	struct list link; /* in server.relays */
	uint32_t tag;
	uint16_t op, node; /* asked of that node */
	uint64_t session;  /* that asked here; 0: this node itself */
	uint32_t session_tag, model;
	void *buffer; /* of a bulk answer on its way in */
};

/* SHARD_BUSY: too many are open. */
enum shard_status relay_new(struct relay **out, struct server *s, uint16_t op, uint16_t node, uint32_t model, struct err *e);
struct relay *relay_find(struct server *s, uint16_t node, uint32_t tag);
void relay_drop(struct server *s, struct relay *r); /* its request was not sent */
/* For a session's request: passes it on as it is. */
enum shard_status relay_request(struct session *t, uint16_t node, const struct wire_head *h, const ProtobufCMessage *msg,
				struct err *e);
/* An answer came; body is packed bytes. Sends it on to the session, if that is still there. */
void relay_answer(struct server *s, struct relay *r, const struct wire_head *h, const void *body);
void relay_refuse(struct server *s, struct relay *r, const struct err *e);
/* PROGRESS of a request: to the session that made it, or to the operation here. */
void relay_progress(struct server *s, uint16_t node, const struct wire_head *h, const Shard__Progress *body);
void relay_node_gone(struct server *s, uint16_t node, const struct err *e);

/* Sends a copy or a buffer that is freed when sent. */
void relay_send_owned(struct conn *c, const struct wire_head *h, void *owned, uint32_t bytes);

#endif
