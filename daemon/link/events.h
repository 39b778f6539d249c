/* SPDX-License-Identifier: Apache-2.0 */
/* events.h: the events that links and sessions report to the layers above. link/ knows those layers
 * only by this table, which server.c sets once, before anything listens. All calls are on the loop
 * thread. None may free the session or peer that it is given. A status other than SHARD_OK closes
 * the connection with the text in e. */
#ifndef SHARD_LINK_EVENTS_H
#define SHARD_LINK_EVENTS_H

#include "base/status.h"
#include "wire/frame.h"

#include <stdbool.h>
#include <stdint.h>

struct config_node;
struct landing;
struct peer;
struct server;
struct session;

struct link_events {
	/* A session is about to be added to server.sessions. False: no memory. */
	bool (*session_opened)(struct session *t);
	/* A bulk body follows. *to says where it goes: an address, NULL (the stream buffers the
	 * body until it is whole), or STREAM_DISCARD. Where *to is an address, *l is the landing
	 * with which the owner of that memory can end the transfer. */
	enum shard_status (*session_body)(struct session *t, const struct wire_head *h, void **to,
					  struct landing **l, struct err *e);
	/* A whole frame. body is packed, or NULL if it went to the address that session_body gave.
	 */
	enum shard_status (*session_frame)(struct session *t, const struct wire_head *h,
					   const void *body, struct err *e);
	/* The connection is closed. The session is freed next. */
	void (*session_gone)(struct session *t, const char *why);

	/* The same for a link that is up. A body that came by RDMA lies at *to already. */
	enum shard_status (*node_body)(struct peer *p, const struct wire_head *h, void **to,
				       struct landing **l, struct err *e);
	enum shard_status (*node_frame)(struct peer *p, const struct wire_head *h, const void *body,
					struct err *e);
	/* The body of a frame does not match its checksum. True: that ends the attempt of the
	 * frame, and the link stays up. */
	bool (*node_damaged)(struct peer *p, const struct wire_head *h);
	void (*node_up)(struct server *s, uint16_t node);
	/* Makes room for so many nodes in everything that there is of the models. SHARD_AGAIN: that
	 * is not done yet. Any other failure: there is none now. */
	enum shard_status (*node_room)(struct server *s, uint16_t nodes_nr, struct err *e);
	/* The list of nodes has grown by this one. */
	void (*node_added)(struct server *s, uint16_t node);
	/* This node, which is in no list, asks to be taken in. SHARD_BUSY: it is to ask again. */
	enum shard_status (*node_joins)(struct server *s, const struct config_node *n,
					struct err *e);
	/* A link fell: node_going is called before its queue pairs are destroyed, node_down after.
	 */
	void (*node_going)(struct server *s, uint16_t node);
	void (*node_down)(struct server *s, uint16_t node, const struct err *why);

	/* RDMA of a link. *to is where a body over TCP would go: it may be elsewhere. Checks that
	 * the peer was allowed to write it there. */
	enum shard_status (*rdma_body)(struct peer *p, const struct wire_head *h, void **to,
				       struct err *e);
	void (*rdma_up)(struct peer *p);
	void (*rdma_down)(struct peer *p);
	void (*rdma_beat)(struct peer *p, uint64_t now_ns);
	/* True: the peer has been told of memory of this node that it may write to. */
	bool (*rdma_told)(const struct peer *p);
	/* Why tensors do not go by RDMA although it is up; NULL: they do. */
	const char *(*rdma_lacks)(const struct peer *p);
	/* The device is about to be closed: every memory region must be deregistered. */
	void (*rdma_forget)(struct server *s);
};

#endif
