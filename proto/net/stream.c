/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a stream and its sending half. stream_in.c receives. conn.c calls it on the daemon's
 * loop, and the client library does. Happy path: stream_send*() puts a frame into the queue.
 * stream_write() seals as many frames as make one good system call, so that each sum is taken just
 * before the kernel reads the same bytes. It hands them to the kernel and gives the bodies back. It
 * fails when the peer is gone. Then stream_free() gives every queued body back with
 * SHARD_CLOSED. */
#include "net/stream.h"

#include "base/check.h"
#include "base/clock.h"
#include "net/address.h"
#include "net/stream_impl.h"
#include "wire/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	RING_PER_FRAME = 256, /* Bytes for control bodies per place in the queue. */
	RING_MIN = 64 << 10,
	/* Of one system call. What was summed must still be in cache when the kernel copies it. */
	BATCH_BYTES = WIRE_PART_BYTES,
	BATCH_FRAMES = 32,
	WRITE_MAX = 4 << 20, /* Bytes of one stream_write(). Others on the loop need their turn. */
};

char stream_discard_here;

static void name_peer(struct stream *s)
{
	struct sockaddr_storage sa = {0};
	socklen_t bytes = sizeof(sa), cred_bytes;
	struct ucred cred = {0};

	if (getpeername(s->io->fd, (struct sockaddr *)&sa, &bytes) != 0) {
		snprintf(s->name, sizeof(s->name), "a closed socket");
		return;
	}
	s->unix_socket = sa.ss_family == AF_UNIX;
	cred_bytes = sizeof(cred);
	if (s->unix_socket &&
	    getsockopt(s->io->fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_bytes) == 0)
		snprintf(s->name, sizeof(s->name), "unix pid %d", (int)cred.pid);
	else
		address_text((struct sockaddr *)&sa, s->name, sizeof(s->name));
}

/* One allocation holds everything of fixed size. The ring's pages are touched only when control
 * frames pile up. */
enum shard_status stream_open(struct stream **out, const struct stream_conf *conf, struct err *e)
{
	size_t queue_bytes = conf->queue_max * sizeof(struct stream_out);
	uint32_t ring = conf->queue_max * RING_PER_FRAME < RING_MIN
				? RING_MIN
				: conf->queue_max * RING_PER_FRAME;
	struct stream *s;

	CHECK(conf->handler && conf->handler->on_head && conf->handler->on_frame);
	CHECK(conf->queue_max > 0 && conf->queue_max <= 1u << 20);
	CHECK(!conf->io || conf->io->fd == conf->fd);
	*out = NULL;
	if (fcntl(conf->fd, F_SETFL, fcntl(conf->fd, F_GETFL) | O_NONBLOCK) != 0 ||
	    fcntl(conf->fd, F_SETFD, FD_CLOEXEC) != 0)
		return err_set(e, SHARD_SYSTEM, "descriptor %d cannot carry a stream: %s", conf->fd,
			       strerror(errno));
	s = aligned_alloc(64, (sizeof(*s) + queue_bytes + ring + 63) & ~(size_t)63);
	if (!s)
		return err_set(e, SHARD_SYSTEM, "no memory for a connection (%zu bytes)",
			       sizeof(*s) + queue_bytes + ring);
	memset(s, 0, sizeof(*s));
	s->queue = (struct stream_out *)(s + 1);
	s->ring = (unsigned char *)(s->queue + conf->queue_max);
	s->ring_size = ring;
	s->queue_max = conf->queue_max;
	stream_plain_init(&s->plain, conf->fd);
	s->io = conf->io ? conf->io : &s->plain;
	s->body_max = conf->body_max;
	s->account = conf->account;
	s->handler = conf->handler;
	s->owner = conf->owner;
	s->body_sum = true;
	list_init(&s->landed);
	s->heard_ns = clock_ns();
	name_peer(s);
	*out = s;
	return SHARD_OK;
}

enum shard_status stream_fail(struct stream *s, enum shard_status st, const char *fmt, ...)
{
	va_list ap;

	CHECK(st != SHARD_OK && st != SHARD_AGAIN);
	if (s->dead.status != SHARD_OK)
		return s->dead.status; /* The first reason counts. */
	va_start(ap, fmt);
	err_setv(&s->dead, st, fmt, ap);
	va_end(ap);
	return st;
}

enum shard_status stream_no_tls(struct stream *s)
{
	const struct err *why = &s->io->why;

	stream_fail(s, why->status, "%s: %s", s->name, why->text);
	if (!s->io->plain_peer || s->queued > 0 || s->only_error)
		return why->status;
	/* The peer can read a frame, and only that. What it is told is no secret. Nothing else is
	 * ever sent this way. */
	s->only_error = true;
	s->told = s->dead.text;
	return s->dead.status;
}

enum shard_status stream_over(const struct stream *s, struct err *e)
{
	return err_set(e, s->dead.status, "%s", s->dead.text);
}

/* The first frame leaves the queue. The entry is free for a new frame before sent() runs, because
 * sent() may queue one. */
static void pop(struct stream *s, enum shard_status st)
{
	struct stream_out *f = &s->queue[s->first];
	stream_sent_fn sent = f->sent;
	void *arg = f->arg;

	CHECK(s->queued > 0 && s->ring_used >= f->ring_bytes && s->held >= f->held_bytes);
	for (int i = 0; i < f->fds_nr; i++)
		close(f->fds[i]);
	free(f->big);
	s->held -= f->held_bytes;
	if (s->account)
		s->account->bytes -= f->held_bytes;
	s->ring_used -= f->ring_bytes;
	if (s->ring_used == 0)
		s->ring_at = 0; /* So it stays in the same few pages. */
	s->first = (s->first + 1) % s->queue_max;
	s->queued--;
	s->first_sent = 0;
	if (sent)
		sent(arg, st);
}

void stream_free(struct stream **sp)
{
	struct stream *s = *sp;

	if (!s)
		return;
	CHECK(!s->in_callback && !s->writing);
	*sp = NULL;
	s->out_over = true; /* A sent() that tries to send gets SHARD_CLOSED. */
	while (s->queued > 0)
		pop(s, SHARD_CLOSED);
	stream_in_deinit(s);
	s->io->row->close(s->io);
	free(s);
}

void stream_owner(struct stream *s, void *owner)
{
	s->owner = owner;
}

int stream_fd(const struct stream *s)
{
	return s->io->fd;
}

struct stream_io *stream_io(const struct stream *s)
{
	return s->io;
}

bool stream_is_unix(const struct stream *s)
{
	return s->unix_socket;
}

const char *stream_name(const struct stream *s)
{
	return s->name;
}

/* HELLO settles whether bodies are summed. AUTH and ERROR may come before or after, so these three
 * are always summed. */
bool stream_sums(const struct stream *s, uint16_t op)
{
	return s->body_sum || op == OP_HELLO || op == OP_AUTH || op == OP_ERROR;
}

void stream_features(struct stream *s, uint64_t features)
{
	s->body_sum = features & FEATURE_BODY_SUM;
}

const struct stream_stats *stream_stats(const struct stream *s)
{
	return &s->stats;
}

uint32_t stream_queued(const struct stream *s)
{
	return s->queued;
}

/* What the stream writes to. */
static struct stream_io *out(const struct stream *s)
{
	return s->only_error ? (struct stream_io *)(uintptr_t)&s->plain : s->io;
}

bool stream_blocked(const struct stream *s)
{
	return out(s)->row->blocked(out(s));
}

bool stream_wants_out(const struct stream *s)
{
	return !s->out_over &&
	       (out(s)->row->unsent(out(s)) || (s->queued > 0 && !stream_blocked(s)));
}

void stream_finish(struct stream *s)
{
	out(s)->row->finish(out(s));
}

bool stream_writing(const struct stream *s)
{
	return s->writing;
}

bool stream_out_over(const struct stream *s)
{
	return s->out_over;
}

bool stream_roomy(const struct stream *s)
{
	return s->queued <= s->queue_max / 2 && s->ring_used <= s->ring_size / 2;
}

/* A contiguous piece of the ring, or NULL. Frames leave in order, so the piece and what was skipped
 * for it come back together. */
static void *ring_take(struct stream *s, uint32_t bytes, uint32_t *taken)
{
	uint32_t skip = s->ring_at + bytes > s->ring_size ? s->ring_size - s->ring_at : 0;
	uint32_t at = skip ? 0 : s->ring_at;

	if (bytes + skip > s->ring_size - s->ring_used)
		return NULL;
	s->ring_at = at + bytes;
	s->ring_used += bytes + skip;
	*taken = bytes + skip;
	return s->ring + at;
}

uint64_t stream_held(const struct stream *s)
{
	return s->held;
}

void stream_limit(struct stream *s, uint64_t held_max)
{
	s->held_max = held_max;
}

bool stream_full(struct stream *s)
{
	bool all = s->account && s->account->bytes > s->account->most;

	if (s->held_max == 0 || s->held == 0)
		s->full = false;
	else
		s->full = all || s->held > (s->full ? s->held_max / 2 : s->held_max);
	return s->full;
}

bool stream_stopped(const struct stream *s)
{
	return s->stopped;
}

static void hold_bytes(struct stream *s, struct stream_out *f, uint32_t bytes)
{
	f->held_bytes = bytes;
	s->held += bytes;
	if (!s->account)
		return;
	s->account->bytes += bytes;
	if (s->account->bytes > s->account->peak)
		s->account->peak = s->account->bytes;
}

static enum shard_status room(struct stream *s, const struct wire_head *h)
{
	CHECK(wire_op(h->op));
	if (s->out_over || (s->only_error && h->op != OP_ERROR))
		return SHARD_CLOSED;
	return s->queued < s->queue_max ? SHARD_OK : SHARD_AGAIN;
}

static struct stream_out *push(struct stream *s, const struct wire_head *h, const void *body,
			       uint32_t body_bytes)
{
	struct stream_out *f = &s->queue[(s->first + s->queued) % s->queue_max];

	CHECK(s->queued < s->queue_max);
	memset(f, 0, sizeof(*f));
	f->head = *h;
	f->head.body_bytes = body_bytes;
	f->body = body;
	s->queued++;
	return f;
}

enum shard_status stream_send(struct stream *s, const struct wire_head *h, const void *body,
			      uint32_t body_bytes, stream_sent_fn sent, void *arg)
{
	struct stream_out *f;
	enum shard_status rc = room(s, h);

	if (rc != SHARD_OK)
		return rc;
	if (body_bytes > wire_op(h->op)->body_max)
		return SHARD_RANGE;
	f = push(s, h, body, body_bytes);
	f->sent = sent;
	f->arg = arg;
	return SHARD_OK;
}

enum shard_status stream_send_owned(struct stream *s, const struct wire_head *h, void *body,
				    uint32_t body_bytes)
{
	enum shard_status rc = stream_send(s, h, body, body_bytes, NULL, NULL);
	struct stream_out *f;

	if (rc != SHARD_OK) {
		free(body);
		return rc;
	}
	f = &s->queue[(s->first + s->queued - 1) % s->queue_max];
	f->big = body;
	hold_bytes(s, f, body_bytes);
	return SHARD_OK;
}

/* Queues a frame with room for a control body of so many bytes, which the caller fills. Small
 * bodies live in the ring. A body that would fill a good part of it (a definition, a vote over very
 * many chunks) gets memory of its own until it is sent. */
static enum shard_status push_control(struct stream *s, const struct wire_head *h, size_t bytes,
				      void **body, struct stream_out **out)
{
	enum shard_status rc = room(s, h);
	void *big = NULL;
	uint32_t taken = 0;

	*body = NULL;
	if (rc != SHARD_OK)
		return rc;
	if (bytes > wire_op(h->op)->body_max)
		return SHARD_RANGE;
	if (bytes > s->ring_size / 4) {
		*body = big = malloc(bytes);
		if (!big)
			return SHARD_SYSTEM;
	} else if (bytes > 0) {
		*body = ring_take(s, (uint32_t)bytes, &taken);
		if (!*body)
			return SHARD_AGAIN;
	}
	*out = push(s, h, *body, (uint32_t)bytes);
	(*out)->ring_bytes = taken;
	(*out)->big = big;
	hold_bytes(s, *out, big ? (uint32_t)bytes : taken);
	return SHARD_OK;
}

static enum shard_status send_packed(struct stream *s, const struct wire_head *h,
				     const ProtobufCMessage *msg, struct stream_out **out)
{
	size_t bytes = msg ? protobuf_c_message_get_packed_size(msg) : 0;
	void *body;
	enum shard_status rc = push_control(s, h, bytes, &body, out);

	if (rc == SHARD_OK && bytes > 0)
		protobuf_c_message_pack(msg, body);
	return rc;
}

enum shard_status stream_send_control(struct stream *s, const struct wire_head *h,
				      const ProtobufCMessage *msg)
{
	struct stream_out *f;

	return send_packed(s, h, msg, &f);
}

enum shard_status stream_send_bytes(struct stream *s, const struct wire_head *h, const void *packed,
				    size_t bytes)
{
	struct stream_out *f;
	void *body;
	enum shard_status rc = push_control(s, h, bytes, &body, &f);

	if (rc == SHARD_OK && bytes > 0)
		memcpy(body, packed, bytes);
	return rc;
}

enum shard_status stream_send_fds(struct stream *s, const struct wire_head *h,
				  const ProtobufCMessage *msg, const int *fds, int fds_nr)
{
	int dups[STREAM_FDS_MAX], nr = 0;
	struct stream_out *f;
	enum shard_status rc = SHARD_SYSTEM;

	CHECK(s->unix_socket && fds_nr >= 0 && fds_nr <= STREAM_FDS_MAX);
	for (; nr < fds_nr; nr++) {
		dups[nr] = fcntl(fds[nr], F_DUPFD_CLOEXEC, 0);
		if (dups[nr] < 0)
			goto err_dups;
	}
	rc = send_packed(s, h, msg, &f);
	if (rc != SHARD_OK)
		goto err_dups;
	f->fds_nr = nr;
	memcpy(f->fds, dups, sizeof(dups[0]) * (size_t)nr);
	return SHARD_OK;
err_dups:
	while (nr > 0)
		close(dups[--nr]);
	return rc;
}

/* Seals frames and puts their unsent bytes into iov. A frame with descriptors starts a call of its
 * own, because descriptors arrive with a call's first byte. */
static int gather(struct stream *s, struct iovec *iov, size_t *bytes)
{
	size_t skip = s->first_sent;
	int nr = 0;

	*bytes = 0;
	for (uint32_t i = 0; i < s->queued && i < BATCH_FRAMES && *bytes < BATCH_BYTES; i++) {
		struct stream_out *f = &s->queue[(s->first + i) % s->queue_max];

		if (i > 0 &&
		    (f->fds_nr > 0 || *bytes + f->head.body_bytes > BATCH_BYTES + sizeof(f->head)))
			break;
		if (!f->sealed) {
			wire_seal(&f->head, f->body, s->ordinal_out++, stream_sums(s, f->head.op));
			f->sealed = true;
		}
		*bytes += sizeof(f->head) + f->head.body_bytes - skip;
		if (skip < sizeof(f->head))
			iov[nr++] = (struct iovec){(char *)&f->head + skip, sizeof(f->head) - skip};
		skip = skip > sizeof(f->head) ? skip - sizeof(f->head) : 0;
		if (f->head.body_bytes > 0) /* sendmsg() only reads what iov_base points at. */
			iov[nr++] = (struct iovec){(char *)(uintptr_t)f->body + skip,
						   f->head.body_bytes - skip};
		skip = 0;
	}
	return nr;
}

static void wrote(struct stream *s, size_t bytes)
{
	s->stats.bytes_out += bytes;
	while (bytes > 0) {
		struct stream_out *f = &s->queue[s->first];
		size_t left = sizeof(f->head) + f->head.body_bytes - s->first_sent;

		if (bytes < left) {
			s->first_sent += bytes;
			return;
		}
		bytes -= left;
		s->stats.frames_out++;
		if (wire_bulk(&f->head))
			s->stats.tensor_bytes_out += f->head.body_bytes;
		pop(s, SHARD_OK);
	}
}

static ssize_t send_once(struct stream *s, struct iovec *iov, int nr)
{
	const struct stream_out *f = &s->queue[s->first];
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * STREAM_FDS_MAX)];
	} control;
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)nr};

	if (f->fds_nr > 0 && s->first_sent == 0) {
		memset(&control, 0, sizeof(control));
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)f->fds_nr);
		CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)f->fds_nr);
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), f->fds, sizeof(int) * (size_t)f->fds_nr);
	}
	return out(s)->row->write(out(s), &m);
}

static enum shard_status cannot_send(struct stream *s, int error)
{
	s->out_over = true;
	if (error == EPIPE || error == ECONNRESET)
		return err_set(&s->out_dead, SHARD_CLOSED,
			       "%s closed the connection (%s while sending)", s->name,
			       strerror(error));
	if (error == EPROTO)
		return stream_no_tls(s);
	return stream_fail(s, SHARD_SYSTEM, "cannot send to %s: %s", s->name, strerror(error));
}

static enum shard_status write_some(struct stream *s)
{
	struct iovec iov[2 * BATCH_FRAMES];
	size_t bytes, total = 0;

	while (s->queued > 0) {
		int nr = gather(s, iov, &bytes);
		ssize_t n = send_once(s, iov, nr);

		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return SHARD_AGAIN;
		if (n < 0)
			return cannot_send(s, errno);
		wrote(s, (size_t)n);
		total += (size_t)n;
		if ((size_t)n < bytes || (total >= WRITE_MAX && s->queued > 0))
			return SHARD_AGAIN;
	}
	if (out(s)->row->flush(out(s)) == 0)
		return SHARD_OK;
	return errno == EAGAIN || errno == EWOULDBLOCK ? SHARD_AGAIN : cannot_send(s, errno);
}

static enum shard_status write_over(const struct stream *s, struct err *e)
{
	return s->dead.status != SHARD_OK ? stream_over(s, e)
					  : err_set(e, s->out_dead.status, "%s", s->out_dead.text);
}

/* Works also after a frame of the peer was refused, so that the peer can be told why. */
enum shard_status stream_write(struct stream *s, struct err *e)
{
	enum shard_status rc;

	if (s->writing)
		/* Called from a sent(): the call in progress takes the new frame along. */
		return SHARD_AGAIN;
	if (s->out_over)
		return write_over(s, e);
	s->writing = true;
	rc = write_some(s);
	s->writing = false;
	return s->out_over ? write_over(s, e) : rc;
}
