/* SPDX-License-Identifier: Apache-2.0 */
/* session.h: one trainer's (or tool's) connection. A lost connection is a lost trainer, who joins
 * anew. */
#ifndef SHARD_SESSION_H
#define SHARD_SESSION_H

#include "link/lane.h"
#include "node/state.h"
#include "shard.pb-c.h"

#define SESSION_GROUPS_MAX 128 /* supplementary groups; further ones do not count */

struct guest;
struct trainer;

struct session_who {      /* by the unix socket, when it was greeted; over TCP nobody is known */
	bool known, root; /* root: of this node, or the daemon's own user */
	uint32_t uid, gid, groups_nr, groups[SESSION_GROUPS_MAX];
	const char *node; /* This one's name. */
};

struct session {
	struct list link; /* in server.sessions */
	struct server *server;
	struct conn *conn;
	struct guest *guest; /* whose place it has */
	uint64_t id, since_ns;
	uint32_t pid;
	struct session_who who;
	uint8_t role;     /* enum wire_role */
	bool local;       /* unix socket: shares memory */
	bool leaves;      /* told that this daemon stops, or that others need its place */
	bool unseated;    /* its place is free already */
	bool uses;        /* It has asked for a model: it keeps its place, and hears of its end. */
	struct lane lane; /* Of its connection. */
	struct trainer *trainer; /* What the layers above keep of it; from session_opened() on. */
	uint64_t promised;       /* bytes of READs that other nodes were asked for */
};

/* The guest has a place for it: places_sit(). */
enum shard_status session_greeted(struct server *s, struct conn *c, struct guest *guest,
				  const Shard__Hello *hello, struct err *e);
struct session *session_find(struct server *s, uint64_t id);
void session_close(struct session *t, enum shard_status st, const char *why);

/* A control frame; a connection that does not take it is closed. */
void session_tell(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg);
/* Answers to requests. */
void session_reply_owned(struct session *t, const struct wire_head *h, void *body); /* frees it */
void session_refuse(struct session *t, uint32_t tag, const struct err *e);

#endif
