/* SPDX-License-Identifier: Apache-2.0 */
/* peer.h: the link to another node: `connections` TCP connections that live and die together. The
 * node with the higher index dials. Up means: HELLO is through on all of them, with one
 * incarnation. */
#ifndef SHARD_PEER_H
#define SHARD_PEER_H

#include "net/prove.h"
#include "link/lane.h"
#include "link/rdma.h"
#include "node/state.h"
#include "shard.pb-c.h"

#define PEER_CONNECTIONS_MAX 16

struct peer_conn {
	struct peer *peer;
	struct conn *conn; /* NULL: none */
	uint32_t index;
	bool greeted;
	struct lane lane;
	struct prove prove; /* while it is being dialled */
};

struct peer {
	struct server *server;
	uint16_t node;
	uint64_t incarnation; /* of the link; 0: never linked */
	uint8_t uuid[STATIC_UUID_BYTES];
	uint64_t since_ns, redial_ns, backoff_ns;
	uint64_t began_ns; /* Accepted: when the first connection of a link that is not up yet said
			      HELLO; 0: none did. */
	uint64_t doubt_ns; /* Since when somebody else says that it is this node, so that the link
			      must show that it lives. */
	bool doubt_late;   /* It did not in time; it is looked at once more, in case this loop was
			      late itself. */
	uint64_t past_in_bytes, past_out_bytes,
		downs;            /* of connections that are gone; times that it was lost */
	bool up, leaves;          /* leaves: it said so, which is why it is down */
	char why[ERR_TEXT_BYTES]; /* it is down */
	uint64_t past_tensor_in, past_tensor_out;
	uint64_t features; /* as HELLO said */
	uint32_t rdma_queue_pairs;
	struct rdma_link rdma;
	struct log_bucket bucket;
	uint32_t conns_nr;
	struct peer_conn conns[PEER_CONNECTIONS_MAX];
};

enum shard_status peer_init(struct server *s, uint16_t node, struct err *e);
void peer_free(struct peer **p);
void peer_beat(struct peer *p, uint64_t now_ns); /* dials, pings */
/* A connection said HELLO as node p->node: takes it over, answers. */
struct hello_asked;
enum shard_status peer_greeted(struct server *s, struct conn *c, const struct hello_asked *asked,
			       const Shard__Hello *hello, struct err *e);
void peer_close(struct peer *p, const struct err *why); /* every connection of it */
void peer_leave(struct peer *p, const struct err *why); /* the same, and it hears why */
void peer_tensor_bytes(const struct peer *p, uint64_t *in,
		       uint64_t *out);     /* over its connections */
struct conn *peer_control(struct peer *p); /* NULL: down */
/* For a request, or what is repeated anyway: the caller does something about each failure.
 * SHARD_UNREACHABLE with since when and why, if it is down; SHARD_AGAIN: its queue is full. */
enum shard_status peer_send(struct server *s, uint16_t node, const struct wire_head *h,
			    const ProtobufCMessage *msg, struct err *e);
/* What nobody repeats: an answer, or news. A queue that does not take it ends the link, with a
 * sentence, because then all that waits for it ends or is asked again. Over a link that is down
 * nothing is told: nobody waits for it there. */
void peer_tell(struct server *s, uint16_t node, const struct wire_head *h,
	       const ProtobufCMessage *msg);
void peer_refuse(struct peer *p, uint32_t tag,
		 const struct err *e); /* the same, of a request of it */

#endif
