/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h: frames over one non-blocking stream socket (unix or TCP). It owns the descriptor,
 * parses what arrives, and writes what was queued; it waits for nothing: conn.h drives it from
 * libuv, the client library from poll(2). One thread at a time. A bulk body is received straight
 * into where its handler says it belongs, and sent straight from where it lies: the kernel's copy
 * is the only one. Sums are taken while the bytes are in cache: of a part just before it is
 * written, of received bytes as they come. */
#ifndef SHARD_NET_STREAM_H
#define SHARD_NET_STREAM_H

#include "base/list.h"
#include "base/status.h"
#include "wire/frame.h"

#include <protobuf-c/protobuf-c.h>

struct stream;

struct stream_handler {
	/* A header arrived and is valid. Set *to to memory for its body (body_bytes, writable until
	 * on_frame or the end of the stream); STREAM_DISCARD reads and drops it (on_frame is not
	 * called); left NULL, the stream's own buffer takes it (control bodies). Anything but
	 * SHARD_OK refuses the frame: the stream fails with e. */
	enum shard_status (*on_head)(void *owner, struct stream *s, const struct wire_head *h,
				     void **to, struct err *e);
	/* The body is complete and its sum is right. body is *to, or the stream's buffer: valid for
	 * this call only. */
	enum shard_status (*on_frame)(void *owner, struct stream *s, const struct wire_head *h,
				      const void *body, struct err *e);
	/* The sum of the body is wrong, of the header it is right. true: the owner knows what that
	 * ends, and the stream goes on with the next frame; false, or NULL: the frame is refused.
	 * Also for bodies that nobody wants. */
	bool (*on_damage)(void *owner, struct stream *s, const struct wire_head *h);
};
extern char stream_discard_here; /* address only */
#define STREAM_DISCARD ((void *)&stream_discard_here)

typedef void (*stream_sent_fn)(
	void *arg, enum shard_status st); /* body may be reused; st != OK: it was not (all) sent */

struct stream_stats {
	uint64_t frames_in, frames_out, bytes_in, bytes_out; /* whole stream */
	uint64_t tensor_bytes_in, tensor_bytes_out;          /* bodies of bulk ops */
	/* Bulk bodies that landed in the stream's own buffer, from where their owner copies them:
	 * none on the step path. */
	uint64_t copied_bytes;
	uint64_t refused; /* frames refused: header, sum, legality */
};

struct stream_account { /* of all streams of a daemon: what they hold in memory that is to be sent
			 */
	uint64_t bytes, most; /* over most, each stream with a limit may hold one body */
	uint64_t peak;
};

struct stream_conf {
	int fd; /* taken over if stream_open() succeeds; made non-blocking and close-on-exec. TLS
		 * will come in beside it, as what reads and writes it in place of the system calls;
		 * frames, HELLO and AUTH stay as they are inside */
	uint32_t queue_max; /* frames that may wait to be sent */
	uint32_t body_max;  /* largest control body accepted now (stream_set_body_max) */
	struct stream_account *account; /* outlives the stream; NULL: none */
	const struct stream_handler *handler;
	void *owner;
};

enum shard_status stream_open(struct stream **out, const struct stream_conf *conf, struct err *e);
/* Closes the descriptor and gives every queued body back with SHARD_CLOSED. Never from a callback.
 */
void stream_free(struct stream **s);
int stream_fd(const struct stream *s);
bool stream_is_unix(const struct stream *s);
const char *stream_name(const struct stream *s); /* the peer: "127.0.0.1:4411", "unix pid 712" */
void stream_features(
	struct stream *s,
	uint64_t features); /* after HELLO; until then, and in HELLO and ERROR, body sums are on */
void stream_set_body_max(struct stream *s, uint32_t bytes);
const struct stream_stats *stream_stats(const struct stream *s);
const char *stream_told(
	const struct stream *s); /* after a refusal: the sentence for the peer's ERROR; else NULL */
uint64_t stream_heard_ns(const struct stream *s); /* clock_ns() of the last byte received */
bool stream_mid_frame(const struct stream *s);    /* a frame has begun and is not complete */
uint64_t stream_frame_ns(
	const struct stream *s,
	uint32_t per_s); /* when it began, plus its body's time at so many bytes a second */
/* While held, stream_read() delivers nothing: also from inside a callback, where it ends the loop
 * after the frame in hand. */
void stream_hold(struct stream *s, bool hold);

/* Memory that bodies are being received into, as its owner sees it. The owner ends the landing
 * before that memory is used for something else or is freed: the rest of each body is read and
 * dropped, and on_frame is not called for it. */
struct landing {
	struct list streams; /* whose body in hand goes there */
};
void landing_init(struct landing *l);
void landing_end(struct landing *l);
/* Ends it for those bodies only for which stays() is false. */
void landing_judge(struct landing *l, bool (*stays)(const void *arg, const struct wire_head *h),
		   const void *arg);
/* Only in on_head, which has set *to: the body goes into memory of l. Without this call nobody but
 * the stream ends it. */
void stream_land(struct stream *s, struct landing *l);

bool stream_ready(const struct stream *s); /* the next header is here already: stream_read() now,
					      not when readable */

/* Queue a frame. h: op, flags, model... set by the caller, magic, version, sums and body_bytes by
 * the stream. body is not copied: it stays until sent() is called (NULL: caller knows it outlives
 * the stream). SHARD_AGAIN: queue full, nothing taken; SHARD_CLOSED: the stream is over, nothing
 * taken; SHARD_RANGE: larger than the op allows; SHARD_SYSTEM: no memory or no descriptor. */
enum shard_status stream_send(struct stream *s, const struct wire_head *h, const void *body,
			      uint32_t body_bytes, stream_sent_fn sent, void *arg);
/* Same; body is from malloc() and the stream's from now on, also when it fails. */
enum shard_status stream_send_owned(struct stream *s, const struct wire_head *h, void *body,
				    uint32_t body_bytes);
/* Same with a control body (msg NULL: empty), packed into the stream's own memory. */
enum shard_status stream_send_control(struct stream *s, const struct wire_head *h,
				      const ProtobufCMessage *msg);
/* Same; descriptors (at most 4, duplicated here) travel with the header's first byte. Unix sockets
 * only. */
enum shard_status stream_send_fds(struct stream *s, const struct wire_head *h,
				  const ProtobufCMessage *msg, const int *fds, int fds_nr);
/* Descriptors that came with the frame in hand, in on_frame only; the caller owns what it takes.
 * Returns how many. */
int stream_take_fds(struct stream *s, int *fds, int fds_max);

uint32_t stream_queued(const struct stream *s); /* frames not yet handed to the kernel */
/* Bytes of bodies that the stream holds until they are sent: owned ones and control. At its limit
 * (0: none) the stream is full until half of it has left, and stream_read() delivers nothing: who
 * does not take answers asks no more questions. */
uint64_t stream_held(const struct stream *s);
void stream_limit(struct stream *s, uint64_t held_max);
bool stream_full(struct stream *s);
bool stream_stopped(const struct stream *s); /* the last stream_read() ended for that: read again
						when it is not full any more */
bool stream_roomy(const struct stream *s);   /* under half of its queue and its ring is taken */
/* Read what is there, at most about max_bytes; calls the handler. SHARD_OK: read until it would
 * block or max_bytes; else the stream is over: e says why (SHARD_CLOSED: the peer closed;
 * SHARD_PROTOCOL: a frame was refused; SHARD_SYSTEM). */
enum shard_status stream_read(struct stream *s, size_t max_bytes, struct err *e);
/* Write what is queued until it would block. SHARD_OK: all written; SHARD_AGAIN: wait for POLLOUT;
 * else the stream is over. */
enum shard_status stream_write(struct stream *s, struct err *e);

#endif
