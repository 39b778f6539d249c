/* SPDX-License-Identifier: Apache-2.0 */
/* places.h: how many connections of a daemon, and how many of its requests to other nodes, one
 * guest may have. A guest is a user on the unix socket, or an address over TCP. Links to other
 * nodes do not count here, so that the connections of guests cannot keep a node out. The requests
 * of all guests together cannot keep this node from sending requests of its own. */
#ifndef SHARD_PLACES_H
#define SHARD_PLACES_H

#include "node/state.h"

#define PLACES_SHARE_MIN 8 /* Sessions of one guest, however small connections_max is. */
#define PLACES_KEPT_MIN                                                                            \
	8 /* Plus 2 for each node: sessions beyond connections_max for tools, root and the         \
	     daemon's own user. */
#define PLACES_OPENING 128 /* Connections whose handshake is not over. */
#define PLACES_IDLE_NS                                                                             \
	(60 * NS_PER_SEC) /* A session that has used no model for so long may be closed when its   \
			     place is needed. */

#define PLACES_CALLS       (SERVER_CALLS_MAX * 3 / 4) /* Open calls of all guests together. */
#define PLACES_CALLS_SHARE (SERVER_CALLS_MAX / 4)     /* Open calls of one guest. */

struct session;

struct guest {
	struct list link;
	unsigned char key[20];
	bool root; /* Root or the daemon's own user, for whom no share counts. */
	uint32_t openings_nr, sessions_nr; /* Connections during and after the handshake. */
	uint32_t calls_nr; /* Its requests that other nodes have not answered yet. */
	uint32_t refs;     /* One for each connection, closing ones included, and for each of these
			      requests. The guest is freed with the last. */
};

struct guest *places_guest(
	struct server *s,
	int fd); /* The guest of this descriptor, with one more ref. NULL: there is none. */
void places_leave(struct guest *g); /* Drops one ref. */
/* Checks that the guest may have one more session, and closes an idle session if that is needed.
 * SHARD_BUSY: the error says whose sessions take the places, and what to do. */
enum shard_status places_sit(struct server *s, const struct guest *g, uint32_t role, int fd,
			     struct err *e);
/* Returns SHARD_BUSY with a text that says that descriptors are short. */
enum shard_status places_no_descriptor(struct err *e);
/* Count one more and one less request of the guest to another node. An open request keeps a ref to
 * the guest, because the session may end before the answer. SHARD_BUSY: the error says whose
 * requests are too many. */
enum shard_status places_ask(struct server *s, struct guest *g, struct err *e);
void places_answered(struct server *s, struct guest *g);

#endif
