/* SPDX-License-Identifier: Apache-2.0 */
/* A connection on a libuv loop. This file has readiness, deadlines and the end, and stream.c has
 * the frames. The daemon calls it on its loop thread. Happy path: dialled or accepted -> OPEN,
 * frames go to the owner -> conn_close() -> LINGER until the last frame is written and the peer has
 * closed -> CLOSING while libuv closes its handles -> on_close. A connection fails when the peer
 * closes, is silent, stalls inside a frame or sends what is refused, of which the peer is told.
 * Each failure ends in on_close with a sentence. */
#include "net/conn.h"

#include "base/check.h"
#include "base/clock.h"
#include "net/conn_impl.h"
#include "net/tcp.h"
#include "wire/ops.h"

#include "shard.pb-c.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	/* The least rate of a frame in bytes a second. Without it a peer that sends byte by byte
	 * could hold others up. */
	SLOWEST = 64 << 10,
	READ_MAX = 1 << 20, /* Bytes of one turn. Other handles of the loop need theirs. */
	LAST_TURNS = 64,
	REFUSED_LINGER_MS = 100,
};

static const uint32_t conn_may_move[CONN_NR] = {
	[CONN_DIALLING] = BIT(CONN_OPEN) | BIT(CONN_CLOSING),
	[CONN_OPEN] = BIT(CONN_LINGER) | BIT(CONN_CLOSING),
	[CONN_LINGER] = BIT(CONN_CLOSING),
};

static void conn_move(struct conn *c, enum conn_state to)
{
	CHECK(conn_may_move[c->state] & BIT(to));
	c->state = to;
	CHECK((to != CONN_OPEN && to != CONN_LINGER) || c->stream);
}

static void gone(struct conn *c)
{
	struct stream *s = c->stream;

	CHECK(c->state == CONN_CLOSING && c->handles == 0);
	if (s) {
		snprintf(c->name, sizeof(c->name), "%s", stream_name(s));
		c->last = *stream_stats(s);
		/* Bodies come back before on_close(). A sent() may still look at c->stream. */
		stream_free(&s);
		c->stream = NULL;
	}
	c->handler->on_close(c->owner, c, &c->why);
	tls_close(&c->conf.tls);
	free(c);
}

void conn_handle_closed(struct conn *c)
{
	CHECK(c->handles > 0);
	c->handles--;
	if (c->state == CONN_CLOSING && c->handles == 0)
		gone(c);
}

static void on_timer_closed(uv_handle_t *h)
{
	conn_handle_closed(h->data);
}

static void on_poll_closed(uv_handle_t *h)
{
	conn_handle_closed(h->data);
}

static void finish(struct conn *c)
{
	conn_move(c, CONN_CLOSING);
	if (c->stream)
		stream_hold(c->stream, true);
	if (c->polling)
		uv_close((uv_handle_t *)&c->poll, on_poll_closed);
	c->polling = false;
	conn_dial_cancel(c); /* Closes its descriptor, after the poll handle was closed above. */
	uv_close((uv_handle_t *)&c->timer, on_timer_closed);
}

static void on_poll(uv_poll_t *p, int status, int events);

static void on_timer(uv_timer_t *t);

/* Stops reading while the peer does not take what it is sent, and goes on when it took enough. */
static void look_full(struct conn *c)
{
	bool full = stream_full(c->stream);

	if (full != c->full) {
		c->full = full;
		c->resumed_ns = clock_ns();
		c->due_ns = 0;
		conn_arm(c);
	}
	if (!full && !c->paused && (stream_stopped(c->stream) || stream_pending(c->stream))) {
		/* A frame may be here, and then the socket may stay silent. */
		c->due_ns = 1;
		uv_timer_start(&c->timer, on_timer, 0, 0);
	}
}

static void watch(struct conn *c)
{
	int events = 0;

	if (c->state == CONN_OPEN)
		look_full(c);
	if (c->state == CONN_LINGER || (c->state == CONN_OPEN && !c->paused && !c->full))
		events |= UV_READABLE;
	if (stream_wants_out(c->stream) ||
	    (c->want_write && c->state == CONN_LINGER && !stream_blocked(c->stream)))
		events |= UV_WRITABLE;
	if (events == c->events || !c->polling)
		return;
	c->events = events;
	CHECK((events ? uv_poll_start(&c->poll, events, on_poll) : uv_poll_stop(&c->poll)) == 0);
}

static uint64_t frame_limit(const struct conn *c)
{
	return c->conf.frame_ns ? c->conf.frame_ns : c->conf.silence_ns;
}

/* A peer that takes nothing of what waits for it holds up others, even if it sends something. */
static uint64_t write_deadline(const struct conn *c)
{
	return c->want_write && c->conf.silence_ns != 0 ? c->wrote_ns + c->conf.silence_ns
							: UINT64_MAX;
}

static uint64_t earlier(uint64_t due, uint64_t write_due)
{
	if (write_due == UINT64_MAX)
		return due;
	return due == 0 || write_due < due ? write_due : due;
}

/* When the present state will have lasted too long. 0 means never. */
static uint64_t deadline(const struct conn *c)
{
	uint64_t since, limit;

	if (c->state == CONN_DIALLING || c->state == CONN_LINGER)
		return c->until_ns;
	if (c->state != CONN_OPEN)
		return 0;
	if (c->paused || c->full)
		return earlier(0, write_deadline(c));
	since = stream_heard_ns(c->stream) > c->resumed_ns ? stream_heard_ns(c->stream)
							   : c->resumed_ns;
	limit = c->conf.silence_ns;
	if (stream_mid_frame(c->stream) && frame_limit(c) != 0) {
		uint64_t began = stream_frame_ns(c->stream, SLOWEST);

		if (limit == 0 || frame_limit(c) < limit)
			limit = frame_limit(c);
		if (began >= c->resumed_ns && began < since)
			since = began;
	}
	return earlier(limit ? since + limit : 0, write_deadline(c));
}

/* The timer is set again only when it must fire earlier than it will, so traffic costs nothing. */
void conn_arm(struct conn *c)
{
	uint64_t due = deadline(c), now;

	if (c->state == CONN_CLOSING || due == 0 || (c->due_ns != 0 && c->due_ns <= due))
		return;
	now = clock_ns();
	c->due_ns = due;
	uv_timer_start(&c->timer, on_timer, due > now ? (due - now) / NS_PER_MS + 1 : 1, 0);
}

/* Tells the peer why what it sent is refused, before the connection closes. */
static void tell(struct conn *c, const struct err *why)
{
	Shard__Error body = SHARD__ERROR__INIT;
	struct wire_head h = {.op = OP_ERROR};

	body.status = (uint32_t)why->status;
	/* Packing only reads it. */
	body.text =
		(char *)(uintptr_t)(stream_told(c->stream) ? stream_told(c->stream) : why->text);
	(void)stream_send_control(c->stream, &h,
				  &body.base); /* If the queue is full, the ERROR is left out. */
}

static void end(struct conn *c, const struct err *why)
{
	bool refused = c->stream && (stream_told(c->stream) || why->status == SHARD_TIMEOUT);

	if (c->state >= CONN_LINGER)
		return;
	if (refused && c->state == CONN_OPEN)
		tell(c, why);
	conn_close(c, why, refused ? REFUSED_LINGER_MS : 0);
}

static void flush(struct conn *c);
static void watch(struct conn *c);

/* The deadline of an OPEN connection has passed. Says which one. */
static void overdue(struct conn *c)
{
	bool mid = stream_mid_frame(c->stream) && frame_limit(c) != 0;
	bool full = clock_ns() >= write_deadline(c);
	uint64_t limit = c->conf.silence_ns;
	struct err e = {0};

	if (!full && mid && (limit == 0 || frame_limit(c) < limit))
		limit = frame_limit(c);
	err_set(&e, SHARD_TIMEOUT,
		stream_blocked(c->stream) ? "%s did not answer the handshake of TLS for %.1f s"
		: full                    ? "%s has taken nothing of what it is sent for %.1f s"
		: mid                     ? "%s stalled in mid-frame for %.1f s"
					  : "%s silent for %.1f s",
		conn_name(c), (double)limit / 1e9);
	end(c, &e);
}

/* The other end has closed. What it sent before that is still in the socket and may matter: a
 * verdict, or why it goes. That is read in a turn of its own, because the caller that sends may be
 * a handler. */
static void last_words(struct conn *c)
{
	uint64_t before;
	struct err e = {0};
	int turns = 0;

	do {
		before = stream_stats(c->stream)->bytes_in;
		if (!c->paused && stream_read(c->stream, READ_MAX, &e) != SHARD_OK)
			break;
	} while (c->state == CONN_OPEN && stream_stats(c->stream)->bytes_in != before &&
		 ++turns < LAST_TURNS);
	if (c->state == CONN_OPEN && e.status == SHARD_OK)
		/* Fails again with the reason why nothing can be sent. */
		(void)stream_write(c->stream, &e);
	if (c->state == CONN_OPEN)
		end(c, &e);
}

static void cannot_write(struct conn *c)
{
	c->out_over = true;
	c->want_write = false;
	c->due_ns = 1;
	uv_timer_start(&c->timer, on_timer, 0, 0);
}

static void on_timer(uv_timer_t *t)
{
	struct conn *c = t->data;
	struct err e = {0};
	uint64_t due;

	c->due_ns = 0;
	if (c->state == CONN_OPEN && c->out_over) {
		last_words(c);
		return;
	}
	if (c->state == CONN_OPEN && !c->paused && stream_read(c->stream, READ_MAX, &e) != SHARD_OK)
		end(c, &e); /* What came while this process did not run counts. */
	/* So does what the peer has taken meanwhile. */
	if (c->state == CONN_OPEN && stream_queued(c->stream) > 0)
		flush(c);
	if (c->state == CONN_OPEN)
		watch(c);
	due = deadline(c);
	if (due == 0 || clock_ns() < due) {
		conn_arm(c);
		return;
	}
	if (c->state == CONN_LINGER) {
		finish(c);
	} else if (c->state == CONN_DIALLING) {
		err_set(&e, SHARD_UNREACHABLE, "cannot connect to %s: no answer for %.1f s",
			c->name, (double)c->conf.connect_ns / 1e9);
		end(c, &e);
	} else if (c->state == CONN_OPEN) {
		overdue(c);
	}
}

static void flush(struct conn *c)
{
	uint64_t before = stream_io(c->stream)->taken;
	bool waited = c->want_write;
	struct err e = {0};
	enum shard_status rc;

	c->in_write = true;
	rc = stream_write(c->stream, &e);
	c->in_write = false;
	c->want_write = rc == SHARD_AGAIN;
	if (c->want_write && (!waited || stream_io(c->stream)->taken != before))
		c->wrote_ns = clock_ns();
	if (rc != SHARD_OK && rc != SHARD_AGAIN) {
		if (c->state == CONN_LINGER)
			finish(c);
		else
			cannot_write(c);
		return;
	}
	if (c->state == CONN_LINGER && rc == SHARD_OK)
		stream_finish(c->stream);
	if (c->state != CONN_OPEN || !c->handler->on_room)
		return;
	/* Frames queued in on_room() are written in the next turn, because other handles need
	 * theirs. */
	c->in_write = true;
	c->handler->on_room(c->owner, c);
	c->in_write = false;
	if (!c->want_write && stream_queued(c->stream) > 0) {
		c->want_write = true;
		c->wrote_ns = clock_ns();
	}
}

/* Waits, after the last byte was sent, for the peer to close. If unread input were left, the kernel
 * would discard what was sent. */
static void linger_read(struct conn *c)
{
	char scratch[4096];
	ssize_t n;
	int turns = 0;

	do
		n = recv(stream_fd(c->stream), scratch, sizeof(scratch), MSG_DONTWAIT);
	while (n > 0 && ++turns < 64);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		finish(c);
}

static void on_poll(uv_poll_t *p, int status, int events)
{
	struct conn *c = p->data;
	struct err e = {0};
	enum shard_status rc = SHARD_OK;

	/* libuv has stopped watching. The next call on the socket gets its error. */
	if (status < 0) {
		c->events = 0;
		c->want_write = false;
	}
	if (c->state == CONN_OPEN && !c->paused &&
	    (status < 0 || (events & UV_READABLE && !c->full))) {
		c->in_read = true;
		rc = stream_read(c->stream, READ_MAX, &e);
		c->in_read = false;
		if (rc != SHARD_OK)
			end(c, &e);
		else if (status < 0) {
			err_set(&e, SHARD_SYSTEM, "%s: %s", conn_name(c), uv_strerror(status));
			end(c, &e);
		}
	} else if (c->state == CONN_LINGER && (status < 0 || events & UV_READABLE)) {
		linger_read(c);
	}
	if ((c->state == CONN_OPEN || c->state == CONN_LINGER) &&
	    (events & UV_WRITABLE || (stream_queued(c->stream) && !c->want_write)))
		flush(c);
	if (c->state != CONN_CLOSING) {
		conn_arm(c);
		watch(c);
	}
}

static bool is_unix(int fd)
{
	int domain = AF_UNSPEC;
	socklen_t bytes = sizeof(domain);

	return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX;
}

/* The poll handle is set up already and watches fd. */
enum shard_status conn_begin(struct conn *c, int fd, enum tls_side side, struct err *e)
{
	struct stream_conf sc = {
		.fd = fd, .queue_max = c->conf.queue_max, .body_max = c->conf.body_max, .owner = c};
	enum shard_status rc = SHARD_OK;

	sc.handler = &conn_frames;
	sc.account = c->conf.account;
	if (c->conf.tls && !is_unix(fd))
		rc = tls_io(&sc.io, c->conf.tls, side, fd, c->tls_peer[0] ? c->tls_peer : NULL, e);
	tls_close(&c->conf.tls);
	if (rc == SHARD_OK)
		rc = stream_open(&c->stream, &sc, e);
	if (rc != SHARD_OK) {
		tls_io_undo(&sc.io);
		return rc;
	}
	c->events = 0;
	conn_move(c, CONN_OPEN);
	watch(c);
	conn_arm(c);
	return SHARD_OK;
}

enum shard_status conn_new(struct conn **out, uv_loop_t *loop, const struct conn_conf *conf,
			   struct err *e)
{
	struct conn *c = calloc(1, sizeof(*c));

	CHECK(conf->handler && conf->handler->on_close);
	*out = c;
	if (!c)
		return err_set(e, SHARD_SYSTEM, "no memory for a connection");
	c->loop = loop;
	c->conf = *conf;
	c->conf.tls = tls_use(conf->tls);
	c->handler = conf->handler;
	c->owner = conf->owner;
	c->state = CONN_DIALLING;
	c->dial.fd = -1;
	CHECK(uv_timer_init(loop, &c->timer) == 0);
	c->timer.data = c;
	c->handles = 1;
	return SHARD_OK;
}

enum shard_status conn_poll_init(struct conn *c, int fd, struct err *e)
{
	int rc = uv_poll_init(c->loop, &c->poll, fd);

	if (rc != 0)
		return err_set(e, SHARD_SYSTEM, "the loop cannot watch a connection to %s: %s",
			       conn_name(c), uv_strerror(rc));
	c->poll.data = c;
	c->polling = true;
	c->handles++;
	return SHARD_OK;
}

static void on_undone(uv_handle_t *h)
{
	struct conn *c = h->data;

	if (--c->handles > 0)
		return;
	tls_close(&c->conf.tls);
	free(c);
}

void conn_undo(struct conn *c)
{
	if (c->polling)
		uv_close((uv_handle_t *)&c->poll, on_undone);
	uv_close((uv_handle_t *)&c->timer, on_undone);
}

enum shard_status conn_accept(struct conn **out, uv_loop_t *loop, int fd,
			      const struct conn_conf *conf, struct err *e)
{
	enum shard_status rc = conn_new(out, loop, conf, e);

	if (rc == SHARD_OK) {
		tcp_tune(fd);
		rc = conn_poll_init(*out, fd, e);
		if (rc == SHARD_OK)
			rc = conn_begin(*out, fd, TLS_LISTENER, e);
		if (rc == SHARD_OK)
			return SHARD_OK;
		conn_undo(*out);
	}
	*out = NULL;
	close(fd);
	return rc;
}

void conn_set_owner(struct conn *c, const struct conn_handler *handler, void *owner)
{
	CHECK(handler && handler->on_close);
	c->handler = handler;
	c->owner = owner;
}

void conn_set_limit(struct conn *c, uint64_t held_max)
{
	stream_limit(c->stream, held_max);
}

void conn_set_silence(struct conn *c, uint64_t silence_ns)
{
	c->conf.silence_ns = silence_ns;
	c->due_ns = 0; /* The timer may be set for a time that is too late now. */
	conn_arm(c);
}

void conn_kick(struct conn *c)
{
	if (c->state == CONN_OPEN && c->in_read && stream_roomy(c->stream))
		/* on_poll() writes it together with what the other frames of this read add. */
		return;
	conn_kick_now(c);
}

void conn_kick_now(struct conn *c)
{
	if (c->state != CONN_OPEN && c->state != CONN_LINGER)
		return;
	if (c->want_write || c->in_write)
		return; /* The write that is in progress or waited for takes it along. */
	flush(c);
	if (c->state == CONN_CLOSING)
		return;
	watch(c);
	if (c->want_write)
		conn_arm(c);
}

void conn_pause(struct conn *c, bool paused)
{
	if (c->state != CONN_OPEN || c->paused == paused)
		return;
	c->paused = paused;
	stream_hold(c->stream, paused);
	c->resumed_ns = clock_ns();
	c->due_ns = 0;
	if (!paused && (stream_ready(c->stream) || stream_pending(c->stream))) {
		/* A frame may be here, and then the socket may stay silent. */
		c->due_ns = 1;
		uv_timer_start(&c->timer, on_timer, 0, 0);
	} else {
		conn_arm(c);
	}
	watch(c);
}

void conn_close(struct conn *c, const struct err *why, uint32_t linger_ms)
{
	if (c->state == CONN_CLOSING || (c->state == CONN_LINGER && linger_ms > 0))
		return;
	if (c->state != CONN_LINGER) {
		if (why)
			c->why = *why;
		else
			err_set(&c->why, SHARD_CLOSED, "%s: closed here", conn_name(c));
	}
	if (c->state != CONN_OPEN || linger_ms == 0) {
		finish(c);
		return;
	}
	stream_hold(c->stream, true);
	conn_move(c, CONN_LINGER);
	c->until_ns = clock_ns() + linger_ms * NS_PER_MS;
	c->due_ns = 0;
	conn_arm(c);
	c->want_write = true; /* on_poll() writes, then shuts down our side. */
	watch(c);
}
