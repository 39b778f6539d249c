/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h: frames over one non-blocking stream socket (unix or TCP). A stream owns the descriptor,
 * parses what arrives and writes what was queued. It never waits. conn.h drives it from libuv, the
 * client library from poll(2). One thread at a time may use it. A bulk body is received straight
 * into the place that its handler names, and sent straight from where it lies. Sums are taken while
 * the bytes are in cache: of a part before it is written, and of received bytes as they come. */
#ifndef SHARD_NET_STREAM_H
#define SHARD_NET_STREAM_H

#include "base/list.h"
#include "base/status.h"
#include "net/stream_io.h"
#include "wire/frame.h"

#include <protobuf-c/protobuf-c.h>

struct stream;

struct stream_handler {
	/* A header arrived and is valid. Set *to to memory for its body (body_bytes, writable until
	 * on_frame or the end of the stream). STREAM_DISCARD reads and drops the body without
	 * on_frame. With NULL the stream's own buffer takes it (control bodies). Anything but
	 * SHARD_OK refuses the frame, and the stream fails with e. */
	enum shard_status (*on_head)(void *owner, struct stream *s, const struct wire_head *h,
				     void **to, struct err *e);
	/* The body is complete and its sum is right. body is *to, or the stream's buffer, which is
	 * valid for this call only. */
	enum shard_status (*on_frame)(void *owner, struct stream *s, const struct wire_head *h,
				      const void *body, struct err *e);
	/* The sum of the body is wrong, that of the header is right. true: the owner has handled
	 * that, and the stream goes on with the next frame. false, or NULL: the frame is refused.
	 * It is called for discarded bodies, too. */
	bool (*on_damage)(void *owner, struct stream *s, const struct wire_head *h);
};
extern char stream_discard_here; /* Only its address is used. */
#define STREAM_DISCARD ((void *)&stream_discard_here)

/* The body may be reused. st != OK: not all was sent. */
typedef void (*stream_sent_fn)(void *arg, enum shard_status st);

struct stream_stats {
	uint64_t frames_in, frames_out, bytes_in, bytes_out; /* Of the whole stream. */
	uint64_t tensor_bytes_in, tensor_bytes_out;          /* Bodies of bulk ops. */
	uint64_t copied_bytes; /* Of bulk bodies in the stream's buffer: none on the step path. */
	uint64_t refused;      /* Frames refused because of header, sum or legality. */
};

/* What all streams of a daemon hold in memory to be sent. */
struct stream_account {
	uint64_t bytes, most, peak; /* Over most, each stream with a limit may hold one body. */
};

struct stream_conf {
	int fd; /* Taken over if stream_open() succeeds. Non-blocking and close-on-exec then. */
	/* How the bytes travel, made by tls_io() for fd. It is taken over, too. NULL: plainly. */
	struct stream_io *io;
	uint32_t queue_max; /* Frames that may wait to be sent. */
	uint32_t body_max;  /* Largest control body accepted now (stream_set_body_max). */
	struct stream_account *account; /* Outlives the stream. NULL: none. */
	const struct stream_handler *handler;
	void *owner;
};

enum shard_status stream_open(struct stream **out, const struct stream_conf *conf, struct err *e);
/* From now on another owner is told. Never call it from a callback. */
void stream_owner(struct stream *s, void *owner);
/* Closes the descriptor and gives every queued body back with SHARD_CLOSED. Never call it from a
 * callback. */
void stream_free(struct stream **s);
int stream_fd(const struct stream *s);
struct stream_io *stream_io(const struct stream *s);
bool stream_is_unix(const struct stream *s);
const char *stream_name(const struct stream *s); /* The peer: "127.0.0.1:4411", "unix pid 712". */
/* Call after HELLO. Sums are on before, and in HELLO, AUTH, ERROR. */
void stream_features(struct stream *s, uint64_t features);
void stream_set_body_max(struct stream *s, uint32_t bytes);
const struct stream_stats *stream_stats(const struct stream *s);
/* After a refusal the text for the peer's ERROR, else NULL. */
const char *stream_told(const struct stream *s);
uint64_t stream_heard_ns(const struct stream *s); /* clock_ns() of the last byte received. */
bool stream_mid_frame(const struct stream *s);    /* A frame has begun and is not complete. */
/* When it began, plus the time of its body at this rate. */
uint64_t stream_frame_ns(const struct stream *s, uint32_t per_s);
/* While it is held, stream_read() delivers nothing. Called inside a callback, it ends the loop
 * after the frame in hand. */
void stream_hold(struct stream *s, bool hold);

/* Memory into which bodies are being received, as its owner sees it. The owner ends the landing
 * before that memory is used for something else or is freed. The rest of each body is then read and
 * dropped, and on_frame is not called for it. */
struct landing {
	struct list streams; /* Streams whose body in hand goes there. */
};
void landing_init(struct landing *l);
void landing_end(struct landing *l);
/* Ends the landing only for the bodies for which stays() is false. */
void landing_judge(struct landing *l, bool (*stays)(const void *arg, const struct wire_head *h),
		   const void *arg);
/* Only in on_head, which has set *to: the body goes into memory of l. Without this call only the
 * stream can end it. */
void stream_land(struct stream *s, struct landing *l);

/* The next header is here already, or are bytes of frames, of which the socket may not tell. So
 * call stream_read() without waiting for it. */
bool stream_ready(const struct stream *s);
bool stream_pending(const struct stream *s);

/* Queue a frame. The caller sets op, flags, model and the like in h, the stream sets magic,
 * version, sums and body_bytes. body is not copied. It must stay until sent() is called, or with
 * sent NULL for the life of the stream. SHARD_AGAIN: the queue is full, nothing is taken.
 * SHARD_CLOSED: the stream is over, nothing is taken. SHARD_RANGE: larger than the op allows.
 * SHARD_SYSTEM: no memory or no descriptor. */
enum shard_status stream_send(struct stream *s, const struct wire_head *h, const void *body,
			      uint32_t body_bytes, stream_sent_fn sent, void *arg);
/* The same, for a body from malloc(). The stream owns it from now on, also when this fails. */
enum shard_status stream_send_owned(struct stream *s, const struct wire_head *h, void *body,
				    uint32_t body_bytes);
/* The same with a control body (msg NULL: empty), packed into the stream's own memory. */
enum shard_status stream_send_control(struct stream *s, const struct wire_head *h,
				      const ProtobufCMessage *msg);
/* The same with a control body that is packed already, and is copied. So one that goes to many
 * nodes is packed once. */
enum shard_status stream_send_bytes(struct stream *s, const struct wire_head *h, const void *packed,
				    size_t bytes);
/* The same with descriptors (at most 4, duplicated here), which travel with the header's first
 * byte. Unix sockets only. */
enum shard_status stream_send_fds(struct stream *s, const struct wire_head *h,
				  const ProtobufCMessage *msg, const int *fds, int fds_nr);
/* Descriptors that came with the frame in hand, in on_frame only. The caller owns those it takes.
 * Returns how many. */
int stream_take_fds(struct stream *s, int *fds, int fds_max);

uint32_t stream_queued(const struct stream *s); /* Frames not yet handed to the kernel. */
/* Is there something to write as soon as the socket takes it? That is for who polls. */
bool stream_wants_out(const struct stream *s);
bool stream_blocked(const struct stream *s); /* A TLS handshake waits for the peer. */
void stream_finish(struct stream *s); /* All is written: tells the peer that nothing more comes. */
/* Is stream_write() under way? It is for what a sent() calls. */
bool stream_writing(const struct stream *s);
/* Can nothing be sent any more? The connection ends soon then. */
bool stream_out_over(const struct stream *s);
/* Bytes of bodies that the stream holds until they are sent: owned ones and control. At its limit
 * (0: none) the stream is full until half of them are sent, and stream_read() delivers nothing,
 * because a peer that does not take answers may not ask more. */
uint64_t stream_held(const struct stream *s);
void stream_limit(struct stream *s, uint64_t held_max);
bool stream_full(struct stream *s);
/* The last stream_read() ended because the stream was full. Read again when it is not. */
bool stream_stopped(const struct stream *s);
/* Not more than half of its queue and of its ring is used. */
bool stream_roomy(const struct stream *s);
/* Reads what is there, at most about max_bytes, and calls the handler. SHARD_OK: it read until it
 * would block, or max_bytes. Anything else: the stream is over, and e says why (SHARD_CLOSED: the
 * peer closed, SHARD_PROTOCOL: a frame was refused, SHARD_SYSTEM). */
enum shard_status stream_read(struct stream *s, size_t max_bytes, struct err *e);
/* Writes what is queued until it would block. SHARD_OK: all is written. SHARD_AGAIN: wait for
 * POLLOUT. Anything else: the stream is over. */
enum shard_status stream_write(struct stream *s, struct err *e);

#endif
