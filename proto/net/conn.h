/* SPDX-License-Identifier: Apache-2.0 */
/* conn.h: a connection of the daemon that carries frames, on a libuv loop, over a unix socket or
 * TCP. All calls and callbacks are on the loop thread. conn_close() may be called at any time, also
 * in a callback. on_close is the last callback. It comes exactly once and never from inside
 * conn_close(). After it the conn is freed. */
#ifndef SHARD_NET_CONN_H
#define SHARD_NET_CONN_H

#include "net/address.h"
#include "net/stream.h"
#include "net/tls.h"

#include <uv.h>

struct conn;

struct conn_handler {
	struct stream_handler frames; /* The owner is the conn's, the stream conn_stream(c). */
	void (*on_open)(void *owner,
			struct conn *c); /* An outgoing one is connected. May be NULL. */
	void (*on_close)(void *owner, struct conn *c, const struct err *why);
	/* Called after each write, when frames have left the queue and more may be queued. Data
	 * that waits for room needs no other wake-up, because a queue that is not empty is written,
	 * or the connection closes. May be NULL. */
	void (*on_room)(void *owner, struct conn *c);
};

struct conn_conf {
	const struct conn_handler *handler;
	void *owner;
	uint32_t queue_max, body_max;
	struct stream_account *account; /* NULL: none. */
	/* A connection without a byte for this long is closed with "silent for 5.0 s". 0: never.
	 * Callers send OP_PING to keep it alive. The limit also holds for a peer that sends, but
	 * takes nothing of what waits for it. */
	uint64_t silence_ns;
	uint64_t connect_ns; /* Deadline of connecting. */
	/* TLS below the frames, over TCP. NULL: none. Its handshake is part of the opening: on_open
	 * comes before it, and the first frame after it. */
	struct tls *tls;
	const char *tls_peer; /* tls_io()'s peer. It is not read after conn_connect(). */
	/* A frame that began must go on within this time, and arrive at 64 KiB/s or more. 0:
	 * silence_ns. */
	uint64_t frame_ns;
};

enum shard_status conn_connect(struct conn **out, uv_loop_t *loop, const struct conn_address *to,
			       const struct conn_conf *conf,
			       struct err *e); /* on_open or on_close follows. */
/* Takes over a connected descriptor. */
enum shard_status conn_accept(struct conn **out, uv_loop_t *loop, int fd,
			      const struct conn_conf *conf, struct err *e);
void conn_set_owner(struct conn *c, const struct conn_handler *handler,
		    void *owner); /* For after HELLO, when the role is known. */
/* If more than held_max bytes wait for the peer, nothing more is read until half of them are
 * taken. */
void conn_set_limit(struct conn *c, uint64_t held_max);
void conn_set_silence(struct conn *c, uint64_t silence_ns);
struct stream *conn_stream(struct conn *c);  /* NULL before on_open and in on_close. */
const char *conn_name(const struct conn *c); /* "127.0.0.1:29700", "unix pid 712". */
const struct stream_stats *conn_stats(
	const struct conn *c); /* Also in on_close, when the stream is gone. */
bool conn_is_unix(const struct conn *c);
bool conn_peer(const struct conn *c, uint32_t *pid, uint32_t *uid,
	       uint32_t *gid); /* Unix credentials. False on TCP. */
enum conn_pulse { CONN_QUIET, CONN_TALKS, CONN_GONE };
enum conn_pulse conn_pulse(
	const struct conn *c); /* What lies unread in the socket: nothing, bytes, or the end. */
/* TCP: the peer's host is that of a, or a is a name. */
bool conn_from(const struct conn *c, const struct conn_address *a);
/* Supplementary groups of the peer. Returns how many, 0 on TCP. */
uint32_t conn_peer_groups(const struct conn *c, uint32_t *groups, uint32_t max);
/* Call after stream_send*(). Writes now if possible, otherwise when the socket is writable. */
void conn_kick(struct conn *c);
/* conn_kick() delays what is sent from within on_frame to the end of that read, with all that the
 * other frames of the read add. conn_kick_now() does not. It is for a frame that decides what the
 * peer does next. */
void conn_kick_now(struct conn *c);
void conn_pause(struct conn *c, bool paused); /* Stops or resumes reading. */
/* Ends the connection. What is queued is still written for at most linger_ms (so that an ERROR
 * arrives), and then the socket is closed. why may be NULL. */
void conn_close(struct conn *c, const struct err *why, uint32_t linger_ms);

struct conn_listener;
typedef void (*conn_accepted_fn)(void *owner,
				 int fd); /* Takes over fd for conn_accept() or close(). */
enum shard_status conn_listen(struct conn_listener **out, uv_loop_t *loop,
			      const struct conn_address *at, uint32_t mode /* unix */,
			      conn_accepted_fn accepted, void *owner, struct err *e);
uint16_t conn_listener_port(
	const struct conn_listener *l); /* As bound. For port 0 the kernel chose one. */
void conn_listener_close(struct conn_listener **l);

#endif
