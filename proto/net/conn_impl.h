/* SPDX-License-Identifier: Apache-2.0 */
/* conn_impl.h: what conn.c (its life) and conn_dial.c (dialling, and questions about a conn) share.
 * Nobody else includes it. */
#ifndef SHARD_NET_CONN_IMPL_H
#define SHARD_NET_CONN_IMPL_H

#include "net/conn.h"

enum conn_state { CONN_DIALLING, CONN_OPEN, CONN_LINGER, CONN_CLOSING, CONN_NR };
enum { CONN_TARGETS_MAX = 4 }; /* Addresses of one name that are tried. */

struct conn_dial {
	uv_getaddrinfo_t req;
	bool resolving;
	int fd; /* Connecting, and not yet a stream's. -1: none. */
	uint32_t targets_nr, at;
	struct address_sock target[CONN_TARGETS_MAX];
};

struct conn {
	enum conn_state state;
	uv_loop_t *loop;
	uv_poll_t poll;
	uv_timer_t timer;
	uint32_t handles; /* Handles of libuv whose close callback has not come. */
	bool polling, paused, want_write, in_read, in_write;
	bool out_over;     /* OPEN, but nothing can be sent. What came in is read, then it ends. */
	int events;        /* Events that are watched for now. */
	uint64_t until_ns; /* DIALLING, LINGER: the deadline. */
	uint64_t due_ns;   /* When the timer fires. 0: not set. */
	uint64_t resumed_ns;
	/* stream_full(): nothing is read until the peer takes what it is sent. */
	bool full;
	/* With want_write: when the peer last took something, or when it was first given
	 * something. */
	uint64_t wrote_ns;
	struct conn_conf conf;
	const struct conn_handler *handler;
	void *owner;
	struct stream *stream; /* NULL before OPEN. */
	struct stream_stats last;
	struct err why;
	char name[160];
	char tls_peer[64]; /* Empty: any. */
	struct conn_dial dial;
};

extern const struct stream_handler conn_frames; /* Calls the conn's own handler. */

enum shard_status conn_new(struct conn **out, uv_loop_t *loop, const struct conn_conf *conf,
			   struct err *e);
void conn_undo(struct conn *c); /* Undoes conn_new() when nothing has begun. */
enum shard_status conn_poll_init(struct conn *c, int fd, struct err *e);
/* Makes it OPEN on a connected descriptor. After a failure the caller still owns the descriptor. */
enum shard_status conn_begin(struct conn *c, int fd, enum tls_side side, struct err *e);
void conn_arm(struct conn *c);
void conn_handle_closed(struct conn *c);
void conn_dial_cancel(struct conn *c);

#endif
