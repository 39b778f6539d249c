/* SPDX-License-Identifier: Apache-2.0 */
/* session.h: one trainer's (or tool's) connection. A lost connection is a lost trainer, who joins anew. */
#ifndef SHARD_SESSION_H
#define SHARD_SESSION_H

#include "access.h"
#include "outbox.h"
#include "state.h"
#include "shard.pb-c.h"

struct session {
	struct list link; /* in server.sessions */
	struct server *server;
	struct conn *conn;
	uint64_t id;
	uint32_t pid;
	struct access_who who;
	uint8_t role; /* enum wire_role */
	bool local;   /* unix socket: shares memory */
	bool leaves;  /* told that this daemon stops */
	bool defined; /* asked for a model: the coordinator hears when it goes */

	struct model *model; /* joined, or NULL; one at a time */
	uint64_t
		trainer; /* what the core knows it by: a number of its own for each join, so that an old one's end is not the new one's */
	uint32_t slot;            /* arena */
	int32_t rank;             /* in the attempt in hand; -1: not in its world */
	uint32_t local_index;     /* among the local ranks of the attempt in hand */
	bool has_image;           /* TCP: it has been sent the image and is sent what is published */
	struct outbox image;      /* TCP: chunks on their way to it */
	struct model *join_model; /* a JOIN that waits for an arena, or NULL */
	uint32_t join_tag;
	int32_t join_hint;
	uint32_t leave_tag;       /* of a LEAVE to be answered at the boundary; 0: none */
	struct model *seal_model; /* a SEAL to be answered when the image is whole, or NULL */
	uint32_t seal_tag;
	uint64_t seal_step;
	void *seal_body; /* it was a RESTORE: its answer, with this head */
	struct wire_head seal_head;
	void *passing; /* body of a WRITE that another node holds, being received */
};

enum shard_status session_greeted(struct server *s, struct conn *c, const Shard__Hello *hello, struct err *e);
struct session *session_find(struct server *s, uint64_t id);
struct session *session_trainer(struct server *s, uint64_t trainer); /* joined as */
void session_gone(struct session *t, bool leave, const char *why);   /* tells the core; why: NULL while an event is in hand */
void session_close(struct session *t, enum shard_status st, const char *why);
void session_join_waiting(struct model *m);   /* an arena is free */
void session_out_of_world(struct session *t); /* it is not in the world of an attempt any more */
void session_left(struct session *t);         /* out of every world, as it asked: LEAVE is answered */
void session_detach(struct session *t);       /* from its model: the arena goes back */

/* Answers to requests. */
void session_reply(struct session *t, uint16_t op, uint32_t tag, const struct model *m, const ProtobufCMessage *msg);
void session_refuse(struct session *t, uint32_t tag, const struct err *e);
/* Events: head carries the model's id and the attempt. */
void session_event(struct session *t, uint16_t op, const struct model *m, const struct core_id *id, const ProtobufCMessage *msg);

#endif
