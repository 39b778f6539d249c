/* SPDX-License-Identifier: Apache-2.0 */
/* places.h: how many of a daemon's connections, and of its requests to other nodes, one guest may
 * have: a user on a unix socket, an address over TCP. Links to other nodes have places of their
 * own, so nobody else's connections keep a node out; nor do all guests' requests together keep this
 * node from asking others. */
#ifndef SHARD_PLACES_H
#define SHARD_PLACES_H

#include "node/state.h"

#define PLACES_SHARE_MIN 8 /* sessions of one guest, however small connections_max is */
#define PLACES_KEPT_MIN                                                                            \
	8 /* and 2 for each node: beyond connections_max, for tools, root and the daemon's user */
#define PLACES_OPENING 128 /* connections that have not said who they are */
#define PLACES_IDLE_NS                                                                             \
	(60 * NS_PER_SEC) /* a session without a model for so long may be closed when others need  \
			     its place */

#define PLACES_CALLS       (SERVER_CALLS_MAX * 3 / 4) /* open at one time, for all guests */
#define PLACES_CALLS_SHARE (SERVER_CALLS_MAX / 4)     /* for one guest */

struct session;

struct guest {
	struct list link;
	unsigned char key[20];
	bool root; /* may have as many as there are */
	uint32_t openings_nr,
		sessions_nr; /* places taken: of who has not said who it is, and of who has */
	uint32_t calls_nr;   /* its requests that other nodes have not answered */
	uint32_t refs;       /* connections, those that are closing too, and these requests: it
				goes with the last */
};

struct guest *places_guest(
	struct server *s,
	int fd); /* of an accepted descriptor, with one more ref; NULL: there is none */
void places_leave(struct guest *g); /* one ref less */
/* A place for one more session of it. SHARD_BUSY: says whose places are taken, and what to do. */
enum shard_status places_sit(struct server *s, const struct guest *g, uint32_t role, int fd,
			     struct err *e);
enum shard_status places_no_descriptor(struct err *e); /* says so: SHARD_BUSY */
/* One more request of its to another node, and one less. It keeps the guest, whose session may end
 * before the answer. SHARD_BUSY: says whose are open. */
enum shard_status places_ask(struct server *s, struct guest *g, struct err *e);
void places_answered(struct server *s, struct guest *g);

#endif
