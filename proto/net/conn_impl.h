/* SPDX-License-Identifier: Apache-2.0 */
/* conn_impl.h: what conn.c (life) and conn_dial.c (becoming connected, small questions) share.
 * Nobody else includes it. */
#ifndef SHARD_NET_CONN_IMPL_H
#define SHARD_NET_CONN_IMPL_H

#include "net/conn.h"

enum conn_state { CONN_DIALLING, CONN_OPEN, CONN_LINGER, CONN_CLOSING, CONN_NR };
enum { CONN_TARGETS_MAX = 4 }; /* addresses of one name that are tried */

struct conn_dial {
	uv_getaddrinfo_t req;
	bool resolving;
	int fd; /* connecting, not yet a stream's; -1: none */
	uint32_t targets_nr, at;
	struct address_sock target[CONN_TARGETS_MAX];
};

struct conn {
	enum conn_state state;
	uv_loop_t *loop;
	uv_poll_t poll;
	uv_timer_t timer;
	uint32_t handles; /* of libuv, that have not called back after uv_close() */
	bool polling, paused, want_write, in_read, in_write;
	bool out_over;     /* OPEN, and nothing can be sent: what came in is read, then it ends */
	int events;        /* watched for now */
	uint64_t until_ns; /* DIALLING, LINGER: the end of patience */
	uint64_t due_ns;   /* when the timer rings; 0: not set */
	uint64_t resumed_ns;
	bool full;         /* nothing is read until the peer takes what it is sent: stream_full() */
	uint64_t wrote_ns; /* want_write: when the other end took something last, or was first given
			      it */
	struct conn_conf conf;
	const struct conn_handler *handler;
	void *owner;
	struct stream *stream; /* NULL before OPEN */
	struct stream_stats last;
	struct err why;
	char name[160];
	struct conn_dial dial;
};

extern const struct stream_handler conn_frames; /* hands on to the conn's own handler */

enum shard_status conn_new(struct conn **out, uv_loop_t *loop, const struct conn_conf *conf,
			   struct err *e);
void conn_undo(struct conn *c); /* of conn_new(), when nothing has begun */
enum shard_status conn_poll_init(struct conn *c, int fd, struct err *e);
/* OPEN on a connected descriptor; a failure leaves the descriptor to the caller. */
enum shard_status conn_begin(struct conn *c, int fd, struct err *e);
void conn_arm(struct conn *c);
void conn_handle_closed(struct conn *c);
void conn_dial_cancel(struct conn *c);

#endif
