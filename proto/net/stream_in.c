/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving half of a stream. One system call reads exactly the rest of the body in hand,
 * straight into its owner's memory, and the header after it. So no tensor byte of a step lies in a
 * buffer from which it would have to be copied. Happy path: header complete -> wire_invalid() ->
 * on_head() names the place -> the body is summed as it arrives -> on_frame(). It fails if the peer
 * closes, if a header, sum or length is wrong, or if the owner refuses. Each failure ends the
 * stream, with the frame's number and the peer. */
#include "base/check.h"
#include "base/clock.h"
#include "net/stream_impl.h"
#include "wire/ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	/* Of one read. What arrived is summed while it is in cache. */
	PIECE_BYTES = WIRE_PART_BYTES,
	OWN_BYTES = 64 << 10,       /* The stream's own buffer. It grows for larger bodies. */
	OWN_KEEP = WIRE_PART_BYTES, /* A buffer above this size is freed. */
	/* How a connection that is opened with TLS begins. */
	TLS_HANDSHAKE = 0x16,
	TLS_MAJOR = 3,
};

static const struct wire_head *head(const struct stream *s)
{
	return &s->heads[s->cur];
}

static void close_fds(struct stream *s)
{
	while (s->fds_nr > 0)
		close(s->fds[--s->fds_nr]);
	s->fds_next = false;
}

void stream_in_deinit(struct stream *s)
{
	close_fds(s);
	list_remove(&s->landed);
	free(s->own);
	s->own = NULL;
}

const char *stream_told(const struct stream *s)
{
	return s->told;
}

uint64_t stream_heard_ns(const struct stream *s)
{
	return s->heard_ns;
}

bool stream_mid_frame(const struct stream *s)
{
	return s->in_body || s->head_got > 0;
}

uint64_t stream_frame_ns(const struct stream *s, uint32_t per_s)
{
	return s->began_ns + (s->in_body ? head(s)->body_bytes * NS_PER_SEC / per_s : 0);
}

bool stream_ready(const struct stream *s)
{
	return !s->in_body && s->head_got == sizeof(struct wire_head);
}

bool stream_pending(const struct stream *s)
{
	return s->dead.status == SHARD_OK && s->io->row->pending(s->io);
}

void stream_hold(struct stream *s, bool hold)
{
	s->hold = hold;
}

void stream_set_body_max(struct stream *s, uint32_t bytes)
{
	s->body_max = bytes;
}

int stream_take_fds(struct stream *s, int *fds, int fds_max)
{
	int nr = s->fds_nr < fds_max ? s->fds_nr : fds_max;

	CHECK(s->in_callback && fds_max >= 0);
	if (s->fds_next || nr == 0)
		return 0;
	memcpy(fds, s->fds, sizeof(fds[0]) * (size_t)nr);
	memmove(s->fds, s->fds + nr, sizeof(fds[0]) * (size_t)(s->fds_nr - nr));
	s->fds_nr -= nr;
	return nr;
}

/* With by_owner the peer is told only the owner's sentence. Otherwise it is also told which of its
 * frames it was. */
static enum shard_status refuse(struct stream *s, enum shard_status st, const char *what,
				bool by_owner)
{
	const struct wire_op_row *row = wire_op(head(s)->op);
	bool known = row && head(s)->magic == WIRE_MAGIC;

	/* An owner that turns the peer away, because it does not know the secret or has no place,
	 * got a frame that is in order. */
	s->stats.refused += !by_owner || st == SHARD_PROTOCOL;
	stream_fail(s, st, "frame %llu%s%s%s from %s: %s", (unsigned long long)s->ordinal_in,
		    known ? " (" : "", known ? row->name : "", known ? ")" : "", s->name, what);
	s->told = s->dead.text;
	if (by_owner && strlen(s->dead.text) > strlen(what))
		s->told += strlen(s->dead.text) - strlen(what);
	return st;
}

static bool own_fits(struct stream *s, uint32_t bytes)
{
	uint32_t want = bytes < OWN_BYTES ? OWN_BYTES : bytes;

	if (s->own_size >= bytes && s->own)
		return true;
	free(s->own);
	s->own = malloc(want);
	s->own_size = s->own ? want : 0;
	return s->own != NULL;
}

/* The next header becomes the one in hand. The frame before it is over. */
static void next_head(struct stream *s)
{
	s->in_body = false;
	s->cur ^= 1;
	s->head_got = s->next_got;
	s->began_ns = s->heard_ns;
	s->next_got = 0;
	s->ordinal_in++;
	s->stats.frames_in++;
}

static enum shard_status deliver(struct stream *s)
{
	const struct wire_head *h = head(s);
	struct err e = {0};
	enum shard_status rc = SHARD_OK;

	s->in_body = false;
	list_remove(&s->landed);
	if (s->into != INTO_NOWHERE) {
		s->in_callback = true;
		rc = s->handler->on_frame(s->owner, s, h, h->body_bytes > 0 ? s->body : NULL, &e);
		s->in_callback = false;
	}
	if (!s->fds_next)
		close_fds(s); /* Nobody took them. */
	s->fds_next = false;
	/* The peer refused a frame of ours, so nothing is counted and the peer is not told. */
	if (rc != SHARD_OK && h->op == OP_ERROR)
		return stream_fail(s, rc, "%s", e.text);
	if (rc != SHARD_OK)
		return refuse(s, rc, e.text, true);
	next_head(s);
	if (s->own_size > OWN_KEEP) {
		free(s->own);
		s->own = NULL;
		s->own_size = 0;
	}
	return SHARD_OK;
}

void landing_init(struct landing *l)
{
	list_init(&l->streams);
}

void landing_judge(struct landing *l, bool (*stays)(const void *arg, const struct wire_head *h),
		   const void *arg)
{
	list_each(it, &l->streams) {
		struct stream *s = list_of(it, struct stream, landed);

		if (stays && stays(arg, head(s)))
			continue;
		CHECK(s->in_body && s->into == INTO_OWNER);
		list_remove(&s->landed);
		s->into = INTO_NOWHERE;
		if (own_fits(s, OWN_BYTES))
			s->body = s->own;
		else
			stream_fail(s, SHARD_SYSTEM,
				    "no memory to read what nobody wants any more");
	}
}

void landing_end(struct landing *l)
{
	landing_judge(l, NULL, NULL);
}

void stream_land(struct stream *s, struct landing *l)
{
	CHECK(s->in_callback && !s->in_body);
	list_push(&l->streams, &s->landed);
}

/* The first bytes are a record of TLS with a handshake in it, and not a header. */
static bool speaks_tls(const struct stream *s)
{
	const unsigned char *first = (const unsigned char *)head(s);

	return s->ordinal_in == 0 && first[0] == TLS_HANDSHAKE && first[1] == TLS_MAJOR;
}

/* Checks a whole header and asks where its body goes. */
static enum shard_status take_head(struct stream *s)
{
	const struct wire_head *h = head(s);
	const char *why = wire_invalid(h, s->ordinal_in, stream_sums(s, h->op));
	bool bulk = !why && wire_bulk(h);
	struct err e = {0};
	enum shard_status rc;
	void *to = NULL;

	if (why && speaks_tls(s))
		return refuse(s, SHARD_PROTOCOL,
			      "it opened the connection with TLS, and this end speaks none: set "
			      "[net] tls here as it is there, or take it away there",
			      false);
	if (why)
		return refuse(s, SHARD_PROTOCOL, why, false);
	if (!bulk && h->body_bytes > s->body_max)
		return refuse(s, SHARD_PROTOCOL, "body larger than this connection may send now",
			      false);
	s->in_callback = true;
	rc = s->handler->on_head(s->owner, s, h, &to, &e);
	s->in_callback = false;
	if (rc != SHARD_OK)
		list_remove(&s->landed);
	if (rc != SHARD_OK)
		return refuse(s, rc, e.text, true);
	s->into = to == STREAM_DISCARD ? INTO_NOWHERE : to ? INTO_OWNER : INTO_OWN;
	s->body = to;
	s->body_got = 0;
	s->summing = false;
	if (s->into != INTO_OWNER) {
		uint32_t bytes = s->into == INTO_OWN ? h->body_bytes : OWN_BYTES;

		if (bytes > 0 && !own_fits(s, bytes))
			return refuse(s, SHARD_SYSTEM, "no memory for its body", false);
		s->body = s->own;
	}
	if (h->body_bytes == 0)
		return deliver(s);
	s->in_body = true;
	return SHARD_OK;
}

/* The sum of the body in hand is wrong. Returns false if that ends the stream. */
static bool damaged(struct stream *s)
{
	bool goes_on;

	if (!s->handler->on_damage)
		return false;
	s->in_callback = true;
	goes_on = s->handler->on_damage(s->owner, s, head(s));
	s->in_callback = false;
	if (!goes_on)
		return false;
	s->stats.refused++;
	list_remove(&s->landed);
	if (!s->fds_next)
		close_fds(s);
	s->fds_next = false;
	next_head(s);
	return true;
}

static enum shard_status finish(struct stream *s)
{
	const struct wire_head *h = head(s);
	const struct xxh_row *x = xxh_best();

	if (stream_sums(s, h->op) &&
	    h->body_sum != (s->summing ? x->end(&s->sum) : xxh_sum(s->body, h->body_bytes, 0)))
		return damaged(s) ? SHARD_OK : refuse(s, SHARD_PROTOCOL, "body checksum", false);
	if (wire_bulk(h)) {
		s->stats.tensor_bytes_in += h->body_bytes;
		if (s->into == INTO_OWN)
			s->stats.copied_bytes += h->body_bytes;
	}
	return deliver(s);
}

/* Some of the body came. A body that came whole is summed in one go, which is faster. The pieces of
 * others are summed as they come. */
static enum shard_status body_came(struct stream *s, const unsigned char *at, uint32_t bytes)
{
	bool whole = bytes == head(s)->body_bytes && s->into != INTO_NOWHERE, last;

	s->body_got += bytes;
	last = s->body_got == head(s)->body_bytes;
	if (!whole && stream_sums(s, head(s)->op)) {
		const struct xxh_row *x = xxh_best();

		if (!s->summing)
			x->begin(&s->sum);
		s->summing = true;
		x->add(&s->sum, at, bytes);
	}
	return last ? finish(s) : SHARD_OK;
}

/* Takes descriptors that came beside the bytes. The kernel has closed those for which the control
 * buffer had no room. */
static void fds_came(struct stream *s, struct msghdr *m, bool next)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t nr =
			c->cmsg_len < CMSG_LEN(0) ? 0 : (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		bool take = s->fds_nr == 0;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < nr; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (take && s->fds_nr < STREAM_FDS_MAX)
				s->fds[s->fds_nr++] = fd;
			else
				close(fd);
		}
		if (take)
			s->fds_next = next;
	}
}

static ssize_t receive(struct stream *s, struct iovec *iov, int nr, size_t body_bytes)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * STREAM_FDS_MAX)];
	} control;
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)nr};
	ssize_t n;

	if (s->unix_socket) {
		m.msg_control = control.bytes;
		m.msg_controllen = sizeof(control.bytes);
	}
	n = s->io->row->read(s->io, &m);
	if (n > 0 && s->unix_socket)
		fds_came(s, &m, s->in_body && (size_t)n > body_bytes);
	return n;
}

/* One system call. It reads the rest of the body, or a piece of it, and with its end the next
 * header. Without a body it reads the rest of a header. */
static enum shard_status read_once(struct stream *s, size_t *got, bool *drained)
{
	struct wire_head *next = &s->heads[s->cur ^ s->in_body];
	uint32_t *next_got = s->in_body ? &s->next_got : &s->head_got;
	uint32_t left = s->in_body ? head(s)->body_bytes - s->body_got : 0, piece = left;
	unsigned char *at = !s->in_body               ? NULL
			    : s->into == INTO_NOWHERE ? s->body
						      : s->body + s->body_got;
	struct iovec iov[2];
	size_t want;
	ssize_t n;
	int nr = 0;

	if (piece > (s->into == INTO_NOWHERE ? (uint32_t)OWN_BYTES : (uint32_t)PIECE_BYTES))
		piece = s->into == INTO_NOWHERE ? OWN_BYTES : PIECE_BYTES;
	if (piece > 0)
		iov[nr++] = (struct iovec){at, piece};
	if (piece == left)
		iov[nr++] = (struct iovec){(char *)next + *next_got, sizeof(*next) - *next_got};
	want = piece + (piece == left ? sizeof(*next) - *next_got : 0);
	n = receive(s, iov, nr, piece);
	*drained = n < (ssize_t)want;
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return SHARD_OK;
	if (n == 0 || (n < 0 && (errno == ECONNRESET || errno == EPIPE)))
		return stream_fail(s, SHARD_CLOSED, "%s closed the connection%s%s", s->name,
				   n < 0 ? " (reset)" : "",
				   stream_mid_frame(s) ? " in the middle of a frame" : "");
	if (n < 0 && errno == EPROTO)
		return stream_no_tls(s);
	if (n < 0)
		return stream_fail(s, SHARD_SYSTEM, "cannot receive from %s: %s", s->name,
				   strerror(errno));
	*got = (size_t)n;
	s->stats.bytes_in += (size_t)n;
	s->heard_ns = clock_ns();
	if (!s->in_body && s->head_got == 0)
		s->began_ns = s->heard_ns;
	*next_got += (size_t)n > piece ? (uint32_t)((size_t)n - piece) : 0;
	return piece > 0 ? body_came(s, at, (size_t)n < piece ? (uint32_t)n : piece) : SHARD_OK;
}

enum shard_status stream_read(struct stream *s, size_t max_bytes, struct err *e)
{
	size_t total = 0;
	bool drained = false;

	CHECK(!s->in_callback);
	s->stopped = false;
	while (s->dead.status == SHARD_OK && !s->hold) {
		size_t got = 0;

		if (stream_full(s)) {
			s->stopped = true;
			break;
		}

		if (stream_ready(s)) {
			(void)take_head(s); /* A failure shows in s->dead. */
			continue;
		}
		if (drained || total >= max_bytes)
			return SHARD_OK;
		(void)read_once(s, &got, &drained);
		total += got;
	}
	return s->dead.status != SHARD_OK ? stream_over(s, e) : SHARD_OK;
}
