/* SPDX-License-Identifier: Apache-2.0 */
/* session.h: a session is the connection of one trainer or tool. When the connection is lost the
 * trainer is lost, and must join again. */
#ifndef SHARD_SESSION_H
#define SHARD_SESSION_H

#include "link/lane.h"
#include "node/state.h"
#include "shard.pb-c.h"

#define SESSION_GROUPS_MAX 128 /* Supplementary groups. Further ones are ignored. */

struct guest;
struct trainer;

struct session_who { /* From the unix socket, at the handshake. Over TCP the user is not known. */
	bool known, root; /* root: root of this node, or the daemon's own user. */
	uint32_t uid, gid, groups_nr, groups[SESSION_GROUPS_MAX];
	const char *node; /* Name of this node. */
};

struct session {
	struct list link; /* In server.sessions. */
	struct server *server;
	struct conn *conn;
	struct guest *guest; /* The user or address that the session counts for. */
	uint64_t id, since_ns;
	uint32_t pid;
	struct session_who who;
	uint8_t role;  /* An enum wire_role. */
	bool local;    /* On the unix socket, so it shares memory. */
	bool leaves;   /* It was told that this daemon stops, or that its place is needed. */
	bool unseated; /* It is no longer counted in sessions_nr of server and guest. */
	bool uses; /* It has asked for a model. It keeps its place, and is told when a model is lost
		      or dropped. */
	struct lane lane;        /* The lane of its connection. */
	struct trainer *trainer; /* State of the layers above. Set in session_opened(). */
	uint64_t promised; /* Bytes of READs that other nodes were asked for and have not answered.
			    */
};

/* Makes a session of a connection whose handshake is complete. places_sit() comes first. */
enum shard_status session_greeted(struct server *s, struct conn *c, struct guest *guest,
				  const Shard__Hello *hello, struct err *e);
struct session *session_find(struct server *s, uint64_t id);
/* The numbers of sessions and of joins: the next one, and the one that the first comes after. A
 * member never uses one twice, and not after a restart either. */
uint64_t session_number(struct server *s);
void session_numbers_after(struct server *s, uint64_t first);
void session_close(struct session *t, enum shard_status st, const char *why);

/* Sends a control frame. A connection whose queue does not take it is closed. */
void session_tell(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg);
/* Answers to requests, with the same rule. */
void session_reply_owned(struct session *t, const struct wire_head *h, void *body); /* Frees it. */
void session_refuse(struct session *t, uint32_t tag, const struct err *e);

#endif
