/* SPDX-License-Identifier: Apache-2.0 */
/* conn.h: the transport contract of the daemon: a connection that carries frames, on a libuv loop.
 * Unix sockets and TCP stand behind it (RDMA will). All calls and callbacks on the loop thread.
 * Lifetime: conn_close() may be called at any time, also in a callback; on_close is the last
 * callback, comes exactly once and never from inside conn_close(); after it the conn is gone. */
#ifndef SHARD_NET_CONN_H
#define SHARD_NET_CONN_H

#include "net/address.h"
#include "net/stream.h"

#include <uv.h>

struct conn;

struct conn_handler {
	struct stream_handler frames; /* owner is the conn's owner; the stream is conn_stream(c) */
	void (*on_open)(void *owner,
			struct conn *c); /* outgoing: connected; may be NULL for accepted ones */
	void (*on_close)(void *owner, struct conn *c, const struct err *why);
	/* After each write: frames have left the queue, so more may be queued. What waits for room
	 * needs no other wake-up, because a queue that is not empty is written, or the connection
	 * closes. May be NULL. */
	void (*on_room)(void *owner, struct conn *c);
};

struct conn_conf {
	const struct conn_handler *handler;
	void *owner;
	uint32_t queue_max, body_max;
	struct stream_account *account; /* NULL: none */
	/* No byte for so long: closed with "silent for 5.0 s"; 0: never. Callers send OP_PING to
	 * keep it alive. The same for an other end that talks, but takes nothing of what waits for
	 * it. */
	uint64_t silence_ns;
	uint64_t connect_ns; /* deadline of connecting */
	uint64_t frame_ns;   /* a frame that began must go on within this, and make 64 KiB/s; 0:
				silence_ns */
};

enum shard_status conn_connect(struct conn **out, uv_loop_t *loop, const struct conn_address *to,
			       const struct conn_conf *conf,
			       struct err *e); /* later on_open or on_close */
/* Takes over a connected descriptor. */
enum shard_status conn_accept(struct conn **out, uv_loop_t *loop, int fd,
			      const struct conn_conf *conf, struct err *e);
void conn_set_owner(struct conn *c, const struct conn_handler *handler,
		    void *owner); /* after HELLO says what it is */
/* More bytes than these may not wait to be taken: nothing more is read until half of them are. */
void conn_set_limit(struct conn *c, uint64_t held_max);
void conn_set_silence(struct conn *c, uint64_t silence_ns);
struct stream *conn_stream(struct conn *c);  /* NULL before on_open and in on_close */
const char *conn_name(const struct conn *c); /* "127.0.0.1:29700", "unix pid 712" */
const struct stream_stats *conn_stats(
	const struct conn *c); /* also in on_close, when the stream is gone */
bool conn_is_unix(const struct conn *c);
bool conn_peer(const struct conn *c, uint32_t *pid, uint32_t *uid,
	       uint32_t *gid); /* unix credentials; false on TCP */
enum conn_pulse { CONN_QUIET, CONN_TALKS, CONN_GONE };
enum conn_pulse conn_pulse(
	const struct conn *c); /* What lies in the socket unread: nothing, bytes, or the end. */
bool conn_from(const struct conn *c,
	       const struct conn_address *a); /* TCP: the peer's host is a's, or a has a name */
uint32_t conn_peer_groups(const struct conn *c, uint32_t *groups,
			  uint32_t max); /* supplementary ones; how many; 0 on TCP */
void conn_kick(struct conn *c); /* after stream_send*(): writes now if it can, else when writable */
/* conn_kick() leaves what is sent from within on_frame to the end of that read, with all that the
 * other frames of the read add. This does not: for a frame that decides what the peer does next. */
void conn_kick_now(struct conn *c);
void conn_pause(struct conn *c, bool paused); /* stop or resume reading */
/* Ends it: what is queued is still written for at most linger_ms (so that an ERROR arrives), then
 * closed. why may be NULL. */
void conn_close(struct conn *c, const struct err *why, uint32_t linger_ms);

struct conn_listener;
typedef void (*conn_accepted_fn)(void *owner,
				 int fd); /* takes over fd: conn_accept() it or close it */
enum shard_status conn_listen(struct conn_listener **out, uv_loop_t *loop,
			      const struct conn_address *at, uint32_t mode /* unix */,
			      conn_accepted_fn accepted, void *owner, struct err *e);
uint16_t conn_listener_port(
	const struct conn_listener *l); /* as bound: port 0 asks the kernel for one */
void conn_listener_close(struct conn_listener **l);

#endif
