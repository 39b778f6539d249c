/* SPDX-License-Identifier: Apache-2.0 */
/* peer.h: the link to another node. It consists of `connections` TCP connections, which all end
 * when one of them ends. The node with the higher index dials. A link is up when the handshake is
 * complete on all connections, with the same incarnation. */
#ifndef SHARD_PEER_H
#define SHARD_PEER_H

#include "net/prove.h"
#include "link/lane.h"
#include "link/rdma.h"
#include "node/state.h"
#include "shard.pb-c.h"

#define PEER_CONNECTIONS_MAX 16
/* A link between two nodes that run and reach each other is up again by then: nodes dial at most a
 * second apart. */
#define PEER_RECONNECT_NS (5 * NS_PER_SEC / 2)

struct peer_conn {
	struct peer *peer;
	struct conn *conn; /* NULL: not connected. */
	uint32_t index;
	bool greeted;
	struct lane lane;
	struct prove prove; /* During the handshake of a connection that this node dialled. */
};

struct peer {
	struct server *server;
	uint16_t node;
	uint64_t incarnation; /* Of the node at the last handshake; 0: there was none yet. */
	uint8_t uuid[STATIC_UUID_BYTES];
	uint64_t since_ns, redial_ns, backoff_ns;
	uint64_t began_ns; /* When the first connection of a link that is not up yet completed its
			      handshake; 0: none did. */
	uint64_t doubt_ns; /* When another connection claimed to be this node while the link was up,
			      so that the link must show that it is alive; 0: none did. */
	bool doubt_late; /* The link did not show it in time. It is checked once more, in case this
			    loop was late itself. */
	uint64_t past_in_bytes, past_out_bytes,
		downs;            /* Bytes of closed connections. downs: how often the link fell. */
	bool up, leaves;          /* leaves: the node said that it stops, so the link goes down. */
	char why[ERR_TEXT_BYTES]; /* Why the link is down. */
	uint64_t past_tensor_in, past_tensor_out;
	uint64_t features;   /* As in the node's HELLO. */
	uint64_t member_seq; /* The same. */
	uint32_t capacity;   /* The same. 1: it has not said. peer_capacity() is what counts. */
	uint32_t wire_minor; /* The same. */
	char release[32];    /* The same, for texts. "": it was never linked. */
	/* So many nodes it has taken in (nodes.c), and what it waits for with the next one. */
	uint16_t nodes_nr;
	char nodes_why[300];
	char ill[400]; /* nodes_ill() */
	uint32_t rdma_queue_pairs;
	struct rdma_link rdma;
	struct log_bucket bucket;
	uint32_t conns_nr;
	struct peer_conn conns[PEER_CONNECTIONS_MAX];
};

enum shard_status peer_init(struct server *s, uint16_t node, struct err *e);
void peer_free(struct peer **p);
void peer_beat(struct peer *p, uint64_t now_ns); /* Dials, and sends PINGs. */
/* A connection sent HELLO, and AUTH if asked, with the role of a node. Answers, and takes the
 * connection over as a part of that node's link. */
struct hello_asked;
/* The HELLO of the node with this name was refused. Its status says why: that says more than how
 * its last link ended. */
void peer_turned_away(struct server *s, const char *name, const struct err *why);
enum shard_status peer_greeted(struct server *s, struct conn *c, const struct hello_asked *asked,
			       const Shard__Hello *hello, struct err *e);
void peer_close(struct peer *p, const struct err *why); /* Closes all connections. */
void peer_leave(struct peer *p, const struct err *why); /* The same, and sends the reason first. */
void peer_tensor_bytes(const struct peer *p, uint64_t *in, uint64_t *out); /* Over TCP. */
struct conn *peer_control(struct peer *p); /* NULL: the link is down. */
/* Does a frame of this op travel on the connection of its chunk, or by RDMA? */
bool peer_op_of_chunk(uint16_t op);
bool peer_knows(const struct peer *p, enum wire_since what); /* Asked of a node that was linked. */
/* The first linked node whose release does not know that. NULL: all do. */
const struct peer *peer_older(const struct server *s, enum wire_since what);
/* The share of a model that the node shall hold. */
uint32_t peer_capacity(const struct peer *p);
/* Is the node away, and has been for lost_timeout, as far as this process knows, or was drained
 * meanwhile? */
bool peer_given_up(const struct peer *p, uint64_t now_ns);
/* Is it down for so short a time that it may be up again at once? */
bool peer_blinks(const struct peer *p, uint64_t now_ns);
/* For requests and for frames that are repeated anyway: the caller handles each failure.
 * SHARD_UNREACHABLE: the link is down, and the text says why; it passes if the link only blinks.
 * SHARD_AGAIN: its queue is full. */
enum shard_status peer_send(struct server *s, uint16_t node, const struct wire_head *h,
			    const ProtobufCMessage *msg, struct err *e);
/* The same, but nothing is written before peer_write(), so that several frames for a node are one
 * write. The second one takes a body that is packed already, and so may go to many nodes. h: of the
 * first of these frames, for tests that stop there. now: as conn_kick_now(). */
enum shard_status peer_queue(struct server *s, uint16_t node, const struct wire_head *h,
			     const ProtobufCMessage *msg, struct err *e);
enum shard_status peer_queue_bytes(struct server *s, uint16_t node, const struct wire_head *h,
				   const void *packed, size_t bytes, struct err *e);
void peer_write(struct server *s, uint16_t node, const struct wire_head *h, bool now);
/* For frames that are not repeated: answers and events. An answer that is too large, or has no
 * memory, is replaced by an ERROR. A queue that does not take the frame ends the link with an error
 * text, because the end of a link ends or repeats everything that waits for the frame. If the link
 * is down the frame is dropped, because the node no longer waits for it. */
void peer_tell(struct server *s, uint16_t node, const struct wire_head *h,
	       const ProtobufCMessage *msg);
void peer_refuse(struct peer *p, uint32_t tag,
		 const struct err *e); /* The same, to refuse one of the node's requests. */

#endif
