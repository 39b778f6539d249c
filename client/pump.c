// SPDX-License-Identifier: Apache-2.0
/* Who reads the socket, and how a call waits. A unix socket has no thread of its own. The first
 * call that has to wait becomes the pumper. It sits in poll(2) without the lock and handles what
 * arrives for all. The others wait on a condition, and one of them takes over when it leaves. On
 * tcp the library's one thread pumps, and every call waits on the condition. A call that queues a
 * frame writes it at once. Only if the socket is full does it wake the pumper, which then waits for
 * room. The layers above hear through struct client_events. A wait ends early at a deadline, by
 * shard_interrupt(), or when the connection ends, which every later call reports again. */
#include "request.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

bool client_forked(const struct shard_client *c)
{
	return *(const volatile unsigned char *)c->alive == 0;
}

enum shard_status client_enter(struct shard_client *c)
{
	enum shard_status rc;

	text_begin();
	if (client_forked(c))
		return text_fail(
			SHARD_FORKED,
			"this connection to %s belongs to the parent process: connect again here",
			c->address);
	pthread_mutex_lock(&c->lock);
	if (c->over.status == SHARD_OK)
		return SHARD_OK;
	rc = text_fail_err(&c->over);
	pthread_mutex_unlock(&c->lock);
	return rc;
}

enum shard_status client_alive(const struct shard_client *c)
{
	return c->over.status == SHARD_OK ? SHARD_OK : text_fail_err(&c->over);
}

void client_leave(struct shard_client *c)
{
	pthread_mutex_unlock(&c->lock);
}

void wait_begin(struct shard_client *c, struct wait *w, int64_t timeout_ms)
{
	CHECK(timeout_ms >= 0);
	w->began_ns = clock_ns();
	w->deadline_ns = (uint64_t)timeout_ms > (UINT64_MAX - w->began_ns) / NS_PER_MS
				 ? UINT64_MAX
				 : w->began_ns + (uint64_t)timeout_ms * NS_PER_MS;
	w->interrupts = atomic_load(c->interrupts);
	w->polled = false;
}

double wait_seconds(const struct wait *w)
{
	return (double)(clock_ns() - w->began_ns) / 1e9;
}

/* Async-signal-safe. */
static void wake(struct shard_client *c)
{
	uint64_t one = 1;
	ssize_t n = write(c->wake_fd, &one, sizeof(one));

	(void)n; /* EAGAIN: it is readable already. */
}

static void wake_clear(struct shard_client *c)
{
	uint64_t drop;
	ssize_t n = read(c->wake_fd, &drop, sizeof(drop));

	(void)n;
}

/* For a caller that polls shard_fd() while another thread handles the frame. */
static void say_event(struct shard_client *c)
{
	uint64_t one = 1;

	if (!c->news || c->event_set)
		return;
	c->event_set = write(c->event_fd, &one, sizeof(one)) == (ssize_t)sizeof(one);
	c->news = false;
}

static void pump_over(struct shard_client *c, const struct err *e)
{
	if (c->over.status != SHARD_OK)
		return;
	enum shard_status st = e->status == SHARD_PROTOCOL || e->status == SHARD_VERSION ||
					       e->status == SHARD_DENIED
				       ? e->status
				       : SHARD_CLOSED;

	/* A daemon that puts this trainer out says another status than one that stops. */
	if (st == SHARD_CLOSED &&
	    (c->last_words.status == SHARD_OK || c->last_words.status == SHARD_CLOSED) &&
	    c->events->heals(c))
		st = SHARD_WORLD_CHANGED;
	if (c->last_words.status != SHARD_OK)
		err_set(&c->over, st == SHARD_WORLD_CHANGED ? st : SHARD_CLOSED,
			"shardd at %s ended the connection: %.380s", c->address,
			c->last_words.text);
	else
		err_set(&c->over, st, "connection to shardd at %s is over: %.380s", c->address,
			e->text);
	c->news = true;
	c->events->over(c);
	/* The stream may still hold their bodies, so they stay on the list. */
	list_each(it, &c->requests) {
		struct request *r = list_of(it, struct request, node);

		if (r->answered)
			continue;
		r->answered = true;
		r->err = c->over;
	}
	pump_moved(c);
}

void pump_moved(struct shard_client *c)
{
	pthread_cond_broadcast(&c->moved);
	if (c->pumping && !c->tcp)
		wake(c); /* The pumper may be waiting for just this. */
}

/* Frames that do not fit the stream's queue wait in the models. Before a call waits, both must be
 * empty or the socket full. */
static enum shard_status write_out(struct shard_client *c, struct err *e)
{
	enum shard_status rc;
	bool more;

	do {
		more = c->events->flush(c);
		rc = stream_write(c->stream, e);
	} while (rc == SHARD_OK && more);
	return rc;
}

/* What the daemon said before it closed is still to be read. Its words explain more than EPIPE. */
static void read_last_words(struct shard_client *c)
{
	struct err e = {.status = SHARD_OK};

	while (c->last_words.status == SHARD_OK &&
	       stream_read(c->stream, CLIENT_READ_BYTES, &e) == SHARD_OK && c->news)
		c->news = false;
}

enum shard_status pump_once(struct shard_client *c)
{
	struct err e = {.status = SHARD_OK};
	enum shard_status rc;

	if (c->over.status != SHARD_OK)
		return text_fail_err(&c->over);
	rc = write_out(c, &e);
	if (rc == SHARD_OK || rc == SHARD_AGAIN) {
		rc = stream_read(c->stream, CLIENT_READ_BYTES, &e);
		if (rc == SHARD_OK && stream_queued(c->stream) > 0) /* A handler answered. */
			rc = write_out(c, &e);
		rc = rc == SHARD_AGAIN ? SHARD_OK : rc;
	}
	if (rc != SHARD_OK) {
		read_last_words(c);
		e.status = rc;
		pump_over(c, &e);
		return text_fail_err(&c->over);
	}
	c->events->turned(c);
	return SHARD_OK;
}

/* The thread in poll(2) does not wake for what is read here. Neither do the calls that wait for it,
 * nor a caller that polls shard_fd(). So all are woken. */
enum shard_status pump_look(struct shard_client *c)
{
	enum shard_status rc = pump_once(c);

	say_event(c);
	pump_moved(c);
	return rc;
}

void pump_kick(struct shard_client *c)
{
	struct err e = {.status = SHARD_OK};
	enum shard_status rc;

	if (c->over.status != SHARD_OK)
		return;
	rc = write_out(c, &e);
	if (rc == SHARD_AGAIN) {
		if (c->pumping)
			wake(c); /* So that its poll() waits for room, too. */
	} else if (rc != SHARD_OK) {
		e.status = rc;
		read_last_words(c);
		pump_over(c, &e);
	}
}

/* Sits in poll(2) for all. Enters and leaves with the lock. */
static void pump_round(struct shard_client *c, int timeout_ms)
{
	struct pollfd p[2] = {{.fd = stream_fd(c->stream), .events = POLLIN},
			      {.fd = c->wake_fd, .events = POLLIN}};
	int n;

	if (stream_wants_out(c->stream))
		p[0].events |= POLLOUT;
	if (stream_pending(c->stream))
		timeout_ms = 0; /* The socket has given what is left to read. */
	c->pumping = true;
	pthread_mutex_unlock(&c->lock);
	n = poll(p, 2, timeout_ms);
	pthread_mutex_lock(&c->lock);
	c->pumping = false;
	if (n > 0 && p[1].revents)
		wake_clear(c);
	if ((stream_pending(c->stream) || (n > 0 && p[0].revents)) && !c->stop)
		(void)pump_once(c);
	say_event(c);
	/* All that wait look again. If this thread has what it wants, one of them pumps. */
	pthread_cond_broadcast(&c->moved);
}

void pump_moves(struct shard_client *c, uint64_t deadline_ns)
{
	uint64_t cap = clock_ns() + 3600 * NS_PER_SEC,
		 until = deadline_ns < cap ? deadline_ns : cap;
	struct timespec ts = {.tv_sec = (time_t)(until / NS_PER_SEC),
			      .tv_nsec = (long)(until % NS_PER_SEC)};

	pthread_cond_timedwait(&c->moved, &c->lock, &ts);
}

enum shard_status pump_wait(struct shard_client *c, struct wait *w)
{
	uint64_t now = clock_ns(), left_ms;

	if (c->over.status != SHARD_OK)
		return text_fail_err(&c->over);
	if (atomic_load(c->interrupts) != w->interrupts)
		return text_fail(SHARD_INTERRUPTED,
				 "shard_interrupt() was called after %.1f s of waiting",
				 wait_seconds(w));
	if (now >= w->deadline_ns && (w->polled || c->tcp || c->pumping))
		return SHARD_TIMEOUT;
	w->polled = true;
	c->waiting++;
	if (c->tcp || c->pumping) {
		pump_moves(c, w->deadline_ns);
	} else {
		left_ms = now >= w->deadline_ns
				  ? 0
				  : (w->deadline_ns - now + NS_PER_MS - 1) / NS_PER_MS;
		pump_round(c, left_ms > 3600000 ? 3600000 : (int)left_ms);
	}
	c->waiting--;
	if (c->healing)
		pthread_cond_broadcast(&c->moved); /* pump_drain() */
	return SHARD_OK;
}

/* Whoever returns from its wait keeps the lock until it waits again, which fails, or until it has
 * nothing more to do with this connection. */
void pump_drain(struct shard_client *c)
{
	CHECK(c->over.status != SHARD_OK && c->healing);
	while (c->waiting > 0) {
		pump_moved(c);
		pump_moves(c, clock_ns() + NS_PER_SEC);
	}
}

void pump_nap(struct shard_client *c, uint64_t ns)
{
	struct pollfd p = {.fd = c != NULL ? c->wake_fd : -1, .events = POLLIN};

	if (poll(&p, 1, (int)((ns + NS_PER_MS - 1) / NS_PER_MS)) > 0)
		wake_clear(c);
}

enum shard_status pump_pause(struct shard_client *c, const struct wait *w, uint64_t ns)
{
	uint64_t until = clock_ns() + ns;
	struct wait part = *w;
	enum shard_status rc;

	part.deadline_ns = until < w->deadline_ns ? until : w->deadline_ns;
	part.polled = false;
	do
		rc = pump_wait(c, &part);
	while (rc == SHARD_OK);
	return rc == SHARD_TIMEOUT && clock_ns() < w->deadline_ns ? SHARD_OK : rc;
}

static void *pump_thread(void *arg)
{
	struct shard_client *c = arg;

	pthread_mutex_lock(&c->lock);
	while (!c->stop && c->over.status == SHARD_OK)
		pump_round(c, -1);
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

enum shard_status pump_start(struct shard_client *c)
{
	sigset_t all, before;
	int error;

	if (!c->tcp)
		return SHARD_OK;
	sigfillset(&all); /* The application's signals are for its own threads. */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&c->thread, NULL, pump_thread, c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error != 0) {
		errno = error;
		return text_fail(SHARD_SYSTEM, "cannot start the connection's thread: %s",
				 strerror(error));
	}
	c->thread_runs = true;
	return SHARD_OK;
}

void pump_stop(struct shard_client *c)
{
	if (!c->thread_runs)
		return;
	pthread_mutex_lock(&c->lock);
	c->stop = true;
	pthread_mutex_unlock(&c->lock);
	wake(c);
	pthread_join(c->thread, NULL);
	c->thread_runs = false;
}

void shard_interrupt(shard_client *c)
{
	int error = errno;

	if (c == NULL || client_forked(c))
		return;
	atomic_fetch_add(c->interrupts, 1);
	wake(c);
	errno = error;
}
