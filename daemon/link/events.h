/* SPDX-License-Identifier: Apache-2.0 */
/* events.h: what links and sessions tell the layers above them, which they do not know otherwise.
 * server.c gives the table to link/ once, before anything listens. All calls are on the loop
 * thread; none may free the session or peer that it is given. A status other than SHARD_OK closes
 * the connection, with its text. */
#ifndef SHARD_LINK_EVENTS_H
#define SHARD_LINK_EVENTS_H

#include "base/status.h"
#include "wire/frame.h"

#include <stdbool.h>
#include <stdint.h>

struct landing;
struct peer;
struct server;
struct session;

struct link_events {
	/* A session is about to be listed; false: no memory. */
	bool (*session_opened)(struct session *t);
	/* A bulk body follows: *to is where it goes (NULL: the stream keeps it until it is whole;
	 * STREAM_DISCARD), *l who may end the landing where *to is memory of this node. */
	enum shard_status (*session_body)(struct session *t, const struct wire_head *h, void **to,
					  struct landing **l, struct err *e);
	/* A whole frame. body: packed, or NULL where it has landed. */
	enum shard_status (*session_frame)(struct session *t, const struct wire_head *h,
					   const void *body, struct err *e);
	/* Its connection is closed; it is freed next. */
	void (*session_gone)(struct session *t, const char *why);

	/* The same of a link that is up. A body by RDMA lies at *to already. */
	enum shard_status (*node_body)(struct peer *p, const struct wire_head *h, void **to,
				       struct landing **l, struct err *e);
	enum shard_status (*node_frame)(struct peer *p, const struct wire_head *h, const void *body,
					struct err *e);
	/* The body of a frame is not what its sum says. true: that ends the attempt that it is of,
	 * and not the link. */
	bool (*node_damaged)(struct peer *p, const struct wire_head *h);
	void (*node_up)(struct server *s, uint16_t node);
	/* Before its queue pairs are destroyed, and after. */
	void (*node_going)(struct server *s, uint16_t node);
	void (*node_down)(struct server *s, uint16_t node, const struct err *why);

	/* RDMA of a link. May that frame have been written at `to`? */
	enum shard_status (*rdma_body)(struct peer *p, const struct wire_head *h, const void *to,
				       struct err *e);
	void (*rdma_up)(struct peer *p);
	void (*rdma_down)(struct peer *p);
	void (*rdma_beat)(struct peer *p, uint64_t now_ns);
	/* The peer has been told of memory here, which it may write to. */
	bool (*rdma_told)(const struct peer *p);
	/* Why tensors do not go by RDMA although it is up; NULL: they do. */
	const char *(*rdma_lacks)(const struct peer *p);
	/* The device goes: nothing may stay registered. */
	void (*rdma_forget)(struct server *s);
};

#endif
